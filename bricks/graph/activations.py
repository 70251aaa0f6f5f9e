"""Where an executed graph's activations lie in memory, and which of them a layer finds far from the caches.

A layer usually reads what the layer before has just written, and writes where another has just read. A skip connection
was written many layers ago, and a large result may get memory that nothing has touched for as long. Both are as cold as
weights, although a brick alone would find them warm.

Memory is assigned as ONNX Runtime plans it (``allocation_planner.cc``, ``mem_pattern_planner.h``). A view is the memory
of its input. An operator that works element by element writes over an input of its own shape that nothing else reads.
Any other result takes the buffer of its own shape and element size that was freed last; buffers of other shapes are not
taken, even of equal size. A buffer is occupied from its first to its last use, and lies in the smallest gap that is
large enough. Small values are left out: they are read from anywhere within microseconds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..layer import Layer, LayerState, Role, TensorType
from ..operators import ELEMENTWISE, VIEWS
from ..work import weights_read
from .model_graph import ModelGraph

LARGE_BYTES = 64 << 10
"""Smaller values are read from memory within a few microseconds."""

Span: TypeAlias = tuple[int, int]
"""Begin and end of some memory, in bytes."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of large activations.

    Attributes:
        buffers: Name of the buffer of each value. Inputs and outputs of the model have none: their memory is the
            caller's.
        spans: Each buffer's memory.
    """

    buffers: Mapping[str, str]
    spans: Mapping[str, Span]

    @property
    def extent(self) -> int:
        """Bytes of all memory."""
        return max((end for _, end in self.spans.values()), default=0)


@dataclass(slots=True)
class _Sharing:
    """Which values share a buffer.

    Attributes:
        kinds: Type of each buffer.
        buffers: Buffer of each value.
        waiting: Reads to come, by buffer.
        freed: Freed buffers, the last one last.
        used: First and last layer of each buffer, by position.
    """

    kinds: dict[str, TensorType] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)
    freed: list[str] = field(default_factory=list)
    used: dict[str, Span] = field(default_factory=dict)

    def chosen(self, layer: Layer, kind: TensorType, types: Mapping[str, TensorType]) -> str | None:
        """Return the buffer that a result shares; empty for the caller's memory, None for a new one.

        Args:
            layer: The layer that writes it.
            kind: Its type.
            types: Types of all values.
        """
        read = list(_reads(layer))
        if layer.op_type in VIEWS:
            return self.buffers.get(read[0], "") if read else None
        for value in read if layer.op_type in ELEMENTWISE else ():
            buffer = self.buffers.get(value, "")
            if buffer and self.waiting[buffer] == 1 and value in types and _alike(types[value], kind):
                return buffer
        for buffer in reversed(self.freed):
            if _alike(self.kinds[buffer], kind):
                self.freed.remove(buffer)
                return buffer
        return None


def plan(graph: ModelGraph) -> MemoryPlan:
    """Plan the memory of a graph whose live layers are executed in their order."""
    live = [layer for layer in graph.layers if layer.state is LayerState.LIVE]
    reads = Counter(value for layer in live for value in _reads(layer))
    sharing = _Sharing()
    for at, layer in enumerate(live):
        here: dict[str, None] = {}
        for value, kind in _large_results(layer):
            if value in graph.outputs:
                continue
            buffer = sharing.chosen(layer, kind, graph.types)
            if buffer is None:
                buffer = value
                sharing.kinds[buffer] = kind
                sharing.used[buffer] = at, at
            if buffer:
                sharing.buffers[value] = buffer
                sharing.waiting[buffer] += reads[value]
                here[buffer] = None
        for value in _reads(layer):
            if buffer := sharing.buffers.get(value, ""):
                sharing.waiting[buffer] -= 1
                here[buffer] = None
        for buffer in here:
            sharing.used[buffer] = sharing.used[buffer][0], at
            if not sharing.waiting[buffer]:
                sharing.freed.append(buffer)
    return MemoryPlan(sharing.buffers, _placed(sharing))


def _placed(sharing: _Sharing) -> dict[str, Span]:
    """Place each buffer from its first use to its last in the smallest gap."""
    spans: dict[str, Span] = {}
    held: dict[str, Span] = {}
    for buffer, (first, _) in sharing.used.items():  # in the order of their first uses
        held = {name: span for name, span in held.items() if sharing.used[name][1] >= first}
        size = sharing.kinds[buffer].nbytes
        gaps: list[Span] = []
        behind = 0
        for begin, end in sorted(held.values()):
            if begin - behind >= size:
                gaps.append((begin - behind, behind))
            behind = max(behind, end)
        offset = min(gaps)[1] if gaps else behind
        spans[buffer] = held[buffer] = offset, offset + size
    return spans


def _alike(one: TensorType, other: TensorType) -> bool:
    return one.shape == other.shape and one.nbytes == other.nbytes


@dataclass(slots=True)
class _Traces:
    """What was touched lately.

    Attributes:
        near_bytes: Memory is near if it was touched within the last so many bytes.
        touched: Begin, end and time of what was touched lately; time counts bytes.
        clock: The present time.
    """

    near_bytes: int
    touched: deque[tuple[int, int, int]] = field(default_factory=deque)
    clock: int = 0

    def touch(self, span: Span) -> None:
        self.touched.append((*span, self.clock))

    def far(self, span: Span) -> int:
        """Return how many bytes of some memory were not touched lately."""
        while self.touched and self.clock - self.touched[0][2] > self.near_bytes:
            self.touched.popleft()
        left = [span]
        for begin, end, _ in self.touched:
            left = [(low, high) for a, b in left for low, high in ((a, min(b, begin)), (max(a, end), b)) if low < high]
        return sum(high - low for low, high in left)


def far_bytes(graph: ModelGraph, near_bytes: int) -> Mapping[tuple[int, str], int]:
    """Return for layers and the large activations that they read or write how many of their bytes are far.

    Inputs and outputs of the model are not among them: their memory is the caller's.

    Args:
        graph: The graph; its live layers are executed in their order.
        near_bytes: Memory is near if it was touched within the last so many bytes.

    Returns:
        Bytes by layer index and value; values that are near as a whole are missing.
    """
    planned, traces = plan(graph), _Traces(near_bytes)
    _execute(graph, planned, traces)  # the inference before, which leaves its traces
    return _execute(graph, planned, traces)


def _execute(graph: ModelGraph, planned: MemoryPlan, traces: _Traces) -> dict[tuple[int, str], int]:
    found: dict[tuple[int, str], int] = {}
    for layer in (layer for layer in graph.layers if layer.state is LayerState.LIVE):
        read = dict.fromkeys(_reads(layer))
        results = [value for value, _ in _large_results(layer)]
        mine = {value: planned.spans[buffer] for value in (*read, *results) if (buffer := planned.buffers.get(value))}
        over = {planned.buffers.get(value) for value in read}
        for value, span in mine.items():
            if value in read or planned.buffers[value] not in over:
                found |= {(layer.index, value): far} if (far := traces.far(span)) else {}
        traces.clock += weights_read([layer])
        for value in dict.fromkeys([*read, *results]):
            if value in mine:
                traces.clock += mine[value][1] - mine[value][0]
                traces.touch(mine[value])
            else:  # the caller's memory
                kind = graph.types.get(value) or graph.inputs.get(value)
                traces.clock += 0 if kind is None else kind.nbytes
    return found


def _reads(layer: Layer) -> Iterator[str]:
    """Yield the activations that a layer reads, as often as it does."""
    return (operand.value for operand in layer.operands if operand.role is Role.ACTIVATION)


def _large_results(layer: Layer) -> Iterator[tuple[str, TensorType]]:
    """Yield the large values that a layer writes, with their types."""
    for value, kind in zip(layer.outputs, layer.output_types, strict=True):
        if value and kind is not None and kind.nbytes >= LARGE_BYTES:
            yield value, kind
