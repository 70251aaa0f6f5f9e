"""What an estimate adds up, and each cause of its distance from the model, as combinations of measurements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ...bricks.cutting.fused import edge_layouts
from ...bricks.graph.footprint import is_level
from ...bricks.sequence import LayerSequence
from ...db import Measurement
from ..choice import COLD
from ..composition.composition import Quotient, critical_path
from ..decomposition import Interventions, quotient_of
from ..remedies import Task
from ..result import Term
from ..stored import BrickMeasurements, Stored
from ..uncertainty.interval import Weights, combined

__all__ = [
    "Known",
    "Total",
    "Unknown",
    "call_cost",
    "change",
    "data_effect",
    "executed_total",
    "fusion_saving",
    "host_of",
    "layout_changes",
    "minus",
    "net",
    "significant",
    "term_of",
    "total_of",
    "value_ms",
]

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
        return {id_: float(count) for id_, count in Counter(one.id for one in self.members).items()}

    @property
    def calls(self) -> float:
        """Calls in it: a copy has its share of that of its network; what is measured at a level is free of them."""
        return 0.0 if is_level(self.state) else math.fsum(1 / one.unroll for one in self.members)


def total_of(
    parts: tuple[LayerSequence, ...], quotient: Quotient, bricks: BrickMeasurements, state: str, *, parallel: bool
) -> Total:
    """All sequences; where branches run at once, those on the critical path.

    Where a processor enqueues for a device, both work at the same time: what the slower of the two takes counts.
    """
    if parallel:
        path = critical_path(quotient, [bricks.latency_ns(part) for part in parts])
        parts = tuple(parts[index] for index in path.members)
    members = tuple(one for part in parts if (one := bricks.of(part)) is not None)
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
    return math.fsum(one.latency_ns for one in measurements)


def executed_total(
    interventions: Interventions,
    stored: Stored,
    state: str,
    remedy: Callable[[str, str], Task | None],
    *,
    parallel: bool,
) -> Total | Unknown:
    """The bricks of the executed graph in a cache state."""
    if interventions.graph is None:
        return Unknown(interventions.reason, remedy("runtime", state))
    bricks = stored.bricks_in(state)
    keys = {part.key for part in interventions.parts}
    missing = len({part.key for part in interventions.parts if not bricks.of(part)})
    if missing:
        text = f"{missing} of {len(keys)} bricks of the executed graph are not measured with cache {state}"
        return Unknown(text, remedy("runtime", state))
    quotient = quotient_of(interventions.graph, interventions.parts)
    return total_of(interventions.parts, quotient, bricks, state, parallel=parallel)


def call_cost(stored: Stored, state: str, remedy: Task | None) -> Known:
    """What one call costs; in cold caches that of a call in cold caches."""
    found = (stored.overheads.get(COLD) if state == COLD else None) or stored.overheads.get("hot")
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


def minus(one: Known, other: Known) -> Known:
    """One less another; unknown where either is."""
    if isinstance(one, Unknown):
        return one
    return other if isinstance(other, Unknown) else combined((1, one), (-1, other))


def change(there: Total | Unknown, same: Total | Unknown, call: Known) -> Known:
    """From one cache state to another."""
    unknown = next((one for one in (there, same) if isinstance(one, Unknown)), None)
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


def data_effect(stored: Stored, model: str, remedy: Task | None) -> Known:
    """What the model's own values cost more than synthetic ones, over all layers that its runtime executes."""
    found = stored.data.get(model)
    if found is None:
        return Unknown("what the model's own values cost is not measured", remedy)
    return {found.id: 1.0}


def significant(found: Known, stored: Stored) -> Known:
    """A term that is to correct a prediction: nothing where its interval includes nothing."""
    if isinstance(found, Unknown):
        return found
    ms, half = value_ms(found, stored)
    return found if abs(ms) > half else {}


def value_ms(weights: Weights, stored: Stored) -> tuple[float, float]:
    """Value and half of the interval, in ms."""
    return stored.uncertainty.value_ns(weights) / _NS_PER_MS, stored.uncertainty.half_ns(weights) / _NS_PER_MS


def term_of(found: Known, stored: Stored, *, counted: bool) -> Term:
    """As it is reported.

    Args:
        found: The term.
        stored: What is known.
        counted: Whether it is part of the sums.
    """
    if isinstance(found, Unknown):
        return Term(reason=found.reason, remedy=found.remedy)
    ms, half = value_ms(found, stored)
    return Term(ms, (ms - half, ms + half), counted=counted)
