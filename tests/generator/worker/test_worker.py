"""The worker as it is: a process of its own, given good and bad requests."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from dlbricks.bricks.reference import GEMM, OVERHEAD
from dlbricks.errors import BackendError
from dlbricks.generator.machine.cores import physical_cores
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.execution.unroll import MOST_COPIES
from dlbricks.generator.worker.redaction import redact_paths
from dlbricks.generator.worker.replies import Done, Greeting, Prepared, Refusal, Refused, Types, Visited, parse_reply
from dlbricks.generator.worker.requests import Bye, Hello, Limits, Outputs, Prepare, Release, Values, Visit
from dlbricks.generator.worker.serving import refusal
from dlbricks.generator.worker.worker import serve

COMMAND = [sys.executable, "-P", "-m", "dlbricks.generator.worker"]
CONV = (
    "(float[1,4,8,8] x0, float[32,4,3,3] w0, float[32] w1) => (float[1,32,8,8] v1)"
    "{v0 = Conv<pads=[1,1,1,1]>(x0, w0, w1) v1 = Relu(v0)}"
)
UNPINNED = {"pinning": "off"}
_PRODUCT = f"{GEMM}256"


class Process:
    """A worker, spoken to line by line."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, text=True
        )

    def ask(self, request, expected):
        self.process.stdin.write(request.to_json() + "\n")
        self.process.stdin.flush()
        return parse_reply(self.process.stdout.readline(), expected)

    def end(self) -> str:
        """Close its input and return what it wrote to standard error."""
        _, errors = self.process.communicate(timeout=20)
        return errors


def start(folder: Path, **options) -> Process:
    worker = Process(folder)
    greeting = worker.ask(Hello("onnxruntime", options=UNPINNED, **options), Greeting)
    assert isinstance(greeting, Greeting), greeting
    return worker


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """One worker for all tests that leave it alive."""
    folder = tmp_path_factory.mktemp("empty")
    made = start(folder, limits=Limits(memory_bytes=600 << 20))
    yield made
    errors = made.end()
    assert made.process.returncode == 0
    assert errors == ""
    assert list(folder.iterdir()) == []


@pytest.fixture
def save(tmp_path):
    """Write a model and return its path."""

    def write(model: onnx.ModelProto, name: str = "brick.onnx") -> str:
        path = tmp_path / name
        path.write_bytes(model.SerializeToString())
        return str(path)

    return write


def answers(*lines: str) -> list[dict]:
    """What a worker in this process replies."""
    sink = io.StringIO()
    serve([line + "\n" for line in lines], sink)
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def test_a_brick_is_prepared_timed_and_released(worker, skeleton_of, save):
    prepared = worker.ask(Prepare(id="a", path=save(skeleton_of(CONV)), synthetic=True, unroll=1), Prepared)
    visited = worker.ask(Visit("a", loops=3, warmups=1), Visited)
    released = worker.ask(Release("a"), Done)
    refused = worker.ask(Visit("a"), Visited)

    assert prepared.unroll == 1
    assert 0 < prepared.first_run_ns < prepared.prepare_ns
    assert 0 < prepared.load_ns < prepared.prepare_ns
    assert prepared.bytes > 32 * 4 * 9 * 4
    assert visited.elapsed_ns > 0
    assert min(visited.compute_ns, visited.memory_ns) > 0
    assert released == Done()
    assert refused.kind is Refusal.USAGE
    assert "'a'" in refused.reason


def test_many_networks_are_kept_at_once(worker, skeleton_of, save):
    path = save(skeleton_of(CONV))
    for name in "bcd":
        assert isinstance(worker.ask(Prepare(id=name, path=path, synthetic=True, unroll=2), Prepared), Prepared)

    visited = [worker.ask(Visit(name), Visited) for name in "bcdbcd"]

    assert all(isinstance(one, Visited) for one in visited)
    for name in "bcd":
        worker.ask(Release(name), Done)


def test_short_bricks_are_unrolled_and_long_ones_are_not(worker, skeleton_of, save):
    relu = skeleton_of("(float[8] x0) => (float[8] v0) {v0 = Relu(x0)}")
    large = skeleton_of("(float[700,700] x0, float[700,700] x1) => (float[700,700] v0) {v0 = MatMul(x0, x1)}")

    short = worker.ask(Prepare(id="short", path=save(relu), synthetic=True), Prepared)
    long = worker.ask(Prepare(id="long", path=save(large, "large.onnx"), synthetic=True), Prepared)

    assert 1 < short.unroll <= MOST_COPIES
    assert short.unroll & (short.unroll - 1) == 0
    assert long.unroll == 1
    worker.ask(Release("short"), Done)
    worker.ask(Release("long"), Done)


@pytest.mark.parametrize("name", [_PRODUCT, OVERHEAD])
def test_built_in_networks_need_no_file(worker, name):
    assert isinstance(worker.ask(Prepare(id=name, path=name, synthetic=True), Prepared), Prepared)
    assert isinstance(worker.ask(Visit(name), Visited), Visited)


def test_cold_visits_are_of_a_single_copy(worker, skeleton_of, save):
    path = save(skeleton_of(CONV))
    worker.ask(Prepare(id="one", path=path, synthetic=True, unroll=1), Prepared)
    worker.ask(Prepare(id="two", path=path, synthetic=True, unroll=2), Prepared)

    cold = worker.ask(Visit("one", cache="cold"), Visited)
    refused = worker.ask(Visit("two", cache="cold"), Visited)
    unknown = worker.ask(Visit("one", cache="lukewarm"), Visited)

    assert cold.elapsed_ns > 0
    assert refused.kind is unknown.kind is Refusal.USAGE
    assert "unroll=1" in refused.reason
    assert "lukewarm" in unknown.reason


def test_outputs_and_inputs_are_written_under_any_name(worker, tmp_path):
    value = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Neg", ["a/../file"], ["out"]), onnx.helper.make_node("Cast", ["out"], ["b"], to=16)]
    graph = onnx.helper.make_graph(
        nodes, "g", [value("a/../file", 1, [3])], [value("out", 1, [3]), value("b", 16, [3])]
    )
    path = tmp_path / "odd.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    worker.ask(Prepare(id="odd", path=str(path), synthetic=True, unroll=4), Prepared)

    done = worker.ask(Outputs("odd", str(tmp_path / "out.npz")), Done)

    with np.load(tmp_path / "out.npz") as arrays:
        assert set(arrays) == {"a/../file", "out", "b"}
        np.testing.assert_array_equal(arrays["out"], -arrays["a/../file"])
        assert arrays["b"].dtype == np.float32
    assert done == Done()


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

    prepared = worker.ask(Prepare(id="model", path=str(path), synthetic=False, overrides=(("n", 7),)), Prepared)
    worker.ask(Outputs("model", str(tmp_path / "out.npz")), Done)
    unbound = worker.ask(Prepare(id="model", path=str(path), synthetic=False), Prepared)
    unrolled = worker.ask(
        Prepare(id="model", path=str(path), synthetic=False, unroll=2, overrides=(("n", 7),)), Prepared
    )

    assert prepared.unroll == 1
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["output"].shape == (7, 500)
    assert unbound.kind is Refusal.ERROR
    assert "dimension n" in unbound.reason
    assert unrolled.kind is Refusal.USAGE


def test_types_are_found_by_execution_even_beside_what_cannot_run(worker, skeleton_of, save):
    path = save(
        skeleton_of(
            "(float[6] x0, float[4,5] w0) => (float[6] v0, int64[N] v2, float[2] v3)"
            "{v0 = Relu(x0) v1 = NonZero(v0) v2 = Shape(v1) v3 = nowhere.Odd(x0)}",
            domains=', "nowhere": 1',
        )
    )

    found = worker.ask(Values(path, ("x0", "w0", "v0", "v1", "v2", "v3", "nothing")), Types)

    assert found.types["x0"] == ("float", (6,))
    assert found.types["w0"] == ("float", (4, 5))
    assert found.types["v0"] == ("float", (6,))
    assert found.types["v1"][0] == "int64"
    assert found.types["v2"] == ("int64", (2,))
    assert not {"v3", "nothing"} & set(found.types)


BAD = {
    "empty": (b"", "empty"),
    "garbage": (b"\x00\x01 nothing of the kind", "garbage"),
    "text": (b"{}" * 100, "text"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("synthetic", [True, False])
def test_what_is_no_model_is_an_error_that_names_the_file(worker, tmp_path, case, synthetic):
    data, name = BAD[case]
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(data)

    refused = worker.ask(Prepare(id="bad", path=str(path), synthetic=synthetic), Prepared)

    assert refused.kind is Refusal.ERROR
    assert f"{name}.onnx" in refused.reason
    assert "\n" not in refused.reason


def test_a_missing_file_is_an_error(worker, tmp_path):
    refused = worker.ask(Prepare(id="bad", path=str(tmp_path / "none.onnx"), synthetic=True), Prepared)

    assert refused.kind is Refusal.ERROR
    assert "none.onnx" in refused.reason


def test_a_truncated_brick_is_an_error(worker, skeleton_of, tmp_path):
    path = tmp_path / "half.onnx"
    data = skeleton_of(CONV).SerializeToString()
    path.write_bytes(data[: len(data) // 2])

    assert worker.ask(Prepare(id="bad", path=str(path), synthetic=True), Prepared).kind is Refusal.ERROR


def test_an_unknown_operator_is_unsupported(worker, skeleton_of, save):
    model = skeleton_of("(float[2] x0) => (float[2] v0) {v0 = nowhere.Odd(x0)}", domains=', "nowhere": 1')

    refused = worker.ask(Prepare(id="odd", path=save(model), synthetic=True), Prepared)

    assert refused.kind is Refusal.UNSUPPORTED
    assert "Odd" in refused.reason or "nowhere" in refused.reason


@pytest.mark.parametrize(
    "graph",
    [
        "(float[1] x0, int64[2] x1) => (float[60000,30000] v0) {v0 = Expand(x0, x1)}",
        "(float[60000,30000] x0) => (float[60000,30000] v0) {v0 = Relu(x0)}",
        "(float[1,60000] x0, float[60000,30000] w0) => (float[1,30000] v0) {v0 = MatMul(x0, w0)}",
    ],
    ids=["output", "input", "weight"],
)
def test_memory_beyond_the_limit_is_refused_and_the_worker_goes_on(worker, skeleton_of, save, graph):
    refused = worker.ask(Prepare(id="huge", path=save(skeleton_of(graph)), synthetic=True), Prepared)
    after = worker.ask(Prepare(id="small", path=save(skeleton_of(CONV), "small.onnx"), synthetic=True), Prepared)

    assert refused.kind is Refusal.MEMORY
    assert isinstance(after, Prepared)
    worker.ask(Release("small"), Done)


def test_the_greeting_reports_the_effective_settings(tmp_path):
    worker = Process(tmp_path)

    greeting = worker.ask(Hello("onnxruntime", options={"optimization": "basic"}, threads=0), Greeting)
    cores = subprocess.run(["cat", f"/proc/{greeting.pid}/status"], capture_output=True, text=True, check=True).stdout
    again = worker.ask(Hello("onnxruntime"), Greeting)
    bye = worker.ask(Bye(), Done)

    assert dict(greeting.stack.options)["optimization"] == "basic"
    assert dict(greeting.stack.options)["pinning"] == "on"
    assert greeting.threads >= 1
    assert greeting.pid == worker.process.pid
    bound = next(line for line in cores.splitlines() if line.startswith("Cpus_allowed_list:"))
    assert bound.split()[1].isdigit()
    assert again.kind is Refusal.USAGE
    assert bye == Done()
    assert worker.process.wait(20) == 0
    worker.end()


@pytest.mark.skipif(len(physical_cores()) < 2, reason="one core")
def test_each_thread_has_a_core_of_its_own_and_cold_visits_leave_it_there(tmp_path):
    worker = Process(tmp_path)
    worker.ask(Hello("onnxruntime", threads=2), Greeting)
    before = bindings(worker.process.pid)
    worker.ask(Prepare(id="r", path=_PRODUCT, synthetic=True, unroll=1), Prepared)

    worker.ask(Visit("r", cache="cold"), Visited)

    after = bindings(worker.process.pid)
    pool = [after[thread] for thread in after if thread not in before]
    first, second = (str(core) for core in physical_cores()[:2])
    assert after[worker.process.pid] == first
    assert pool == [second]
    worker.end()


@pytest.mark.skipif(len(physical_cores()) < 2, reason="one core")
def test_threads_of_parallel_execution_share_all_cores(tmp_path):
    worker = Process(tmp_path)
    worker.ask(Hello("onnxruntime", threads=2, options={"execution": "parallel", "inter_op": "2"}), Greeting)
    before = bindings(worker.process.pid)
    worker.ask(Prepare(id="r", path=_PRODUCT, synthetic=True, unroll=1), Prepared)

    worker.ask(Visit("r", cache="cold"), Visited)

    after = bindings(worker.process.pid)
    pools = {after[thread] for thread in after if thread not in before}
    assert pools == {after[worker.process.pid]}
    assert not after[worker.process.pid].isdigit()
    worker.end()


def test_more_threads_than_cores_are_not_bound(tmp_path):
    many = len(physical_cores()) + 1
    worker = Process(tmp_path)

    refused = worker.ask(Hello("onnxruntime", threads=many), Refused)
    greeting = worker.ask(Hello("onnxruntime", threads=many, options=UNPINNED), Greeting)

    assert refused.kind is Refusal.USAGE
    assert "pinning=off" in refused.reason
    assert greeting.threads == many
    worker.end()


def bindings(pid: int) -> dict[int, str]:
    """Thread to the processors it may run on."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        found[int(task.name)] = next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:"))
    return found


def test_requests_out_of_place_are_refused_and_the_worker_goes_on():
    replies = answers(
        "nothing", "[1]", '{"op":"dance"}', '{"op":"visit"}', '{"op":"visit","id":"x","loops":"many"}',
        Values("x", ()).to_json(),
        Hello("abacus").to_json(),
        Hello("onnxruntime", device="tpu").to_json(),
        Hello("onnxruntime", options={"optimization": "some"}).to_json(),
        Bye().to_json(),
        Bye().to_json(),
    )  # fmt: skip

    assert [reply["ok"] for reply in replies] == [False] * 9 + [True]
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

    with (
        Worker.start(backend, options=UNPINNED, dtype=dtype) as worker,
        pytest.raises(BackendError, match=r"(?s)^(?!.*(my models|/tmp)).+$"),
    ):
        worker.prepare(Prepare(id="a", path=str(missing), synthetic=False))


def test_a_name_with_slashes_stays_and_a_path_is_shortened(tmp_path):
    text = f"Node /encoder/layer.0/MatMul of {tmp_path}/gone/b.onnx, '/usr/include' and https://onnx.ai/x"

    assert redact_paths(text) == "Node /encoder/layer.0/MatMul of b.onnx, 'include' and https://onnx.ai/x"
    assert redact_paths("/usr/Conv cannot run") == "Conv cannot run"
    assert redact_paths("/usr/layer.0/Conv cannot run") == "/usr/layer.0/Conv cannot run"
    assert redact_paths("the root / of all; 3 /. 4") == "the root / of all; 3 /. 4"


def test_what_a_library_prints_cannot_reach_the_protocol():
    script = (
        "import os\n"
        "from dlbricks.generator.worker.sandbox import take_streams\n"
        "with take_streams() as (requests, replies):\n"
        "    print('from Python', flush=True); os.system('echo from C'); assert os.read(0, 1) == b''\n"
        "    replies.write(requests.readline())\n"
    )

    done = subprocess.run([sys.executable, "-c", script], input="hello\n", capture_output=True, text=True, check=True)

    assert done.stdout == "hello\n"
    assert done.stderr == "from Python\nfrom C\n"


def test_a_worker_loads_nothing_that_it_does_not_need():
    script = (
        "import sys, dlbricks.generator.worker.worker\n"
        "heavy = 'alembic sqlalchemy pandas matplotlib networkx click rich torch onnxruntime'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_worker_dies_with_its_parent_in_the_middle_of_a_visit(tmp_path):
    script = (
        "import subprocess, sys, time\n"
        f"worker = subprocess.Popen({COMMAND!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
        "def ask(text):\n"
        "    worker.stdin.write(text + chr(10)); worker.stdin.flush()\n"
        f"ask({Hello('onnxruntime', options=UNPINNED).to_json()!r}); worker.stdout.readline()\n"
        f"ask({Prepare(id='r', path=_PRODUCT, synthetic=True).to_json()!r}); worker.stdout.readline()\n"
        f"ask({Visit('r', loops=10**9).to_json()!r})\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    pid = int(parent.stdout.readline())

    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()

    deadline = time.monotonic() + 20
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(pid)


def running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
