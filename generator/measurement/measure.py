"""``measure``: ground truth, the latency of whole models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Unpack

from ...bricks.layer import TensorType
from ...db.store import Store
from ...db.values import Measurement, Runtime
from ...errors import DlbricksError
from ...tabular import Records
from ..decomposition.decompose import Model, source_of
from ..progress import ProgressCallback
from .alone import Alone, run_alone
from .execution import MeasuredReport, RunOutcome, all_kernels, execute_run
from .settings import MeasurementFields, MeasurementSettings, Order, settings_from

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """Ground truth of one model; if ``error`` is set, numbers are None.

    Attributes:
        name: The model.
        key: Its content key.
        runtime: The runtime.
        threads: Threads of the runtime.
        measurement: Its measurement; None if it could not be measured.
        error: Why it could not be measured.
        bound: Sizes of its dynamic dimensions.
        invented: Its inputs with made-up values that decide shapes or time.
        alone: The model in a separate process; None if this was not requested, or failed.
        alone_error: Why it could not be run alone.
    """

    name: str
    key: str | None
    runtime: Runtime
    threads: int
    measurement: Measurement | None = None
    error: str | None = None
    bound: Mapping[str, int] = field(default_factory=dict)
    invented: Mapping[str, TensorType] = field(default_factory=dict)
    alone: Alone | None = None
    alone_error: str | None = None

    @property
    def backend(self) -> str:
        """Name of the runtime."""
        return self.runtime.backend

    @property
    def latency_ms(self) -> float | None:
        """Mean latency."""
        return None if self.measurement is None else self.measurement.latency_ms

    @property
    def ci95_ms(self) -> tuple[float, float] | None:
        """95 % interval of the mean."""
        return None if self.measurement is None else self.measurement.ci95_ms

    @property
    def undisturbed_ms(self) -> float | None:
        """Latency on a quiet machine."""
        return None if self.measurement is None else _ms(self.measurement.undisturbed_ns)

    # Percentiles of single executions if the model was run alone; else of visits, in which short models repeat.

    @property
    def p50_ms(self) -> float | None:
        """Half of the executions are at most this long."""
        if self.alone is not None:
            return self.alone.quantile_ms(0.5)
        return None if self.measurement is None else _ms(self.measurement.summary.median_ns)

    @property
    def p90_ms(self) -> float | None:
        """90 % of the executions are at most this long."""
        if self.alone is not None:
            return self.alone.quantile_ms(0.9)
        return None if self.measurement is None else _ms(self.measurement.summary.p90_ns)

    @property
    def p95_ms(self) -> float | None:
        """95 % of the single executions are at most this long; only of models that were run alone."""
        return None if self.alone is None else self.alone.quantile_ms(0.95)

    @property
    def p99_ms(self) -> float | None:
        """99 % of the executions are at most this long."""
        if self.alone is not None:
            return self.alone.quantile_ms(0.99)
        return None if self.measurement is None else _ms(self.measurement.summary.p99_ns)

    @property
    def load_ms(self) -> float | None:
        """Duration of session creation."""
        return None if self.measurement is None else _ms(self.measurement.load_ns)

    @property
    def first_run_ms(self) -> float | None:
        """Duration of the first execution after session creation."""
        return None if self.measurement is None else _ms(self.measurement.first_run_ns)

    @property
    def verdict(self) -> str | None:
        """``stable``, ``noisy``, ``unstable`` or ``timed-out``."""
        return None if self.measurement is None else str(self.measurement.summary.verdict)

    def record(self) -> dict[str, object]:
        """Return the row of JSON."""
        return {
            **{name: getattr(self, name) for name in _COLUMNS},
            **({} if self.alone is None else self.alone.record()),
            "bound": dict(self.bound),
            "invented": list(self.invented),
            "threads": self.threads,
        }


_COLUMNS = (
    "name", "key", "backend", "latency_ms", "ci95_ms", "undisturbed_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms",
    "load_ms", "first_run_ms", "verdict", "error", "alone_error",
)  # fmt: skip


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / _NS_PER_MS


@dataclass(frozen=True, slots=True)
class MeasureReport(MeasuredReport):
    """Ground truth of several models.

    Attributes:
        rows: One per model, in the order given.
        outcome: The request and its results.
    """

    ANSWER = "report.answers.runs.measure_answer"

    rows: tuple[MeasureRow, ...]
    outcome: RunOutcome

    @property
    def complete(self) -> bool:
        """True if all requested measurements succeeded."""
        unrecorded = self.kernels is not None and self.kernels.failures
        return not unrecorded and all(row.error is None for row in self.rows)

    def records(self) -> Records:
        """Return one row per model."""
        return measure_records([self])


def measure_records(reports: Sequence[MeasureReport]) -> Records:
    """Return the JSON of measurements with different numbers of threads: rows side by side, and the totals of each.

    Args:
        reports: Of the same models, one per number of threads.
    """
    each = [{"threads": report.threads, **_totals([report])} for report in reports]
    of_models = zip(*(report.rows for report in reports), strict=True)
    return Records([row.record() for rows in of_models for row in rows], _totals(reports) | {"by_threads": each})


def _totals(reports: Sequence[MeasureReport]) -> dict[str, object]:
    first, *others = reports
    return {
        "run": None if others else first.run,
        "system": first.system,
        "stack": first.stack,
        "wall_s": sum(report.wall_s for report in reports),
        "kernels": all_kernels(reports),
    }


def measure(
    models: Sequence[Model],
    *,
    store: Store,
    settings: MeasurementSettings | None = None,
    since: datetime | None = None,
    kernels: bool = False,
    alone: bool = False,
    node: str | None = None,
    campaign: str = "",
    label: str = "",
    progress: ProgressCallback | None = None,
    **fields: Unpack[MeasurementFields],
) -> MeasureReport:
    """Measure whole models, alternating between them over several processes, and store them as ground truth.

    Models are measured even if the database has measurements of them, unless ``since`` is given. An interrupted
    measurement is continued.

    Args:
        models: Models to measure (``find_models``).
        store: Open database.
        settings: How to measure.
        since: Measure only models without a measurement since this time; report the stored measurements of the others.
            A time without a time zone is local time.
        kernels: Also record the kernels that run for each model, in a separate pass afterwards; ``budget_s`` does not
            bound this pass.
        alone: Afterwards, run each model in a separate process, for its memory and the percentiles of its single
            executions. This takes a few seconds per model, which ``budget_s`` does not bound. The database does not
            keep these results.
        node: Your name of this machine, stored with the run; None: ``$DLBRICKS_NODE``, or else empty. Unfinished
            measurements of other nodes in the database are not continued.
        campaign: Name of the campaign that the run belongs to, stored with the run.
        label: Your name of the measured state, for example a commit, stored with the run.
        progress: Called between requests.
        **fields: Fields of ``MeasurementSettings``, instead of ``settings``.

    Raises:
        DlbricksError: As ``run``; a model that cannot be read or run becomes a row with ``error`` instead.
    """
    how = settings_from(settings, fields)
    order = Order(
        "measure",
        again=("all",),
        since=since,
        kernels=kernels,
        node=node,
        campaign=campaign,
        label=label,
    )
    outcome = execute_run(how, order, store=store, models=models, progress=progress)
    chosen = outcome.chosen
    measurements = {measurement.key: measurement for measurement in (*chosen.models.reused, *chosen.models.measured)}
    failed = {failure.key: failure.reason for failure in chosen.models.failures}
    rows = []
    for name, key in chosen.sources.names:
        measurement, error = None if key is None else measurements.get(key), None
        if key is None:
            error = chosen.sources.problems[name]
        elif measurement is None:
            error = failed.get(key, "the time was up before enough samples")
            if key in failed:
                error += chosen.sources.suspects.get(name, "")
        bound, invented = chosen.sources.bound.get(name, {}), chosen.sources.invented.get(name, {})
        threads = how.conditions.threads
        rows.append(MeasureRow(name, key, how.runtime, threads, measurement, error, bound, invented))
    return MeasureReport(tuple(_with_alone(rows, models, how) if alone else rows), outcome)


def _with_alone(rows: Sequence[MeasureRow], models: Sequence[Model], how: MeasurementSettings) -> list[MeasureRow]:
    """Return the rows, with the results of separate processes for the measured models."""
    sources = {source.name: source for source in map(source_of, models)}
    able = [row for row in rows if row.error is None]
    answers = dict(zip([row.name for row in able], run_alone([sources[row.name] for row in able], how), strict=True))
    whole = []
    for row in rows:
        answer = answers.get(row.name)
        if isinstance(answer, DlbricksError):
            whole.append(replace(row, alone_error=str(answer)))
        else:
            whole.append(replace(row, alone=answer))
    return whole
