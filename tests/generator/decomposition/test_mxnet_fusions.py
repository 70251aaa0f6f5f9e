"""What MXNet executes together for oneDNN: units of a model's own layers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dlbricks.bricks.cutting.fused import fused_units
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store
from dlbricks.generator.backends.base import FusingBackend, GraphBackend
from dlbricks.generator.backends.mxnet.backend import MxnetBackend
from dlbricks.generator.decomposition.executed import executed_model
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.run import run
from dlbricks.generator.worker.client import Worker

UNPINNED = {"pinning": "off"}
CONVOLUTION = {"w": (16, 16, 3, 3), "w1": (16, 16, 3, 3)}
NORMALISED = {"s": (16,), "b": (16,), "m": (16,), "v": (16,)}

CASES = {
    "activation": (
        "(float[1,16,12,12] x) => (float[1,16,12,12] y){a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) y = Sin(b)}",
        CONVOLUTION,
        ["Conv Relu", "Sin"],
    ),
    "normalisation": (
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
            "{t = Tan(x) a = Conv<pads=[1,1,1,1]>(t, w) c = Conv<pads=[1,1,1,1]>(a, w1) d = Add(c, t) y = Relu(d)}"
        ),
        CONVOLUTION,
        ["Tan", "Conv", "Conv Add Relu"],
    ),
    "an operator of which MXNet makes several": (
        "(float[2,32] x) => (float[2,32] y) {a = Tan(x) b = HardSwish(a) y = Sin(b)}",
        {},
        ["Tan", "HardSwish", "Sin"],
    ),
}


@pytest.fixture(scope="module")
def worker(own_runtime) -> Iterator[Worker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLBRICKS_CACHE", str(own_runtime.cache))
        started = Worker.start("mxnet", options=UNPINNED, command=MxnetBackend().command())
    with started:
        yield started


def test_it_reports_fusions_and_nothing_that_could_be_run_in_parts():
    backend = MxnetBackend()

    assert isinstance(backend, FusingBackend)
    assert not isinstance(backend, GraphBackend)


@pytest.mark.parametrize("case", CASES)
def test_what_is_executed_together_stays_together(worker, written, case, operators):
    graph, weights, expected = CASES[case]

    found = executed_model(written(graph, weights), worker=worker)

    units = fused_units(found)
    assert [operators(found, unit) for unit in units.groups] == expected
    assert not units.cut


def test_without_subgraphs_every_layer_is_one_unit(mxnet, written):
    graph, weights, _ = CASES["normalisation"]

    found = executed_model(written(graph, weights), backend="mxnet", options={**UNPINNED, "subgraph": "none"})

    assert [len(unit) for unit in fused_units(found).groups] == [1, 1, 1, 1]


def test_the_executed_graph_has_types_and_the_inputs_of_the_model(worker, written):
    found = executed_model(written(*CASES["activation"][:2]), worker=worker)

    convolution, sine = found.graph.layers
    assert (convolution.op_type, sine.op_type) == ("_sg_mkldnn_conv", "sin")
    assert [known.shape for known in convolution.output_types] == [(1, 16, 12, 12)]
    assert [*found.graph.inputs] == ["x"]
    assert found.graph.salt.startswith("runtime:")


@pytest.mark.slow
def test_a_suite_of_units_is_made_and_measured(mxnet, written, tmp_path):
    source = written(*CASES["normalisation"][:2])

    report = generate([source], granularity=1, out=tmp_path / "suite", graph="fused", backend="mxnet", options=UNPINNED)
    with Store.open(tmp_path / "m.db") as store:
        suite = Suite.open(tmp_path / "suite")
        done = run(suite, store=store, backend="mxnet", options=UNPINNED, models=[source], visits=3, processes=1)

    (row,) = report.rows
    assert (row.layers, row.sequences, row.apart, row.eliminated) == (4, 2, (), {})
    assert (suite.graph, suite.bound_to) == ("fused", None)
    assert done.complete
