"""Bricks that are run together: packed, visited, distinguished, and left out where one of them is at fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from computing import settings
from dlbricks.bricks.graph.boundary import KEPT
from dlbricks.bricks.suite.suite import Suite
from dlbricks.errors import UsageError, WorkerOutOfMemory
from dlbricks.generator.backends.base import NodeTimes
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.network.network import read_network, synthetic_network
from dlbricks.generator.network.packed import PackedBrick
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.execution import pack as execution
from dlbricks.generator.worker.execution import timing
from dlbricks.generator.worker.execution.pack import executed_bricks, load_pack
from dlbricks.generator.worker.messages import Drop, Time
from dlbricks.generator.worker.worker import _WorkerState
from dlbricks.models import find_models
from working import UNPINNED, network, pack, start

CONVOLUTIONS = (
    "(float[1,16,8,8] x) => (float[1,32,8,8] y)"
    "{a = Conv<pads=[1,1,1,1]>(x, w0, w1) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, w2) y = Sigmoid(c)}"
)
CONVOLUTION_WEIGHTS = {"w0": (32, 16, 3, 3), "w1": (32,), "w2": (32, 32, 3, 3)}
Files = Mapping[str, Path]


def files_of(suite: Suite) -> Files:
    return {key: suite.brick_path(key).resolve() for key in suite.keys}


@pytest.fixture(params=["onnxruntime", "torch", "openvino"])
def worker(request: pytest.FixtureRequest, worker_of: Callable[..., Worker]) -> Worker:
    """A worker of a runtime that records the time of its nodes, and of one that does not."""
    return worker_of(request.param, together=True)


@pytest.fixture
def ort(worker_of: Callable[..., Worker]) -> Worker:
    return worker_of(together=True)


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory, model_file) -> Suite:
    """Bricks that read and write another layout than the runtime's own."""
    folder = tmp_path_factory.mktemp("convolutions")
    path = model_file(folder / "c.onnx", CONVOLUTIONS, CONVOLUTION_WEIGHTS)
    suite = generate(find_models([path]), granularity=1, out=folder / "suite").suite
    assert suite is not None
    return suite


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch):
    """No other program runs in this process's executions, as far as it is told."""
    monkeypatch.setattr(timing, "switches", lambda: 0)


def test_bricks_are_packed_visited_distinguished_and_released(worker, small_suite):
    begun_us = time.time_ns() // 1000
    packed = worker.load(pack(files_of(small_suite)))
    visits = [worker.time(Time("p", warmups=1)) for _ in range(4)]
    reported = worker.read("p")

    assert packed.left_out == ()
    assert packed.loading_ns > 0
    assert all(one.elapsed_ns > 0 and one.compute_ns > 0 and one.memory_ns > 0 for one in visits)
    assert begun_us <= visits[0].begun_us
    assert [one.begun_us for one in visits] == sorted(one.begun_us for one in visits)
    assert {one.id for one in reported.times} == set(small_suite.keys)
    assert {len(one.whole_ns) for one in reported.times} == {4}
    assert max(max(one.whole_ns) for one in reported.times) > 0
    worker.drop("p")
    with pytest.raises(UsageError, match="no network 'p'"):
        worker.time(Time("p"))
    with pytest.raises(UsageError, match="no pack 'p'"):
        worker.read("p")


def test_a_pack_is_packed_again_in_another_order_and_what_is_visited_is_counted_anew(worker, small_suite):
    files = files_of(small_suite)
    worker.load(pack(files))
    unvisited = worker.read("p")
    worker.load(pack(files))
    worker.time(Time("p", loops=3, warmups=2))  # a visit of several loops is one
    first = worker.read("p")

    again = worker.load(pack(files, *reversed(small_suite.keys)))
    for _ in range(3):
        worker.time(Time("p"))
    second = worker.read("p")

    assert again.left_out == ()
    assert {one.id for one in first.times} == {one.id for one in second.times} == set(files)
    for found, visits in ((unvisited, 0), (first, 1), (second, 3)):
        assert {len(one.whole_ns) for one in found.times} == {visits}
    worker.drop("p")


def test_several_packs_are_kept_and_another_with_other_bricks_replaces_one(worker, small_suite):
    files, keys = files_of(small_suite), small_suite.keys
    for name, members in (("p", keys[:4]), ("q", keys[4:8]), ("p", keys[2:7])):
        worker.load(pack(files, *members, name=name))
    for name in "pqp":
        worker.time(Time(name))

    found = {name: worker.read(name).times for name in "pq"}

    assert {one.id for one in found["p"]} == set(keys[2:7])
    assert {one.id for one in found["q"]} == set(keys[4:8])
    assert {len(one.whole_ns) for one in found["p"]} == {2}
    assert {len(one.whole_ns) for one in found["q"]} == {1}
    for name in "pq":
        worker.drop(name)


def test_what_is_refused_is_left_out_and_the_others_are_run(worker, small_suite, skeleton_of, tmp_path):
    odd = skeleton_of("(float[2] x0) => (float[2] v0) {v0 = nowhere.Odd(x0)}", domains=', "nowhere": 1')
    files = {**files_of(small_suite), "odd": tmp_path / "odd.onnx", "torn": tmp_path / "torn.onnx"}
    files["odd"].write_bytes(odd.SerializeToString())
    files["torn"].write_bytes(small_suite.brick_path(small_suite.keys[0]).read_bytes()[:40])
    files["absent"] = tmp_path / "absent.onnx"

    packed = worker.load(pack(files))
    worker.time(Time("p"))

    assert {one.id: one.kind for one in packed.left_out} == {"odd": "unsupported", "torn": "error", "absent": "error"}
    assert all(str(tmp_path) not in one.reason for one in packed.left_out)
    assert {one.id for one in worker.read("p").times} == set(small_suite.keys)
    worker.load(network("alone", files[small_suite.keys[0]]))
    for more in ({"loops": 10}, {"cold": True}):  # networks are visited like packs, warm or after an eviction
        visit = worker.time(Time("alone", warmups=1, **more))
        assert min(visit.elapsed_ns, visit.compute_ns, visit.memory_ns) > 0
    worker.drop("alone")
    worker.drop("p")


def test_a_pack_of_nothing_that_runs_says_so(worker, skeleton_of, tmp_path):
    odd = skeleton_of("(float[2] x0) => (float[2] v0) {v0 = nowhere.Odd(x0)}", domains=', "nowhere": 1')
    (tmp_path / "odd.onnx").write_bytes(odd.SerializeToString())

    packed = worker.load(pack({"odd": tmp_path / "odd.onnx"}))

    assert [one.id for one in packed.left_out] == ["odd"]
    with pytest.raises(UsageError, match="without bricks"):
        worker.time(Time("p"))
    with pytest.raises(UsageError, match="no pack"):
        worker.read("p")
    worker.drop("p")


def test_what_cannot_be_packed_may_still_run_by_itself(ort, small_suite, skeleton_of, tmp_path):
    text = skeleton_of("(string[4] x0) => (string[4] v0) {v0 = Identity(x0)}")
    files = {**files_of(small_suite), "text": tmp_path / "text.onnx"}
    files["text"].write_bytes(text.SerializeToString())

    packed = ort.load(pack(files))

    assert [(one.id, one.kind) for one in packed.left_out] == [("text", None)]
    ort.time(Time("p"))
    ort.load(network("text", files["text"]))
    assert ort.time(Time("text", loops=5)).elapsed_ns > 0
    ort.drop("p")
    ort.drop("text")


def test_layout_changes_at_the_edges_are_distinguished(ort, convolutions):
    ort.load(pack(files_of(convolutions), copies=2))
    for _ in range(5):
        ort.time(Time("p"))

    reported = {one.id: one for one in ort.read("p").times}

    edged = {key for key, one in reported.items() if one.inner_ns}
    assert edged == {key for key in convolutions.keys if "Conv" in convolutions.brick(key).operators}
    for key in edged:
        whole, inner = reported[key].whole_ns, reported[key].inner_ns
        assert len(whole) == len(inner) == 5
        assert sum(inner) <= sum(whole) + 5 * 1000  # the clock's own cost is taken off each node, and may be too much
    ort.drop("p")


def test_only_a_worker_greeted_for_it_shares_its_threads(small_suite):
    """What would merge bricks or run them at once is refused where the worker is greeted."""
    with pytest.raises(UsageError, match="cache mode 'model'"):
        start("onnxruntime", {**UNPINNED, "execution": "parallel", "inter_op": "2"}, together=True)


def test_the_memory_limit_refuses_a_pack_and_the_worker_goes_on(small_suite, skeleton_of, tmp_path):
    huge = skeleton_of("(float[60000,30000] x0) => (float[60000,30000] v0) {v0 = Relu(x0)}")
    files = {**files_of(small_suite), "huge": tmp_path / "huge.onnx"}
    files["huge"].write_bytes(huge.SerializeToString())

    with start(together=True, memory_bytes=600 << 20) as worker:
        with pytest.raises(WorkerOutOfMemory):
            worker.load(pack(files))
        assert worker.load(pack(files, *small_suite.keys)).left_out == ()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("when", ["prepare", "run", "optimise"])
def test_halving_finds_who_is_at_fault(small_suite, faulty, when):
    faulty({"Sqrt": f"{when}:unsupported", "Softmax": f"{when}:unsupported"})

    with start("faulty", together=True) as worker:
        packed = worker.load(pack(files_of(small_suite)))
        worker.time(Time("p"))
        reported = worker.read("p")

    bad = {key for key in small_suite.keys if {"Sqrt", "Softmax"} & {*small_suite.brick(key).operators}}
    assert {(one.id, one.kind, one.reason) for one in packed.left_out} == {
        (key, "unsupported", "no kernel for this") for key in bad
    }
    assert {one.id for one in reported.times} == {*small_suite.keys} - bad


class _Counting(OrtBackend):
    """Notes how packed networks were set up, and what the runtime said of them."""

    def __init__(self) -> None:
        self.readings: list[NodeTimes] = []
        self.reuse: set[bool] = set()

    def prepare_packed(self, network, settings):
        self.reuse.add(settings.memory_reuse)
        executable = super().prepare_packed(network, settings)
        end = executable.end

        def noted() -> NodeTimes:
            self.readings.append(end())
            return self.readings[-1]

        executable.end = noted
        return executable


@pytest.mark.parametrize("reuse", [True, False])
def test_a_pack_is_set_up_as_it_was_asked_for(convolutions, reuse):
    worker, backend = _WorkerState(), _Counting()
    worker._backend, worker._settings = backend, settings(backend)

    worker.answer(pack(files_of(convolutions), memory_reuse=reuse))
    worker.answer(Drop("p"))

    assert backend.reuse == {reuse}


def test_every_brick_is_executed_in_every_pass_of_every_visit(convolutions):
    backend = _Counting()
    chosen = settings(backend)
    backend.setup(chosen)
    networks = {key: synthetic_network(read_network(path)) for key, path in files_of(convolutions).items()}
    bricks, refused = executed_bricks(networks, backend, chosen)
    assert refused == {}
    assert all(isinstance(brick, PackedBrick) for brick in bricks.values())
    key, network = next(iter(networks.items()))
    as_is = replace(network, as_is=True)  # what runs as it stands is not optimised again
    ((standing,), _) = (found.values() for found in executed_bricks({key: as_is}, backend, chosen))
    assert standing.network is as_is
    assert standing.edges is None
    nodes = sum(len(network.model.graph.node) for brick in bricks.values() for network in brick.networks)

    outcome = load_pack({name: replace(brick, copies=2) for name, brick in bricks.items()}, backend, chosen)
    loaded = outcome.pack
    for visit in (0, 0, None, 1):
        loaded.run(visit=visit)
    reading = loaded.read(0.0)
    loaded.close()

    (said,) = backend.readings
    assert (outcome.refused, outcome.alone) == ({}, ())
    assert said.times.shape[0] == 5  # one when it was loaded
    assert len([name for name in said.names if "/" in name and ":" not in name]) == 2 * nodes
    assert {one.id: len(one.whole_ns) for one in reading.times} == dict.fromkeys(bricks, 2)
    own = np.array([name for name in said.names if "/" in name and ":" not in name])
    idle = said.times[:, [name.endswith(":shape of") for name in said.names]]
    clock = np.minimum(idle, 3 * np.median(idle)).mean()  # few consumers show one for all executions
    counted = said.times[:, np.isin(np.array(said.names), own)] - clock
    assert np.sum([one.whole_ns for one in reading.times], axis=0) * 2 == pytest.approx(
        [counted[1:3].sum() / 2, counted[4].sum()], abs=2 * len(bricks)
    )


@pytest.mark.parametrize(("long_ns", "networks"), [(0.0, 4), (1e12, 1)])
def test_long_bricks_have_a_network_of_their_own_where_other_programs_run(convolutions, monkeypatch, long_ns, networks):
    backend = _Counting()
    chosen = settings(backend)
    backend.setup(chosen)
    files = {key: synthetic_network(read_network(path)) for key, path in files_of(convolutions).items()}
    bricks, _ = executed_bricks(files, backend, chosen)
    counts = iter(range(1000))
    monkeypatch.setattr(timing, "switches", lambda: next(counts))
    monkeypatch.setattr(execution, "_DISTURBED", -1.0)
    monkeypatch.setattr(execution, "_LONG_NS", long_ns)

    loaded = load_pack(bricks, backend, chosen).pack
    loaded.run(visit=0)
    times = loaded.read(0.0).times
    loaded.close()

    assert len(bricks) == 4
    assert len(backend.readings) == networks + 1  # the first is what tells which bricks are long
    assert {brick.id for brick in times} == set(bricks)


def test_a_long_brick_whose_outputs_stay_is_timed_without_being_run_for_the_clock(skeleton_of):
    """The head of a language model: nothing in its pack would read a shape, and no brick in it is short."""
    backend = _Counting()
    chosen = settings(backend)
    backend.setup(chosen)
    model = skeleton_of("(float[256,512] x, float[512,8192] w) => (float[256,8192] y) {y = MatMul(x, w)}")
    bricks, _ = executed_bricks({"head": replace(synthetic_network(model), as_is=True)}, backend, chosen)
    bricks = {name: replace(brick, boundary=KEPT) for name, brick in bricks.items()}

    outcome = load_pack(bricks, backend, chosen)
    loaded = outcome.pack
    for visit in range(3):
        loaded.run(visit=visit)
    reading = loaded.read(None)
    loaded.close()

    assert (outcome.refused, outcome.alone) == ({}, ())
    (times,) = reading.times
    whole = np.array(times.whole_ns)
    (own,) = (place for place, name in enumerate(backend.readings[0].names) if name == "0.0/0")
    assert whole.shape == (3,)
    np.testing.assert_allclose(whole, backend.readings[0].times[1:, own], rtol=0.1)
    assert 0 <= reading.idle_ns < 1e5
    assert [name for one in backend.readings[1:] for name in one.names if name == "0.0/0"] != []
    assert max(one.times.sum(axis=1).max() for one in backend.readings[1:]) < whole.min()
