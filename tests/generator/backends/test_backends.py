"""The registry, and what is particular to ONNX Runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import onnxruntime as ort
import pytest
from computing import assert_alike, computed, session, settings
from dlbricks.errors import BackendError, BackendUnavailable, UnsupportedBrick, UsageError
from dlbricks.generator.backends import registry
from dlbricks.generator.backends.base import Backend, Settings, released
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend, session_options
from dlbricks.generator.backends.onnxruntime.session import WORDING
from dlbricks.generator.network.network import synthetic_network

BLOCK = (
    "(float[1,16,8,8] x0, float[32,16,1,1] w0, float[32] w1, float[32] w2, float[32] w3, float[32] w4)"
    " => (float[1,32,8,8] v2) {v0 = Conv(x0, w0) v1 = BatchNormalization(v0, w1, w2, w3, w4) v2 = Relu(v1)}"
)
QUANTISED = (
    "(float[5,64] x0, int4[64,64] w0, float[64] w1) => (float[5,64] v1)"
    "{v0 = DequantizeLinear(w0, w1) v1 = MatMul(x0, v0)}"
)


def test_the_registry_lists_every_backend_and_whether_it_runs():
    found = registry.backends()

    assert list(found) == registry.names() == sorted(found)
    assert found["onnxruntime"].ok
    assert found["onnxruntime"].versions["onnxruntime"] == ort.__version__


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"no backend 'abacus'; known are .*onnxruntime"):
        registry.get("abacus")


@pytest.mark.parametrize("target", ["nowhere.at.all:Backend", "builtins:dict", "builtins:NotThere"])
def test_a_plug_in_that_is_broken_is_reported_and_hides_no_other(monkeypatch, target):
    points = dict(registry._points()) | {"broken": EntryPoint("broken", target, registry.GROUP)}
    monkeypatch.setattr(registry, "_points", lambda: points)

    with pytest.raises(BackendUnavailable, match="backend broken"):
        registry.get("broken")
    found = registry.backends()
    assert not found["broken"].ok
    assert target in found["broken"].reason
    assert found["onnxruntime"].ok


class Bare(Backend):
    """What every backend must have, and no more."""

    name = "bare"
    setup = prepare = released


@pytest.mark.parametrize(
    ("method", "said"),
    {
        Backend.algorithms: "offers no choice of algorithms.*leave out --algorithms",
        Backend.calls: "which operators it executes.*use backend onnxruntime",
        Backend.executed_graph: "the graph that it executes.*use --graph source",
        Backend.fused_graph: "the graph that it executes.*use --graph source",
        Backend.in_turn: "cache mode 'model'.*use --cache hot or --cache cold",
        Backend.kernels: "the kernels that it executes.*leave out --kernels",
        Backend.plans: "no choice of plans",
        Backend.prepare_packed: "the time of every node",
    }.items(),
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_what_a_backend_lacks_is_refused_with_what_to_do_instead(method, said):
    backend = Bare()

    assert not backend.offers(method)
    with pytest.raises(UsageError, match=f"backend bare .*{said}"):
        backend.require(method)
    assert (backend.graph, backend.dtypes_on("cpu"), backend.algorithms("cpu", {}, "float32")) == (
        "source",
        ("float32",),
        (),
    )


@pytest.mark.parametrize(
    ("options", "can"),
    [
        ({}, True),
        ({"inter_op": "2"}, True),
        ({"execution": "parallel"}, True),
        ({"execution": "parallel", "inter_op": "2"}, False),
    ],
)
def test_bricks_are_run_in_turn_unless_they_would_run_at_once(options, can):
    backend = OrtBackend()
    effective = backend.resolve("cpu", options)

    assert backend.in_turn(effective) is can
    if can:
        backend.require_in_turn(effective)
    else:
        with pytest.raises(
            UsageError, match=r"cache mode 'model' with these options.* run bricks at once.*--cache hot"
        ):
            backend.require_in_turn(effective)


_BINDINGS = """
import sys
from pathlib import Path
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
import onnxruntime

def threads():
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}

core, before, backend = int(sys.argv[1]), threads(), OrtBackend()
backend.setup(Settings("cpu", 2, backend.resolve("cpu", {}), (core, core), together=True))
for thread in threads() - before:
    print(next(line.split()[1] for line in Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
               if line.startswith("Cpus_allowed_list:")))
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="a system without affinities")
def test_threads_that_networks_share_stay_on_the_cores_of_the_process():
    core = max(os.sched_getaffinity(0))

    done = subprocess.run([sys.executable, "-c", _BINDINGS, str(core)], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) == {str(core)}


OTHERWISE = [
    *({"optimization": level} for level in ("disabled", "basic", "extended", "layout")),
    {"execution": "parallel", "inter_op": "2"},
    {"inter_op": "2"},
    {"prepacking": "off"},
    {"arena": "off"},
    {"memory_pattern": "off"},
    {"spinning": "off"},
    {"denormal_as_zero": "on"},
    {"pinning": "off"},
    {"binding": "allocated"},
]
"""Every option with values that are not its default."""


def test_every_option_makes_a_stack_of_its_own():
    backend = OrtBackend()

    keys = {backend.stack("cpu", options).key for options in ({}, *OTHERWISE)}

    assert {name for options in OTHERWISE for name in options} == set(backend.resolve("cpu", {}))
    assert len(keys) == 1 + len(OTHERWISE)
    assert backend.stack("cpu", backend.resolve("cpu", {})) == backend.stack("cpu", {})


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"optimization": "extended"}, {"graph_optimization_level": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED}),
        ({"execution": "parallel"}, {"execution_mode": ort.ExecutionMode.ORT_PARALLEL}),
        ({"inter_op": "2"}, {"inter_op_num_threads": 2}),
        ({"arena": "off"}, {"enable_cpu_mem_arena": False}),
        ({"arena": "on"}, {"enable_cpu_mem_arena": True}),
        ({"memory_pattern": "off"}, {"enable_mem_pattern": False}),
        ({"spinning": "off"}, {"session.intra_op.allow_spinning": "0", "use_per_session_threads": True}),
        ({"spinning": "on"}, {"session.intra_op.allow_spinning": "1", "use_per_session_threads": False}),
        ({"denormal_as_zero": "on"}, {"session.set_denormal_as_zero": "1"}),
        ({"prepacking": "off"}, {"session.disable_prepacking": "1"}),
        ({"pinning": "on", "spinning": "off"}, {"session.intra_op_thread_affinities": "2"}),
        ({"pinning": "off", "spinning": "off"}, {"session.intra_op_thread_affinities": None}),
    ],
    ids=str,
)
def test_every_option_reaches_sessions_that_share_threads(skeleton_of, options, reported):
    """What says otherwise must still take effect there."""
    backend = OrtBackend()
    network = synthetic_network(skeleton_of(BLOCK))
    together = Settings("cpu", 2, backend.resolve("cpu", options), cores=(0, 1), together=True)

    given = session_options(network, together)

    assert given.enable_mem_reuse is together.memory_reuse is True  # unless asked otherwise
    assert session_options(network, replace(together, memory_reuse=False)).enable_mem_reuse is False

    for name, value in reported.items():
        if "." not in name:
            assert getattr(given, name) == value
        elif value is not None:
            assert given.get_session_config_entry(name) == value
        else:
            with pytest.raises(RuntimeError):
                given.get_session_config_entry(name)


def executed(network, folder, model=None, **options) -> Counter[str]:
    """How many operators of each kind the runtime executes after its own optimisation."""
    opened = session(
        model or network.self_contained(), enable_profiling=True, profile_file_prefix=str(folder / "profile"), **options
    )
    opened.run(None, dict(network.feeds))
    events = json.loads(Path(opened.end_profiling()).read_text())
    nodes = [one for one in events if one.get("cat") == "Node" and one["name"].endswith("kernel_time")]
    return Counter(one["args"]["op_name"] for one in nodes)


@pytest.mark.parametrize("graph", [BLOCK, QUANTISED], ids=["block", "quantised"])
def test_copies_are_optimised_as_a_single_brick_is(skeleton_of, graph, tmp_path):
    single, unrolled = (executed(synthetic_network(skeleton_of(graph), unroll=copies), tmp_path) for copies in (1, 4))

    assert unrolled == Counter({name: 4 * count for name, count in single.items()})


@pytest.mark.parametrize("options", OTHERWISE, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_option_computes_the_same(skeleton_of, options, threads):
    network = synthetic_network(skeleton_of(BLOCK))

    plain, other = (computed(network, chosen=settings(threads=threads, **given)) for given in ({}, options))

    assert_alike(other, plain, 1e-3)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Foo(1) node with name 'n'",
            UnsupportedBrick,
            "Could not find an implementation for Foo(1)",
        ),
        (
            "[ONNXRuntimeError] : 6 : FAIL : /onnxruntime_src/bfc.cc:376 Failed to allocate memory for 72 bytes",
            MemoryError,
            "Failed to allocate memory for 72 bytes",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from /home/a b failed:a:B(-1) is not a registered function/op",
            UnsupportedBrick,
            "cannot express it: a:B(-1) is not",
        ),
        ("std::bad_alloc", MemoryError, "std::bad_alloc"),
        ("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : first\nsecond", BackendError, "failed: first second"),
    ],
)
def test_the_runtime_s_words_become_one_line_of_the_right_kind(text, kind, said):
    meaning = WORDING.meaning(RuntimeError(text))

    assert type(meaning) is kind
    assert said in str(meaning)
    assert "ONNXRuntimeError" not in str(meaning)
    assert "/onnxruntime_src" not in str(meaning)
    assert "/home" not in str(meaning)


@pytest.mark.parametrize("binding", ["bound", "allocated"])
def test_an_output_of_another_size_than_declared_is_allocated_anew(skeleton_of, binding):
    backend = OrtBackend()
    network = synthetic_network(skeleton_of("(float[4] x0) => (float[3] v0) {v0 = Unique(x0)}"))
    executable = backend.prepare(network, settings(binding=binding))

    for _ in range(3):
        executable.run()
        (found,) = executable.outputs()
        assert found.shape == (4,)  # no two inputs are equal
    executable.close()


def test_an_output_of_which_nothing_is_declared_is_bound_all_the_same(skeleton_of):
    backend = OrtBackend()
    network = synthetic_network(skeleton_of("(float[4] x0, int64[2] x1) => (float v0) {v0 = Reshape(x0, x1)}"))
    network.model.graph.output[0].type.tensor_type.ClearField("shape")
    network.feeds["x1"][:] = (2, 2)
    executable = backend.prepare(network, settings())

    executable.run()
    first = executable._binding.get_outputs()[0].data_ptr()
    executable.run()

    assert executable._step == executable._repeat
    assert executable._binding.get_outputs()[0].data_ptr() == first
    executable.close()
