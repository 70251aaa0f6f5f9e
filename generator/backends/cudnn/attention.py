"""Attention: the product, scaling, mask, softmax and second product of a head, which cuDNN has as one operation.

``sdpa`` of cuDNN's frontend (scaled dot-product attention, https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from .building import Node

__all__ = ["attention"]

_BETWEEN = ((), ("Mul",), ("Div",), ("Add",), ("Mul", "Add"), ("Div", "Add"))
"""What may stand between the first product and the softmax: a scale, and what is added as a mask."""
_RANK = 4
"""Batch, heads, queries or keys, size of a head."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """What happens to the first product ahead of the softmax.

    Attributes:
        scale: It is multiplied by this.
        mask: Value that is added; None for none.
    """

    scale: float = 1.0
    mask: str | None = None


def attention(nodes: Sequence[Node]) -> bool:
    """Add the one operation that a whole brick is, where it is attention.

    Args:
        nodes: Of the brick, in order.

    Returns:
        Whether it is; where not, nothing was added.
    """
    scores = _scores(nodes) if _is_shaped(nodes) and _is_chain(nodes) else None
    if scores is None:
        return False
    first, last = nodes[0], nodes[-1]
    build = first.build
    batch, heads, size, keys = first.shape(1)
    inputs = {
        "q": build.read(first.inputs[0], first.shape(0), image=False),
        # The library wants the numbers of a key side by side. In the network they are not: its keys were transposed
        # for the product. A runtime that fuses attention does not transpose them, so here they are laid out anew.
        "k": build.read(first.inputs[1], (batch, heads, keys, size), order=(0, 1, 3, 2), image=False, relaid=True),
        "v": build.read(last.inputs[1], last.shape(1), image=False),
    }
    if scores.mask is not None:
        inputs["bias"] = build.read(scores.mask, build.lifted(build.shape(scores.mask)), image=False)
    last.give(last.write("sdpa", inputs, last.result, attn_scale=scores.scale))
    return True


def _is_shaped(nodes: Sequence[Node]) -> bool:
    """Whether operators, ranks, heads and the axis of the softmax are those of attention."""
    kinds = tuple(node.op_type for node in nodes)
    if len(kinds) < 3 or (kinds[0], *kinds[-2:]) != ("MatMul", "Softmax", "MatMul") or kinds[1:-2] not in _BETWEEN:
        return False
    first, softmax, last = nodes[0], nodes[-2], nodes[-1]
    shapes = [first.shape(0), first.shape(1), last.shape(1), *(node.result for node in nodes)]
    if any(len(shape) != _RANK for shape in shapes) or len({shape[:2] for shape in shapes}) != 1:
        return False
    return bool(softmax.get("axis", -1) % _RANK == _RANK - 1)


def _is_chain(nodes: Sequence[Node]) -> bool:
    """Whether each node reads the one before it, once, and nothing else does; all other operands are given."""
    build = nodes[0].build
    exposed = {value.name for value in build.graph.output}
    for before, node in itertools.pairwise(nodes):
        value = before.outputs[0]
        if node.inputs.count(value) != 1 or value in exposed or build.readers(value) != 1:
            return False
    passed = {node.outputs[0] for node in nodes}
    others = [name for node in nodes for name in node.inputs if name not in passed]
    return nodes[-1].inputs[0] == nodes[-2].outputs[0] and all(build.given(name) for name in others)


def _scores(nodes: Sequence[Node]) -> _Scores | None:
    """Scale and mask; None where the scale is no number."""
    scale, mask = 1.0, None
    for before, node in itertools.pairwise(nodes[:-2]):
        place = 1 - node.inputs.index(before.outputs[0])
        if node.op_type == "Add":
            mask = node.inputs[place]
            continue
        numbers = node.build.constant(node.inputs[place])
        if numbers is None or len(numbers) != 1 or (node.op_type == "Div" and (place == 0 or not numbers[0])):
            return None
        scale = numbers[0] if node.op_type == "Mul" else 1 / numbers[0]
    return _Scores(scale, mask)
