"""A gate for continuous integration: is a new model slower than an old one?

Both models alternate in several fresh processes, one after the other. The process is the unit, since its memory layout
is the same for all of its visits. Each process gives one number: the mean logarithm of the ratio of both latencies.
Processes are added until the verdict is clear, or the budget is spent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Unpack

from ...bricks.graph.control import write_out
from ...db.samples.statistics import student
from ...db.values import NATIVE, Conditions, RuntimeFields, Stack, runtime_from
from ...errors import DlbricksError, UsageError
from ...generator.decomposition.observation import run_as_given
from ...generator.machine.cores import physical_cores
from ...generator.machine.lock import work_clock
from ...generator.measurement.alone import Alone, run_alone
from ...generator.measurement.settings import MeasurementSettings
from ...generator.measurement.trial import Contender, SharedValue, Trial, TrialPair, place_of, try_out
from ...generator.progress import ProgressCallback
from ...generator.worker.messages import Place
from ...models import ModelSource, require_inputs
from ...tabular import Field, Records, Tabular, fields, record_of
from .changed_layers import LayerChanges, changed_layers
from .difference import (
    MINIMUM_EFFECT,
    Difference,
    Levels,
    Relation,
    check_minimum_effect,
    relation,
    seen_from,
    trial_levels,
)

FEWEST, MOST = 4, 12
"""Processes: fewer have no spread that is known, and after so many the machine is the reason."""

VISITS = 16
"""Visits of each model in a process."""

_LOOKS = 1.25
"""Intervals are wider by this factor, since the verdict is looked for after each process."""

_POWER = 1.06
"""Quantile of Student's t for a power of 80 %, with two degrees of freedom; it is less with more."""


FIELDS = (
    Field("old", "against"),
    Field("new", "model"),
    Field("old_ms", "old ms", "ms", path="levels.before_ms"),
    Field("new_ms", "new ms", "ms", path="levels.after_ms"),
    Field("ratio", "ratio ±95%", "ratio", interval="ratio_ci95", path="levels.difference.ratio"),
    *fields("ratio_ci95 p=levels.difference.p verdict reason minimum_effect detectable processes visits wall_s"),
    *fields("largest_error stack=stack.key threads layers interface"),
)


@dataclass(frozen=True, slots=True)
class Interface:
    """The inputs and outputs that differ between two models, in name, type or shape.

    Attributes:
        inputs: The inputs that differ.
        outputs: The outputs that differ.
        unfed: Inputs of the new model, with their types, that the old one does not have in this shape, and nobody gave:
            outputs then depend on other values, and are not compared.
    """

    inputs: tuple[SharedValue, ...] = ()
    outputs: tuple[SharedValue, ...] = ()
    unfed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return True if something differs."""
        return bool(self.inputs or self.outputs)

    @property
    def incomplete(self) -> bool:
        """True if the new model lacks an output of the old one, or has it in another shape."""
        return any(value.before is not None and value.error is None for value in self.outputs)

    def record(self) -> dict[str, object]:
        """Return the differences for JSON."""
        return {
            kind: [{"name": value.name, "old": value.before, "new": value.after} for value in values]
            for kind, values in (("inputs", self.inputs), ("outputs", self.outputs))
        }


_ALIKE = Interface()


@dataclass(frozen=True, slots=True)
class Gate(Tabular):
    """A new model against an old one.

    Attributes:
        old: Name of the old model.
        new: Name of the new model.
        levels: Latencies and their ratio, with an interval over processes; NaN without any process.
        detectable: Smallest relative difference that would be called SLOWER with 80 % probability.
        minimum_effect: Relative difference that matters.
        verdict: The new model in relation to the old one.
        processes: Number of processes.
        visits: Visits of each model in all processes.
        wall_s: Wall time in seconds, without waiting for another process.
        largest_error: Largest difference of the outputs that both have in one shape, relative to the largest value of
            the old output; None if none can be compared.
        stack: The runtime of both.
        threads: Its threads.
        alone: The old and the new model in processes of their own; None if that was not asked for.
        layers: The layers that differ; None if that was not asked for.
        interface: The inputs and outputs that differ.
    """

    ANSWER = "report.answers.comparison.gate_answer"

    old: str
    new: str
    levels: Levels
    detectable: float
    minimum_effect: float
    verdict: Relation
    processes: int
    visits: int
    wall_s: float
    largest_error: float | None
    stack: Stack
    threads: int
    alone: tuple[Alone, Alone] | None = None
    layers: LayerChanges | None = None
    interface: Interface = _ALIKE

    @property
    def rows(self) -> tuple[Gate, ...]:
        """The result itself, its only row."""
        return (self,)

    @property
    def complete(self) -> bool:
        """True if the verdict is clear."""
        return self.verdict is not Relation.UNCLEAR

    @property
    def ratio_ci95(self) -> tuple[float, float] | None:
        """Interval of the ratio; None with too few processes."""
        ends = self.levels.difference.ci95
        return ends if math.isfinite(ends[1]) else None

    @property
    def reason(self) -> str:
        """The verdict in a sentence."""
        seen = self.levels.difference
        change, low, high = (f"{ratio - 1:+.1%}" for ratio in (seen.ratio, *seen.ci95))
        if self.ratio_ci95 is None:
            return f"{self.new} ran in {self.processes} processes, and {FEWEST} are needed: give it a larger --budget"
        told = f"the time of {self.new} is that of {self.old} {change} ({low} to {high})"
        if self.complete:
            return told
        narrower = "give a larger --budget" if self.processes < MOST else "a quieter machine decides it"
        return (
            f"{told}: unclear, since the interval is neither within {self.minimum_effect:.1%}, which matters, nor "
            f"beyond half of it: {narrower}, or a larger --minimum-effect"
        )

    def records(self) -> Records:
        """One row."""
        row = record_of(self, FIELDS) | asdict(self.stack.runtime) | {"interface": self.interface.record()}
        for side, alone in zip(("old", "new"), self.alone or (), strict=False):
            row |= {f"{side}_{name}": value for name, value in alone.record().items()}
        return Records([row])


def gate(
    old: ModelSource,
    new: ModelSource,
    *,
    threads: int = 1,
    dtype: str = NATIVE,
    minimum_effect: float = MINIMUM_EFFECT,
    budget_s: float = 60.0,
    alone: bool = False,
    layers: bool = False,
    progress: ProgressCallback | None = None,
    **fields: Unpack[RuntimeFields],
) -> Gate:
    """Run two models alternately on this machine until the verdict is clear.

    Args:
        old: The old model. Outputs are compared on each set of its own inputs, and the first is timed.
        new: The new model; inputs with the same name get the same values.
        threads: Threads of the runtime; 0 means one per physical core.
        dtype: Precision.
        minimum_effect: Relative difference that matters.
        budget_s: Seconds after which no more visits are made.
        alone: Afterwards, run each model in a process of its own, for its memory and the percentiles of its single
            executions; a few seconds each, which ``budget_s`` does not bound.
        layers: Afterwards, cut both models and measure their bricks for half of ``budget_s``, to tell which differ.
        progress: Called between visits.
        **fields: The runtime: ``backend``, ``device`` and ``options``.

    Raises:
        UsageError: The minimum effect is not positive, an option has a wrong value, the budget is far too small, or a
            file of data has other names, shapes or types than the inputs.
        BackendError: The runtime cannot run one of the models.
        BackendUnavailable: The runtime cannot be used here.
        MachineBusy: Another process is measuring.
        ModelError: A file is not a model.

    Example:
        >>> old, new = find_models(["old.onnx", "new.onnx"])  # doctest: +SKIP
        >>> gate(old, new, minimum_effect=0.05).verdict  # doctest: +SKIP
        <Relation.SLOWER: 'SLOWER'>
    """
    check_minimum_effect(minimum_effect)
    begun = work_clock()
    require_inputs((old, new))
    place = place_of(runtime_from(fields), threads or len(physical_cores()), dtype)
    with TemporaryDirectory(prefix="dlbricks-gate-") as name:
        before, after = (
            Contender(run_as_given(source, Path(name) / str(number), write_out(source.skeleton()).control), place)
            for number, source in enumerate((old, new))
        )
        pair = TrialPair(before, after, label=new.name)
        trial = alternate(pair, minimum_effect, begun + budget_s, progress)
    if not trial.stacks:
        raise UsageError(f"{budget_s:.3g} s are over before the models are loaded", remedy="give a larger --budget")
    levels, detectable, verdict = judged(trial, minimum_effect)
    error, interface = _compared(trial, pair, new.given.names())
    sides = _alone([old, new], place) if alone else None
    changes = changed_layers(old, new, place, budget_s=budget_s / 2, progress=progress) if layers else None
    return Gate(
        old.name,
        new.name,
        levels,
        detectable,
        minimum_effect,
        verdict,
        len(trial.before_ns),
        trial.visits,
        work_clock() - begun,
        error,
        trial.stacks[0],
        place.threads,
        sides,
        changes,
        interface,
    )


def _compared(trial: Trial, pair: TrialPair, given: Collection[str]) -> tuple[float | None, Interface]:
    """Return how far the outputs of both models differ, and the inputs and outputs that differ.

    Args:
        trial: The trial.
        pair: Its models.
        given: Inputs with a value of the user's own.
    """
    input_names = {name for side in (pair.before, pair.after) for name, *_ in side.runnable.inputs}
    inputs = [value for value in trial.values if value.name in input_names]
    outputs = [value for value in trial.values if value.name not in input_names]
    unfed = [
        f"{value.name} {value.after}"
        for value in inputs
        if value.after is not None and value.error is None and value.name not in given
    ]
    errors = [value.error for value in outputs if value.error is not None]
    changed_inputs, changed_outputs = (
        tuple(value for value in values if value.before != value.after) for values in (inputs, outputs)
    )
    error = None if unfed else max(errors, default=None)
    return error, Interface(changed_inputs, changed_outputs, tuple(unfed))


def _alone(models: Sequence[ModelSource], place: Place) -> tuple[Alone, Alone]:
    """Return both models in processes of their own; raises the first error."""
    how = MeasurementSettings(place.runtime, Conditions(place.threads, "model", place.dtype))
    sides = []
    for side in run_alone(models, how):
        if isinstance(side, DlbricksError):
            raise side
        sides.append(side)
    first, second = sides
    return first, second


def alternate(
    pair: TrialPair, minimum_effect: float, until: float = math.inf, progress: ProgressCallback | None = None
) -> Trial:
    """Run two models alternately in one process after the other, until the verdict is clear.

    Args:
        pair: The models, each at its place.
        minimum_effect: Relative difference that matters.
        until: Time on the ``work_clock`` at which visiting ends.
        progress: Called between visits.

    Raises:
        DlbricksError: One of them cannot run.
    """
    (trial,) = try_out(
        [pair],
        visits=MOST * VISITS,
        processes=MOST,
        until=until,
        settled=lambda trial_so_far: judged(trial_so_far, minimum_effect)[2] is not Relation.UNCLEAR,
        progress=progress,
    )
    if isinstance(trial, DlbricksError):
        raise trial
    return trial


def levels_of(trial: Trial | DlbricksError) -> Levels | None:
    """Return latencies and ratio of a trial; None if it failed, or took no time that could be measured."""
    if isinstance(trial, DlbricksError) or not trial.measurable:
        return None
    return trial_levels(trial)


def judged(trial: Trial, minimum_effect: float) -> tuple[Levels, float, Relation]:
    """Return both latencies and their ratio, the smallest difference that would be SLOWER, and the verdict.

    Args:
        trial: Visits of both models by process.
        minimum_effect: Relative difference that matters.
    """
    if not trial.measurable:
        return Levels(math.nan, math.nan, Difference(math.nan, (0.0, math.inf), 1.0)), math.inf, Relation.UNCLEAR
    count = len(trial.before_ns)
    levels = trial_levels(trial, looks=_LOOKS, by_order=count >= FEWEST)
    if count < FEWEST:
        undecided = replace(levels.difference, ci95=(0.0, math.inf), p=1.0)
        return replace(levels, difference=undecided), math.inf, Relation.UNCLEAR
    low, high = levels.difference.ci95
    half = math.log(high / low) / 2
    verdict = relation(levels.difference, minimum_effect=minimum_effect, discovered=not low <= 1 <= high)
    return levels, math.expm1(seen_from(half, minimum_effect) + _POWER * half / student(count - 2)), verdict
