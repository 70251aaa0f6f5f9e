r"""From raw sums of bricks to a prediction of the model, and the distance between both in terms of their causes.

With every sum over the sequences of the model,

.. math:: measured = bricks - fusion - layout - overhead + cache + data + gaps + unexplained

* *bricks*: the sum that was asked for; along the critical path where the runtime executes branches in parallel.
* *overhead*: calls that the model does not pay: each brick is called by itself (one call for so many copies as its
  network has), the model once. What is measured at a reuse distance is free of calls already; then one is added.
* *layout*: changes of memory layout at the edges of bricks, beyond the share that the model has at the same edges
  itself (``generator.fused.edge_layouts``).
* *fusion*: what the runtime saves by fusing and removing operators across the edges of bricks: what is left of the sum
  beyond the bricks of the graph that is executed, under the same cache state.
* *cache*: those executed bricks at the model's own reuse distance, less the same under the cache state asked for.
* *data*: the values of this model (such as denormal numbers), less synthetic ones.
* *gaps*: an executor's change to the next node, whose code and data are cold in a running model.

A model that is asked for in cold caches stays there: *cache* and *gaps* are none of its causes.

None of these uses the measured latency of the model. The prediction is *bricks* corrected by what is known of them;
where the executed bricks are measured at the model's reuse distance, that is their sum, one call, and the gaps,
whichever bricks were asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..bricks.footprint import is_level
from ..bricks.graph import ModelGraph
from ..bricks.sequence import Sequence as Part
from ..db import Measurement, Stack
from ..generator.fused import edge_layouts
from .calibration import model_error_sd
from .composition import Quotient, critical_path
from .decomposition import Interventions, quotient_of
from .interval import NORMAL, Weights, combined
from .result import SIGNS, Term
from .selection import COLD, MODEL
from .stored import Shelf, Stored

__all__ = ["Asked", "Prediction", "in_parallel", "predict", "unexplained"]

_NS_PER_MS = 1e6

_OPTIONAL = ("layout", "data")
"""Terms that may stay unknown: what they would say is then part of fusion, and of what is unexplained."""


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
        parallel: Whether independent branches run at once.
    """

    model: str
    graph: ModelGraph
    kind: str
    parts: tuple[Part, ...]
    quotient: Quotient
    state: str
    level: str
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model will take, and why that is not the raw sum.

    Attributes:
        ms: The prediction.
        half_ms: Half of its 95 % interval, model error included.
        basis: (latency, reference latency beside it) of the bricks that it is composed of.
        terms: The causes, but for what is left unexplained.
        explained_ms: What they come to together; None where one that is needed is not known.
        explained_half_ms: Half of its interval, without model error.
    """

    ms: float
    half_ms: float
    basis: tuple[tuple[float, float | None], ...]
    terms: Mapping[str, Term]
    explained_ms: float | None
    explained_half_ms: float


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A term whose intervention is not stored: why, and the command that would measure it."""

    reason: str
    command: str | None = None


_Known = Weights | _Unknown


@dataclass(frozen=True, slots=True)
class _Sum:
    """Measurements that a prediction adds up, each as often as it occurs.

    Attributes:
        parts: The sequences.
        members: Their measurements.
        state: Their cache state.
    """

    parts: tuple[Part, ...]
    members: tuple[Measurement, ...]
    state: str

    @property
    def weights(self) -> dict[str, float]:
        """As a combination."""
        return {id_: float(count) for id_, count in Counter(one.id for one in self.members).items()}

    @property
    def calls(self) -> float:
        """Calls in it: a copy has its share of that of its network; what is measured at a level is free of them."""
        return 0.0 if is_level(self.state) else math.fsum(1 / one.unroll for one in self.members)


def in_parallel(stack: Stack) -> bool:
    """Whether a stack runs independent branches of a model at once, as ONNX Runtime does on request."""
    options = dict(stack.options)
    return options.get("execution") == "parallel" and int(options.get("inter_op", "1")) > 1


def predict(
    asked: Asked, stored: Stored, interventions: Interventions, command: Callable[[str, str], str | None]
) -> Prediction:
    """Predict a model all of whose bricks are measured.

    Args:
        asked: What it is composed of.
        stored: What is known.
        interventions: The bricks of the executed graph.
        command: The command that measures bricks, given graph and cache state; given ``data`` as the graph, the one
            that examines the model's values.
    """
    total = _sum(asked.parts, asked.quotient, stored.shelf(asked.state), asked.state, parallel=asked.parallel)
    same = _executed(interventions, stored, asked.state, command, parallel=asked.parallel)
    there = _executed(interventions, stored, asked.level, command, parallel=asked.parallel)
    call = _call(stored, asked.state, command(asked.kind, asked.state))
    written = interventions.written is not None
    layout = (
        {} if asked.kind == "runtime" or written else _layout(asked, total, stored.shelf(asked.state), interventions)
    )
    fusion: _Known = {}
    if asked.kind != "runtime":
        removed = {} if isinstance(layout, _Unknown) else layout
        fusion = same if isinstance(same, _Unknown) else _minus(_minus(_net(total, call), _net(same, call)), removed)
    terms: dict[str, _Known] = {
        "bricks": total.weights,
        "fusion": fusion,
        "layout": layout,
        "overhead": call if isinstance(call, _Unknown) else combined((total.calls - 1, call)),
        "cache": {} if asked.state == asked.level else _change(there, same, call),
        "data": _data(stored, asked, command("data", asked.level)),
        "gaps": _gaps(there, interventions, stored, asked.level, command),
    }
    # The nearest to the model that is stored, plus what it lacks, as far as that is known.
    if isinstance(there, _Sum):
        once = call if isinstance(call, _Unknown) else combined((1 - there.calls, call))
        basis, lacking = there, [once, _significant(terms["data"], stored), _significant(terms["gaps"], stored)]
        kind = ("written" if written else "runtime", COLD if asked.level == COLD else MODEL)
    else:
        state = MODEL if is_level(asked.state) and asked.state == asked.level else asked.state
        basis, kind = total, ("written" if written else asked.kind, state)
        lacking = [_minus({}, terms["overhead"]), _minus({}, terms["layout"])]
        if is_level(asked.state):
            gaps = _gaps(there, interventions, stored, asked.state, command)
            lacking.append(_significant(gaps, stored))
    weights = combined((1, basis.weights), *((1, term) for term in lacking if not isinstance(term, _Unknown)))
    ms, half_ms = _value(weights, stored)
    explained_ms, explained_half_ms = None, 0.0
    if not any(isinstance(term, _Unknown) for name, term in terms.items() if name not in _OPTIONAL):
        known = [(SIGNS[name], term) for name, term in terms.items() if not isinstance(term, _Unknown)]
        explained_ms, explained_half_ms = _value(combined(*known), stored)
    return Prediction(
        ms=ms,
        half_ms=math.hypot(half_ms, NORMAL * model_error_sd(*kind) * ms),
        basis=tuple((one.median_ns, one.reference_ns) for one in basis.members),
        terms={name: _term(term, stored) for name, term in terms.items()},
        explained_ms=explained_ms,
        explained_half_ms=explained_half_ms,
    )


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
        return Term(reason=f"it cannot be told from {' and '.join(unknown)}, not known either")
    latency, half = measured
    left, reach = latency - prediction.explained_ms, math.hypot(prediction.explained_half_ms, half)
    return Term(left, (left - reach, left + reach))


def _sum(parts: tuple[Part, ...], quotient: Quotient, shelf: Shelf, state: str, *, parallel: bool) -> _Sum:
    """All sequences; where branches run at once, those on the critical path."""
    if parallel:
        path = critical_path(quotient, [shelf.bricks[part.key].median_ns for part in parts])
        parts = tuple(parts[index] for index in path.members)
    return _Sum(parts, tuple(shelf.bricks[part.key] for part in parts), state)


def _executed(
    interventions: Interventions,
    stored: Stored,
    state: str,
    command: Callable[[str, str], str | None],
    *,
    parallel: bool,
) -> _Sum | _Unknown:
    """The bricks of the executed graph in a cache state."""
    if interventions.graph is None:
        return _Unknown(interventions.reason, command("runtime", state))
    shelf = stored.shelf(state)
    keys = {part.key for part in interventions.parts}
    missing = sum(key not in shelf.bricks for key in keys)
    if missing:
        text = f"{missing} of {len(keys)} bricks of the executed graph are not measured with cache {state}"
        return _Unknown(text, command("runtime", state))
    quotient = quotient_of(interventions.graph, interventions.parts)
    return _sum(interventions.parts, quotient, shelf, state, parallel=parallel)


def _call(stored: Stored, state: str, command: str | None) -> _Known:
    """What one call costs; in cold caches that of a call in cold caches."""
    found = (stored.overheads.get(COLD) if state == COLD else None) or stored.overheads.get("hot")
    if found is None:
        return _Unknown("what a call costs is not measured", _anew(command))
    return {found.id: 1.0}


def _net(found: _Sum | _Unknown, call: _Known) -> _Known:
    """A sum without calls."""
    if isinstance(found, _Unknown) or not found.calls:
        return found if isinstance(found, _Unknown) else found.weights
    return call if isinstance(call, _Unknown) else combined((1, found.weights), (-found.calls, call))


def _minus(one: _Known, other: _Known) -> _Known:
    if isinstance(one, _Unknown):
        return one
    return other if isinstance(other, _Unknown) else combined((1, one), (-1, other))


def _change(there: _Sum | _Unknown, same: _Sum | _Unknown, call: _Known) -> _Known:
    """From one cache state to another."""
    unknown = next((one for one in (there, same) if isinstance(one, _Unknown)), None)
    return unknown or _minus(_net(there, call), _net(same, call))


def _layout(asked: Asked, total: _Sum, shelf: Shelf, interventions: Interventions) -> _Known:
    """Layout changes at the edges of bricks, but for the share that the model has at the same edges itself.

    A brick without a measurement of its inner part has no layout changes, where other bricks have one.
    """
    pairs = [
        (part.layers, shelf.bricks[part.key], shelf.inner[part.key]) for part in total.parts if part.key in shelf.inner
    ]
    if not pairs:
        return _Unknown("layout changes at the edges of bricks are not measured by themselves: fusion includes them")
    if interventions.executed is None:
        return _Unknown(f"the layouts that the model has itself are not known: {interventions.reason}")
    own = edge_layouts(interventions.executed, asked.parts)
    shares = {part.layers: share for part, share in zip(asked.parts, own, strict=True)}
    return combined(
        *((1 - shares[layers], {whole.id: 1.0, inner.id: -1.0}) for layers, whole, inner in pairs),
    )


def _data(stored: Stored, asked: Asked, command: str | None) -> _Known:
    """What the model's own values cost more than synthetic ones, over all layers that its runtime executes."""
    found = stored.data.get(asked.model)
    if found is None:
        return _Unknown("what the model's own values cost is not measured", command)
    return {found.id: 1.0}


def _significant(found: _Known, stored: Stored) -> _Known:
    """A term that is to correct a prediction: nothing where its interval includes nothing."""
    if isinstance(found, _Unknown):
        return found
    ms, half = _value(found, stored)
    return found if abs(ms) > half else {}


def _gaps(
    there: _Sum | _Unknown,
    interventions: Interventions,
    stored: Stored,
    level: str,
    command: Callable[[str, str], str | None],
) -> _Known:
    """The executor's changes from node to node; what is measured cold holds them already."""
    if level == COLD:
        return {}
    if interventions.graph is None:
        return _Unknown(f"the number of executed nodes is not known: {interventions.reason}")
    if level not in stored.gaps:
        text = f"what changing to the next node costs is not measured with cache {level}"
        return _Unknown(text, _anew(command("runtime", level)))
    parts: Iterable[Part] = there.parts if isinstance(there, _Sum) else interventions.parts
    return {stored.gaps[level].id: float(sum(len(part.layers) for part in parts))}


def _anew(command: str | None) -> str | None:
    """A run measures this beside bricks: where these are stored, they must be measured again for it."""
    return None if command is None else f"{command} --again all"


def _value(weights: Weights, stored: Stored) -> tuple[float, float]:
    """Value and half of the interval, in ms."""
    return stored.uncertainty.value_ns(weights) / _NS_PER_MS, stored.uncertainty.half_ns(weights) / _NS_PER_MS


def _term(found: _Known, stored: Stored) -> Term:
    if isinstance(found, _Unknown):
        return Term(reason=found.reason, command=found.command)
    ms, half = _value(found, stored)
    return Term(ms, (ms - half, ms + half))
