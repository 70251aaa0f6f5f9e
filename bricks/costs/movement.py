"""Operators that move, copy or reinterpret data, and control flow around nothing: bytes, no arithmetic."""

from __future__ import annotations

from ...models.subgraphs import bodies
from ..cost import Cost
from .call import Call, Formula, UnknownCostError

__all__ = ["FORMULAS", "move"]


def move(call: Call) -> Cost:
    """No work: each output element is a copy, a cast or a constant; index arithmetic is not counted."""
    for slot, wanted in enumerate(call.node.output):
        if wanted:
            call.output(slot)
    return Cost()


FORMULAS: dict[tuple[str, str], Formula] = {
    ("", name): move
    for name in (
        "BitCast", "Cast", "CastLike", "CenterCropPad", "Compress", "Concat", "Constant", "ConstantOfShape",
        "DepthToSpace", "Expand", "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "OneHot",
        "Pad", "Range", "Reshape", "ReverseSequence", "Scatter", "Shape", "Size", "Slice", "SpaceToDepth", "Split",
        "Squeeze", "TensorScatter", "Tile", "Transpose", "Trilu", "Unsqueeze",
    )
}  # fmt: skip


def scatter(call: Call) -> Cost:
    """Copies; a ``reduction`` (add, mul, max, min) costs one operation per element of the updates."""
    n = call.input(2).elements
    match call.attribute("reduction", "none"):
        case "add":
            return Cost(additions=n)
        case "mul":
            return Cost(multiplications=n)
        case "max" | "min":
            return Cost(comparisons=n)
        case _:
            return move(call)


def bare(call: Call) -> Cost:
    """No work where the bodies hold no operators; how often others run is not known here."""
    held = list(bodies(call.node))
    if not held or any(body.node for body in held):
        raise UnknownCostError(f"the work of the bodies of {call.node.op_type} is not known")
    return Cost()


FORMULAS["", "If"] = FORMULAS["", "Loop"] = bare
FORMULAS["", "ScatterElements"] = scatter
FORMULAS["", "ScatterND"] = scatter
