"""Bricks that are run in turn: optimised ahead, many in one network, and the time of every node of it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from computing import computed, operators, session, settings
from dlbricks.errors import BackendError
from dlbricks.generator.backends import registry
from dlbricks.generator.backends.base import WORKER_COMMAND, Backend
from dlbricks.generator.backends.onnxruntime import session as profile
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.network.network import synthetic_network
from dlbricks.generator.network.packed import PackedBrick, pack
from dlbricks.generator.worker.execution.pack import executed_bricks

GRAPHS = {
    "block": "(float[1,16,8,8] x0, float[32,16,1,1] w0, float[32] w1, float[32] w2, float[32] w3, float[32] w4)"
    " => (float[1,32,8,8] v2) {v0 = Conv(x0, w0) v1 = BatchNormalization(v0, w1, w2, w3, w4) v2 = Relu(v1)}",
    "layer": "(float[4,64] x0, float[64,32] w0, float[32] w1) => (float[4,32] v1){v0 = Gemm(x0, w0, w1) v1 = Relu(v0)}",
    "embedding": "(int64[1,7] x0, float[11,6] w0) => (float[1,7,6] v0) {v0 = Gather(w0, x0)}",
    "two outputs": "(float[2,6] x0) => (float[2,6] v0, float[2,6] v1) {v0 = Neg(x0) v1 = Exp(v0)}",
    "a constant": "(float[3,4] x0) => (float[3,4] v0) <float c0 = {2.0}> {v0 = Pow(x0, c0)}",
    "a branch": "(bool c0, float[4] x0) => (float[4] v0)"
    "{v0 = If (c0) <then_branch = g1 () => (float[4] t) {t = Neg(x0)},"
    " else_branch = g2 () => (float[4] e) {e = Exp(x0)}>}",
}


def able(method: Callable[..., Any]) -> list[Backend]:
    """Backends that are installed here and have an optional method; one in another environment has its own tests."""
    found = [registry.get(name) for name, state in registry.backends().items() if state.ok]
    here = [backend for backend in found if tuple(backend.command()) == WORKER_COMMAND]
    return [backend for backend in here if "cpu" in backend.devices and backend.offers(method)]


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("backend", able(Backend.in_turn), ids=lambda backend: backend.name)
def test_what_was_optimised_ahead_computes_the_same(backend, graph, skeleton_of):
    network = synthetic_network(skeleton_of(graph), seed=3)

    optimised = backend.optimised(network, settings(backend))

    assert optimised.as_is
    for one, other in zip(computed(optimised, backend), computed(network, backend), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert operators(backend.optimised(optimised, settings(backend))) == operators(optimised)
    assert operators(network) == operators(synthetic_network(skeleton_of(graph), seed=3)), "it is left as it was"


@pytest.mark.parametrize("backend", able(Backend.prepare_packed), ids=lambda backend: backend.name)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_node_is_reported_in_every_execution_until_the_end(backend, threads, skeleton_of):
    chosen = settings(backend, threads=threads)
    executed, _ = executed_bricks(
        {name: synthetic_network(skeleton_of(GRAPHS[name])) for name in GRAPHS}, backend, chosen
    )
    packed = pack([replace(brick, copies=2) for brick in executed.values()])
    executable = backend.prepare_packed(packed.network, chosen)
    for _ in range(5):
        executable.run()
        executable.synchronize()

    found = executable.end()

    assert found.times.shape == (5, len(found.names))
    assert len(set(found.names)) == len(found.names)
    assert {*found.names} == {node.name for node in packed.network.model.graph.node}
    assert {*packed.nodes, *packed.uncounted, *packed.idle} <= {*found.names}
    assert np.isfinite(found.times).all()
    assert (found.times >= 0).all()
    assert (found.times.sum(axis=1) > 0).all()
    watched = executable.outputs()
    executable.run()  # which nobody watches
    for one, other in zip(executable.outputs(), watched, strict=True):
        np.testing.assert_array_equal(one, other)
    executable.close()


@pytest.mark.parametrize("backend", able(Backend.prepare_packed), ids=lambda backend: backend.name)
def test_a_pack_leaves_nothing_behind_whether_it_ended_or_was_not_even_run_or_loaded(
    backend, skeleton_of, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    packed = pack([PackedBrick(synthetic_network(skeleton_of(GRAPHS["layer"])))])
    for ended, runs in ((True, 0), (True, 1), (False, 1)):
        executable = backend.prepare_packed(packed.network, settings(backend))
        for _ in range(runs):
            executable.run()
        if ended:
            assert len(executable.end().times) == runs
            assert list(tmp_path.iterdir()) == []
        executable.close()
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(BackendError, match="released"):
            executable.run()
    unknown = skeleton_of("(float[40] x0) => (float[40] v0) {v0 = nowhere.NoSuch(x0)}", domains=', "nowhere": 1')
    with pytest.raises(BackendError):
        backend.prepare_packed(pack([PackedBrick(synthetic_network(unknown))]).network, settings(backend))
    assert list(tmp_path.iterdir()) == []


# the profile of ONNX Runtime ----------------------------------------------------------------------------------------


@pytest.fixture
def written(skeleton_of, tmp_path):
    """The folder of a real profile of two executions."""
    network = synthetic_network(skeleton_of(GRAPHS["a branch"]))
    prefix = str(tmp_path / profile.PREFIX)
    opened = session(network.self_contained(), enable_profiling=True, profile_file_prefix=prefix)
    for _ in range(2):
        opened.run(None, dict(network.feeds))
    opened.end_profiling()
    return tmp_path


def test_a_profile_without_arguments_has_the_same_times(written):
    lean, full = profile.read_profile(written, lean=True), profile.read_profile(written)

    assert [{name: one[name] for name in ("name", "cat", "ts", "dur")} for one in full] == lean
    assert any(one["args"] for one in full)
    one, other = (profile.node_times(events, {"If_0"}) for events in (lean, full))
    assert one.names == other.names == ("If_0",), "what runs in its body is part of its time"
    np.testing.assert_array_equal(one.times, other.times)
    assert one.times.shape[0] == 2


@pytest.mark.parametrize("lean", [True, False])
def test_a_full_profile_is_refused(written, monkeypatch, lean):
    count = len(profile.read_profile(written))
    monkeypatch.setattr(profile, "_MOST_EVENTS", count + 1)
    assert len(profile.read_profile(written, lean=lean)) == count

    monkeypatch.setattr(profile, "_MOST_EVENTS", count)

    with pytest.raises(BackendError, match=f"profile is full after {count} events"):
        profile.read_profile(written, lean=lean)


def test_there_is_one_profile_or_none_is_read(written, tmp_path_factory):
    with pytest.raises(BackendError, match="wrote 0 profiles instead of one"):
        profile.read_profile(tmp_path_factory.mktemp("empty"))
    (written / f"{profile.PREFIX}-other.json").write_text("[]")
    with pytest.raises(BackendError, match="wrote 2 profiles instead of one"):
        profile.read_profile(written)


def test_a_node_that_an_execution_lacks_is_reported(written):
    events = profile.read_profile(written, lean=True)
    last = max(
        (one for one in events if one["cat"] == "Node" and one["name"].endswith(profile.KERNEL)),
        key=lambda one: one["ts"],
    )

    with pytest.raises(BackendError, match="lost 1 nodes"):
        profile.node_times([one for one in events if one is not last], {"If_0", "Neg_0", "Exp_0"})


# threads that networks share ----------------------------------------------------------------------------------------

_SHARED = """
import sys
from pathlib import Path
import onnx.parser
import numpy as np
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.network.network import synthetic_network
from dlbricks.generator.network.packed import PackedBrick, pack

def threads():
    return len(list(Path("/proc/self/task").iterdir()))

graph = "(float[64,512] x, float[512,512] w) => (float[64,512] y) {y = MatMul(x, w)}"
model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g ' + graph)
backend, together = OrtBackend(), sys.argv[1] == "together"
chosen = Settings("cpu", 2, backend.resolve("cpu", {"pinning": "off"}), (0, 1), together=together)
backend.setup(chosen)
network = synthetic_network(model)
counts, found = [threads()], []
for number in range(3):
    executable = backend.prepare(network, chosen)
    executable.run()
    found.append((executable, executable.outputs()[0]))
    counts.append(threads())
packed = backend.prepare_packed(pack([PackedBrick(network, copies=2)]).network, chosen)
packed.run()
assert packed.end().times.shape[0] == 1
counts.append(threads())
assert all(np.array_equal(one, found[0][1]) for _, one in found)
print(*(count - counts[0] for count in counts))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="a system that does not list its threads")
@pytest.mark.parametrize(("how", "more"), [("together", "0 0 0 0 0"), ("apart", "0 1 2 3 4")])
def test_networks_that_are_run_in_turn_share_their_threads(how, more):
    done = subprocess.run([sys.executable, "-c", _SHARED, how], capture_output=True, text=True, check=True)

    assert done.stdout.split() == more.split()


def test_a_brick_is_optimised_in_the_precision_that_is_asked_for(skeleton_of):
    backend = OrtBackend()
    network = synthetic_network(skeleton_of(GRAPHS["layer"]))

    quantised = backend.optimised(network, replace(settings(backend), dtype="int8"))

    assert any("Quantize" in name for name in operators(quantised))
    assert backend.edges(quantised) == frozenset()
    (found,) = computed(quantised, backend)
    (exact,) = computed(network, backend)
    np.testing.assert_allclose(found, exact, atol=0.1 * float(np.abs(exact).max()))


READ_OUTPUTS = {
    "an activation that is fused in a model": (
        "(float[1,16,8,8] x, float[16,16,1,1] w) => (float[1,16,8,8] y) {c = Conv(x, w) y = HardSwish(c)}",
        {"Conv"},
    ),
    "nodes that cancel out": (
        "(float[2,3,4] x) => (float[2,3,4] y) {t = Transpose<perm=[0,2,1]>(x) y = Transpose<perm=[0,2,1]>(t)}",
        {"Identity"},
    ),
    "two outputs of one value": ("(float[40] x) => (float[40] y, float[40] z) {y = Relu(x) z = Relu(y)}", {"Relu"}),
    "integers": ("(int64[40] x) => (int64[40] y) {y = Neg(x)}", {"Neg"}),
}


@pytest.mark.parametrize("name", READ_OUTPUTS)
def test_a_brick_is_fused_as_if_something_read_its_outputs(name, skeleton_of):
    """ONNX Runtime fuses HardSwish into a blocked convolution unless its result is an output of the graph."""
    graph, kinds = READ_OUTPUTS[name]
    backend = OrtBackend()
    chosen = settings(backend)
    network = synthetic_network(skeleton_of(graph), seed=3)

    optimised = backend.optimised_bricks(network, chosen)

    changes = {"ReorderInput", "ReorderOutput"}
    assert {*operators(optimised)} - changes == kinds
    expected = dict(zip(network.outputs, computed(network, backend), strict=True))
    for output, array in zip(optimised.outputs, computed(optimised, backend), strict=True):
        np.testing.assert_allclose(array, expected[output], rtol=1e-5, atol=1e-6)
