"""Attention: the product, scaling, mask, softmax and second product of a head, which cuDNN has as one operation.

``sdpa`` of cuDNN's frontend (scaled dot-product attention, https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .building import Node

__all__ = ["attention"]

_FIRST, _LAST = "MatMul", ("Softmax", "MatMul")
_BETWEEN = ((), ("Mul",), ("Div",), ("Add",), ("Mul", "Add"), ("Div", "Add"))
"""What may stand between the first product and the softmax: a scale, and what is added as a mask."""
_RANK = 4
"""Batch, heads, queries or keys, size of a head."""

# The library wants the numbers of a key side by side. In the network they are not: its keys were transposed for the
# product. A runtime that fuses attention does not transpose them, so here they are laid out anew.


def attention(nodes: Sequence[Node]) -> bool:
    """Add the one operation that a whole brick is, where it is attention.

    Args:
        nodes: Of the brick, in order.

    Returns:
        Whether it is; where not, nothing was added.
    """
    kinds = [node.op_type for node in nodes]
    if len(kinds) < 1 + len(_LAST) or kinds[0] != _FIRST or tuple(kinds[-2:]) != _LAST:
        return False
    first, middle, softmax, last = nodes[0], nodes[1:-2], nodes[-2], nodes[-1]
    if tuple(kinds[1:-2]) not in _BETWEEN or not _is_chain(nodes) or len({*map(len, _shapes(first, last))}) != 1:
        return False
    if len(first.result) != _RANK or softmax.get("axis", -1) % _RANK != _RANK - 1:
        return False
    scale, mask = 1.0, None
    for before, node in zip(nodes, middle, strict=False):
        (other,) = {*node.inputs} - {before.outputs[0]}
        if node.op_type == "Add":
            mask = other
            continue
        number = node.build.constant(other)
        if number is None or len(number) != 1 or node.inputs[0] != before.outputs[0]:
            return False
        scale = number[0] if node.op_type == "Mul" else 1 / number[0]
    build = first.build
    batch, heads, size, keys = first.shape(1)
    inputs = {
        "q": build.read(first.inputs[0], first.shape(0), image=False),
        "k": build.read(first.inputs[1], (batch, heads, keys, size), order=(0, 1, 3, 2), image=False, relaid=True),
        "v": build.read(last.inputs[1], last.shape(1), image=False),
    }
    if mask is not None:
        inputs["bias"] = build.read(mask, build.lifted(build.shape(mask)), image=False)
    last.give(last.write("sdpa", inputs, last.result, attn_scale=scale))
    return True


def _is_chain(nodes: Sequence[Node]) -> bool:
    """Whether each node reads the one before it, and the last product reads the softmax as its first operand."""
    follows = all(one.outputs[0] in other.inputs for one, other in itertools.pairwise(nodes))
    given = nodes[0].build.given
    outside = [nodes[0].inputs[0], nodes[0].inputs[1], nodes[-1].inputs[1]]
    return follows and nodes[-1].inputs[0] == nodes[-2].outputs[0] and all(given(name) for name in outside)


def _shapes(first: Node, last: Node) -> list[tuple[int, ...]]:
    return [first.shape(0), first.shape(1), last.shape(1)]
