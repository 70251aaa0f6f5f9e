"""Work of operators that treat each output element on its own: arithmetic, comparisons, activations."""

from __future__ import annotations

from ..cost import Cost
from .call import Call, Formula

__all__ = ["ACTIVATIONS", "FORMULAS", "per_element", "times"]


def times(work: Cost, elements: int) -> Cost:
    """The work of one element, ``elements`` times."""
    return Cost(
        macs=work.macs * elements,
        additions=work.additions * elements,
        multiplications=work.multiplications * elements,
        divisions=work.divisions * elements,
        exponentials=work.exponentials * elements,
        comparisons=work.comparisons * elements,
    )


def per_element(formula: str, work: Cost) -> Formula:
    """Make the cost function of an operator that computes ``formula`` once per output element."""

    def cost(call: Call) -> Cost:
        return times(work, call.output().elements)

    cost.__doc__ = f"Per output element: ``{formula}``."
    return cost


_ADD = Cost(additions=1)
_MUL = Cost(multiplications=1)
_DIV = Cost(divisions=1)
_EXP = Cost(exponentials=1)
_CMP = Cost(comparisons=1)

ACTIVATIONS: dict[str, tuple[str, Cost]] = {
    "Celu": ("max(0, x) + min(0, alpha (exp(x / alpha) - 1))", _ADD + _ADD + _MUL + _DIV + _EXP + _CMP + _CMP),
    "Clip": ("min(max(x, low), high)", _CMP + _CMP),
    "Elu": ("x if x >= 0 else alpha (exp(x) - 1)", _CMP + _EXP + _ADD + _MUL),
    "FastGelu": ("0.5 x (1 + tanh(c (x + d x x x)))", times(_MUL, 6) + _ADD + _ADD + _EXP),
    "Gelu": ("0.5 x (1 + erf(x / sqrt 2))", times(_MUL, 3) + _ADD + _EXP),
    "HardSigmoid": ("max(0, min(1, alpha x + beta))", _MUL + _ADD + _CMP + _CMP),
    "HardSwish": ("x max(0, min(1, x / 6 + 0.5))", _MUL + _MUL + _ADD + _CMP + _CMP),
    "LeakyRelu": ("x if x >= 0 else alpha x", _CMP + _MUL),
    "Mish": ("x tanh(log(1 + exp(x)))", times(_EXP, 3) + _ADD + _MUL),
    "PRelu": ("x if x >= 0 else slope x", _CMP + _MUL),
    "QuickGelu": ("x sigmoid(alpha x)", _MUL + _MUL + _EXP),
    "Relu": ("max(0, x)", _CMP),
    "Selu": ("gamma (x if x > 0 else alpha exp(x) - alpha)", _CMP + _EXP + _ADD + _MUL + _MUL),
    "Shrink": ("x + bias if x < -lambda, x - bias if x > lambda, else 0", _CMP + _CMP + _ADD),
    "Sigmoid": ("1 / (1 + exp(-x))", _EXP),
    "Silu": ("x sigmoid(x)", _MUL + _EXP),
    "Softplus": ("log(1 + exp(x))", _EXP + _EXP + _ADD),
    "Softsign": ("x / (1 + |x|)", _CMP + _ADD + _DIV),
    "SwiGLU": ("a sigmoid(alpha a) b", times(_MUL, 3) + _EXP),
    "Swish": ("x sigmoid(alpha x)", _MUL + _MUL + _EXP),
    "Tanh": ("tanh(x)", _EXP),
    "ThresholdedRelu": ("x if x > alpha else 0", _CMP),
}
"""Formula and work per element of the activation functions; the fused operators name them too."""

_FOREIGN = {"FastGelu", "QuickGelu", "Silu"}  # not ONNX's own operators; fused.py uses them

_ARITHMETIC: dict[str, tuple[str, Cost]] = {
    "Abs": ("|x|", _CMP),
    "Add": ("a + b", _ADD),
    "And": ("a and b", _CMP),
    "BitShift": ("a << b", _MUL),
    "BitwiseAnd": ("a & b", _CMP),
    "BitwiseNot": ("~a", _CMP),
    "BitwiseOr": ("a | b", _CMP),
    "BitwiseXor": ("a ^ b", _CMP),
    "Ceil": ("ceil(x)", _CMP),
    "Div": ("a / b", _DIV),
    "Equal": ("a == b", _CMP),
    "Floor": ("floor(x)", _CMP),
    "Greater": ("a > b", _CMP),
    "GreaterOrEqual": ("a >= b", _CMP),
    "IsInf": ("x is infinite", _CMP),
    "IsNaN": ("x is not a number", _CMP),
    "Less": ("a < b", _CMP),
    "LessOrEqual": ("a <= b", _CMP),
    "Mod": ("a - b floor(a / b)", _DIV + _MUL + _ADD),
    "Mul": ("a b", _MUL),
    "Neg": ("-x", _ADD),
    "Not": ("not a", _CMP),
    "Or": ("a or b", _CMP),
    "Reciprocal": ("1 / x", _DIV),
    "Round": ("round(x)", _CMP),
    "Sign": ("sign(x)", _CMP),
    "Sqrt": ("sqrt(x)", _DIV),
    "Sub": ("a - b", _ADD),
    "Where": ("a if condition else b", _CMP),
    "Xor": ("a xor b", _CMP),
}

_TRANSCENDENTAL = (
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Erf", "Exp", "Log", "Sin", "Sinh", "Tan",
)  # fmt: skip


def gelu(call: Call) -> Cost:
    """Per element ``0.5 x (1 + erf(x / sqrt 2))``, or the tanh form where ``approximate`` says so."""
    name = "FastGelu" if call.attribute("approximate", "none") == "tanh" else "Gelu"
    return times(ACTIVATIONS[name][1], call.output().elements)


def clip(call: Call) -> Cost:
    """Per element one comparison for each bound that is given."""
    bounds = call.has(1) + call.has(2) + (call.attribute("min") is not None) + (call.attribute("max") is not None)
    return Cost(comparisons=bounds * call.output().elements)


def power(call: Call) -> Cost:
    """``x ^ y`` per element: a whole y up to 4 is ``y - 1`` multiplications, 0.5 a square root, else one pow."""
    n = call.output().elements
    exponent = call.values(1)
    if exponent is not None and len(exponent) == 1:
        if exponent[0] in {0, 1, 2, 3, 4}:
            return Cost(multiplications=max(0, int(exponent[0]) - 1) * n)
        if exponent[0] in {0.5, -1}:
            return Cost(divisions=n)
    return Cost(exponentials=n)


def add_all(call: Call) -> Cost:
    """Sum of k inputs: ``additions = (k - 1) output elements``."""
    return Cost(additions=(len(call.inputs()) - 1) * call.output().elements)


def mean_all(call: Call) -> Cost:
    """Mean of k inputs: ``additions = (k - 1) output elements``, ``divisions = output elements``."""
    n = call.output().elements
    return Cost(additions=(len(call.inputs()) - 1) * n, divisions=n)


def compare_all(call: Call) -> Cost:
    """Max or Min of k inputs: ``comparisons = (k - 1) output elements``."""
    return Cost(comparisons=(len(call.inputs()) - 1) * call.output().elements)


def dropout(call: Call) -> Cost:
    """Inference passes the data through; in training mode one draw, one comparison, one multiplication each."""
    training = call.values(2)
    if not call.has(2) or training == [False]:
        return Cost()
    n = call.output().elements
    return Cost(additions=n, comparisons=n, multiplications=n)


FORMULAS: dict[tuple[str, str], Formula] = {
    **{
        ("", name): per_element(*entry)
        for name, entry in ACTIVATIONS.items()
        if name not in _FOREIGN | {"Clip", "Gelu"}
    },
    **{("", name): per_element(*entry) for name, entry in _ARITHMETIC.items()},
    **{("", name): per_element(f"{name.lower()}(x)", _EXP) for name in _TRANSCENDENTAL},
    ("", "Clip"): clip,
    ("", "Dropout"): dropout,
    ("", "Gelu"): gelu,
    ("", "Max"): compare_all,
    ("", "Mean"): mean_all,
    ("", "Min"): compare_all,
    ("", "Pow"): power,
    ("", "Sum"): add_all,
}
