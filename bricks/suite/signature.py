"""What a brick reads and writes, in words: for people, and for tables."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ...models.skeleton import is_weight
from .brick import Brick

__all__ = ["Signature", "signature_of"]


@dataclass(frozen=True, slots=True)
class Signature:
    """Types and shapes of a brick, as ``float[1,64,56,56]``; several are joined with a blank.

    Attributes:
        inputs: Of activations.
        weights: Of weights.
        outputs: Of what it hands on.
        strides: Of its operators that have strides, as ``2x2``; empty where none has.
    """

    inputs: str
    weights: str
    outputs: str
    strides: str


def signature_of(brick: Brick) -> Signature:
    """Read the signature out of a brick's file."""
    graph = onnx.load_model_from_string(brick.model).graph
    activations = [value for value in graph.input if not is_weight(value)]
    strides = [attribute.ints for node in graph.node for attribute in node.attribute if attribute.name == "strides"]
    return Signature(
        inputs=" ".join(map(_typed, activations)),
        weights=" ".join(_typed(value) for value in graph.input if is_weight(value)),
        outputs=" ".join(map(_typed, graph.output)),
        strides=" ".join("x".join(map(str, steps)) for steps in strides),
    )


def _typed(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    return f"{name}[{','.join(str(dim.dim_value) for dim in tensor.shape.dim)}]"
