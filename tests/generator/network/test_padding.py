"""Padded channels: the real ones are what they were, the others are finite, and what cannot be padded says why."""

from __future__ import annotations

import importlib.util

import numpy as np
import onnx
import onnx.parser
import pytest
from computing import computed, operators, settings
from dlbricks.bricks.cutting.sequences import make_sequence, split
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.errors import UnsupportedBrick
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.backends.torch.backend import TorchBackend
from dlbricks.generator.network.network import Network, file_network, synthetic_network
from dlbricks.generator.network.padding import padded_network
from dlbricks.generator.worker.messages import Time
from dlbricks.models.skeleton import mark_weight
from dlbricks.models.zoo import structure
from hypothesis import given
from hypothesis import settings as explored
from hypothesis import strategies as st
from working import network, pack

BACKENDS = [OrtBackend(), *([TorchBackend()] if importlib.util.find_spec("torch") else [])]

IMAGES = {
    "first": (
        "(float[1,3,9,9] x, float[5,3,3,3] w0, float[5] w1) => (float[1,5,7,7] y) {a = Conv(x, w0, w1) y = Relu(a)}"
    ),
    "depthwise": (
        "(float[2,10,9,9] x, float[10,1,3,3] w0) => (float[2,10,7,7] y) {a = Conv<group=10>(x, w0) y = Softplus(a)}"
    ),
    "normalised": (
        "(float[1,12,6,6] x, float[20,12,1,1] w0, float[20] w1, float[20] w2, float[20] w3, float[20] w4)"
        " => (float[1,20,1,1] y)"
        "{a = Conv(x, w0) b = BatchNormalization(a, w1, w2, w3, w4) c = HardSwish(b) y = GlobalAveragePool(c)}"
    ),
    "residual": (
        "(float[1,12,6,6] x, float[1,12,6,6] z, float[12,12,3,3] w0, float[12,1,1] w1) => (float[1,12,6,6] y)"
        "{a = Conv<pads=[1,1,1,1]>(x, w0) b = Add(a, z) c = PRelu(b, w1) d = Sum(c, x) y = Max(d, z)}"
    ),
    "gate": (
        "(float[1,12,6,6] x, float[1,12,6,6] z, float[12,12,1,1] w0, float[12,1,1] w1) => (float[1,12,6,6] y)"
        "{a = Conv(x, w0) b = Sigmoid(a) c = Mul(z, b) d = Div(c, b) e = Div(d, w1) y = Sub(e, x)}"
    ),
    "pools": (
        "(float[1,6,9,9] x, float[9,6,1,1] w0) => (float[1,9,3,3] y)"
        "{a = MaxPool<kernel_shape=[2,2]>(x) b = Conv(a, w0)"
        " y = AveragePool<kernel_shape=[3,3], strides=[3,3], pads=[1,1,0,0], count_include_pad=1>(b)}"
    ),
    "a constant that is read in several ways": (
        "(float[1,6,4,4] x, float[5,6] z, float[6,6,1,1] w0, float[6] w1) => (float[1,6,4,4] y, float[5,6] v)"
        "{a = Conv(x, w0, w1) y = Relu(a) v = Add(z, w1)}"
    ),
    "channels that are read in another shape": (
        "(float[1,3,6,6] x, float[32,3,1,1] w0) => (float[32,36] y)"
        "{a = Conv(x, w0) s = Constant<value_ints=[32,36]>() y = Reshape(a, s)}"
    ),
    "line": "(float[1,3,40] x, float[10,3,5] w0) => (float[1,10,36] y) {a = Conv(x, w0) y = Tanh(a)}",
}
PRODUCTS = {
    "rows": (
        "(float[2,5,12] x, float[12,30] w0, float[30] w1) => (float[2,5,30] y)"
        "{a = MatMul(x, w0) b = Add(a, w1) c = Gelu(b) y = Mul(c, b)}"
    ),
    "gemm": (
        "(float[5,12] x, float[30,12] w0, float[30] w1) => (float[5,30] y){y = Gemm<transB=1, alpha=0.5>(x, w0, w1)}"
    ),
    "clipped": (
        "(float[2,5,12] x, float[12,1] w0) => (float[2,5,1] y) <float low = {-0.1}, float high = {0.2}>"
        "{a = MatMul(x, w0) y = Clip(a, low, high)}"
    ),
    "two": (
        "(float[5,12] x, float[12,30] w0, float[5,30] w1, float[30,7] w2) => (float[5,7] y)"
        "{a = Gemm(x, w0, w1) b = Relu(a) y = MatMul(b, w2)}"
    ),
}
REFUSED = {
    "Sqrt of padded channels may not be finite": (  # 0 in exact arithmetic, and below 0 as it is rounded
        "(float[1,3,9,9] x, float[5,3,1,1] w0, float[6,5,1,1] w1) => (float[1,6,1,1] y)"
        "{a = Conv(x, w0) s = Softplus(a) q = Mul(s, s) m = GlobalAveragePool(s) n = GlobalAveragePool(q)"
        " o = Mul(m, m) d = Sub(n, o) v = Sqrt(d) y = Conv(v, w1)}"
    ),
    "GlobalAveragePool cannot be carried over": (
        "(float[1,3,4,4] x, float[5,3,1,1] w0, float[1,5,4,4] w1) => (float[1,5,4,4] y)"
        "{a = Conv(x, w0) b = GlobalAveragePool(w1) y = Add(a, b)}"
    ),
    "BatchNormalization cannot be carried over": (
        "(float[1,3,4,4] x, float[5,3,1,1] w0, float[1,5,4,4] w1, float[5] w2, float[5] w3, float[5] w4, float[5] w5)"
        " => (float[1,5,4,4] y) {a = Conv(x, w0) b = BatchNormalization(w1, w2, w3, w4, w5) y = Add(a, b)}"
    ),
    "too few dimensions": "(float[12] x, float[12] w0) => (float y) {y = MatMul(x, w0)}",
    "no convolution, pool or product": "(float[1,3,4,4] x) => (float[1,3,4,4] y) {y = Relu(x)}",
    "product with constant weights": ("(float[2,5,12] x, float[2,12,30] z) => (float[2,5,30] y) {y = MatMul(x, z)}"),
    "all channels are multiples of 8 already": (
        "(float[1,8,4,4] x, float[16,8,1,1] w0) => (float[1,16,4,4] y) {y = Conv(x, w0)}"
    ),
    "groups of a convolution": "(float[1,6,4,4] x, float[6,3,1,1] w0) => (float[1,6,4,4] y) {y = Conv<group=2>(x, w0)}",
    "Softmax cannot be carried over": (
        "(float[5,12] x, float[12,30] w0) => (float[5,30] y) {a = MatMul(x, w0) y = Softmax(a)}"
    ),
    "Concat cannot be carried over": (
        "(float[1,3,4,4] x, float[5,3,1,1] w0) => (float[1,8,4,4] y) {a = Conv(x, w0) y = Concat<axis=1>(a, x)}"
    ),
    "Log of padded channels is not finite": (
        "(float[1,3,4,4] x, float[5,3,1,1] w0) => (float[1,5,4,4] y) {a = Conv(x, w0) b = Abs(a) y = Log(b)}"
    ),
    "Div of padded channels is not finite": (
        "(float[1,3,4,4] x, float[1,3,4,4] z, float[3,3,1,1] w0) => (float[1,3,4,4] y) {a = Conv(x, w0) y = Div(a, z)}"
    ),
    "Mul broadcasts over padded channels": (
        "(float[1,3,4,4] x, float[1,1,4,4] z, float[5,3,1,1] w0) => (float[1,5,4,4] y) {a = Conv(x, w0) y = Mul(a, z)}"
    ),
    "Sub broadcasts over padded channels": (
        "(float[1,3,4,4] x, float[5,3,1,1] w0, float[1,3,1,1] w1) => (float[1,5,4,4] y)"
        "{a = Conv(x, w0) b = Conv(x, w1) y = Sub(a, b)}"
    ),
    "varies within padded channels": (
        "(float[1,3,4,4] x, float[5,3,1,1] w0, float[4,4] w1) => (float[1,5,4,4] y) {a = Conv(x, w0) y = Add(a, w1)}"
    ),
    "another axis for channels": (
        "(float[1,3,4,4] x, float[5,3,1,1] w0, float[4,7] w1) => (float[1,5,4,7] y) {a = Conv(x, w0) y = MatMul(a, w1)}"
    ),
    "more than one result": (
        "(float[1,3,4,4] x) => (float[1,3,3,3] y, int64[1,3,3,3] z) {y, z = MaxPool<kernel_shape=[2,2]>(x)}"
    ),
    "the edge of padded channels": (
        "(float[1,3,4,4] x, float[5,3,1,1] w0) => (float[1,5,4,4] y) {a = Conv(x, w0) b = Exp(a)"
        " y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(b)}"
    ),
}


def assert_same_function(network: Network, padded: Network) -> None:
    """Real channels are equal and padded ones finite; one value at least has become larger."""
    onnx.checker.check_model(padded.self_contained(), full_check=True)
    for backend in BACKENDS:
        for real, found in zip(computed(network, backend), computed(padded, backend), strict=True):
            assert np.isfinite(found).all()
            assert np.isfinite(real).all()
            kept = found[tuple(slice(size) for size in real.shape)]
            np.testing.assert_allclose(kept, real, rtol=1e-5, atol=1e-5 * np.abs(real).max())
    smaller, larger = (each.self_contained().ByteSize() + each.feed_bytes for each in (network, padded))
    assert smaller < larger


@pytest.mark.parametrize("graph", [*IMAGES.values(), *PRODUCTS.values()], ids=[*IMAGES, *PRODUCTS])
@pytest.mark.parametrize(("multiple", "copies"), [(8, 1), (8, 3), (32, 1)])
def test_real_channels_are_what_they_were(skeleton_of, graph, multiple, copies):
    network = synthetic_network(skeleton_of(graph), unroll=copies)

    padded = padded_network(network, multiple)

    assert_same_function(network, padded)
    assert operators(padded) == operators(network)
    assert (padded.unroll, len(padded.first_feeds())) == (copies, len(network.first_feeds()))
    # Copies of a brick go on sharing their weights.
    assert len({id(array) for array in padded.weights.values()}) <= len(padded.weights) / copies


@pytest.mark.parametrize(("reason", "graph"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_padded_says_why(skeleton_of, reason, graph):
    network = synthetic_network(skeleton_of(graph))

    with pytest.raises(UnsupportedBrick, match=reason):
        padded_network(network, 8)


def test_sizes_that_half_the_multiple_gives_too_are_not_measured_twice(skeleton_of):
    graph = "(float[1,{0}] x, float[{0},20] w0) => (float[1,20] y) {{y = MatMul(x, w0)}}"
    other, same = (synthetic_network(skeleton_of(graph.format(depth))) for depth in (10, 30))

    assert_same_function(other, padded_network(other, 32))
    with pytest.raises(UnsupportedBrick, match="padded to multiples of 16, all channels are multiples of 32 already"):
        padded_network(same, 32)


def test_only_bricks_of_source_layers_are_padded(skeleton_of, model_file, tmp_path):
    network = synthetic_network(skeleton_of(IMAGES["first"]))
    optimised = OrtBackend().optimised(network, settings())
    file = file_network(model_file(tmp_path / "one.onnx", IMAGES["line"], {"w0": (10, 3, 5)}), overrides={})

    for other in (optimised, file):
        with pytest.raises(UnsupportedBrick, match="only bricks of source layers"):
            padded_network(other, 8)
    assert padded_network(optimised, 1) is optimised


def test_shapes_weights_and_inputs_are_those_of_the_larger_brick(skeleton_of):
    network = synthetic_network(skeleton_of(IMAGES["first"]))

    padded = padded_network(network, 16)

    shapes = {name: array.shape for name, array in (*padded.feeds.items(), *padded.weights.items())}
    assert sorted(shapes.values()) == [(1, 16, 9, 9), (16, 16, 3, 3)]
    (weight,) = padded.weights.values()
    assert np.count_nonzero(weight) == 5 * 3 * 3 * 3  # all others are zeros
    assert not padded.feeds["x"][:, 3:].any()
    np.testing.assert_array_equal(padded.feeds["x"][:, :3], network.feeds["x"])
    assert [dim.dim_value for dim in padded.model.graph.output[0].type.tensor_type.shape.dim] == [1, 16, 7, 7]


@given(st.data())
@explored(max_examples=15, deadline=None)
def test_any_small_convolution_keeps_its_real_channels(data):
    read, written = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    depthwise = data.draw(st.booleans())
    written = read if depthwise else written
    kernel, stride, bias = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2)), data.draw(st.booleans()))
    size = (9 - kernel) // stride + 1
    weight = f"float[{written},{1 if depthwise else read},{kernel},{kernel}] w0"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> brick (float[1,{read},9,9] x, {weight}'
        f"{f', float[{written}] w1' if bias else ''}) => (float[1,{written},{size},{size}] y)"
        f"{{a = Conv<group={read if depthwise else 1}, strides=[{stride},{stride}]>(x, w0{', w1' if bias else ''})"
        f" y = {data.draw(st.sampled_from(['Relu', 'Exp', 'Sigmoid', 'Neg']))}(a)}}"
    )
    for value in model.graph.input[1:]:
        mark_weight(value)
    network = synthetic_network(model, unroll=data.draw(st.integers(1, 2)))
    multiple = data.draw(st.sampled_from([5, 8, 13]))

    if read % multiple == written % multiple == 0:
        with pytest.raises(UnsupportedBrick, match="already"):
            padded_network(network, multiple)
    else:
        assert_same_function(network, padded_network(network, multiple))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "granularity", "multiple", "least"),
    [("squeezenet", 1, 25, 20), ("shufflenet", 1, 16, 7), ("shufflenet", 1, 25, 12), ("bert_base", 1, 25, 4)],
)
def test_bricks_of_real_models_keep_their_real_channels(name, granularity, multiple, least):
    graph = build_graph(structure(name))
    windows = (make_sequence(graph, layers) for layers in split(graph, granularity))
    padded = 0
    for sequence in {sequence.key: sequence for sequence in windows}.values():
        network = synthetic_network(onnx.load_from_string(build_brick(graph, sequence).model))
        try:
            larger = padded_network(network, multiple)
        except UnsupportedBrick:
            continue
        assert_same_function(network, larger)
        padded += 1
    assert padded >= least


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_padding_is_an_algorithm_of_what_a_worker_times_and_packs_and_no_option(
    skeleton_of, tmp_path, backend, worker_of
):
    plain = settings(backend)
    chosen = backend.with_algorithm(plain, "padded-16")
    assert (plain.channels, chosen.channels, chosen.options) == (1, 16, plain.options)
    worker, files, reason = worker_of(backend.name, together=True), {}, "all channels are multiples of 8 already"
    for name, graph in (("brick", IMAGES["residual"]), ("even", REFUSED[reason])):
        files[name] = tmp_path / f"{name}.onnx"
        onnx.save(skeleton_of(graph), files[name])

    for name, kept, size in (("", {"brick", "even"}, 12), ("padded-8", {"brick"}, 16)):
        assert worker.load(network("hot", files["brick"], variant=name, unroll=0)).unroll >= 1
        assert worker.time(Time("hot")).elapsed_ns > 0
        worker.load(network("one", files["brick"], variant=name))
        worker.outputs("one", tmp_path / "out.npz")
        with np.load(tmp_path / "out.npz", allow_pickle=False) as arrays:
            assert {array.shape for array in arrays.values()} == {(1, size, 6, 6)}
        packed = worker.load(pack(files, variant=name))
        for _ in range(2):
            worker.time(Time("p"))
        assert {one.id: len(one.whole_ns) for one in worker.read("p").times} == dict.fromkeys(kept, 2)
        assert all(one.kind == "unsupported" and reason in one.reason for one in packed.left_out)
        for loaded in ("hot", "one", "p"):
            worker.drop(loaded)
    with pytest.raises(UnsupportedBrick, match=reason):
        worker.load(network("even", files["even"], variant="padded-8"))
