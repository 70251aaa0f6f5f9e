"""The memory of an executed graph's activations, and the activations that a layer finds far from the caches.

A layer usually reads values that the previous layer has just written, and writes to memory that another layer has just
read. A skip connection was written many layers ago, and a large result may get memory that nothing has touched for as
long. Both are as cold as weights, although a brick alone would find them warm.

Memory is assigned as ONNX Runtime plans it (``allocation_planner.cc``, ``mem_pattern_planner.h``). A view shares the
memory of its input. An elementwise operator writes over an input of equal shape that nothing else reads. A convolution
writes over the input that it adds to its result. Any other result takes the last freed buffer of equal shape and
element size; buffers of other shapes are not taken, even of equal size. A session with open lengths allocates in each
execution instead. Results share a buffer there, too, if their open dimensions have the same names; this is left out. A
buffer is occupied from its first to its last use, in the smallest gap that is large enough. Small values are left out:
they are read from anywhere within microseconds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from ..layer import Layer, LayerState, Role, TensorType
from ..operators import VIEWS, Kind, Trait, having, named
from ..work import weights_read
from .model_graph import ModelGraph

LARGE_BYTES = 64 << 10
"""Smaller values are read from memory within a few microseconds."""

SIZES = named(Kind.MEASURE)
"""Operators that read the shape of a value, and nothing of its memory."""

_OVERWRITING = having(Trait.OVERWRITES)
_CONVOLUTIONS, _ADDED = named(Kind.CONVOLUTION), 3
"""Operators that may add an input to their result, and its slot."""

_STEP_BYTES, _MOST_STEPS = 2 << 20, 8
"""A layer touches its inputs and outputs side by side: in so large parts, and so many at most."""

Span: TypeAlias = tuple[int, int]
"""Begin and end of some memory, in bytes."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of large activations.

    Attributes:
        buffers: Name of the buffer of each value. Inputs and outputs of the model are missing: the caller provides
            their memory.
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

    def chosen(self, layer: Layer, kind: TensorType, types: Mapping[str, TensorType], *, planned: bool) -> str | None:
        """Return the buffer that a result shares; empty for the caller's memory, None for a new one.

        Args:
            layer: The layer that writes it.
            kind: Its type.
            types: Types of all values.
            planned: Shapes were known when memory was planned.
        """
        read = list(_reads(layer))
        if layer.op_type in VIEWS:
            return self.buffers.get(read[0], "") if read else None
        for value in _overwritten(layer):
            buffer = self.buffers.get(value, "")
            if buffer and self.waiting[buffer] == 1 and value in types and _alike(types[value], kind):
                return buffer
        for buffer in reversed(self.freed if planned else ()):
            if _alike(self.kinds[buffer], kind):
                self.freed.remove(buffer)
                return buffer
        return None


def plan(graph: ModelGraph) -> MemoryPlan:
    """Plan the memory of a graph; its live layers are executed in their order."""
    live = [layer for layer in graph.layers if layer.state is LayerState.LIVE]
    reads = Counter(value for layer in live for value in _reads(layer))
    sharing = _Sharing()
    for at, layer in enumerate(live):
        here: dict[str, None] = {}
        for value, kind in _large_results(layer):
            if value in graph.outputs:
                continue
            buffer = sharing.chosen(layer, kind, graph.types, planned=not graph.opened)
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
    """The memory that was touched lately, as in a cache that replaces the least recently used data.

    Attributes:
        near_bytes: Memory is near if no more than so many different bytes were touched since.
        passing_bytes: Memory is near only if no more than so many bytes of weights passed, too. These weights do not
            count as touched. 0: they count.
        touched: Spans that were touched lately, the last one last; each byte is in one of them. Spans that begin below
            zero are weights.
    """

    near_bytes: int
    passing_bytes: int = 0
    touched: deque[Span] = field(default_factory=deque)
    _held: int = 0
    _passing: int = 0

    def touch(self, span: Span) -> None:
        """Note that some memory was touched."""
        if self.touched and self.touched[-1] == span:
            return
        begin, end = span
        kept: deque[Span] = deque()
        for old in self.touched:
            if old[1] <= begin or end <= old[0]:
                kept.append(old)
            else:
                kept.extend(_outside(old, span))
                self._held -= min(old[1], end) - max(old[0], begin)
        kept.append(span)
        self.touched = kept
        self._held += end - begin
        self._forget()

    def pass_by(self, size: int) -> None:
        """Note that so many bytes of weights were touched."""
        if not size:
            return
        before = -self.touched.pop()[0] if self.touched and self.touched[-1][0] < 0 else 0
        self.touched.append((-size - before, 0))
        if self.passing_bytes:
            self._passing += size
        else:
            self._held += size
        self._forget()

    def run(self, spans: Mapping[str, Span]) -> dict[str, int]:
        """Touch a layer's inputs and outputs, side by side; returns the bytes of each that were not touched lately."""
        lost = dict.fromkeys(spans, 0)
        steps = min(_MOST_STEPS, max(1, max((end - begin for begin, end in spans.values()), default=0) // _STEP_BYTES))
        for step in range(steps):
            parts = {value: _part_of(span, step, steps) for value, span in spans.items()}
            for value, part in parts.items():
                lost[value] += self.far(part)
            for part in parts.values():
                self.touch(part)
        return lost

    def _forget(self) -> None:
        """Forget the oldest spans, as long as those after them fill the caches."""
        while self.touched:
            begin, end = self.touched[0]
            passes = begin < 0 < self.passing_bytes
            held = self._held - (0 if passes else end - begin)
            passing = self._passing - (end - begin if passes else 0)
            if held <= self.near_bytes and passing <= self.passing_bytes:
                break
            self.touched.popleft()
            self._held, self._passing = held, passing

    def far(self, span: Span) -> int:
        """Return how many bytes of some memory were not touched lately."""
        left = [span]
        for near in reversed(self.touched):
            if not left:
                break
            if any(near[0] < end and begin < near[1] for begin, end in left):
                left = [part for old in left for part in _outside(old, near)]
        return sum(end - begin for begin, end in left)


def _part_of(span: Span, step: int, steps: int) -> Span:
    begin, size = span[0], span[1] - span[0]
    return begin + size * step // steps, begin + size * (step + 1) // steps


def _outside(span: Span, other: Span) -> list[Span]:
    """Return the parts of some memory that are not in another."""
    parts = ((span[0], min(span[1], other[0])), (max(span[0], other[1]), span[1]))
    return [(begin, end) for begin, end in parts if begin < end]


class ColdMemory(NamedTuple):
    """Activations that caches hold less well than the activations of a pack.

    Attributes:
        far: For layers and the large activations that they read or write, how many of their bytes are far. Values that
            are near as a whole are missing.
        fresh: Layers and the large activations that they read, if these were written just before to far memory. Layers
            that write over an input are left out.
    """

    far: Mapping[tuple[int, str], int]
    fresh: Collection[tuple[int, str]]


def cold_memory(graph: ModelGraph, near_bytes: int, core_bytes: int, passing_bytes: int = 0) -> ColdMemory:
    """Return the cold memory that the layers of a graph find.

    Bytes that would be far in a pack too, since the layer touches more than ``near_bytes``, do not count. The model's
    outputs do not count either, nor do its inputs at their first read: the caller provides their memory.

    A last-level cache that is under pressure holds data from memory only after a few uses. On an AMD EPYC, a depthwise
    convolution takes 75 us if the memory of its input was used before, and 180 us if the previous layer wrote it to
    memory that was far. Each further pass makes it faster.

    Args:
        graph: The graph; its live layers are executed in their order.
        near_bytes: Memory is near if no more than so many different bytes were touched since.
        core_bytes: Capacity of a core's private caches. Smaller values are read from there, and are not fresh.
        passing_bytes: Memory is near only if no more than so many bytes of weights passed, too. This is for a model
            with weights that no cache holds from one inference to the next: caches may give way to them last. 0:
            weights count like other bytes.
    """
    known = _KNOWN.setdefault(graph, {})
    asked = near_bytes, core_bytes, passing_bytes
    if asked not in known:
        known[asked] = _simulated(graph, *asked)
    return known[asked]


_KNOWN: WeakKeyDictionary[ModelGraph, dict[tuple[int, int, int], ColdMemory]] = WeakKeyDictionary()
"""A command asks several times for the same graph, and simulating a large one takes half a second."""


def _simulated(graph: ModelGraph, near_bytes: int, core_bytes: int, passing_bytes: int) -> ColdMemory:
    planned, traces = plan(graph), _Traces(near_bytes, passing_bytes)
    spans = _spans(graph, planned)
    _execute(graph, planned, spans, traces)  # the inference before, which leaves its traces
    executions = _execute(graph, planned, spans, traces)
    far = {(run.layer.index, value): size for run in executions for value, size in run.far.items()}
    return ColdMemory(far, _fresh(executions, planned, spans, core_bytes) if near_bytes > core_bytes else frozenset())


def _spans(graph: ModelGraph, planned: MemoryPlan) -> dict[str, Span]:
    """Return the memory of each large value; the memory of inputs and outputs follows all planned memory."""
    spans = {value: planned.spans[buffer] for value, buffer in planned.buffers.items()}
    behind = planned.extent

    def outside(value: str, kind: TensorType | None) -> None:
        nonlocal behind
        if kind is not None and kind.nbytes >= LARGE_BYTES and value not in spans:
            spans[value] = behind, behind + kind.nbytes
            behind += kind.nbytes

    for value, kind in graph.inputs.items():
        outside(value, kind)
    for layer in (layer for layer in graph.layers if layer.state is LayerState.LIVE):
        read = list(_reads(layer))
        if layer.op_type in VIEWS and read and read[0] in spans:
            spans |= {value: spans[read[0]] for value in layer.outputs if value}
        for value, kind in _large_results(layer):
            outside(value, kind)
    return spans


@dataclass(frozen=True, slots=True)
class _Execution:
    """The execution of one layer.

    Attributes:
        layer: The layer.
        far: Bytes of activations that are far, and would not be in a pack.
        woken: Results in memory with at least half of its bytes far.
    """

    layer: Layer
    far: Mapping[str, int]
    woken: Collection[str]


def _execute(graph: ModelGraph, planned: MemoryPlan, spans: Mapping[str, Span], traces: _Traces) -> list[_Execution]:
    executions = []
    own = dict.fromkeys(graph.inputs, False)
    for layer in (layer for layer in graph.layers if layer.state is LayerState.LIVE and layer.op_type not in SIZES):
        read = dict.fromkeys(_reads(layer))
        results = [value for value, _ in _large_results(layer)]
        over = {planned.buffers.get(value) for value in read}
        touched = {value: spans[value] for value in (*read, *results) if value in spans}
        traces.pass_by(weights_read([layer]))
        lost, lost_alone = traces.run(touched), _run_alone(touched, read, traces.near_bytes)
        far, woken = {}, []
        for value, size in lost.items():
            asked = own.get(value, value in planned.buffers)
            if not asked or (value not in read and planned.buffers[value] in over):
                continue
            if size > lost_alone[value]:
                far[value] = size - lost_alone[value]
            if value not in read and 2 * size >= touched[value][1] - touched[value][0]:
                woken.append(value)
        own |= {value: True for value in read if value in own}
        executions.append(_Execution(layer, far, woken))
    return executions


_ESTABLISHED = 2
"""Readers after which memory that was far is as near as any other."""


def _fresh(
    executions: Iterable[_Execution], planned: MemoryPlan, spans: Mapping[str, Span], core_bytes: int
) -> frozenset[tuple[int, str]]:
    found = set()
    readers: dict[str, int] = {}  # of buffers that were far when they were written last
    for run in executions:
        read = {value: buffer for value in _reads(run.layer) if (buffer := planned.buffers.get(value))}
        written = {planned.buffers.get(value) for value, _ in _large_results(run.layer)}
        for value, buffer in read.items() if written.isdisjoint(read.values()) else ():
            if readers.get(buffer, _ESTABLISHED) < _ESTABLISHED and spans[value][1] - spans[value][0] > core_bytes:
                found.add((run.layer.index, value))
        for buffer in {*read.values()} & readers.keys():
            readers[buffer] += 1
        for value, _ in _large_results(run.layer):
            buffer = planned.buffers.get(value, "")
            if value in run.woken:
                readers[buffer] = 0
            elif buffer not in read.values():
                readers.pop(buffer, None)
    return frozenset(found)


def _run_alone(touched: Mapping[str, Span], read: Collection[str], near_bytes: int) -> dict[str, int]:
    """Return how many bytes a layer misses in a pack: just before, its outputs are touched, then its inputs written."""
    traces = _Traces(near_bytes)
    for value in sorted(touched, key=read.__contains__):
        traces.touch(touched[value])
    return traces.run(touched)


def _overwritten(layer: Layer) -> Iterator[str]:
    """Yield the activations that a layer may write its result over, if nothing else reads them.

    A fused convolution takes the value to add as its fourth input, and adds to it in place (``MayInplace(3, 0)``).
    """
    first, after = (0, 1) if layer.op_type in _OVERWRITING else (_ADDED, None)
    if layer.op_type in _OVERWRITING | _CONVOLUTIONS:
        yield from (operand.value for operand in layer.operands[first:after] if operand.role is Role.ACTIVATION)


def _reads(layer: Layer) -> Iterator[str]:
    """Yield the activations that a layer reads, as often as it does."""
    return (operand.value for operand in layer.operands if operand.role is Role.ACTIVATION)


def _large_results(layer: Layer) -> Iterator[tuple[str, TensorType]]:
    """Yield the large values that a layer writes, with their types."""
    for value, kind in zip(layer.outputs, layer.output_types, strict=True):
        if value and kind is not None and kind.nbytes >= LARGE_BYTES:
            yield value, kind
