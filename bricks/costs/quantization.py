"""Work of quantisation, and of ONNX Runtime's quantised forms of ordinary operators (``com.microsoft``)."""

from __future__ import annotations

from ..cost import Cost
from .attention import scaled_dot_product
from .call import Call, Formula, UnknownCostError
from .elementwise import times
from .linear import biased, matmul_integer, product, qlinear_conv

__all__ = ["FORMULAS"]

_MICROSOFT = "com.microsoft"
_DEQUANTIZE = Cost(additions=1, multiplications=1)
_QUANTIZE = Cost(divisions=1, additions=1, comparisons=2)


def quantize(call: Call) -> Cost:
    """``saturate(round(x / scale) + zero_point)``: 1 division, 2 comparisons, 1 addition where it has a zero point."""
    n = call.input(0).elements
    return Cost(divisions=n, comparisons=2 * n, additions=n if call.has(2) else 0)


def dequantize(call: Call) -> Cost:
    """``(x - zero_point) scale``: 1 multiplication, 1 addition where it has a zero point."""
    n = call.input(0).elements
    return Cost(multiplications=n, additions=n if call.has(2) else 0)


def dynamic_quantize(call: Call) -> Cost:
    """Minimum and maximum (2n comparisons), then ``quantize`` with a zero point."""
    n = call.input(0).elements
    return Cost(comparisons=4 * n, divisions=n, additions=n)


def quantized_pair(call: Call) -> Cost:
    """Two inputs dequantised, one operation, one quantisation per output element."""
    work = _DEQUANTIZE + _DEQUANTIZE + _QUANTIZE
    work += Cost(multiplications=1) if call.node.op_type == "QLinearMul" else Cost(additions=1)
    return times(work, call.output().elements)


def quantized_sigmoid(call: Call) -> Cost:
    """Dequantised, one sigmoid, quantised, per element."""
    return times(_DEQUANTIZE + _QUANTIZE + Cost(exponentials=1), call.output().elements)


def quantized_leaky_relu(call: Call) -> Cost:
    """Dequantised, ``x if x >= 0 else alpha x``, quantised, per element."""
    return times(_DEQUANTIZE + _QUANTIZE + Cost(comparisons=1, multiplications=1), call.output().elements)


def quantized_softmax(call: Call) -> Cost:
    """Softmax (1 comparison, 2 additions, 1 exponential, 1 division) between dequantising and quantising."""
    softmax = Cost(comparisons=1, additions=2, exponentials=1, divisions=1)
    return times(_DEQUANTIZE + _QUANTIZE + softmax, call.output().elements)


def quantized_average_pool(call: Call) -> Cost:
    """``additions = output elements * Kh Kw``, then one rescaling per output element."""
    n = call.output().elements
    return times(_QUANTIZE, n) + Cost(additions=n * call.window())


def quantized_global_average_pool(call: Call) -> Cost:
    """``additions = input elements``, then one rescaling per output element."""
    return times(_QUANTIZE, call.output().elements) + Cost(additions=call.input(0).elements)


def quantized_concat(call: Call) -> Cost:
    """One dequantisation and one quantisation per output element, as where the scales differ."""
    return times(_DEQUANTIZE + _QUANTIZE, call.output().elements)


def quantized_gemm(call: Call) -> Cost:
    """``macs = M N K``, bias ``M N`` additions, one rescaling per output element."""
    n = call.output().elements
    macs = product(call, transposed=bool(call.attribute("transA", 0)))
    return times(_QUANTIZE, n) + Cost(macs=macs, additions=biased(call, 6))


def matmul_integer_to_float(call: Call) -> Cost:
    """``macs = batch M N K``, one scale per output element, bias one addition."""
    return Cost(macs=product(call), multiplications=call.output().elements, additions=biased(call, 6))


def dynamic_quantize_matmul(call: Call) -> Cost:
    """A quantised on the fly (``dynamic_quantize``), then ``macs = batch M N K``, one scale per output element."""
    return dynamic_quantize(call) + Cost(
        macs=product(call), multiplications=call.output().elements, additions=biased(call, 4)
    )


def matmul_n_bits(call: Call) -> Cost:
    """``macs = batch M N K``; the packed weights are dequantised once: N K multiplications and additions."""
    weights = int(call.require("K")) * int(call.require("N"))
    return Cost(macs=product(call), multiplications=weights, additions=weights + biased(call, 5))


def quantized_where(call: Call) -> Cost:
    """One selection, one dequantisation and one quantisation per output element, as where the scales differ."""
    return times(_DEQUANTIZE + _QUANTIZE + Cost(comparisons=1), call.output().elements)


def quantized_mean(call: Call) -> Cost:
    """``additions = input elements``, then one rescaling per output element."""
    return times(_QUANTIZE, call.output().elements) + Cost(additions=call.input(0).elements)


def quantized_attention(call: Call) -> Cost:
    """Packed projection of integers, ``macs = B S I * 3 H d``, one scale per projected element, then attention."""
    data, weights = call.input(0).shape, call.input(1).shape
    if len(data) != 3 or len(weights) != 2:
        raise UnknownCostError(f"QAttention of rank {len(data)}")
    batch, queries, width = data
    heads = int(call.require("num_heads"))
    keys = queries + (call.input(8).shape[3] if call.has(8) else 0)
    projected, head = batch * queries * weights[1], weights[1] // 3 // heads
    scores = batch * heads * queries * keys
    work = scaled_dot_product(scores, head, head)
    masked = scores if call.has(5) else 0
    return work + Cost(macs=projected * width, multiplications=projected, additions=projected + masked)


def gather_block_quantized(call: Call) -> Cost:
    """One dequantisation per element that is gathered."""
    return times(_DEQUANTIZE, call.output().elements)


def dynamic_quantize_lstm(call: Call) -> Cost:
    """``macs = T B D 4 H (I + H)`` of integers over T steps, D directions; data and state quantised in each step.

    Per step and unit: 4 gates of one exponential each, one more of the cell; 4 additions, 3 multiplications.
    """
    steps, batch, width = call.input(0).shape
    directions, hidden = call.input(2).shape[:2]
    units = steps * batch * directions * hidden
    quantized = steps * batch * (width + directions * hidden)
    gates = Cost(macs=4 * (width + hidden), exponentials=5, additions=4, multiplications=3 + 4)
    return times(gates, units) + times(_QUANTIZE + Cost(comparisons=2), quantized)


FORMULAS: dict[tuple[str, str], Formula] = {
    ("", "DequantizeLinear"): dequantize,
    ("", "DynamicQuantizeLinear"): dynamic_quantize,
    ("", "QuantizeLinear"): quantize,
    (_MICROSOFT, "DequantizeLinear"): dequantize,
    (_MICROSOFT, "DynamicQuantizeLSTM"): dynamic_quantize_lstm,
    (_MICROSOFT, "DynamicQuantizeMatMul"): dynamic_quantize_matmul,
    (_MICROSOFT, "GatherBlockQuantized"): gather_block_quantized,
    (_MICROSOFT, "MatMulBnb4"): matmul_n_bits,
    (_MICROSOFT, "MatMulInteger16"): matmul_integer,
    (_MICROSOFT, "MatMulIntegerToFloat"): matmul_integer_to_float,
    (_MICROSOFT, "MatMulNBits"): matmul_n_bits,
    (_MICROSOFT, "QAttention"): quantized_attention,
    (_MICROSOFT, "QGemm"): quantized_gemm,
    (_MICROSOFT, "QLinearAdd"): quantized_pair,
    (_MICROSOFT, "QLinearAveragePool"): quantized_average_pool,
    (_MICROSOFT, "QLinearConcat"): quantized_concat,
    (_MICROSOFT, "QLinearConv"): qlinear_conv,
    (_MICROSOFT, "QLinearGlobalAveragePool"): quantized_global_average_pool,
    (_MICROSOFT, "QLinearLeakyRelu"): quantized_leaky_relu,
    (_MICROSOFT, "QLinearMul"): quantized_pair,
    (_MICROSOFT, "QLinearReduceMean"): quantized_mean,
    (_MICROSOFT, "QLinearSigmoid"): quantized_sigmoid,
    (_MICROSOFT, "QLinearSoftmax"): quantized_softmax,
    (_MICROSOFT, "QLinearWhere"): quantized_where,
    (_MICROSOFT, "QuantizeLinear"): quantize,
}
