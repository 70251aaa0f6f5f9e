"""Work of quantisation, and of ONNX Runtime's quantised forms of ordinary operators (``com.microsoft``)."""

from __future__ import annotations

from ..cost import Cost
from .call import Call, Formula
from .elementwise import times
from .linear import biased, product

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


FORMULAS: dict[tuple[str, str], Formula] = {
    ("", "DequantizeLinear"): dequantize,
    ("", "DynamicQuantizeLinear"): dynamic_quantize,
    ("", "QuantizeLinear"): quantize,
    (_MICROSOFT, "DequantizeLinear"): dequantize,
    (_MICROSOFT, "DynamicQuantizeMatMul"): dynamic_quantize_matmul,
    (_MICROSOFT, "MatMulIntegerToFloat"): matmul_integer_to_float,
    (_MICROSOFT, "MatMulNBits"): matmul_n_bits,
    (_MICROSOFT, "QGemm"): quantized_gemm,
    (_MICROSOFT, "QLinearAdd"): quantized_pair,
    (_MICROSOFT, "QLinearAveragePool"): quantized_average_pool,
    (_MICROSOFT, "QLinearConcat"): quantized_concat,
    (_MICROSOFT, "QLinearGlobalAveragePool"): quantized_global_average_pool,
    (_MICROSOFT, "QLinearLeakyRelu"): quantized_leaky_relu,
    (_MICROSOFT, "QLinearMul"): quantized_pair,
    (_MICROSOFT, "QLinearSigmoid"): quantized_sigmoid,
    (_MICROSOFT, "QLinearSoftmax"): quantized_softmax,
    (_MICROSOFT, "QuantizeLinear"): quantize,
}
