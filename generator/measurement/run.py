"""``run``: measure every brick of a suite that is not measured yet, and models beside them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Unpack

from ...bricks.suite.suite import Suite
from ...db.store import Store
from ...db.values import Failure
from ...models import ModelSource
from ...tabular import Records, Tabular
from ..progress import ProgressCallback
from .campaign import Campaign, conduct
from .costs import RunCosts
from .pending import Selection
from .profiling import ProfileReport
from .settings import MeasurementFields, MeasurementSettings, settings_from

__all__ = ["RunFailure", "RunReport", "run"]

_TOTALS = (
    "bricks", "measured", "reused", "failed", "remaining", "models", "models_measured", "models_remaining",
    "algorithms", "algorithms_reused", "algorithms_remaining", "wall_s", "timed_s", "prepare_s", "forecast_s",
    "budget_s", "dry_run", "run", "system", "stack",
)  # fmt: skip
"""Fields of a ``RunReport`` that JSON has as they are."""


@dataclass(frozen=True, slots=True)
class RunFailure:
    """What a run could not measure.

    Attributes:
        key: Key of the brick, or name of the model.
        reason: Why.
        variant: Name of the algorithm; empty for none.
        threads: Threads of the runtime.
    """

    key: str
    reason: str
    variant: str
    threads: int


@dataclass(frozen=True, slots=True)
class RunReport(Tabular):
    """What a run did.

    ``bricks`` is the sum of ``measured``, ``reused``, ``failed`` and ``remaining``.

    Attributes:
        run: UUID of the run; None for a dry run, and where nothing was left to measure.
        system: Key of this system.
        stack: Key of the stack.
        bricks: Bricks of the suite.
        measured: Measured by this run; none by a dry run.
        reused: Stored already.
        failed: Cannot be measured, now or by an earlier run, or have a broken file.
        remaining: Left over because the time was up, and running again goes on with them; for a dry run, those that
            would be measured.
        models: Whole models measured by this run or stored already.
        models_remaining: Whole models left over, or to be measured, likewise.
        failures: Brick key, or model name, and the reason.
        algorithms: Bricks measured by this run with one of the backend's other algorithms, each once per algorithm.
        algorithms_reused: Of these, those stored already.
        algorithms_remaining: Left over, or to be measured, likewise.
        algorithm_failures: Those that cannot be measured.
        wall_s: The whole call.
        timed_s: Timed samples.
        prepare_s: Loading of networks in the workers.
        forecast_s: What was expected before, within the budget where that was possible.
        budget_s: Total time that was given; None: as long as it takes.
        dry_run: Whether this was only a forecast.
        costs: Every part of ``wall_s``.
        kernels: What the pass that records kernels did; None where it was not asked for.
        bound: What the dynamic dimensions of models were bound to, by name.
        models_measured: Of ``models``, those measured by this run.
        verdicts: Measurements of bricks and models that serve now, by verdict.
        threads: Threads of the runtime.
    """

    run: str | None
    system: str
    stack: str
    bricks: int
    measured: int
    reused: int
    failed: int
    remaining: int
    models: int
    models_remaining: int
    failures: tuple[tuple[str, str], ...]
    algorithms: int
    algorithms_reused: int
    algorithms_remaining: int
    algorithm_failures: tuple[Failure, ...]
    wall_s: float
    timed_s: float
    prepare_s: float
    forecast_s: float
    budget_s: float | None
    dry_run: bool
    costs: RunCosts
    kernels: ProfileReport | None = None
    bound: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    models_measured: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    threads: int = 1

    @property
    def bounded_s(self) -> float:
        """What of a total time it used up, or would: all but the pass that records kernels."""
        return self.forecast_s if self.dry_run else self.wall_s - self.costs.profile_s

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for is done: measured, or listed, for a dry run.

        That the runtime has no such algorithm for a brick is an answer; that one crashed or took too long is none.
        """
        left = self.remaining + self.models_remaining + self.algorithms_remaining
        broken = any(failure.kind != "unsupported" for failure in self.algorithm_failures)
        unrecorded = self.kernels is not None and self.kernels.failures
        return not self.failures and not broken and not unrecorded and (self.dry_run or not left)

    @property
    def rows(self) -> tuple[RunFailure, ...]:
        """What could not be measured: bricks and models, then bricks with other algorithms."""
        failures = [(*failure, "") for failure in self.failures]
        failures += [(failure.key, failure.reason, failure.variant) for failure in self.algorithm_failures]
        return tuple(RunFailure(*failure, self.threads) for failure in failures)

    def records(self) -> Records:
        """One row per failure, what was done beside them."""
        totals = {name: getattr(self, name) for name in _TOTALS} | {
            "verdicts": dict(self.verdicts),
            "algorithms_failed": len(self.algorithm_failures),
            "kernels": None if self.kernels is None else asdict(self.kernels),
            "costs": asdict(self.costs),
            "bound": {name: dict(bound) for name, bound in self.bound.items()},
        }
        return Records(list(map(asdict, self.rows)), totals | {"by_threads": [{"threads": self.threads, **totals}]})


def run(
    suite: Suite | str | os.PathLike[str],
    *,
    store: Store,
    models: Sequence[ModelSource] = (),
    settings: MeasurementSettings | None = None,
    again: Collection[str] = (),
    since: datetime | None = None,
    algorithms: bool | Collection[str] = False,
    kernels: bool = False,
    dry_run: bool = False,
    node: str | None = None,
    campaign: str = "",
    progress: ProgressCallback | None = None,
    **fields: Unpack[MeasurementFields],
) -> RunReport:
    """Measure the bricks of a suite, and ground truth of whole models between their visits.

    What is stored for this system, stack and conditions is not measured again, and a run that was interrupted, even by
    SIGKILL, goes on where it was: each block of samples is committed before the next one is taken.

    Args:
        suite: The suite, or its folder.
        store: Open database.
        models: Whole models to be measured beside the bricks, visited in turn with them.
        settings: How to measure.
        again: ``noisy``, ``failed`` or ``all``: what to measure although the store holds it.
        since: Of that only what was measured before this time: a call that was killed goes on where it was when it is
            repeated with the time at which it first began. Local time where it has no time zone.
        algorithms: Also measure each brick once with each of the backend's other algorithms, or with those of these
            names, in the same visits. These measurements bear the algorithm's name as their variant; they compete in
            lower bounds, and ``unfused`` and ``extended`` show what fusion saves (docs/estimates.md).
        kernels: Afterwards, in a pass of its own, also record which kernels run for each brick and model that is
            measured and has no such view yet (``again`` with ``all``: for each); ``budget_s`` does not bound that.
        dry_run: Only forecast.
        node: What you call this machine, stored with the run; None: ``$DLBRICKS_NODE``, else nothing. What another node
            left unfinished in the database is not continued.
        campaign: What this is part of, stored with the run.
        progress: Called between requests, never while a sample is timed.
        **fields: Fields of ``MeasurementSettings``, in place of ``settings``.

    Returns:
        Counts, failures with reasons, and where the time went.

    Raises:
        UsageError: An option has a wrong value, or is given beside ``settings``; the backend offers no choice of
            algorithms, or does not report its kernels.
        BackendUnavailable: The runtime cannot be used here.
        MachineBusy: Another process is measuring on this machine.
        SuiteError: The suite cannot be read.
        WorkerError: No worker can be started.
        StoreError: The database cannot be written; what was committed stays.

    Example:
        >>> with Store.open("dlbricks.db") as store:  # doctest: +SKIP
        ...     report = run("suite", store=store)
    """
    how = settings_from(settings, fields)
    opened = suite if isinstance(suite, Suite) else Suite.open(Path(suite))
    done = conduct(
        how,
        command="run",
        store=store,
        suite=opened,
        models=models,
        again=again,
        since=since,
        algorithms=algorithms,
        kernels=kernels,
        dry_run=dry_run,
        node=node,
        campaign=campaign,
        progress=progress,
    )
    return _report(done, budget_s=how.budget_s, dry_run=dry_run)


def _report(campaign: Campaign, *, budget_s: float | None, dry_run: bool) -> RunReport:
    bricks, models, variants = campaign.bricks, campaign.models, campaign.algorithms
    failed = [*bricks.failed, *(item.failure for item in bricks.pending if item.failure is not None)]
    labels = {key: name for name, key in reversed(campaign.sources.names) if key is not None}
    failed_models = [*models.failed, *(item.failure for item in models.pending if item.failure is not None)]
    return RunReport(
        run=campaign.run,
        system=campaign.system.key,
        stack=campaign.stack.key,
        bricks=len(bricks.pending) + len(bricks.reused) + len(bricks.failed) + bricks.broken,
        measured=sum(item.result is not None for item in bricks.pending),
        reused=len(bricks.reused),
        failed=len(failed) + bricks.broken,
        remaining=sum(item.open for item in bricks.pending),
        models=len(models.reused) + sum(item.result is not None for item in models.pending),
        models_remaining=sum(item.open for item in models.pending),
        failures=(
            *campaign.broken.items(),
            *((failure.key, failure.reason) for failure in failed),
            *((labels[failure.key], failure.reason) for failure in failed_models),
            *campaign.sources.problems.items(),
        ),
        algorithms=sum(item.result is not None for item in variants.pending),
        algorithms_reused=len(variants.reused),
        algorithms_remaining=sum(item.open for item in variants.pending),
        algorithm_failures=(
            *variants.failed,
            *(item.failure for item in variants.pending if item.failure is not None),
        ),
        wall_s=campaign.wall_s,
        timed_s=campaign.costs.timed_s,
        prepare_s=campaign.costs.prepare_s,
        forecast_s=campaign.forecast_s,
        budget_s=budget_s,
        dry_run=dry_run,
        costs=campaign.costs,
        kernels=campaign.kernels,
        bound=campaign.sources.bound,
        models_measured=sum(item.result is not None for item in models.pending),
        verdicts=_verdicts(bricks, models),
        threads=campaign.conditions.threads,
    )


def _verdicts(*selections: Selection) -> dict[str, int]:
    taken = [item.result for selection in selections for item in selection.pending if item.result is not None]
    reused = [found for selection in selections for found in selection.reused]
    return dict(Counter(str(found.summary.verdict) for found in (*reused, *taken)))
