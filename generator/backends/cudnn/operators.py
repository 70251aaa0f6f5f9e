"""What each operator of ONNX is in cuDNN's graph API.

The operations are those of cuDNN's frontend (https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/). Its Python
binding has no pooling ("resample"): pools are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .building import Node
from .operations import Derivation

__all__ = ["OPERATORS"]

Emit = Callable[[Node], None]

OPERATORS: dict[str, Emit] = {}
"""By operator of ONNX's own domain."""

_UNARY = {
    "Abs": "abs", "Ceil": "ceil", "Cos": "cos", "Erf": "erf", "Exp": "exp", "Floor": "floor", "Log": "log",
    "Neg": "neg", "Reciprocal": "reciprocal", "Relu": "relu", "Sigmoid": "sigmoid", "Sin": "sin",
    "Softplus": "softplus", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_BINARY = {
    "Add": ("add", "a", "b"), "Sub": ("sub", "a", "b"), "Mul": ("mul", "a", "b"), "Div": ("div", "a", "b"),
    "Pow": ("pow", "input0", "input1"),
}  # fmt: skip
_VARIADIC = {"Sum": ("add", "a", "b"), "Max": ("max", "input0", "input1"), "Min": ("min", "input0", "input1")}
_COMMUTATIVE = frozenset({"add", "mul", "max", "min"})
_REDUCTIONS = {"ReduceSum": "ADD", "ReduceMean": "AVG", "ReduceMax": "MAX", "ReduceMin": "MIN", "ReduceProd": "MUL"}


def _operator(*op_types: str) -> Callable[[Emit], Emit]:
    def register(emit: Emit) -> Emit:
        OPERATORS.update(dict.fromkeys(op_types, emit))
        return emit

    return register


@_operator("Conv")
def _convolution(node: Node) -> None:
    if node.get("auto_pad", "NOTSET") != "NOTSET":
        raise node.refuse("with automatic padding")
    kernel = node.shape(1)
    axes = len(kernel) - 2
    if axes not in {1, 2, 3}:
        raise node.refuse(f"over {axes} axes")
    if len(kernel) != node.build.rank:
        raise node.refuse("beside values of more dimensions")
    pads = list(node.get("pads", [0] * (2 * axes)))
    strides, dilations = list(node.get("strides", [1] * axes)), list(node.get("dilations", [1] * axes))
    before, after = pads[:axes], pads[axes:]
    if axes == 1:  # as an image of one row
        kernel = (*kernel[:2], 1, *kernel[2:])
        before, after, strides, dilations = [0, *before], [0, *after], [1, *strides], [1, *dilations]
    found = node.write(
        "conv_fprop",
        {"image": node.tensor(0), "weight": node.build.read(node.inputs[1], kernel, image=True)},
        pre_padding=before,
        post_padding=after,
        stride=strides,
        dilation=dilations,
    )
    if node.has(2):
        shape = (1, kernel[0], *[1] * (len(kernel) - 2))
        found = node.write("add", {"a": found, "b": node.build.read(node.inputs[2], shape, image=True)})
    node.give(found)


@_operator("MatMul")
def _product(node: Node) -> None:
    if min(len(node.shape(0)), len(node.shape(1))) < 2:
        raise node.refuse("of a vector")
    _require_rows(node)
    node.give(node.write("matmul", {"A": node.tensor(0), "B": node.tensor(1)}))


@_operator("Gemm")
def _gemm(node: Node) -> None:
    def operand(index: int, flag: str) -> str:
        if not node.get(flag, 0):
            return node.tensor(index)
        rows, columns = node.shape(index)
        shape = node.build.lifted((columns, rows))
        order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        return node.build.read(node.inputs[index], shape, order=order)

    if node.has(2) and node.get("beta", 1.0) != 1.0:
        raise node.refuse("with a scaled bias")
    _require_rows(node)
    found = node.write("matmul", {"A": operand(0, "transA"), "B": operand(1, "transB")})
    if node.get("alpha", 1.0) != 1.0:
        found = node.write("mul", {"a": found, "b": node.build.scalar(node.get("alpha"))})
    node.give(_pair(node, ("add", "a", "b"), found, node.tensor(2)) if node.has(2) else found)


@_operator(*_UNARY)
def _unary(node: Node) -> None:
    node.give(node.write(_UNARY[node.op_type], {"input": node.tensor(0)}))


@_operator("LeakyRelu")
def _leaky(node: Node) -> None:
    node.give(node.write("leaky_relu", {"input": node.tensor(0)}, negative_slope=node.get("alpha", 0.01)))


@_operator("Elu")
def _elu(node: Node) -> None:
    if node.get("alpha", 1.0) != 1.0:
        raise node.refuse("with a slope other than 1")
    node.give(node.write("elu", {"input": node.tensor(0)}))


@_operator("Gelu")
def _gelu(node: Node) -> None:
    kind = "gelu_approx_tanh" if node.get("approximate", "none") == "tanh" else "gelu"
    node.give(node.write(kind, {"input": node.tensor(0)}))


@_operator("Clip")
def _clip(node: Node) -> None:
    found = node.tensor(0)
    for index, kind in ((1, "max"), (2, "min")):
        if node.has(index):
            found = node.write(kind, {"input0": found, "input1": node.tensor(index)})
    node.give(found)


@_operator("HardSigmoid", "HardSwish")
def _hard_sigmoid(node: Node) -> None:
    sigmoid = node.op_type == "HardSigmoid"
    slope, shift = (node.get("alpha", 0.2), node.get("beta", 0.5)) if sigmoid else (1 / 6, 0.5)
    x, number = node.tensor(0), node.build.scalar
    line = node.write("add", {"a": node.write("mul", {"a": x, "b": number(slope)}), "b": number(shift)})
    low = node.write("max", {"input0": line, "input1": number(0.0)})
    found = node.write("min", {"input0": low, "input1": number(1.0)})
    node.give(found if sigmoid else node.write("mul", {"a": x, "b": found}))


@_operator(*_BINARY)
def _binary(node: Node) -> None:
    node.give(_pair(node, _BINARY[node.op_type], node.tensor(0), node.tensor(1)))


@_operator(*_VARIADIC)
def _variadic(node: Node) -> None:
    found = node.tensor(0)
    for index in range(1, len(node.inputs)):
        found = _pair(node, _VARIADIC[node.op_type], found, node.tensor(index))
    if len(node.inputs) == 1:
        raise node.refuse("of one operand")
    node.give(found)


@_operator("PRelu")
def _parametric_relu(node: Node) -> None:
    x, zero = node.tensor(0), node.build.scalar(0.0)
    below = node.write("min", {"input0": x, "input1": zero})
    scaled = _pair(node, ("mul", "a", "b"), below, node.tensor(1))
    node.give(node.write("add", {"a": node.write("relu", {"input": x}), "b": scaled}))


@_operator("BatchNormalization")
def _batch_normalization(node: Node) -> None:
    """As its scale and shift, into which every runtime folds it at inference."""
    if node.get("training_mode", 0):
        raise node.refuse("in training mode")
    _, scale, bias, mean, variance = node.inputs
    shape = tuple(size if at == 1 else 1 for at, size in enumerate(node.result))
    if len(shape) < 2:
        raise node.refuse("of a vector")
    epsilon, lifted = node.get("epsilon", 1e-5), node.build.lifted(shape)
    factor = node.build.derived(Derivation.SCALE, [scale, mean, variance], lifted, epsilon)
    shift = node.build.derived(Derivation.SHIFT, [scale, mean, variance, bias], lifted, epsilon)
    node.give(node.write("add", {"a": node.write("mul", {"a": node.tensor(0), "b": factor}), "b": shift}))


@_operator("LayerNormalization", "RMSNormalization")
def _layer_normalization(node: Node) -> None:
    """Rows by elements that are normalized together; cuDNN has it in no other shape."""
    if len(node.build.graph.node) > 1:
        raise node.refuse("is translated alone, not beside other operators")
    axis = node.get("axis", -1) % len(node.result)
    rows, width = math.prod(node.result[:axis]), math.prod(node.result[axis:])
    for index in range(1, len(node.inputs)):
        if node.has(index) and node.shape(index) != node.result[axis:]:
            raise node.refuse("with a scale or bias that is broadcast")
    whole, row = (rows, width, 1, 1), (1, width, 1, 1)
    read = node.build.read
    inputs = {"input": read(node.inputs[0], whole, image=False), "scale": read(node.inputs[1], row, image=False)}
    inputs["epsilon"] = node.build.scalar(node.get("epsilon", 1e-5))
    kind = "layernorm" if node.op_type == "LayerNormalization" else "rmsnorm"
    if node.has(2):
        inputs["bias"] = read(node.inputs[2], row, image=False)
    elif kind == "layernorm":
        raise node.refuse("without a bias")
    node.give(node.write(kind, inputs, whole))


@_operator("Softmax")
def _softmax(node: Node) -> None:
    """The usual five steps; cuDNN's graph API has no softmax of its own outside of attention."""
    x = node.tensor(0)
    axis = node.build.axis(node.inputs[0], node.get("axis", -1))
    row = tuple(1 if at == axis else size for at, size in enumerate(node.build.shape_of(x)))
    largest = node.write("reduction", {"input": x}, row, mode="MAX")
    powers = node.write("exp", {"input": node.write("sub", {"a": x, "b": largest})})
    total = node.write("reduction", {"input": powers}, row, mode="ADD")
    node.give(node.write("div", {"a": powers, "b": total}))


@_operator("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: Node) -> None:
    mode = "AVG" if node.op_type == "GlobalAveragePool" else "MAX"
    node.give(node.write("reduction", {"input": node.tensor(0)}, mode=mode))


@_operator(*_REDUCTIONS)
def _reduction(node: Node) -> None:
    given = node.build.constant(node.inputs[1]) if node.has(1) else []
    if given is None:
        raise node.refuse("over axes that are no constants")
    if not given and node.get("noop_with_empty_axes", 0):
        raise node.refuse("computes nothing")
    axes = [int(each) for each in given] or range(len(node.shape(0)))
    chosen = {node.build.axis(node.inputs[0], axis) for axis in axes}
    x = node.tensor(0)
    shape = tuple(1 if at in chosen else size for at, size in enumerate(node.build.shape_of(x)))
    node.give(node.write("reduction", {"input": x}, shape, mode=_REDUCTIONS[node.op_type]))


@_operator("MaxPool", "AveragePool")
def _pool(node: Node) -> None:
    raise node.refuse("is a pool, which the Python frontend does not have")


@_operator("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")
def _view(node: Node) -> None:
    raise node.refuse("computes nothing")


def _require_rows(node: Node) -> None:
    """Make sure that the last two dimensions are rows and columns, not the row and the columns of an image."""
    if node.build.one_axis:
        raise node.refuse("beside a convolution over one axis")


def _pair(node: Node, how: tuple[str, str, str], first: str, second: str) -> str:
    """An operation of two operands. cuDNN broadcasts the second one: what is smaller goes there, where order allows."""
    kind, one, other = how
    build = node.build
    shapes = build.shape_of(first), build.shape_of(second)
    whole = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    if kind in _COMMUTATIVE and (build.is_scalar(first) or (shapes[0] != whole and shapes[1] == whole)):
        first, second = second, first
    return node.write(kind, {one: first, other: second}, whole)
