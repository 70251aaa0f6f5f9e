"""The shape oracle: one execution where inference is not enough."""

from __future__ import annotations

import tempfile

from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.layer import TensorType
from dlbricks.generator.decomposition.decomposer import WorkerOracle


def test_types_come_from_an_execution_that_leaves_nothing_behind(skeleton_of, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    unread = skeleton_of("(float[4] x0) => (float[4] v0) {v0, v1 = Dropout(x0)}")
    unable = skeleton_of("(float[4] x0) => (float[n] v0) {v0 = no.such.Mystery(x0)}", domains=', "no.such": 1')
    model = skeleton_of("(float[3,5] x0, bool[15] x1) => (float[n] v1) {v0 = Relu(x0) v1 = Compress(v0, x1)}")

    with WorkerOracle() as oracle:
        assert oracle(unread, ["v1"]) == {}
        assert oracle.started == 0  # outputs that nothing reads are not worth an execution
        assert oracle(unable, ["v0"]) == {}
        found = oracle(model, ["v0", "v1"])

    assert found["v0"] == TensorType("float", (3, 5))
    assert (found["v1"].dtype, len(found["v1"].shape)) == ("float", 1)
    assert oracle.problems == []
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_hangs_leaves_its_types_unknown_and_the_next_is_asked(skeleton_of):
    endless = skeleton_of(
        "(float[1] x0) => (float[n] v0)"
        "{m = Constant<value_int=4611686018427387904>() c = Constant<value = bool {1}>()"
        " v0 = Loop(m, c, x0) <body = b (int64 i, bool k, float[n] s) => (bool k2, float[n] t)"
        " {k2 = Identity(k) t = Identity(s)}>}"
    )
    fine = skeleton_of("(float[4] x0) => (int64[1,n] v0) {v0 = NonZero(x0)}")

    with WorkerOracle(timeout_s=2) as oracle:
        assert oracle(endless, ["v0"]) == {}
        found = oracle(fine, ["v0"])

    assert found["v0"].dtype == "int64"
    assert len(oracle.problems) == 1


def test_a_graph_is_completed_by_the_oracle(source):
    skeleton = source("(float[6] x) => (int64[1,n] y) {a = NonZero(x) y = Abs(a)}").skeleton()

    blind = build_graph(skeleton)
    with WorkerOracle() as oracle:
        seeing = build_graph(skeleton, oracle=oracle)

    assert len(blind.live) < len(seeing.live) == 2
