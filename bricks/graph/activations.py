"""Which activations a layer finds far from the caches: where they lie, and how long ago that memory was touched.

A layer usually reads what the layer before has just written, and writes where another has just read. A skip connection
was written many layers ago, and a large result may get memory that nothing has touched for as long. Both are as cold as
weights, although a brick alone would find them warm.

Memory is assigned as ONNX Runtime plans it: an operator that works element by element writes over an input that nothing
reads any more; a view is the memory of its input; other results get memory of their size that was freed last, else the
smallest gap that is large enough. Small values are left out: they are read from anywhere within microseconds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..layer import Layer, LayerState, Role
from ..operators import ELEMENTWISE, VIEWS
from ..work import weights_read
from .model_graph import ModelGraph

LARGE_BYTES = 64 << 10
"""Smaller values are read from memory within a few microseconds."""


@dataclass(slots=True)
class _Arena:
    """The memory of activations, by offset.

    Attributes:
        held: Offset and size of each buffer in use.
        freed: Offsets and sizes of freed buffers, the last one last.
        touched: Begin, end and time of what was touched lately; time counts bytes.
        clock: The present time.
        near_bytes: Memory is near if it was touched within the last so many bytes.
    """

    near_bytes: int
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    freed: list[tuple[int, int]] = field(default_factory=list)
    touched: deque[tuple[int, int, int]] = field(default_factory=deque)
    clock: int = 0

    def place(self, name: str, size: int) -> None:
        spans = sorted((offset, offset + length) for offset, length in self.held.values())
        self.held[name] = self._offset(size, spans), size

    def _offset(self, size: int, spans: list[tuple[int, int]]) -> int:
        for number in reversed(range(len(self.freed))):
            offset, length = self.freed[number]
            if length == size and not any(begin < offset + size and offset < end for begin, end in spans):
                del self.freed[number]
                return offset
        best: tuple[int, int] | None = None
        behind = 0
        for begin, end in spans:
            if begin - behind >= size and (best is None or begin - behind < best[0]):
                best = begin - behind, behind
            behind = max(behind, end)
        return behind if best is None else best[1]

    def free(self, name: str) -> None:
        self.freed.append(self.held.pop(name))

    def touch(self, name: str) -> None:
        offset, size = self.held[name]
        self.touched.append((offset, offset + size, self.clock))

    def far(self, name: str) -> int:
        """Return how many bytes of a buffer were not touched lately."""
        while self.touched and self.clock - self.touched[0][2] > self.near_bytes:
            self.touched.popleft()
        offset, size = self.held[name]
        left = [(offset, offset + size)]
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
    live = [layer for layer in graph.layers if layer.state is LayerState.LIVE]
    arena = _Arena(near_bytes)
    _execute(graph, live, arena)  # the inference before, which leaves its traces
    arena.held.clear()
    arena.freed.clear()
    return _execute(graph, live, arena)


def _execute(graph: ModelGraph, live: Sequence[Layer], arena: _Arena) -> dict[tuple[int, str], int]:
    waiting = Counter(value for layer in live for value in _reads(layer))  # reads to come, by buffer
    buffers: dict[str, str] = {}
    found: dict[tuple[int, str], int] = {}
    for layer in live:
        read = {value: buffers[value] for value in _reads(layer) if value in buffers}
        found |= {(layer.index, value): far for value, buffer in read.items() if (far := arena.far(buffer))}
        for buffer in read.values():
            waiting[buffer] -= 1
        results = dict(_large_results(layer))
        for value, size in results.items():
            if value in graph.outputs:
                continue
            buffer = next((one for one in read.values() if _takes_over(layer, size, arena.held[one], waiting[one])), "")
            if buffer:
                buffers[value] = buffer
                waiting[buffer] += waiting.pop(value, 0)
            elif layer.op_type not in VIEWS:  # else a view of an input of the model
                buffers[value] = value
                arena.place(value, size)
                found |= {(layer.index, value): far} if (far := arena.far(value)) else {}
        arena.clock += weights_read([layer])
        for value in dict.fromkeys([*_reads(layer), *results]):
            if (buffer := buffers.get(value, "")) in arena.held:
                arena.clock += arena.held[buffer][1]
                arena.touch(buffer)
            else:  # the caller's memory
                kind = graph.types.get(value) or graph.inputs.get(value)
                arena.clock += 0 if kind is None else kind.nbytes
        for buffer in dict.fromkeys(buffers[value] for value in (*read, *results) if value in buffers):
            if waiting[buffer] <= 0:
                arena.free(buffer)
    return found


def _reads(layer: Layer) -> dict[str, None]:
    """Return the activations that a layer reads, each once."""
    return dict.fromkeys(operand.value for operand in layer.operands if operand.role is Role.ACTIVATION)


def _large_results(layer: Layer) -> Iterator[tuple[str, int]]:
    """Yield the large values that a layer writes, with their bytes."""
    for value, kind in zip(layer.outputs, layer.output_types, strict=True):
        if value and kind is not None and kind.nbytes >= LARGE_BYTES:
            yield value, kind.nbytes


def _takes_over(layer: Layer, size: int, buffer: tuple[int, int], waiting: int) -> bool:
    """Return True if a result lies in the memory of an input: a view, or written over what nothing else reads."""
    return buffer[1] == size and (layer.op_type in VIEWS or (layer.op_type in ELEMENTWISE and waiting == 0))
