"""cuDNN's operation graphs: what they compute, by the definitions of their operations, beside ONNX Runtime."""
# ruff: noqa: TID251 - computes with torch what cuDNN would

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from dlbricks.errors import UnsupportedBrick
from dlbricks.generator.backends.cudnn.lowering import translate
from dlbricks.generator.backends.cudnn.operations import (
    Derivation,
    Operation,
    OperationGraph,
    Tensor,
    TensorRole,
    merged,
)
from dlbricks.generator.measurement.agreement import difference
from dlbricks.generator.network.network import synthetic_network
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

Array = np.ndarray[Any, Any]


def _product(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    for axis in axes:
        x = torch.prod(x, axis, keepdim=True)
    return x


_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs, "ceil": torch.ceil, "cos": torch.cos, "erf": torch.erf, "exp": torch.exp, "floor": torch.floor,
    "log": torch.log, "neg": torch.neg, "reciprocal": torch.reciprocal, "relu": torch.relu, "sigmoid": torch.sigmoid,
    "sin": torch.sin, "softplus": functional.softplus, "sqrt": torch.sqrt, "tan": torch.tan, "tanh": torch.tanh,
    "elu": functional.elu, "gelu": functional.gelu,
    "gelu_approx_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}  # fmt: skip
_BINARY: dict[str, Any] = {
    "add": (torch.add, "a", "b"), "sub": (torch.sub, "a", "b"), "mul": (torch.mul, "a", "b"),
    "div": (torch.div, "a", "b"), "pow": (torch.pow, "input0", "input1"), "max": (torch.maximum, "input0", "input1"),
    "min": (torch.minimum, "input0", "input1"), "matmul": (torch.matmul, "A", "B"),
}  # fmt: skip
"""By kind, with the names of the parameters that the frontend gives to the operands."""
_REDUCTIONS: dict[str, Callable[[torch.Tensor, list[int]], torch.Tensor]] = {
    "ADD": lambda x, axes: torch.sum(x, axes, keepdim=True),
    "AVG": lambda x, axes: torch.mean(x, axes, keepdim=True),
    "MAX": lambda x, axes: torch.amax(x, axes, keepdim=True),
    "MIN": lambda x, axes: torch.amin(x, axes, keepdim=True),
    "MUL": _product,
}


COMPUTED = [
    "(float[1,8,9,9] x, float[4,8,3,3] w0) => (float[1,4,5,5] y) { y = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w0) }",
    "(float[2,8,9,7] x, float[4,8,3,3] w0, float[4] w1) => (float[2,4,10,7] y){ y = Conv<pads=[2,0,1,2]>(x, w0, w1) }",
    "(float[1,8,9,9] x, float[8,2,3,3] w0) => (float[1,8,5,5] y) { y = Conv<group=4, dilations=[2,2]>(x, w0) }",
    (
        "(float[1,8,12] x, float[4,8,3] w0, float[4] w1) => (float[1,4,6] y)"
        "{ a = Conv<pads=[1,1], strides=[2]>(x, w0, w1) y = Relu(a) }"
    ),
    "(float[1,2,5,6,7] x, float[3,2,3,3,3] w0) => (float[1,3,5,6,7] y) { y = Conv<pads=[1,1,1,1,1,1]>(x, w0) }",
    (
        "(float[1,8,6,6] x, float[8,8,1,1] w0, float[8] w1, float[8] w2, float[8] w3, float[8] w4, float[1,8,6,6] z)"
        " => (float[1,8,6,6] y)"
        "{ a = Conv(x, w0) b = BatchNormalization<epsilon=0.001>(a, w1, w2, w3, w4) c = Add(b, z) y = Relu(c) }"
    ),
    "(float[2,3,4,5] x, float[2,3,5,6] z) => (float[2,3,4,6] y) { y = MatMul(x, z) }",
    "(float[2,7,4,5] x, float[5,6] w0, float[6] w1) => (float[2,7,4,6] y) { a = MatMul(x, w0) y = Add(w1, a) }",
    "(float[4,5] x, float[6,5] w0, float[6] w1) => (float[4,6] y) { y = Gemm<transB=1>(x, w0, w1) }",
    "(float[5,4] x, float[5,6] w0, float[4,1] w1) => (float[4,6] y) { y = Gemm<transA=1, alpha=0.5>(x, w0, w1) }",
    "(float[3,4,5] x) => (float[3,4,5] y) { a = Sigmoid(x) b = Tanh(a) c = Exp(b) d = Sqrt(c) y = Erf(d) }",
    "(float[3,4,5] x) => (float[3,4,5] y) { a = Abs(x) b = Neg(a) c = Softplus(b) d = Log(c) y = Reciprocal(d) }",
    "(float[3,4,5] x) => (float[3,4,5] y) { a = Sin(x) b = Cos(a) c = Floor(b) d = Ceil(c) y = Elu(d) }",
    "(float[3,4,5] x) => (float[3,4,5] y) { a = LeakyRelu<alpha=0.3>(x) b = HardSwish(a) y = HardSigmoid(b) }",
    '(float[3,4,5] x) => (float[3,4,5] y) { a = Gelu(x) y = Gelu<approximate="tanh">(a) }',
    "(float[3,4,5] x) => (float[3,4,5] y) <float low = {-0.5}, float high = {0.7}> { y = Clip(x, low, high) }",
    "(float[3,4,5] x) => (float[3,4,5] y) <float high = {0.7}> { y = Clip(x, , high) }",
    "(float[1,4,5,5] x, float[4,1,1] w0) => (float[1,4,5,5] y) { y = PRelu(x, w0) }",
    "(float[1,4,5,5] x, float[4,1,1] z) => (float[1,4,5,5] y) { a = Mul(z, x) b = Sub(a, z) y = Div(z, b) }",
    "(float[3,4,5] x) => (float[3,4,5] y) <float two = {2}> { a = Abs(x) b = Pow(a, two) y = Mul(b, b) }",
    "(float[4,5] x, float[1,5] z, float[4,1] v) => (float[4,5] y) { a = Sum(x, z, v) b = Max(a, z) y = Min(b, v, x) }",
    "(float[2,3,8] x, float[8] w0, float[8] w1) => (float[2,3,8] y) { y = LayerNormalization(x, w0, w1) }",
    "(float[2,3,8] x, float[3,8] w0, float[3,8] w1) => (float[2,3,8] y) { y = LayerNormalization<axis=1>(x, w0, w1)}",
    "(float[2,3,8] x) => (float[2,3,8] y) { y = Softmax<axis=1>(x) }",
    "(float[1,6,4,4] x) => (float[1,6,1,1] y) { y = GlobalAveragePool(x) }",
    "(float[2,3,4,5] x) => (float[2,4] y) <int64[2] axes = {1,3}> { y = ReduceMean<keepdims=0>(x, axes) }",
    "(float[2,3,4,5] x) => (float[2,3,1,5] y) <int64[1] axes = {2}> { a = ReduceMax(x, axes) y = Exp(a) }",
    "(float[2,3,4] x) => (float[1,1,1] y) { y = ReduceSum(x) }",
    (
        "(float[1,4,3,3] x, float[4] w0, float[4] w1, float[4] w2, float[4] w3) => (float[1,4,3,3] y)"
        "{ y = BatchNormalization(x, w0, w1, w2, w3) }"
    ),
    (
        "(float[2,3,8,4] q, float[2,3,4,8] k, float[2,1,1,8] m, float[2,3,8,4] v) => (float[2,3,8,4] y) <float s = {2}>"
        "{ a = MatMul(q, k) b = Div(a, s) c = Add(b, m) d = Softmax<axis=-1>(c) y = MatMul(d, v) }"
    ),
]

ODD = [line for line in Path(__file__).with_name("cudnn_odd.txt").read_text().splitlines() if line.startswith("(")]
"""Bricks that are easily translated wrongly: broadcasting, ranks, exposed values, what looks like attention."""

REFUSED = {
    "(float[1,4,8,8] x) => (float[1,4,7,7] y) { y = MaxPool<kernel_shape=[2,2]>(x) }": "MaxPool is a pool",
    "(float[2,3] x) => (float[3,2] y) { y = Transpose(x) }": "Transpose is not in cuDNN's graph API",
    "(float[2,3] x) => (float[2,3] y) { y = Identity(x) }": "Identity computes nothing",
    "(int64[2,3] x) => (int64[2,3] y) { y = Add(x, x) }": "of type int64",
    "(float[3] x, float[3,4] w0) => (float[4] y) { y = MatMul(x, w0) }": "MatMul of a vector",
    "(float[4,5] x, float[5,6] w0, float[6] w1) => (float[4,6] y) { y = Gemm<beta=0.5>(x, w0, w1) }": "a scaled bias",
    "(float[2,3,4] x) => (float[2,4] y) <int64[1] axes = {1}> { a = ReduceMax<keepdims=0>(x, axes) y = Exp(a) }":
        "read in another shape",
    "(float[2,8] x, float[8] w0) => (float[2,8] y) { y = LayerNormalization(x, w0) }": "without a bias",
    "(float[1,4,8,8] x, float[4,4,3,3] w0) => (float[1,4,8,8] y) { y = Conv<auto_pad=\"SAME_UPPER\">(x, w0) }":
        "automatic padding",
}  # fmt: skip


def evaluate(
    whole: OperationGraph,
    values: Mapping[str, Array],
    few: OperationGraph | None = None,
    *,
    channels_last: bool = False,
) -> dict[str, Array]:
    """Outputs of a graph by name, from the values of the network's inputs, weights and constants.

    Where it is given, ``few`` is computed: the same graph with fewer dimensions, and with its images' channels last.
    """
    graph = whole if few is None else few
    found = {}
    for name, tensor in whole.tensors.items():
        if tensor.role not in {TensorRole.INPUT, TensorRole.WEIGHT, TensorRole.SCALAR}:
            continue
        value = _read(tensor, values)
        if graph is not whole:
            moved = _channels_last(value) if channels_last and tensor.image else value
            value = moved.reshape(graph.tensors[name].shape)
            assert not tensor.order or torch.equal(_read(graph.tensors[name], values), value)
        found[name] = value
    for operation in graph.operations:
        result = _compute(operation, found, graph.tensors[operation.output].shape)
        assert tuple(result.shape) == graph.tensors[operation.output].shape, operation
        found[operation.output] = result
    outputs = {}
    for value, name in graph.outputs.items():
        result, tensor = found[name], whole.tensors[name]
        if graph is not whole and channels_last and tensor.image:
            result = result.reshape((tensor.shape[0], *tensor.shape[2:], tensor.shape[1]))
            result = result.permute(0, result.ndim - 1, *range(1, result.ndim - 1))
        outputs[value] = result.numpy()
    return outputs


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    return value.permute(0, *range(2, value.ndim), 1)


def _read(tensor: Tensor, values: Mapping[str, Array]) -> torch.Tensor:
    if tensor.role is TensorRole.SCALAR:
        return torch.full(tensor.shape, float(tensor.value or 0.0))
    if tensor.derivation is not Derivation.NONE:
        assert tensor.value is not None
        scale, mean, variance, *bias = (torch.from_numpy(values[name].astype(np.float32)) for name in tensor.sources)
        factor = scale / torch.sqrt(variance + tensor.value)
        return (factor if tensor.derivation is Derivation.SCALE else bias[0] - mean * factor).reshape(tensor.shape)
    order = tensor.order or tuple(range(len(tensor.shape)))
    stored = torch.from_numpy(np.array(values[tensor.sources[0]])).reshape([tensor.shape[at] for at in order])
    found = stored.permute(*np.argsort(order).tolist())
    pairs = zip(found.stride(), tensor.strides(), tensor.shape, strict=True)
    assert tensor.relaid or all(real == reported for real, reported, size in pairs if size > 1)
    return found


def _compute(operation: Operation, values: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    kind, settings = operation.kind, operation.settings
    inputs = {port: values[name] for port, name in operation.inputs.items()}
    first = inputs["input"] if "input" in inputs else torch.empty(0)
    if kind == "conv_fprop":
        return _convolution(inputs["image"], inputs["weight"], settings)
    if kind == "reduction":
        axes = [at for at, size in enumerate(shape) if size != first.shape[at]]
        return _REDUCTIONS[settings["mode"]](first, axes) if axes else first
    if kind == "leaky_relu":
        return functional.leaky_relu(first, settings["negative_slope"])
    if kind == "sdpa":
        scores = inputs["q"] @ inputs["k"].mT * settings["attn_scale"] + inputs.get("bias", torch.zeros(1))
        return torch.softmax(scores, -1) @ inputs["v"]
    if kind in {"layernorm", "rmsnorm"}:
        norm = functional.layer_norm if kind == "layernorm" else functional.rms_norm
        width, epsilon = [first.shape[1]], float(inputs["epsilon"].reshape(-1)[0])
        extra = [inputs["bias"].reshape(-1)] if "bias" in inputs else []
        return norm(first.flatten(1), width, inputs["scale"].reshape(-1), *extra, eps=epsilon).reshape(first.shape)
    if kind in _UNARY:
        return _UNARY[kind](first)
    compute, *ports = _BINARY[kind]
    return compute(*(inputs[port] for port in ports))


def _convolution(image: torch.Tensor, weight: torch.Tensor, settings: Mapping[str, Any]) -> torch.Tensor:
    pads = [each for pair in zip(settings["pre_padding"], settings["post_padding"], strict=True) for each in pair[::-1]]
    convolve = {2: functional.conv2d, 3: functional.conv3d}[len(settings["stride"])]
    groups = image.shape[1] // weight.shape[1]
    padded = functional.pad(image, pads[::-1])
    return convolve(padded, weight, None, settings["stride"], 0, settings["dilation"], groups)


def agrees(model, graph, few=None, *, channels_last=False):
    """Whether a graph computes what ONNX Runtime does, for the seeded values of a brick's network."""
    network = synthetic_network(model)
    whole = network.self_contained()
    values = {each.name: numpy_helper.to_array(each) for each in (*model.graph.initializer, *whole.graph.initializer)}
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(whole.SerializeToString(), options, providers=["CPUExecutionProvider"])
    expected = session.run(list(network.outputs), dict(network.feeds))
    found = evaluate(graph, {**values, **network.feeds}, few, channels_last=channels_last)
    names = [value.name for value in model.graph.output]
    pairs = [(found[name].reshape(right.shape), right) for name, right in zip(names, expected, strict=True)]
    return all(difference(one, other) < (1e-5 if other.dtype == np.float32 else 5e-3) for one, other in pairs)


def agrees_in_every_form(model, graph):
    """As it stands, and with fewer dimensions in both layouts."""
    forms = [
        agrees(model, graph),
        agrees(model, graph, merged(graph)),
        agrees(model, graph, merged(graph, channels_last=True), channels_last=True),
    ]
    return all(forms)


@pytest.mark.parametrize("text", COMPUTED)
def test_an_operation_graph_computes_what_the_brick_does(text, skeleton_of):
    model = skeleton_of(text)
    graph = translate(model)

    assert all(len(tensor.shape) >= 3 for tensor in graph.tensors.values())
    assert agrees_in_every_form(model, graph)


@pytest.mark.sweep(60)
@pytest.mark.parametrize("text", ODD)
def test_what_is_accepted_of_odd_bricks_computes_the_same(text, skeleton_of):
    model = skeleton_of(text)
    onnx.checker.check_model(model, full_check=True)
    try:
        graph = translate(model)
    except UnsupportedBrick as error:
        refusal = str(error)
        graph = None
    if graph is None:
        assert refusal.startswith("cuDNN: ")
    else:
        assert agrees_in_every_form(model, graph)


def test_most_odd_bricks_are_accepted(skeleton_of):
    accepted = 0
    for text in ODD:
        with contextlib.suppress(UnsupportedBrick):
            translate(skeleton_of(text))
            accepted += 1

    assert accepted > len(ODD) * 2 // 3


@pytest.mark.parametrize(("text", "reason"), REFUSED.items())
def test_what_cannot_be_expressed_is_refused_with_its_reason(text, reason, skeleton_of):
    with pytest.raises(UnsupportedBrick, match=reason):
        translate(skeleton_of(text))


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_merging_dimensions_changes_no_result(data):
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    operand = [data.draw(st.sampled_from([1, size])) for size in sizes][data.draw(st.integers(0, len(sizes) - 1)) :]
    axes = data.draw(st.lists(st.sampled_from(range(len(sizes))), min_size=1, unique=True))
    shape, other = ",".join(map(str, sizes)), ",".join(map(str, operand))
    chosen = ",".join(map(str, sorted(axes)))
    text = (
        f'<ir_version: 10, opset_import: ["": 21]> brick (float[{shape}] x, float[{other}] z) => (float[{shape}] y)'
        f" <int64[{len(axes)}] axes = {{{chosen}}}>"
        f"{{ a = Add(x, z) b = ReduceSum(a, axes) c = Mul(a, b) y = Sub(c, z) }}"
    )
    model = onnx.parser.parse_model(text)
    whole = translate(model)
    few = merged(whole)

    assert max(len(tensor.shape) for tensor in few.tensors.values()) <= max(len(sizes), 3)
    for name, tensor in whole.tensors.items():
        assert np.prod(tensor.shape) == np.prod(few.tensors[name].shape)
    assert agrees_in_every_form(model, whole)


def test_an_images_channels_may_be_the_fastest_in_memory(skeleton_of):
    graph = translate(skeleton_of("(float[1,4,5,6] x, float[4] w0, float[4] w1, float[4] w2, float[4] w3)"
                                  " => (float[1,4,5,6] y) { y = BatchNormalization(x, w0, w1, w2, w3) }"))  # fmt: skip

    assert graph.tensors["x"].strides() == (120, 30, 6, 1)
    assert graph.tensors["x"].strides(channels_last=True) == (120, 1, 24, 4)
    # With the channels last, the other dimensions of the image are one; with them first, they are not.
    assert merged(graph, channels_last=True).tensors["x"].shape == (1, 30, 4)
    assert merged(graph).tensors["x"].shape == (1, 4, 30)


@pytest.mark.parametrize(
    ("left", "bias", "expected"),
    [
        ("2,7,4,5", "6", (1, 56, 5)),  # the batch is more rows
        ("2,7,1,5", "6", (1, 14, 5)),
        ("2,7,4,5", "2,1,1,6", (2, 28, 5)),  # but for what is added, which differs by its first dimension
        ("2,7,4,5", "4,6", (14, 4, 5)),  # and here by row
    ],
)
def test_a_batch_of_products_with_one_matrix_is_one_product(left, bias, expected, skeleton_of):
    text = f"(float[{left}] x, float[5,6] w0, float[{bias}] z) => (float[{left[:-1]}6] y)"
    model = skeleton_of(f"{text} {{ a = MatMul(x, w0) y = Add(a, z) }}")
    whole = translate(model)
    few = merged(whole)

    assert few.tensors["x"].shape == expected
    assert few.tensors["w0"].shape == (1, 5, 6)
    assert agrees(model, whole, few)


@pytest.mark.parametrize(
    "scores",
    [
        "b = Div(s, a) c = Add(b, m)",  # the scale is divided by the product
        "b = Mul(a, s) c = Add(b, a)",  # the product is added to itself
        "b = Add(a, a) c = Add(b, m)",
        "b = Div(a, z) c = Add(b, m)",  # by nought
    ],
)
def test_what_looks_like_attention_and_is_none_stays_what_it_is(scores, skeleton_of):
    text = (
        "(float[2,3,8,4] q, float[2,3,4,8] k, float[2,1,1,8] m, float[2,3,8,4] v) => (float[2,3,8,4] y)"
        f" <float s = {{2}}, float z = {{0}}> {{ a = MatMul(q, k) {scores} d = Softmax(c) y = MatMul(d, v) }}"
    )
    kinds = [operation.kind for operation in translate(skeleton_of(text)).operations]

    assert "sdpa" not in kinds
    assert kinds.count("matmul") == 2


def test_attention_reads_its_keys_as_they_were_before_they_were_transposed(skeleton_of):
    graph = translate(skeleton_of(COMPUTED[-1]))

    assert [operation.kind for operation in graph.operations] == ["sdpa"]
    assert graph.operations[0].settings == {"attn_scale": 0.5}
    keys = graph.tensors["k"]
    assert (keys.shape, keys.order, keys.strides()) == ((2, 3, 8, 4), (0, 1, 3, 2), (96, 32, 4, 1))
    assert Tensor((4, 3), TensorRole.WEIGHT, (1, 0)).strides() == (1, 4)
