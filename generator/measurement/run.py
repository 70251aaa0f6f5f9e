"""``run``: measure every brick of a suite without a stored measurement, and whole models along with them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ...bricks.suite.suite import Suite
from ...db.store import Store
from ...db.values import Failure
from ...tabular import Records
from ..decomposition.decompose import Model
from ..progress import ProgressCallback
from .execution import MeasuredReport, RunOutcome, all_kernels, execute_run
from .settings import MeasurementFields, MeasurementSettings, Order, settings_from

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class RunFailure:
    """A brick or model that a run could not measure.

    Attributes:
        key: Key of the brick, or name of the model.
        reason: Why.
        variant: Name of the algorithm; empty: the backend's choice.
        threads: Threads of the runtime.
    """

    key: str
    reason: str
    variant: str
    threads: int


@dataclass(frozen=True, slots=True)
class Width:
    """Interval of a model's latency from its bricks.

    Attributes:
        half: Half of the 95 % interval, relative.
        floor: The same from the error of composing and the scatter of processes alone; no visit reduces it.
        enough: True if it reaches the target, or almost its floor.
    """

    half: float
    floor: float
    enough: bool


@dataclass(frozen=True, slots=True)
class RunReport(MeasuredReport):
    """Report of a run.

    ``bricks`` is the sum of ``measured``, ``reused``, ``failed`` and ``remaining``.

    Attributes:
        outcome: What was asked for, and what became of it.
        target: Wanted half-width of the models' intervals; None without a target.
        widths: With a target: intervals of the models of the suite, by name; None if a brick is not measured.
    """

    ANSWER = "report.answers.runs.run_answer"

    outcome: RunOutcome
    target: float | None = None
    widths: Mapping[str, Width | None] = field(default_factory=dict)

    @property
    def bricks(self) -> int:
        """Number of bricks of the suite."""
        bricks = self.outcome.chosen.bricks
        return len(bricks.pending) + len(bricks.reused) + len(bricks.failed) + bricks.broken

    @property
    def measured(self) -> int:
        """Bricks measured by this run; 0 for a dry run."""
        return len(self.outcome.chosen.bricks.measured)

    @property
    def reused(self) -> int:
        """Bricks with a stored measurement."""
        return len(self.outcome.chosen.bricks.reused)

    @property
    def failed(self) -> int:
        """Bricks that failed in this run or an earlier one, or have a broken file."""
        return len(self.outcome.chosen.bricks.failures) + self.outcome.chosen.bricks.broken

    @property
    def remaining(self) -> int:
        """Bricks left when the budget was spent, for the next run; for a dry run, bricks to measure."""
        return self.outcome.chosen.bricks.remaining

    @property
    def models(self) -> int:
        """Whole models measured by this run or earlier."""
        return len(self.outcome.chosen.models.reused) + self.models_measured

    @property
    def models_measured(self) -> int:
        """The number of ``models`` measured by this run."""
        return len(self.outcome.chosen.models.measured)

    @property
    def models_remaining(self) -> int:
        """Whole models left, or to measure."""
        return self.outcome.chosen.models.remaining

    @property
    def failures(self) -> tuple[tuple[str, str], ...]:
        """Brick key or model name, and the reason."""
        chosen = self.outcome.chosen
        labels = {key: name for name, key in reversed(chosen.sources.names) if key is not None}
        return (
            *chosen.broken.items(),
            *((failure.key, failure.reason) for failure in chosen.bricks.failures),
            *((labels[failure.key], failure.reason) for failure in chosen.models.failures),
            *chosen.sources.problems.items(),
        )

    @property
    def algorithms(self) -> int:
        """Bricks measured by this run with one of the backend's other algorithms, counted once per algorithm."""
        return len(self.outcome.chosen.algorithms.measured)

    @property
    def algorithms_reused(self) -> int:
        """Pairs of brick and algorithm with a stored measurement."""
        return len(self.outcome.chosen.algorithms.reused)

    @property
    def algorithms_remaining(self) -> int:
        """Pairs left, or to measure."""
        return self.outcome.chosen.algorithms.remaining

    @property
    def algorithm_failures(self) -> tuple[Failure, ...]:
        """Pairs that cannot be measured."""
        return self.outcome.chosen.algorithms.failures

    @property
    def timed_s(self) -> float:
        """Duration of the timed samples."""
        return self.costs.timed_s

    @property
    def prepare_s(self) -> float:
        """Duration of loading networks in the workers."""
        return self.costs.prepare_s

    @property
    def forecast_s(self) -> float:
        """Forecast made before the run, within the budget if possible."""
        return self.outcome.forecast_s

    @property
    def budget_s(self) -> float | None:
        """Total time given; None: unlimited."""
        return self.outcome.settings.budget_s

    @property
    def dry_run(self) -> bool:
        """True if this is only a forecast."""
        return self.outcome.order.dry_run

    @property
    def bound(self) -> Mapping[str, Mapping[str, int]]:
        """Sizes of the dynamic dimensions of models, by model name."""
        return self.outcome.chosen.sources.bound

    @property
    def verdicts(self) -> Counter[str]:
        """Number of valid measurements of bricks and models, by verdict."""
        return self.outcome.chosen.bricks.verdicts + self.outcome.chosen.models.verdicts

    @property
    def complete(self) -> bool:
        """True if all requested measurements are done, or listed by a dry run.

        An algorithm that the runtime does not support for a brick counts as done; a crash or a timeout does not.
        """
        remaining = self.remaining + self.models_remaining + self.algorithms_remaining
        broken = any(failure.kind != "unsupported" for failure in self.algorithm_failures)
        unrecorded = self.kernels is not None and self.kernels.failures
        return not self.failures and not broken and not unrecorded and (self.dry_run or not remaining)

    @property
    def rows(self) -> tuple[RunFailure, ...]:
        """Failures of bricks and models, then of bricks with other algorithms."""
        failures = [(*failure, "") for failure in self.failures]
        failures += [(failure.key, failure.reason, failure.variant) for failure in self.algorithm_failures]
        return tuple(RunFailure(*failure, self.threads) for failure in failures)

    def records(self) -> Records:
        """Return one row per failure, and counts and durations as totals."""
        return run_records([self], self.budget_s)

    def frame(self, *, inner: bool = False) -> pd.DataFrame:
        """Return a row per brick and model: its latency, or the reason why it has none.

        Args:
            inner: A row per failure, as JSON has them.
        """
        if inner:
            return self.records().frame()
        chosen = self.outcome.chosen
        timed = [
            {
                "key": measurement.key, "variant": measurement.identity.variant, "state": state,
                "latency_ms": measurement.latency_ms, "ci95_ms": measurement.ci95_ms,
                "verdict": str(measurement.summary.verdict),
            }
            for part in (chosen.bricks, chosen.algorithms, chosen.models)
            for state, some in (("measured", part.measured), ("reused", part.reused))
            for measurement in some
        ]  # fmt: skip
        failed = [{**asdict(failure), "state": "failed"} for failure in self.rows]
        return Records([{**row, "threads": self.threads} for row in (*timed, *failed)]).frame()


def run_records(reports: Sequence[RunReport], budget_s: float | None) -> Records:
    """Return the JSON of runs with different numbers of threads: failures, sums, and the totals of each run.

    Args:
        reports: One per number of threads.
        budget_s: Total time of all runs.
    """
    each = [{"threads": report.threads, **_totals([report], report.budget_s)} for report in reports]
    failures = [asdict(failure) for report in reports for failure in report.rows]
    return Records(failures, _totals(reports, budget_s) | {"by_threads": each})


_SUMS = (
    "bricks", "measured", "reused", "failed", "remaining", "models", "models_measured", "models_remaining",
    "algorithms", "algorithms_reused", "algorithms_remaining", "wall_s", "timed_s", "prepare_s", "forecast_s",
)  # fmt: skip


def _totals(reports: Sequence[RunReport], budget_s: float | None) -> dict[str, object]:
    first, *others = reports
    return {
        **{name: sum(getattr(report, name) for report in reports) for name in _SUMS},
        "budget_s": budget_s,
        "dry_run": first.dry_run,
        "run": None if others else first.run,
        "system": first.system,
        "stack": first.stack,
        "verdicts": dict(sum((report.verdicts for report in reports), Counter())),
        "algorithms_failed": sum(len(report.algorithm_failures) for report in reports),
        "kernels": all_kernels(reports),
        "costs": asdict(sum((report.costs for report in others), start=first.costs)),
        "bound": {name: dict(bound) for report in reports for name, bound in report.bound.items()},
        "target": first.target,
        "widths": {name: width and asdict(width) for report in reports for name, width in report.widths.items()},
    }


def run(
    suite: Suite | str | os.PathLike[str],
    *,
    store: Store,
    models: Sequence[Model] = (),
    settings: MeasurementSettings | None = None,
    again: Collection[str] = (),
    since: datetime | None = None,
    algorithms: bool | Collection[str] = False,
    kernels: bool = False,
    dry_run: bool = False,
    node: str | None = None,
    campaign: str = "",
    label: str = "",
    progress: ProgressCallback | None = None,
    **fields: Unpack[MeasurementFields],
) -> RunReport:
    """Measure the bricks of a suite, alternating with whole models as ground truth.

    Bricks and models with a measurement for this system, stack and conditions are not measured again. An interrupted
    run, even by SIGKILL, can be continued: each block of samples is committed before the next one is taken.

    Args:
        suite: The suite, or its folder.
        store: Open database.
        models: Whole models to measure, alternating with the bricks.
        settings: How to measure.
        again: Stored measurements to repeat: ``noisy``, ``failed`` or ``all``.
        since: Repeat only measurements from before this time. To continue a call that was killed, repeat it with the
            time of its first start. A time without a time zone is local time.
        algorithms: Also measure each brick once with each of the backend's other algorithms, or with the named ones, in
            the same visits. The algorithm's name is the variant of these measurements. They compete in lower bounds;
            ``unfused`` and ``extended`` show the savings of fusion (docs/explanation/estimates.md).
        kernels: Also record the kernels of each measured brick and model, in a separate pass afterwards, unless they
            are stored (``again`` with ``all``: in any case). ``budget_s`` does not bound this pass.
        dry_run: Only forecast.
        node: Your name of this machine, stored with the run; None: ``$DLBRICKS_NODE``, or else empty. Unfinished
            measurements of other nodes in the database are not continued.
        campaign: Name of the campaign that the run belongs to, stored with the run.
        label: Your name of the state that is measured, such as a commit, stored with the run.
        progress: Called between requests, never while a sample is timed.
        **fields: Fields of ``MeasurementSettings``, instead of ``settings``.

    Returns:
        Counts, failures with reasons, and wall time by part.

    Raises:
        UsageError: An option has a wrong value, or is given in addition to ``settings``; the backend offers no choice
            of algorithms, or does not report its kernels.
        BackendUnavailable: The runtime cannot be used here.
        MachineBusy: Another process is measuring on this machine.
        SuiteError: The suite cannot be read.
        WorkerError: No worker can be started.
        StoreError: The database cannot be written; committed samples remain.

    Example:
        >>> with Store.open("dlbricks.db") as store:  # doctest: +SKIP
        ...     report = run("suite", store=store)
    """
    how = settings_from(settings, fields)
    opened = suite if isinstance(suite, Suite) else Suite.open(Path(suite))
    order = Order(
        "run",
        opened,
        again=again,
        since=since,
        algorithms=algorithms,
        kernels=kernels,
        dry_run=dry_run,
        node=node,
        campaign=campaign,
        label=label,
    )
    return RunReport(execute_run(how, order, store=store, models=models, progress=progress))
