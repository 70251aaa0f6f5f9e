"""The roofline: how fast each brick could be on this machine, from its work, its traffic and measured ceilings.

A brick takes at least as long as its arithmetic takes at the machine's highest rate, and as long as its bytes take
through each level of the memory that they come through (Williams et al. 2009; by level after Ilic et al. 2014):

* hot, all bytes come from the cache that holds what the brick reads and writes, in place where that can be;
* cold, from beyond the private caches, as far as they are evicted;
* at a reuse distance, weights come from as far as that distance says, activations were written just before.

Every weight and activation counts once, however often a kernel reads it. The bound knows nothing of what a call and a
node cost; where these are longer than it, they bind. A brick that is faster than its bound is left so and said to be:
its kernel does less than is counted, as Winograd's convolutions do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...bricks.graph.footprint import parse_level
from ...bricks.graph.graph import ModelGraph
from ...bricks.operators import UNMOVED
from ...bricks.sequence import LayerSequence
from ...db import Measurement, System
from ...db.values import evicted_bytes
from ..choice import COLD
from .ceilings import Ceiling, Ceilings
from .work import Work, work_of

__all__ = ["LayerRoof", "Roofline", "memory_ms", "roofline"]

_FASTER = "faster than its bound: {}"

_FALLBACK_CACHE = 1 << 20


@dataclass(frozen=True, slots=True)
class LayerRoof:
    """One brick of a model under the roofline; what is not known is None.

    Attributes:
        key: Key of the brick.
        count: How often it occurs in the model.
        layers: Names of the layers of its first occurrence.
        op_types: Their operators.
        latency_ms: As measured.
        flops: Of one execution.
        bytes: Of one execution.
        intensity: FLOPs per byte.
        gflops_s: 10^9 FLOP/s at the measured latency.
        gbytes_s: 10^9 bytes/s, likewise.
        compute_ms: Arithmetic at the machine's highest rate.
        memory_ms: Bytes at its bandwidth.
        overhead_ms: What a node, and its share of a call, takes that does nothing.
        bound_ms: The longer of ``compute_ms`` and ``memory_ms``; 0 of a view.
        headroom: ``latency_ms / bound_ms``; None of what has no bound, or took no time that could be measured.
        bound_by: ``compute``, ``memory`` or ``overhead``: which of the three is the longest.
        note: Why it is faster than its bound, where it is; or what is not known of it.
        reuse: Footprint class, in bytes, that its weights are found in, where an iteration before has read them; else
            0. A brick has a row for each.
    """

    key: str
    count: int
    layers: tuple[str, ...]
    op_types: tuple[str, ...]
    latency_ms: float | None
    flops: int | None
    bytes: int
    intensity: float | None
    gflops_s: float | None
    gbytes_s: float | None
    compute_ms: float | None = None
    memory_ms: float | None = None
    overhead_ms: float | None = None
    bound_ms: float | None = None
    headroom: float | None = None
    bound_by: str | None = None
    note: str | None = None
    reuse: int = 0

    @property
    def total_ms(self) -> float | None:
        """Time of all its occurrences."""
        return None if self.latency_ms is None else self.count * self.latency_ms


@dataclass(frozen=True, slots=True)
class Roofline:
    """The bricks of a model under the ceilings of a machine.

    Attributes:
        layers: One per brick, that which takes most time first.
        ceilings: The ceilings.
    """

    layers: tuple[LayerRoof, ...]
    ceilings: Ceilings

    def bounds_ms(self, parts: Sequence[LayerSequence]) -> list[float] | None:
        """The bound of each sequence; None where the ceilings are not known."""
        known = {(row.key, row.reuse): row.bound_ms for row in self.layers}
        found = [known.get((part.key, part.reuse), known.get((part.key, 0))) for part in parts]
        bounds = [bound for bound in found if bound is not None]
        return bounds if len(bounds) == len(parts) else None


def roofline(
    graph: ModelGraph,
    parts: Sequence[LayerSequence],
    bricks: Mapping[str, Measurement],
    ceilings: Ceilings,
    *,
    state: str,
    system: System,
    repeated: Mapping[int, Mapping[str, Measurement]] | None = None,
) -> Roofline:
    """The bricks of a model under the ceilings of its machine.

    Args:
        graph: The graph that was cut.
        parts: Its sequences.
        bricks: What is measured of their bricks.
        ceilings: Of the same system, threads and precision.
        state: Cache state of the bricks.
        system: The machine, for the size of its caches.
        repeated: What is measured of those whose weights an iteration before has read (``stored``).
    """
    warm = repeated or {}
    places = [(part.key, part.reuse if part.key in warm.get(part.reuse, {}) else 0) for part in parts]
    counts, first = Counter(places), dict(zip(reversed(places), reversed(parts), strict=True))
    rows = []
    for key, reuse in counts:
        part = first[key, reuse]
        measured = warm[reuse][key] if reuse else bricks.get(key)
        work = work_of(graph, part, ceilings.dtype)
        row = _described(graph, part, counts[key, reuse], measured, work)
        own = measured.conditions.cache if reuse and measured is not None else state
        rows.append(replace(_bounded(row, work, measured, ceilings, own, system), reuse=reuse))
    rows.sort(key=lambda row: -(row.total_ms or 0.0))
    return Roofline(tuple(rows), ceilings)


def memory_ms(work: Work, ceilings: Ceilings, state: str, system: System) -> float | None:
    """The least time in which a brick's bytes come through the memory; None where no bandwidth is known.

    Args:
        work: Of the brick.
        ceilings: With the bandwidths.
        state: Cache state: ``hot``, ``cold``, or a level of reuse distance.
        system: The machine, for what is evicted in cold caches.
    """
    sizes = dict(system.cache_bytes)
    private = sizes.get("L2", _FALLBACK_CACHE)
    least = evicted_bytes(max(sizes.values(), default=private), private) if state == COLD else 0
    distance = parse_level(state) or 0
    near = ceilings.bandwidth(max(work.working_set, least))
    far = ceilings.bandwidth(max(work.working_set, least, distance))
    if far is None or (near is None and 2 * work.weight_bytes < work.bytes):
        return None  # most of what it moves lies in a cache whose bandwidth is not known
    # What comes from afar passes what is near as well, at the same time as the rest does.
    nearby = work.bytes / near.rate.best if near is not None else 0.0
    return max(nearby, work.weight_bytes / far.rate.best) * 1e3


def _described(
    graph: ModelGraph, part: LayerSequence, count: int, measured: Measurement | None, work: Work
) -> LayerRoof:
    """What a brick does, and how fast it was seen to."""
    layers = [graph.layers[index] for index in part.layers]
    latency_ms = None if measured is None else measured.latency_ms
    seen_ms = _positive(latency_ms)
    return LayerRoof(
        key=part.key,
        count=count,
        layers=tuple(layer.name for layer in layers),
        op_types=tuple(layer.op_type for layer in layers),
        latency_ms=latency_ms,
        flops=work.flops,
        bytes=work.bytes,
        intensity=_quotient(work.flops, work.bytes),
        gflops_s=_quotient(work.flops, seen_ms, 1e-6),
        gbytes_s=_quotient(work.bytes, seen_ms, 1e-6),
        note="its work is not known: the bound is that of its bytes" if work.flops is None else None,
    )


def _bounded(  # noqa: PLR0917  (in the order of ``roofline``)
    row: LayerRoof, work: Work, measured: Measurement | None, ceilings: Ceilings, state: str, system: System
) -> LayerRoof:
    """A brick under the ceilings."""
    moving_ms = memory_ms(work, ceilings, state, system)
    free = all(name in UNMOVED for name in row.op_types)  # its bound is 0
    if ceilings.compute is None or moving_ms is None or (work.single_flops and ceilings.rest is None):
        return row
    moving_ms = 0.0 if free else moving_ms
    computing_ms = _computing_ms(work, ceilings.compute, ceilings.rest)
    overhead_ms = _overhead_ms(measured, ceilings, state)
    sides = {"compute": computing_ms, "memory": moving_ms, "overhead": overhead_ms}
    known = {name: value for name, value in sides.items() if value}
    bound_ms = max(computing_ms or 0.0, moving_ms)
    headroom = _quotient(_positive(row.latency_ms), bound_ms)
    note = "a view: nothing need move" if free else row.note
    if headroom is not None and headroom < 1:
        note = _FASTER.format(_reason(row.op_types))
    return replace(
        row,
        compute_ms=computing_ms,
        memory_ms=moving_ms,
        overhead_ms=overhead_ms,
        bound_ms=bound_ms,
        headroom=headroom,
        bound_by=max(known, key=lambda name: known[name]) if known else None,
        note=note,
    )


def _computing_ms(work: Work, compute: Ceiling, rest: Ceiling | None) -> float | None:
    """The least time of a brick's arithmetic; None where its work is not known."""
    if work.flops is None:
        return None
    seconds = (work.flops - work.single_flops) / compute.rate.best
    return (seconds if rest is None else seconds + work.single_flops / rest.rate.best) * 1e3


def _overhead_ms(measured: Measurement | None, ceilings: Ceilings, state: str) -> float | None:
    """What a brick costs that does nothing: a node, and the share of a call that each copy has in its network."""
    if ceilings.node_ms is None or measured is None:
        return None
    if parse_level(state) is not None:  # measured free of calls
        return ceilings.node_ms
    return ceilings.node_ms + (ceilings.call_ms or 0.0) / measured.unroll


def _reason(op_types: Sequence[str]) -> str:
    """What a kernel may do less of than is counted."""
    if any("Conv" in name for name in op_types):
        return "a convolution may need fewer multiplications (Winograd, FFT), or skip the padding"
    return "its values are nearer than its cache state says, or fewer of them are read"


def _positive(latency_ms: float | None) -> float | None:
    """A latency; None where it is none: what is measured as a difference may come out at or below nothing."""
    return latency_ms if latency_ms is not None and latency_ms > 0 else None


def _quotient(one: float | None, other: float | None, scale: float = 1.0) -> float | None:
    return one / other * scale if one is not None and other else None
