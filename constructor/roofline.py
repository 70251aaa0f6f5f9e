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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..bricks.footprint import parse_level
from ..bricks.graph import ModelGraph
from ..bricks.layer import Layer, Role
from ..bricks.sequence import Sequence as Part
from ..bricks.tensor import TensorType
from ..db import Measurement, System
from ..generator.timing import evicted_bytes
from .ceilings import Ceilings
from .selection import COLD

__all__ = ["LayerRoof", "Roofline", "Work", "memory_ms", "roofline", "work_of"]

_SELECTING = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
"""Operators that read of their first input no more than they write."""

_VIEWS = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that a runtime may do without moving anything: a sequence of nothing else has a bound of 0."""

_NARROWER = {"float16": 2, "bfloat16": 2, "int8": 4}
"""How many times narrower than float32 a value is in other precisions."""

_FASTER = "faster than its bound: {}"

_FALLBACK_CACHE = 1 << 20


@dataclass(frozen=True, slots=True)
class Work:
    """What one execution of a sequence computes and moves.

    Attributes:
        flops: As ``Cost.flops``; None where that of a layer is not known.
        weight_bytes: Weights that it reads.
        read_bytes: Activations that it reads from outside.
        written_bytes: Activations that it exposes.
    """

    flops: int | None
    weight_bytes: int
    read_bytes: int
    written_bytes: int

    @property
    def bytes(self) -> int:
        """All bytes, each once."""
        return self.weight_bytes + self.read_bytes + self.written_bytes

    @property
    def working_set(self) -> int:
        """The least memory that it takes: a runtime may write results in the place of what they are made of."""
        return self.weight_bytes + max(self.read_bytes, self.written_bytes)


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

    def bounds_ms(self, parts: Sequence[Part]) -> list[float] | None:
        """The bound of each sequence; None where the ceilings are not known."""
        known = {row.key: row.bound_ms for row in self.layers}
        bounds = [bound for part in parts if (bound := known[part.key]) is not None]
        return bounds if len(bounds) == len(parts) else None


def work_of(graph: ModelGraph, part: Part, dtype: str = "float32") -> Work:
    """What a sequence computes and moves.

    An operator that selects reads of what it selects from no more than it writes. Values of type float count as wide
    as the precision that they are computed in.
    """
    layers = [graph.layers[index] for index in part.layers]
    flops: int | None = 0
    for layer in layers:
        flops = None if flops is None or layer.cost is None else flops + layer.cost.flops
    reads: dict[str, int] = {}
    weights = set[str]()
    for layer in layers:
        for slot, operand in enumerate(layer.operands):
            if operand.type is not None and operand.role in {Role.ACTIVATION, Role.WEIGHT}:
                moved = _moved(layer, slot, operand.type, dtype)
                reads[operand.value] = max(moved, reads.get(operand.value, 0))
                if operand.role is Role.WEIGHT:
                    weights.add(operand.value)
    made = {value for layer in layers for value in layer.outputs}
    types = {value: kind for layer in layers for value, kind in zip(layer.outputs, layer.output_types, strict=True)}
    written = sum(_nbytes(kind, dtype) for value in part.outputs if (kind := types.get(value)) is not None)
    read = sum(size for value, size in reads.items() if value not in made and value not in weights)
    return Work(flops, sum(reads[value] for value in weights), read, written)


def roofline(
    graph: ModelGraph,
    parts: Sequence[Part],
    bricks: Mapping[str, Measurement],
    ceilings: Ceilings,
    *,
    state: str,
    system: System,
) -> Roofline:
    """The bricks of a model under the ceilings of its machine.

    Args:
        graph: The graph that was cut.
        parts: Its sequences.
        bricks: What is measured of their bricks.
        ceilings: Of the same system, threads and precision.
        state: Cache state of the bricks.
        system: The machine, for the size of its caches.
    """
    counts: dict[str, int] = {}
    first: dict[str, Part] = {}
    for part in parts:
        counts[part.key] = counts.get(part.key, 0) + 1
        first.setdefault(part.key, part)
    rows = []
    for key, part in first.items():
        row = _described(graph, part, counts[key], bricks.get(key), ceilings.dtype)
        rows.append(_bounded(row, work_of(graph, part, ceilings.dtype), bricks.get(key), ceilings, state, system))
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
    if near is None or far is None:
        return None
    # What comes from afar passes what is near as well, at the same time as the rest does.
    return max(work.bytes / near.rate.best, work.weight_bytes / far.rate.best) * 1e3


def _described(graph: ModelGraph, part: Part, count: int, measured: Measurement | None, dtype: str) -> LayerRoof:
    """What a brick does, and how fast it was seen to."""
    layers = [graph.layers[index] for index in part.layers]
    work = work_of(graph, part, dtype)
    latency_ms = None if measured is None else measured.median_ns / 1e6
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
    free = all(name in _VIEWS for name in row.op_types)
    if ceilings.compute is None or moving_ms is None:
        return row
    moving_ms = 0.0 if free else moving_ms
    computing_ms = None if work.flops is None else work.flops / ceilings.compute.rate.best * 1e3
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


def _moved(layer: Layer, slot: int, kind: TensorType, dtype: str) -> int:
    """Bytes that a layer reads of an input."""
    size = _nbytes(kind, dtype)
    if slot or layer.domain or layer.op_type not in _SELECTING:
        return size
    return min(size, sum(_nbytes(made, dtype) for made in layer.output_types if made is not None))


def _nbytes(kind: TensorType, dtype: str) -> int:
    return kind.nbytes // _NARROWER.get(dtype, 1) if kind.dtype == "float" else kind.nbytes


def _positive(latency_ms: float | None) -> float | None:
    """A latency; None where it is none: what is measured as a difference may come out at or below nothing."""
    return latency_ms if latency_ms is not None and latency_ms > 0 else None


def _quotient(one: float | None, other: float | None, scale: float = 1.0) -> float | None:
    return one / other * scale if one is not None and other else None
