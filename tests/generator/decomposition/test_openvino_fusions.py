"""What OpenVINO executes together: units of a model's own layers, and that their bricks execute the same alone."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import pytest
from dlbricks.bricks.cutting.fused import fused_sequences, fused_units
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store
from dlbricks.errors import UsageError
from dlbricks.generator.backends.base import FusingBackend, GraphBackend
from dlbricks.generator.backends.openvino.backend import OpenVinoBackend
from dlbricks.generator.decomposition.cutter import Cut, Cutter
from dlbricks.generator.decomposition.executed import executed_model
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.run import run
from dlbricks.generator.network.network import read_network
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.execution.extraction import EXECUTED
from dlbricks.generator.worker.requests import Extract
from dlbricks.models import find_models

pytestmark = pytest.mark.skipif(not OpenVinoBackend().probe().ok, reason="OpenVINO is not installed")

UNPINNED = {"pinning": "off"}
CONVOLUTION = {"w": (16, 16, 3, 3), "w1": (16, 16, 3, 3)}
NORMALISED = {"s": (16,), "b": (16,), "m": (16,), "v": (16,)}
LINEAR = {"w": (32, 32), "b": (32,)}

CASES = {
    "activation": (
        "(float[1,16,12,12] x) => (float[1,16,12,12] y){a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) y = Sin(b)}",
        CONVOLUTION,
        ["Conv Relu", "Sin"],
    ),
    "normalisation, whose convolution has no name left": (
        (
            "(float[1,16,12,12] x) => (float[1,16,12,12] y)"
            "{a = Conv<pads=[1,1,1,1]>(x, w) c = BatchNormalization(a, s, b, m, v) d = Relu(c) y = Sin(d)}"
        ),
        CONVOLUTION | NORMALISED,
        ["Conv BatchNormalization Relu", "Sin"],
    ),
    "sum": (
        (
            "(float[1,16,12,12] x) => (float[1,16,12,12] y)"
            "{t = Tan(x) r = Relu(t) a = Conv<pads=[1,1,1,1]>(r, w) c = Conv<pads=[1,1,1,1]>(t, w1) d = Add(a, c)"
            " y = Relu(d)}"
        ),
        CONVOLUTION,
        ["Tan", "Relu", "Conv", "Conv Add Relu"],
    ),
    "product, sum and GELU": (
        (
            "(float[4,8,32] x) => (float[4,8,32] y) <float r = {1.4142135}, float one = {1.0}, float half = {0.5}>"
            "{p = MatMul(x, w) q = Add(p, b) a = Div(q, r) e = Erf(a) f = Add(e, one) g = Mul(q, f) y = Mul(g, half)}"
        ),
        LINEAR,
        ["MatMul Add Div Erf Add Mul Mul"],
    ),
    "layer normalisation in parts": (
        (
            "(float[4,8,32] x) => (float[4,8,32] y) <float two = {2.0}, float eps = {0.00001}>"
            "{t = Tan(x) m = ReduceMean<axes=[-1]>(t) d = Sub(t, m) q = Pow(d, two) n = ReduceMean<axes=[-1]>(q)"
            " o = Add(n, eps) r = Sqrt(o) z = Div(d, r) y = Sin(z)}"
        ),
        {},
        ["Tan", "ReduceMean Sub Pow ReduceMean Add Sqrt Div", "Sin"],
    ),
    "an operator of which OpenVINO makes several": (
        "(float[2,32] x) => (float[2,32] y) {a = Tan(x) y = LayerNormalization(a, b, b)}",
        LINEAR,
        ["Tan", "LayerNormalization"],
    ),
    "what comes to nothing goes with a neighbour": (
        "(float[2,32] x) => (float[2,32] y) {a = Tan(x) d = Dropout(a) i = Identity(d) y = Sin(i)}",
        {},
        ["Tan Dropout", "Identity Sin"],
    ),
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker.start("openvino", options=UNPINNED) as started:
        yield started


def kinds(model) -> list[str]:
    """What is executed beside layout changes, conversions at the edges, and operators that only name a shape anew."""
    idle = {"Reorder", "Convert", "Reshape"}
    return sorted(node.op_type for node in model.graph.node if node.op_type not in idle)


@pytest.mark.parametrize("case", CASES)
def test_what_is_executed_together_stays_together(worker, written, case, operators):
    graph, weights, expected = CASES[case]

    found = executed_model(written(graph, weights), worker=worker)

    units = fused_units(found)
    assert [operators(found, unit) for unit in units.groups] == expected
    assert not units.cut


@pytest.mark.parametrize("form", ["{}.0", "~{}", "~{}.0", "~~{}", "a,~{}"])
def test_names_of_inputs_collide_with_none_of_ours(worker, written, form, operators):
    graph, weights, expected = CASES["sum"]
    source = written(graph, weights)
    for number in range(10):
        model = onnx.load(source.path)
        name = form.format(number)
        model.graph.input[0].name = model.graph.node[0].input[0] = name
        onnx.save(model, source.path)

        found = executed_model(source, worker=worker)

        assert [operators(found, unit) for unit in fused_units(found).groups] == expected, name
        assert [*found.graph.inputs] == [name]


def test_the_executed_graph_has_types_and_no_names_of_the_model(worker, written):
    found = executed_model(written(*CASES["activation"][:2]), worker=worker)

    (convolution,) = (layer for layer in found.graph.layers if layer.op_type == "Convolution")
    assert [known.shape for known in convolution.output_types] == [(1, 16, 12, 12)]
    assert not any(layer.node.attribute for layer in found.graph.layers)
    assert found.graph.live == tuple(range(len(found.graph.layers)))
    assert found.graph.salt.startswith("runtime:")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v1", "densenet121", "bert_base"])
def test_alone_a_unit_executes_as_in_the_model(worker, tmp_path, name):
    """Every layer is in one unit, and OpenVINO makes of the brick what it makes of these layers in the model."""
    found = executed_model(find_models([name])[0], worker=worker)
    sequences = fused_sequences(found, 1)
    alone: dict[str, list[str]] = {}
    same = 0
    for sequence in sequences:
        if sequence.key not in alone:
            (tmp_path / "brick.onnx").write_bytes(build_brick(found.source, sequence).model)
            worker.extract(
                Extract(path=str(tmp_path / "brick.onnx"), synthetic=True, folder=str(tmp_path)), timeout_s=60
            )
            alone[sequence.key] = kinds(read_network(tmp_path / EXECUTED))
        pairs = zip(found.graph.layers, found.origins, strict=True)
        inside = [layer.op_type for layer, origin in pairs if not origin.isdisjoint(sequence.layers)]
        same += sorted(one for one in inside if one != "Reshape") == alone[sequence.key]

    assert sorted(index for sequence in sequences for index in sequence.layers) == list(found.source.live)
    assert not fused_units(found).cut
    assert same / len(sequences) >= 0.9


def test_no_brick_is_made_of_what_openvino_executes(written):
    backend = OpenVinoBackend()
    cut = Cut(1, graph="runtime", backend="openvino", options=tuple(UNPINNED.items()))

    assert isinstance(backend, FusingBackend)
    assert not isinstance(backend, GraphBackend)
    with Cutter(cut) as cutter, pytest.raises(UsageError, match=r"runs by itself.*--graph fused"):
        cutter(written(*CASES["activation"][:2]))


def test_a_suite_of_units_is_made_and_measured(written, tmp_path):
    source = written(*CASES["what comes to nothing goes with a neighbour"][:2])

    report = generate(
        [source], granularity=1, out=tmp_path / "suite", graph="fused", backend="openvino", options=UNPINNED
    )
    suite = Suite.open(tmp_path / "suite")
    with Store.open(tmp_path / "m.db") as store:
        done = run(suite, store=store, backend="openvino", options=UNPINNED, models=[source], visits=3, processes=1)

    (row,) = report.rows
    assert (row.layers, row.sequences, row.apart, row.eliminated) == (4, 2, (), {})
    assert (suite.graph, suite.bound_to) == ("fused", None)
    assert done.complete
