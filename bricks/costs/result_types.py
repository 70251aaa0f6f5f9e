"""Types of the results of a runtime's own operators, which ONNX's shape inference does not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from ...models.subgraphs import attributes_of
from ..layer import ELEMENT_BITS, TensorType
from .costed_node import CostedNode, UnknownCostError

ResultTypes = Callable[[CostedNode], Sequence[TensorType | None]]
"""Types by output slot, None if unknown; further outputs are unknown too. ``UnknownCostError``: all are unknown."""

_LENGTH = 2
"""Axis of the positions of a cache: batch, heads, positions, width."""

_TOTAL = 6
"""Slot of GroupQueryAttention with the number of cached and new positions."""


def as_input(call: CostedNode) -> list[TensorType]:
    """Return the type of the first input."""
    return [call.input(0)]


def rms_norm(call: CostedNode) -> list[TensorType]:
    """Return the type of SimplifiedLayerNormalization's result, with the scale's element type, and of its factors."""
    data, axis = call.input(0), int(call.attribute("axis", -1))
    kept = axis % len(data.shape) if data.shape else 0
    factors = TensorType("float", (*data.shape[:kept], *(1 for _ in data.shape[kept:])))
    return [TensorType(call.input(1).dtype, data.shape), factors]


def skip_norm(call: CostedNode) -> list[TensorType]:
    """Return the types of a normalised sum, mean and factors by row, and the sum."""
    data = call.input(0)
    rows = TensorType("float", (*data.shape[:-1], 1))
    return [data, rows, rows, data]


def matmul_n_bits(call: CostedNode) -> list[TensorType]:
    """``[..., K] -> [..., N]``.

    Raises:
        UnknownCostError: The data's last dimension is not K.
    """
    data = call.input(0)
    if not data.shape or data.shape[-1] != int(call.require("K")):
        raise UnknownCostError(f"K of {call.node.op_type} is not the last dimension of its data")
    return [TensorType(data.dtype, (*data.shape[:-1], int(call.require("N"))))]


def fused_matmul(call: CostedNode) -> list[TensorType]:
    """Return the type of a product of matrices that may be transposed.

    Raises:
        UnknownCostError: The batch of an operand is transposed too, an operand is a vector, or they do not fit.
    """
    if call.attribute("transBatchA", 0) or call.attribute("transBatchB", 0):
        raise UnknownCostError("a product with a transposed batch")
    sides = [call.input(0).shape, call.input(1).shape]
    if min(map(len, sides)) <= 1:
        raise UnknownCostError("a product with a vector")
    for slot, name in enumerate(("transA", "transB")):
        if call.attribute(name, 0):
            sides[slot] = (*sides[slot][:-2], sides[slot][-1], sides[slot][-2])
    left, right = sides
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError as error:
        raise UnknownCostError(str(error)) from error
    if left[-1] != right[-2]:
        raise UnknownCostError(f"a product of {list(left)} and {list(right)}")
    return [TensorType(call.input(0).dtype, (*batch, left[-2], right[-1]))]


def gather_block_quantized(call: CostedNode) -> list[TensorType]:
    """Return the type of the gathered rows; two elements of four bits may share a byte of the table."""
    table, indices, scales = (call.input(slot) for slot in range(3))
    shape, axis = list(table.shape), int(call.attribute("gather_axis", 0)) % max(1, len(table.shape))
    shape[-1] *= max(1, ELEMENT_BITS[table.dtype] // int(call.attribute("bits", 4))) if table.dtype == "uint8" else 1
    return [TensorType(scales.dtype, (*shape[:axis], *indices.shape, *shape[axis + 1 :]))]


def packed_attention(call: CostedNode) -> list[TensorType | None]:
    """Return the types of Attention of com.microsoft: ``[B, S, v]``, and ``[2, B, H, L, d]`` for a cache.

    Raises:
        UnknownCostError: The data is not ``[B, S, width]``, or the cache's buffer is longer than its content.
    """
    data, weights = call.input(0), call.input(1)
    if len(data.shape) != 3 or call.attribute("past_present_share_buffer", 0):
        raise UnknownCostError(f"{call.node.op_type} of {list(data.shape)}")
    batch, queries, _ = data.shape
    sizes = call.attribute("qkv_hidden_sizes") or [weights.shape[1] // 3] * 3
    heads = int(call.require("num_heads"))
    past = call.input(4).shape[3] if call.has(4) else 0
    cache = TensorType(data.dtype, (2, batch, heads, past + queries, sizes[1] // heads))
    return [TensorType(data.dtype, (batch, queries, sizes[2])), cache]


def multi_head_attention(call: CostedNode) -> list[TensorType | None]:
    """Return the types of MultiHeadAttention's result ``[B, S, v]``, and of present keys and values ``[B, H, L, d]``.

    Raises:
        UnknownCostError: Query, keys and values are packed, or the cache's buffer is longer than its content.
    """
    query, key, value = (call.input(slot) for slot in range(3))
    heads = int(call.require("num_heads"))
    ranks = {len(key.shape), len(value.shape)}
    if call.has(8) or len(query.shape) != 3 or ranks not in ({3}, {4}):
        raise UnknownCostError(f"{call.node.op_type} of {list(query.shape)} and {list(key.shape)}")
    batch, queries, packed = query.shape
    keys = key.shape[_LENGTH] if ranks == {4} else key.shape[1]
    keys += call.input(6).shape[_LENGTH] if call.has(6) else 0
    width = packed // heads
    value_width = value.shape[3] if ranks == {4} else value.shape[2] // heads
    return [
        TensorType(query.dtype, (batch, queries, heads * value_width)),
        TensorType(query.dtype, (batch, heads, keys, width)),
        TensorType(query.dtype, (batch, heads, keys, value_width)),
    ]


def grouped_head_size(node: onnx.NodeProto, columns: int) -> int:
    """Return the size of a head of GroupQueryAttention.

    Args:
        node: The operator.
        columns: Size of the last axis of its first operand: of queries, or of queries, keys and values together.
    """
    attributes = attributes_of(node)
    heads, kv_heads = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    return columns // (heads if len(node.input) > 1 and node.input[1] else heads + 2 * kv_heads)


def group_query_attention(call: CostedNode) -> list[TensorType | None]:
    """Return the types of GroupQueryAttention's result ``[B, S, H d]``, and of both caches ``[B, Hkv, L, d]``.

    A cache has as many positions as the past, or as past and new ones together, whichever is more. It is unknown if
    the latter are computed at inference.
    """
    query = call.input(0)
    heads, kv_heads = int(call.require("num_heads")), int(call.require("kv_num_heads"))
    if len(query.shape) != 3:
        raise UnknownCostError(f"{call.node.op_type} of {list(query.shape)}")
    batch, queries, columns = query.shape
    width = grouped_head_size(call.node, columns)
    result = TensorType(query.dtype, (batch, queries, heads * width))
    total = call.values(_TOTAL) if call.has(_TOTAL) else None
    if not total:
        return [result]
    past = call.input(3) if call.has(3) else TensorType(query.dtype, (batch, kv_heads, 0, width))
    if len(past.shape) != 4:
        raise UnknownCostError(f"a cache of {list(past.shape)}")
    length = max(past.shape[_LENGTH], int(total[0]))
    cache = TensorType(past.dtype, (*past.shape[:_LENGTH], length, past.shape[3]))
    return [result, cache, cache]
