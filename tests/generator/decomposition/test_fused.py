"""Cutting along a runtime's fusions: what is fused in a model is fused in its bricks, and what layout changes cost."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from computing import operators, settings
from dlbricks.bricks.cutting.fused import edge_layouts, fused_sequences, fused_units
from dlbricks.bricks.cutting.sequences import make_sequence
from dlbricks.bricks.graph.model_graph import ExecutedModel
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store, Subject
from dlbricks.errors import UsageError
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.backends.onnxruntime.executed_nodes import TRAITS
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.decomposition.origins import FORMS
from dlbricks.generator.measurement.run import run
from dlbricks.generator.network.network import read_network, synthetic_network
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.execution.extraction import EXECUTED
from dlbricks.models import ModelSource, find_models
from dlbricks.models.subgraphs import kind_of
from executing import executed_model
from working import UNPINNED, file

CONVOLUTIONS = (
    "(float[1,16,12,12] x) => (float[1,16,12,12] y)"
    "{a = Conv<pads=[1,1,1,1]>(x, w0) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, w1) d = Add(c, b) e = Relu(d)"
    " y = Sin(e)}"
)
WEIGHTS = {"w0": (16, 16, 3, 3), "w1": (16, 16, 3, 3)}


@pytest.fixture(scope="module")
def worker(worker_of) -> Worker:
    return worker_of()


@pytest.fixture(scope="module")
def executed(worker: Worker) -> Callable[[str], ExecutedModel]:
    """What the runtime executes for a model of the zoo."""
    return functools.cache(lambda name: executed_model(find_models([name])[0], worker=worker))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, model_file: Callable[..., Path]) -> ModelSource:
    path = tmp_path_factory.mktemp("fused") / "convolutions.onnx"
    return find_models([model_file(path, CONVOLUTIONS, WEIGHTS)])[0]


@pytest.fixture(scope="module")
def convolutions(worker: Worker, small: ModelSource) -> ExecutedModel:
    return executed_model(small, worker=worker)


def kinds(nodes: list[onnx.NodeProto]) -> list[str]:
    """What a runtime runs beside layout changes; Gelu is one kernel in two domains."""
    layout = FORMS | TRAITS.layouts.changes
    spelt = map(kind_of, nodes)
    return sorted("Gelu" if kind == "com.microsoft.Gelu" else kind for kind in spelt if kind not in layout)


# units --------------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "resnet50", "bert_base"])
@pytest.mark.parametrize(("granularity", "connected"), [(1, False), (3, False), (4, True)])
def test_every_live_layer_is_in_one_brick_that_loads(executed, name, granularity, connected):
    found = executed(name)

    sequences = fused_sequences(found, granularity, connected=connected)

    assert sorted(index for sequence in sequences for index in sequence.layers) == list(found.source.live)
    for sequence in {sequence.key: sequence for sequence in sequences}.values():
        load_brick(build_brick(found.source, sequence).model, expected=sequence.key)
    made: set[str] = set(found.source.inputs)
    for sequence in sequences:  # in their order none reads what a later one makes
        assert made.issuperset(sequence.inputs)
        made.update(sequence.outputs)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("name", "alike"),
    [
        ("squeezenet", 1.0),
        ("shufflenet", 1.0),
        ("bert_base", 1.0),
        ("resnet50", 0.7),  # a sum of a blocked and a plain value is not fused: the other summand is an input
    ],
)
def test_alone_a_unit_executes_as_in_the_model(executed, worker, tmp_path, name, alike):
    """The proof that no fusion is cut: the brick alone runs the operators that the model runs for its layers."""
    found = executed(name)
    sequences = fused_sequences(found, 1)
    alone: dict[str, list[str]] = {}
    same = 0
    for sequence in sequences:
        if sequence.key not in alone:
            (tmp_path / "brick.onnx").write_bytes(build_brick(found.source, sequence).model)
            worker.extract([file(tmp_path / "brick.onnx")], [tmp_path], timeout_s=60)
            alone[sequence.key] = kinds(list(read_network(tmp_path / EXECUTED).graph.node))
        pairs = zip(found.graph.layers, found.origins, strict=True)
        inside = [layer.node for layer, origin in pairs if not origin.isdisjoint(sequence.layers)]
        same += kinds(inside) == alone[sequence.key]

    assert not fused_units(found).reasons
    assert same / len(sequences) >= alike


MOVED = (
    "(float[1,196,288] x) => (float[1,4,196,24] y)"
    " <int64[5] s = {1,196,3,4,24}, int64[1] i = {0}, int64[1] j = {1}, int64[1] k = {2}, int64[1] n = {3}>"
    "{t = Tan(x) r = Reshape(t, s) p = Transpose<perm=[2,0,3,1,4]>(r)"
    " a = Slice(p, i, j, i) b = Slice(p, j, k, i) c = Slice(p, k, n, i)"
    " q = Squeeze(a, i) e = Squeeze(b, i) v = Squeeze(c, i) f = Transpose<perm=[0,1,3,2]>(e)"
    " h = MatMul(q, f) y = MatMul(h, v)}"
)
CANCELLED = (
    "(float[1,12,1,32] x) => (float[1,10,1,16] y) <int64[1] i = {2}>"
    "{t = Tan(x) a = Squeeze(t, i) b = Elu(a) c = Unsqueeze(b, i) d = Transpose<perm=[0,3,1,2]>(c)"
    " e = Conv(d, w) y = Transpose<perm=[0,2,3,1]>(e)}"
)


@pytest.mark.parametrize(
    ("text", "weights", "unit"),
    [
        (MOVED, {}, ["Transpose", "Slice", "Slice", "Slice", "Squeeze", "Transpose"]),
        (CANCELLED, {"w": (16, 32, 3, 1)}, ["Transpose", "Conv", "Transpose"]),
    ],
)
def test_a_transposition_that_moves_or_vanishes_has_a_brick_with_what_it_moved_past(
    worker, model_file, tmp_path, text, weights, unit
):
    """Alone, the brick is executed as in the model: with as many transpositions."""
    found = executed_model(find_models([model_file(tmp_path / "model.onnx", text, weights)])[0], worker=worker)
    (sequence,) = [one for one in fused_sequences(found, 1) if len(one.layers) == len(unit)]
    (tmp_path / "brick.onnx").write_bytes(build_brick(found.source, sequence).model)
    worker.extract([file(tmp_path / "brick.onnx")], [tmp_path], timeout_s=60)

    assert [found.source.layers[index].op_type for index in sequence.layers] == unit
    alone = [node.op_type for node in read_network(tmp_path / EXECUTED).graph.node]
    assert alone.count("Transpose") == sum(layer.op_type == "Transpose" for layer in found.graph.layers)


def test_what_is_fused_stays_together_under_keys_of_source_bricks(convolutions: ExecutedModel) -> None:
    """The first Conv reads a reordered input and hands blocked values on; the second hands plain ones on."""
    layers, parts = convolutions.source.layers, fused_sequences(convolutions, 1)

    units = [[layers[index].op_type for index in unit] for unit in fused_units(convolutions).groups]
    assert units == [["Conv", "Relu"], ["Conv", "Add", "Relu"], ["Sin"]]
    assert [part.key for part in parts] == [make_sequence(convolutions.source, part.layers).key for part in parts]
    assert build_brick(convolutions.source, parts[0]).salt == ""
    # One value in, which the model reorders; one out, which it does not. For the second it is the other way round.
    assert edge_layouts(convolutions, parts) == [0.5, 0.5, 0.0]


def test_granularity_counts_units_and_overlap_begins_at_each(convolutions: ExecutedModel) -> None:
    pairs = fused_sequences(convolutions, 2, connected=True)
    overlapping = fused_sequences(convolutions, 2, connected=True, overlap=True)

    assert [len(sequence.layers) for sequence in pairs] == [5, 1]
    assert [sequence.layers for sequence in overlapping] == [(0, 1), (0, 1, 2, 3, 4), (2, 3, 4), (2, 3, 4, 5), (5,)]
    assert {sequence.key for sequence in pairs} <= {sequence.key for sequence in overlapping}
    with pytest.raises(UsageError):
        fused_sequences(convolutions, 0)


# layout changes of the model ----------------------------------------------------------------------------------------


def test_layout_changes_of_all_sequences_are_those_of_the_model(executed: Callable[[str], ExecutedModel]) -> None:
    found = executed("shufflenet")

    shares = edge_layouts(found, fused_sequences(found, 1))

    assert all(0 <= share <= 1 for share in shares)
    changes = [layer for layer in found.graph.layers if layer.op_type in {"ReorderInput", "ReorderOutput"}]
    assert 0 < sum(share > 0 for share in shares) <= len(changes)
    found = executed("bert_base")
    assert max(edge_layouts(found, fused_sequences(found, 1))) == pytest.approx(0)


# bricks without the layout changes at their edges -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "inner"), [(0, ["Conv"]), (1, ["Conv", "ReorderOutput", "Add", "Relu"]), (2, ["Sin"])]
)
def test_the_layout_changes_of_a_brick_are_at_its_edges(convolutions, number, inner):
    """What the second brick adds comes from outside and is not blocked: its layout change is no edge."""
    backend = OrtBackend()

    brick = build_brick(convolutions.source, fused_sequences(convolutions, 1)[number])

    optimised = backend.optimised(synthetic_network(onnx.ModelProto.FromString(brick.model)), settings())

    edges = backend.edges(optimised)
    kinds = operators(optimised)
    assert [kind for place, kind in enumerate(kinds) if place not in edges] == inner
    assert {kinds[place] for place in edges} <= {"ReorderInput", "ReorderOutput"}
    assert bool(edges) == (number < 2)


def test_layout_changes_inside_a_brick_are_its_own(skeleton_of: Callable[[str], onnx.ModelProto]) -> None:
    graph = (
        "(float[1,16,12,12] x, float[16,16,3,3] w0, float[16,16,3,3] w1) => (float[1,16,12,12] y)"
        "{a = Conv<pads=[1,1,1,1]>(x, w0) b = Transpose<perm=[0,1,3,2]>(a) y = Conv<pads=[1,1,1,1]>(b, w1)}"
    )
    backend = OrtBackend()

    optimised = backend.optimised(synthetic_network(skeleton_of(graph)), settings())

    kinds = operators(optimised)
    assert kinds == ["ReorderInput", "Conv", "ReorderOutput", "Transpose", "ReorderInput", "Conv", "ReorderOutput"]
    assert backend.edges(optimised) == {0, 6}


def test_a_run_stores_both_variants_under_one_key(small: ModelSource, tmp_path: Path) -> None:
    report = generate([small], granularity=1, out=tmp_path / "suite", graph="fused", options=UNPINNED)
    suite = Suite.open(tmp_path / "suite")
    blocked = {key for key in suite.keys if "Conv" in suite.brick(key).operators}

    with Store.open(tmp_path / "m.db") as store:
        done = run(suite, store=store, cache="model", options=UNPINNED, visits=4)
        inner = store.measurements(subject=Subject.BRICK, variant="inner")
        whole = store.measurements(subject=Subject.BRICK)
        again = run(suite, store=store, cache="model", options=UNPINNED, visits=4)

    assert report.complete
    assert suite.graph == "fused"
    assert suite.bound_to is None
    assert done.complete
    assert {entry.key for entry in inner} == blocked
    assert {entry.key for entry in whole} == set(suite.keys)
    assert {entry.conditions for entry in inner} == {entry.conditions for entry in whole}
    assert (again.reused, again.measured) == (len(suite.keys), 0)
