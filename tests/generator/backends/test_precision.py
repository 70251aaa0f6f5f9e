"""Precisions other than the network's own: what is computed, what is refused, and where it is recorded."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from dlbricks import estimate
from dlbricks.bricks.reference import CHAIN, COPY, GEMM, OVERHEAD, STREAM
from dlbricks.db import Conditions, Subject
from dlbricks.db.values import NATIVE
from dlbricks.errors import UsageError
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.backends.onnxruntime.precision import quantised_network
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from dlbricks.generator.network.network import file_network, synthetic_network
from onnx import numpy_helper
from working import file, network, start

QUICKEST = {"visits": 3, "processes": 1, "sessions": 1}

PRODUCT = "(float[16,64] x, float[64,32] w0) => (float[16,32] y) {y = MatMul(x, w0)}"
LAYER = "(float[4,64] x, float[32,64] w0, float[32] w1) => (float[4,32] y){a = Gemm<transB = 1>(x, w0, w1) y = Relu(a)}"
DEEP = (
    "(float[2,8,64] x, float[64,128] w0, float[128] w1, float[128,64] w2) => (float[2,8,64] y)"
    "{a = MatMul(x, w0) b = Add(a, w1) c = Tanh(b) d = MatMul(c, w2) y = Add(d, x)}"
)
CONVOLUTION = "(float[1,8,9,9] x, float[8,8,3,3] w0) => (float[1,8,7,7] y) {a = Conv(x, w0) y = Relu(a)}"
TWO_INPUTS = "(float[4,8] x, float[8,4] z) => (float[4,4] y) {y = MatMul(x, z)}"


def _settings(backend, dtype):
    return Settings("cpu", 1, backend.resolve("cpu", {"pinning": "off"}), dtype=dtype)


def _computed(network, dtype):
    backend = OrtBackend()
    executable = backend.prepare(network, _settings(backend, dtype))
    executable.run()
    executable.run()
    found = executable.outputs()
    executable.close()
    return found


@pytest.mark.parametrize("graph", [PRODUCT, LAYER, DEEP], ids=["product", "layer", "deep"])
@pytest.mark.parametrize("unroll", [1, 3])
def test_eight_bits_compute_nearly_the_same(skeleton_of, graph, unroll):
    network = synthetic_network(skeleton_of(graph), unroll=unroll)

    exact, quantised = _computed(network, NATIVE), _computed(network, "int8")

    assert len(exact) == len(quantised) == unroll
    for one, other in zip(exact, quantised, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert 0 < np.abs(one - other).max() < 0.05 * np.abs(one).max()


@pytest.mark.parametrize("graph", [CONVOLUTION, TWO_INPUTS], ids=["convolution", "no weights"])
def test_what_has_no_product_with_weights_stays_as_it_is(skeleton_of, graph):
    network = synthetic_network(skeleton_of(graph))

    assert quantised_network(network) is network
    for one, other in zip(_computed(network, NATIVE), _computed(network, "int8"), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_optimised_network_is_the_quantized_one(skeleton_of):
    backend = OrtBackend()
    network = synthetic_network(skeleton_of(DEEP))

    optimised = backend.optimised(network, _settings(backend, "int8"))

    assert "MatMul" not in {node.op_type for node in optimised.model.graph.node}
    assert optimised.weight_bytes < network.weight_bytes / 2
    for one, other in zip(_computed(network, "int8"), _computed(optimised, "int8"), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_whole_model_is_quantized_and_its_file_is_not(tmp_path):
    """With weights in a file beside it, and a dimension that is bound when it is loaded."""
    text = '<ir_version: 8, opset_import: ["": 17]> model (float[N, 256] x) => (float[N, 64] y) {y = MatMul(x, w)}'
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((256, 64), dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    network = file_network(tmp_path / "m.onnx", overrides={"N": 3})

    (exact,), (quantised,) = _computed(network, NATIVE), _computed(network, "int8")

    assert 0 < np.abs(exact - quantised).max() < 0.05 * np.abs(exact).max()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("external", [False, True], ids=["one file", "weights beside it"])
def test_a_transposed_weight_whose_type_is_stated_is_quantized(tmp_path, external):
    """As PyTorch exports classifiers: ``value_info`` of initializers, which the quantizer leaves as it was."""
    text = (
        '<ir_version: 8, opset_import: ["": 17]> classifier (float[1, 48, 1, 1] x) => (float[1, 24] y) '
        "<float[24, 48] w, float[24] b> {f = Flatten(x) y = Gemm<transB = 1>(f, w, b)}"
    )
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (24, 48)), ("b", (24,))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32), name))
    assert {value.name for value in model.graph.value_info} == {"w", "b"}
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=external, location="m.bin", size_threshold=0)
    network = file_network(path, overrides={})

    (exact,), (quantised,) = _computed(network, NATIVE), _computed(network, "int8")

    assert 0 < np.abs(exact - quantised).max() < 0.05 * np.abs(exact).max()


def test_the_quantizer_says_nothing(skeleton_of, capfd):
    handlers, disabled = [*logging.root.handlers], logging.root.manager.disable

    quantised_network(synthetic_network(skeleton_of(DEEP)))

    assert capfd.readouterr() == ("", "")
    assert logging.root.handlers == handlers
    assert logging.root.manager.disable == disabled


def test_a_precision_that_a_backend_has_not_is_refused_with_those_that_it_has(small_suite, small_models, store):
    with pytest.raises(UsageError, match=r"does not compute in 'bfloat16'; it has float32, int8"):
        OrtBackend().require_dtype("bfloat16")
    with pytest.raises(UsageError, match="bfloat16"):
        start("onnxruntime", {}, dtype="bfloat16")
    for begin in (
        lambda: run(small_suite, store=store, dtype="bfloat16"),
        lambda: measure(small_models, store=store, dtype="bfloat16"),
    ):
        with pytest.raises(UsageError, match="bfloat16"):
            begin()
    assert store.info()["counts"]["runs"] == 0


def test_a_worker_in_another_precision_reports_no_graph(small_models, tmp_path):
    with start(dtype="int8") as worker, pytest.raises(UsageError, match="int8"):
        worker.extract([file(small_models[0].path, synthetic=False)], [tmp_path])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("cache", ["hot", "model"])
def test_a_precision_is_measured_estimated_and_bounded_by_itself(small_suite, small_models, store, cache):
    plain = run(small_suite, store=store, models=small_models, cache=cache, **QUICKEST)

    report = run(small_suite, store=store, models=small_models, cache=cache, dtype="int8", **QUICKEST)

    assert (report.measured, report.reused, report.models) == (10, 0, 1)
    assert report.stack == plain.stack
    assert {one.conditions.dtype for one in store.measurements(subject=Subject.BRICK)} == {NATIVE, "int8"}
    assert store.measurements(subject=Subject.MODEL, conditions=Conditions(1, cache, "int8"))
    (answer,) = estimate(small_models, store=store, dtype="int8", cache=cache)
    assert (answer.place.dtype, answer.parts.coverage.sequences) == ("int8", 1.0)
    assert answer.latency.ms > 0
    assert answer.truth.ms > 0
    lowest = {row.key: row.lower_bound_ms for row in answer.parts.sequences}
    for one in store.measurements(subject=Subject.BRICK, dtype="int8"):
        assert lowest[one.key] == pytest.approx(one.latency_ns / 1e6)


@pytest.mark.slow
def test_networks_of_our_own_are_the_same_in_every_precision_but_products(tmp_path):
    pytest.importorskip("torch")
    names = [OVERHEAD, CHAIN, f"{STREAM}1200", f"{COPY}1600", f"{GEMM}64"]
    found: dict[str, list[dict[str, bytes]]] = {name: [] for name in names}
    for dtype in (NATIVE, "bfloat16"):
        with start("torch", dtype=dtype) as worker:
            for name in names:
                worker.load(network("one", name))
                worker.outputs("one", tmp_path / "one.npz")
                with np.load(tmp_path / "one.npz", allow_pickle=False) as arrays:
                    found[name].append({key: array.tobytes() for key, array in arrays.items()})

    assert {name: one == other for name, (one, other) in found.items()} == {
        name: not name.startswith(GEMM) for name in names
    }


def test_executed_graphs_are_measured_in_their_own_precision(small_models, store, tmp_path):
    suite = generate(small_models, granularity=1, out=tmp_path / "suite", graph="runtime").suite

    for asked in ({"dtype": "int8"}, {"algorithms": True}):
        with pytest.raises(UsageError, match="neither --dtype nor --algorithms"):
            run(suite, store=store, **asked)
