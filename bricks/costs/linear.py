"""Work of convolutions and matrix products: the multiply-accumulates of a model."""

from __future__ import annotations

import math

from ..cost import Cost
from .call import Call, Formula, UnknownCostError

__all__ = ["FORMULAS", "biased", "convolution", "matmul_integer", "product", "qlinear_conv"]


def convolution(call: Call, *, data: int = 0, weight: int = 1) -> int:
    """``macs = N Cout Hout Wout * Kh Kw Cin / groups``: every output element is one dot product with a filter.

    The filter is ``[Cout, Cin / groups, Kh, Kw]``; the plain kernel counts, not its dilated extent.
    """
    filters = call.input(weight)
    if len(filters.shape) < 2 or filters.shape[0] == 0 or len(call.input(data).shape) < 2:
        raise UnknownCostError(f"{call.node.op_type} without a filter")
    return call.output().elements * (filters.elements // filters.shape[0])


def product(call: Call, *, left: int = 0, transposed: bool = False) -> int:
    """``macs = output elements * K``, K the common dimension; batched and broadcast like numpy.matmul."""
    shape = call.input(left).shape
    if not shape:
        raise UnknownCostError(f"{call.node.op_type} of a scalar")
    return call.output().elements * shape[-2 if transposed else -1]


def biased(call: Call, slot: int) -> int:
    """One addition per output element where the bias is given: ``output elements``, else 0."""
    return call.output().elements if call.has(slot) else 0


def conv(call: Call) -> Cost:
    """``macs = N Cout Hout Wout Kh Kw Cin / groups``; bias: ``additions = N Cout Hout Wout``."""
    return Cost(macs=convolution(call), additions=biased(call, 2))


def conv_transpose(call: Call) -> Cost:
    """``macs = N Cin Hin Win Kh Kw Cout / groups``; bias: ``additions = N Cout Hout Wout``."""
    filters = call.input(1)
    if not filters.shape or filters.shape[0] == 0:
        raise UnknownCostError("ConvTranspose without a filter")
    macs = call.input(0).elements * (filters.elements // filters.shape[0])
    return Cost(macs=macs, additions=biased(call, 2))


def deform_conv(call: Call) -> Cost:
    """A convolution over bilinear samples: macs as Conv; per sample 4 multiplications and 3 additions.

    ``samples = N Cin Hout Wout Kh Kw``; a mask multiplies each once more.
    """
    data, filters, out = call.input(0), call.input(1), call.output()
    kernel = math.prod(filters.shape[2:])
    samples = math.prod(data.shape[:2]) * math.prod(out.shape[2:]) * kernel
    return Cost(
        macs=convolution(call),
        multiplications=samples * (5 if call.has(4) else 4),
        additions=samples * 3 + biased(call, 3),
    )


def conv_integer(call: Call) -> Cost:
    """Macs as Conv; a zero point: one subtraction per element of that input."""
    shifts = (call.input(0).elements if call.has(2) else 0) + (call.input(1).elements if call.has(3) else 0)
    return Cost(macs=convolution(call), additions=shifts)


def qlinear_conv(call: Call) -> Cost:
    """Macs as Conv; per output element one rescaling, one zero point, rounding and saturation (2 comparisons)."""
    n = call.output().elements
    macs = convolution(call, weight=3)
    return Cost(macs=macs, multiplications=n, additions=n + biased(call, 8), comparisons=2 * n)


def causal_conv_with_state(call: Call) -> Cost:
    """``macs = B C L k`` (depthwise); bias ``B C L`` additions; SiLU one exponential and one multiplication."""
    n = call.output().elements
    gate = 0 if call.attribute("activation", "none") == "none" else n
    macs = n * call.input(1).shape[-1]
    return Cost(macs=macs, additions=biased(call, 2), exponentials=gate, multiplications=gate)


def matmul(call: Call) -> Cost:
    """``macs = batch M N K``."""
    return Cost(macs=product(call))


def gemm(call: Call) -> Cost:
    """``macs = M N K``; C: ``additions = M N``; alpha or beta other than 1: ``multiplications = M N`` each."""
    n = call.output().elements
    added = biased(call, 2)
    scaled = n if call.attribute("alpha", 1.0) != 1 else 0
    scaled += added if call.attribute("beta", 1.0) != 1 else 0
    macs = product(call, transposed=bool(call.attribute("transA", 0)))
    return Cost(macs=macs, additions=added, multiplications=scaled)


def matmul_integer(call: Call) -> Cost:
    """``macs = batch M N K``; a zero point: one subtraction per element of that input."""
    shifts = (call.input(0).elements if call.has(2) else 0) + (call.input(1).elements if call.has(3) else 0)
    return Cost(macs=product(call), additions=shifts)


def qlinear_matmul(call: Call) -> Cost:
    """``macs = batch M N K``; per output element one rescaling, one zero point, 2 comparisons to saturate."""
    n = call.output().elements
    return Cost(macs=product(call), multiplications=n, additions=n, comparisons=2 * n)


def einsum(call: Call) -> Cost:
    """``points`` = product of the sizes of all labels, as one loop nest; k operands.

    With a label summed away: ``macs = (k - 1) points`` (one operand: ``additions = points``). Without:
    ``multiplications = (k - 1) points``. A broadcast ``...`` counts with its largest size.
    """
    equation = str(call.require("equation")).replace(" ", "")
    left, _, right = equation.partition("->")
    terms = left.split(",")
    sizes: dict[str, int] = {}
    for slot, term in enumerate(terms):
        shape = call.input(slot).shape
        for label, size in _labels(term, shape):
            sizes[label] = max(size, sizes.get(label, 1))
    kept = _implicit_output(left) if "->" not in equation else right
    points = math.prod(sizes.values())
    named = {label for label in sizes if len(label) == 1}
    summed = any(label not in kept for label in named) or (len(named) < len(sizes) and "..." not in kept)
    factors = len(terms) - 1
    if not summed:
        return Cost(multiplications=factors * points)
    return Cost(macs=factors * points) if factors else Cost(additions=points)


def _labels(term: str, shape: tuple[int, ...]) -> list[tuple[str, int]]:
    """Pair the labels of one Einsum term with their sizes; the axes under ``...`` count from the right."""
    before, dots, after = term.partition("...")
    hidden = len(shape) - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        raise UnknownCostError(f"Einsum term {term} does not fit the rank {len(shape)}")
    axes = [*before, *(f"...{hidden - axis}" for axis in range(hidden)), *after]
    return list(zip(axes, shape, strict=True))


def _implicit_output(left: str) -> str:
    """Labels that an Einsum without ``->`` keeps: those that occur once."""
    letters = left.replace(",", "").replace(".", "")
    return "".join(letter for letter in letters if letters.count(letter) == 1) + ("..." if "..." in left else "")


def det(call: Call) -> Cost:
    """LU decomposition of ``batch`` matrices of order n: ``macs = batch n^3 / 3``, ``divisions = batch n^2 / 2``."""
    shape = call.input(0).shape
    order = shape[-1]
    batch = math.prod(shape[:-2])
    return Cost(macs=batch * order**3 // 3, divisions=batch * order**2 // 2)


FORMULAS: dict[tuple[str, str], Formula] = {
    ("", "CausalConvWithState"): causal_conv_with_state,
    ("", "Conv"): conv,
    ("", "ConvInteger"): conv_integer,
    ("", "ConvTranspose"): conv_transpose,
    ("", "DeformConv"): deform_conv,
    ("", "Det"): det,
    ("", "Einsum"): einsum,
    ("", "Gemm"): gemm,
    ("", "MatMul"): matmul,
    ("", "MatMulInteger"): matmul_integer,
    ("", "QLinearConv"): qlinear_conv,
    ("", "QLinearMatMul"): qlinear_matmul,
}
