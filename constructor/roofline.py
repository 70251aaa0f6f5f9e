"""The roofline: the least latency of each brick on this machine, from its work, its traffic and measured ceilings.

A brick takes at least the time of its arithmetic at the machine's highest rate, and the time of its bytes through each
level of memory on their way (Williams et al. 2009; by level after Ilic et al. 2014):

* hot: all bytes come from the cache that contains the brick's inputs and outputs;
* cold: evicted bytes come from beyond the private caches;
* at a reuse distance: weights come from the memory level of this distance; activations were just written.

Every weight and activation counts once, even if a kernel reads it repeatedly. The bound excludes the cost of a call and
a node; if these are longer, ``bound_by`` is ``overhead``. A brick faster than its bound keeps its latency and has a
note: its kernel does less work than counted, for example a Winograd convolution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..bricks.graph.footprint import has_calls, parse_level
from ..bricks.graph.model_graph import ModelGraph
from ..bricks.layer import Layer, LayerSequence, Role, TensorType
from ..bricks.operators import PRODUCTS, UNMOVED
from ..bricks.reference import CHAIN, OVERHEAD
from ..bricks.work import selects
from ..db import Measurement, Stack, System
from ..db.samples.rates import (
    STREAM_SIZES,
    Rate,
    ceiling_names,
    ceiling_work,
    gemm_sizes_on,
    level_of_cache,
    node_ns,
    rate_of,
)
from ..db.values import NATIVE, evicted_bytes
from .choice import COLD, Choice, narrows
from .measurements import BrickMeasurements


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The best rate of some networks.

    Attributes:
        rate: FLOP/s or bytes/s.
        network: Name of the built-in network.
        backend: The runtime.
        stack: Key of its stack.
    """

    rate: Rate
    network: str
    backend: str
    stack: str


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The highest rates of a system with a number of threads in a precision.

    Attributes:
        dtype: The precision of ``compute``.
        compute: FLOP/s; None if not measured in this precision.
        bandwidths: Bytes/s by working set, ascending; a larger set has no higher bandwidth.
        levels: Largest working set of each cache and of ``memory``, nearest first.
        call_ms: Time of an empty call in the estimate's runtime, if known.
        node_ms: Time of a minimal node in this runtime, if known.
        single: FLOP/s of float32, if ``dtype`` is another and it was measured.
        least: Bytes of the smallest working set with a known bandwidth (caches of a GPU are not measured).
    """

    dtype: str = NATIVE
    compute: Ceiling | None = None
    bandwidths: tuple[tuple[int, Ceiling], ...] = ()
    levels: tuple[tuple[str, Ceiling], ...] = ()
    call_ms: float | None = None
    node_ms: float | None = None
    single: Ceiling | None = None
    least: int = 0

    @property
    def rest(self) -> Ceiling | None:
        """FLOP/s of float32 work under another precision."""
        return self.compute if self.dtype == NATIVE else self.single

    @property
    def known(self) -> bool:
        """True if they are sufficient for bounds."""
        return self.compute is not None and bool(self.bandwidths)

    def bandwidth(self, working_set: int) -> Ceiling | None:
        """Return the bandwidth of the next larger measured working set, else of the largest."""
        if not self.bandwidths or working_set < self.least:
            return None
        return next((ceiling for size, ceiling in self.bandwidths if size >= working_set), self.bandwidths[-1][1])


def networks_of(choice: Choice) -> list[str]:
    """Return the names of the built-in networks that measure the ceilings of a combination."""
    single = () if choice.conditions.dtype == NATIVE else _products(NATIVE, choice)
    return [OVERHEAD, CHAIN, *_products(choice.conditions.dtype, choice), *single, *_streams()]


def ceilings_of(
    references: Mapping[tuple[str, str], Mapping[str, Measurement]], stacks: Mapping[str, Stack], choice: Choice
) -> Ceilings:
    """Return the ceilings of a combination's system, device, threads and precision, over all stacks.

    Args:
        references: Measurements of built-in networks by stack, precision and name.
        stacks: The stacks, by key.
        choice: The combination; the costs of a call and a node are its own stack's.
    """
    dtype, device = choice.conditions.dtype, choice.stack.device
    backends = {key: stack.backend for key, stack in stacks.items() if narrows(stack) == narrows(choice.stack)}
    of_stack = references.get((choice.stack_key, dtype), {})
    call, node = of_stack.get(OVERHEAD), node_ns(of_stack.get(CHAIN), of_stack.get(OVERHEAD))
    bandwidths = _falling(_rates(references, backends, _streams(), NATIVE, device))
    levels: dict[str, Ceiling] = {}
    for size, ceiling in bandwidths:
        levels.setdefault(level_of_cache(size, choice.system, choice.conditions.threads, device), ceiling)
    single = () if dtype == NATIVE else _products(NATIVE, choice)
    return Ceilings(
        dtype,
        compute=_best(_rates(references, backends, _products(dtype, choice), dtype, device)),
        bandwidths=bandwidths,
        levels=tuple(levels.items()),
        call_ms=None if call is None else call.latency_ms,
        node_ms=None if node is None else node / 1e6,
        single=_best(_rates(references, backends, single, NATIVE, device)),
        least=bandwidths[0][0] // 2 if bandwidths and device != "cpu" else 0,
    )


def _products(dtype: str, choice: Choice) -> list[str]:
    return ceiling_names((), dtype=dtype, gemm_sizes=gemm_sizes_on(choice.stack.device))


def _streams() -> list[str]:
    return ceiling_names(STREAM_SIZES, gemm_sizes=())


def _rates(
    references: Mapping[tuple[str, str], Mapping[str, Measurement]],
    backends: Mapping[str, str],
    names: Sequence[str],
    dtype: str,
    device: str,
) -> list[Ceiling]:
    """Return the rates of all stacks with some networks."""
    rates = []
    for (stack, precision), measured in references.items():
        for name in names if precision == dtype and stack in backends else ():
            rate = rate_of(name, measured[name], measured.get(OVERHEAD), device) if name in measured else None
            if rate is not None:
                rates.append(Ceiling(rate, name, backends[stack], stack))
    return rates


def _best(ceilings: Iterable[Ceiling]) -> Ceiling | None:
    return max(ceilings, key=lambda ceiling: ceiling.rate.best, default=None)


def _falling(ceilings: Sequence[Ceiling]) -> tuple[tuple[int, Ceiling], ...]:
    """Return the best rate of each working set and all larger ones: a nearer memory is never slower."""
    sizes = sorted({ceiling_work(ceiling.network)[1] for ceiling in ceilings}, reverse=True)
    steps: list[tuple[int, Ceiling]] = []
    for size in sizes:
        here = [ceiling for ceiling in ceilings if ceiling_work(ceiling.network)[1] == size]
        best = _best([*here, *(step for _, step in steps[-1:])])
        if best is not None:
            steps.append((size, best))
    return tuple(reversed(steps))


# Work: arithmetic and traffic of one execution of a sequence.


_NARROWER = {"float16": 2, "bfloat16": 2}
"""Width of float32 divided by the width of other precisions."""

_INT8 = "int8"
"""A precision of products with constant weights only; only these weights are narrow."""

_NARROWER_WEIGHTS = 4

_SHORT_INTEGERS = frozenset({"int8", "uint8", "int4", "uint4"})
"""Types of operands whose products have a rate of their own."""


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic and traffic of one execution of a sequence.

    Attributes:
        flops: As ``Cost.flops``; None if one layer's is unknown.
        weight_bytes: Weights read.
        read_bytes: Activations read from outside.
        written_bytes: Exposed activations.
        single_flops: Part of ``flops`` in float32 under another precision.
        integer_flops: Part of ``flops`` on integers of at most 8 bits, whose highest rate is not measured: no bound.
    """

    flops: int | None
    weight_bytes: int
    read_bytes: int
    written_bytes: int
    single_flops: int = 0
    integer_flops: int = 0

    @property
    def bytes(self) -> int:
        """Sum of all bytes."""
        return self.weight_bytes + self.read_bytes + self.written_bytes

    @property
    def working_set(self) -> int:
        """Least memory in bytes: a runtime may overwrite inputs with results."""
        return self.weight_bytes + max(self.read_bytes, self.written_bytes)


def work_of(graph: ModelGraph, part: LayerSequence, dtype: str = "float32") -> Work:
    """Return the arithmetic and traffic of a sequence.

    A selecting operator (Gather, Slice) reads no more than it writes. Float values have the width of the precision; in
    int8 only the weights of matrix products are narrow.
    """
    layers = [graph.layers[index] for index in part.layers]
    flops: int | None = 0
    single_flops = integer_flops = 0
    for layer in layers:
        flops = None if flops is None or layer.cost is None else flops + layer.cost.flops
        if layer.cost is not None and layer.cost.macs and _on_integers(layer):
            integer_flops += layer.cost.flops
        elif layer.cost is not None and dtype == _INT8 and not _quantised(layer):
            single_flops += layer.cost.flops
    reads: dict[str, int] = {}
    weights = set[str]()
    for layer in layers:
        for slot, operand in enumerate(layer.operands):
            if operand.type is not None and operand.role in {Role.ACTIVATION, Role.WEIGHT}:
                moved = _moved(layer, slot, operand.type, dtype)
                reads[operand.value] = max(moved, reads.get(operand.value, 0))
                if operand.role is Role.WEIGHT:
                    weights.add(operand.value)
    produced = {value for layer in layers for value in layer.outputs}
    types = {value: kind for layer in layers for value, kind in zip(layer.outputs, layer.output_types, strict=True)}
    written = sum(_nbytes(kind, dtype) for value in part.outputs if (kind := types.get(value)) is not None)
    read = sum(size for value, size in reads.items() if value not in produced and value not in weights)
    weight_bytes = sum(reads[value] for value in weights)
    return Work(flops, weight_bytes, read, written, single_flops, integer_flops)


def _moved(layer: Layer, slot: int, kind: TensorType, dtype: str) -> int:
    """Return the bytes of an input that a layer reads."""
    size = _nbytes(kind, dtype)
    if slot == 1 and dtype == _INT8 and _quantised(layer):
        return size // _NARROWER_WEIGHTS
    if not selects(layer, slot):
        return size
    return min(size, sum(_nbytes(output, dtype) for output in layer.output_types if output is not None))


def _on_integers(layer: Layer) -> bool:
    """Return True for a product of integers of at most 8 bits."""
    return any(operand.type is not None and operand.type.dtype in _SHORT_INTEGERS for operand in layer.operands)


def _quantised(layer: Layer) -> bool:
    """Return True for a product with constant float weights, the only int8 work."""
    if layer.domain or layer.op_type not in PRODUCTS or len(layer.operands) < 2:
        return False
    second = layer.operands[1]
    return second.role is Role.WEIGHT and second.type is not None and second.type.dtype == "float"


def _nbytes(kind: TensorType, dtype: str) -> int:
    return kind.nbytes // _NARROWER.get(dtype, 1) if kind.dtype == "float" else kind.nbytes


INTEGERS = "the machine's rate of arithmetic on integers of at most 8 bits is not measured"
"""Why products of integers have no bound."""

_FASTER = "faster than its bound: {}"

_FALLBACK_CACHE = 1 << 20


@dataclass(frozen=True, slots=True)
class LayerRoof:
    """One brick of a model under the roofline; unknown values are None.

    Attributes:
        key: Key of the brick.
        count: Occurrences in the model.
        layers: Names of the layers of its first occurrence.
        op_types: Their operators.
        latency_ms: Measured latency.
        flops: FLOPs of one execution.
        bytes: Bytes of one execution.
        intensity: FLOPs per byte.
        gflops_s: 10^9 FLOP/s at the measured latency.
        gbytes_s: 10^9 bytes/s at the measured latency.
        compute_ms: Time of the arithmetic at the machine's highest rate.
        memory_ms: Time of the bytes at its bandwidth.
        overhead_ms: Time of an empty node and its share of a call.
        bound_ms: The longer of ``compute_ms`` and ``memory_ms``; 0 for a view.
        headroom: ``latency_ms / bound_ms``; None without a bound or a positive latency.
        bound_by: The longest of the three: ``compute``, ``memory`` or ``overhead``.
        note: Reason for a latency below the bound, or for missing values.
        reuse: Footprint class in bytes of weights read by the previous iteration, else 0. A brick has one row per
            class.
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
        """Latency of all occurrences."""
        return None if self.latency_ms is None else self.count * self.latency_ms


@dataclass(frozen=True, slots=True)
class Roofline:
    """The bricks of a model under the ceilings of a machine."""

    layers: tuple[LayerRoof, ...]
    ceilings: Ceilings

    def bounds_ms(self, parts: Sequence[LayerSequence]) -> list[float] | None:
        """Return the bound of each sequence; None without ceilings."""
        by_brick = {(row.key, row.reuse): row.bound_ms for row in self.layers}
        of_parts = [by_brick.get((part.key, part.reuse), by_brick.get((part.key, 0))) for part in parts]
        bounds = [bound for bound in of_parts if bound is not None]
        return bounds if len(bounds) == len(parts) else None


def roofline(
    graph: ModelGraph,
    parts: Sequence[LayerSequence],
    bricks: BrickMeasurements,
    ceilings: Ceilings,
    *,
    state: str,
    system: System,
) -> Roofline:
    """Return the bricks of a model under the ceilings of its machine.

    Args:
        graph: The decomposed graph.
        parts: Its sequences.
        bricks: Measurements of their bricks.
        ceilings: Ceilings of the same system, threads and precision.
        state: Cache state of the bricks.
        system: The machine, for the size of its caches.
    """
    warm = bricks.repeated
    places = [(part.key, part.reuse if part.key in warm.get(part.reuse, {}) else 0) for part in parts]
    counts, first = Counter(places), dict(zip(reversed(places), reversed(parts), strict=True))
    rows = []
    for key, reuse in counts:
        part = first[key, reuse]
        measured = warm[reuse][key] if reuse else bricks.latest.get(key)
        work = work_of(graph, part, ceilings.dtype)
        row = _described(graph, part, counts[key, reuse], measured, work)
        cache = measured.conditions.cache if reuse and measured is not None else state
        moving_ms, overhead_ms = memory_ms(work, ceilings, cache, system), _overhead_ms(measured, ceilings, cache)
        rows.append(replace(_bounded(row, work, ceilings, moving_ms, overhead_ms), reuse=reuse))
    rows.sort(key=lambda row: -(row.total_ms or 0.0))
    return Roofline(tuple(rows), ceilings)


def memory_ms(work: Work, ceilings: Ceilings, state: str, system: System) -> float | None:
    """Return the least time of a brick's bytes through memory; None without a known bandwidth.

    Args:
        work: Work of the brick.
        ceilings: Ceilings with bandwidths.
        state: Cache state: ``hot``, ``cold``, or a level of reuse distance.
        system: The machine; its caches decide the evicted bytes.
    """
    sizes = dict(system.cache_bytes)
    private = sizes.get("L2", _FALLBACK_CACHE)
    least = evicted_bytes(max(sizes.values(), default=private), private) if state == COLD else 0
    distance = parse_level(state) or 0
    near = ceilings.bandwidth(max(work.working_set, least))
    far = ceilings.bandwidth(max(work.working_set, least, distance))
    if far is None or (near is None and 2 * work.weight_bytes < work.bytes):
        return None  # most of its bytes are in a cache with unknown bandwidth
    # Bytes from a far memory pass the near caches too, concurrently with the rest.
    nearby = work.bytes / near.rate.best if near is not None else 0.0
    return max(nearby, work.weight_bytes / far.rate.best) * 1e3


def _described(
    graph: ModelGraph, part: LayerSequence, count: int, measured: Measurement | None, work: Work
) -> LayerRoof:
    """Return the work and the achieved rates of a brick."""
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
        note=_note_of(work),
    )


def _note_of(work: Work) -> str | None:
    """Return why there is no bound, or why it is that of bytes alone."""
    if work.integer_flops:
        return INTEGERS
    return "its work is not known: the bound is that of its bytes" if work.flops is None else None


def _bounded(
    row: LayerRoof, work: Work, ceilings: Ceilings, moving_ms: float | None, overhead_ms: float | None
) -> LayerRoof:
    """Return the row of a brick with its bounds; without, if the ceilings that it needs are unknown."""
    free = all(name in UNMOVED for name in row.op_types)  # its bound is 0
    lacks_rate = work.integer_flops or (work.single_flops and ceilings.rest is None)
    if ceilings.compute is None or moving_ms is None or lacks_rate:
        return row
    moving_ms = 0.0 if free else moving_ms
    computing_ms = _computing_ms(work, ceilings.compute, ceilings.rest)
    sides = {"compute": computing_ms, "memory": moving_ms, "overhead": overhead_ms}
    times_ms = {name: value for name, value in sides.items() if value}
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
        bound_by=max(times_ms, key=lambda name: times_ms[name]) if times_ms else None,
        note=note,
    )


def _computing_ms(work: Work, compute: Ceiling, rest: Ceiling | None) -> float | None:
    """Return the least time of a brick's arithmetic; None if its work is unknown."""
    if work.flops is None:
        return None
    seconds = (work.flops - work.single_flops) / compute.rate.best
    return (seconds if rest is None else seconds + work.single_flops / rest.rate.best) * 1e3


def _overhead_ms(measured: Measurement | None, ceilings: Ceilings, state: str) -> float | None:
    """Return the cost of an empty brick: a node and its share of a call."""
    if ceilings.node_ms is None or measured is None:
        return None
    if not has_calls(state):
        return ceilings.node_ms
    return ceilings.node_ms + (ceilings.call_ms or 0.0) / measured.unroll


def _reason(op_types: Sequence[str]) -> str:
    """Return how a kernel may do less work than counted."""
    if any("Conv" in name for name in op_types):
        return "a convolution may need fewer multiplications (Winograd, FFT), or skip the padding"
    return "its values are nearer than its cache state says, or fewer of them are read"


def _positive(latency_ms: float | None) -> float | None:
    """Return a positive latency, else None: a measured difference can be zero or negative."""
    return latency_ms if latency_ms is not None and latency_ms > 0 else None


def _quotient(dividend: float | None, divisor: float | None, scale: float = 1.0) -> float | None:
    return dividend / divisor * scale if dividend is not None and divisor else None
