"""A model without its weights: the normal form for every later stage.

A skeleton is valid ONNX with large constants as *graph inputs marked as weights*. Whole models, zoo recipes and bricks
use the same form, so that one runner can execute all three.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

if TYPE_CHECKING:
    from .control_flow import CourseChoice

KEPT_ELEMENTS = 1024
"""Constants of up to this many elements keep their values in a skeleton (docs/contributing/architecture.md)."""

LOW = -1e4
"""Scores at most this low become 0 in Softmax."""

_ROLE, _WEIGHT = "role", "weight"
_VALUES, _CAUSAL = "values", "causal"
_GIVEN = "given"
_MASKS = {TensorProto.FLOAT, TensorProto.FLOAT16}
_MASK_ELEMENTS = 8192 * 8192
"""Maximum elements of an inspected mask."""


@dataclass(frozen=True, slots=True, eq=False)
class Skeleton:
    """A model's structure, bound to static input shapes, without weight payloads.

    Attributes:
        model: ONNX in normal form. Constant nodes, and ConstantOfShape nodes of a constant shape, are replaced. Each
            becomes an initializer (known value; at most ``KEPT_ELEMENTS`` elements, more only for masks, positions and
            indices computed by a zoo recipe) or a graph input with ``role=weight`` (known dtype and shape, unread
            value). Model-local functions are inlined. Every other graph input has static dimensions. Node order is the
            file's.
        bound: Values fixed by binding, by dimension name (``batch``, ``sequence_length``, or ``input[axis]`` for an
            unnamed dimension). Empty for a static model.
        weight_bytes: Bytes of all constants of the source, read or not.
        path: The file with the weights; None for a zoo recipe, which has synthetic weights.
        control: The given courses of its control flow, which is then expanded (``bricks.graph.control``); None to keep
            it, as in a brick.
        overridable: Constants that a caller may override (``NormalForm``).
        given: Digest of the user's own input values; empty without any. The small ones are marked (``given_value``).
        contents: Digest of the file with its weights, which may decide its time; empty for a zoo recipe.
        opened: A runtime keeps dynamic dimensions open, although this structure is bound.
    """

    model: onnx.ModelProto
    bound: Mapping[str, int] = field(default_factory=dict)
    weight_bytes: int = 0
    path: Path | None = None
    control: tuple[CourseChoice, ...] | None = None
    overridable: frozenset[str] = frozenset()
    given: str = ""
    contents: str = ""
    opened: bool = False


def is_weight(value: onnx.ValueInfoProto) -> bool:
    """Return True if a graph input is a weight, which the runner fills with seeded values."""
    return any(entry.key == _ROLE and entry.value == _WEIGHT for entry in value.metadata_props)


def mark_weight(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Mark a graph input as a weight (in place) and return it."""
    if not is_weight(value):
        entry = value.metadata_props.add()
        entry.key, entry.value = _ROLE, _WEIGHT
    return value


def is_causal(value: onnx.ValueInfoProto) -> bool:
    """Return True if a graph input is marked as scores, or a mask of scores, with hidden future positions."""
    return any(entry.key == _VALUES and entry.value == _CAUSAL for entry in value.metadata_props)


def mark_causal(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Mark a graph input as causal (in place) and return it."""
    if not is_causal(value):
        value.metadata_props.add(key=_VALUES, value=_CAUSAL)
    return value


def given_value(value: onnx.ValueInfoProto) -> npt.NDArray[Any] | None:
    """Return the user's own value of a graph input; None if it is not given."""
    for entry in value.metadata_props:
        if entry.key == _GIVEN:
            tensor = value.type.tensor_type
            kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            return np.array(json.loads(entry.value)).astype(kind).reshape([dim.dim_value for dim in tensor.shape.dim])
    return None


def mark_given(graph: onnx.GraphProto, values: Mapping[str, npt.NDArray[Any]]) -> None:
    """Mark graph inputs with the user's own values (in place): numbers of up to ``KEPT_ELEMENTS`` elements."""
    for value in graph.input:
        array = values.get(value.name)
        if array is not None and array.size <= KEPT_ELEMENTS and array.dtype.kind in "biuf":
            value.metadata_props.add(key=_GIVEN, value=json.dumps(array.tolist()))


def hides_future(values: npt.NDArray[Any]) -> bool:
    """Return True if values are False, or at most ``LOW``, exactly at the keys behind their query.

    Args:
        values: Shape (..., queries, keys), the last query at the last key.
    """
    queries, keys = values.shape[-2:] if values.ndim > 1 else (0, 0)
    if not 1 < queries <= keys or values.dtype.kind not in "bf" or not _hidden(values[..., 0, -1]).all():
        return False
    return bool((_hidden(values) == _future(queries, keys)).all())


def hide_future(values: npt.NDArray[Any]) -> None:
    """Hide the scores of every key behind its query, in place, with the lowest number of their type."""
    queries, keys = values.shape[-2:]
    lowest = np.finfo(values.dtype).min if values.dtype.kind == "f" else LOW
    values[..., _future(queries, keys)] = lowest


def may_be_mask(dtype: int, dims: Sequence[int]) -> bool:
    """Return True if a constant's type and shape allow a mask: one matrix, of booleans or not of rank two."""
    *leading, queries, keys = dims if len(dims) > 1 else (0, 0)
    if not 1 < queries <= keys or any(size != 1 for size in leading) or queries * keys > _MASK_ELEMENTS:
        return False
    return dtype == TensorProto.BOOL or (dtype in _MASKS and bool(leading))


def is_causal_mask(tensor: TensorProto) -> bool:
    """Return True if a constant is a causal mask; external values are not read."""
    if not may_be_mask(tensor.data_type, tensor.dims) or tensor.data_location == TensorProto.EXTERNAL:
        return False
    try:
        return hides_future(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, LookupError):
        return False  # broken; reported on use of its values


def _hidden(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    hidden: npt.NDArray[np.bool_] = ~values if values.dtype.kind == "b" else values <= LOW
    return hidden


def _future(queries: int, keys: int) -> npt.NDArray[np.bool_]:
    return ~np.tri(queries, keys, keys - queries, dtype=bool)
