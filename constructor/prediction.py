"""From raw sums of bricks to a prediction of the model, and the distance between both in terms of their causes.

With every sum over the sequences of the model,

.. math:: measured = bricks - fusion - layout - overhead + cache + data + unexplained

* *bricks*: the sum that was asked for; along the critical path where the runtime executes branches in parallel.
* *overhead*: calls that the model does not pay: each brick is called by itself (one call for so many copies as its
  network has), the model once. What is measured at a reuse distance is free of calls already; then one is added.
* *layout*: changes of memory layout at the edges of bricks, beyond the share that the model has at the same edges
  itself (``bricks.cutting.fused.edge_layouts``).
* *fusion*: what the runtime saves by fusing operators across the edges of bricks: of each window of layers that it
  fuses, the window as it is written less the same window fused, both in the network's own layout.
* *cache*: those executed bricks at the model's own reuse distance, less the same under the cache state asked for.
* *data*: the values of this model (such as denormal numbers), less synthetic ones.

A model that is asked for in cold caches stays there: *cache* is none of its causes.

None of these uses the measured latency of the model, and none is the difference of two sums that are others, so that
what is left unexplained is no term's doing by construction. A term whose interval includes zero is not counted.
The prediction is *bricks* corrected by what is known of them; where the executed bricks are measured at the model's
footprint, it is their sum, one call and *data*, whichever bricks were asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ..bricks.cutting.fused import edge_layouts
from ..bricks.graph.footprint import is_level
from ..bricks.graph.graph import ModelGraph
from ..bricks.layer import LayerSequence
from ..db import Measurement
from .choice import COLD, MODEL
from .composition import Quotient, critical_path
from .decomposition import Interventions, quotient_of
from .evidence import Evidence
from .measurements import BrickMeasurements
from .remedies import Task
from .result import SIGNS, BenanzaBounds, GroundTruth, Term
from .uncertainty.calibration import Method, MethodError, method_error
from .uncertainty.interval import Weights, combined, with_method

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Unknown:
    """A term whose intervention is not stored: why, and what would measure it."""

    reason: str
    remedy: Task | None = None


Known = Weights | Unknown


@dataclass(frozen=True, slots=True)
class Total:
    """Measurements that a prediction adds up, each as often as it occurs.

    Attributes:
        parts: The sequences.
        members: Their measurements.
        state: Their cache state.
    """

    parts: tuple[LayerSequence, ...]
    members: tuple[Measurement, ...]
    state: str

    @property
    def weights(self) -> dict[str, float]:
        """As a combination."""
        return {id_: float(count) for id_, count in Counter(measurement.id for measurement in self.members).items()}

    @property
    def calls(self) -> float:
        """Calls in it: a copy has its share of that of its network; what is measured at a level is free of them."""
        return 0.0 if is_level(self.state) else math.fsum(1 / measurement.unroll for measurement in self.members)


def total_of(
    parts: tuple[LayerSequence, ...], quotient: Quotient, bricks: BrickMeasurements, state: str, *, parallel: bool
) -> Total:
    """All sequences; where branches run at once, those on the critical path.

    Where a processor enqueues for a device, both work at the same time: what the slower of the two takes counts.
    """
    if parallel:
        path = critical_path(quotient, [bricks.latency_ns(part) for part in parts])
        parts = tuple(parts[index] for index in path.members)
    members = tuple(measurement for part in parts if (measurement := bricks.of(part)) is not None)
    host = host_of(parts, bricks)
    if host is not None and _sum_ns(host) > _sum_ns(members):
        members = host
    return Total(parts, members, state)


def host_of(parts: tuple[LayerSequence, ...], bricks: BrickMeasurements) -> tuple[Measurement, ...] | None:
    """What the processor takes to enqueue sequences; None where that is not known of one of them."""
    if not all(part.key in bricks.host for part in parts):
        return None
    return tuple(bricks.host[part.key] for part in parts)


def _sum_ns(measurements: Iterable[Measurement]) -> float:
    return math.fsum(measurement.latency_ns for measurement in measurements)


def executed_total(
    interventions: Interventions,
    bricks: BrickMeasurements,
    state: str,
    remedy: Callable[[str, str], Task | None],
    *,
    parallel: bool,
) -> Total | Unknown:
    """The bricks of the executed graph in a cache state."""
    if interventions.graph is None:
        return Unknown(interventions.reason, remedy("runtime", state))
    keys = {part.key for part in interventions.parts}
    missing = len({part.key for part in interventions.parts if not bricks.of(part)})
    if missing:
        text = f"{missing} of {len(keys)} bricks of the executed graph are not measured with cache {state}"
        return Unknown(text, remedy("runtime", state))
    quotient = quotient_of(interventions.graph, interventions.parts)
    return total_of(interventions.parts, quotient, bricks, state, parallel=parallel)


def call_cost(evidence: Evidence, state: str, remedy: Task | None) -> Known:
    """What one call costs; in cold caches that of a call in cold caches."""
    found = (evidence.overheads.get(COLD) if state == COLD else None) or evidence.overheads.get("hot")
    if found is None:
        # A run measures this beside bricks: where these are stored, they must be measured again for it.
        anew = None if remedy is None else replace(remedy, again="all")
        return Unknown("what a call costs is not measured", anew)
    return {found.id: 1.0}


def net(found: Total | Unknown, call: Known) -> Known:
    """A sum without calls."""
    if isinstance(found, Unknown) or not found.calls:
        return found if isinstance(found, Unknown) else found.weights
    return call if isinstance(call, Unknown) else combined((1, found.weights), (-found.calls, call))


def minus(whole: Known, part: Known) -> Known:
    """Subtract a combination from another; the difference is unknown if either is."""
    if isinstance(whole, Unknown):
        return whole
    return part if isinstance(part, Unknown) else combined((1, whole), (-1, part))


def change(there: Total | Unknown, same: Total | Unknown, call: Known) -> Known:
    """From one cache state to another."""
    unknown = next((total for total in (there, same) if isinstance(total, Unknown)), None)
    return unknown or minus(net(there, call), net(same, call))


def fusion_saving(
    bricks: BrickMeasurements, interventions: Interventions, parts: Iterable[LayerSequence], remedy: Task | None
) -> Known:
    """What the runtime saves by fusing layers that are in different bricks.

    Of each window of layers that it fuses, as often as it occurs: the window as it is written, less the same window
    fused, both in the network's own layout.
    """
    if interventions.executed is None or interventions.units is None:
        return Unknown(interventions.reason or "what fusion saves is not measured", remedy)
    home = {layer: number for number, part in enumerate(parts) for layer in part.own}
    cut = [unit.key for unit in interventions.units if len({home[layer] for layer in unit.own if layer in home}) > 1]
    missing = {key for key in cut if key not in bricks.fusion}
    if missing:
        return Unknown(f"{len(missing)} of {len({*cut})} windows are not measured with and without fusion", remedy)
    both = (bricks.fusion[key] for key in cut)
    return combined(*((1, {plain.id: 1.0, fused.id: -1.0}) for plain, fused in both))


def layout_changes(
    total: Total, bricks: BrickMeasurements, interventions: Interventions, parts: tuple[LayerSequence, ...]
) -> Known:
    """Layout changes at the edges of bricks, but for the share that the model has at the same edges itself.

    A brick without a measurement of its inner part has no layout changes, where other bricks have one.
    """
    pairs = [
        (part.layers, bricks.latest[part.key], bricks.inner[part.key])
        for part in total.parts
        if part.key in bricks.inner
    ]
    if not pairs:
        return Unknown("layout changes at the edges of bricks are not measured by themselves")
    if interventions.executed is None:
        return Unknown(f"the layouts that the model has itself are not known: {interventions.reason}")
    own = edge_layouts(interventions.executed, parts)
    shares = {part.layers: share for part, share in zip(parts, own, strict=True)}
    return combined(
        *((1 - shares[layers], {whole.id: 1.0, inner.id: -1.0}) for layers, whole, inner in pairs),
    )


def data_effect(evidence: Evidence, model: str, remedy: Task | None) -> Known:
    """What the model's own values cost more than synthetic ones, over all layers that its runtime executes."""
    found = evidence.data.get(model)
    if found is None:
        return Unknown("what the model's own values cost is not measured", remedy)
    return {found.id: 1.0}


def significant(found: Known, evidence: Evidence) -> Known:
    """A term that is to correct a prediction: nothing where its interval includes zero."""
    if isinstance(found, Unknown):
        return found
    ms, half = value_ms(found, evidence)
    return found if abs(ms) > half else {}


def value_ms(weights: Weights, evidence: Evidence) -> tuple[float, float]:
    """Value and half of the interval, in ms."""
    return evidence.uncertainty.value_ns(weights) / _NS_PER_MS, evidence.uncertainty.half_ns(weights) / _NS_PER_MS


def term_of(found: Known, evidence: Evidence, *, counted: bool) -> Term:
    """As it is reported.

    Args:
        found: The term.
        evidence: What is known.
        counted: Whether it is part of the sums.
    """
    if isinstance(found, Unknown):
        return Term(reason=found.reason, remedy=found.remedy)
    ms, half = value_ms(found, evidence)
    return Term(ms, (ms - half, ms + half), counted=counted)


# Why a model takes less than the lower bound that is built from its bricks.
#
# A bound of measured bricks is one of what runs them one by one. A runtime that is given the whole model can do better:
# it fuses across the edges of bricks, leaves out calls and changes of layout, runs branches at once. The Benanza ratio
# (lower bound / measured) is then above 1, and is not cut off there.


_CAUSES = {
    "fusion": "operators that are fused or removed across the edges of bricks",
    "layout": "changes of memory layout at the edges of bricks",
    "overhead": "calls of the runtime that only bricks take",
    "cache": "caches that are warmer in the model than they were for the bricks",
    "data": "values in the model that cost less than those of bricks",
}
"""What makes a model faster than its bricks, by the terms of the attribution."""


def benanza_note(
    bounds: BenanzaBounds, truth: GroundTruth, attribution: Mapping[str, Term] | None, *, parallel: bool
) -> str | None:
    """Why a model is faster than its lower bound, from what is known of the distance between bricks and model.

    Args:
        bounds: The bounds, with their ratios.
        truth: The model as measured.
        attribution: The distance between bricks and model by its causes; None where it is not known.
        parallel: Whether independent branches run at once.

    Returns:
        None where neither Benanza ratio is above 1.
    """
    ratios = (bounds.sequential.ratio, bounds.critical_path.ratio)
    if all(ratio is None or ratio <= 1 for ratio in ratios):
        return None
    bound, measured = bounds.sequential.ms, truth.ms
    if bound is None or measured is None:
        return None
    less = f"lower bound {bound:.3g} ms, measured {measured:.3g} ms"
    if truth.ci95_ms is not None and bound <= truth.ci95_ms[1]:
        return f"{less}: equal within the interval of the measurement"
    reasons = []
    if parallel and not (ratios[1] is not None and ratios[1] > 1):
        reasons.append("independent branches run at once")
    gains = {
        name: -SIGNS[name] * term.ms
        for name, term in (attribution or {}).items()
        if name in _CAUSES and term.ms is not None and -SIGNS[name] * term.ms > 0
    }
    ordered = sorted(gains.items(), key=lambda gain: -gain[1])
    reasons += [f"{_CAUSES[name]} ({gain:.3g} ms)" for name, gain in ordered]
    if reasons:
        return f"{less}: {', '.join(reasons)}"
    return f"{less}; cause unknown: {_unknown(attribution)}"


def _unknown(attribution: Mapping[str, Term] | None) -> str:
    """What would have to be known."""
    if not attribution:
        return "not every brick of the sequences that were asked for is measured"
    reasons = [
        f"{name}: {term.reason}"
        for name, term in attribution.items()
        if name in _CAUSES and term.ms is None and term.reason
    ]
    return "; ".join(reasons) or "no cause that is known makes the model faster than its bricks"


_OPTIONAL = ("layout", "data")
"""Terms that may stay unknown: what they would say is then part of what is unexplained."""

_ALWAYS = ("bricks", "overhead")
"""Terms that are counted whatever their intervals."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The bricks that an estimate was asked to compose.

    Attributes:
        model: Key of the model.
        graph: The graph that was cut.
        kind: Which one that is: ``source``, ``runtime`` or ``fused``.
        parts: Its sequences, all of them measured.
        quotient: Their quotient DAG.
        state: Cache state; a level's name for a reuse distance.
        level: The state that the model itself is in: its own reuse distance, or ``cold`` where it is measured cold too.
        method: How that is composed; None where nothing is stored.
        parallel: Whether independent branches run at once.
    """

    model: str
    graph: ModelGraph
    kind: str
    parts: tuple[LayerSequence, ...]
    quotient: Quotient
    state: str
    level: str
    method: Method | None
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model will take, and why that is not the raw sum.

    Attributes:
        ms: The prediction.
        half_ms: Half of its 95 % interval, with the error of the method.
        weights: The measurements that it is composed of.
        method: Error of the method; None if nothing is stored.
        terms: The causes, but for what is left unexplained.
        explained_ms: What they come to together; None where one that is needed is not known.
        explained_half_ms: Half of its interval, without model error.
    """

    ms: float
    half_ms: float
    weights: Weights
    method: MethodError | None
    terms: Mapping[str, Term]
    explained_ms: float | None
    explained_half_ms: float


def predict(
    asked: Asked, evidence: Evidence, interventions: Interventions, remedy: Callable[[str, str], Task | None]
) -> Prediction:
    """Predict a model all of whose bricks are measured.

    Args:
        asked: What it is composed of.
        evidence: What is known.
        interventions: The bricks of the executed graph.
        remedy: What measures bricks, given graph and cache state; given ``data`` as the graph, what examines the
            model's values.
    """
    bricks, own = evidence.bricks_in(asked.model, asked.state), evidence.bricks_in(asked.model, asked.level)
    total = total_of(asked.parts, asked.quotient, bricks, asked.state, parallel=asked.parallel)
    there = executed_total(interventions, own, asked.level, remedy, parallel=asked.parallel)
    call = call_cost(evidence, asked.state, remedy(asked.kind, asked.state))
    written = interventions.written is not None
    layout: Known = {}
    if asked.kind != "runtime" and not written:
        layout = layout_changes(total, bricks, interventions, asked.parts)
    fusion: Known = {}
    cache: Known = {}
    if asked.state != asked.level:
        same = executed_total(interventions, bricks, asked.state, remedy, parallel=asked.parallel)
        cache = change(there, same, call)
    if asked.kind == "source" and not written:
        windows = remedy("fusion", asked.state)
        fusion = fusion_saving(bricks, interventions, asked.parts, windows)
    terms: dict[str, Known] = {
        "bricks": total.weights,
        "fusion": fusion,
        "layout": layout,
        "overhead": call if isinstance(call, Unknown) else combined((total.calls - 1, call)),
        "cache": cache,
        "data": data_effect(evidence, asked.model, remedy("data", asked.level)),
    }
    counted = {name: term if name in _ALWAYS else significant(term, evidence) for name, term in terms.items()}
    # The nearest to the model that is stored, plus what it lacks, as far as that is known.
    if isinstance(there, Total):
        once = call if isinstance(call, Unknown) else combined((1 - there.calls, call))
        basis, lacking = there, [once, counted["data"]]
    else:
        basis = total
        lacking = [*(minus({}, counted[name]) for name in ("overhead", "fusion", "layout")), counted["data"]]
    weights = combined((1, basis.weights), *((1, term) for term in lacking if not isinstance(term, Unknown)))
    ms, half_ms = value_ms(weights, evidence)
    method = _method_error(asked, evidence, executed=basis is there, written=written)
    explained_ms, explained_half_ms = None, 0.0
    if not any(isinstance(term, Unknown) for name, term in terms.items() if name not in _OPTIONAL):
        known = [(SIGNS[name], term) for name, term in counted.items() if not isinstance(term, Unknown)]
        explained_ms, explained_half_ms = value_ms(combined(*known), evidence)
    return Prediction(
        ms=ms,
        half_ms=with_method(half_ms, method, value=ms),
        weights=weights,
        method=method,
        terms={name: term_of(term, evidence, counted=term == counted[name]) for name, term in terms.items()},
        explained_ms=explained_ms,
        explained_half_ms=explained_half_ms,
    )


def _method_error(asked: Asked, evidence: Evidence, *, executed: bool, written: bool) -> MethodError | None:
    """Return the error of composing from the requested bricks, or from bricks of the executed graph.

    Args:
        asked: The request.
        evidence: Names the system, and holds the user's own fits.
        executed: True for bricks of the executed graph, in the model's own cache state.
        written: True if this is the model's own graph.
    """
    method = asked.method
    if method is None or evidence.choice is None:
        return None
    if executed:
        method = replace(method, cache=COLD if asked.level == COLD else MODEL)
        if asked.kind != "runtime" and not written:  # layer by layer, whatever was asked for
            method = replace(method, graph="runtime", granularity=1)
    return method_error(method, evidence.choice.system.cpu, evidence.calibrations)


def unexplained(prediction: Prediction, measured: tuple[float, float] | None, reason: str | None) -> Term:
    """What is left of the measured latency when all causes are taken into account.

    What the model's values do is part of it where that is not measured.

    Args:
        prediction: With its terms.
        measured: Ground truth and half of its interval, in ms; None where there is none.
        reason: Why it cannot be compared; None where it can.
    """
    if measured is None or reason is not None:
        return Term(reason=reason)
    if prediction.explained_ms is None:
        unknown = [name for name, term in prediction.terms.items() if term.ms is None and name not in _OPTIONAL]
        return Term(reason=f"it cannot be separated from {' and '.join(unknown)}, not known either")
    latency, half = measured
    left, reach = latency - prediction.explained_ms, math.hypot(prediction.explained_half_ms, half)
    return Term(left, (left - reach, left + reach))
