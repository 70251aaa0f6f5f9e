"""``measure``: ground truth, the latency of whole models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Unpack

from ...db.store import Store
from ...db.values import Measurement
from ...models import ModelSource
from ...tabular import Records, Tabular
from ..backends.registry import get
from ..backends.requirements import require_walking
from ..progress import ProgressCallback
from .campaign import conduct
from .costs import RunCosts
from .data.data_effects import measure_data
from .data.model_effect import DataLayer
from .profiling import ProfileReport
from .settings import MeasurementFields, MeasurementSettings, settings_from

__all__ = ["MeasureReport", "MeasureRow", "measure"]

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """Ground truth of one model; every number is None where ``error`` says why.

    Attributes:
        name: The model.
        key: Its content key.
        backend: Name of the runtime.
        latency_ms: Mean.
        ci95_ms: 95 % interval of the mean.
        undisturbed_ms: What it takes on a quiet machine.
        p90_ms: 90 % of the runs are at most this long.
        p99_ms: 99 % are.
        load_ms: Session creation.
        first_run_ms: First execution after it.
        verdict: ``stable``, ``noisy``, ``unstable`` or ``timed-out``.
        error: Why it could not be measured.
        data_effect_ms: What its own values cost beyond synthetic ones, over all its executed layers; None where that
            was not asked for, and where ``data_error`` says why.
        data_ci95_ms: 95 % interval of it; where it includes 0, its values do nothing.
        data_layers: The executed layers whose latency depends on their values.
        data_error: Why its values could not be examined.
        bound: What its dynamic dimensions were bound to.
        threads: Threads of the runtime.
    """

    name: str
    key: str | None
    backend: str
    latency_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    undisturbed_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    load_ms: float | None = None
    first_run_ms: float | None = None
    verdict: str | None = None
    error: str | None = None
    data_effect_ms: float | None = None
    data_ci95_ms: tuple[float, float] | None = None
    data_layers: tuple[DataLayer, ...] | None = None
    data_error: str | None = None
    bound: Mapping[str, int] = field(default_factory=dict)
    threads: int = 1


@dataclass(frozen=True, slots=True)
class MeasureReport(Tabular):
    """Ground truth of several models.

    Attributes:
        rows: One per model, in the order given.
        run: UUID of the run; None where no model could be read.
        system: Key of this system.
        stack: Key of the stack.
        wall_s: The whole call.
        costs: Where the time went.
        kernels: What the pass that records kernels did; None where it was not asked for.
        bounded_s: Of ``wall_s``, what a total time bounds: neither that pass nor what the values in models cost.
        threads: Threads of the runtime.
    """

    rows: tuple[MeasureRow, ...]
    run: str | None
    system: str
    stack: str
    wall_s: float
    costs: RunCosts
    kernels: ProfileReport | None = None
    bounded_s: float = 0.0
    threads: int = 1

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for is measured or listed."""
        unrecorded = self.kernels is not None and self.kernels.failures
        return not unrecorded and all(row.error is None and row.data_error is None for row in self.rows)

    def records(self) -> Records:
        """One row per model."""
        totals = {name: getattr(self, name) for name in ("run", "system", "stack", "wall_s")} | {
            "kernels": None if self.kernels is None else asdict(self.kernels)
        }
        return Records(list(map(asdict, self.rows)), totals | {"by_threads": [{"threads": self.threads, **totals}]})


def measure(
    models: Sequence[ModelSource],
    *,
    store: Store,
    settings: MeasurementSettings | None = None,
    since: datetime | None = None,
    data: bool = False,
    kernels: bool = False,
    node: str | None = None,
    campaign: str = "",
    progress: ProgressCallback | None = None,
    **fields: Unpack[MeasurementFields],
) -> MeasureReport:
    """Measure whole models, interleaved in rounds over several processes, and store them as ground truth.

    Always measures, whatever is stored, unless ``since`` says otherwise; a measurement that was interrupted goes on.

    Args:
        models: What to measure (``find_models``).
        store: Open database.
        settings: How to measure.
        since: Only what was not measured since this time; of the rest the stored measurements are the answer. Local
            time where it has no time zone.
        data: Also measure what the models' own values cost (``measure_data``); ``budget_s`` does not bound that.
        kernels: Afterwards, in a pass of its own, also record which kernels run for each model; ``budget_s`` does not
            bound that.
        node: What you call this machine, stored with the run; None: ``$DLBRICKS_NODE``, else nothing. What another node
            left unfinished in the database is not continued.
        campaign: What this is part of, stored with the run.
        progress: Called between requests.
        **fields: Fields of ``MeasurementSettings``, in place of ``settings``.

    Raises:
        DlbricksError: As ``run``; a model that cannot be read or run is a row with ``error`` instead.
    """
    how = settings_from(settings, fields)
    if data:  # before the models are measured without them
        runtime = get(how.backend)
        require_walking(runtime, how.device, runtime.resolve(how.device, how.options))
    done = conduct(
        how,
        command="measure",
        store=store,
        models=models,
        again=("all",),
        since=since,
        kernels=kernels,
        node=node,
        campaign=campaign,
        progress=progress,
    )
    pending = {item.key: item for item in done.models.pending}
    known = {found.key: found for found in done.models.reused}
    failed = {failure.key: failure for failure in done.models.failed}
    rows, used = [], done.conditions.threads
    for name, key in done.sources.names:
        if key is None:
            rows.append(MeasureRow(name, None, how.backend, error=done.sources.problems[name], threads=used))
            continue
        item, bound = pending.get(key), done.sources.bound.get(name, {})
        result = known.get(key) if item is None else item.result
        failure = failed.get(key) if item is None else item.failure
        if result is not None:
            rows.append(replace(_row(name, how.backend, result), bound=bound, threads=used))
        else:
            reason = failure.reason if failure is not None else "the time was up before enough samples"
            rows.append(MeasureRow(name, key, how.backend, error=reason, bound=bound, threads=used))
    wall_s = done.wall_s
    if data:
        effects = measure_data(
            models,
            store=store,
            backend=how.backend,
            device=how.device,
            options=how.options,
            threads=how.threads,
            dtype=how.dtype,
            seed=how.seed,
            progress=progress,
        )
        wall_s += effects.wall_s
        rows = [
            replace(
                row,
                data_effect_ms=effect.effect_ms,
                data_ci95_ms=effect.ci95_ms,
                data_layers=effect.layers if effect.error is None else None,
                data_error=effect.error if effect.key is not None else None,  # else ``error`` says it
            )
            for row, effect in zip(rows, effects.rows, strict=True)
        ]
    return MeasureReport(
        rows=tuple(rows),
        run=done.run,
        system=done.system.key,
        stack=done.stack.key,
        wall_s=wall_s,
        costs=done.costs,
        kernels=done.kernels,
        bounded_s=done.wall_s - done.costs.profile_s,
        threads=used,
    )


def _row(name: str, backend: str, found: Measurement) -> MeasureRow:
    return MeasureRow(
        name=name,
        key=found.key,
        backend=backend,
        latency_ms=found.latency_ms,
        ci95_ms=found.ci95_ms,
        undisturbed_ms=None if found.undisturbed_ns is None else found.undisturbed_ns / _NS_PER_MS,
        p90_ms=found.summary.p90_ns / _NS_PER_MS,
        p99_ms=found.summary.p99_ns / _NS_PER_MS,
        load_ms=found.load_ns / _NS_PER_MS if found.load_ns is not None else None,
        first_run_ms=found.first_run_ns / _NS_PER_MS if found.first_run_ns is not None else None,
        verdict=str(found.summary.verdict),
    )
