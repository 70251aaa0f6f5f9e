"""The worker as it is: a process of its own, given good and bad requests."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from dlbricks.bricks.reference import GEMM, OVERHEAD
from dlbricks.db.values import Runtime
from dlbricks.errors import BackendError, UnsupportedBrick, UsageError, WorkerOutOfMemory
from dlbricks.generator.machine.cores import physical_cores
from dlbricks.generator.worker.execution.timing import MOST_COPIES
from dlbricks.generator.worker.messages import Bye, Greeting, Hello, Place, Refusal, Refused, Time, Types, line_of
from dlbricks.generator.worker.serving import redact_paths, refusal
from dlbricks.generator.worker.worker import serve
from working import file, network, start

CONV = (
    "(float[1,4,8,8] x0, float[32,4,3,3] w0, float[32] w1) => (float[1,32,8,8] v1)"
    "{v0 = Conv<pads=[1,1,1,1]>(x0, w0, w1) v1 = Relu(v0)}"
)
_PRODUCT = f"{GEMM}256"


@pytest.fixture(scope="module")
def worker():
    """One worker for all tests that leave it alive."""
    with start(memory_bytes=600 << 20) as made:
        folder = Path(f"/proc/{made.pid}/cwd").readlink()
        yield made
        assert list(folder.iterdir()) == []
        assert made.stderr_tail == ""


@pytest.fixture
def save(skeleton_of, tmp_path):
    """Write a brick and return its path."""

    def write(graph: str, name: str = "brick.onnx", **options: str) -> Path:
        (tmp_path / name).write_bytes(skeleton_of(graph, **options).SerializeToString())
        return tmp_path / name

    return write


def answers(*lines: str | bytes) -> list[dict]:
    """What a worker in this process replies."""
    sink = io.StringIO()
    serve([line if isinstance(line, str) else line.decode() for line in lines], sink)
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def test_a_brick_is_loaded_timed_and_dropped(worker, save):
    loaded = worker.load(network("a", save(CONV)))
    timed = worker.time(Time("a", loops=3, warmups=1))
    worker.drop("a")

    assert loaded.unroll == 1
    assert loaded.loading_ns == loaded.first_run_ns + loaded.load_ns
    assert min(loaded.first_run_ns, loaded.load_ns, timed.elapsed_ns, timed.compute_ns, timed.memory_ns) > 0
    assert timed.cpu_ns > 0
    assert timed.switches is None or timed.switches >= 0
    with pytest.raises(UsageError, match="'a'"):
        worker.time(Time("a"))


def test_many_networks_are_kept_at_once_and_cold_visits_are_of_a_single_copy(worker, save):
    names = {"b": 1, "c": 2, _PRODUCT: 0, OVERHEAD: 0}  # built-in networks need no file
    for name, unroll in names.items():
        worker.load(network(name, name if unroll == 0 else save(CONV), unroll=unroll))

    assert all(worker.time(Time(name)).elapsed_ns > 0 for name in [*names, *names])
    assert worker.time(Time("b", cold=True)).elapsed_ns > 0
    with pytest.raises(UsageError, match="unroll=1"):
        worker.time(Time("c", cold=True))
    for name in names:
        worker.drop(name)


def test_short_bricks_are_unrolled_and_long_ones_are_not(worker, save):
    large = "(float[700,700] x0, float[700,700] x1) => (float[700,700] v0) {v0 = MatMul(x0, x1)}"

    short = worker.load(network("short", save("(float[8] x0) => (float[8] v0) {v0 = Relu(x0)}"), unroll=0))
    long = worker.load(network("long", save(large, "large.onnx"), unroll=0))

    assert 1 < short.unroll <= MOST_COPIES
    assert short.unroll & (short.unroll - 1) == 0
    assert long.unroll == 1
    worker.drop("short")
    worker.drop("long")


def test_outputs_and_inputs_are_written_under_any_name(worker, tmp_path):
    value = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Neg", ["a/../file"], ["out"]), onnx.helper.make_node("Cast", ["out"], ["b"], to=16)]
    graph = onnx.helper.make_graph(
        nodes, "g", [value("a/../file", 1, [3])], [value("out", 1, [3]), value("b", 16, [3])]
    )
    path = tmp_path / "odd.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    worker.load(network("odd", path, unroll=4))

    worker.outputs("odd", tmp_path / "out.npz")

    with np.load(tmp_path / "out.npz") as arrays:
        assert set(arrays) == {"a/../file", "out", "b"}
        np.testing.assert_array_equal(arrays["out"], -arrays["a/../file"])
        assert arrays["b"].dtype == np.float32


def test_a_whole_model_is_loaded_with_its_dimensions_bound(worker, tmp_path):
    value = onnx.helper.make_tensor_value_info
    weight = onnx.numpy_helper.from_array(np.ones((3, 500), np.float32), "weight")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["input", "weight"], ["output"])],
        "g", [value("input", 1, ["n", 3])], [value("output", 1, ["n", 500])], [weight],
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)

    bound = {"synthetic": False, "overrides": (("n", 7),)}
    worker.load(network("model", path, **bound))
    worker.outputs("model", tmp_path / "out.npz")

    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["output"].shape == (7, 500)
    with pytest.raises(BackendError, match="dimension n"):
        worker.load(network("model", path, synthetic=False))
    with pytest.raises(UsageError, match="cannot be unrolled"):
        worker.load(network("model", path, unroll=2, **bound))


def test_types_are_found_by_execution_even_beside_what_cannot_run(worker, save):
    path = save(
        "(float[6] x0, float[4,5] w0) => (float[6] v0, int64[N] v2, float[2] v3)"
        "{v0 = Relu(x0) v1 = NonZero(v0) v2 = Shape(v1) v3 = nowhere.Odd(x0)}",
        domains=', "nowhere": 1',
    )

    found = worker.types(file(path), ("x0", "w0", "v0", "v1", "v2", "v3", "nothing"))

    assert found.pop("v1")[0] == "int64"
    assert found == {"x0": ("float", (6,)), "w0": ("float", (4, 5)), "v0": ("float", (6,)), "v2": ("int64", (2,))}


@pytest.mark.parametrize("synthetic", [True, False])
def test_what_is_no_model_is_an_error_that_names_the_file(worker, save, tmp_path, synthetic):
    (tmp_path / "garbage.onnx").write_bytes(b"\x00\x01 nothing of the kind")
    half = save(CONV, "half.onnx")
    half.write_bytes(half.read_bytes()[:60])
    odd = save("(float[2] x0) => (float[2] v0) {v0 = nowhere.Odd(x0)}", "odd.onnx", domains=', "nowhere": 1')

    for name in ("garbage", "half", "none"):
        with pytest.raises(BackendError, match=f"{name}.onnx"):
            worker.load(network("bad", tmp_path / f"{name}.onnx", synthetic=synthetic))
    with pytest.raises(UnsupportedBrick, match=r"Odd|nowhere"):
        worker.load(network("odd", odd, synthetic=synthetic))


@pytest.mark.parametrize(
    "graph",
    [
        "(float[1] x0, int64[2] x1) => (float[60000,30000] v0) {v0 = Expand(x0, x1)}",
        "(float[60000,30000] x0) => (float[60000,30000] v0) {v0 = Relu(x0)}",
        "(float[1,60000] x0, float[60000,30000] w0) => (float[1,30000] v0) {v0 = MatMul(x0, w0)}",
    ],
    ids=["output", "input", "weight"],
)
def test_memory_beyond_the_limit_is_refused_and_the_worker_goes_on(worker, save, graph):
    with pytest.raises(WorkerOutOfMemory):
        worker.load(network("huge", save(graph)))

    worker.load(network("small", save(CONV, "small.onnx")))
    worker.drop("small")


def test_the_greeting_reports_the_effective_settings():
    many = len(physical_cores()) + 1
    with pytest.raises(UsageError, match="pinning=off"):
        start("onnxruntime", {}, threads=many)  # more threads than cores are not bound
    with start("onnxruntime", {"optimization": "basic"}, threads=0) as worker:
        lines = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
        greeting = worker.greeting
        with pytest.raises(UsageError, match="already"):
            worker.ask(Hello(), Greeting, 60)

    assert dict(greeting.stack.options)["optimization"] == "basic"
    assert dict(greeting.stack.options)["pinning"] == "on"
    assert (greeting.threads, greeting.pid) == (len(physical_cores()), worker.pid)
    bound = next(line for line in lines if line.startswith("Cpus_allowed_list:"))
    assert bound.split()[1].isdigit()


@pytest.mark.skipif(len(physical_cores()) < 2, reason="one core")
@pytest.mark.parametrize("options", [{}, {"execution": "parallel", "inter_op": "2"}], ids=["in turn", "parallel"])
def test_threads_have_a_core_each_or_share_all_and_cold_visits_leave_it_so(options):
    with start("onnxruntime", options, threads=2) as worker:
        before = bindings(worker.pid)
        worker.load(network("r", _PRODUCT))
        worker.time(Time("r", cold=True))
        after = bindings(worker.pid)

    pool = [after[thread] for thread in after if thread not in before]
    first, second = (str(core) for core in physical_cores()[:2])
    if options:
        assert {*pool} == {after[worker.pid]}
        assert not after[worker.pid].isdigit()
    else:
        # The thread that infers shapes stays on the first core; it sleeps while networks run.
        assert (after[worker.pid], sorted(pool)) == (first, [first, second])


def bindings(pid: int) -> dict[int, str]:
    """Thread to the processors it may run on."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        found[int(task.name)] = next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:"))
    return found


def test_requests_out_of_place_are_refused_and_the_worker_goes_on():
    replies = answers(
        "nothing", "[1]", '{"op":"dance"}', '{"op":"time"}', '{"op":"time","id":"x","loops":"many"}',
        line_of(Types(file("x"), ("y",))),
        line_of(Hello(Place(Runtime("abacus")))),
        line_of(Hello(Place(Runtime(device="tpu")))),
        line_of(Hello(Place(Runtime.of("onnxruntime", options={"optimization": "some"})))),
        line_of(Bye()),
        line_of(Bye()),
    )  # fmt: skip

    assert [reply["reply"] for reply in replies] == ["refused"] * 9 + ["done"]
    assert [reply["kind"] for reply in replies[:5]] == ["error"] * 5
    assert [reply["kind"] for reply in replies[5:9]] == ["usage"] * 4
    assert "disabled|basic|extended|layout|all" in replies[8]["reason"]
    assert "onnxruntime" in replies[6]["reason"]


def test_any_exception_becomes_one_short_line():
    said = refusal(ValueError("first\nsecond " + "x" * 1000))

    assert said.kind is Refusal.ERROR
    assert said.reason.startswith("ValueError: first second")
    assert len(said.reason) <= 400
    assert refusal(MemoryError()) == Refused(Refusal.MEMORY, "the memory limit was hit")


@pytest.mark.parametrize("backend", ["onnxruntime", "torch", "openvino"])
def test_a_reason_names_no_place_of_this_machine(backend, tmp_path):
    if importlib.util.find_spec(backend) is None:  # not imported here: OpenVINO would send it to others
        pytest.skip(f"{backend} is not installed")
    (tmp_path / "my models").mkdir()
    missing = tmp_path / "my models" / "none.onnx"
    dtype = "int8" if backend == "onnxruntime" else "float32"

    with start(backend, dtype=dtype) as worker, pytest.raises(BackendError, match=r"(?s)^(?!.*(my models|/tmp)).+$"):
        worker.load(network("a", missing, synthetic=False))


def test_a_name_with_slashes_stays_and_a_path_is_shortened(tmp_path):
    text = f"Node /encoder/layer.0/MatMul of {tmp_path}/gone/b.onnx, '/usr/include' and https://onnx.ai/x"

    assert redact_paths(text) == "Node /encoder/layer.0/MatMul of b.onnx, 'include' and https://onnx.ai/x"
    assert redact_paths("/usr/Conv cannot run") == "Conv cannot run"
    assert redact_paths("/usr/layer.0/Conv cannot run") == "/usr/layer.0/Conv cannot run"
    assert redact_paths("the root / of all; 3 /. 4") == "the root / of all; 3 /. 4"


def test_what_a_library_prints_cannot_reach_the_protocol_and_nothing_is_loaded_that_is_not_needed():
    script = (
        "import os, sys, dlbricks.generator.worker.worker\n"
        "heavy = 'sqlalchemy pandas matplotlib networkx click rich torch onnxruntime'.split()\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
        "from dlbricks.generator.worker.serving import _taken_streams\n"
        "with _taken_streams() as (requests, replies):\n"
        "    print('from Python', flush=True); os.system('echo from C'); assert os.read(0, 1) == b''\n"
        "    replies.write(requests.readline())\n"
    )

    done = subprocess.run([sys.executable, "-c", script], input="hello\n", capture_output=True, text=True, check=True)

    assert done.stdout == "hello\n"
    assert done.stderr == "from Python\nfrom C\n"
