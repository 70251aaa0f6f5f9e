"""The parent's handle on a worker: replies, refusals, and every way to die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from dlbricks.bricks.reference import GEMM
from dlbricks.errors import (
    BackendError,
    BackendUnavailable,
    UsageError,
    WorkerCrashed,
    WorkerError,
    WorkerOutOfMemory,
    WorkerTimeout,
)
from dlbricks.generator.worker.client import Timeouts, Worker
from dlbricks.generator.worker.requests import Prepare, Visit
from dlbricks.models.skeleton import mark_weight

_REFERENCE = Prepare(id="reference", path=f"{GEMM}256", synthetic=True, unroll=1)


def _ends_with(code: str) -> tuple[str, ...]:
    """A worker that does something else instead of answering its first request."""
    return (sys.executable, "-c", f"import os, signal, sys, time; sys.stdin.readline(); {code}")


def _write_model(path: Path, text: str, *, weights: tuple[str, ...] = ()) -> Path:
    model = onnx.parser.parse_model(text)
    for value in model.graph.input:
        if value.name in weights:
            mark_weight(value)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def worker():
    with Worker.start("onnxruntime") as started:
        yield started


def test_a_worker_says_what_it_runs(worker):
    assert worker.greeting.stack.backend == "onnxruntime"
    assert worker.greeting.threads == 1
    assert worker.greeting.pid == worker.pid


def test_a_network_is_prepared_visited_and_released(worker):
    prepared = worker.prepare(_REFERENCE)
    visited = worker.visit(Visit("reference", loops=3, warmups=1))

    assert prepared.unroll == 1
    assert 0 < prepared.load_ns + prepared.first_run_ns <= prepared.prepare_ns
    assert visited.elapsed_ns > 0
    worker.release("reference")
    with pytest.raises(UsageError, match="no network"):
        worker.visit(Visit("reference"))


def test_outputs_are_those_of_the_network(worker, tmp_path):
    path = _write_model(
        tmp_path / "m.onnx", '<ir_version: 10, opset_import: ["": 21]> g (float[4] x0) => (float[4] v0) {v0 = Neg(x0)}'
    )
    worker.prepare(Prepare(id="neg", path=str(path), synthetic=True, unroll=1))

    worker.outputs("neg", tmp_path / "outputs.npz")

    with np.load(tmp_path / "outputs.npz") as found:
        np.testing.assert_array_equal(found["v0"], -found["x0"])


def test_values_are_typed_by_execution(worker, tmp_path):
    path = _write_model(
        tmp_path / "m.onnx",
        '<ir_version: 10, opset_import: ["": 21]> g (float[6] x0) => (int64[1, n] v0) {v0 = NonZero(x0)}',
    )

    found = worker.values(path, ["v0"]).types

    assert found["v0"][0] == "int64"
    assert len(found["v0"][1]) == 2


def test_a_broken_file_is_refused_and_the_worker_goes_on(worker, tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")

    with pytest.raises(BackendError):
        worker.prepare(Prepare(id="broken", path=str(path), synthetic=False, unroll=1))

    assert worker.prepare(_REFERENCE).bytes > 0


def test_a_wrong_option_is_a_usage_error():
    with pytest.raises(UsageError, match="no_such_option"):
        Worker.start("onnxruntime", options={"no_such_option": "1"})


def test_an_unknown_backend_is_named():
    with pytest.raises((UsageError, BackendUnavailable), match="no_such_backend"):
        Worker.start("no_such_backend")


def test_a_crash_reports_signal_and_the_end_of_stderr():
    command = _ends_with("print('about to fall', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGSEGV)")

    with pytest.raises(WorkerCrashed, match="SIGSEGV: about to fall"):
        Worker.start("onnxruntime", command=command)


def test_an_exit_reports_its_status():
    with pytest.raises(WorkerCrashed, match="status 7"):
        Worker.start("onnxruntime", command=_ends_with("os._exit(7)"))


def test_being_killed_counts_as_lack_of_memory():
    with pytest.raises(WorkerOutOfMemory, match="lack of memory"):
        Worker.start("onnxruntime", command=_ends_with("os.kill(os.getpid(), signal.SIGKILL)"))


def test_a_worker_that_hangs_is_killed(monkeypatch):
    monkeypatch.setattr(Timeouts, "hello", 0.5)

    with pytest.raises(WorkerTimeout, match="'hello' in time"):
        Worker.start("onnxruntime", command=_ends_with("time.sleep(600)"))


def test_garbage_is_no_reply():
    with pytest.raises(WorkerError, match="not a line of JSON"):
        Worker.start("onnxruntime", command=_ends_with("print('hello yourself', flush=True); time.sleep(600)"))


def test_a_program_that_is_not_there():
    with pytest.raises(WorkerCrashed, match="cannot be started"):
        Worker.start("onnxruntime", command=("/no/such/python",))


def test_much_standard_error_blocks_nobody():
    """More than a pipe holds; only the last line is kept."""
    command = _ends_with("sys.stderr.write('chatter\\n' * 300_000 + 'the cause\\n'); sys.stderr.flush(); os._exit(1)")

    with pytest.raises(WorkerCrashed, match=r"status 1: the cause$"):
        Worker.start("onnxruntime", command=command)


def test_the_memory_limit_costs_one_network(tmp_path):
    path = _write_model(
        tmp_path / "large.onnx",
        '<ir_version: 10, opset_import: ["": 21]>'
        " g (float[1, 16384] x0, float[16384, 16384] w0) => (float[1, 16384] v0) {v0 = MatMul(x0, w0)}",
        weights=("w0",),
    )
    with Worker.start("onnxruntime", memory_bytes=200 << 20) as worker, pytest.raises(WorkerOutOfMemory):
        worker.prepare(Prepare(id="large", path=str(path), synthetic=True, unroll=1))


def test_the_working_folder_is_empty_and_removed():
    with Worker.start("onnxruntime") as worker:
        folder = Path(f"/proc/{worker.pid}/cwd").readlink()
        assert list(folder.iterdir()) == []

    assert not folder.exists()
    assert not folder.parent.exists()


def test_closing_leaves_no_process():
    worker = Worker.start("onnxruntime")
    worker.close()

    assert not psutil.pid_exists(worker.pid)
    worker.close()  # again does no harm


def test_an_exception_of_the_parent_ends_the_worker():
    with pytest.raises(KeyboardInterrupt), Worker.start("onnxruntime") as worker:
        raise KeyboardInterrupt

    assert not psutil.pid_exists(worker.pid)


def test_a_worker_of_a_dead_parent_dies():
    script = (
        "import sys, time\n"
        "from dlbricks.generator.worker.client import Worker\n"
        "worker = Worker.start('onnxruntime')\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)

    gone, _ = psutil.wait_procs([child], timeout=10)
    assert gone


def test_the_parent_sleeps_while_the_worker_works(worker):
    """Nothing of the parent may run while a sample is timed: its CPU time stands still."""
    prepared = worker.prepare(_REFERENCE)
    before, begun = time.process_time(), time.monotonic()

    worker.visit(Visit("reference", loops=4 + 500_000_000 // min(prepared.first_run_ns, 100_000)))

    assert time.monotonic() - begun > 0.3
    assert time.process_time() - before < 0.05


_LEAVES_A_CHILD = (
    "import subprocess; child = subprocess.Popen(['sleep', '600']); print(child.pid, file=sys.stderr, flush=True); "
)


def test_a_dead_worker_is_seen_though_its_child_holds_the_pipes():
    begun = time.monotonic()

    with pytest.raises(WorkerCrashed, match="status 7") as caught:
        Worker.start("onnxruntime", command=_ends_with(_LEAVES_A_CHILD + "os._exit(7)"))

    assert time.monotonic() - begun < Timeouts.hello / 4
    _, alive = _ended(int(str(caught.value).rpartition(" ")[2]))
    assert alive == []


def test_killing_reaches_the_children_of_a_dead_worker():
    worker = Worker(command=(sys.executable, "-c", f"import os, sys; {_LEAVES_A_CHILD} os._exit(0)"))
    worker._process.wait()
    child = int(worker._process.stderr.read())

    worker.kill()

    _, alive = _ended(child)
    assert alive == []


def _ended(pid: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    try:
        return psutil.wait_procs([psutil.Process(pid)], timeout=10)
    except psutil.NoSuchProcess:
        return [], []
