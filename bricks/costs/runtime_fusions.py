"""Work of operators that ONNX Runtime creates by fusion and layout changes."""

from __future__ import annotations

import math

from ..layer import Cost
from . import elementwise, linear
from .costed_node import CostedNode, Formula, UnknownCostError

# Work of quantisation, and of ONNX Runtime's quantised operators (``com.microsoft``).


DEQUANTIZE = Cost(additions=1, multiplications=1)
_QUANTIZE = Cost(divisions=1, additions=1, comparisons=2)


def quantize(call: CostedNode) -> Cost:
    """``saturate(round(x / scale) + zero_point)``: 1 division, 2 comparisons, 1 addition if it has a zero point."""
    n = call.input(0).elements
    return Cost(divisions=n, comparisons=2 * n, additions=n if call.has(2) else 0)


def dequantize(call: CostedNode) -> Cost:
    """``(x - zero_point) scale``: 1 multiplication, 1 addition if it has a zero point."""
    n = call.input(0).elements
    return Cost(multiplications=n, additions=n if call.has(2) else 0)


def dynamic_quantize(call: CostedNode) -> Cost:
    """Minimum and maximum (2n comparisons), then ``quantize`` with a zero point."""
    n = call.input(0).elements
    return Cost(comparisons=4 * n, divisions=n, additions=n)


def quantized_average_pool(call: CostedNode) -> Cost:
    """``additions = output elements * Kh Kw``, then one rescaling per output element."""
    n = call.output().elements
    return n * _QUANTIZE + Cost(additions=n * call.window())


def quantized_gemm(call: CostedNode) -> Cost:
    """``macs = M N K``, bias ``M N`` additions, one rescaling per output element."""
    n = call.output().elements
    macs = linear.product(call, transposed=bool(call.attribute("transA", 0)))
    return n * _QUANTIZE + Cost(macs=macs, additions=linear.biased(call, 6))


def matmul_integer_to_float(call: CostedNode) -> Cost:
    """``macs = batch M N K``, one scale per output element, bias one addition."""
    return Cost(macs=linear.product(call), multiplications=call.output().elements, additions=linear.biased(call, 6))


def dynamic_quantize_matmul(call: CostedNode) -> Cost:
    """Count ``dynamic_quantize`` of A, then ``macs = batch M N K`` and one scale per output element."""
    return dynamic_quantize(call) + Cost(
        macs=linear.product(call), multiplications=call.output().elements, additions=linear.biased(call, 4)
    )


def matmul_n_bits(call: CostedNode) -> Cost:
    """``macs = batch M N K``; the packed weights are dequantised once: N K multiplications and additions."""
    weights = int(call.require("K")) * int(call.require("N"))
    return Cost(macs=linear.product(call), multiplications=weights, additions=weights + linear.biased(call, 5))


def quantized_attention(call: CostedNode) -> Cost:
    """Packed projection of integers, ``macs = B S I * 3 H d``, one scale per projected element, then attention."""
    data, weights = call.input(0).shape, call.input(1).shape
    if len(data) != 3 or len(weights) != 2:
        raise UnknownCostError(f"QAttention of rank {len(data)}")
    batch, queries, width = data
    heads = int(call.require("num_heads"))
    keys = queries + (call.input(8).shape[3] if call.has(8) else 0)
    projected, head = batch * queries * weights[1], weights[1] // 3 // heads
    scores = batch * heads * queries * keys
    work = linear.scaled_dot_product(scores, head, head)
    masked = scores if call.has(5) else 0
    return work + Cost(macs=projected * width, multiplications=projected, additions=projected + masked)


def dynamic_quantize_lstm(call: CostedNode) -> Cost:
    """``macs = T B D 4 H (I + H)`` of integers over T steps, D directions; data and state quantised in each step.

    Per step and unit: 4 gates of one exponential each, one more of the cell; 4 additions, 3 multiplications.
    """
    steps, batch, width = call.input(0).shape
    directions, hidden = call.input(2).shape[:2]
    units = steps * batch * directions * hidden
    quantized = steps * batch * (width + directions * hidden)
    gates = Cost(macs=4 * (width + hidden), exponentials=5, additions=4, multiplications=3 + 4)
    return units * gates + quantized * (_QUANTIZE + Cost(comparisons=2))


def requantized(formula: str, work: Cost = Cost()) -> Formula:  # noqa: B008  # frozen
    """Make the cost function of an operator that dequantises, computes and quantises each output element."""
    return elementwise.per_element(f"quantize({formula})", DEQUANTIZE + _QUANTIZE + work)


MEAN = elementwise.of_sizes(
    "``additions = n``, then one rescaling for each of the m output elements.",
    lambda n, m: m * _QUANTIZE + Cost(additions=n),
)


def _activation(call: CostedNode) -> Cost:
    """Return the work of the named activation on all output elements; none without a name."""
    name = call.attribute("activation", "")
    if not name:
        return Cost()
    if call.activation is None:
        raise UnknownCostError(f"activation {name}")
    return call.output().elements * call.activation


def fused_conv(call: CostedNode) -> Cost:
    """Macs, bias as Conv; a summand Z adds one per output element; then the activation.

    In every layout the filter's first dimension is Cout; blocked layouts count their padding channels.
    """
    return Cost(macs=linear.convolution(call), additions=linear.biased(call, 2) + linear.biased(call, 3)) + _activation(
        call
    )


def fused_gemm(call: CostedNode) -> Cost:
    """``macs = M N K``, C one addition per output element; then the activation."""
    macs = linear.product(call, transposed=bool(call.attribute("transA", 0)))
    return Cost(macs=macs, additions=linear.biased(call, 2)) + _activation(call)


def fast_gelu(call: CostedNode) -> Cost:
    """``gelu(x + bias)`` in tanh form; the bias may be absent."""
    return call.output().elements * (elementwise.FAST_GELU + Cost(additions=int(call.has(1))))


def bias_softmax(call: CostedNode) -> Cost:
    """One addition per element, then Softmax."""
    return elementwise.SOFTMAX(call) + Cost(additions=call.input(0).elements)


def skip_layer_norm(call: CostedNode) -> Cost:
    """``LayerNormalization(input + skip + bias)``: one addition per element for the skip and one for the bias."""
    n = call.input(0).elements
    return elementwise.layer_norm(_without_skip(call)) + Cost(additions=n * (2 if call.has(4) else 1))


def skip_rms_norm(call: CostedNode) -> Cost:
    """``RMSNormalization(input + skip + bias)``: one addition per element for the skip and one for the bias."""
    n = call.input(0).elements
    return elementwise.rms_norm(call) + Cost(additions=n * (2 if call.has(3) else 1))


def _without_skip(call: CostedNode) -> CostedNode:
    """Return the normalisation in a SkipLayerNormalization: input, gamma and optional beta."""
    return CostedNode(call.node, (call.operands[0], *call.operands[2:4]), call.outputs)


def embed_layer_norm(call: CostedNode) -> Cost:
    """Two or three embedding rows added per token, then LayerNormalization over the hidden width."""
    out = call.output()
    n, tokens = out.elements, math.prod(out.shape[:-1])
    embeddings = 2 if call.has(4) else 1
    return Cost(additions=(embeddings + 4) * n + tokens, multiplications=3 * n, divisions=4 * tokens)


def microsoft_group_norm(call: CostedNode) -> Cost:
    """As GroupNormalization (attribute ``groups``); SiLU added if ``activation`` is 1."""
    data = call.input(0)
    groups = call.require("groups")
    r = data.shape[0] * groups
    n = data.elements
    gate = n if call.attribute("activation", 0) else 0
    return Cost(additions=4 * n + r, multiplications=3 * n + gate, divisions=4 * r, exponentials=gate)
