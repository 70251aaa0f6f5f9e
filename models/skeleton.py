"""A model without its weights: the normal form that every later stage reads.

A skeleton is valid ONNX in which large constants are *graph inputs marked as weights*. The same form serves a
whole model, a zoo recipe and a brick of a suite, so that one runner can execute all three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

if TYPE_CHECKING:
    from .control import CourseChoice

KEPT_ELEMENTS = 1024
"""Constants of up to this many elements keep their values in a skeleton (docs/architecture.md)."""

LOW = -1e4
"""What is as low as this, Softmax makes nothing of."""

_ROLE, _WEIGHT = "role", "weight"
_VALUES, _CAUSAL = "values", "causal"
_MASKS = {TensorProto.FLOAT, TensorProto.FLOAT16}
_MASK_ELEMENTS = 8192 * 8192
"""Of the longest mask that is looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Skeleton:
    """A model's structure, bound to static input shapes, without weight payloads.

    Attributes:
        model: ONNX in normal form. No Constant nodes and no ConstantOfShape of a constant shape: each is an
            initializer (value known; at most ``KEPT_ELEMENTS`` elements, more only for the masks, positions and
            indices that a zoo recipe computes) or a graph input with ``role=weight`` (dtype and shape known, value
            not read). Model-local functions are inlined. Every other graph input
            has static dimensions. Node order is the file's.
        bound: What binding fixed, by dimension name (``batch``, ``sequence_length``, or ``input[axis]`` for an
            unnamed dimension) to its value. Empty for a model that was static.
        weight_bytes: Bytes of all constants of the source, whether or not they were read.
        path: The file with the weights; None for a zoo recipe, whose weights are synthetic.
        control: What was said of the course of its control flow, which is then written out (``bricks.graph.control``);
            None where it stays as it is, as in a brick.
        overridable: Constants that a caller may override (``NormalForm``).
    """

    model: onnx.ModelProto
    bound: Mapping[str, int] = field(default_factory=dict)
    weight_bytes: int = 0
    path: Path | None = None
    control: tuple[CourseChoice, ...] | None = None
    overridable: frozenset[str] = frozenset()


def is_weight(value: onnx.ValueInfoProto) -> bool:
    """Whether a graph input is a weight, that is, filled by the runner with seeded values."""
    return any(entry.key == _ROLE and entry.value == _WEIGHT for entry in value.metadata_props)


def mark_weight(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Mark a graph input as a weight (in place) and return it."""
    if not is_weight(value):
        entry = value.metadata_props.add()
        entry.key, entry.value = _ROLE, _WEIGHT
    return value


def is_causal(value: onnx.ValueInfoProto) -> bool:
    """Whether a graph input is marked as scores, or a mask of them, that hide what is still to come."""
    return any(entry.key == _VALUES and entry.value == _CAUSAL for entry in value.metadata_props)


def mark_causal(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Mark a graph input so (in place) and return it."""
    if not is_causal(value):
        value.metadata_props.add(key=_VALUES, value=_CAUSAL)
    return value


def hides_future(values: npt.NDArray[Any]) -> bool:
    """Whether values are False, or at most ``LOW``, at every key behind its query, and nowhere else.

    Args:
        values: Of shape (..., queries, keys), the last query at the last key.
    """
    queries, keys = values.shape[-2:] if values.ndim > 1 else (0, 0)
    if not 1 < queries <= keys or values.dtype.kind not in "bf" or not _hidden(values[..., 0, -1]).all():
        return False
    return bool((_hidden(values) == _future(queries, keys)).all())


def hide_future(values: npt.NDArray[Any]) -> None:
    """Hide the scores of every key behind its query, in place: with the lowest number of their type."""
    queries, keys = values.shape[-2:]
    lowest = np.finfo(values.dtype).min if values.dtype.kind == "f" else LOW
    values[..., _future(queries, keys)] = lowest


def may_be_mask(dtype: int, dims: Sequence[int]) -> bool:
    """Whether a constant could be a mask, by its element type and shape: one matrix, of booleans or not of rank two."""
    *leading, queries, keys = dims if len(dims) > 1 else (0, 0)
    if not 1 < queries <= keys or any(size != 1 for size in leading) or queries * keys > _MASK_ELEMENTS:
        return False
    return dtype == TensorProto.BOOL or (dtype in _MASKS and bool(leading))


def is_causal_mask(tensor: TensorProto) -> bool:
    """Whether a constant is a mask that hides what is still to come; one whose values stand elsewhere is not read."""
    if not may_be_mask(tensor.data_type, tensor.dims) or tensor.data_location == TensorProto.EXTERNAL:
        return False
    try:
        return hides_future(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, LookupError):
        return False  # broken; whoever needs its values says so


def _hidden(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    hidden: npt.NDArray[np.bool_] = ~values if values.dtype.kind == "b" else values <= LOW
    return hidden


def _future(queries: int, keys: int) -> npt.NDArray[np.bool_]:
    return ~np.tri(queries, keys, keys - queries, dtype=bool)
