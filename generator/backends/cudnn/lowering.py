"""Translate a brick's network to an operation graph: each ONNX operator in terms of cuDNN's graph API.

The operations belong to cuDNN's frontend (https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/). Its Python
binding lacks pooling ("resample"), so that pools are refused. The product, scaling, mask, softmax and second product of
an attention head are one operation there, ``sdpa`` (scaled dot-product attention).

Bricks are in canonical form (``bricks.canonical``): the newest opset, defaults filled in, shapes static. Operators
without a counterpart in cuDNN's graph API are refused with a reason; nothing is approximated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import onnx

from ....models.subgraphs import infer_shapes, is_standard
from ..base import registering
from .operations import Builder, CudnnNode, Derivation, OperationGraph

Emit = Callable[[CudnnNode], None]

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


_operator = registering(OPERATORS)


@_operator("Conv")
def _convolution(node: CudnnNode) -> None:
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
    output = node.write(
        "conv_fprop",
        {"image": node.tensor(0), "weight": node.build.read(node.inputs[1], kernel, image=True)},
        pre_padding=before,
        post_padding=after,
        stride=strides,
        dilation=dilations,
    )
    if node.has(2):
        shape = (1, kernel[0], *[1] * (len(kernel) - 2))
        output = node.write("add", {"a": output, "b": node.build.read(node.inputs[2], shape, image=True)})
    node.give(output)


@_operator("MatMul")
def _product(node: CudnnNode) -> None:
    if min(len(node.shape(0)), len(node.shape(1))) < 2:
        raise node.refuse("of a vector")
    _require_rows(node)
    node.give(node.write("matmul", {"A": node.tensor(0), "B": node.tensor(1)}))


@_operator("Gemm")
def _gemm(node: CudnnNode) -> None:
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
    product = node.write("matmul", {"A": operand(0, "transA"), "B": operand(1, "transB")})
    if node.get("alpha", 1.0) != 1.0:
        product = node.write("mul", {"a": product, "b": node.build.scalar(node.get("alpha"))})
    node.give(_pair(node, ("add", "a", "b"), product, node.tensor(2)) if node.has(2) else product)


@_operator(*_UNARY)
def _unary(node: CudnnNode) -> None:
    node.give(node.write(_UNARY[node.op_type], {"input": node.tensor(0)}))


@_operator("LeakyRelu")
def _leaky(node: CudnnNode) -> None:
    node.give(node.write("leaky_relu", {"input": node.tensor(0)}, negative_slope=node.get("alpha", 0.01)))


@_operator("Elu")
def _elu(node: CudnnNode) -> None:
    if node.get("alpha", 1.0) != 1.0:
        raise node.refuse("with a slope other than 1")
    node.give(node.write("elu", {"input": node.tensor(0)}))


@_operator("Gelu")
def _gelu(node: CudnnNode) -> None:
    kind = "gelu_approx_tanh" if node.get("approximate", "none") == "tanh" else "gelu"
    node.give(node.write(kind, {"input": node.tensor(0)}))


@_operator("Clip")
def _clip(node: CudnnNode) -> None:
    clipped = node.tensor(0)
    for index, kind in ((1, "max"), (2, "min")):
        if node.has(index):
            clipped = node.write(kind, {"input0": clipped, "input1": node.tensor(index)})
    node.give(clipped)


@_operator("HardSigmoid", "HardSwish")
def _hard_sigmoid(node: CudnnNode) -> None:
    sigmoid = node.op_type == "HardSigmoid"
    slope, shift = (node.get("alpha", 0.2), node.get("beta", 0.5)) if sigmoid else (1 / 6, 0.5)
    x, number = node.tensor(0), node.build.scalar
    line = node.write("add", {"a": node.write("mul", {"a": x, "b": number(slope)}), "b": number(shift)})
    low = node.write("max", {"input0": line, "input1": number(0.0)})
    clipped = node.write("min", {"input0": low, "input1": number(1.0)})
    node.give(clipped if sigmoid else node.write("mul", {"a": x, "b": clipped}))


@_operator(*_BINARY)
def _binary(node: CudnnNode) -> None:
    node.give(_pair(node, _BINARY[node.op_type], node.tensor(0), node.tensor(1)))


@_operator(*_VARIADIC)
def _variadic(node: CudnnNode) -> None:
    combined = node.tensor(0)
    for index in range(1, len(node.inputs)):
        combined = _pair(node, _VARIADIC[node.op_type], combined, node.tensor(index))
    if len(node.inputs) == 1:
        raise node.refuse("of one operand")
    node.give(combined)


@_operator("PRelu")
def _parametric_relu(node: CudnnNode) -> None:
    x, zero = node.tensor(0), node.build.scalar(0.0)
    below = node.write("min", {"input0": x, "input1": zero})
    scaled = _pair(node, ("mul", "a", "b"), below, node.tensor(1))
    node.give(node.write("add", {"a": node.write("relu", {"input": x}), "b": scaled}))


@_operator("BatchNormalization")
def _batch_normalization(node: CudnnNode) -> None:
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
def _layer_normalization(node: CudnnNode) -> None:
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
def _softmax(node: CudnnNode) -> None:
    """Add the usual five steps; cuDNN's graph API lacks a softmax outside of attention."""
    x = node.tensor(0)
    axis = node.build.axis(node.inputs[0], node.get("axis", -1))
    row = tuple(1 if at == axis else size for at, size in enumerate(node.build.shape_of(x)))
    largest = node.write("reduction", {"input": x}, row, mode="MAX")
    powers = node.write("exp", {"input": node.write("sub", {"a": x, "b": largest})})
    total = node.write("reduction", {"input": powers}, row, mode="ADD")
    node.give(node.write("div", {"a": powers, "b": total}))


@_operator("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: CudnnNode) -> None:
    mode = "AVG" if node.op_type == "GlobalAveragePool" else "MAX"
    node.give(node.write("reduction", {"input": node.tensor(0)}, mode=mode))


@_operator(*_REDUCTIONS)
def _reduction(node: CudnnNode) -> None:
    stated_axes = node.build.constant(node.inputs[1]) if node.has(1) else []
    if stated_axes is None:
        raise node.refuse("over axes that are no constants")
    if not stated_axes and node.get("noop_with_empty_axes", 0):
        raise node.refuse("computes nothing")
    axes = [int(each) for each in stated_axes] or range(len(node.shape(0)))
    chosen = {node.build.axis(node.inputs[0], axis) for axis in axes}
    x = node.tensor(0)
    shape = tuple(1 if at in chosen else size for at, size in enumerate(node.build.shape_of(x)))
    node.give(node.write("reduction", {"input": x}, shape, mode=_REDUCTIONS[node.op_type]))


def _require_rows(node: CudnnNode) -> None:
    """Make sure that the last two dimensions are rows and columns, not the row and the columns of an image."""
    if node.build.one_axis:
        raise node.refuse("beside a convolution over one axis")


def _pair(node: CudnnNode, how: tuple[str, str, str], first: str, second: str) -> str:
    """Add an operation with two operands. cuDNN broadcasts the second: the smaller one goes there if order allows."""
    kind, first_port, second_port = how
    build = node.build
    shapes = build.shape_of(first), build.shape_of(second)
    whole = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    if kind in _COMMUTATIVE and (build.is_scalar(first) or (shapes[0] != whole and shapes[1] == whole)):
        first, second = second, first
    return node.write(kind, {first_port: first, second_port: second}, whole)


_BETWEEN = ((), ("Mul",), ("Div",), ("Add",), ("Mul", "Add"), ("Div", "Add"))
"""Operators allowed between the first product and the softmax: a scale, and a mask to add."""
_RANK = 4
"""Batch, heads, queries or keys, size of a head."""


def attention(nodes: Sequence[CudnnNode]) -> bool:
    """Add a single operation for the whole brick if it is attention.

    Returns:
        True if it is; otherwise nothing was added.
    """
    scale_and_mask = _scores(nodes) if _is_shaped(nodes) and _is_chain(nodes) else None
    if scale_and_mask is None:
        return False
    (scale, mask), first, last = scale_and_mask, nodes[0], nodes[-1]
    build = first.build
    batch, heads, size, keys = first.shape(1)
    inputs = {
        "q": build.read(first.inputs[0], first.shape(0), image=False),
        # The library wants the numbers of a key side by side. In the network they are not: its keys were transposed
        # for the product. A runtime that fuses attention does not transpose them, so here they are laid out anew.
        "k": build.read(first.inputs[1], (batch, heads, keys, size), order=(0, 1, 3, 2), image=False, relaid=True),
        "v": build.read(last.inputs[1], last.shape(1), image=False),
    }
    if mask is not None:
        inputs["bias"] = build.read(mask, build.lifted(build.shape(mask)), image=False)
    last.give(last.write("sdpa", inputs, last.result, attn_scale=scale))
    return True


def _is_shaped(nodes: Sequence[CudnnNode]) -> bool:
    """Return True if operators, ranks, heads and the axis of the softmax fit attention."""
    kinds = tuple(node.op_type for node in nodes)
    if len(kinds) < 3 or (kinds[0], *kinds[-2:]) != ("MatMul", "Softmax", "MatMul") or kinds[1:-2] not in _BETWEEN:
        return False
    first, softmax, last = nodes[0], nodes[-2], nodes[-1]
    shapes = [first.shape(0), first.shape(1), last.shape(1), *(node.result for node in nodes)]
    if any(len(shape) != _RANK for shape in shapes) or len({shape[:2] for shape in shapes}) != 1:
        return False
    return bool(softmax.get("axis", -1) % _RANK == _RANK - 1)


def _is_chain(nodes: Sequence[CudnnNode]) -> bool:
    """Return True if each node is the only reader of the node before it; all other operands come from outside."""
    build = nodes[0].build
    exposed = {value.name for value in build.graph.output}
    for before, node in itertools.pairwise(nodes):
        value = before.outputs[0]
        if node.inputs.count(value) != 1 or value in exposed or build.readers(value) != 1:
            return False
    passed = {node.outputs[0] for node in nodes}
    others = [name for node in nodes for name in node.inputs if name not in passed]
    return nodes[-1].inputs[0] == nodes[-2].outputs[0] and all(build.given(name) for name in others)


def _scores(nodes: Sequence[CudnnNode]) -> tuple[float, str | None] | None:
    """Return scale and mask; None if the scale is not a number."""
    scale, mask = 1.0, None
    for before, node in itertools.pairwise(nodes[:-2]):
        operand_index = 1 - node.inputs.index(before.outputs[0])
        if node.op_type == "Add":
            mask = node.inputs[operand_index]
            continue
        numbers = node.build.constant(node.inputs[operand_index])
        if numbers is None or len(numbers) != 1 or (node.op_type == "Div" and (operand_index == 0 or not numbers[0])):
            return None
        scale = numbers[0] if node.op_type == "Mul" else 1 / numbers[0]
    return scale, mask


_REFUSED = {
    **dict.fromkeys(("MaxPool", "AveragePool"), "is a pool, which the Python frontend does not have"),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"), "computes nothing"),
}
"""Why operators are not translated."""


def translate(model: onnx.ModelProto) -> OperationGraph:
    """Return the operation graph of a brick.

    Raises:
        UnsupportedBrick: cuDNN's graph API lacks it; the message names the operator and says why.
    """
    builder = Builder(infer_shapes(model, strict=True))
    if attention([CudnnNode(proto, builder) for proto in builder.graph.node]):
        return builder.finish()
    for proto in builder.graph.node:
        emit = OPERATORS.get(proto.op_type) if is_standard(proto) else None
        node = CudnnNode(proto, builder)
        if emit is None:
            raise node.refuse(_REFUSED.get(proto.op_type, "is not in cuDNN's graph API, or not translated"))
        emit(node)
    return builder.finish()
