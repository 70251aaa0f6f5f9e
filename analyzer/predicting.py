"""``predict``: stored bricks are looked up, others are predicted, and the most informative ones are measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ..bricks.decomposition import Decomposition
from ..constructor.choice import Choice
from ..constructor.construction import construct
from ..constructor.coverage import cannot_be_bricks
from ..constructor.result import Estimate
from ..constructor.uncertainty.calibration import NORMAL
from ..db import Store
from ..errors import MachineBusy, UsageError
from ..generator.decomposition.decompose import decompose, decomposing_until, readable
from ..generator.machine.lock import work_clock
from ..generator.machine.system import quietness
from ..generator.measurement.settings import PaceFields
from ..models import ModelSource
from ..tabular import Field, Records, Row, Tabular
from .estimation.estimates import estimate_record
from .estimation.learning import Gaps, learn
from .estimation.query import matching, require_one
from .estimation.reading import evidence_under
from .measuring import MeasuringPlan
from .report.answers.estimated import predicted_lines
from .report.tables import Answer
from .report.units import INTERRUPTED, counted, duration, milliseconds, percent
from .setups import Setup, choice_here, cut_of, interrupted_here, set_up, settled

if TYPE_CHECKING:
    from ..generator.progress import ProgressCallback

VISITS = 3
"""Visits of each measured brick: more would narrow a model's interval less than the same seconds of other bricks."""

_PACE: PaceFields = {"visits": VISITS, "processes": 1, "sessions": 1}

START_S = 1.5
"""Seconds of a run beyond its bricks: starting a worker, its probes and the clock's cost."""

ROUNDS = 2
"""Most runs. On a known system one suffices: the measured values would not change the choice of bricks."""


@dataclass(frozen=True, slots=True)
class Predictions(Tabular):
    """Latencies of models from bricks measured now, stored before, or predicted.

    Attributes:
        rows: One per model; latency and interval are for a quiet machine.
        measured: Keys of the bricks measured for this answer.
        target: Wanted relative half-width.
        wall_s: Duration of the whole call, without waiting for another process.
        noise: What disturbed the machine before it was measured; no interval contains what that does to caches.
        unmeasured: Why nothing more was measured, if something else than the target ended it.
        interrupted: What interrupted the measurement; the predictions are from what was known until then.
    """

    ANSWER = "predicting.predictions_answer"

    rows: tuple[Estimate, ...]
    measured: frozenset[str]
    target: float
    wall_s: float
    noise: tuple[str, ...] = ()
    unmeasured: str = ""
    interrupted: KeyboardInterrupt | None = None

    @property
    def complete(self) -> bool:
        """True if every model's latency is known."""
        return all(entry.latency.ms is not None for entry in self.rows)

    def records(self) -> Records:
        """Return one row per model."""
        rows = [prediction_record(entry, self.measured) for entry in self.rows]
        return Records(
            rows,
            {"measured": len(self.measured), "target": self.target, "wall_s": self.wall_s, "noise": [*self.noise],
             "unmeasured": self.unmeasured},
        )  # fmt: skip


def prediction_record(entry: Estimate, measured: frozenset[str] = frozenset()) -> Row:
    """Return a prediction as a JSON object.

    Args:
        entry: The estimate.
        measured: Keys of the bricks measured for it.
    """
    record = estimate_record(entry, explained=False)
    names = ("name", "granularity", "graph", "batch", "dims", "bound", "system", "stack", "backend", "device",
             "threads", "cache", "level", "dtype", "layers", "unique", "error")  # fmt: skip
    ms, low_high = quiet_ms(entry)
    predicted = entry.parts.predicted
    return {name: record[name] for name in names} | {
        "predicted_ms": ms,
        "ci95_ms": low_high,
        "by_method": method_half(entry),
        "half": half_of(entry),
        "reason": entry.parts.prediction_reason,
        "shares": shares_of(entry, measured),
        "predicted": None if predicted is None else asdict(predicted),
    }


def method_half(entry: Estimate) -> float | None:
    """Return half of the relative 95 % interval from the error of composing; no measurement of bricks narrows it."""
    return None if entry.latency.method is None else NORMAL * entry.latency.method.sd


def quiet_ms(entry: Estimate) -> tuple[float | None, tuple[float, float] | None]:
    """Return the latency on a quiet machine in ms, with the estimate's relative interval."""
    ms, quiet, bounds = entry.latency.ms, entry.latency.undisturbed_ms, entry.latency.ci95_ms
    if ms is None or quiet is None or bounds is None or ms <= 0:
        return ms, bounds
    return quiet, (bounds[0] * quiet / ms, bounds[1] * quiet / ms)


def half_of(entry: Estimate) -> float | None:
    """Return the upper half-width of the 95 % interval, as a logarithm; None if it is unknown."""
    ms, bounds = quiet_ms(entry)
    return None if not ms or bounds is None else math.log(bounds[1] / ms)


def shares_of(entry: Estimate, measured: frozenset[str]) -> Mapping[str, float] | None:
    """Return the shares of bricks measured now, stored before and predicted in the latency."""
    sums = {"measured": 0.0, "stored": 0.0, "predicted": 0.0}
    for part in entry.parts.sequences:
        kind = "predicted" if part.predicted else "measured" if part.key in measured else "stored"
        sums[kind] += part.latency_ms or 0.0
    whole = sum(sums.values())
    if entry.latency.ms is None or whole <= 0:
        return None
    return {name: ms / whole for name, ms in sums.items()}


def predict(
    models: Sequence[ModelSource],
    *,
    store: Store,
    setup: Setup | None = None,
    target: float = 0.1,
    budget_s: float | None = None,
    measure: bool = True,
    progress: ProgressCallback | None = None,
) -> Predictions:
    """Predict the latency of models, and measure only the bricks that narrow the intervals most per second.

    Args:
        models: The models, from ``find_models``.
        store: Open database for measurements.
        setup: System, runtime and conditions; default: the choice of ``set_up``.
        target: Wanted relative half-width; measuring ends when all intervals reach it.
        budget_s: Seconds for the whole call, without waiting for another process. If preparing the models took them,
            nothing is measured; a model that is not decomposed by then has failed. None: 10 s, and as long as it takes
            to decompose.
        measure: False to use stored measurements only.
        progress: Called between requests to the worker.

    Returns:
        One row per model in their order; a model that cannot be decomposed has an error. Without a measurement, such
        as beside another measuring process, rows are predicted from what is stored.
        ``parts.prediction_reason`` has the reason for an unknown latency.

    Raises:
        AmbiguousQuery: ``measure`` is false and several stored combinations match.
        UsageError: Target or budget is not positive, or a system or stack is given although bricks may be measured.
        DlbricksError: The runtime cannot run here, or the database cannot be read or written.

    Example:
        >>> with Store.open("dlbricks.db") as store:  # doctest: +SKIP
        ...     (row,) = predict(find_models(["squeezenet"]), store=store)
    """
    begun = work_clock()
    if not (0 < target < math.inf and (budget_s is None or 0 < budget_s < math.inf)):
        raise UsageError("target and budget are positive numbers", remedy="for example target=0.1, budget_s=10")
    how = settled(setup or set_up())
    if measure and (how.system is not None or how.stack is not None):
        raise UsageError(
            "--system and --stack select stored results, but this command measures here", remedy="give measure=False"
        )
    with decomposing_until(math.inf if budget_s is None else begun + budget_s):
        decompositions = decompose(models, cut_of(how), progress=progress)
    budget_s = budget_s or _BUDGET_S
    decomposed = readable(decompositions)
    choice = choice_of(store, how, decomposed, measure=measure)
    evidence, taken = evidence_under(choice, decomposed, store, how, cut_of(how)), set[str]()
    plan = MeasuringPlan(store, how, progress=progress)
    learned = learn(store, choice)
    # Bricks of others would not complete them.
    able = [model for model in decomposed if not cannot_be_bricks(model.graph)]
    gaps, noise, unmeasured = Gaps(able, evidence, learned), tuple[str, ...](), ""
    interrupted: KeyboardInterrupt | None = None
    prepared_s = work_clock() - begun
    for number in range(ROUNDS if measure else 0):
        if number and (learned is None or learned.familiar):
            break
        left_s = budget_s - (work_clock() - begun) - START_S
        if left_s <= 0:
            if not number and gaps.open:
                unmeasured = _SPENT.format(prepared=duration(prepared_s), budget=duration(budget_s))
            break
        keys = gaps.choose(math.log1p(target), VISITS, left_s) - taken
        if not keys:
            break
        noise = noise or quietness(watch_s=_WATCH_S).reasons
        some = [replace(model, sequences=tuple(part for part in model.sequences if part.key in keys)) for model in able]
        try:
            with TemporaryDirectory(prefix="dlbricks-predict-") as folder:
                pace: PaceFields = {**_PACE, "within_s": left_s + START_S}
                plan.measure([model for model in some if model.sequences], Path(folder, "suite"), pace)
        except MachineBusy as error:
            unmeasured = f"nothing is measured: {error}"
            break
        except KeyboardInterrupt as error:
            interrupted = error
            break
        taken |= keys  # failed bricks too: they are not tried again
        evidence = evidence_under(choice, decomposed, store, how, cut_of(how), evidence.executed)
        gaps = Gaps(able, evidence, learned, taken)
    if interrupted is not None:
        with interrupted_here(store, how):
            evidence = evidence_under(choice, decomposed, store, how, cut_of(how), evidence.executed)
        gaps = Gaps(able, evidence, learned, taken)
    evidence = gaps.filled(evidence)
    return Predictions(
        tuple(construct(model, evidence) for model in decompositions), frozenset(taken), target, work_clock() - begun,
        noise, unmeasured, interrupted,
    )  # fmt: skip


_SPENT = (
    "nothing is measured: preparing the models took {prepared} of {budget}. What it prepared is kept, so that the same "
    "command measures now."
)

_BUDGET_S = 10.0
"""Time for measuring where none is given."""

_WATCH_S = 0.2
"""Seconds to watch other processes before measuring."""


def choice_of(store: Store, how: Setup, models: Sequence[Decomposition], *, measure: bool) -> Choice:
    """Return the stored combination, else the combination of a run here."""
    if not measure:
        keys = {part.key for model in models for part in model.sequences}
        stored = require_one(matching(store, keys, replace(how, stack=how.stack or None)))
        if stored is not None:
            return stored
    return choice_here(how)


_COLUMNS: Sequence[Field] = (
    Field("name", "model"),
    Field("predicted_ms", "latency ms \u00b195%", "ms", "ci95_ms"),
    Field("half", "\u00b1", "share"),
    Field("shares.measured", "measured", "share"),
    Field("shares.stored", "stored", "share"),
    Field("shares.predicted", "predicted", "share"),
    Field("unique", "bricks", spare=True),
)


def _obstacle(entry: Estimate) -> str:
    """Return why no sum of bricks is this model, with the remedy."""
    layers = [f"{part.op_types[0]} {part.layers[0]} {part.reason}" for part in entry.parts.missing if part.key is None]
    return f"{layers[0] if layers else 'a brick is not measured'}; 'dlbricks measure MODEL' measures it as a whole"


def predictions_answer(predictions: Predictions) -> Answer:
    """Return the answer of ``predict``: one row per model."""
    summary = []
    for entry in predictions.rows:
        if entry.error is not None:
            summary.append(f"{entry.name}: {entry.error}")
        elif entry.parts.predicted is not None:
            summary += predicted_lines(entry, entry.parts.predicted)
        elif entry.latency.ms is None:
            summary.append(f"{entry.name}: not known: {entry.parts.prediction_reason or _obstacle(entry)}")
    wide = [
        method_half(entry)
        for entry in predictions.rows
        if (half := half_of(entry)) and half > math.log1p(predictions.target)
    ]
    if methods := [half for half in wide if half]:
        summary.append(
            f"\u00b1 {max(methods):.1%} is the error of composing a latency from bricks. No measurement of bricks "
            "narrows it: for less, run 'dlbricks measure MODEL'."
        )
    if predictions.noise:
        summary.append(f"{'; '.join(predictions.noise)}: no interval contains what that does to caches and memory")
    if predictions.unmeasured:
        summary.append(predictions.unmeasured)
    summary.append(f"{len(predictions.measured)} bricks measured in {duration(predictions.wall_s)}.")
    if predictions.interrupted is not None:
        summary.append(INTERRUPTED)
    return Answer.of(predictions.records(), columns=_COLUMNS, summary=summary)


def first_answer(rows: Sequence[Estimate]) -> Iterator[str]:
    """Yield a line with the predicted latencies of models, unless all are unknown."""
    latencies = [
        f"{entry.name} {milliseconds(ms)} ms \u00b1 {percent(math.expm1(half))}"
        for entry in rows
        if (half := half_of(entry)) is not None and (ms := quiet_ms(entry)[0]) is not None
    ]
    if latencies:
        more = f" and {counted(len(latencies) - _NAMED, 'model')}" if len(latencies) > _NAMED else ""
        yield f"first answer: {', '.join(latencies[:_NAMED])}{more}, from bricks of other models; measuring now"


_NAMED = 3
"""Number of models that a first answer names."""
