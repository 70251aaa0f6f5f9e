"""Features of bricks: numbers, independent of the system, for the prediction of latencies."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import onnx

from ..models.cache import entries_of, keep, kept
from .decomposition import Decomposition
from .graph.model_graph import ModelGraph
from .layer import ELEMENT_BITS, Layer, LayerSequence, TensorType
from .operators import PRODUCTS, Trait, operator_of
from .work import weights_read

EXTENTS = 8
"""Number of operator-specific numbers."""

_ACTIVATIONS = ("Relu", "Clip", "HardSigmoid", "HardSwish", "Sigmoid", "Tanh", "LeakyRelu", "QuickGelu", "Gelu")
"""Activations that can be fused into convolutions and products: their places are numbers in kept features."""


@dataclass(frozen=True, slots=True)
class Features:
    """Features of a brick.

    Attributes:
        operator: Operator of the layer with most work, with a suffix for its kernel variant (``Conv.1`` is a 1 x 1
            convolution); a final ``+`` means that the brick has other layers.
        flops: FLOPs of all layers; None if one layer's are unknown.
        weight_bytes: Weights read by one execution.
        read_bytes: Activations read.
        written_bytes: Activations written.
        extents: Inputs, outputs, last extent of the result, bits of an element, and operator-specific numbers.
    """

    operator: str
    flops: int | None
    weight_bytes: int
    read_bytes: int
    written_bytes: int
    extents: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Sum of all bytes."""
        return self.weight_bytes + self.read_bytes + self.written_bytes


def features_of(graph: ModelGraph, part: LayerSequence) -> Features:
    """Return the features of a sequence."""
    layers = [graph.layers[index] for index in part.layers]
    costs = [layer.cost for layer in layers]
    layer_flops = [cost.flops for cost in costs if cost is not None]
    flops = sum(layer_flops) if len(layer_flops) == len(costs) else None
    written = [kind for value in part.outputs if (kind := graph.types.get(value)) is not None]
    read = [kind for value in part.inputs if (kind := graph.types.get(value)) is not None]
    main = max(layers, key=lambda layer: (layer.cost.macs if layer.cost else 0, _elements(layer)))
    operator, numbers = _described(main)
    result = _made(main)
    reads = len(part.inputs) + len(part.weights)
    common = (reads, len(part.outputs), *result.shape[-1:], *(() if result.shape else (1,)), ELEMENT_BITS[result.dtype])
    most = sum(kind.nbytes for kind in read)
    if main.op_type.startswith(("Gather", "Slice")) and len(layers) == 1:
        most = min(most, result.nbytes)
    return Features(
        operator=operator + ("+" if len(layers) > 1 else ""),
        flops=flops if "Pool" not in operator or flops is None else min(flops, _pooled(main, numbers)),
        weight_bytes=weights_read(layers),
        read_bytes=most,
        written_bytes=sum(kind.nbytes for kind in written),
        extents=(*common, *(numbers + (0,) * EXTENTS)[:EXTENTS]),
    )


# Features by key in the user's cache folder. A database has keys and latencies only; learning needs features as well.


_KEPT, _FILE = "features", "features.json"

_FORMAT = 2
"""Version of the features."""


def keep_features(model: Decomposition) -> dict[str, Features]:
    """Return the features of a model's bricks by key, and keep them in the user's cache folder."""
    first = {part.key: part for part in reversed(model.sequences)}
    features_by_key = {key: features_of(model.graph, part) for key, part in first.items()}
    name = hashlib.sha256(" ".join((str(_FORMAT), *sorted(features_by_key))).encode()).hexdigest()
    if kept(_KEPT, name) is None:
        text = json.dumps(
            {"format": _FORMAT, "bricks": {key: astuple(features) for key, features in features_by_key.items()}}
        )

        def write(folder: Path) -> None:
            (folder / _FILE).write_text(text, "utf-8")

        keep(_KEPT, name, write)
    return features_by_key


def kept_features() -> dict[str, Features]:
    """Return all kept features by key; damaged files are skipped."""
    features_by_key: dict[str, Features] = {}
    for path in entries_of(_KEPT):
        try:
            record = json.loads((path / _FILE).read_text("utf-8"))
            if record["format"] == _FORMAT:
                for key, (operator, flops, weights, read, written, extents) in record["bricks"].items():
                    features_by_key[key] = Features(operator, flops, weights, read, written, tuple(extents))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it is written again with the model
    return features_by_key


def _made(layer: Layer) -> TensorType:
    """Return the type of a layer's first output with a known type."""
    return next((kind for kind in layer.output_types if kind is not None), TensorType("float", ()))


def _elements(layer: Layer) -> int:
    return _made(layer).elements


def _described(layer: Layer) -> tuple[str, tuple[int, ...]]:
    """Return the operator of a layer in its variant, and its specific numbers."""
    node = layer.canonical or layer.node
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    shapes = [operand.type.shape if operand.type is not None else () for operand in layer.operands]
    result_shape, name = _made(layer).shape, layer.kind
    if "Conv" in name and len(shapes) > 1 and len(shapes[_weights(name)]) > 2:
        return _convolution(name, shapes[_weights(name)], result_shape, attributes, sum(map(bool, shapes)))
    if _multiplies(layer.op_type) and shapes[0] and result_shape:
        inner = shapes[0][-2] if attributes.get("transA") and len(shapes[0]) > 1 else shapes[0][-1]
        rows = result_shape[-2] if len(result_shape) > 1 else 1
        constant = int(layer.operands[1].role == "weight") if len(layer.operands) > 1 else 0
        batch = 1 if constant else math.prod(result_shape[:-2])
        rows = math.prod(result_shape[:-1]) if constant else rows
        numbers = (result_shape[-1], inner, rows, batch, sum(map(bool, shapes)), _activation(attributes))
        return f"{name}.{'w' if constant else 'a'}", numbers
    if layer.op_type == "Transpose" and result_shape:
        kind, sizes = _transposition(shapes[0], attributes.get("perm"), ELEMENT_BITS[_made(layer).dtype])
        return f"{name}.{kind}", sizes
    if Trait.ROWS in operator_of(layer.node).traits:
        length = shapes[0][-1] if shapes and shapes[0] else 1
        run = _run(shapes[0], result_shape)  # 1: the last axis is reduced
        return name, (length, math.prod(shapes[0]) // max(1, length), math.prod(result_shape), run)
    if "Pool" in name:
        read = shapes[0][2:] if shapes else ()
        kernel = math.prod(map(min, attributes.get("kernel_shape") or read, read))  # padding is not computed
        channels = result_shape[1] if len(result_shape) > 1 else 1
        return name, (kernel, _first(attributes.get("strides")), channels, math.prod(result_shape[2:]))
    totals = [math.prod(shape) for shape in shapes if shape]
    uneven = len(totals) > 1 and any(total != math.prod(result_shape) for total in totals)
    axis, smallest = attributes.get("axis", 0), min(shapes, key=math.prod, default=())
    return name + (".b" if uneven else ""), (
        len(totals), min(totals, default=0), max(totals, default=0), axis if isinstance(axis, int) else 0,
        len(result_shape), _run(shapes[0] if shapes else (), result_shape), _run(smallest, result_shape),
        _run(smallest, (1,) * len(result_shape))
    )  # fmt: skip


def _transposition(shape: tuple[int, ...], permutation: Sequence[int] | None, bits: int) -> tuple[str, tuple[int, ...]]:
    """Return the variant and the numbers of a transposition; axes that stay neighbours count as one.

    ``block``: the innermost elements stay together. Otherwise, ``move``: one axis moves, for which ONNX Runtime has a
    loop of its own (``IsTransposeMovingSingleAxis`` in its ``transpose.cc``), and ``mix``. The numbers are the sizes of
    the innermost axes, of the source and of the result, the number of axes, the elements that move as one, and the
    power of two that divides the distance in bytes of the innermost elements of the result in the source, and of the
    source in the result: caches keep few of such addresses.
    """
    order = list(permutation if permutation is not None else range(len(shape))[::-1])
    merged: list[list[int]] = []
    for axis in (axis for axis in order if shape[axis] != 1):
        if merged and all(shape[between] == 1 for between in range(merged[-1][-1] + 1, axis)) and axis > merged[-1][-1]:
            merged[-1].append(axis)
        else:
            merged.append([axis])
    sizes = [math.prod(shape[axis] for axis in axes) for axes in merged]
    ranks = sorted(range(len(merged)), key=lambda at: merged[at][0])
    if len(merged) < 2:
        return "block", (math.prod(shape), math.prod(shape), 1, math.prod(shape), 0, 0)
    block = sizes[-1] if ranks[-1] == len(merged) - 1 else 1
    others = ([axis for axis in order if axis != moved] for moved in order)
    moves = any(rest == sorted(rest) for rest in others)
    read = math.prod(shape[merged[-1][-1] + 1 :]) * bits // 8
    written = math.prod(sizes[ranks[-1] + 1 :]) * bits // 8
    numbers = (sizes[ranks[-1]], sizes[-1], len(merged), block, read & -read, written & -written)
    return "block" if block > 1 else "move" if moves else "mix", numbers


def _run(shape: tuple[int, ...], result_shape: tuple[int, ...]) -> int:
    """Return the number of result elements that are contiguous in an input too."""
    run, padded = 1, (1,) * (len(result_shape) - len(shape)) + shape
    for ours, theirs in zip(reversed(padded), reversed(result_shape), strict=False):
        if ours != theirs:
            break
        run *= theirs
    return run


def _pooled(layer: Layer, numbers: tuple[int, ...]) -> int:
    """Return the FLOPs of a pooling without the part of the kernel outside its input."""
    return 2 * numbers[0] * _elements(layer)


def _activation(attributes: Mapping[str, Any]) -> int:
    """Return the number of the activation fused into an operator; 0 for none."""
    named = attributes.get("activation", b"")
    name = named.decode(errors="replace") if isinstance(named, bytes) else str(named)
    return _ACTIVATIONS.index(name) + 2 if name in _ACTIVATIONS else int(bool(name))


def _convolution(
    name: str, weights: tuple[int, ...], result_shape: tuple[int, ...], attributes: Mapping[str, Any], reads: int
) -> tuple[str, tuple[int, ...]]:
    groups, kernel = int(attributes.get("group", 1)), math.prod(weights[2:])
    kind = "" if kernel > 1 else ".1"
    if groups > 1:
        kind = ".dw" if weights[1] == 1 else ".g"
    strides, dilations = _first(attributes.get("strides")), _first(attributes.get("dilations"))
    spatial = math.prod(result_shape[2:])
    numbers = (weights[0], weights[1], kernel, strides * dilations, spatial, groups, reads, _activation(attributes))
    return f"{name}{kind}", numbers


def _weights(name: str) -> int:
    """Return the input slot of a convolution's weights."""
    return 3 if "QLinearConv" in name else 1


def _multiplies(name: str) -> bool:
    return name in PRODUCTS or "MatMul" in name or "Gemm" in name


def _first(values: object) -> int:
    return int(values[0]) if isinstance(values, list | tuple) and values else 1
