"""What OpenVINO and MXNet execute together: units of a model's own layers, whose bricks execute the same alone."""

from __future__ import annotations

import onnx
import pytest
from dlbricks.bricks.cutting.fused import fused_sequences, fused_units
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db.values import Runtime
from dlbricks.errors import UsageError
from dlbricks.generator.backends.registry import get
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decomposer import Decomposer
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.run import run
from dlbricks.generator.network.network import read_network
from dlbricks.generator.worker.execution.extraction import EXECUTED
from dlbricks.models import find_models
from executing import executed_model
from working import UNPINNED, file

CONVOLUTION = {"w": (16, 16, 3, 3), "w1": (16, 16, 3, 3)}
NORMALISED = {"s": (16,), "b": (16,), "m": (16,), "v": (16,)}
LINEAR = {"w": (32, 32), "b": (32,)}
BOTH, OPENVINO, MXNET = ("openvino", "mxnet"), ("openvino",), ("mxnet",)

CASES = {
    "activation": (
        "(float[1,16,12,12] x) => (float[1,16,12,12] y){a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) y = Sin(b)}",
        CONVOLUTION,
        ["Conv Relu", "Sin"],
        BOTH,
    ),
    "normalisation, whose convolution has no name left": (
        (
            "(float[1,16,12,12] x) => (float[1,16,12,12] y)"
            "{a = Conv<pads=[1,1,1,1]>(x, w) c = BatchNormalization(a, s, b, m, v) d = Relu(c) y = Sin(d)}"
        ),
        CONVOLUTION | NORMALISED,
        ["Conv BatchNormalization Relu", "Sin"],
        BOTH,
    ),
    "sum": (
        (
            "(float[1,16,12,12] x) => (float[1,16,12,12] y)"
            "{t = Tan(x) r = Relu(t) a = Conv<pads=[1,1,1,1]>(r, w) c = Conv<pads=[1,1,1,1]>(t, w1) d = Add(a, c)"
            " y = Relu(d)}"
        ),
        CONVOLUTION,
        ["Tan", "Relu", "Conv", "Conv Add Relu"],
        OPENVINO,
    ),
    "sum of what was read": (
        (
            "(float[1,16,12,12] x) => (float[1,16,12,12] y)"
            "{t = Tan(x) a = Conv<pads=[1,1,1,1]>(t, w) c = Conv<pads=[1,1,1,1]>(a, w1) d = Add(c, t) y = Relu(d)}"
        ),
        CONVOLUTION,
        ["Tan", "Conv", "Conv Add Relu"],
        MXNET,
    ),
    "product, sum and GELU": (
        (
            "(float[4,8,32] x) => (float[4,8,32] y) <float r = {1.4142135}, float one = {1.0}, float half = {0.5}>"
            "{p = MatMul(x, w) q = Add(p, b) a = Div(q, r) e = Erf(a) f = Add(e, one) g = Mul(q, f) y = Mul(g, half)}"
        ),
        LINEAR,
        ["MatMul Add Div Erf Add Mul Mul"],
        OPENVINO,
    ),
    "layer normalisation in parts": (
        (
            "(float[4,8,32] x) => (float[4,8,32] y) <float two = {2.0}, float eps = {0.00001}>"
            "{t = Tan(x) m = ReduceMean<axes=[-1]>(t) d = Sub(t, m) q = Pow(d, two) n = ReduceMean<axes=[-1]>(q)"
            " o = Add(n, eps) r = Sqrt(o) z = Div(d, r) y = Sin(z)}"
        ),
        {},
        ["Tan", "ReduceMean Sub Pow ReduceMean Add Sqrt Div", "Sin"],
        OPENVINO,
    ),
    "an operator of which OpenVINO makes several": (
        "(float[2,32] x) => (float[2,32] y) {a = Tan(x) y = LayerNormalization(a, b, b)}",
        LINEAR,
        ["Tan", "LayerNormalization"],
        OPENVINO,
    ),
    "what comes to nothing goes with a neighbour": (
        "(float[2,32] x) => (float[2,32] y) {a = Tan(x) d = Dropout(a) i = Identity(d) y = Sin(i)}",
        {},
        ["Tan Dropout", "Identity Sin"],
        OPENVINO,
    ),
    "an operator of which MXNet makes several": (
        "(float[2,32] x) => (float[2,32] y) {a = Tan(x) b = HardSwish(a) y = Sin(b)}",
        {},
        ["Tan", "HardSwish", "Sin"],
        MXNET,
    ),
}


@pytest.fixture
def fusing(request, worker_of):
    """A worker of a runtime; MXNet's has an environment of its own."""

    def at(name):
        if name == "mxnet":
            request.getfixturevalue("mxnet")
        return worker_of(name)

    return at


def kinds(model) -> list[str]:
    """What is executed beside layout changes, conversions at the edges, and operators that only name a shape anew."""
    idle = {"Reorder", "Convert", "Reshape"}
    return sorted(node.op_type for node in model.graph.node if node.op_type not in idle)


def units_of(found) -> list[str]:
    units = fused_units(found)
    assert not units.reasons
    return [" ".join(found.source.layers[index].op_type for index in unit) for unit in units.groups]


@pytest.mark.parametrize(("name", "case"), [(name, case) for case, found in CASES.items() for name in found[-1]])
def test_what_is_executed_together_stays_together(fusing, source, name, case):
    graph, weights, expected, _ = CASES[case]

    found = executed_model(source(graph, weights), worker=fusing(name))

    assert units_of(found) == expected
    if case == "activation":  # the executed graph has types and no names of the model but those of its inputs
        (convolution,) = (layer for layer in found.graph.layers if "conv" in layer.op_type.lower())
        assert [known.shape for known in convolution.output_types] == [(1, 16, 12, 12)]
        assert not any(layer.node.attribute for layer in found.graph.layers)
        assert found.graph.live == tuple(range(len(found.graph.layers)))
        assert [*found.graph.inputs] == ["x"]
        assert found.graph.salt.startswith("runtime:")


def test_without_subgraphs_every_layer_is_one_unit(mxnet, source):
    graph, weights, *_ = CASES["activation"]

    found = executed_model(source(graph, weights), backend="mxnet", options={**UNPINNED, "subgraph": "none"})

    assert units_of(found) == ["Conv", "Relu", "Sin"]


@pytest.mark.parametrize("form", ["{}.0", "~{}", "~{}.0", "~~{}", "a,~{}"])
def test_names_of_inputs_collide_with_none_of_ours(fusing, source, form):
    graph, weights, expected, _ = CASES["sum"]
    written = source(graph, weights)
    for number in range(10):
        model = onnx.load(written.path)
        name = form.format(number)
        model.graph.input[0].name = model.graph.node[0].input[0] = name
        onnx.save(model, written.path)

        found = executed_model(written, worker=fusing("openvino"))

        assert units_of(found) == expected, name
        assert [*found.graph.inputs] == [name]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v1", "densenet121", "bert_base"])
def test_alone_a_unit_executes_as_in_the_model(worker_of, tmp_path, name):
    """Every layer is in one unit, and OpenVINO makes of the brick what it makes of these layers in the model."""
    worker = worker_of("openvino")
    found = executed_model(find_models([name])[0], worker=worker)
    sequences = fused_sequences(found, 1)
    alone: dict[str, list[str]] = {}
    same = 0
    for sequence in sequences:
        if sequence.key not in alone:
            (tmp_path / "brick.onnx").write_bytes(build_brick(found.source, sequence).model)
            worker.extract([file(tmp_path / "brick.onnx")], [tmp_path], timeout_s=60)
            alone[sequence.key] = kinds(read_network(tmp_path / EXECUTED))
        pairs = zip(found.graph.layers, found.origins, strict=True)
        inside = [layer.op_type for layer, origin in pairs if not origin.isdisjoint(sequence.layers)]
        same += sorted(one for one in inside if one != "Reshape") == alone[sequence.key]

    assert sorted(index for sequence in sequences for index in sequence.layers) == list(found.source.live)
    assert not fused_units(found).reasons
    assert same / len(sequences) >= 0.9


@pytest.mark.parametrize("name", BOTH)
def test_no_brick_is_made_of_what_such_a_runtime_executes(source, name):
    assert get(name).graph == "fused"
    if name == "openvino" and get(name).probe().ok:
        cut = Cut(1, graph="runtime", runtime=Runtime.of(name, options=UNPINNED))
        with Decomposer(cut) as cutter, pytest.raises(UsageError, match=r"runs by itself.*--graph fused"):
            cutter(source(*CASES["activation"][:2]))


@pytest.mark.parametrize("name", ["openvino", pytest.param("mxnet", marks=pytest.mark.slow)])
def test_a_suite_of_units_is_made_and_measured(fusing, source, store, tmp_path, name):
    fusing(name)
    model = source(*CASES["normalisation, whose convolution has no name left"][:2])

    report = generate([model], granularity=1, out=tmp_path / "suite", graph="fused", backend=name, options=UNPINNED)
    suite = Suite.open(tmp_path / "suite")
    done = run(suite, store=store, backend=name, options=UNPINNED, models=[model], visits=3, processes=1)

    (row,) = report.rows
    assert (row.layers, row.sequences, row.apart, row.eliminated) == (4, 2, (), {})
    assert (suite.graph, suite.bound_to) == ("fused", None)
    assert done.complete
