"""Shapes: those that a graph states, and those that ONNX's inference finds."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, TypeProto, checker, shape_inference

from ..errors import BrokenModel

__all__ = ["Shape", "declared_shape", "infer_shapes", "static_shape", "static_shapes"]

Shape = tuple[int, ...]


def infer_shapes(model: ModelProto, *, strict: bool = False, propagate: bool = True) -> ModelProto:
    """A copy of a model with the type of every value that ONNX's shape inference finds, in bodies too.

    Args:
        model: The model; not changed.
        strict: Refuse what cannot be inferred, instead of leaving it without a type.
        propagate: Follow the values of shapes, too, so that what they decide is found.

    Raises:
        BrokenModel: Inference refuses the model as a whole.
    """
    try:
        return shape_inference.infer_shapes(model, strict_mode=strict, data_prop=propagate)
    except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BrokenModel(f"shape inference refuses the model: {first}", remedy="check it with onnx.checker") from error


def declared_shape(kind: TypeProto) -> Shape:
    """The dimensions that a tensor's type states, where all are known to be stated: any other one counts as 0."""
    return tuple([dim.dim_value for dim in kind.tensor_type.shape.dim])


def static_shape(kind: TypeProto) -> Shape | None:
    """The shape of a tensor; None where the rank or a dimension is not stated, or it is no tensor."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    stated = all(dim.HasField("dim_value") for dim in kind.tensor_type.shape.dim)
    return declared_shape(kind) if stated else None


def static_shapes(graph: GraphProto) -> dict[str, Shape]:
    """The shapes of all values that a graph states, by name, initializers included."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.output, *graph.input):
        shape = static_shape(value.type)
        if shape is not None:
            shapes[value.name] = shape
    return shapes
