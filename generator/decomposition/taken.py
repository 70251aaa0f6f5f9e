"""A quantised model as a runtime takes it, so that bricks of it are taken alike.

* Signed values that the runtime turns into unsigned ones, as its kernels on a processor want them, are unsigned. ONNX
  Runtime does so on x86 where a value is quantised and converted back once; a brick that reads a signed value could not
  be turned, and would run another kernel than the model.
* Equal scales are one. Where a file has one for each conversion, a brick would have them drawn apart, and a runtime
  computes with quantised values as they are, in a pooling or a reshape, only where scales are equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from ...bricks.graph.graph import ModelGraph
from ...bricks.layer import LayerState
from ...bricks.operators import DEQUANTIZE, QUANTIZE
from ...models.skeleton import Skeleton

__all__ = ["unsigned_values", "with_shared_scales", "with_unsigned"]

_SHIFT = 128
_SCALE, _ZERO_POINT = 1, 2


def unsigned_values(source: ModelGraph, executed: ModelGraph, origins: Sequence[frozenset[int]]) -> frozenset[str]:
    """The values of a model that are signed bytes in its file, and unsigned ones where it is executed.

    Args:
        source: The model.
        executed: What the runtime executes for it.
        origins: For each layer of that the layers of the model that it came from.
    """
    found = set()
    for layer, origin in zip(executed.layers, origins, strict=True):
        known = layer.output_types[0] if layer.output_types else None
        if known is None or known.dtype != "uint8":
            continue
        for index in origin:
            made = source.layers[index]
            value = made.outputs[0] if made.outputs else ""
            was = source.types.get(value)
            readers = source.consumers(value)
            if (
                made.op_type == QUANTIZE
                and made.state is LayerState.LIVE
                and was is not None
                and was.dtype == "int8"
                and origin.isdisjoint(readers)
                and value not in source.outputs
                and all(source.layers[reader].op_type == DEQUANTIZE for reader in readers)
            ):
                found.add(value)
    return frozenset(found)


def with_unsigned(skeleton: Skeleton, values: Collection[str]) -> Skeleton:
    """The same model with some of its signed values as unsigned ones: their zero points are shifted.

    A value of which a zero point is left out, or is no constant, stays signed.

    Args:
        skeleton: The model, its control flow written out.
        values: Each made by QuantizeLinear, and read by DequantizeLinear alone.
    """
    model = onnx.ModelProto()
    model.CopyFrom(skeleton.model)
    graph = model.graph
    known = {tensor.name: tensor for tensor in graph.initializer}
    converting = defaultdict[str, list[onnx.NodeProto]](list)
    for node in graph.node:
        quantised = (
            node.output[:1] if node.op_type == QUANTIZE else node.input[:1] if node.op_type == DEQUANTIZE else ()
        )
        for value in quantised:
            converting[value].append(node)
    turned = [
        value
        for value, nodes in converting.items()
        if value in values and all(_zero_point(node) in known for node in nodes)
    ]
    for node in (node for value in turned for node in converting[value]):
        zero = known[_zero_point(node)]
        shifted = f"{zero.name}~unsigned"
        if shifted not in known:
            moved = numpy_helper.to_array(zero).astype(np.int16) + _SHIFT
            graph.initializer.append(numpy_helper.from_array(moved.astype(np.uint8), shifted))
            known[shifted] = graph.initializer[-1]
        node.input[_ZERO_POINT] = shifted
    stale = [value for value in graph.value_info if value.name not in turned]
    del graph.value_info[:]
    graph.value_info.extend(stale)
    return replace(skeleton, model=model)


def _zero_point(node: onnx.NodeProto) -> str:
    """The name of a conversion's zero point; empty where it has none."""
    return str(node.input[_ZERO_POINT]) if len(node.input) > _ZERO_POINT else ""


def with_shared_scales(skeleton: Skeleton) -> Skeleton:
    """The same model, its control flow written out, with equal scales of conversions under one name."""
    model = onnx.ModelProto()
    model.CopyFrom(skeleton.model)
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    first: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    for node in model.graph.node:
        if node.op_type in {QUANTIZE, DEQUANTIZE} and node.input[_SCALE] in held:
            scale = held[node.input[_SCALE]]
            content = (scale.data_type, tuple(scale.dims), numpy_helper.to_array(scale).tobytes())
            node.input[_SCALE] = first.setdefault(content, scale.name)
    return replace(skeleton, model=model)
