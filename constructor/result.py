"""The estimate of a model's latency and its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..bricks.layer import Cutting, LayerState, TensorType
from ..bricks.suite.brick import BrickTypes
from ..db.values import Verdict
from .choice import Query
from .uncertainty.interval import valued_share

if TYPE_CHECKING:
    from ..bricks.decomposition import Decomposition
    from ..bricks.graph.control import ControlFlow
    from ..db import Measurement
    from ..models import ModelSource
    from .curve import Interpolation
    from .evidence import Evidence
    from .predictor import Predicted
    from .remedies import Task
    from .roofline import Roofline
    from .uncertainty.calibration import MethodError

SIGNS = {
    "bricks": 1, "fusion": -1, "layout": -1, "overhead": -1, "cache": 1, "denormals": 1, "unexplained": 1,
}  # fmt: skip
"""The terms of an attribution with their signs; the signed ``counted`` terms add up to the measured latency."""


@dataclass(frozen=True, slots=True)
class Term:
    """One cause of the difference between bricks and model.

    Attributes:
        ms: Its size; ``SIGNS`` has its sign. None if unknown.
        ci95_ms: Its interval.
        reason: Reason for an unknown size, else None.
        remedy: Task that would measure it; None if it is known or nothing can measure it.
        counted: True if it is part of the sums; false if its interval includes zero.
    """

    ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    reason: str | None = None
    remedy: Task | None = None
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Form(BrickTypes):
    """The signature of a sequence and its source layers.

    Attributes:
        source_layers: Names of layers of the model's own graph, in its order. A node that a runtime inserted (a layout
            change) has an empty tuple.
        kernels: Kernels that a profiler recorded for it, longest first; empty if no record is stored.
    """

    source_layers: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """The measured share of a model, 0 to 1.

    Attributes:
        sequences: Share of its sequences; a layer that cannot be a brick counts as an unmeasured sequence.
        macs: Share of its known multiply-accumulates; None if no layer has any.
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
        latency_ms: Mean; None if not measured.
        ci95_ms: Interval of the brick alone.
        verdict: Quality of the measurement; None if not measured.
        cache: Cache state of the measurement; None if not measured. In a loop, weights are warmer than in the model.
        on_path: True if it is known to be on the critical path.
        lower_bound_ms: Lowest latency of the brick on this system and device; None if unknown.
        fastest_stack: Key of the stack with this latency; None if unknown.
        fastest_variant: Algorithm with this latency; empty for the runtime's default.
        form: Its signature and source layers.
        interpolated: True if its latency was interpolated between other sizes of the model.
        predicted: True if its latency was predicted from other bricks.
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

    @property
    def unstable(self) -> bool:
        """True if its mean is known to no better than 10 %, also of too few visits for a verdict."""
        if self.verdict != Verdict.TIMED_OUT or self.ci95_ms is None or self.latency_ms is None:
            return self.verdict == Verdict.UNSTABLE
        return self.ci95_ms[1] - self.latency_ms > _UNSTABLE * self.latency_ms


@dataclass(frozen=True, slots=True)
class Framing:
    """Latency of a control-flow operator beyond its body, from separately measured sequences.

    Attributes:
        own_ms: Latency of all executions with empty bodies; None if not measured.
        moved_ms: Upper bound on the latency of slicing scanned inputs and stacking outputs, since a runtime can avoid
            copies; None if not measured or without scans.
    """

    own_ms: float | None = None
    moved_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """A missing brick or layer, and its remedy.

    Attributes:
        key: Key of the brick; None for a layer that cannot be one.
        count: Number of sequences of the model with this brick.
        layers: Names of the first sequence's layers.
        op_types: Their operators.
        reason: ``not measured``, or the reason for the failure.
        remedy: Task that would measure it; None for a layer that cannot be a brick.
        form: Form of the first sequence; None for a layer that cannot be a brick.
    """

    key: str | None
    count: int
    layers: tuple[str, ...]
    op_types: tuple[str, ...]
    reason: str
    remedy: Task | None
    form: Form | None = None

    @property
    def failed(self) -> bool:
        """True if it cannot be a brick, or its measurement failed: the same measurement promises nothing."""
        return self.key is None or (self.remedy is not None and self.remedy.again is not None)


@dataclass(frozen=True, slots=True)
class EstimatedModel:
    """The model of an estimate.

    Attributes:
        source: The model with the requested batch and dimensions.
        cutting: Settings of the decomposition.
        decomposition: Its sequences; None if it cannot be decomposed.
        error: Reason why it cannot be decomposed.
    """

    source: ModelSource
    cutting: Cutting
    decomposition: Decomposition | None = None
    error: str | None = None

    @property
    def dims(self) -> dict[str, int]:
        """Requested dimensions."""
        return dict(self.source.dims)

    @property
    def bound(self) -> dict[str, int]:
        """Sizes of dynamic dimensions."""
        return {} if self.decomposition is None else dict(self.decomposition.graph.bound)

    @property
    def invented(self) -> dict[str, TensorType]:
        """Inputs with made-up values that decide shapes or time."""
        return {} if self.decomposition is None else self.decomposition.invented

    @property
    def level(self) -> str | None:
        """Name of the model's own reuse distance."""
        return None if self.decomposition is None else self.decomposition.level

    @property
    def layers(self) -> int | None:
        """Number of operators of the decomposed graph."""
        return None if self.decomposition is None else len(self.decomposition.graph.layers)

    @property
    def folded(self) -> int | None:
        """Number of layers without cost at inference."""
        if self.decomposition is None:
            return None
        return sum(layer.state is LayerState.FOLDED for layer in self.decomposition.graph.layers)

    @property
    def control(self) -> tuple[ControlFlow, ...]:
        """Control-flow operators of the model and their decomposition."""
        return () if self.decomposition is None else self.decomposition.own.control


@dataclass(frozen=True, slots=True)
class Parts:
    """The sequences of a model and their coverage.

    Attributes:
        sequences: Every sequence, in the model's order.
        path: Sequences on the critical path, from start to end; empty if unknown.
        missing: Unmeasured bricks and layers.
        unique: Number of different bricks; None if the model cannot be decomposed.
        coverage: Measured share; None if the model cannot be decomposed.
        framing: Latency of each control-flow operator beyond its body; empty if not measured.
        interpolated: Interpolated bricks, if any.
        interpolation_reason: Reason why requested interpolation failed.
        predicted: Predicted bricks, if any.
        prediction_reason: Reason why requested prediction gave no latency.
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
    """The best estimate of a model's latency: the sum of its bricks with known corrections.

    Attributes:
        ms: The estimate (``prediction``).
        ci95_ms: Its 95 % interval: scatter between time blocks and processes, and the error of the method.
        method: Error of this way to compose an estimate. None without an estimate.
        scatter_calibrated: True if the scatter between processes is known for this backend, device and threads;
            otherwise the widest known scatter is used. Scatter between runs is not included. None without an estimate.
        undisturbed_ms: The estimate for a quiet machine, comparable across runs and machines.
        quiet: Share of quiet visits of the bricks, by their probes.
        disturbance: Relative slowdown of the bricks' visits against quiet visits (0.1 is 10 %).
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
        sequential_ms: Sum of all sequences; None if one is not measured.
        critical_path_ms: Greatest sum along a path; None if a sequence is not measured.
        host_ms: Time of the processor to enqueue all sequences on a device, if measured. If it exceeds the device's
            time, launches limit the model.
        known_ms: Sum of the measured sequences.
    """

    sequential_ms: float | None = None
    critical_path_ms: float | None = None
    host_ms: float | None = None
    known_ms: float | None = None


@dataclass(frozen=True, slots=True)
class BenanzaBound:
    """A lower bound of a model's latency.

    Attributes:
        ms: The bound; None if the bricks do not cover the model.
        ci95_ms: Its interval over all competing stacks (``bounds``).
        ratio: The bound divided by the measured latency, in the model's own cache state.
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
        sequential: Cheapest disjoint cover by measured bricks of at most G layers (``bound``).
        critical_path: Least critical path of the tried covers. Neither end of its interval exceeds the sequential
            bound's.
        reason: Reason for missing ratios.
        note: Reason why the measured model is faster than its lower bound, if it is.
    """

    sequential: BenanzaBound = BenanzaBound()
    critical_path: BenanzaBound = BenanzaBound()
    reason: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """The measured latency of the whole model on the same system, stack and conditions, compared with the estimate.

    Attributes:
        ms: Mean latency; None if not measured.
        ci95_ms: Its interval.
        undisturbed_ms: Latency on a quiet machine.
        ratio: The estimate divided by the measured latency; if ``paired``, both are means of alternating visits.
        ratio_ci95: Its interval: scatter between sessions (time blocks if they are few), and the error of the method.
        paired: True if bricks and model alternated. False if they were measured in different sessions; then the
            interval includes the scatter between sessions. None without a ratio.
        disturbance: Relative slowdown of the visits against quiet visits (0.1 is 10 %).
        reason: Reason for a missing ratio.
        remedy: Task that would measure the model; None if it is measured or nothing can measure it.
        measurement: The measurement, if any.
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
    """The least latency of a model under the machine's ceilings.

    Attributes:
        ms: Least sum of its bricks under the ceilings; None without ceilings.
        critical_path_ms: Least sum along the critical path.
        headroom: The sequential sum divided by ``ms``.
        reason: Reason for a missing roofline.
        remedy: Task that would measure the missing ceilings.
        bricks: All bricks under the ceilings; without bounds if there are no ceilings.
    """

    ms: float | None = None
    critical_path_ms: float | None = None
    headroom: float | None = None
    reason: str | None = None
    remedy: Task | None = None
    bricks: Roofline | None = None


_UNSTABLE = 0.1
"""Relative half-width of an interval above which a latency is unstable."""

_MOSTLY = 0.5
"""Share of a sum in unstable latencies above which an estimate is doubtful."""

_FAR = 1.5
"""Factor between an estimate and the measured latency from which no error of the method explains the difference."""

_DISTURBED = 0.1
"""Relative slowdown of visits above which a machine is disturbed."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The latency of one model, reconstructed from its bricks.

    All latencies are in milliseconds. If a brick is missing, the totals are None, and ``sums.known_ms`` is the sum of
    the measured bricks. If the model cannot be decomposed, ``error`` has the reason and all else is empty. Interpolated
    bricks (``parts.interpolated``) count in the totals; ``parts.missing`` and the coverage still call them unmeasured.

    Attributes:
        model: The model and its decomposition.
        place: System, stack and conditions of the measurements.
        parts: Its sequences and their coverage.
        latency: The best estimate.
        sums: Raw sums over the sequences.
        bounds: The lower bounds.
        truth: The measured latency of the whole model.
        attribution: Causes of the difference between bricks and model (the names in ``SIGNS``); None if a brick is not
            measured.
        roofline: Least latency under the machine's ceilings.
        evidence: The measurements; None if the model cannot be decomposed.
    """

    model: EstimatedModel
    place: Query = field(default_factory=Query)
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
        """Reason why the model could not be decomposed."""
        return self.model.error

    @property
    def attribution_absolute_ms(self) -> float | None:
        """Sum of the absolute sizes of the counted causes, so that opposite signs do not cancel."""
        if self.attribution is None:
            return None
        causes = (term for name, term in self.attribution.items() if name != "bricks" and term.counted)
        return math.fsum(abs(term.ms) for term in causes if term.ms is not None)

    @property
    def disturbance(self) -> float | None:
        """Relative slowdown of the model's visits against quiet visits, or of the bricks' if the model's is unknown."""
        return self.latency.disturbance if self.truth.disturbance is None else self.truth.disturbance

    @property
    def disturbed(self) -> bool | None:
        """True if visits were slower than quiet visits by more than 10 %."""
        return None if self.disturbance is None else self.disturbance > _DISTURBED

    @property
    def unstable_share(self) -> float | None:
        """Share of the sum from latencies whose mean is known to no better than 10 %; None without a sum."""
        timed = [(part.latency_ms, part) for part in self.parts.sequences if part.latency_ms is not None]
        total_ms = math.fsum(ms for ms, _ in timed)
        if total_ms <= 0:
            return None
        return math.fsum(ms for ms, part in timed if part.unstable) / total_ms

    @property
    def valued_share(self) -> float:
        """Share of the sum in bricks whose time depends on the values of their operands."""
        return valued_share(
            (part.op_types, part.latency_ms) for part in self.parts.sequences if part.latency_ms is not None
        )

    @property
    def doubtful(self) -> bool:
        """True if most of the sum is unstable, or if the machine was disturbed."""
        return (self.unstable_share or 0.0) > _MOSTLY or bool(self.disturbed)

    @property
    def differs(self) -> bool:
        """True if the estimate and the measured latency differ beyond the interval of their ratio."""
        ends = self.truth.ratio_ci95
        return ends is not None and not ends[0] <= 1 <= ends[1]

    @property
    def far(self) -> bool:
        """True if the estimate is more than 1.5 times the measured latency, or less than two thirds of it.

        All of the ratio's interval is so far away: the bricks do not explain the model.
        """
        if self.truth.ratio is None or self.truth.ratio_ci95 is None:
            return False
        low, high = self.truth.ratio_ci95
        return low > _FAR or high < 1 / _FAR

    @property
    def lower_bound_ms(self) -> float | None:
        """The sequential lower bound; None if it exceeds the estimate."""
        bound, estimate = self.bounds.sequential.ms, None if self.parts.predicted else self.latency.ms
        return None if bound is not None and estimate is not None and bound > estimate else bound

    @property
    def complete(self) -> bool:
        """True if all bricks are measured."""
        return self.error is None and not self.parts.missing
