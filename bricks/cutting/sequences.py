"""Windows of layers, and their sequences: canonical value numbers, exposed values, and the key of the brick.

The key is computed without building the brick, because every sequence of every model needs it.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from ...errors import UsageError
from ...models.time_limit import in_time
from ..graph.causal import SOFTMAX
from ..graph.flow import Flow, common_opsets, flow_of, is_empty
from ..graph.footprint import with_reuse
from ..graph.model_graph import ModelGraph
from ..layer import Layer, LayerSequence, Role

# Algorithms 1 and 2 of DLBricks: cut a model into sequences of at most G layers.
#
# The paper visits the layers in order. A window of G layers that forms a valid network becomes one sequence; otherwise
# its first layer becomes a sequence and a window of the same width is tried one layer later. The iteration below
# replaces the recursion of Algorithm 2: the window after a failure depends only on its first layer. Windows are
# half-open, ``[begin, end)``, and clamped at the end; the printed indices are off by one.
#
# A valid window is a simple path: each layer feeds the next, and only the window uses interior values, which are not
# model outputs. Other inputs may come from outside. ``connected`` relaxes this to weakly connected windows with
# interior values that may be used elsewhere. One opset must suit all layers of a window. A single layer is always
# valid.


def split(
    graph: ModelGraph, granularity: int, *, overlap: bool = False, connected: bool = False
) -> list[tuple[int, ...]]:
    """Cut the live layers of a model into windows.

    Takes O(layers) steps at G = 1 and at most O(layers * G): windows with an obstacle that an earlier window met are
    skipped.

    Args:
        graph: The model.
        granularity: G, the largest number of layers in a window.
        overlap: Begin a window at *every* layer (stride 1) instead of behind the previous window, and add every layer
            as a window. The result contains the windows without overlap and the covers that begin at other offsets, so
            that a later step may choose the cheapest.
        connected: Accept weakly connected windows.

    Returns:
        Windows as ascending layer indices, ordered by first layer, then length. Without ``overlap`` every live layer is
        in exactly one.

    Raises:
        UsageError: ``granularity`` is less than 1.
    """
    ranges = spans(flow_of(graph), granularity, overlap=overlap, connected=connected)
    return [graph.live[begin:end] for begin, end in ranges]


def spans(flow: Flow, granularity: int, *, overlap: bool = False, connected: bool = False) -> list[tuple[int, int]]:
    """Cut any dataflow, of layers or of units (``flow_over``), like ``split``.

    Returns:
        Half-open windows of positions.

    Raises:
        UsageError: As ``split``.
    """
    if granularity < 1:
        raise UsageError(
            f"granularity must be at least 1, got {granularity}", remedy="give the number of layers per sequence"
        )
    size = len(flow.last_use)
    obstacle = _connection_obstacle if connected else _path_obstacle
    chosen: list[tuple[int, int]] = []
    begin = retry = 0
    while begin < size:
        end = min(begin + granularity, size)
        if retry <= begin:
            retry = max(obstacle(flow, begin, end, granularity), _opset_obstacle(flow, begin, end))
        valid = retry <= begin
        if overlap or not valid:
            chosen.append((begin, begin + 1))
        if valid and not (overlap and end == begin + 1):
            chosen.append((begin, end))
        begin = end if valid and not overlap else begin + 1
    return chosen


def _opset_obstacle(flow: Flow, begin: int, end: int) -> int:
    """Return the first later begin without an opset conflict of ``[begin, end)``; 0 if there is no conflict."""
    common = None
    for position in reversed(range(begin, end)):
        common = common_opsets((common, flow.opsets[position]))
        if is_empty(common):
            return position + 1
    return 0


def _path_obstacle(flow: Flow, begin: int, end: int, granularity: int) -> int:
    """Return the first later begin at which ``[begin, end)`` may become a path; 0 if it is one."""
    retry = 0
    size = len(flow.last_use)
    for interior in range(begin, end - 1):
        last = flow.last_use[interior]
        if not flow.feeds_next[interior] or last >= size:
            retry = max(retry, interior + 1)
        elif last >= end:  # resolved once the window is past the layer or contains its last reader
            retry = max(retry, min(interior + 1, last + 1 - granularity))
    return retry


def _connection_obstacle(flow: Flow, begin: int, end: int, _granularity: int) -> int:
    """Return ``begin + 1`` if ``[begin, end)`` is not weakly connected, else 0.

    A window that contains both ends of a path through a skipped layer would wait for its own result and is refused too.
    """
    if any(flow.detour[position] >= begin for position in range(begin + 1, end)):
        return begin + 1
    reached = {begin}
    frontier = [begin]
    while frontier:
        position = frontier.pop()
        for neighbour in flow.neighbours[position]:
            if begin <= neighbour < end and neighbour not in reached:
                reached.add(neighbour)
                frontier.append(neighbour)
    return 0 if len(reached) == end - begin else begin + 1


_VERSION = "1"
"""Changes if the key of an unchanged brick would change."""


def _preamble(graph: ModelGraph) -> list[str]:
    """Return the first words of every description of a graph's windows."""
    return [_VERSION, hashlib.sha256(graph.salt.encode()).hexdigest()] if graph.salt else [_VERSION]


@dataclass(slots=True)
class Numbering:
    """The values of a window under their canonical names, numbered by first use.

    Attributes:
        names: Source name to ``x<i>`` (read from outside), ``w<i>`` (weight) or ``v<i>`` (made inside).
        inputs: Source names of the activations read from outside; the position is the number.
        weights: Source names of the weights; the position is the number.
        outputs: Source names of the exposed values.
        causal: Elements of ``inputs`` that a Softmax reads behind a causal mask.
        text: The canonical description that the key hashes.
    """

    names: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    causal: list[str] = field(default_factory=list)
    text: str = ""


def number_values(graph: ModelGraph, window: tuple[int, ...], *, exposed: Collection[str] | None = None) -> Numbering:
    """Assign numbers to the values of a window and describe its wiring.

    Args:
        graph: The model.
        window: Layer indices, ascending.
        exposed: The exposed values; None to find them as described.
    """
    flow = flow_of(graph)
    inside = frozenset(flow.position[index] for index in window)
    numbering = Numbering()
    words = _preamble(graph)
    value_count = 0
    for index in window:
        layer = graph.layers[index]
        words.append(layer.key)
        words.extend(_connect(numbering, layer, graph.causal))
        words.append(">")
        dead_end = flow.dead_end[flow.position[index]]
        for value in layer.outputs:
            if not value:
                words.append("-")
                continue
            name = numbering.names[value] = f"v{value_count}"
            value_count += 1
            needed = dead_end or _needed_outside(flow, value, inside) if exposed is None else value in exposed
            if needed:
                numbering.outputs.append(value)
                name += "!"
            words.append(name)
    numbering.text = " ".join(words)
    return numbering


def _connect(numbering: Numbering, layer: Layer, causal: Collection[str]) -> Iterator[str]:
    """Yield one word per input slot of a layer; number new values."""
    for operand in layer.operands:
        if operand.role is Role.CONSTANT:
            yield "c"
        elif operand.role is Role.ABSENT:
            yield "-"
        else:
            name = _name(numbering, operand.value, weight=operand.role is Role.WEIGHT)
            masked = operand.value in causal and layer.op_type == SOFTMAX and operand.value in numbering.inputs
            if masked and operand.value not in numbering.causal:
                numbering.causal.append(operand.value)
            yield f"{name}~" if masked else name


def _name(numbering: Numbering, value: str, *, weight: bool) -> str:
    name = numbering.names.get(value)
    if name is None:
        group, prefix = (numbering.weights, "w") if weight else (numbering.inputs, "x")
        name = numbering.names[value] = f"{prefix}{len(group)}"
        group.append(value)
    return name


def _needed_outside(flow: Flow, value: str, inside: frozenset[int]) -> bool:
    return value in flow.leaving or any(position not in inside for position in flow.readers.get(value, ()))


def make_sequence(
    graph: ModelGraph, layers: tuple[int, ...], *, copies: tuple[int, ...] = (), copied: Collection[int] = ()
) -> LayerSequence:
    """Make the sequence of a window of live layers.

    Args:
        graph: The model.
        layers: Indices of live layers, ascending, as ``split`` returns them.
        copies: Layers that other sequences contain too (``LayerSequence.copies``).
        copied: Layers that are copied for each reader's sequence: their results are not exposed.

    Returns:
        The sequence with the key of its brick: a SHA-256 over the graph's salt, layer keys, wiring and exposed values.
    """
    numbering = number_values(graph, layers)
    if copied:
        inside = {operand.value for index in layers for operand in graph.layers[index].operands}
        private = {value for index in copied for value in graph.layers[index].outputs if value in inside}
        numbering = number_values(graph, layers, exposed={*numbering.outputs} - private)
    return LayerSequence(
        layers=layers,
        key=hashlib.sha256(numbering.text.encode()).hexdigest(),
        inputs=tuple(numbering.inputs),
        weights=tuple(numbering.weights),
        outputs=tuple(numbering.outputs),
        copies=copies,
    )


def keys_from(graph: ModelGraph, begin: int, ends: Iterable[int]) -> Iterator[str]:
    """Yield the keys of windows that begin at one layer, as ``make_sequence`` would compute them.

    A longer window's description begins with the shorter one's, except for marks of values that lose their exposure.
    The fixed part is hashed once.

    Args:
        graph: The model.
        begin: Position of the first layer in ``ModelGraph.live``.
        ends: Positions behind the last layer, ascending.
    """
    flow = flow_of(graph)
    numbering = Numbering()
    digest = hashlib.sha256(" ".join(_preamble(graph)).encode())
    words: list[str] = []  # words after the hashed part
    hashed = value_count = 0
    exposed_until: defaultdict[int, list[int]] = defaultdict(list)  # last reader: numbers of the words
    unsettled: deque[int] = deque()
    settled: set[int] = set()
    position = begin
    for end in ends:
        while position < end:
            layer = graph.layers[graph.live[position]]
            words += [layer.key, *_connect(numbering, layer, graph.causal), ">"]
            for value in layer.outputs:
                if not value:
                    words.append("-")
                    continue
                name = numbering.names[value] = f"v{value_count}"
                value_count += 1
                readers = flow.readers.get(value)
                if flow.dead_end[position] or value in flow.leaving:
                    name += "!"
                elif readers:
                    exposed_until[readers[-1]].append(hashed + len(words))
                    unsettled.append(hashed + len(words))
                    name += "!"
                words.append(name)
            for number in exposed_until.pop(position, ()):
                words[number - hashed] = words[number - hashed].removesuffix("!")
                settled.add(number)
            position += 1
        while unsettled and unsettled[0] in settled:
            settled.remove(unsettled.popleft())
        stable = (unsettled[0] if unsettled else hashed + len(words)) - hashed
        digest.update("".join(f" {word}" for word in words[:stable]).encode())
        del words[:stable]
        hashed += stable
        whole = digest.copy()
        whole.update("".join(f" {word}" for word in words).encode())
        yield whole.hexdigest()


def sequences(
    graph: ModelGraph, granularity: int, *, overlap: bool = False, connected: bool = False
) -> list[LayerSequence]:
    """Cut a model (``split``) and make the sequence of each window."""
    windows = split(graph, granularity, overlap=overlap, connected=connected)
    return with_reuse(graph, (make_sequence(graph, window) for window in in_time(windows, "cutting sequences")))


# All valid windows of at most G layers with the keys of their bricks. ``split`` chooses some of them and defines
# validity. Extending a window by one layer takes O(1) steps, and its key costs little more than hashing the addition.


@dataclass(frozen=True, slots=True)
class KeyedWindow:
    """A window of consecutive live layers, half-open."""

    begin: int
    end: int
    key: str


def windows(graph: ModelGraph, granularity: int, *, connected: bool = False) -> Iterator[KeyedWindow]:
    """Yield all valid windows of 1 to ``granularity`` layers: any window of ``split`` at a smaller G, with any stride.

    Yields:
        Windows by first layer, then length.
    """
    flow = flow_of(graph)
    ends_of = _connected_ends if connected else _path_ends
    size = len(graph.live)
    for begin in range(size):
        ends = list(ends_of(flow, begin, min(begin + granularity, size)))
        for end, key in zip(ends, keys_from(graph, begin, ends), strict=True):
            yield KeyedWindow(begin, end, key)


def _path_ends(flow: Flow, begin: int, limit: int) -> Iterator[int]:
    """Yield the ends, up to ``limit``, of the windows from ``begin`` that are paths."""
    last_use = -1
    opsets = flow.opsets[begin]
    yield begin + 1
    for added in range(begin + 1, limit):
        last_use = max(last_use, flow.last_use[added - 1])
        opsets = common_opsets((opsets, flow.opsets[added]))
        if not flow.feeds_next[added - 1] or last_use >= limit or is_empty(opsets):
            return
        if last_use <= added:
            yield added + 1


def _connected_ends(flow: Flow, begin: int, limit: int) -> Iterator[int]:
    """Yield the ends, up to ``limit``, of the windows from ``begin`` that are weakly connected."""
    opsets = flow.opsets[begin]
    joined = [begin]  # for each layer a connected layer; itself for one layer per part

    def part_of(position: int) -> int:
        while (other := joined[position - begin]) != position:
            joined[position - begin] = position = joined[other - begin]
        return position

    parts = 1
    yield begin + 1
    for added in range(begin + 1, limit):
        opsets = common_opsets((opsets, flow.opsets[added]))
        if flow.detour[added] >= begin or is_empty(opsets):
            return
        joined.append(added)
        reached = {part_of(other) for other in flow.neighbours[added] if begin <= other < added}
        for part in reached:
            joined[part - begin] = added
        parts += 1 - len(reached)
        if parts == 1:
            yield added + 1
