"""Two ways to run: cores that must be free, starts by process, and bricks in the cache state of their models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.db.values import runtime_from
from dlbricks.errors import MachineBusy
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.lock import work_clock
from dlbricks.generator.measurement import trial
from dlbricks.generator.measurement.trial import Contender, Trial, TrialPair, place_of, try_in_models, try_out
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.messages import Load
from dlbricks.models import find_models
from dlbricks.models.runnable import Runnable
from onnx import helper, numpy_helper

PLAIN = runtime_from({"options": {"pinning": "off"}})
WIDTHS = {"v": 1024, "w": 512}
BRANCHES = runtime_from({"options": {"pinning": "off", "execution": "parallel", "inter_op": "2"}})


@pytest.fixture
def pair(branches):
    def made(first, second):
        return TrialPair(*(Contender(Runnable(branches, synthetic=False), place) for place in (first, second)))

    return made


@pytest.mark.parametrize("second", [place_of(PLAIN, 2), place_of(BRANCHES, 1)], ids=["threads", "branches"])
def test_more_cores_are_tried_only_while_they_are_free(pair, second, monkeypatch):
    asked = pair(place_of(PLAIN, 1), second)
    monkeypatch.setattr(trial, "free_cores", lambda: 1)
    (refused,) = try_out([asked], visits=4, processes=1)
    monkeypatch.setattr(trial, "free_cores", lambda: 2)
    (tried,) = try_out([asked], visits=4, processes=1)

    assert isinstance(refused, MachineBusy)
    assert "only 1 of the 2 cores that it needs are free" in str(refused)
    assert isinstance(tried, Trial)
    assert tried.visits == 4


def test_ways_that_use_as_many_cores_are_tried_at_any_time(pair, monkeypatch):
    monkeypatch.setattr(trial, "free_cores", lambda: pytest.fail("nobody has to watch"))

    (tried,) = try_out([pair(place_of(PLAIN, 2), place_of(PLAIN, 2))], visits=4, processes=1)

    assert isinstance(tried, Trial)


def test_a_pair_that_is_not_loaded_in_time_is_given_up(tmp_path):
    """Its loop takes minutes; without a limit, both sides would be waited for."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (int64 x) => (int64 y)
    <int64 most = {100000000000}, bool go = {1}>
    { y = Loop<body = b (int64 i, bool on, int64 a) => (bool again, int64 b) { again = Identity(on) b = Add(a, i) }>
        (most, go, x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "long.onnx")
    way = Contender(Runnable(tmp_path / "long.onnx", synthetic=False), place_of(PLAIN, 1))

    (tried,) = try_out([TrialPair(way, way)], visits=4, processes=1, until=work_clock() + 2)

    assert (tried.stacks, tried.visits) == ((), 0)


def test_the_execution_whose_outputs_are_compared_ends_with_the_time_too(pair, monkeypatch):
    limits, outputs = [], Worker.outputs

    def recorded(worker: Worker, name: str, path: Path, *, timeout_s: float):
        limits.append(timeout_s)
        outputs(worker, name, path, timeout_s=timeout_s)

    monkeypatch.setattr(Worker, "outputs", recorded)

    try_out([pair(place_of(PLAIN, 1), place_of(PLAIN, 1))], visits=4, processes=1, until=work_clock() + 40)

    assert len(limits) == 2
    assert 0 < limits[1] < limits[0] < 40


def test_a_start_of_each_way_is_known_of_each_process(pair):
    (tried,) = try_out([pair(place_of(PLAIN, 1), place_of(PLAIN, 1))], visits=4, processes=2)

    assert [len(starts) for starts in tried.starts_ns] == [2, 2]
    assert min(ns for starts in tried.starts_ns for start in starts for ns in start) > 0


def test_both_ways_are_prepared_alike(pair, monkeypatch):
    """What a process allocates before it loads a network moves that network, and its latency."""
    requests, load = [], Worker.load

    def recorded(worker: Worker, request: Load, **more: float):
        requests.append(request)
        return load(worker, request, **more)

    monkeypatch.setattr(Worker, "load", recorded)

    try_out([pair(place_of(PLAIN, 1), place_of(PLAIN, 1))], visits=4, processes=2)

    _, _, *timed = requests  # the first two are compared, and dropped
    before, after = timed[0].id, timed[1].id
    assert [request.id for request in timed] == [before, after, after, before]
    assert before != after
    ((inputs,),) = {member.file.feeds for request in timed for member in request.members}
    assert inputs.endswith(".npz")


def test_bricks_run_in_packs_at_both_places(tmp_path):
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.random((1024, width), np.float32), name) for name, width in WIDTHS.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, s]) for n, s in (("x", 1024), ("y", 512)))
    graph = helper.make_graph(nodes, "model", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    suite = generate(find_models([tmp_path / "m.onnx"]), out=tmp_path / "suite", granularity=1, graph="source").suite
    keys = [key for key in suite.keys if suite.brick(key).operators == ("MatMul",)]
    places = place_of(PLAIN), place_of(runtime_from({"options": {"pinning": "off", "optimization": "basic"}}))

    tried = try_in_models(suite, keys, places, visits=8, processes=2)

    assert {*tried} == {*keys}
    for found in tried.values():
        assert isinstance(found, Trial)
        assert [len(times) for times in found.before_ns] == [len(times) for times in found.after_ns] == [4, 4]
        assert found.measurable
