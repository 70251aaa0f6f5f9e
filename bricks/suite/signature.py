"""What a brick reads and writes, in words: for people, and for tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx

from ...models.shapes import declared_shape
from ...models.skeleton import is_weight
from ..graph.graph import ModelGraph
from ..sequence import LayerSequence
from ..tensor import TensorType
from .brick import Brick

__all__ = ["Signature", "signature_in", "signature_of"]


@dataclass(frozen=True, slots=True)
class Signature:
    """Types and shapes of a brick, as ``float[1,64,56,56]``; several are joined with a blank.

    Attributes:
        inputs: Of activations.
        weights: Of weights.
        outputs: Of what it hands on.
        strides: Of its operators that have strides, as ``2x2``; empty where none has.
        kernel: Of its convolutions and poolings, as ``3x3``; likewise.
    """

    inputs: str
    weights: str
    outputs: str
    strides: str
    kernel: str = ""


def signature_of(brick: Brick) -> Signature:
    """Read the signature out of a brick's file."""
    graph = onnx.load_model_from_string(brick.model).graph
    types = {value.name: _type(value) for value in (*graph.input, *graph.value_info)}
    spatial = [_spatial(node, types.get(node.input[1]) if len(node.input) > 1 else None) for node in graph.node]
    return Signature(
        inputs=_joined(types[value.name] for value in graph.input if not is_weight(value)),
        weights=_joined(types[value.name] for value in graph.input if is_weight(value)),
        outputs=_joined(map(_type, graph.output)),
        strides=_sizes(strides for _, strides in spatial),
        kernel=_sizes(kernel for kernel, _ in spatial),
    )


def signature_in(graph: ModelGraph, part: LayerSequence) -> Signature:
    """The signature of a sequence of a model: equal to that of its brick, but for constants that are no weights.

    Args:
        graph: The graph that was cut.
        part: The sequence.
    """
    layers = [graph.layers[index] for index in part.layers]
    spatial = [_spatial(one.node, one.operands[1].type if len(one.operands) > 1 else None) for one in layers]
    return Signature(
        inputs=_joined(map(graph.types.get, part.inputs)),
        weights=_joined(map(graph.types.get, part.weights)),
        outputs=_joined(map(graph.types.get, part.outputs)),
        strides=_sizes(strides for _, strides in spatial),
        kernel=_sizes(kernel for kernel, _ in spatial),
    )


def _spatial(node: onnx.NodeProto, weight: TensorType | None) -> tuple[Sequence[int], Sequence[int]]:
    """Kernel and strides of an operator; empty where it has none."""
    known = {
        attribute.name: attribute.ints for attribute in node.attribute if attribute.name in {"kernel_shape", "strides"}
    }
    kernel: Sequence[int] = known.get("kernel_shape", ())
    if not kernel and "Conv" in node.op_type and weight is not None:
        kernel = weight.shape[2:]
    return kernel, known.get("strides") or (1,) * len(kernel)


def _sizes(several: Iterable[Sequence[int]]) -> str:
    return " ".join("x".join(map(str, sizes)) for sizes in several if sizes)


def _joined(types: Iterable[TensorType | None]) -> str:
    return " ".join(f"{one.dtype}[{','.join(map(str, one.shape))}]" for one in types if one is not None)


def _type(value: onnx.ValueInfoProto) -> TensorType:
    tensor = value.type.tensor_type
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    return TensorType(name, declared_shape(value.type))
