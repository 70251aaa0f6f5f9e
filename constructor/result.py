"""What an estimate says, and about what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..bricks.layer import LayerState
from ..bricks.suite.brick import BrickTypes
from .choice import MeasuredPlace

if TYPE_CHECKING:
    from ..bricks.decomposition import Decomposition
    from ..bricks.graph.control import ControlFlow
    from ..db import Measurement
    from ..models import ModelSource
    from .choice import Cutting
    from .curve import Interpolation
    from .evidence import Evidence
    from .predictor import Predicted
    from .remedies import Task
    from .roofline import Roofline
    from .uncertainty.calibration import MethodError

SIGNS = {
    "bricks": 1, "fusion": -1, "layout": -1, "overhead": -1, "cache": 1, "data": 1, "unexplained": 1,
}  # fmt: skip
"""The terms of an attribution, in order, and how each counts: with these signs those that are ``counted`` add up to the
measured latency."""


@dataclass(frozen=True, slots=True)
class Term:
    """One cause of the distance between bricks and model.

    Attributes:
        ms: How much; counted with its sign in ``SIGNS``. None where it is not known.
        ci95_ms: Its interval.
        reason: Why it is not known; None where it is.
        remedy: What would measure it; None where it is known, or nothing does.
        counted: Whether it is part of the sums; a cause whose interval includes zero is not.
    """

    ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    reason: str | None = None
    remedy: Task | None = None
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Form(BrickTypes):
    """The signature of a sequence, and the layers of the model that it stands for.

    Attributes:
        source_layers: Their names in the model's own graph, in its order; of a node that a runtime executes, those that
            it came from, and none where the runtime put it in (changes of layout).
        kernels: Those that ran for it under a profiler, the longest first; empty where none is stored.
    """

    source_layers: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a model is measured, 0 to 1.

    Attributes:
        sequences: Share of its sequences; a layer that cannot be a brick counts as one that is not measured.
        macs: Share of its multiply-accumulates, of those that are known; None where no layer has any.
    """

    sequences: float
    macs: float | None


@dataclass(frozen=True, slots=True)
class SequenceLatency:
    """One sequence of the model.

    Attributes:
        index: Position among the model's sequences.
        key: Key of its brick.
        layers: Indices of its layers.
        names: Their names.
        op_types: Their operators.
        latency_ms: Mean; None where it is not measured.
        ci95_ms: Interval of the brick by itself.
        verdict: How far the measurement can be trusted; None where there is none.
        cache: Cache state that it was measured in; None likewise. Iterations of a loop find weights warmer than the
            model does.
        on_path: Whether it lies on the critical path; False where that is not known.
        lower_bound_ms: Lowest latency of the brick on this system and device; None where there is none.
        fastest_stack: Key of the stack that reached it; None likewise.
        fastest_variant: Name of the algorithm that reached it; empty for the one that the runtime chooses.
        form: What it looks like, and the layers of the model's own graph that it stands for.
        interpolated: Whether its latency was not measured, but read between other sizes of the model.
        predicted: Whether its latency was not measured, but predicted from other bricks.
    """

    index: int
    key: str
    layers: tuple[int, ...]
    names: tuple[str, ...]
    op_types: tuple[str, ...]
    latency_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    verdict: str | None = None
    cache: str | None = None
    on_path: bool = False
    lower_bound_ms: float | None = None
    fastest_stack: str | None = None
    fastest_variant: str | None = None
    form: Form | None = None
    interpolated: bool = False
    predicted: bool = False


@dataclass(frozen=True, slots=True)
class Framing:
    """What an operator of control flow takes beyond its body, as far as sequences of their own show it.

    Attributes:
        own_ms: The operator with bodies that do nothing, all executions; None where it is not measured by itself.
        moved_ms: Slices of what it scans and stacks of what iterations made; None likewise, or where it has none. A
            runtime does some of it without a copy: in truth it is that much at most.
    """

    own_ms: float | None = None
    moved_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """What is not measured, and how it can be.

    Attributes:
        key: Key of the brick; None for a layer that cannot be one.
        count: How many sequences of the model are this brick.
        layers: Names of the layers of the first of them.
        op_types: Their operators.
        reason: ``not measured``, or why measuring it failed.
        remedy: What would measure it; None for a layer that cannot be a brick.
        form: What the first of them looks like; None likewise.
    """

    key: str | None
    count: int
    layers: tuple[str, ...]
    op_types: tuple[str, ...]
    reason: str
    remedy: Task | None
    form: Form | None = None


@dataclass(frozen=True, slots=True)
class EstimatedModel:
    """The model that an estimate is of.

    Attributes:
        source: The model, with the batch and the dimensions that were asked for.
        cutting: How it was decomposed.
        decomposition: Its sequences; None where it cannot be decomposed.
        error: Why it cannot be decomposed.
    """

    source: ModelSource
    cutting: Cutting
    decomposition: Decomposition | None = None
    error: str | None = None

    @property
    def dims(self) -> dict[str, int]:
        """Dimensions asked for."""
        return dict(self.source.dims)

    @property
    def bound(self) -> dict[str, int]:
        """What dynamic dimensions were bound to."""
        return {} if self.decomposition is None else dict(self.decomposition.graph.bound)

    @property
    def level(self) -> str | None:
        """Name of the model's own reuse distance."""
        return None if self.decomposition is None else self.decomposition.level

    @property
    def layers(self) -> int | None:
        """Operators of the graph that was decomposed."""
        return None if self.decomposition is None else len(self.decomposition.graph.layers)

    @property
    def folded(self) -> int | None:
        """Of these, layers that cost nothing at inference."""
        if self.decomposition is None:
            return None
        return sum(layer.state is LayerState.FOLDED for layer in self.decomposition.graph.layers)

    @property
    def control(self) -> tuple[ControlFlow, ...]:
        """The model's control flow, and what became of each of its operators."""
        return () if self.decomposition is None else self.decomposition.own.control


@dataclass(frozen=True, slots=True)
class Parts:
    """The sequences of a model, and how much of them is measured.

    Attributes:
        sequences: Every sequence, in the model's order.
        path: Those on the critical path, from start to end; empty where it is not known.
        missing: What is not measured.
        unique: Different bricks among the sequences; None where the model cannot be decomposed.
        coverage: How much of the model is measured; None likewise.
        framing: What each operator of control flow takes beyond its body; empty where nothing is measured.
        interpolated: Which bricks were read between other sizes; None where none was.
        interpolation_reason: Why bricks that are missing could not be read, where that was asked for.
        predicted: Which bricks were predicted; None where none was.
        prediction_reason: Why the latency is not known although missing bricks were to be predicted.
    """

    sequences: tuple[SequenceLatency, ...] = ()
    path: tuple[SequenceLatency, ...] = ()
    missing: tuple[Missing, ...] = ()
    unique: int | None = None
    coverage: Coverage | None = None
    framing: tuple[Framing, ...] = ()
    interpolated: Interpolation | None = None
    interpolation_reason: str | None = None
    predicted: Predicted | None = None
    prediction_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """The best prediction of a model's latency: the sum corrected by what is known of its distance to the model.

    Attributes:
        ms: The prediction (``prediction``).
        ci95_ms: Its 95 % interval: scatter of time blocks and processes of the measurements, and error of the method.
        method: Error of this way to compose an estimate. None without an estimate.
        scatter_calibrated: Whether it is known by how much processes differ for such a backend, device and threads.
            Where it is not, the widest known value stands in. What runs differ by is not in the interval. None where
            there is no estimate.
        undisturbed_ms: The same on a quiet machine: what to compare across runs and machines.
        quiet: Share of the bricks' visits that were quiet, by the probes around them.
        disturbance: How much slower the visits of bricks were than quiet ones: 0.1 stands for 10 %.
    """

    ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    method: MethodError | None = None
    scatter_calibrated: bool | None = None
    undisturbed_ms: float | None = None
    quiet: float | None = None
    disturbance: float | None = None

    @property
    def calibrated(self) -> bool | None:
        """True if the error of the method is known for this CPU model and number of threads; None without estimate."""
        return None if self.method is None else self.method.known


@dataclass(frozen=True, slots=True)
class Sums:
    """Raw sums over the sequences of a model.

    Attributes:
        sequential_ms: Over all of them; None where one is not measured.
        critical_path_ms: The greatest along a path; None likewise.
        host_ms: What the processor takes to enqueue all sequences, where a device does the work and that was measured.
            Where it is more than the device takes, the model is bound by its launches.
        known_ms: Over those that are measured.
    """

    sequential_ms: float | None = None
    critical_path_ms: float | None = None
    host_ms: float | None = None
    known_ms: float | None = None


@dataclass(frozen=True, slots=True)
class BenanzaBound:
    """A lower bound of a model's latency.

    Attributes:
        ms: The bound; None where the bricks do not cover the model.
        ci95_ms: Its interval, over all stacks that compete (``bounds``).
        ratio: The bound divided by the measured latency; of bricks in the model's own cache state.
        ratio_ci95: Its interval.
    """

    ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    ratio: float | None = None
    ratio_ci95: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class BenanzaBounds:
    """The lower bounds of a model.

    Attributes:
        sequential: The cheapest disjoint cover by measured bricks of at most G layers (``bound``).
        critical_path: The least critical path of the covers that were tried. No end of its interval is above that of
            the sequential bound.
        reason: Why there are no ratios; None where there are.
        note: Why the model takes less than its lower bound; None where it does not.
    """

    sequential: BenanzaBound = BenanzaBound()
    critical_path: BenanzaBound = BenanzaBound()
    reason: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """The whole model as measured under the same system, stack and conditions, and the estimate beside it.

    Attributes:
        ms: Mean latency; None where the model is not measured.
        ci95_ms: Its interval.
        undisturbed_ms: The same on a quiet machine.
        ratio: The estimate divided by the measured latency; of means of visits that alternated, where ``paired``.
        ratio_ci95: Its interval: what time blocks differ by, and the error of the method where that is known.
        paired: Whether bricks and model were visited in turn. False where they come from different sessions, whose
            scatter is part of the interval. None where there is no ratio.
        disturbance: How much slower the visits were than quiet ones: 0.1 stands for 10 %.
        reason: Why there is no ratio; None where there is one.
        remedy: What would measure the model; None where it is measured, cannot be, or nothing does.
        measurement: The measurement; None where there is none.
    """

    ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    undisturbed_ms: float | None = None
    ratio: float | None = None
    ratio_ci95: tuple[float, float] | None = None
    paired: bool | None = None
    disturbance: float | None = None
    reason: str | None = None
    remedy: Task | None = None
    measurement: Measurement | None = None


@dataclass(frozen=True, slots=True)
class RooflineBound:
    """How fast the machine's ceilings would allow the model to be.

    Attributes:
        ms: Least sum of its bricks that the ceilings allow; None where these are not known.
        critical_path_ms: The same along the critical path.
        headroom: The sequential sum divided by ``ms``.
        reason: Why there is no roofline; None where there is.
        remedy: What would measure the ceilings that are missing.
        bricks: Every brick under the ceilings; without bounds where these are not known.
    """

    ms: float | None = None
    critical_path_ms: float | None = None
    headroom: float | None = None
    reason: str | None = None
    remedy: Task | None = None
    bricks: Roofline | None = None


_DISTURBED = 0.1
"""A machine counts as disturbed where visits were slower than quiet ones by more than that."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The latency of one model, reconstructed from its bricks.

    All latencies are in milliseconds. Where a brick is missing the totals are None, and ``sums.known_ms`` is the sum of
    what is measured. Where the model cannot be decomposed, ``error`` says why and everything else is empty. Where
    bricks were read between other sizes of the model (``parts.interpolated``), the totals are known all the same, and
    ``parts.missing`` and the coverage are of what was measured.

    Attributes:
        model: The model, and how it was decomposed.
        place: Where its bricks were measured.
        parts: Its sequences, and how much of them is measured.
        latency: The best prediction.
        sums: Raw sums over the sequences.
        bounds: The lower bounds.
        truth: The whole model as measured.
        attribution: The distance between bricks and model by its causes (the names in ``SIGNS``); None where the bricks
            are not all measured.
        roofline: How fast the machine's ceilings would allow the model to be.
        evidence: What it was made from; None where the model cannot be decomposed.
    """

    model: EstimatedModel
    place: MeasuredPlace = field(default_factory=MeasuredPlace)
    parts: Parts = Parts()
    latency: Latency = Latency()
    sums: Sums = Sums()
    bounds: BenanzaBounds = BenanzaBounds()
    truth: GroundTruth = GroundTruth()
    attribution: Mapping[str, Term] | None = None
    roofline: RooflineBound = RooflineBound()
    evidence: Evidence | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.source.name

    @property
    def error(self) -> str | None:
        """Why the model could not be decomposed."""
        return self.model.error

    @property
    def attribution_absolute_ms(self) -> float | None:
        """Sum of the sizes of the causes that are counted, so that they cannot hide each other."""
        if self.attribution is None:
            return None
        causes = (term for name, term in self.attribution.items() if name != "bricks" and term.counted)
        return math.fsum(abs(term.ms) for term in causes if term.ms is not None)

    @property
    def disturbance(self) -> float | None:
        """How much slower the visits were than quiet ones; of the bricks where that of the model is not known."""
        return self.latency.disturbance if self.truth.disturbance is None else self.truth.disturbance

    @property
    def disturbed(self) -> bool | None:
        """Whether the machine was disturbed, by more than 10 %."""
        return None if self.disturbance is None else self.disturbance > _DISTURBED

    @property
    def lower_bound_ms(self) -> float | None:
        """The sequential lower bound; None also where the model is estimated to take less: it is no bound then."""
        bound, estimate = self.bounds.sequential.ms, None if self.parts.predicted else self.latency.ms
        return None if bound is not None and estimate is not None and bound > estimate else bound

    @property
    def complete(self) -> bool:
        """Whether the whole model is measured."""
        return self.error is None and not self.parts.missing
