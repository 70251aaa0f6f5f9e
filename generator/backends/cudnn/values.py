"""What the tensors of an operation graph hold in memory, and an output back from memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .operations import Derivation, Tensor

__all__ = ["from_memory", "in_memory"]

Array = npt.NDArray[Any]


def in_memory(tensor: Tensor, values: Mapping[str, Array], *, channels_last: bool) -> Array:
    """Elements of an input or a weight in the order in which they lie in memory.

    Args:
        tensor: As translated, before its dimensions were merged: merging moves nothing.
        values: Of the network, by name.
        channels_last: Whether images have their channels fastest in memory.
    """
    if tensor.derivation is not Derivation.NONE:
        return _laid_out(tensor, _derived(tensor, values), channels_last=channels_last)
    array = values[tensor.sources[0]]
    if not tensor.order:
        return _laid_out(tensor, array.reshape(tensor.shape), channels_last=channels_last)
    if not tensor.relaid:
        return array.reshape(-1)  # the order is that of the network
    ordered = array.reshape([tensor.shape[at] for at in tensor.order])
    return np.ascontiguousarray(ordered.transpose(np.argsort(tensor.order)))


def from_memory(tensor: Tensor, flat: Array, shape: tuple[int, ...], *, channels_last: bool) -> Array:
    """The value of an output.

    Args:
        tensor: As for ``in_memory``.
        flat: Its elements in the order in which they lie in memory.
        shape: Of the value in the network.
        channels_last: As for ``in_memory``.
    """
    if not (channels_last and tensor.image):
        return flat.reshape(shape)
    ordered = flat.reshape((tensor.shape[0], *tensor.shape[2:], tensor.shape[1]))
    return np.ascontiguousarray(np.moveaxis(ordered, -1, 1)).reshape(shape)


def _laid_out(tensor: Tensor, array: Array, *, channels_last: bool) -> Array:
    if not (channels_last and tensor.image):
        return np.ascontiguousarray(array)
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def _derived(tensor: Tensor, values: Mapping[str, Array]) -> Array:
    """Of a batch normalization (https://onnx.ai/onnx/operators/onnx__BatchNormalization.html), in its own precision."""
    scale, mean, variance, *bias = (values[name].astype(np.float64) for name in tensor.sources)
    factor = scale / np.sqrt(variance + (tensor.value or 0.0))
    found = factor if tensor.derivation is Derivation.SCALE else bias[0] - mean * factor
    return found.astype(values[tensor.sources[0]].dtype).reshape(tensor.shape)
