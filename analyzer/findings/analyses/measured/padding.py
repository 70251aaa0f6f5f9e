"""Channels that are no multiple of what the runtime's kernels are made for: blocks of a vector, tiles of a matrix unit.

Saving: of each convolution and product with constant weights, what it takes in the model times the share that its
brick gains when its channels are padded with zeros to a multiple of 8 or 16. Both latencies are stored: ``run
--algorithms`` measures bricks of the model's own layers so (``generator.network.padding``). Layers that padding makes
slower count too, since channels are padded for all layers that share them; where a multiple of 16 is not stored, it is
the same as one of 8. What layers between them pay for channels that mean nothing is not in it.

Only channels that stay within the model: of its inputs and outputs, and of what is computed across channels, such as a
softmax, none can be added.

Where no padded bricks are stored, ``blocks`` estimates what convolutions take that a runtime cannot lay out in blocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from .....bricks.cutting.wiring import sequences
from .....bricks.graph.graph import ModelGraph
from .....bricks.layer import Layer, Role
from .....bricks.operators import GLOBAL_POOLS, POINTWISE, POOLS, PRODUCTS
from .....bricks.sequence import LayerSequence
from .....db import Measurement, Subject
from ....estimation.query import stored_under
from ...analysis import BRICKS, LATENCY, Analysis, finding, spent_by
from ...finding import Finding
from ...subject import Node, Spent
from ...subject import Subject as Model
from .beside import Beside, Ratio
from .blocks import padding_remedy, unblocked, unblocked_idea

__all__ = ["ANALYSIS"]

_MULTIPLES = (8, 16)
_WEIGHTED = PRODUCTS | {"Conv"}
_PASSING = POINTWISE | POOLS | GLOBAL_POOLS | {"BatchNormalization", "Concat", "Flatten"}
"""Operators that hand on channels one by one."""

_KERNELS = ("Conv", "Gemm", "MatMul")
"""In the names of the operators that are executed for these layers."""


def _run(model: Model) -> Iterable[Finding]:
    parts = sequences(model.graph, 1)
    stored = _stored(model, {part.key for part in parts})
    found = [one for multiple in _MULTIPLES if (one := _padded(model, multiple, parts, stored)) is not None]
    if not found and (one := unblocked(model)) is not None:
        found = [one]
    yield from sorted(found, key=lambda one: -one.saving_ms)[:1]


def _stored(model: Model, keys: Collection[str]) -> dict[str, dict[tuple[str, str], Measurement]]:
    """Measurements of the bricks of the model's own layers by algorithm, each by key and cache state."""
    choice = model.choice
    if choice is None:
        return {}
    found = {}
    for variant in ("", *(_variant(multiple) for multiple in _MULTIPLES)):
        measured = model.store.measurements(stored_under(choice), subject=Subject.BRICK, keys=keys, variant=variant)
        found[variant] = {(one.key, one.conditions.cache): one for one in measured if one.latency_ns > 0}
    return found


def _variant(multiple: int) -> str:
    return f"padded-{multiple}"


def _padded(
    model: Model,
    multiple: int,
    parts: Sequence[LayerSequence],
    stored: Mapping[str, Mapping[tuple[str, str], Measurement]],
) -> Finding | None:
    """What padding all channels to a multiple saves."""
    plain = stored.get("", {})
    wide = {place: one for size in _MULTIPLES if size <= multiple for place, one in stored[_variant(size)].items()}
    pairs = {key: (plain[key, state], one) for (key, state), one in wide.items() if (key, state) in plain}
    beside = Beside(model.store, [one for pair in pairs.values() for one in pair])
    places: list[tuple[int, Node, Ratio]] = []
    for part in parts if pairs else ():
        layer = model.graph.layers[part.layers[0]]
        nodes = [node for node in model.touching(part.layers) if any(one in node.layer.op_type for one in _KERNELS)]
        if part.key in pairs and len(nodes) == 1 and _can_be_wider(model.graph, layer, multiple):
            places.append((layer.index, nodes[0], beside.ratio(*pairs[part.key])))
    current = model.spent([node for _, node, _ in places])
    if current is None:
        return None
    saved = [(node.ms or 0.0) * (1 - ratio.value) for _, node, ratio in places]
    doubt = _doubt(model, places, math.fsum(saved) / current.ms * current.half_ms)
    return finding(
        model,
        "padding",
        f"the channels of {len(places)} layers are no multiples of {multiple}",
        layers=[index for index, *_ in places],
        current=current,
        saving=Spent(math.fsum(saved), doubt, ()),
        evidence=_evidence(places, saved, multiple),
        remedy=padding_remedy(model, multiple),
    )


def _doubt(model: Model, places: Sequence[tuple[int, Node, Ratio]], current_ms: float) -> float:
    """Half of the interval of a saving in ms.

    Layers of one brick err together, those of others independently; all of them in what the machine did between runs.
    """
    bricks: defaultdict[str, float] = defaultdict(float)
    runs = []
    for index, node, ratio in places:
        left = (node.ms or 0.0) * ratio.value
        bricks[model.graph.layers[index].key] += left * math.expm1(ratio.own)
        runs.append(left * math.expm1(ratio.apart))
    return math.hypot(*bricks.values(), math.fsum(runs), current_ms)


def _evidence(places: list[tuple[int, Node, Ratio]], saved: list[float], multiple: int) -> Iterator[str]:
    order = sorted(range(len(places)), key=lambda number: -abs(saved[number]))
    for number in order[:3]:
        _, node, ratio = places[number]
        yield f"{spent_by([node])}; its brick takes {ratio.value:.0%} of that with channels in multiples of {multiple}"
    slower = sum(one < 0 for one in saved)
    if slower:
        yield f"{slower} of the {len(places)} layers take longer so, which is counted"


def _can_be_wider(graph: ModelGraph, layer: Layer, multiple: int) -> bool:
    """Whether the channels that a layer reads and writes are multiples already, or can be padded to such."""
    axis = 1 if layer.op_type == "Conv" else -1
    for value in (layer.operands[0].value, layer.outputs[0]):
        kind = graph.types.get(value)
        if kind is None or (kind.shape[axis] % multiple and not _within(graph, value)):
            return False
    return True


def _within(graph: ModelGraph, value: str) -> bool:
    """Whether all that makes or reads a value's channels has weights for each, or treats each by itself."""
    waiting, seen = [value], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        producer = graph.producer(name)
        if producer is None or name in graph.outputs:
            return False
        for index in (producer, *graph.consumers(name)):
            layer = graph.layers[index]
            if layer.domain or not (layer.op_type in _PASSING or _weighted(layer)):
                return False
            if layer.op_type in _PASSING:
                waiting += [one.value for one in layer.operands if one.role is Role.ACTIVATION]
                waiting += layer.outputs
    return True


def _weighted(layer: Layer) -> bool:
    """Whether it is a convolution or product with constant weights."""
    constant = len(layer.operands) > 1 and layer.operands[1].role in {Role.CONSTANT, Role.WEIGHT}
    return layer.op_type in _WEIGHTED and constant


ANALYSIS = Analysis("padding", frozenset({BRICKS, LATENCY}), _run, unblocked_idea)
