"""The graph that ONNX Runtime executes: what it is, where it came from, and that its bricks run as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.executed import ExecutedModel
from dlbricks.bricks.layer import LayerState
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.errors import BrokenModel, TamperedBrick, UsageError
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.decomposition.cutter import Cut, Cutter
from dlbricks.generator.decomposition.executed import executed_model, instruction_set, runtime_salt
from dlbricks.generator.network.network import synthetic_network
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.execution.extraction import EXECUTED, stage_files
from dlbricks.generator.worker.requests import Extract, Prepare
from dlbricks.models import find_models
from dlbricks.models.skeleton import is_weight
from onnx import numpy_helper

UNPINNED = {"pinning": "off"}
ZOO = ("squeezenet", "shufflenet", "resnet50", "bert_base")

Case = Callable[..., ExecutedModel]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker.start("onnxruntime", options=UNPINNED) as started:
        yield started


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a model file: its graph in ONNX's text form, and its weights by name and shape."""

    def write(graph: str, weights: dict[str, tuple[int, ...]] | None = None, *, opset: int = 17) -> Path:
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> model {graph}')
        generator = np.random.default_rng(0)
        for name, shape in (weights or {}).items():
            values = np.abs(generator.standard_normal(shape, dtype=np.float32)) * np.float32(0.2)
            model.graph.initializer.append(numpy_helper.from_array(values, name))
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        return path

    return write


@pytest.fixture
def case(worker: Worker, write: Callable[..., Path]) -> Case:
    """What the worker executes for a model."""

    def run(*arguments: object, **options: object) -> ExecutedModel:
        return executed_model(find_models([write(*arguments, **options)])[0], worker=worker)

    return run


def origins_of(found: ExecutedModel) -> list[tuple[str, str]]:
    """For each executed layer its operator, and the source operators that it came from."""
    layers = found.source.layers
    return [
        (layer.op_type, " ".join(layers[index].op_type for index in sorted(origin)))
        for layer, origin in zip(found.graph.layers, found.origins, strict=True)
    ]


def gone(found: ExecutedModel) -> list[str]:
    return [found.source.layers[index].op_type for index in sorted(found.eliminated)]


NORMALISED = {"s": (16,), "b": (16,), "m": (16,), "v": (16,)}
CONV = {"w": (16, 16, 1, 1)}


def test_a_convolution_takes_normalisation_and_activation_in(case):
    found = case(
        "(float[1,16,8,8] x) => (float[1,16,8,8] y){a = Conv(x, w) c = BatchNormalization(a, s, b, m, v) y = Relu(c)}",
        CONV | NORMALISED,
    )

    assert [origin for _, origin in origins_of(found) if origin] == ["Conv BatchNormalization Relu"]
    assert {op for op, origin in origins_of(found) if not origin} <= {"ReorderInput", "ReorderOutput"}
    assert not found.eliminated
    assert not found.duplicated


def test_a_convolution_takes_a_sum_and_activation_in(case):
    found = case(
        "(float[1,16,8,8] x) => (float[1,16,8,8] y)"
        "{a = Conv(x, w) r = Relu(a) c = Conv(r, w2) d = Add(c, r) e = Relu(d) y = Conv(e, w)}",
        CONV | {"w2": (16, 16, 1, 1)},
    )

    assert [origin for _, origin in origins_of(found) if origin] == ["Conv Relu", "Conv Add Relu", "Conv"]
    assert not found.eliminated


def test_a_softmax_reads_masked_scores_where_the_runtime_made_the_mask_ahead(case, tmp_path):
    """The runtime folds the comparison: what it executes does not show whom it hides."""
    attention = (
        "(float[1,2,48,16] q, int64[48,48] given) => (float[1,2,48,48] y)"
        "{k = Transpose<perm=[0,1,3,2]>(q) raw = MatMul(q, k) earlier = LessOrEqual(columns, rows)"
        " seen = Cast<to=9>(given) both = And(earlier, seen) added = Where(both, none, low) masked = Add(raw, added)"
        " p = Softmax<axis=-1>(masked) r = Relu(raw) s = Softmax<axis=-1>(r) y = Add(p, s)}"
    )
    places = np.arange(48)
    path = tmp_path / "attention.onnx"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> model {attention}')
    model.graph.initializer.extend([
        numpy_helper.from_array(places[:, None], "rows"), numpy_helper.from_array(places[None], "columns"),
        numpy_helper.from_array(np.array(0, np.float32), "none"),
        numpy_helper.from_array(np.array(-1e9, np.float32), "low"),
    ])  # fmt: skip
    onnx.save(model, path)

    found = executed_model(find_models([path])[0], options=UNPINNED)

    assert not any(layer.op_type == "LessOrEqual" for layer in found.graph.layers)
    keys = {}
    for part in sequences(found.graph, 1):
        layer = found.graph.layers[part.layers[0]]
        if layer.op_type == "Softmax":
            brick = build_brick(found.graph, part)
            keys[part.key] = layer.operands[0].value in found.graph.causal
            assert load_brick(brick.model, expected=part.key).salt == found.graph.salt
    assert sorted(keys.values()) == [False, True]


def test_a_sum_at_the_end_of_the_model_is_found_too(case):
    found = case(
        "(float[1,16,8,8] x) => (float[1,16,8,8] y) {a = Conv(x, w) r = Relu(a) c = Conv(r, w2) y = Add(c, r)}",
        CONV | {"w2": (16, 16, 1, 1)},
    )

    assert [origin for _, origin in origins_of(found) if origin] == ["Conv Relu", "Conv Add"]


def test_a_product_and_a_sum_become_one_with_reshapes_put_around(case):
    found = case("(float[2,4,8] x) => (float[2,4,8] y) {a = MatMul(x, w) y = Add(a, b)}", {"w": (8, 8), "b": (8,)})

    assert origins_of(found) == [("Reshape", ""), ("Gemm", "MatMul Add"), ("Reshape", "")]


def test_gelu_is_recognised(case):
    found = case(
        "(float[2,8] x) => (float[2,8] y) <float r = {1.4142135}, float one = {1.0}, float half = {0.5}>"
        "{a = Div(x, r) e = Erf(a) p = Add(e, one) m = Mul(x, p) y = Mul(m, half)}"
    )

    assert origins_of(found) == [("Gelu", "Div Erf Add Mul Mul")]


def test_layer_normalisation_is_recognised(case):
    found = case(
        "(float[2,8] x) => (float[2,8] y) <float two = {2.0}, float eps = {0.00001}>"
        "{m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Pow(d, two) n = ReduceMean<axes=[-1]>(q) t = Add(n, eps)"
        " r = Sqrt(t) z = Div(d, r) g = Mul(z, s) y = Add(g, b)}",
        {"s": (8,), "b": (8,)},
    )

    assert origins_of(found) == [("LayerNormalization", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add")]


def test_a_product_takes_a_transposition_in(case):
    found = case(
        "(float[2,4,8] x, float[2,4,8] z) => (float[2,4,4] y) {t = Transpose<perm=[0,2,1]>(z) y = MatMul(x, t)}"
    )

    assert origins_of(found) == [("FusedMatMul", "Transpose MatMul")]


def test_what_comes_to_nothing_is_eliminated(case):
    found = case(
        "(float[2,8] x) => (float[2,8] y)"
        "{a = Relu(x) i = Identity(a) d = Dropout(i) t = Transpose<perm=[1,0]>(d) u = Transpose<perm=[1,0]>(t)"
        " y = Tanh(u)}"
    )

    assert origins_of(found) == [("Relu", "Relu"), ("Tanh", "Tanh")]
    assert gone(found) == ["Identity", "Dropout", "Transpose", "Transpose"]


def test_of_two_that_compute_the_same_one_stands_for_both(case):
    found = case(
        "(float[2,8] x) => (float[2,8] y) {a = Exp(x) b = Exp(x) c = LeakyRelu<alpha=0.1>(x)"
        " d = LeakyRelu<alpha=0.2>(x) e = Sub(a, c) f = Mul(b, d) y = Div(e, f)}"
    )

    assert sorted(origins_of(found)) == [
        ("Div", "Div"),
        ("Exp", "Exp Exp"),
        ("LeakyRelu", "LeakyRelu"),
        ("LeakyRelu", "LeakyRelu"),
        ("Mul", "Mul"),
        ("Sub", "Sub"),
    ]
    assert not found.eliminated


def test_an_operator_without_kernel_is_executed_as_several(case):
    found = case("(float[2,8] x) => (float[2,8] y) {a = HardSwish(x) y = Tanh(a)}")

    assert origins_of(found) == [("HardSigmoid", "HardSwish"), ("Mul", "HardSwish"), ("Tanh", "Tanh")]
    assert found.duplicated == {0: 2}


def test_what_the_model_folds_by_shape_but_the_runtime_executes_is_a_layer(case, write):
    path = write("(float[2,8] x) => (float[2,4] y, int64[2] n) {y = Slice(x, b, e, k) n = Shape(y)}")
    model = onnx.load(path)
    for name, value in {"b": 0, "e": 4, "k": 1}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    onnx.save(model, path)

    found = executed_model(find_models([path])[0], options=UNPINNED | {"optimization": "disabled"})

    assert origins_of(found) == [("Slice", "Slice"), ("Shape", "Shape")]
    assert found.source.layers[1].state is LayerState.FOLDED
    assert found.graph.live == (0, 1)


def test_shapes_that_only_execution_knows_are_those_of_the_execution(case):
    found = case("(float[6] x) => (int64[1,N] y) {r = Abs(x) y = NonZero(r)}")

    assert origins_of(found) == [("Abs", "Abs"), ("NonZero", "NonZero")]
    assert found.graph.live == (0, 1)
    assert found.graph.types["y"].shape == (1, 6)


def test_dynamic_dimensions_are_bound_as_the_source_is(worker, write):
    path = write(
        "(float[batch,4,8] x) => (float[batch,4,8] y) {a = MatMul(x, w) y = Add(a, b)}", {"w": (8, 8), "b": (8,)}
    )

    found = executed_model(find_models([path], batches=[3])[0], worker=worker)

    assert found.graph.types["y"].shape == (3, 4, 8)
    assert dict(found.graph.bound) == {"batch": 3}


def test_weights_in_another_file_are_found_and_left_there(worker, write, tmp_path):
    path = write("(float[4,64] x) => (float[4,64] y) {y = MatMul(x, w)}", {"w": (64, 64)})
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    files = set(tmp_path.iterdir())

    found = executed_model(find_models([path])[0], worker=worker)

    assert origins_of(found) == [("MatMul", "MatMul")]
    assert set(tmp_path.iterdir()) == files


@pytest.mark.parametrize("level", ["basic", "extended", "layout"])
def test_every_level_of_optimisation_has_its_own_graph(write, level):
    path = write("(float[1,16,8,8] x) => (float[1,16,8,8] y) {a = Conv(x, w) c = Identity(a) y = Relu(c)}", CONV)

    found = executed_model(find_models([path])[0], options=UNPINNED | {"optimization": level})

    expected = {
        "basic": [("Conv", "Conv"), ("Relu", "Relu")],
        "extended": [("FusedConv", "Conv Relu")],
        "layout": [("Conv", "Conv Relu")],
    }
    assert [row for row in origins_of(found) if row[1]] == expected[level]
    assert gone(found) == ["Identity"]


def test_executing_the_extracted_graph_gives_the_same_outputs(worker, write, tmp_path):
    path = write(
        "(float[1,16,8,8] x) => (float[1,16] y)"
        "{a = Conv(x, w) c = BatchNormalization(a, s, b, m, v) r = Relu(c) d = Conv(r, w2) e = Add(d, r)"
        " p = GlobalAveragePool(e) f = Flatten(p) g = MatMul(f, w3) y = Add(g, s)}",
        CONV | NORMALISED | {"w2": (16, 16, 1, 1), "w3": (16, 16)},
    )
    worker.extract(Extract(path=str(path), synthetic=False, folder=str(tmp_path)))
    assert not any(is_weight(value) for value in onnx.load(tmp_path / EXECUTED).graph.input)
    assert len(stage_files(tmp_path)) == 1

    worker.prepare(Prepare(id="source", path=str(path), synthetic=False))
    worker.prepare(Prepare(id="executed", path=str(tmp_path / EXECUTED), synthetic=False, as_is=True))
    for name in ("source", "executed"):
        worker.outputs(name, tmp_path / f"{name}.npz")
        worker.release(name)

    with np.load(tmp_path / "source.npz") as source, np.load(tmp_path / "executed.npz") as executed:
        np.testing.assert_array_equal(source["x"], executed["x"])
        np.testing.assert_array_equal(source["y"], executed["y"])


@pytest.mark.parametrize(("as_is", "expected"), [(False, ["Relu"]), (True, ["Identity", "Relu"])])
def test_what_runs_as_it_is_is_not_optimised_again(skeleton_of, as_is, expected):
    backend = OrtBackend()
    settings = Settings("cpu", 1, backend.resolve("cpu", UNPINNED))
    network = synthetic_network(skeleton_of("(float[2,8] x) => (float[2,8] y) {i = Identity(x) y = Relu(i)}"))

    executed = backend.executed_graph(replace(network, as_is=as_is), settings)

    assert [node.op_type for node in executed.model.graph.node] == expected
    assert executed.types["y"] == ("float", (2, 8))


@pytest.fixture(scope="module", params=ZOO)
def zoo(request: pytest.FixtureRequest, worker: Worker) -> ExecutedModel:
    return executed_model(find_models([request.param])[0], worker=worker)


@pytest.mark.sweep(1)
def test_every_layer_of_a_zoo_model_is_executed_or_eliminated(zoo):
    covered = frozenset[int]().union(*zoo.origins)

    assert zoo.graph.live == tuple(range(len(zoo.graph.layers)))
    assert len(zoo.origins) == len(zoo.graph.layers)
    assert covered | zoo.eliminated >= set(zoo.source.live)
    assert not covered & zoo.eliminated
    assert set(gone(zoo)) <= {"Dropout", "Identity", "Reshape"}
    inserted = {op for op, origin in origins_of(zoo) if not origin}
    assert inserted <= {"ReorderInput", "ReorderOutput", "Reshape"}
    assert not zoo.duplicated


def test_the_work_of_a_zoo_model_is_known_and_kept(zoo):
    def macs(graph):
        return sum(graph.layers[index].cost.macs for index in graph.live)

    # Blocked layouts compute padding channels.
    assert macs(zoo.source) <= macs(zoo.graph) <= 1.05 * macs(zoo.source)


def test_an_executed_layer_does_the_work_of_its_origins(zoo):
    for layer, origin in zip(zoo.graph.layers, zoo.origins, strict=True):
        work = sum(zoo.source.layers[index].cost.macs for index in origin)
        if layer.domain != "com.microsoft.nchwc":
            assert layer.cost.macs == work
        elif {"BatchNormalization", "Mul"}.isdisjoint(zoo.source.layers[index].op_type for index in origin):
            assert work <= layer.cost.macs <= 2 * work


@pytest.mark.sweep(1)
def test_bricks_of_a_zoo_model_run_as_they_are(zoo, worker, tmp_path):
    bricks = {found.key: build_brick(zoo.graph, found) for found in sequences(zoo.graph, 1)}
    source = {found.key for found in sequences(zoo.source, 1)}

    assert not bricks.keys() & source
    for key, brick in bricks.items():
        assert load_brick(brick.model, expected=key) == brick
        assert brick.salt == runtime_salt(worker.greeting.stack, instruction_set())
        path = tmp_path / "brick.onnx"
        path.write_bytes(brick.model)
        prepared = worker.prepare(Prepare(id="brick", path=str(path), synthetic=True, unroll=1, as_is=True))
        assert prepared.bytes > 0
    worker.release("brick")


def test_longer_bricks_of_an_executed_graph_run_too(worker, tmp_path):
    found = executed_model(find_models(["squeezenet"])[0], worker=worker)

    for sequence in sequences(found.graph, 4, connected=True):
        brick = build_brick(found.graph, sequence)
        assert load_brick(brick.model, expected=sequence.key).layers == len(sequence.layers)
        path = tmp_path / "brick.onnx"
        path.write_bytes(brick.model)
        worker.prepare(Prepare(id="brick", path=str(path), synthetic=True, unroll=2, as_is=True))
    worker.release("brick")


def test_a_brick_belongs_to_its_stack(case, worker):
    found = case("(float[2,8] x) => (float[2,8] y) {y = Relu(x)}")
    (sequence,) = sequences(found.graph, 1)
    model = onnx.ModelProto.FromString(build_brick(found.graph, sequence).model)
    (entry,) = model.metadata_props
    entry.value = runtime_salt(worker.greeting.stack, "another-machine")

    with pytest.raises(TamperedBrick):
        load_brick(model.SerializeToString(deterministic=True), expected=sequence.key)
    model.metadata_props.add(key=entry.key, value="")
    with pytest.raises(BrokenModel, match="one stack"):
        load_brick(model.SerializeToString(deterministic=True))


def test_the_instruction_set_is_a_word_of_this_machine():
    assert instruction_set() == instruction_set()
    assert instruction_set().partition("-")[0] == os.uname().machine
    assert " " not in instruction_set()


def test_a_backend_that_cannot_report_it_says_so(write, install_backend):
    install_backend(
        "mute",
        "MuteBackend",
        "from dlbricks.generator.backends.onnxruntime.backend import OrtBackend\n"
        "class MuteBackend(OrtBackend):\n"
        "    name = 'mute'\n"
        "    executed_graph = None\n",
    )
    path = write("(float[2,8] x) => (float[2,8] y) {y = Relu(x)}")

    with pytest.raises(UsageError, match=r"mute does not report .* --graph source"):
        executed_model(find_models([path])[0], backend="mute", options=UNPINNED)


def test_what_hands_out_a_graph_is_cut_by_it_even_if_it_also_reports_fusions(write, install_backend):
    install_backend(
        "both",
        "BothBackend",
        "from dlbricks.generator.backends.onnxruntime.backend import OrtBackend\n"
        "class BothBackend(OrtBackend):\n"
        "    name = 'both'\n"
        "    def fused_graph(self, network, settings):\n"
        "        raise AssertionError('its own graph runs in parts')\n",
    )
    path = write("(float[2,8] x) => (float[2,8] y) {a = Relu(x) y = Sin(a)}")
    cut = Cut(1, graph="runtime", backend="both", options=tuple(UNPINNED.items()))

    with Cutter(cut) as cutter:
        found = cutter(find_models([path])[0])

    assert [layer.op_type for layer in found.graph.layers] == ["Relu", "Sin"]
