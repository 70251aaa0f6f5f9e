"""Bricks that are run together: packed, visited, distinguished, and left out where one of them is at fault."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dlbricks.bricks.graph.boundary import KEPT
from dlbricks.bricks.suite.suite import Suite
from dlbricks.errors import UsageError, WorkerOutOfMemory
from dlbricks.generator.backends.base import NodeTimes, Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.network.network import read_network, synthetic_network
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.execution.executed import Executed, executed_bricks
from dlbricks.generator.worker.execution.packing import load_pack
from dlbricks.generator.worker.packs import Packs
from dlbricks.generator.worker.requests import Pack, Prepare, Visit
from dlbricks.models import find_models

UNPINNED = {"pinning": "off"}
BACKENDS = ("onnxruntime", "torch", "openvino")
CONVOLUTIONS = (
    "(float[1,16,8,8] x) => (float[1,32,8,8] y)"
    "{a = Conv<pads=[1,1,1,1]>(x, w0, w1) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, w2) y = Sigmoid(c)}"
)
CONVOLUTION_WEIGHTS = {"w0": (32, 16, 3, 3), "w1": (32,), "w2": (32, 32, 3, 3)}
TIMEOUT_S = 60.0

Files = Mapping[str, Path]


def pack_of(files: Files, *names: str, id: str = "p", copies: int = 1, as_is: bool = False) -> Pack:  # noqa: A002
    """The pack of some of the files, or of all, in the order given."""
    return Pack(id, tuple((name, str(files[name]), copies) for name in names or files), as_is=as_is)


def files_of(suite: Suite) -> Files:
    return {key: suite.brick_path(key).resolve() for key in suite.keys}


@pytest.fixture(scope="module")
def started() -> Iterator[dict[str, Worker]]:
    workers: dict[str, Worker] = {}
    yield workers
    for worker in workers.values():
        worker.close()


@pytest.fixture(params=BACKENDS)
def worker(request: pytest.FixtureRequest, started: dict[str, Worker]) -> Worker:
    """A worker of a runtime that records the time of its nodes, and of one that does not."""
    name = request.param
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    if name not in started:
        started[name] = Worker.start(name, options=UNPINNED, together=True)
    return started[name]


@pytest.fixture
def ort(started: dict[str, Worker]) -> Worker:
    if "onnxruntime" not in started:
        started["onnxruntime"] = Worker.start("onnxruntime", options=UNPINNED, together=True)
    return started["onnxruntime"]


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory, model_file) -> Suite:
    """Bricks that read and write another layout than the runtime's own."""
    folder = tmp_path_factory.mktemp("convolutions")
    path = model_file(folder / "c.onnx", CONVOLUTIONS, CONVOLUTION_WEIGHTS)
    suite = generate(find_models([path]), granularity=1, out=folder / "suite").suite
    assert suite is not None
    return suite


def test_bricks_are_packed_visited_distinguished_and_released(worker, small_suite):
    begun_us = time.time_ns() // 1000
    packed = worker.pack(pack_of(files_of(small_suite)), timeout_s=TIMEOUT_S)
    visits = [worker.visit(Visit("p", warmups=1), timeout_s=TIMEOUT_S) for _ in range(4)]
    reported = worker.unpack("p", timeout_s=TIMEOUT_S)

    assert packed.left_out == ()
    assert 0 < packed.loading_ns <= packed.prepare_ns
    assert packed.bytes > 0
    assert all(one.elapsed_ns > 0 and one.compute_ns > 0 and one.memory_ns > 0 for one in visits)
    assert begun_us <= visits[0].begun_us
    assert [one.begun_us for one in visits] == sorted(one.begun_us for one in visits)
    assert {one.id for one in reported.times} == set(small_suite.keys)
    assert {len(one.whole_ns) for one in reported.times} == {4}
    assert max(max(one.whole_ns) for one in reported.times) > 0
    worker.release("p")
    with pytest.raises(UsageError, match="no network 'p'"):
        worker.visit(Visit("p"), timeout_s=TIMEOUT_S)
    with pytest.raises(UsageError, match="no pack 'p'"):
        worker.unpack("p", timeout_s=TIMEOUT_S)


def test_a_pack_is_packed_again_in_another_order(worker, small_suite):
    files = files_of(small_suite)
    worker.pack(pack_of(files), timeout_s=TIMEOUT_S)
    worker.visit(Visit("p"), timeout_s=TIMEOUT_S)
    first = worker.unpack("p", timeout_s=TIMEOUT_S)

    again = worker.pack(pack_of(files, *reversed(small_suite.keys)), timeout_s=TIMEOUT_S)
    for _ in range(3):
        worker.visit(Visit("p"), timeout_s=TIMEOUT_S)
    second = worker.unpack("p", timeout_s=TIMEOUT_S)

    assert again.left_out == ()
    assert {one.id for one in first.times} == {one.id for one in second.times} == set(files)
    assert {len(one.whole_ns) for one in second.times} == {3}  # visits of the order before are not among them
    worker.release("p")


def test_several_packs_are_kept_and_another_with_other_bricks_replaces_one(worker, small_suite):
    files, keys = files_of(small_suite), small_suite.keys
    for name, members in (("p", keys[:4]), ("q", keys[4:8]), ("p", keys[2:7])):
        worker.pack(pack_of(files, *members, id=name), timeout_s=TIMEOUT_S)
    for name in "pqp":
        worker.visit(Visit(name), timeout_s=TIMEOUT_S)

    found = {name: worker.unpack(name, timeout_s=TIMEOUT_S).times for name in "pq"}

    assert {one.id for one in found["p"]} == set(keys[2:7])
    assert {one.id for one in found["q"]} == set(keys[4:8])
    assert {len(one.whole_ns) for one in found["p"]} == {2}
    assert {len(one.whole_ns) for one in found["q"]} == {1}
    for name in "pq":
        worker.release(name)


def test_a_visit_of_several_loops_is_one_visit(worker, small_suite):
    worker.pack(pack_of(files_of(small_suite)), timeout_s=TIMEOUT_S)
    worker.visit(Visit("p", loops=3, warmups=2), timeout_s=TIMEOUT_S)

    reported = worker.unpack("p", timeout_s=TIMEOUT_S)

    assert {len(one.whole_ns) for one in reported.times} == {1}
    worker.release("p")


def test_a_pack_that_was_not_visited_has_no_times(worker, small_suite):
    worker.pack(pack_of(files_of(small_suite)), timeout_s=TIMEOUT_S)

    reported = worker.unpack("p", timeout_s=TIMEOUT_S)

    assert {one.whole_ns for one in reported.times} == {()}
    worker.release("p")


def test_what_is_refused_is_left_out_and_the_others_are_run(worker, small_suite, skeleton_of, tmp_path):
    odd = skeleton_of("(float[2] x0) => (float[2] v0) {v0 = nowhere.Odd(x0)}", domains=', "nowhere": 1')
    files = {**files_of(small_suite), "odd": tmp_path / "odd.onnx", "torn": tmp_path / "torn.onnx"}
    files["odd"].write_bytes(odd.SerializeToString())
    files["torn"].write_bytes(small_suite.brick_path(small_suite.keys[0]).read_bytes()[:40])
    files["absent"] = tmp_path / "absent.onnx"

    packed = worker.pack(pack_of(files), timeout_s=TIMEOUT_S)
    worker.visit(Visit("p"), timeout_s=TIMEOUT_S)

    assert {one.id: one.kind for one in packed.left_out} == {"odd": "unsupported", "torn": "error", "absent": "error"}
    assert all(str(tmp_path) not in one.reason for one in packed.left_out)
    assert {one.id for one in worker.unpack("p", timeout_s=TIMEOUT_S).times} == set(small_suite.keys)
    worker.release("p")


def test_a_pack_of_nothing_that_runs_says_so(worker, skeleton_of, tmp_path):
    odd = skeleton_of("(float[2] x0) => (float[2] v0) {v0 = nowhere.Odd(x0)}", domains=', "nowhere": 1')
    (tmp_path / "odd.onnx").write_bytes(odd.SerializeToString())

    packed = worker.pack(pack_of({"odd": tmp_path / "odd.onnx"}), timeout_s=TIMEOUT_S)

    assert [one.id for one in packed.left_out] == ["odd"]
    with pytest.raises(UsageError, match="without bricks"):
        worker.visit(Visit("p"), timeout_s=TIMEOUT_S)
    with pytest.raises(UsageError, match="no pack"):
        worker.unpack("p", timeout_s=TIMEOUT_S)
    worker.release("p")


def test_what_cannot_be_packed_may_still_run_by_itself(ort, small_suite, skeleton_of, tmp_path):
    text = skeleton_of("(string[4] x0) => (string[4] v0) {v0 = Identity(x0)}")
    files = {**files_of(small_suite), "text": tmp_path / "text.onnx"}
    files["text"].write_bytes(text.SerializeToString())

    packed = ort.pack(pack_of(files), timeout_s=TIMEOUT_S)

    assert [(one.id, one.kind) for one in packed.left_out] == [("text", "")]
    ort.visit(Visit("p"), timeout_s=TIMEOUT_S)
    ort.prepare(Prepare(id="text", path=str(files["text"]), synthetic=True, unroll=1))
    assert ort.visit(Visit("text", loops=5), timeout_s=TIMEOUT_S).elapsed_ns > 0
    ort.release("p")
    ort.release("text")


def test_layout_changes_at_the_edges_are_distinguished(ort, convolutions):
    ort.pack(pack_of(files_of(convolutions)), timeout_s=TIMEOUT_S)
    for _ in range(5):
        ort.visit(Visit("p"), timeout_s=TIMEOUT_S)

    reported = {one.id: one for one in ort.unpack("p", timeout_s=TIMEOUT_S).times}

    edged = {key for key, one in reported.items() if one.inner_ns}
    assert edged == {key for key in convolutions.keys if "Conv" in convolutions.brick(key).operators}
    for key in edged:
        whole, inner = reported[key].whole_ns, reported[key].inner_ns
        assert len(whole) == len(inner) == 5
        assert sum(inner) <= sum(whole) + 5 * 1000  # the clock's own cost is taken off each node, and may be too much
    ort.release("p")


def test_more_copies_have_weights_of_their_own_and_one_time(ort, convolutions):
    once = ort.pack(pack_of(files_of(convolutions), id="once"), timeout_s=TIMEOUT_S)
    often = ort.pack(pack_of(files_of(convolutions), id="often", copies=4), timeout_s=TIMEOUT_S)
    ort.visit(Visit("often"), timeout_s=TIMEOUT_S)

    assert often.bytes >= once.bytes
    assert {len(one.whole_ns) for one in ort.unpack("often", timeout_s=TIMEOUT_S).times} == {1}
    ort.release("once")
    ort.release("often")


def test_networks_are_visited_like_packs_warm_or_after_an_eviction(worker, small_suite):
    (path, *_) = files_of(small_suite).values()
    worker.prepare(Prepare(id="alone", path=str(path), synthetic=True, unroll=1))

    warm = worker.visit(Visit("alone", loops=10, warmups=1), timeout_s=TIMEOUT_S)
    cold = worker.visit(Visit("alone", cache="cold", warmups=1), timeout_s=TIMEOUT_S)

    assert min(warm.elapsed_ns, warm.compute_ns, warm.memory_ns) > 0
    assert min(cold.elapsed_ns, cold.compute_ns, cold.memory_ns) > 0
    worker.release("alone")


def test_only_a_worker_greeted_for_it_shares_its_threads(small_suite):
    """What would merge bricks or run them at once is refused where the worker is greeted."""
    with pytest.raises(UsageError, match="cache mode 'model'"):
        Worker.start("onnxruntime", options={**UNPINNED, "execution": "parallel", "inter_op": "2"}, together=True)


def test_the_memory_limit_refuses_a_pack_and_the_worker_goes_on(small_suite, skeleton_of, tmp_path):
    huge = skeleton_of("(float[60000,30000] x0) => (float[60000,30000] v0) {v0 = Relu(x0)}")
    files = {**files_of(small_suite), "huge": tmp_path / "huge.onnx"}
    files["huge"].write_bytes(huge.SerializeToString())

    with Worker.start("onnxruntime", options=UNPINNED, together=True, memory_bytes=600 << 20) as worker:
        with pytest.raises(WorkerOutOfMemory):
            worker.pack(pack_of(files), timeout_s=TIMEOUT_S)
        assert worker.pack(pack_of(files, *small_suite.keys), timeout_s=TIMEOUT_S).left_out == ()


@pytest.mark.parametrize("when", ["prepare", "run", "optimise"])
def test_halving_finds_who_is_at_fault(small_suite, faulty, when):
    faulty({"Sqrt": f"{when}:unsupported", "Softmax": f"{when}:unsupported"})

    with Worker.start("faulty", options=UNPINNED, together=True) as worker:
        packed = worker.pack(pack_of(files_of(small_suite)), timeout_s=TIMEOUT_S)
        worker.visit(Visit("p"), timeout_s=TIMEOUT_S)
        reported = worker.unpack("p", timeout_s=TIMEOUT_S)

    bad = {key for key in small_suite.keys if {"Sqrt", "Softmax"} & {*small_suite.brick(key).operators}}
    assert {(one.id, one.kind, one.reason) for one in packed.left_out} == {
        (key, "unsupported", "no kernel for this") for key in bad
    }
    assert {one.id for one in reported.times} == {*small_suite.keys} - bad


class _Counting(OrtBackend):
    """Notes how packed networks were set up, and what the runtime said of them."""

    def __init__(self) -> None:
        self.readings: list[NodeTimes] = []
        self.reuse: list[bool] = []

    def prepare_packed(self, network, settings):
        self.reuse.append(settings.memory_reuse)
        executable = super().prepare_packed(network, settings)
        end = executable.end

        def noted() -> NodeTimes:
            self.readings.append(end())
            return self.readings[-1]

        executable.end = noted
        return executable


@pytest.mark.parametrize("reuse", [True, False])
def test_a_pack_is_set_up_as_it_was_asked_for(convolutions, reuse):
    backend = _Counting()
    settings = Settings("cpu", 1, backend.resolve("cpu", UNPINNED), (0,))
    backend.setup(settings)
    members = tuple((key, str(path), 1) for key, path in files_of(convolutions).items())
    packs = Packs()

    packs.pack(Pack("p", members, memory_reuse=reuse), backend, settings)
    packs.release("p")

    assert set(backend.reuse) == {reuse}


def test_every_brick_is_executed_in_every_pass_of_every_visit(convolutions):
    backend = _Counting()
    settings = Settings("cpu", 1, backend.resolve("cpu", UNPINNED), (0,))
    backend.setup(settings)
    networks = {key: synthetic_network(read_network(path)) for key, path in files_of(convolutions).items()}
    bricks, refused = executed_bricks(networks, backend, settings)
    assert refused == {}
    nodes = sum(len(brick.network.model.graph.node) for brick in bricks.values())

    loaded, broken, alone = load_pack(bricks, dict.fromkeys(bricks, 2), backend, settings)
    for visit in (0, 0, None, 1):
        loaded.run(visit=visit)
    reading = loaded.read(0.0)
    loaded.close()

    (said,) = backend.readings
    assert (broken, alone) == ({}, ())
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


def test_a_long_brick_whose_outputs_stay_is_timed_without_being_run_for_the_clock(skeleton_of):
    """The head of a language model: nothing in its pack would read a shape, and no brick in it is short."""
    backend = _Counting()
    settings = Settings("cpu", 1, backend.resolve("cpu", UNPINNED), (0,))
    backend.setup(settings)
    model = skeleton_of("(float[256,512] x, float[512,8192] w) => (float[256,8192] y) {y = MatMul(x, w)}")
    bricks, _ = executed_bricks({"head": replace(synthetic_network(model), as_is=True)}, backend, settings)
    bricks = {name: replace(brick, boundary=KEPT) for name, brick in bricks.items()}

    loaded, refused, alone = load_pack(bricks, {}, backend, settings)
    for visit in range(3):
        loaded.run(visit=visit)
    reading = loaded.read(None)
    loaded.close()

    assert (refused, alone) == ({}, ())
    (times,) = reading.times
    whole = np.array(times.whole_ns)
    (own,) = (place for place, name in enumerate(backend.readings[0].names) if name == "0.0/0")
    assert whole.shape == (3,)
    np.testing.assert_allclose(whole, backend.readings[0].times[1:, own], rtol=0.1)
    assert 0 <= reading.idle_ns < 1e5
    assert [name for one in backend.readings[1:] for name in one.names if name == "0.0/0"] != []
    assert max(one.times.sum(axis=1).max() for one in backend.readings[1:]) < whole.min()


def test_a_brick_that_runs_as_it_stands_is_not_optimised_again(convolutions):
    backend = OrtBackend()
    settings = Settings("cpu", 1, backend.resolve("cpu", UNPINNED), (0,))
    (key, path), *_ = files_of(convolutions).items()
    network = replace(synthetic_network(read_network(path)), as_is=True)

    bricks, refused = executed_bricks({key: network}, backend, settings)

    assert refused == {}
    assert isinstance(bricks[key], Executed)
    assert bricks[key].network is network
    assert bricks[key].edges == frozenset()
