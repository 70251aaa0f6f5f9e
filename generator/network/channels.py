"""Which axis of each value of a network holds channels.

An axis is counted from the end, as broadcasting aligns shapes: -3 in images, -1 in the rows of a product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx

from ...bricks.operators import GLOBAL_POOLS, POINTWISE, POOLS, PRODUCTS
from ...errors import UnsupportedBrick
from ...models.names import is_standard
from ...models.shapes import infer_shapes, static_shapes
from ...models.skeleton import is_weight

__all__ = ["Channels", "Shape", "find_channels"]

_SEEDS = POOLS | PRODUCTS | {"Conv"}
"""Operators that have kernels for some numbers of channels only, or faster ones."""

_OF_IMAGES = POOLS | GLOBAL_POOLS | {"BatchNormalization", "Conv"}
"""Axis 1 holds the channels of what they read and write."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of a network's values.

    Attributes:
        shapes: Value to shape, of all that are static; those of constants included.
        axes: Value to the axis of its channels, counted from the end; a value whose channels are not known is missing.
    """

    shapes: Mapping[str, Shape]
    axes: Mapping[str, int]

    def count(self, value: str) -> int:
        """Number of channels of a value that has an axis of them."""
        return self.shapes[value][self.axes[value]]

    def counts(self) -> set[int]:
        """All numbers of channels that there are."""
        return {self.count(value) for value in self.axes}


def find_channels(model: onnx.ModelProto) -> Channels:
    """Find the channels of what convolutions, pools and products with constants read and write, and what shares them.

    Args:
        model: Of a network, or a brick in skeleton form; large initializers may be without their values.

    Raises:
        UnsupportedBrick: There is none of these operators, or two of them mean different axes of the same value.
    """
    shapes = static_shapes(infer_shapes(model, propagate=False).graph)
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {value.name for value in model.graph.input if is_weight(value)}
    nodes = [node for node in model.graph.node if is_standard(node)]
    axes: dict[str, int] = {}
    for node in nodes:
        if node.op_type not in _SEEDS or node.input[0] in constants:
            continue
        if node.op_type not in PRODUCTS or node.input[1] in constants:
            _assign(axes, node, (node.input[0], node.output[0]), shapes)
    if not axes:
        raise UnsupportedBrick("no convolution, pool or product with constant weights, whose channels could be padded")
    known = -1
    while known < len(axes):
        known = len(axes)
        for node in nodes:
            _spread(axes, node, constants, shapes)
    return Channels(shapes, axes)


def _spread(
    axes: dict[str, int], node: onnx.NodeProto, constants: Collection[str], shapes: Mapping[str, Shape]
) -> None:
    """Carry the axis that is known of one value of a node to its others."""
    if node.op_type in GLOBAL_POOLS or node.op_type == "BatchNormalization":
        if node.input[0] not in constants and (node.input[0] in axes or node.output[0] in axes):
            _assign(axes, node, (node.input[0], node.output[0]), shapes)
    elif node.op_type in POINTWISE:
        values = [value for value in (*node.input, node.output[0]) if value and value not in constants]
        for axis in {axes[value] for value in values if value in axes}:
            wanted = _size(shapes.get(node.output[0]), axis)
            # A value that is broadcast over channels has none itself.
            alike = (value for value in values if wanted is not None and _size(shapes.get(value), axis) == wanted)
            _set(axes, node, ((value, axis) for value in alike))


def _assign(axes: dict[str, int], node: onnx.NodeProto, values: Iterable[str], shapes: Mapping[str, Shape]) -> None:
    """Note what an operator says of its values by itself."""
    for value in values:
        if value not in shapes:
            raise UnsupportedBrick(f"{node.op_type} of a value without a static shape")
        axis = 1 - len(shapes[value]) if node.op_type in _OF_IMAGES else -1
        if not -len(shapes[value]) <= axis < 0:
            raise UnsupportedBrick(f"{node.op_type} of a value that has too few dimensions for channels")
        _set(axes, node, [(value, axis)])


def _set(axes: dict[str, int], node: onnx.NodeProto, found: Iterable[tuple[str, int]]) -> None:
    for value, axis in found:
        if axes.setdefault(value, axis) != axis:
            raise UnsupportedBrick(f"{node.op_type} takes another axis for channels than its neighbours")


def _size(shape: Shape | None, axis: int) -> int | None:
    return None if shape is None or len(shape) < -axis else shape[axis]
