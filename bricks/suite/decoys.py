"""Decoys: dummy bricks similar to the real ones, to hide the models of a suite.

A decoy is a real brick with other channel counts, lengths or planes. Dimensions of equal size change together, which
keeps most networks valid; invalid ones are drawn again. Only the owner of the seed can distinguish decoys from bricks.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from ...errors import DlbricksError, UsageError
from ...models.skeleton import Skeleton
from ...models.subgraphs import attributes_of
from ..cutting.sequences import make_sequence
from ..graph.model_graph import build_graph
from ..layer import Layer, Role
from .brick import Brick, build_brick

_SMALLEST = 4
"""Dimensions below this keep their size: batches, heads, colour channels, kernels, axes."""
_FACTORS = (0.5, 0.625, 0.75, 0.875, 1.125, 1.25, 1.5, 1.75, 2.0)
_SIZED_ATTRIBUTES = frozenset({"group", "hidden_size"})
"""Attributes that hold a number of channels."""
_ATTEMPTS = 40
"""Maximum draws per decoy."""
_GROWTH = 4
"""Maximum ratio of a decoy's work or bytes to its brick's, to limit the cost of measuring it."""


def decoys(bricks: Collection[Brick], n: int, seed: int | str) -> dict[str, Brick]:
    """Draw decoys.

    Args:
        bricks: The real bricks.
        n: How many decoys.
        seed: The secret. The same bricks, number and seed give the same decoys on every machine.

    Returns:
        Decoys by key; their keys differ from the real bricks' keys.

    Raises:
        UsageError: ``n`` is negative, or more than these bricks allow.
    """
    if n < 0:
        raise UsageError(f"the number of decoys must be at least 0, got {n}", remedy="give another number")
    models = [brick for _, brick in sorted({brick.key: brick for brick in bricks}.items())]
    taken = {brick.key for brick in models}
    new_decoys: dict[str, Brick] = {}
    dice = _dice(seed)
    for _ in range(n * _ATTEMPTS if models else 0):
        if len(new_decoys) == n:
            break
        decoy = _vary(models[next(dice) % len(models)], dice)
        if decoy is not None and decoy.key not in taken:
            taken.add(decoy.key)
            new_decoys[decoy.key] = decoy
    if len(new_decoys) < n:
        raise UsageError(f"only {len(new_decoys)} of {n} decoys can be made from these bricks", remedy="ask for fewer")
    return new_decoys


def _dice(seed: int | str) -> Iterator[int]:
    """Yield random numbers of 64 bits, equal in every Python version; they do not reveal the seed.

    The bias of a remainder is below 1e-12.
    """
    for counter in itertools.count():
        yield int.from_bytes(hashlib.sha256(f"dlbricks decoys {seed} {counter}".encode()).digest()[:8], "big")


def _vary(brick: Brick, dice: Iterator[int]) -> Brick | None:
    """Return the brick with some dimensions changed; None if this is not a valid network."""
    model = onnx.ModelProto.FromString(brick.model)
    sizes = _draw_sizes(model, dice)
    if not sizes:
        return None
    _resize(model.graph, sizes)
    try:
        graph = build_graph(Skeleton(model))
        if len(graph.live) != len(graph.layers) or not all(map(_consistent, graph.layers)):
            return None
        decoy = build_brick(graph, make_sequence(graph, graph.live))
    except DlbricksError:  # not a valid network: the caller draws again
        return None
    return decoy if _comparable(brick, decoy) else None


def _draw_sizes(model: onnx.ModelProto, dice: Iterator[int]) -> dict[int, int]:
    """Choose some of the sizes of the inputs, and a new size for each."""
    occurring = sorted(
        {dimension.dim_value for dimension in _resizable(model.graph) if dimension.dim_value >= _SMALLEST}
    )
    sizes = {}
    common = _FACTORS[next(dice) % len(_FACTORS)]
    for size in occurring:
        # Related sizes (a plane and its half) most often match again if they change by one factor.
        choice = next(dice) % 3
        if choice == 0:
            continue
        factor = common if choice == 1 else _FACTORS[next(dice) % len(_FACTORS)]
        step = math.gcd(size, 8)
        changed = max(step, round(size * factor / step) * step)
        if changed != size:
            sizes[size] = changed
    return sizes


def _resizable(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Yield the dimensions of the inputs that may change: all except filter kernels, which attributes repeat."""
    slots = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "DeformConv": 1, "QLinearConv": 3}
    filters = {node.input[slots[node.op_type]] for node in graph.node if node.op_type in slots}
    for value in graph.input:
        dimensions = value.type.tensor_type.shape.dim
        yield from dimensions[:2] if value.name in filters else dimensions


def _resize(graph: onnx.GraphProto, sizes: Mapping[int, int]) -> None:
    """Change sizes in inputs, constants and attributes, and remove inferred shapes."""
    for dimension in _resizable(graph):
        dimension.dim_value = sizes.get(dimension.dim_value, dimension.dim_value)
    targets = {node.input[1] for node in graph.node if node.op_type == "Reshape" and len(node.input) > 1}
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT64:
            name = tensor.name
            array = numpy_helper.to_array(tensor)
            changed = np.array([sizes.get(int(item), int(item)) for item in array.ravel()], np.int64)
            if name in targets and changed.size:
                changed[changed.argmax()] = -1  # usually a product of other sizes, inferred from them
            tensor.CopyFrom(numpy_helper.from_array(changed.reshape(array.shape), name))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _SIZED_ATTRIBUTES:
                attribute.i = sizes.get(attribute.i, attribute.i)
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")


def _consistent(layer: Layer) -> bool:
    """Return True if the operands of a layer match; covers cases that ONNX's shape inference does not check."""
    shapes = [operand.type.shape if operand.type else None for operand in layer.operands]
    data = shapes[0] if shapes else None
    if data is None:
        return False
    node = layer.canonical or layer.node
    group = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
    others = [shape for shape in shapes[1:] if shape is not None]
    match layer.op_type:
        case "Conv":
            fits = data[1] == others[0][1] * group and others[0][0] % group == 0
        case "ConvTranspose":
            fits = data[1] == others[0][0] and others[0][0] % group == 0
        case "BatchNormalization" | "InstanceNormalization" | "GroupNormalization":
            fits = all(shape == (data[1],) for shape in others)
        case "LayerNormalization" | "RMSNormalization":
            fits = all(data[-len(shape) :] == shape for shape in others if shape)
        case "Reshape":
            produced = layer.output_types[0]
            fits = produced is not None and produced.elements == math.prod(data)
        case "MaxPool" | "AveragePool" | "LpPool":
            fits = _whole_windows(node, data)
        case "Gather" | "GatherElements" | "GatherND":  # constant indices may no longer be in range
            fits = all(operand.role is not Role.CONSTANT for operand in layer.operands)
        case _:
            fits = True
    return fits


def _whole_windows(node: onnx.NodeProto, data: tuple[int, ...]) -> bool:
    """Return True if pooling windows fill the plane: runtimes disagree on ``ceil_mode`` for a remainder."""
    values = attributes_of(node)
    if not values.get("ceil_mode", 0):
        return True
    spatial = len(data) - 2
    pads = values.get("pads", [0] * 2 * spatial)
    return all(
        (data[2 + axis] + pads[axis] + pads[axis + spatial] - kernel) % stride == 0
        for axis, (kernel, stride) in enumerate(
            zip(values["kernel_shape"], values.get("strides", [1] * spatial), strict=True)
        )
    )


def _comparable(brick: Brick, decoy: Brick) -> bool:
    """Return True if a decoy is about as large as its brick."""
    sizes = ("weight_bytes", "input_bytes", "output_bytes")
    pairs = [(getattr(brick, size), getattr(decoy, size)) for size in sizes]
    if brick.cost is not None and decoy.cost is not None:
        pairs.append((brick.cost.flops, decoy.cost.flops))
    return all(mine <= _GROWTH * max(1, theirs) for theirs, mine in pairs)
