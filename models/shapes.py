"""Shapes that a graph states."""

from __future__ import annotations

from onnx import GraphProto, TypeProto

__all__ = ["Shape", "declared_shape", "static_shape", "static_shapes"]

Shape = tuple[int, ...]


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
