"""The layout of what a brick reads inside a model: oneDNN lays channels out in blocks, and MXNet keeps them there.

Alone, a brick would find its inputs in order, and change their layout first, which takes as long as a small
convolution; in a model the layers before it have left them in blocks. What oneDNN computes for a convolution of each
channel by itself is in the layout that it gives there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .operators.node import Symbol

if TYPE_CHECKING:
    import mxnet as mx

__all__ = ["in_blocks", "read_in_blocks", "rewrite"]

_READERS = frozenset(
    {
        "Activation", "BatchNorm", "Concat", "Convolution", "Deconvolution", "LRN", "Pooling", "_sg_mkldnn_conv",
        "add_n", "elemwise_add",
    }
)  # fmt: skip
"""Operators that oneDNN computes in the layout that they find; others have to have it in order."""

_RANK = 4
_BLOCK = 8
"""The fewest channels of a block."""


def read_in_blocks(symbol: Symbol) -> frozenset[str]:
    """Variables that operators read which compute in blocks.

    Args:
        symbol: A brick as it is executed.
    """
    nodes = json.loads(symbol.tojson())["nodes"]
    read = (nodes[source] for node in nodes if node["op"] in _READERS for source, *_ in node["inputs"])
    return frozenset(str(node["name"]) for node in read if node["op"] == "null")


def in_blocks(array: npt.NDArray[Any]) -> mx.nd.NDArray | None:
    """The same values as oneDNN gives them; None where it would have them in order: few channels, or no image."""
    import mxnet as mx

    if array.ndim != _RANK or array.dtype != np.float32 or array.shape[1] < _BLOCK:
        return None
    channels = array.shape[1]
    ones = mx.nd.ones((channels, 1, 1, 1))
    given = mx.nd.array(array, dtype=array.dtype, ctx=mx.cpu())
    return mx.nd.Convolution(given, ones, num_filter=channels, num_group=channels, kernel=(1, 1), no_bias=True)


def rewrite(source: mx.nd.NDArray, target: mx.nd.NDArray) -> None:
    """Write values in blocks into memory that holds such: the largest of windows of one, which are the values."""
    import mxnet as mx

    mx.nd.Pooling(source, kernel=(1, 1), pool_type="max", out=target)
