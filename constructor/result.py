"""What an estimate says, and about what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..bricks.graph.control import ControlFlow
    from .curve import LeftOut
    from .form import Form
    from .remedies import Task
    from .roofline.roofline import Roofline

__all__ = ["SIGNS", "Coverage", "Estimate", "Framing", "Interpolation", "Missing", "SequenceLatency", "Term"]

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
        counted: Whether it is part of the sums; a cause whose interval includes nothing is not.
    """

    ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    reason: str | None = None
    remedy: Task | None = None
    counted: bool = True


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
class Interpolation:
    """Which bricks of an estimate were not measured, but read between other sizes of the model.

    Attributes:
        dimension: What the sizes are of.
        between: The measured sizes below and above it that they were read between.
        measured: All sizes that their curves go through.
        bricks: How many bricks were read; all others of the model were measured.
        share: Their share of the sum that the estimate is made from, 0 to 1.
        error: Relative half-width of what they may be off by together; None where there are too few sizes to leave one
            out.
        left_out: Of measured sizes but the ends: the sum of the bricks that were read, as measured there, and as the
            other sizes have it.
    """

    dimension: str
    between: tuple[int, int]
    measured: tuple[int, ...]
    bricks: int
    share: float
    error: float | None
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The latency of one model, reconstructed from its bricks.

    All latencies are in milliseconds. Where coverage is below 1 the totals are None and ``known_ms`` is the sum of what
    is measured; where the model itself cannot be decomposed, ``error`` says why and everything else is empty. Where
    bricks were read between other sizes of the model (``interpolated``), the totals are known all the same; ``missing``
    and coverage are of what was measured.

    Attributes:
        name: The model.
        granularity: Most layers in a sequence.
        graph: Which graph was decomposed: ``source``, ``runtime`` or ``fused``.
        overlap: Sequences could begin at every layer.
        connected: Sequences could be connected windows.
        batch: Batch asked for; None for the model's own.
        dims: Dimensions asked for.
        bound: What dynamic dimensions were bound to.
        system: Key of the system; None where nothing that matches is stored.
        stack: Key of the stack; likewise.
        backend: Backend; where nothing is stored, as asked for.
        device: Device; likewise.
        threads: Threads; likewise.
        cache: Cache state; likewise. ``model``: bricks at the model's own reuse distance.
        level: Name of the model's own reuse distance.
        dtype: Precision; likewise.
        layers: Operators of the graph that was decomposed.
        folded: Of these, layers that cost nothing at inference.
        unique: Different bricks among its sequences.
        estimate_ms: The best prediction: the sum corrected by what is known of its distance to the model
            (``prediction``).
        ci95_ms: Its interval: what time blocks and processes of the measurements differ by, and, where ``calibrated``,
            the method's error.
        calibrated: Whether the error of this way to compose an estimate is known (``uncertainty.calibration``); where
            it is not, the intervals are too narrow by it. None where there is no estimate.
        scatter_calibrated: Whether what processes and runs differ by is known for such a backend, device and threads;
            where not, what is known of others stands in, and the intervals are a guess by it. None likewise.
        sequential_ms: Raw sum over all sequences.
        critical_path_ms: Greatest raw sum along a path.
        host_ms: What the processor takes to enqueue all sequences, where a device does the work and that was measured:
            where it is more than the device takes, the model is bound by its launches.
        lower_bound_sequential_ms: Cheapest disjoint cover by measured bricks of at most G layers (``bound``).
        lower_bound_sequential_ci95_ms: Its interval, over all stacks that compete (``bounds``).
        lower_bound_critical_path_ms: Least critical path of the covers that were tried.
        lower_bound_critical_path_ci95_ms: Its interval; neither end is above that of the sequential bound.
        benanza_ratio_sequential: ``lower_bound_sequential_ms / measured_ms``; of bricks in the model's own cache state.
        benanza_ratio_sequential_ci95: Its interval.
        benanza_ratio_critical_path: ``lower_bound_critical_path_ms / measured_ms``, likewise.
        benanza_ratio_critical_path_ci95: Its interval.
        undisturbed_ms: The same on a quiet machine: what to compare across runs and machines.
        measured_ms: Ground truth: mean of the whole model under the same system, stack and conditions.
        measured_ci95_ms: Its interval.
        measured_undisturbed_ms: The same on a quiet machine.
        ratio: ``estimate_ms / measured_ms``; means of visits that alternated, where ``paired``.
        ratio_ci95: Its interval: what time blocks differ by, and, where ``calibrated``, the error of the method.
        paired: Whether bricks and model were visited in turn; False where they come from different sessions, whose
            scatter is part of the interval; None where there is no ratio.
        disturbed: Whether the machine was disturbed: ``disturbance`` is more than 10 %.
        disturbance: How much slower the visits were than quiet ones: ``measured_ms / measured_undisturbed_ms - 1``, of
            the bricks where the model is not measured.
        quiet: Share of the bricks' visits that were quiet, by the probes around them.
        ratio_reason: Why there is no ratio; None where there is one.
        ratio_remedy: What would measure the model; None where it is measured, cannot be, or nothing does.
        benanza_ratio_reason: Why there are no Benanza ratios; likewise.
        benanza_note: Why the model takes less than its lower bound; None where it does not.
        roofline_ms: Least sum of its bricks that the machine's ceilings allow (``roofline``).
        roofline_critical_path_ms: The same along the critical path.
        roofline_headroom: ``sequential_ms / roofline_ms``.
        roofline_reason: Why there is no roofline; None where there is.
        roofline_remedy: What would measure the ceilings that are missing.
        roofline: Every brick under the ceilings; without bounds where these are not known.
        coverage: How much of the model is measured; None on an error.
        known_ms: Sum over the measured sequences.
        attribution: The distance between bricks and model by its causes (the names in ``SIGNS``); None where the
            bricks are not all measured.
        attribution_absolute_ms: Sum of the sizes of the causes that are counted, so that they cannot hide each other.
        missing: What is not measured.
        sequences: Every sequence, in the model's order.
        path: Those on the critical path, from start to end; empty where it is not known.
        control: The model's control flow, and what became of each of its operators.
        framing: What each of these takes beyond its body; empty where nothing is measured.
        error: Why the model could not be decomposed.
        interpolated: Which of its bricks were read between other sizes; None where none was.
        interpolation_reason: Why those that are missing could not be, where that was asked for.
    """

    name: str
    granularity: int
    graph: str = "source"
    overlap: bool = False
    connected: bool = False
    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    bound: Mapping[str, int] = field(default_factory=dict)
    system: str | None = None
    stack: str | None = None
    backend: str | None = None
    device: str | None = None
    threads: int | None = None
    cache: str | None = None
    level: str | None = None
    dtype: str | None = None
    layers: int | None = None
    folded: int | None = None
    unique: int | None = None
    estimate_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    calibrated: bool | None = None
    scatter_calibrated: bool | None = None
    sequential_ms: float | None = None
    critical_path_ms: float | None = None
    host_ms: float | None = None
    lower_bound_sequential_ms: float | None = None
    lower_bound_sequential_ci95_ms: tuple[float, float] | None = None
    lower_bound_critical_path_ms: float | None = None
    lower_bound_critical_path_ci95_ms: tuple[float, float] | None = None
    benanza_ratio_sequential: float | None = None
    benanza_ratio_sequential_ci95: tuple[float, float] | None = None
    benanza_ratio_critical_path: float | None = None
    benanza_ratio_critical_path_ci95: tuple[float, float] | None = None
    undisturbed_ms: float | None = None
    measured_ms: float | None = None
    measured_ci95_ms: tuple[float, float] | None = None
    measured_undisturbed_ms: float | None = None
    ratio: float | None = None
    ratio_ci95: tuple[float, float] | None = None
    paired: bool | None = None
    disturbed: bool | None = None
    disturbance: float | None = None
    quiet: float | None = None
    ratio_reason: str | None = None
    ratio_remedy: Task | None = None
    benanza_ratio_reason: str | None = None
    benanza_note: str | None = None
    roofline_ms: float | None = None
    roofline_critical_path_ms: float | None = None
    roofline_headroom: float | None = None
    roofline_reason: str | None = None
    roofline_remedy: Task | None = None
    roofline: Roofline | None = None
    coverage: Coverage | None = None
    known_ms: float | None = None
    attribution: Mapping[str, Term] | None = None
    attribution_absolute_ms: float | None = None
    missing: tuple[Missing, ...] = ()
    sequences: tuple[SequenceLatency, ...] = ()
    path: tuple[SequenceLatency, ...] = ()
    control: tuple[ControlFlow, ...] = ()
    framing: tuple[Framing, ...] = ()
    error: str | None = None
    interpolated: Interpolation | None = None
    interpolation_reason: str | None = None

    @property
    def lower_bound_ms(self) -> float | None:
        """The sequential lower bound; None also where the model is estimated to take less: it is no bound then."""
        bound, estimate = self.lower_bound_sequential_ms, self.estimate_ms
        return None if bound is not None and estimate is not None and bound > estimate else bound

    @property
    def complete(self) -> bool:
        """Whether the whole model is measured."""
        return self.error is None and not self.missing
