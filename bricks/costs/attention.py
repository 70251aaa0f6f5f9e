"""Work of attention: ONNX's Attention, RotaryEmbedding and LinearAttention, and ONNX Runtime's fused forms.

B batch, H query heads, S query positions, L key positions (past included), d and v the widths of a key and a value
head. A causal mask is not taken off: runtimes differ in whether they skip masked scores.
"""

from __future__ import annotations

from ..cost import Cost
from .call import Call, Formula, UnknownCostError

__all__ = ["FORMULAS", "scaled_dot_product"]

_MICROSOFT = "com.microsoft"


def scaled_dot_product(scores: int, width: int, value_width: int) -> Cost:
    """``softmax(Q K^T scale) V`` with ``scores = B H S L``: ``macs = scores (d + v)``, a scaling and a softmax each.

    A softmax element is 1 comparison, 2 additions, 1 exponential, 1 division.
    """
    return Cost(
        macs=scores * (width + value_width),
        multiplications=scores,
        comparisons=scores,
        additions=2 * scores,
        exponentials=scores,
        divisions=scores,
    )


def _length(call: Call, past: int, axis: int) -> int:
    """Positions of a past that is given, else 0."""
    return call.input(past).shape[axis] if call.has(past) else 0


def attention(call: Call) -> Cost:
    """``scaled_dot_product`` over 3-D ``[B, S, H d]`` or 4-D ``[B, H, S, d]`` inputs; a mask adds one per score."""
    query, key, value = call.input(0).shape, call.input(1).shape, call.input(2).shape
    if len(query) == 4:
        batch, heads, queries, width = query
        keys, value_width = key[2], value[3]
    elif len(query) == 3:
        batch, queries, packed = query
        heads = call.require("q_num_heads")
        kv_heads = call.require("kv_num_heads")
        width, keys, value_width = packed // heads, key[1], value[2] // kv_heads
    else:
        raise UnknownCostError(f"Attention of rank {len(query)}")
    keys += _length(call, 4, 2)
    masked = batch * heads * queries * keys if call.has(3) else 0
    return scaled_dot_product(batch * heads * queries * keys, width, value_width) + Cost(additions=masked)


def linear_attention(call: Call) -> Cost:
    """Recurrent form over T tokens: per query head ``T d v`` macs to read, per key head ``T d v`` to update.

    The delta rules read the state once more per key head; the gated rules decay it: ``T d v`` multiplications.
    """
    query, value = call.input(0).shape, call.input(2).shape
    if len(query) != 3 or len(value) != 3:
        raise UnknownCostError(f"LinearAttention of rank {len(query)}")
    heads, kv_heads = call.require("q_num_heads"), call.require("kv_num_heads")
    rule = call.attribute("update_rule", "gated_delta")
    state = query[0] * query[1] * (query[2] // heads) * (value[2] // kv_heads)
    updates = 2 if "delta" in rule else 1
    decay = state * kv_heads if "gated" in rule else 0
    return Cost(macs=state * (heads + updates * kv_heads), multiplications=decay)


def rotary_embedding(call: Call) -> Cost:
    """Each rotated element is two products and a sum: 2 multiplications, 1 addition.

    ``rotary_embedding_dim`` of the head's width are rotated; 0 means all.
    """
    data = call.input(0)
    rotated = call.attribute("rotary_embedding_dim", 0)
    heads = call.attribute("num_heads", 0)
    width = data.shape[-1] if len(data.shape) == 4 else data.shape[-1] // heads if heads else 0
    n = data.elements * rotated // width if rotated and width else data.elements
    return Cost(multiplications=2 * n, additions=n)


def fused_attention(call: Call) -> Cost:
    """Packed projection ``B S I * (Hq + Hk + Hv)`` macs with its bias, then ``scaled_dot_product``."""
    data, weights = call.input(0).shape, call.input(1).shape
    if len(data) != 3 or len(weights) != 2:
        raise UnknownCostError(f"Attention of rank {len(data)}")
    batch, queries, width = data
    heads = call.require("num_heads")
    sizes = call.attribute("qkv_hidden_sizes") or [weights[1] // 3] * 3
    projected = batch * queries * sum(sizes)
    keys = queries + _length(call, 4, 3)
    masked = batch * heads * queries * keys if call.has(3) or call.has(5) else 0
    work = scaled_dot_product(batch * heads * queries * keys, sizes[0] // heads, sizes[2] // heads)
    return work + Cost(macs=projected * width, additions=(projected if call.has(2) else 0) + masked)


def multi_head_attention(call: Call) -> Cost:
    """``scaled_dot_product`` of ``[B, S, H d]`` queries; the bias adds one per element of query, key and value.

    Keys and values may come projected per head (4-D) or packed with the query (5-D ``[B, S, H, 3, d]``).
    """
    query = call.input(0).shape
    heads = call.require("num_heads")
    batch, queries = query[0], query[1]
    if len(query) == 5:
        keys, width, value_width = queries, query[4], query[4]
    else:
        key = call.input(1).shape
        value = call.input(2).shape if call.has(2) else key
        width = query[2] // heads
        keys = key[2] if len(key) == 4 else key[1]
        value_width = value[-1] if len(value) > 3 else value[2] // heads
    keys += _length(call, 6, 2)
    added = sum(call.input(slot).elements for slot in range(3) if call.has(slot)) if call.has(3) else 0
    masked = batch * heads * queries * keys if call.has(4) or call.has(5) else 0
    return scaled_dot_product(batch * heads * queries * keys, width, value_width) + Cost(additions=added + masked)


def group_query_attention(call: Call) -> Cost:
    """``scaled_dot_product`` of H query heads; the cache's capacity counts as L where it is longer than S.

    Rotary embedding inside the operator adds 2 multiplications and 1 addition per element of query and key.
    """
    query = call.input(0).shape
    heads, kv_heads = call.require("num_heads"), call.require("kv_num_heads")
    batch, queries = query[0], query[1]
    packed = not call.has(1)
    width = query[2] // (heads + 2 * kv_heads) if packed else query[2] // heads
    keys = max(queries, _length(call, 3, 2), *([call.output(1).shape[2]] if len(call.outputs) > 1 else []))
    rotated = batch * queries * (heads + kv_heads) * width if call.attribute("do_rotary", 0) else 0
    work = scaled_dot_product(batch * heads * queries * keys, width, width)
    return work + Cost(multiplications=2 * rotated, additions=rotated)


def fused_matmul(call: Call) -> Cost:
    """``macs = batch M N K``; alpha other than 1: one multiplication per output element."""
    data, out = call.input(0), call.output()
    if len(data.shape) < 2:
        common = data.elements
    elif call.attribute("transA", 0):
        common = data.shape[0] if call.attribute("transBatchA", 0) else data.shape[-2]
    else:
        common = data.shape[-1]
    scaled = out.elements if call.attribute("alpha", 1.0) != 1 else 0
    return Cost(macs=out.elements * common, multiplications=scaled)


FORMULAS: dict[tuple[str, str], Formula] = {
    ("", "Attention"): attention,
    ("", "LinearAttention"): linear_attention,
    ("", "RotaryEmbedding"): rotary_embedding,
    (_MICROSOFT, "Attention"): fused_attention,
    (_MICROSOFT, "FusedMatMul"): fused_matmul,
    (_MICROSOFT, "GroupQueryAttention"): group_query_attention,
    (_MICROSOFT, "MultiHeadAttention"): multi_head_attention,
    (_MICROSOFT, "TransposeMatMul"): fused_matmul,
}
