"""The constants of a model in all forms of the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from onnx import GraphProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

from ..errors import BrokenModel
from .external import count_elements, payload_bytes, raw_tensor
from .skeleton import KEPT_ELEMENTS, is_causal_mask
from .subgraphs import is_constant


@dataclass(frozen=True, slots=True)
class Constant:
    """A value fixed by the file.

    Attributes:
        dtype: ONNX's number of the element type.
        dims: Static shape.
        nbytes: Bytes in the source: dense, or values and indices of a sparse tensor.
        tensor: The values, for at most ``KEPT_ELEMENTS`` elements; None for larger ones.
        causal: True for a larger constant that is a causal mask.
    """

    dtype: int
    dims: tuple[int, ...]
    nbytes: int
    tensor: TensorProto | None
    causal: bool = False


def initializers(graph: GraphProto) -> Iterator[tuple[str, Constant]]:
    """Yield name and value of each initializer of a graph, dense and sparse."""
    for tensor in graph.initializer:
        name = tensor.name
        yield name, dense_constant(tensor, name)
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        yield name, sparse_constant(sparse, name)


def graph_constants(graph: GraphProto) -> Iterator[tuple[str, Constant]]:
    """Yield name and value of each initializer and Constant node of a graph, without its subgraphs."""
    yield from initializers(graph)
    for node in graph.node:
        if is_constant(node) and node.output:
            yield node.output[0], node_constant(node, node.output[0])


def dense_constant(tensor: TensorProto, name: str) -> Constant:
    """Return the constant of a tensor."""
    dims = tuple(tensor.dims)
    elements = count_elements(dims)
    dtype = tensor.data_type
    values = raw_tensor(tensor, name) if elements <= KEPT_ELEMENTS else None
    return Constant(dtype, dims, payload_bytes(dtype, elements), values, values is None and is_causal_mask(tensor))


def sparse_constant(sparse: SparseTensorProto, name: str) -> Constant:
    """Return the dense constant that a sparse tensor represents.

    Raises:
        BrokenModel: Indices, values and shape do not match.
    """
    values, indices = sparse.values, sparse.indices
    dims = tuple(sparse.dims)
    stored = sum(payload_bytes(part.data_type, count_elements(part.dims)) for part in (values, indices))
    elements = count_elements(dims)
    if values.data_type == TensorProto.STRING:
        raise BrokenModel(f"sparse constant '{name}' is of strings, which have no zero")
    if elements > KEPT_ELEMENTS:
        return Constant(values.data_type, dims, stored, None)
    try:
        dense = np.zeros(elements, helper.tensor_dtype_to_np_dtype(values.data_type))
        at = numpy_helper.to_array(raw_tensor(indices, name))
        dense[at if at.ndim == 1 else np.ravel_multi_index(tuple(at.T), dims)] = numpy_helper.to_array(
            raw_tensor(values, name)
        )
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise BrokenModel(f"the indices of sparse constant '{name}' do not fit its shape {list(dims)}") from error
    return Constant(values.data_type, dims, stored, numpy_helper.from_array(dense.reshape(dims), name))


def node_constant(node: NodeProto, name: str) -> Constant:
    """Return the constant of a Constant node, in any of its attribute forms.

    Raises:
        BrokenModel: The node lacks a value.
    """
    for attribute in node.attribute:
        if attribute.name == "value":
            return dense_constant(attribute.t, name)
        if attribute.name == "sparse_value":
            return sparse_constant(attribute.sparse_tensor, name)
        if form := _FORMS.get(attribute.name):
            dtype, field, listed = form
            values = getattr(attribute, field)
            return _listed(dtype, (len(values),), values, name) if listed else _listed(dtype, (), [values], name)
    raise BrokenModel(f"Constant '{name}' has no value")


_FORMS = {
    "value_float": (TensorProto.FLOAT, "f", False),
    "value_floats": (TensorProto.FLOAT, "floats", True),
    "value_int": (TensorProto.INT64, "i", False),
    "value_ints": (TensorProto.INT64, "ints", True),
    "value_string": (TensorProto.STRING, "s", False),
    "value_strings": (TensorProto.STRING, "strings", True),
}
"""Attribute of a Constant node to element type, field of the attribute, and True for a list."""


def _listed(dtype: int, dims: tuple[int, ...], values: object, name: str) -> Constant:
    elements = count_elements(dims)
    tensor = None
    if elements <= KEPT_ELEMENTS:
        tensor = TensorProto(data_type=dtype, dims=dims, name=name)
        if dtype == TensorProto.STRING:
            tensor.string_data.extend(values)
        else:
            tensor.raw_data = np.asarray(values, "<f4" if dtype == TensorProto.FLOAT else "<i8").tobytes()
    return Constant(dtype, dims, payload_bytes(dtype, elements), tensor)


def filled_constant(node: NodeProto, dims: tuple[int, ...], name: str) -> Constant:
    """Return the constant of a ConstantOfShape node with known shape (its value repeated, by default 0.0).

    Raises:
        BrokenModel: The value has several elements, or a dimension is negative.
    """
    elements = count_elements(dims)
    dtype: int = TensorProto.FLOAT
    element = bytes(4)
    for attribute in node.attribute:
        if attribute.name == "value":
            dtype, element = _element(attribute.t.SerializeToString())
    nbytes = payload_bytes(dtype, elements)
    tensor = None
    if elements <= KEPT_ELEMENTS:
        if len(element) * elements == nbytes:
            raw = element * elements
        else:  # types below a byte are packed: int4 1 is 0x01 alone and 0x11 as a pair
            repeated = TensorProto(data_type=dtype, dims=[1], raw_data=element)
            raw = numpy_helper.from_array(np.repeat(numpy_helper.to_array(repeated), elements)).raw_data
        tensor = TensorProto(data_type=dtype, dims=dims, name=name, raw_data=raw)
    return Constant(dtype, dims, nbytes, tensor)


@lru_cache(maxsize=64)  # models have hundreds of these nodes with few values
def _element(serialised: bytes) -> tuple[int, bytes]:
    value = TensorProto.FromString(serialised)
    if count_elements(value.dims) != 1:
        raise BrokenModel(f"a ConstantOfShape has a value of shape {list(value.dims)}, not one element")
    if value.data_type == TensorProto.STRING:
        raise BrokenModel("a ConstantOfShape of strings is not ONNX")
    return value.data_type, raw_tensor(value, value.name).raw_data
