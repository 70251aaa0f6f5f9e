"""The graph that ONNX Runtime executes: what it is, where it came from, and that its bricks run as they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import pytest
from computing import settings
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import ExecutedModel, build_graph
from dlbricks.bricks.layer import LayerState
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.db.values import Runtime
from dlbricks.errors import BrokenModel, TamperedBrick, UsageError
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.decomposition.cut import Cut, instruction_set, runtime_salt
from dlbricks.generator.decomposition.decomposer import Decomposer
from dlbricks.generator.network.network import synthetic_network
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.execution.extraction import EXECUTED, stage_files
from dlbricks.models import find_models
from dlbricks.models.skeleton import is_weight
from executing import executed_model
from working import UNPINNED, file, network


def origins_of(found: ExecutedModel) -> list[tuple[str, str]]:
    """For each executed layer its operator, and the source operators that it came from."""
    layers = found.source.layers
    return [
        (layer.op_type, " ".join(layers[index].op_type for index in sorted(origin)))
        for layer, origin in zip(found.graph.layers, found.origins, strict=True)
    ]


def gone(found: ExecutedModel) -> list[str]:
    return [found.source.layers[index].op_type for index in sorted(found.eliminated)]


NORMALISED = {name: np.ones(16, np.float32) for name in "sbmv"}
CONV = {"w": (16, 16, 1, 1), "w2": (16, 16, 1, 1)}
CASES = {  # the graph, its weights, executed operators with those that they came from, and what is eliminated
    "normalisation and activation": (
        "(float[1,16,8,8] x) => (float[1,16,8,8] y){a = Conv(x, w) c = BatchNormalization(a, s, b, m, v) y = Relu(c)}",
        CONV | NORMALISED, "Conv: Conv BatchNormalization Relu", "",
    ),
    "sum and activation": (
        ("(float[1,16,8,8] x) => (float[1,16,8,8] y)"
        "{a = Conv(x, w) r = Relu(a) c = Conv(r, w2) d = Add(c, r) e = Relu(d) y = Conv(e, w)}"),
        CONV, "Conv: Conv Relu, Conv: Conv Add Relu, Conv: Conv", "",
    ),
    "sum at the end": (
        "(float[1,16,8,8] x) => (float[1,16,8,8] y) {a = Conv(x, w) r = Relu(a) c = Conv(r, w2) y = Add(c, r)}",
        CONV, "Conv: Conv Relu, Conv: Conv Add", "",
    ),
    "product and sum with reshapes put around": (
        "(float[2,4,8] x) => (float[2,4,8] y) {a = MatMul(x, w) y = Add(a, b)}", {"w": (8, 8), "b": (8,)},
        "Reshape: , Gemm: MatMul Add, Reshape: ", "",
    ),
    "gelu": (
        ("(float[2,8] x) => (float[2,8] y) <float r = {1.4142135}, float one = {1.0}, float half = {0.5}>"
        "{a = Div(x, r) e = Erf(a) p = Add(e, one) m = Mul(x, p) y = Mul(m, half)}"),
        {}, "Gelu: Div Erf Add Mul Mul", "",
    ),
    "layer normalisation": (
        ("(float[2,8] x) => (float[2,8] y) <float two = {2.0}, float eps = {0.00001}>"
        "{m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Pow(d, two) n = ReduceMean<axes=[-1]>(q) t = Add(n, eps)"
        " r = Sqrt(t) z = Div(d, r) g = Mul(z, s) y = Add(g, b)}"),
        {"s": (8,), "b": (8,)}, "LayerNormalization: ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add", "",
    ),
    "transposition": (
        "(float[2,4,8] x, float[2,4,8] z) => (float[2,4,4] y) {t = Transpose<perm=[0,2,1]>(z) y = MatMul(x, t)}",
        {}, "FusedMatMul: Transpose MatMul", "",
    ),
    "what comes to nothing": (
        ("(float[2,8] x) => (float[2,8] y)"
        "{a = Relu(x) i = Identity(a) d = Dropout(i) t = Transpose<perm=[1,0]>(d) u = Transpose<perm=[1,0]>(t)"
        " y = Tanh(u)}"),
        {}, "Relu: Relu, Tanh: Tanh", "Identity Dropout Transpose Transpose",
    ),
    "two that compute the same": (
        ("(float[2,8] x) => (float[2,8] y) {a = Exp(x) b = Exp(x) c = LeakyRelu<alpha=0.1>(x)"
        " d = LeakyRelu<alpha=0.2>(x) e = Sub(a, c) f = Mul(b, d) y = Div(e, f)}"),
        {}, "Div: Div, Exp: Exp Exp, LeakyRelu: LeakyRelu, LeakyRelu: LeakyRelu, Mul: Mul, Sub: Sub", "",
    ),
    "an operator without kernel": (
        "(float[2,8] x) => (float[2,8] y) {a = HardSwish(x) y = Tanh(a)}",
        {}, "HardSigmoid: HardSwish, Mul: HardSwish, Tanh: Tanh", "",
    ),
    "shapes that only execution knows": (
        "(float[6] x) => (int64[1,N] y) {r = Abs(x) y = NonZero(r)}", {}, "Abs: Abs, NonZero: NonZero", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_executed_layer_comes_from_layers_of_the_source(source, worker, case):
    graph, weights, expected, eliminated = CASES[case]

    found = executed_model(source(graph, weights), worker=worker)

    rows = [f"{op}: {origin}" for op, origin in origins_of(found) if op not in {"ReorderInput", "ReorderOutput"}]
    assert sorted(rows) == sorted(expected.split(", "))
    assert all(not origin for op, origin in origins_of(found) if op.startswith("Reorder"))
    assert gone(found) == eliminated.split()
    assert found.duplicated == ({0: 2} if "without kernel" in case else {})
    if "only execution" in case:
        assert found.graph.live == (0, 1)
        assert found.graph.types["y"].shape == (1, 6)


def test_a_softmax_reads_masked_scores_where_the_runtime_made_the_mask_ahead(source, worker):
    """The runtime folds the comparison: what it executes does not show whom it hides."""
    places = np.arange(48)
    found = executed_model(
        source(
            "(float[1,2,48,16] q, int64[48,48] given) => (float[1,2,48,48] y)"
            "{k = Transpose<perm=[0,1,3,2]>(q) raw = MatMul(q, k) earlier = LessOrEqual(columns, rows)"
            " seen = Cast<to=9>(given) both = And(earlier, seen) added = Where(both, none, low)"
            " masked = Add(raw, added) p = Softmax<axis=-1>(masked) r = Relu(raw) s = Softmax<axis=-1>(r)"
            " y = Add(p, s)}",
            {
                "rows": places[:, None], "columns": places[None], "none": np.array(0, np.float32),
                "low": np.array(-1e9, np.float32),
            },
        ),
        worker=worker,
    )  # fmt: skip

    assert not any(layer.op_type == "LessOrEqual" for layer in found.graph.layers)
    keys = {}
    for part in sequences(found.graph, 1):
        layer = found.graph.layers[part.layers[0]]
        if layer.op_type == "Softmax":
            brick = build_brick(found.graph, part)
            keys[part.key] = layer.operands[0].value in found.graph.causal
            assert load_brick(brick.model, expected=part.key).salt == found.graph.salt
    assert sorted(keys.values()) == [False, True]


def test_what_the_model_folds_by_shape_but_the_runtime_executes_is_a_layer(source):
    weights = {name: np.array([value]) for name, value in {"b": 0, "e": 4, "k": 1}.items()}
    model = source("(float[2,8] x) => (float[2,4] y, int64[2] n) {y = Slice(x, b, e, k) n = Shape(y)}", weights)

    found = executed_model(model, options=UNPINNED | {"optimization": "disabled"})

    assert origins_of(found) == [("Slice", "Slice"), ("Shape", "Shape")]
    assert found.source.layers[1].state is LayerState.FOLDED
    assert found.graph.live == (0, 1)


def test_the_graph_of_a_model_that_reads_strings_is_known(source):
    model = source(
        "(string[4] words, float[4] x) => (string[4] same, float[4] y) {same = Identity(words) y = Relu(x)}", {}
    )

    found = executed_model(model, options=UNPINNED | {"optimization": "disabled"})

    assert sorted(origins_of(found)) == [("Identity", "Identity"), ("Relu", "Relu")]
    assert found.graph.types["y"].shape == (4,)


def test_dynamic_dimensions_are_bound_and_weights_in_another_file_are_left_there(worker, source, tmp_path):
    graph = "(float[batch,4,8] x) => (float[batch,4,8] y) {a = MatMul(x, w) y = Add(a, b)}"
    path = source(graph, {"w": (8, 8), "b": (8,)}).path
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    files = set(tmp_path.iterdir())

    found = executed_model(find_models([path], batches=[3])[0], worker=worker)

    assert found.graph.types["y"].shape == (3, 4, 8)
    assert dict(found.graph.bound) == {"batch": 3}
    assert set(tmp_path.iterdir()) == files


SIZED = (
    "(float[batch,1] x) => (float[batch,8] y) <int64[1] eight = {8}, int64 zero = {0}>"
    "{s = Shape(x) n = Gather(s, zero) u = Unsqueeze(n, first) c = Concat<axis=0>(u, eight) y = Expand(x, c)}"
)


def test_a_file_with_open_lengths_is_loaded_once_for_all_sizes_and_computes_its_shapes(source, monkeypatch):
    path = source(SIZED, {"first": np.zeros(1, np.int64)}).path
    sources = [replace(found, opened=True) for found in find_models([path], batches=[2, 3])]
    fixed = [layer.op_type for layer in executed_model(find_models([path], batches=[2])[0]).graph.layers]
    asked: list[int] = []
    extract = Worker.extract
    monkeypatch.setattr(
        Worker,
        "extract",
        lambda self, files, *rest, **kw: asked.append(len(files)) or extract(self, files, *rest, **kw),
    )

    with Decomposer(Cut(1, graph="runtime")) as decomposer:
        decomposer.executed.ensure_sizes(sources)
        found = [decomposer(one) for one in sources]

    assert asked == [2]
    assert [model.graph.types["y"].shape for model in found] == [(2, 8), (3, 8)]
    for model in found:
        assert [layer.op_type for layer in model.graph.layers] == ["Shape", "Gather", "Unsqueeze", "Concat", "Expand"]
        assert len(model.sequences) == 5
    assert fixed == ["Expand"]
    assert len({model.own.key for model in found} | {decomposer_key(path, 2)}) == 3


def decomposer_key(path, batch: int) -> str:
    """The key of the same model with fixed sizes."""
    return build_graph(find_models([path], batches=[batch])[0].skeleton()).key


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("basic", [("Conv", "Conv"), ("Relu", "Relu")]), ("extended", [("FusedConv", "Conv Relu")]),
        ("layout", [("Conv", "Conv Relu")]),
    ],
)  # fmt: skip
def test_every_level_of_optimisation_has_its_own_graph(source, level, expected):
    model = source("(float[1,16,8,8] x) => (float[1,16,8,8] y) {a = Conv(x, w) c = Identity(a) y = Relu(c)}", CONV)

    found = executed_model(model, options=UNPINNED | {"optimization": level})

    assert [row for row in origins_of(found) if row[1]] == expected
    assert gone(found) == ["Identity"]


def test_executing_the_extracted_graph_gives_the_same_outputs(worker, source, tmp_path):
    path = source(
        "(float[1,16,8,8] x) => (float[1,16] y)"
        "{a = Conv(x, w) c = BatchNormalization(a, s, b, m, v) r = Relu(c) d = Conv(r, w2) e = Add(d, r)"
        " p = GlobalAveragePool(e) f = Flatten(p) g = MatMul(f, w3) y = Add(g, s)}",
        CONV | NORMALISED | {"w3": (16, 16)},
    ).path
    worker.extract([file(path, synthetic=False)], [tmp_path])
    assert not any(is_weight(value) for value in onnx.load(tmp_path / EXECUTED).graph.input)
    assert len(stage_files(tmp_path)) == 1

    worker.load(network("source", path, synthetic=False))
    worker.load(network("executed", tmp_path / EXECUTED, synthetic=False, as_is=True))
    for name in ("source", "executed"):
        worker.outputs(name, tmp_path / f"{name}.npz")
        worker.drop(name)

    with np.load(tmp_path / "source.npz") as plain, np.load(tmp_path / "executed.npz") as executed:
        np.testing.assert_array_equal(plain["x"], executed["x"])
        np.testing.assert_array_equal(plain["y"], executed["y"])


@pytest.mark.parametrize(("as_is", "expected"), [(False, ["Relu"]), (True, ["Identity", "Relu"])])
def test_what_runs_as_it_is_is_not_optimised_again(skeleton_of, as_is, expected):
    backend = OrtBackend()
    network = synthetic_network(skeleton_of("(float[2,8] x) => (float[2,8] y) {i = Identity(x) y = Relu(i)}"))

    executed = backend.executed_graph(replace(network, as_is=as_is), settings())

    assert [node.op_type for node in executed.model.graph.node] == expected
    assert executed.types["y"] == ("float", (2, 8))


@pytest.fixture(scope="module", params=["squeezenet", "shufflenet", "resnet50", "bert_base"])
def zoo(request: pytest.FixtureRequest, worker_of: Callable[..., Worker]) -> ExecutedModel:
    return executed_model(find_models([request.param])[0], worker=worker_of())


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
    parts = [*sequences(zoo.graph, 1), *sequences(zoo.graph, 4, connected=True)]
    bricks = {found.key: build_brick(zoo.graph, found) for found in parts}
    source = {found.key for found in sequences(zoo.source, 1)}

    assert not bricks.keys() & source
    for key, brick in bricks.items():
        assert load_brick(brick.model, expected=key) == brick
        assert brick.salt == runtime_salt(worker.greeting.stack, instruction_set())
        path = tmp_path / "brick.onnx"
        path.write_bytes(brick.model)
        prepared = worker.load(network("brick", path, unroll=1, as_is=True))
        assert prepared.load_ns > 0
    worker.drop("brick")


def test_a_brick_belongs_to_its_stack_and_the_instruction_set_of_the_machine(source, worker):
    assert instruction_set() == instruction_set()
    assert instruction_set().partition("-")[0] == os.uname().machine
    assert " " not in instruction_set()
    found = executed_model(source("(float[2,8] x) => (float[2,8] y) {y = Relu(x)}"), worker=worker)
    (sequence,) = sequences(found.graph, 1)
    model = onnx.ModelProto.FromString(build_brick(found.graph, sequence).model)
    (entry,) = model.metadata_props
    entry.value = runtime_salt(worker.greeting.stack, "another-machine")

    with pytest.raises(TamperedBrick):
        load_brick(model.SerializeToString(deterministic=True), expected=sequence.key)
    model.metadata_props.add(key=entry.key, value="")
    with pytest.raises(BrokenModel, match="one stack"):
        load_brick(model.SerializeToString(deterministic=True))


_MUTE = """
from dlbricks.generator.backends.base import Backend
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
class MuteBackend(OrtBackend):
    name = "{name}"
    {graph}
"""


def test_a_backend_is_cut_by_the_graph_that_it_hands_out_or_says_that_it_reports_none(source, install_backend):
    model = source("(float[2,8] x) => (float[2,8] y) {a = Relu(x) y = Sin(a)}")
    install_backend("mute", "MuteBackend", _MUTE.format(name="mute", graph="executed_graph = Backend.executed_graph"))
    with pytest.raises(UsageError, match=r"mute does not report .* --graph source"):
        executed_model(model, backend="mute", options=UNPINNED)

    fusions = "def fused_graph(self, *_): raise AssertionError('its own graph runs in parts')"
    install_backend("both", "MuteBackend", _MUTE.format(name="both", graph=fusions))
    with Decomposer(Cut(1, graph="runtime", runtime=Runtime.of("both", options=UNPINNED))) as cutter:
        found = cutter(model)

    assert [layer.op_type for layer in found.graph.layers] == ["Relu", "Sin"]
