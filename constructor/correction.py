"""Estimate of a model from raw sums of its bricks, and the causes of their difference.

With every sum over the sequences of the model,

.. math:: measured = bricks - fusion - layout - overhead + cache + unexplained

* *bricks*: the requested sum; along the critical path if the runtime executes branches in parallel.
* *overhead*: superfluous calls. A brick that runs alone is called once for all its copies, the model once. Packs are
  free of calls, and predictions count as free of them; then one call is added. For the bricks of a small model, half
  the calls are subtracted (``Total.unsure_calls``), and the interval contains none and all of them.
* *layout*: changes of memory layout at the edges of bricks, minus the model's own changes at these edges
  (``bricks.cutting.fused.edge_layouts``).
* *fusion*: savings of fusing operators across the edges of bricks. For each fused window of layers: the latency without
  fusion minus the latency with fusion, both in the network's own layout.
* *denormals*: the cost of denormal numbers, which bricks do not have: the model minus the same model with these numbers
  as zero. Known only after a trial of the model (``with_denormals``).
* *cache*: the executed bricks at the model's own reuse distance minus the same bricks in the requested cache state. The
  term is zero for a model that was requested in cold caches.

No other term uses the measured latency of the model or is a difference of two other terms, so *unexplained* is
independent of them. A term is not counted if its interval includes zero. The estimate is *bricks* with the known
corrections. If the executed bricks are measured at the model's footprint, it is their sum plus one call, for every
request.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ..bricks.cutting.fused import edge_layouts
from ..bricks.graph.footprint import CORE_LEVEL, has_calls, level_name
from ..bricks.graph.model_graph import ModelGraph
from ..bricks.layer import LayerSequence
from ..db import Measurement
from .choice import COLD, MODEL
from .composition import Quotient, critical_path
from .evidence import Evidence
from .interventions import Interventions, quotient_of
from .measurements import BrickMeasurements
from .remedies import Task
from .result import SIGNS, BenanzaBounds, GroundTruth, Term
from .uncertainty.calibration import OPENED, Method, MethodError, method_error
from .uncertainty.interval import Weights, combined, valued_share, with_method, with_unsure, with_values

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Unknown:
    """A term without a stored measurement: the reason and the remedy."""

    reason: str
    remedy: Task | None = None


Known = Weights | Unknown


@dataclass(frozen=True, slots=True)
class Total:
    """Measurements in a sum, repeated by occurrence."""

    parts: tuple[LayerSequence, ...]
    members: tuple[Measurement, ...]
    state: str

    @property
    def weights(self) -> dict[str, float]:
        """The sum as a linear combination."""
        return {id_: float(count) for id_, count in Counter(measurement.id for measurement in self.members).items()}

    @property
    def calls(self) -> float:
        """Number of calls in the sum: each copy of a brick that ran alone has its share of a call."""
        return sum(self._calls_by_state.values()) - self.unsure_calls

    @property
    def unsure_calls(self) -> float:
        """Half the calls of a small model's bricks beyond the one that the model pays.

        Kernels that are repeated alone find their code and data in the first cache; in the model they hardly do. This
        advantage makes up for between none and all of the cost of these calls.
        """
        return max(0.0, self._calls_by_state.get(level_name(CORE_LEVEL), 0.0) - 1) / 2

    @property
    def _calls_by_state(self) -> dict[str, float]:
        """Calls of the bricks that ran alone, by their cache state; predicted bricks count as free of calls."""
        calls: defaultdict[str, float] = defaultdict(float)
        for member in self.members:
            if member.summary.samples and has_calls(member.conditions.cache):
                calls[member.conditions.cache] += 1 / member.unroll
        return calls


def total_of(
    parts: tuple[LayerSequence, ...], quotient: Quotient, bricks: BrickMeasurements, state: str, *, parallel: bool
) -> Total:
    """Return the sum of all sequences, or of the critical path if branches run in parallel.

    If a processor enqueues for a device, both work at the same time: the slower one counts.
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
    """Return the processor's times to enqueue sequences; None if one is unknown."""
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
    """Return the sum of the executed graph's bricks in a cache state."""
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
    """Return the cost of one call; of a cold call in cold caches."""
    overhead = (evidence.overheads.get(COLD) if state == COLD else None) or evidence.overheads.get("hot")
    if overhead is None:
        # A run measures the call together with bricks: stored bricks must be measured again.
        anew = None if remedy is None else replace(remedy, again="all")
        return Unknown("what a call costs is not measured", anew)
    return {overhead.id: 1.0}


def net(total: Total | Unknown, call: Known) -> Known:
    """Return a sum without its calls."""
    if isinstance(total, Unknown) or not total.calls:
        return total if isinstance(total, Unknown) else total.weights
    return call if isinstance(call, Unknown) else combined((1, total.weights), (-total.calls, call))


def minus(whole: Known, part: Known) -> Known:
    """Subtract a combination from another; the difference is unknown if either is."""
    if isinstance(whole, Unknown):
        return whole
    return part if isinstance(part, Unknown) else combined((1, whole), (-1, part))


def change(there: Total | Unknown, same: Total | Unknown, call: Known) -> Known:
    """Return the change from one cache state to another."""
    unknown = next((total for total in (there, same) if isinstance(total, Unknown)), None)
    return unknown or minus(net(there, call), net(same, call))


def fusion_saving(
    bricks: BrickMeasurements, interventions: Interventions, parts: Iterable[LayerSequence], remedy: Task | None
) -> Known:
    """Return the savings of fusing layers of different bricks.

    For each occurrence of a fused window: its latency without fusion minus its latency with fusion, both in the
    network's own layout.
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
    """Return the layout changes at the edges of bricks, minus the model's own changes at these edges.

    If other bricks have inner measurements, a brick without one counts as free of layout changes.
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
    edge_shares = edge_layouts(interventions.executed, parts)
    shares = {part.layers: share for part, share in zip(parts, edge_shares, strict=True)}
    return combined(
        *((1 - shares[layers], {whole.id: 1.0, inner.id: -1.0}) for layers, whole, inner in pairs),
    )


def value_ms(weights: Weights, evidence: Evidence) -> tuple[float, float]:
    """Return value and half-width in ms."""
    return evidence.uncertainty.value_ns(weights) / _NS_PER_MS, evidence.uncertainty.half_ns(weights) / _NS_PER_MS


def term_of(term: Known, evidence: Evidence, *, always: bool) -> Term:
    """Return a term as a result. Unless it always counts, it counts if its interval excludes zero."""
    if isinstance(term, Unknown):
        return Term(reason=term.reason, remedy=term.remedy)
    ms, half = value_ms(term, evidence)
    return Term(ms, (ms - half, ms + half), counted=always or not term or abs(ms) > half)


# Reasons why a model is faster than the lower bound of its bricks.
#
# The bound assumes that bricks run one by one. A runtime with the whole model can do better: it fuses across the edges
# of bricks, omits calls and layout changes, and runs branches in parallel. The Benanza ratio (lower bound / measured)
# is then above 1.


_CAUSES = {
    "fusion": "operators that are fused or removed across the edges of bricks",
    "layout": "changes of memory layout at the edges of bricks",
    "overhead": "calls of the runtime that only bricks take",
    "cache": "caches that are warmer in the model than they were for the bricks",
}
"""Causes of a model faster than its bricks, by term of the attribution."""

_MOSTLY = 0.5
"""Share of the difference that known causes have to explain; below it the note says that the rest has none."""


def benanza_note(
    bounds: BenanzaBounds, truth: GroundTruth, attribution: Mapping[str, Term] | None, *, parallel: bool
) -> str | None:
    """Return why a model is faster than its lower bound, from the attribution.

    Args:
        bounds: The bounds with their ratios.
        truth: The measured latency.
        attribution: Causes of the difference between bricks and model, if known.
        parallel: True if independent branches run in parallel.

    Returns:
        None if neither Benanza ratio is above 1.
    """
    ratios = (bounds.sequential.ratio, bounds.critical_path.ratio)
    if all(ratio is None or ratio <= 1 for ratio in ratios):
        return None
    bound, measured = bounds.sequential.ms, truth.ms
    if bound is None or measured is None:
        return None
    less = f"fastest bricks {bound:.3g} ms, measured {measured:.3g} ms"
    least = bound if bounds.sequential.ci95_ms is None else bounds.sequential.ci95_ms[0]
    if truth.ci95_ms is not None and least <= truth.ci95_ms[1]:
        return f"{less}: equal within their intervals"
    reasons = []
    if parallel and not (ratios[1] is not None and ratios[1] > 1):
        reasons.append("independent branches run at once")
    gains = {
        name: -SIGNS[name] * term.ms
        for name, term in (attribution or {}).items()
        if name in _CAUSES and term.ms is not None and -SIGNS[name] * term.ms > 0 and not _may_be_zero(term)
    }
    ordered = sorted(gains.items(), key=lambda gain: -gain[1])
    explained = bool(reasons) or sum(gains.values()) >= _MOSTLY * (bound - measured)
    reasons += [f"{_CAUSES[name]} ({gain:.3g} ms)" for name, gain in ordered]
    if reasons:
        return f"{less}: {', '.join(reasons)}{'' if explained else '; the rest is not explained'}"
    return f"{less}; cause unknown: {_unknown(attribution)}"


def _may_be_zero(term: Term) -> bool:
    low, high = term.ci95_ms or (-math.inf, math.inf)
    return not term.counted or low <= 0 <= high


def _unknown(attribution: Mapping[str, Term] | None) -> str:
    """Return the unknown terms with their reasons."""
    if not attribution:
        return "not every brick of the sequences that were asked for is measured"
    reasons = [
        f"{name}: {term.reason}"
        for name, term in attribution.items()
        if name in _CAUSES and term.ms is None and term.reason
    ]
    return "; ".join(reasons) or "no cause that is known makes the model faster than its bricks"


_OPTIONAL = "layout"
"""The term that may be unknown; *unexplained* then includes it."""

_ALWAYS = ("bricks", "overhead")
"""Terms that always count."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The requested bricks of an estimate.

    Attributes:
        model: Key of the model.
        graph: The decomposed graph.
        kind: Its kind: ``source``, ``runtime`` or ``fused``.
        parts: Its sequences, all measured.
        quotient: Their quotient DAG.
        state: Cache state; a level's name for a reuse distance.
        level: Cache state of the model: its own reuse distance, or ``cold`` if it is measured cold.
        method: Way to compose the sum; None if nothing is stored.
        parallel: True if independent branches run in parallel.
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
class Corrected:
    """A composed estimate and its difference to the raw sum.

    Attributes:
        ms: The estimate.
        half_ms: Half-width of its 95 % interval, with the method's error.
        weights: Its measurements with their weights.
        method: Error of the method; None if nothing is stored.
        terms: All causes except *unexplained*.
        explained_ms: Sum of the causes; None if a necessary one is unknown.
        explained_half_ms: Its half-width, without the method's error.
    """

    ms: float
    half_ms: float
    weights: Weights
    method: MethodError | None
    terms: Mapping[str, Term]
    explained_ms: float | None
    explained_half_ms: float


def correct(
    asked: Asked, evidence: Evidence, interventions: Interventions, remedy: Callable[[str, str], Task | None]
) -> Corrected:
    """Compose the estimate of a model with all bricks measured.

    Args:
        asked: The requested bricks.
        evidence: All measurements.
        interventions: The bricks of the executed graph.
        remedy: Returns the task for bricks of a graph in a cache state.
    """
    bricks, level_bricks = evidence.bricks_in(asked.model, asked.state), evidence.bricks_in(asked.model, asked.level)
    total = total_of(asked.parts, asked.quotient, bricks, asked.state, parallel=asked.parallel)
    there = executed_total(interventions, level_bricks, asked.level, remedy, parallel=asked.parallel)
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
    }
    results = {name: term_of(term, evidence, always=name in _ALWAYS) for name, term in terms.items()}
    counted = {name: term if results[name].counted else {} for name, term in terms.items()}
    # Start from the stored sum that is nearest to the model, and add the known corrections.
    basis = total
    lacking: list[Known] = [minus({}, counted[name]) for name in ("overhead", "fusion", "layout")]
    if isinstance(there, Total):
        basis, lacking = there, [call if isinstance(call, Unknown) else combined((1 - there.calls, call))]
    weights = combined((1, basis.weights), *((1, term) for term in lacking if not isinstance(term, Unknown)))
    ms, half_ms = value_ms(weights, evidence)
    layers = asked.graph.layers
    by_values = valued_share(
        ([layers[index].op_type for index in part.layers], bricks.latency_ns(part)) for part in asked.parts
    )
    unsure_ms = 0.0 if isinstance(call, Unknown) else basis.unsure_calls * value_ms(call, evidence)[0]
    method = _method_error(asked, evidence, executed=basis is there, written=written)
    method = with_unsure(with_values(method, by_values), unsure_ms / ms if ms > 0 else 0.0)
    explained_ms, explained_half_ms = None, 0.0
    if not any(isinstance(term, Unknown) for name, term in terms.items() if name != _OPTIONAL):
        signed_terms = [(SIGNS[name], term) for name, term in counted.items() if not isinstance(term, Unknown)]
        explained_ms, explained_half_ms = value_ms(combined(*signed_terms), evidence)
    return Corrected(
        ms=ms,
        half_ms=with_method(half_ms, method, value=ms),
        weights=weights,
        method=method,
        terms=results,
        explained_ms=explained_ms,
        explained_half_ms=explained_half_ms,
    )


def _method_error(asked: Asked, evidence: Evidence, *, executed: bool, written: bool) -> MethodError | None:
    """Return the error of composing from the requested bricks, or from bricks of the executed graph.

    Args:
        asked: The request.
        evidence: Has the system and the user's own fits.
        executed: True for bricks of the executed graph, in the model's own cache state.
        written: True if the runtime executes the model's own graph.
    """
    method = asked.method
    if method is None or evidence.choice is None:
        return None
    if executed:
        method = replace(method, cache=COLD if asked.level == COLD else MODEL)
        if asked.kind != "runtime" and not written:  # always layer by layer
            method = replace(method, graph="runtime", granularity=1)
    if asked.graph.opened:
        method = replace(method, graph=OPENED)
    return method_error(method, evidence.choice.system.cpu, evidence.calibrations)


def unexplained(corrected: Corrected, measured: tuple[float, float] | None, reason: str | None) -> Term:
    """Return the measured latency minus all known causes.

    It includes the cost of the model's own values, for example denormal numbers: bricks have ordinary values.

    Args:
        corrected: The estimate with its terms.
        measured: Ground truth and its half-width in ms, if measured.
        reason: Reason why it cannot be compared, if any.
    """
    if measured is None or reason is not None:
        return Term(reason=reason)
    if corrected.explained_ms is None:
        unknown = [name for name, term in corrected.terms.items() if term.ms is None and name != _OPTIONAL]
        return Term(reason=f"it cannot be separated from {' and '.join(unknown)}, not known either")
    latency, half = measured
    unexplained_ms, reach = latency - corrected.explained_ms, math.hypot(corrected.explained_half_ms, half)
    return Term(unexplained_ms, (unexplained_ms - reach, unexplained_ms + reach))


def with_denormals(
    attribution: Mapping[str, Term], share: tuple[float, float, float], measured_ms: float
) -> dict[str, Term]:
    """Return an attribution with the cost of denormal numbers; *unexplained* is the rest.

    Args:
        attribution: The causes so far.
        share: Share of the model's latency that a trial saved with these numbers as zero, and its 95 % interval.
        measured_ms: The model's latency.
    """
    left = attribution["unexplained"]
    if left.ms is None or left.ci95_ms is None:
        return dict(attribution)
    ms, low, high = (measured_ms * part for part in share)
    reach = math.hypot((high - low) / 2, (left.ci95_ms[1] - left.ci95_ms[0]) / 2)
    rest_ms = left.ms - ms
    return {
        **attribution,
        "denormals": Term(ms, (low, high)),
        "unexplained": Term(rest_ms, (rest_ms - reach, rest_ms + reach)),
    }
