"""From a window of layers to a sequence: canonical value numbers, what is exposed, and the key of the brick.

The key is found without building the brick: this runs for every sequence of every model.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from ..graph.causal import SOFTMAX
from ..graph.flow import Flow, flow_of
from ..graph.graph import ModelGraph
from ..graph.reuse import with_reuse
from ..layer import Layer, Role
from ..sequence import LayerSequence
from .split import split

__all__ = ["Numbering", "keys_from", "make_sequence", "number_values", "sequences"]

_VERSION = "1"
"""Changes whenever the same brick would get another key."""


def _preamble(graph: ModelGraph) -> list[str]:
    """The words that every description of a graph's windows begins with."""
    return [_VERSION, hashlib.sha256(graph.salt.encode()).hexdigest()] if graph.salt else [_VERSION]


@dataclass(slots=True)
class Numbering:
    """The values of a window under their canonical names, numbered by first use.

    Attributes:
        names: Source name to ``x<i>`` (read from outside), ``w<i>`` (weight) or ``v<i>`` (made inside).
        inputs: Source names of the activations read from outside; the position is the number.
        weights: Source names of the weights; the position is the number.
        outputs: Source names of the exposed values.
        causal: Of ``inputs`` those that a Softmax reads behind a causal mask.
        text: The canonical description that the key hashes.
    """

    names: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    causal: list[str] = field(default_factory=list)
    text: str = ""


def number_values(graph: ModelGraph, window: tuple[int, ...], *, exposed: Collection[str] | None = None) -> Numbering:
    """Number the values of a window and describe its wiring.

    The description lists, layer by layer, the layer's key, what each input slot is connected to, with a mark where a
    Softmax reads masked scores from outside, and each output with a mark where it is exposed. Constants stand in the
    layer's key, so a slot only says that one is there.
    A value is exposed when something outside needs it; a layer that nothing needs exposes all its outputs, so that a
    runtime cannot drop it.

    Args:
        graph: The model.
        window: Layer indices, ascending.
        exposed: The values that are; None: found as described.
    """
    flow = flow_of(graph)
    inside = frozenset(flow.position[index] for index in window)
    numbering = Numbering()
    words = _preamble(graph)
    made = 0
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
            name = numbering.names[value] = f"v{made}"
            made += 1
            needed = dead_end or _needed_outside(flow, value, inside) if exposed is None else value in exposed
            if needed:
                numbering.outputs.append(value)
                name += "!"
            words.append(name)
    numbering.text = " ".join(words)
    return numbering


def _connect(numbering: Numbering, layer: Layer, causal: Collection[str]) -> Iterator[str]:
    """One word per input slot of a layer; numbers what is new."""
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
        copies: Those of them that other sequences hold too (``LayerSequence.copies``).
        copied: Layers of which every reader's sequence has one for itself: none exposes what they make.

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
    """The keys of windows that begin at one layer, as ``make_sequence`` finds them one by one.

    A longer window has the description of a shorter one at its beginning, but for the marks of values that are no
    longer exposed: what cannot change any more is hashed once.

    Args:
        graph: The model.
        begin: Position of the first layer in ``ModelGraph.live``.
        ends: Positions behind the last layer, ascending.
    """
    flow = flow_of(graph)
    numbering = Numbering()
    digest = hashlib.sha256(" ".join(_preamble(graph)).encode())
    words: list[str] = []  # those behind what is hashed for good
    hashed = made = 0
    exposed_until: defaultdict[int, list[int]] = defaultdict(list)  # last reader: numbers of the words that it settles
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
                name = numbering.names[value] = f"v{made}"
                made += 1
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
    return with_reuse(graph, (make_sequence(graph, window) for window in windows))
