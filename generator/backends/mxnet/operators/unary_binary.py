"""Operators that compute each element on its own, comparisons and truth values, and reductions over axes."""

from __future__ import annotations

import math
import operator as arithmetic
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from .translation import OnnxNode, Symbol, operator, register

_UNARY = {
    "Abs": "abs", "Acos": "arccos", "Acosh": "arccosh", "Asin": "arcsin", "Asinh": "arcsinh", "Atan": "arctan",
    "Atanh": "arctanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor",
    "Identity": "identity", "Log": "log", "Neg": "negative", "Reciprocal": "reciprocal", "Sign": "sign", "Sin": "sin",
    "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan",
}  # fmt: skip

_ACTIVATIONS = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Softplus": "softrelu", "Softsign": "softsign", "Tanh": "tanh",
}  # fmt: skip
"""Activations that MXNet passes to oneDNN under one name."""

_BINARY: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "Add": ("add", arithmetic.add),
    "Sub": ("sub", arithmetic.sub),
    "Mul": ("mul", arithmetic.mul),
    "Div": ("div", arithmetic.truediv),
    "Pow": ("power", arithmetic.pow),
}
_ALIKE = {"add": "elemwise_add", "sub": "elemwise_sub", "mul": "elemwise_mul", "div": "elemwise_div"}
"""For inputs of one shape; oneDNN computes the first of them."""

_EXACT = 1 << 53
"""Up to here, MXNet's scalars (double) hold every integer."""

_TYPES = frozenset({"bool", "float16", "float32", "float64", "int8", "uint8", "int32", "int64"})


register(
    {
        "Elu": lambda node: node.sym.LeakyReLU(node.symbol(), act_type="elu", slope=node.attribute("alpha", 1.0)),
        "HardSigmoid": lambda node: node.sym.hard_sigmoid(
            node.symbol(), alpha=node.attribute("alpha", 0.2), beta=node.attribute("beta", 0.5)
        ),
        "HardSwish": lambda node: node.symbol() * node.sym.hard_sigmoid(node.symbol(), alpha=1 / 6, beta=0.5),
        "IsNaN": lambda node: node.numpy("isnan", node.symbol()),
        "LeakyRelu": lambda node: node.sym.LeakyReLU(
            node.symbol(), act_type="leaky", slope=node.attribute("alpha", 0.01)
        ),
        "Not": lambda node: node.numpy("logical_not", node.symbol()),
        "Round": lambda node: node.numpy("around", node.symbol()),
        "Where": lambda node: node.numpy("where", node.symbol(0), _choice(node, 1, 2), _choice(node, 2, 1)),
    }
)


@operator(*_UNARY)
def _unary(node: OnnxNode) -> Symbol:
    return getattr(node.sym, _UNARY[node.op])(node.symbol())


@operator(*_ACTIVATIONS)
def _activation(node: OnnxNode) -> Symbol:
    if not node.rank():  # oneDNN has no scalars
        kind = _ACTIVATIONS[node.op]
        if kind == "softrelu":
            raise node.refusal("of a scalar")
        return getattr(node.sym, kind)(node.symbol())
    return node.sym.Activation(node.symbol(), act_type=_ACTIVATIONS[node.op])


@operator(*_BINARY)
def _binary(node: OnnxNode) -> Symbol:
    name, python = _BINARY[node.op]
    if node.dtype().kind == "u" and node.op == "Sub":
        raise node.refusal("of unsigned integers")
    if (right := _scalar(node, 1, 0)) is not None:
        if node.op == "Pow":
            return _power(node, right)
        return python(node.symbol(0), right)
    if (left := _scalar(node, 0, 1)) is not None:
        return python(left, node.symbol(1))
    first, second = node.symbol(0), node.symbol(1)
    if node.dtype(0) != node.dtype(1):  # only Pow has two types
        second = node.sym.Cast(second, dtype=node.dtype(0).name)
    if node.shape(0) == node.shape(1) and name in _ALIKE and node.rank():
        return getattr(node.sym, _ALIKE[name])(first, second)
    return getattr(node.sym, f"broadcast_{name}")(*full_rank(node, [first, second]))


def _power(node: OnnxNode, exponent: float) -> Symbol:
    if exponent == 2:
        return node.sym.square(node.symbol())
    if exponent == 0.5:
        return node.sym.sqrt(node.symbol())
    return node.symbol() ** exponent


def _scalar(node: OnnxNode, index: int, other: int) -> float | None:
    """Return the only element of a constant that does not change the shape of the other input."""
    array = node.constant(index)
    if array is None or array.size != 1 or array.ndim > node.rank(other) or not node.rank(other):
        return None
    if array.dtype.kind not in "fiu" or not math.isfinite(array.item()) or abs(array.item()) > max(_EXACT, 1e39):
        return None
    value: float = array.item()
    if node.dtype(other).kind in "iu":
        return value if abs(value) <= _EXACT and float(value).is_integer() else None
    return float(value)


def full_rank(node: OnnxNode, symbols: list[Symbol]) -> list[Symbol]:
    """Return the inputs with equal ranks, because MXNet's older operators do not add dimensions."""
    ranks = [node.rank(index) for index in range(len(symbols))]
    return [
        symbol if rank == max(ranks) else node.reshaped(symbol, (1,) * (max(ranks) - rank) + node.shape(index))
        for index, (symbol, rank) in enumerate(zip(symbols, ranks, strict=True))
    ]


@operator("Mod")
def _mod(node: OnnxNode) -> Symbol:
    if node.attribute("fmod", 0):
        raise node.refusal("with fmod=1")
    return node.sym.broadcast_mod(*full_rank(node, [node.symbol(0), node.symbol(1)]))


@operator("Sum", "Mean")
def _sum(node: OnnxNode) -> Symbol:
    symbols = [node.symbol(index) for index in range(node.count)]
    shapes = {node.shape(index) for index in range(node.count)}
    total = node.sym.add_n(*symbols) if len(shapes) == 1 else reduce(node.sym.broadcast_add, full_rank(node, symbols))
    return total / node.count if node.op == "Mean" else total


@operator("Max", "Min")
def _extreme(node: OnnxNode) -> Symbol:
    combine = node.sym.broadcast_maximum if node.op == "Max" else node.sym.broadcast_minimum
    symbols = [node.symbol(index) for index in range(node.count)]
    return reduce(combine, full_rank(node, symbols)) if len(symbols) > 1 else node.sym.identity(symbols[0])


@operator("Clip")
def _clip(node: OnnxNode) -> Symbol:
    def bound(attribute: str, index: int, default: float) -> float:
        value = node.attribute(attribute)
        return value if value is not None else node.known(index).item() if node.has(index) else default

    kind = node.dtype()
    limits = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
    return node.sym.clip(
        node.symbol(), a_min=bound("min", 1, float(limits.min)), a_max=bound("max", 2, float(limits.max))
    )


@operator("Selu")
def _selu(node: OnnxNode) -> Symbol:
    if node.attribute("alpha") is not None or node.attribute("gamma") is not None:
        raise node.refusal("with constants of its own")
    return node.sym.LeakyReLU(node.symbol(), act_type="selu")


@operator("Gelu")
def _gelu(node: OnnxNode) -> Symbol:
    if node.attribute("approximate", "none") != "none":
        raise node.refusal(f"approximated by {node.attribute('approximate')}")
    return node.sym.LeakyReLU(node.symbol(), act_type="gelu")


@operator("PRelu")
def _prelu(node: OnnxNode) -> Symbol:
    size = math.prod(node.shape(1))
    channels = node.shape()[1] if node.rank() > 1 else 1
    if size not in (1, channels) or (size != 1 and node.rank(1) not in (node.rank() - 1, node.rank())):
        raise node.refusal("with slopes that differ within a channel")
    return node.sym.LeakyReLU(node.symbol(0), node.reshaped(node.symbol(1), (size,)), act_type="prelu")


@operator("Cast", "CastLike")
def _cast(node: OnnxNode) -> Symbol:
    if node.op == "Cast":
        number = node.attribute("to")
        kind = helper.tensor_dtype_to_np_dtype(number)
        name = TensorProto.DataType.Name(number).lower()
    else:
        kind = node.dtype(1)
        name = kind.name
    if kind.name not in _TYPES:
        raise node.refusal(f"to {name}")
    return node.sym.Cast(node.symbol(0), dtype=kind.name)


@operator("Dropout")
def _dropout(node: OnnxNode) -> Symbol:
    if node.wants(1):
        raise node.refusal("that returns its mask")
    return node.sym.Dropout(node.symbol(), p=0.5)  # at inference it hands its input on, whatever the ratio


_PAIRS = {
    "Equal": "equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "Less": "less",
    "LessOrEqual": "less_equal",
    # On truth values these are the connectives; MXNet's own do not repeat any.
    "And": "multiply", "Or": "add", "Xor": "not_equal",
}  # fmt: skip


@operator(*_PAIRS)
def _pair(node: OnnxNode) -> Symbol:
    return node.numpy(_PAIRS[node.op], node.symbol(0), node.symbol(1))


def _choice(node: OnnxNode, index: int, other: int) -> Any:
    """Pass a constant of one element as a parameter, unless both inputs are constants."""
    array = node.constant(index)
    alone = array is not None and array.size == 1 and array.ndim <= max(node.rank(0), node.rank(other))
    if array is None or not alone or not math.isfinite(array.item()) or node.constant(other) is not None:
        return node.symbol(index)
    return float(array.item()) if array.dtype.kind == "f" else node.symbol(index)


_REDUCTIONS = {"ReduceMax": "max", "ReduceMean": "mean", "ReduceMin": "min", "ReduceProd": "prod", "ReduceSum": "sum"}


@operator(*_REDUCTIONS, "ReduceL1", "ReduceL2", "ReduceSumSquare")
def _reduce(node: OnnxNode) -> Symbol:
    axes = node.integers("axes", 1)
    if not axes:
        if node.attribute("noop_with_empty_axes", 0):
            return node.sym.identity(node.symbol())
        axes = tuple(range(node.rank()))
    axes = tuple(sorted(node.axis(axis) for axis in axes))
    if not node.rank():
        raise node.refusal("of a scalar")
    scalar = not node.result()  # MXNet's reductions leave one dimension
    keep = scalar or bool(node.attribute("keepdims", 1))
    reduced = _reduced(node, axes, keep=keep)
    return node.reshaped(reduced, ()) if scalar else reduced


def _reduced(node: OnnxNode, axes: tuple[int, ...], *, keep: bool) -> Symbol:
    data = node.symbol()
    if node.op in _REDUCTIONS:
        return getattr(node.sym, _REDUCTIONS[node.op])(data, axis=axes, keepdims=keep)
    if node.op == "ReduceSumSquare":
        return node.sym.sum(node.sym.square(data), axis=axes, keepdims=keep)
    if node.op == "ReduceL1":
        return node.sym.sum(node.sym.abs(data), axis=axes, keepdims=keep)
    if len(axes) == 1:
        return node.sym.norm(data, ord=2, axis=axes, keepdims=keep)
    return node.sym.sqrt(node.sym.sum(node.sym.square(data), axis=axes, keepdims=keep))


@operator("ArgMax", "ArgMin")
def _place_of_extreme(node: OnnxNode) -> Symbol:
    if node.attribute("select_last_index", 0):
        raise node.refusal("that selects the last of equals")
    indices = node.numpy(node.op.lower(), node.symbol(), axis=node.axis(node.attribute("axis", 0)))
    return node.reshaped(indices, node.result())


@operator("CumSum")
def _cumulative(node: OnnxNode) -> Symbol:
    if node.attribute("exclusive", 0):
        raise node.refusal("with exclusive=1")
    axis = node.axis(int(node.known(1, "as its axis").item()))
    turned = bool(node.attribute("reverse", 0))
    data = node.sym.reverse(node.symbol(), axis=(axis,)) if turned else node.symbol()
    total = node.numpy("cumsum", data, axis=axis)
    return node.sym.reverse(total, axis=(axis,)) if turned else total


@operator("TopK")
def _largest(node: OnnxNode) -> list[Symbol]:
    count = node.attribute("k")
    values_and_indices = node.sym.topk(
        node.symbol(),
        k=int(node.known(1, "as its count").item()) if count is None else count,
        axis=node.axis(node.attribute("axis", -1)),
        ret_typ="both",
        is_ascend=not node.attribute("largest", 1),
        dtype="int64",
    )
    return [values_and_indices[0], values_and_indices[1]]
