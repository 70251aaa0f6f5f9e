"""The lower bound of a model and its interval, from its bricks' measurements on all stacks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..bricks.cutting.sequences import KeyedWindow
from ..bricks.decomposition import Decomposition
from ..bricks.graph.footprint import is_level
from ..db import Measurement
from .choice import COLD
from .composition import Cover, CriticalPath, further_covers, lower_bound, selection_bias
from .coverage import cannot_be_bricks
from .evidence import Evidence
from .interventions import state_of
from .measurements import BrickMeasurements
from .result import BenanzaBound, BenanzaBounds, GroundTruth
from .uncertainty.calibration import NORMAL, scatters
from .uncertainty.interval import Uncertainty, Weights
from .uncertainty.pairing import paired

_REPLICATES = 128


@dataclass(frozen=True, slots=True)
class Bound:
    """One lower bound, in nanoseconds.

    Attributes:
        latency_ns: The least sum.
        ci95_ns: Its interval; contains ``latency_ns``.
        weights: Its measurements.
        bias_ns: Least and greatest selection bias; part of the interval.
    """

    latency_ns: float
    ci95_ns: tuple[float, float]
    weights: Weights
    bias_ns: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The lower bounds of a model.

    Attributes:
        sequential: Bound of the sum.
        critical_path: Bound of the critical path; neither end of its interval exceeds the sequential bound's.
    """

    sequential: Bound
    critical_path: Bound


def bounds_of(
    model: Decomposition,
    asked: Cover,
    bricks: BrickMeasurements,
    uncertainty: Uncertainty,
    path: CriticalPath | None,
) -> Bounds | None:
    """Return the lower bounds; None if no cover is measured, for example because a layer cannot be a brick.

    An interval has the errors of the selected measurements, the scatter between runs if measurements of several runs
    compete, and the bias of selecting the lowest (``composition.selection_bias``).

    Args:
        model: The decomposed model.
        asked: The requested sequences.
        bricks: Measurements of the bricks.
        uncertainty: Their raw samples.
        path: Critical path of the sequences on the requested stack; None unless all are measured.
    """
    graph = model.graph
    if cannot_be_bricks(graph):
        return None
    competing = {*asked.keys, *(window.key for window in model.windows)}
    rivals = {key: bricks.rivals[key] for key in sorted(competing) if key in bricks.rivals}
    lowest = {key: some[0].latency_ns for key, some in rivals.items()}
    further = further_covers(graph.graph.edges(), graph.live, model.windows, lowest) if model.windows else []
    # The requested sequences are one of the covers. Rounding may choose another path through them: it counts too.
    most_ns = math.inf if path is None else path.latency
    return bounded([asked, *further], model.windows, len(graph.live), rivals, uncertainty, most_ns=most_ns)


def bounded(
    covers: Sequence[Cover],
    windows: Sequence[KeyedWindow],
    size: int,
    rivals: Mapping[str, Sequence[Measurement]],
    uncertainty: Uncertainty,
    *,
    most_ns: float = math.inf,
) -> Bounds | None:
    """Return the least sum and path of some covers, with their intervals.

    Args:
        covers: Candidates.
        windows: Parts of further covers.
        size: Number of covered layers.
        rivals: Competing measurements of each brick by key, lowest first.
        uncertainty: Their raw samples.
        most_ns: A known critical path.

    Returns:
        None if every cover has an unmeasured brick.
    """
    lowest = {key: some[0].latency_ns for key, some in rivals.items()}
    measured = [cover for cover in covers if all(key in lowest for key in cover.keys)]
    lower = lower_bound(measured, lowest)
    if lower is None:
        return None
    whole = [window for window in windows if window.key in lowest]
    used = {key for cover in measured for key in cover.keys} | {window.key for window in whole}
    entering = {key: some for key, some in rivals.items() if key in used}
    ids = [measurement.id for some in entering.values() for measurement in some]
    errors = iter(uncertainty.draws_ns(ids, _REPLICATES))
    bias = selection_bias(
        measured,
        whole,
        size,
        {key: [measurement.latency_ns for measurement in some] for key, some in entering.items()},
        {key: np.stack([next(errors) for _ in some]) for key, some in entering.items()},
    )
    apart = len({uncertainty.known[id_].run for id_ in ids}) > 1
    least = min(lower.critical_path, most_ns)
    return _ordered(
        _bound(lower.sequential, lower.sequential_keys, rivals, uncertainty, bias=bias.sequential, apart=apart),
        _bound(least, lower.path_keys, rivals, uncertainty, bias=bias.critical_path, apart=apart),
    )


def _bound(
    latency_ns: float, keys: Sequence[str], rivals: Mapping[str, Sequence[Measurement]], uncertainty: Uncertainty,
    *, bias: tuple[float, float], apart: bool,
) -> Bound:  # fmt: skip
    weights = {id_: float(count) for id_, count in Counter(rivals[key][0].id for key in keys).items()}
    half = uncertainty.half_ns(weights)
    if apart:
        half = math.hypot(half, NORMAL * uncertainty.runs_ns(weights))
    low, high = latency_ns + bias[0] - half, latency_ns + bias[1] + half
    return Bound(latency_ns, (max(0.0, min(low, latency_ns)), high), weights, bias)


def _ordered(whole: Bound, path: Bound) -> Bounds:
    """Make the interval of the path end no higher, and the interval of the sum begin no lower, than the other."""
    low, high = max(whole.ci95_ns[0], path.ci95_ns[0]), min(whole.ci95_ns[1], path.ci95_ns[1])
    return Bounds(
        replace(whole, ci95_ns=(low, whole.ci95_ns[1])),
        replace(path, ci95_ns=(path.ci95_ns[0], high)),
    )


def not_of_one_state(state: str, levels: Collection[str], truth: Measurement) -> str | None:
    """Return why a bound is not comparable with the measured model; None if both have one cache state.

    A repeated model has the cache state of bricks in its footprint class. Hot bricks are comparable only with a model
    that was measured hot, because their weights are warmer than the model's.

    Args:
        state: Cache state of the bricks.
        levels: Footprint classes of the model as written and as executed.
        truth: Measurement of the model.
    """
    measured = truth.conditions.cache
    if state == measured or (state in levels and measured != COLD):
        return None
    classes = ", ".join(sorted(level for level in levels if is_level(level)))
    return (
        f"the bound is of bricks in the cache state {state}, and the model was measured with cache {measured}, in its "
        f"own state ({classes}): use --cache model"
    )


def benanza_bounds(
    model: Decomposition,
    bounds: Bounds | None,
    truth: GroundTruth,
    evidence: Evidence,
) -> BenanzaBounds:
    """Return the lower bounds in milliseconds and their ratios to the measured model."""
    measured, state = truth.measurement, state_of(model, evidence.choice)
    reason, comparable = truth.reason, False
    if measured is not None:
        reason = "not every brick is measured" if model.sequences else "no layer of the model is executed"
        if model.sequences and bounds is not None and measured.latency_ns > 0:
            reason = not_of_one_state(state, {model.level, evidence.executed[model.own.key].level}, measured)
            comparable = reason is None

    def shown(bound: Bound) -> BenanzaBound:
        low, high = bound.ci95_ns
        ratio, ci95 = None, None
        if comparable and measured is not None:
            ratio, ci95 = benanza_ratio(bound, measured, evidence)
        return BenanzaBound(bound.latency_ns / 1e6, (low / 1e6, high / 1e6), ratio, ci95)

    if bounds is None:
        return BenanzaBounds(reason=reason)
    return BenanzaBounds(shown(bounds.sequential), shown(bounds.critical_path), reason)


def benanza_ratio(bound: Bound, truth: Measurement, evidence: Evidence) -> tuple[float, tuple[float, float] | None]:
    """Return a bound divided by the measured latency, and its interval, over alternating visits if there are any."""
    uncertainty, (least, most) = evidence.uncertainty, bound.bias_ns
    measured_ns = truth.latency_ns
    ratio = bound.latency_ns / measured_ns
    if bound.latency_ns <= 0:
        return ratio, None
    weights = evidence.in_run(bound.weights, truth.run)
    both = paired(weights, truth, evidence.members(weights), uncertainty)
    if both is not None:
        half = both.half
    else:
        half = math.hypot(uncertainty.half_ns(bound.weights) / bound.latency_ns, truth.half_ns / measured_ns)
        if any(uncertainty.known[id_].run != truth.run for id_ in bound.weights):
            slower = truth.latency_ns / truth.undisturbed_ns - 1 if truth.undisturbed_ns else 0.0
            runs = uncertainty.runs_ns(bound.weights) / bound.latency_ns, scatters(uncertainty.stacks, truth).run_sd
            half = math.hypot(half, NORMAL * math.hypot(*runs, max(0.0, slower) / 2))
    reach = math.exp(min(half, 50.0))
    low, high = (
        max(0.0, bound.latency_ns + least) / measured_ns / reach,
        (bound.latency_ns + most) / measured_ns * reach,
    )
    return ratio, (min(low, ratio), high)
