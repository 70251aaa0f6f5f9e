"""The parent's handle on a worker: replies, refusals, and every way to die."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from dlbricks.bricks.reference import GEMM
from dlbricks.errors import BackendUnavailable, UsageError, WorkerCrashed, WorkerError, WorkerOutOfMemory, WorkerTimeout
from dlbricks.generator.worker.client import Timeouts, Worker
from dlbricks.generator.worker.messages import Time
from working import network, start

_REFERENCE = network("reference", f"{GEMM}256")


def _ends_with(code: str) -> tuple[str, ...]:
    """A worker that does something else instead of answering its first request."""
    return (sys.executable, "-c", f"import os, signal, sys, time; sys.stdin.readline(); {code}")


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        ("print('about to fall', file=sys.stderr, flush=True); os.kill(os.getpid(), 11)", WorkerCrashed,
         "SIGSEGV: about to fall"),
        ("os._exit(7)", WorkerCrashed, "status 7"),
        ("os.kill(os.getpid(), 9)", WorkerOutOfMemory, "lack of memory"),
        ("time.sleep(600)", WorkerTimeout, "did not finish starting in time"),
        ("print('hello yourself', flush=True); time.sleep(600)", WorkerError, "not a message of the protocol"),
        ("sys.stderr.write('chatter\\n' * 300_000 + 'the cause\\n'); sys.stderr.flush(); os._exit(1)", WorkerCrashed,
         r"status 1: the cause$"),  # more than a pipe holds: only the last line is kept
        (None, WorkerCrashed, "cannot be started"),
    ],
)  # fmt: skip
def test_a_worker_that_does_not_answer_says_why(monkeypatch, code, kind, said):
    if kind is WorkerTimeout:
        monkeypatch.setattr(Timeouts, "hello", 0.5)

    with pytest.raises(kind, match=said):
        start(command=("/no/such/python",) if code is None else _ends_with(code))


def test_a_worker_says_what_it_runs_and_leaves_neither_a_process_nor_a_folder():
    with pytest.raises(UsageError, match="no_such_option"):
        start("onnxruntime", {"no_such_option": "1"})
    with pytest.raises((UsageError, BackendUnavailable), match="no_such_backend"):
        start("no_such_backend")

    with pytest.raises(KeyboardInterrupt), start() as worker:  # noqa: PT012  # what a user does to it
        folder = Path(f"/proc/{worker.pid}/cwd").readlink()
        assert list(folder.iterdir()) == []
        assert (worker.greeting.stack.backend, worker.greeting.threads) == ("onnxruntime", 1)
        assert worker.greeting.pid == worker.pid
        raise KeyboardInterrupt

    assert not psutil.pid_exists(worker.pid)
    assert not folder.exists()
    assert not folder.parent.exists()
    worker.close()  # again does no harm


@pytest.mark.sweep(1)
@pytest.mark.parametrize("then", ["time.sleep(600)", "worker.time(Time('r', loops=10**9), timeout_s=60)"])
def test_a_worker_dies_with_its_parent_idle_or_in_the_middle_of_a_visit(then):
    script = (
        f"import sys, time; sys.path[:0] = {[str(Path(__file__).parents[2] / 'plugins')]!r}\n"
        "from working import network, start\n"
        "from dlbricks.generator.worker.messages import Time\n"
        f"worker = start(); worker.load(network('r', '{GEMM}256')); print(worker.pid, flush=True)\n"
        f"{then}\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.2)  # by then it executes
        parent.kill()

    gone, _ = psutil.wait_procs([child], timeout=20)
    assert gone


def test_the_parent_sleeps_while_the_worker_works(worker):
    """Nothing of the parent may run while a sample is timed: its CPU time stands still."""
    loaded = worker.load(_REFERENCE)
    before, begun = time.process_time(), time.monotonic()

    worker.time(Time("reference", loops=4 + 500_000_000 // min(loaded.first_run_ns, 100_000)))

    assert time.monotonic() - begun > 0.3
    assert time.process_time() - before < 0.05


_LEAVES_A_CHILD = (
    "import subprocess; child = subprocess.Popen(['sleep', '600']); print(child.pid, file=sys.stderr, flush=True); "
)


def test_a_dead_worker_is_seen_though_its_child_holds_the_pipes():
    begun = time.monotonic()

    with pytest.raises(WorkerCrashed, match="status 7") as caught:
        start(command=_ends_with(_LEAVES_A_CHILD + "os._exit(7)"))

    assert time.monotonic() - begun < Timeouts.hello / 4
    _, alive = _ended(int(str(caught.value).rpartition(" ")[2]))
    assert alive == []


def _ended(pid: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    try:
        return psutil.wait_procs([psutil.Process(pid)], timeout=10)
    except psutil.NoSuchProcess:
        return [], []


def test_killing_reaches_the_children_of_a_dead_worker():
    worker = Worker(command=(sys.executable, "-c", f"import os, sys; {_LEAVES_A_CHILD} os._exit(0)"))
    worker._process.wait()
    child = int(worker._process.stderr.read())

    worker.kill()

    _, alive = _ended(child)
    assert alive == []
