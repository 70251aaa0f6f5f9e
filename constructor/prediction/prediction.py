r"""From raw sums of bricks to a prediction of the model, and the distance between both in terms of their causes.

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
what is left unexplained is no term's doing by construction. A term whose interval includes nothing is not counted.
The prediction is *bricks* corrected by what is known of them; where the executed bricks are measured at the model's
footprint, it is their sum, one call and *data*, whichever bricks were asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...bricks.graph.footprint import is_level
from ...bricks.graph.graph import ModelGraph
from ...bricks.sequence import LayerSequence
from ..choice import COLD, MODEL
from ..composition.composition import Quotient
from ..decomposition import Interventions
from ..remedies import Task
from ..result import SIGNS, Term
from ..stored import Stored
from ..uncertainty.calibration import Method, method_error_sd
from ..uncertainty.interval import Weights, combined, with_method
from .terms import (
    Known,
    Total,
    Unknown,
    call_cost,
    change,
    data_effect,
    executed_total,
    fusion_saving,
    layout_changes,
    minus,
    significant,
    term_of,
    total_of,
    value_ms,
)

__all__ = ["Asked", "Prediction", "predict", "unexplained"]

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
        half_ms: Half of its 95 % interval, the method's own error included where that is known.
        weights: The measurements that it is composed of.
        method_sd: Relative standard deviation of the method's own error; None where it is not calibrated.
        terms: The causes, but for what is left unexplained.
        explained_ms: What they come to together; None where one that is needed is not known.
        explained_half_ms: Half of its interval, without model error.
    """

    ms: float
    half_ms: float
    weights: Weights
    method_sd: float | None
    terms: Mapping[str, Term]
    explained_ms: float | None
    explained_half_ms: float


def predict(
    asked: Asked, stored: Stored, interventions: Interventions, remedy: Callable[[str, str], Task | None]
) -> Prediction:
    """Predict a model all of whose bricks are measured.

    Args:
        asked: What it is composed of.
        stored: What is known.
        interventions: The bricks of the executed graph.
        remedy: What measures bricks, given graph and cache state; given ``data`` as the graph, what examines the
            model's values.
    """
    total = total_of(asked.parts, asked.quotient, stored.bricks_in(asked.state), asked.state, parallel=asked.parallel)
    there = executed_total(interventions, stored, asked.level, remedy, parallel=asked.parallel)
    call = call_cost(stored, asked.state, remedy(asked.kind, asked.state))
    written = interventions.written is not None
    layout: Known = {}
    if asked.kind != "runtime" and not written:
        layout = layout_changes(total, stored.bricks_in(asked.state), interventions, asked.parts)
    fusion: Known = {}
    cache: Known = {}
    if asked.state != asked.level:
        same = executed_total(interventions, stored, asked.state, remedy, parallel=asked.parallel)
        cache = change(there, same, call)
    if asked.kind == "source" and not written:
        windows = remedy("fusion", asked.state)
        fusion = fusion_saving(stored.bricks_in(asked.state), interventions, asked.parts, windows)
    terms: dict[str, Known] = {
        "bricks": total.weights,
        "fusion": fusion,
        "layout": layout,
        "overhead": call if isinstance(call, Unknown) else combined((total.calls - 1, call)),
        "cache": cache,
        "data": data_effect(stored, asked.model, remedy("data", asked.level)),
    }
    counted = {name: term if name in _ALWAYS else significant(term, stored) for name, term in terms.items()}
    # The nearest to the model that is stored, plus what it lacks, as far as that is known.
    if isinstance(there, Total):
        once = call if isinstance(call, Unknown) else combined((1 - there.calls, call))
        basis, lacking = there, [once, counted["data"]]
    else:
        basis = total
        lacking = [*(minus({}, counted[name]) for name in ("overhead", "fusion", "layout")), counted["data"]]
    weights = combined((1, basis.weights), *((1, term) for term in lacking if not isinstance(term, Unknown)))
    ms, half_ms = value_ms(weights, stored)
    method_sd = _method_sd(asked, executed=basis is there, written=written)
    explained_ms, explained_half_ms = None, 0.0
    if not any(isinstance(term, Unknown) for name, term in terms.items() if name not in _OPTIONAL):
        known = [(SIGNS[name], term) for name, term in counted.items() if not isinstance(term, Unknown)]
        explained_ms, explained_half_ms = value_ms(combined(*known), stored)
    return Prediction(
        ms=ms,
        half_ms=with_method(half_ms, method_sd, value=ms),
        weights=weights,
        method_sd=method_sd,
        terms={name: term_of(term, stored, counted=term == counted[name]) for name, term in terms.items()},
        explained_ms=explained_ms,
        explained_half_ms=explained_half_ms,
    )


def _method_sd(asked: Asked, *, executed: bool, written: bool) -> float | None:
    """Error of the method, of the bricks that were asked for or of those of the graph that is executed.

    Args:
        asked: What was asked for.
        executed: Whether the latter, in the state that the model is in.
        written: Whether that is the model's own graph.
    """
    method = asked.method
    if method is None:
        return None
    if executed:
        method = replace(method, cache=COLD if asked.level == COLD else MODEL)
        if asked.kind != "runtime" and not written:  # layer by layer, whatever was asked for
            method = replace(method, graph="runtime", granularity=1)
    elif is_level(asked.state) and asked.state == asked.level:
        method = replace(method, cache=MODEL)
    return method_error_sd(method)


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
