"""The parent's handle on worker processes: requests, replies, time limits, causes of death, and workers by place."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Generic, Self, TypeVar

from ... import errors
from ...db.values import KernelView
from ...models.runnable import Runnable
from ..backends.base import WORKER_COMMAND
from ..backends.custom_ops import files_of
from ..backends.registry import get
from . import messages
from .serving import redact_paths

_RING_BYTES = 4096
"""Bytes of the worker's standard error that are kept."""
_READ_BYTES = 1 << 16
_LONGEST_REPLY = 1 << 28
"""Limit on a reply in bytes; a longer reply means that the worker ran wild."""
_LOADED_BYTES_PER_S = 5e7
"""Lower bound on the speed of disk and packing in bytes per second, for time limits."""
_OPTIMISED_BYTES_PER_S = 2e7
"""Lower bound on the speed of loading with the optimiser in bytes per second, for time limits."""
_IN_WORDS = {
    "hello": "starting", "load": "loading", "time": "an execution", "outputs": "an execution", "types": "an execution",
    "trace": "an execution", "profile": "an execution under its profiler", "extract": "the graph that it executes",
}  # fmt: skip
"""What a worker is asked for, by request, in messages to users."""

_LONGEST_WAIT_S = 7 * 24 * 3600.0
"""Limit on one wait in seconds: a damaged file may claim a size that gives more than the system call accepts."""

_R = TypeVar("_R", bound=messages.Reply)

_RUNTIMES = (
    "OMP_", "GOMP_", "KMP_", "LIBOMP_", "TBB_", "MKL_", "MKLDNN_", "DNNL_", "ONEDNN_", "OPENBLAS_", "GOTO_", "BLIS_",
    "ORT_", "OV_", "OPENVINO_", "MXNET_", "TVM_", "ATEN_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "PYTORCH_",
    "TRITON_", "LRU_CACHE_CAPACITY", "NPY_", "NUMPY_MADVISE_",
)  # fmt: skip
"""Variables by which runtimes and the libraries inside them choose threads, kernels, precisions and pages."""

_GPU = (
    "CUBLAS_", "CUBLASLT_", "CUDNN_", "CUPY_TF32", "CUPY_ACCELERATORS", "NVIDIA_TF32_OVERRIDE", "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "CUDA_FORCE_PTX_JIT", "CUDA_DISABLE_PTX_JIT",
    "CUDA_INJECTION", "NVTX_INJECTION",
)  # fmt: skip
"""The same for a GPU; the last two load a profiler into the process. The user still chooses the visible GPUs."""

_ALLOCATORS = ("MALLOC_", "GLIBC_TUNABLES", "TCMALLOC_", "JEMALLOC_", "_RJEM_MALLOC_", "MIMALLOC_")
"""Variables of memory allocators: arenas, thresholds of mmap and trim, huge pages, checks of every block."""

_LOADER = "LD_"
"""Variables of the dynamic linker: preloaded libraries (another allocator, a tracer), time of symbol binding."""

_PYTHON = (
    "PYTHONMALLOC", "PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONPERFSUPPORT", "PYTHON_PERF_JIT_SUPPORT",
    "PYTHON_JIT", "PYTHON_GIL",
)  # fmt: skip
"""Variables that slow or change the interpreter that calls the runtime."""

_DROPPED = (*_RUNTIMES, *_GPU, *_ALLOCATORS, _LOADER, *_PYTHON)

_KEPT = frozenset({
    "ORT_DISABLE_TELEMETRY", "LD_LIBRARY_PATH", "KMP_DUPLICATE_LIB_OK", "TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH",
    "CUDNN_PATH",
})  # fmt: skip
"""Variables that are kept: they do not change latencies, and some runtimes may not load without them."""

_PAGES = {"NUMPY_MADVISE_HUGEPAGE": "0"}
"""NumPy requests huge pages for its arrays if the kernel grants them on request. A runtime that reuses the memory of a
freed array may then get its weights on huge pages by accident, unlike a model that it loads alone. Pages decide a
quarter of the time of a decoder that reads its weights for one token (docs/explanation/measuring.md)."""

_QUIET = {"ORT_DISABLE_TELEMETRY": "1"}
"""Defaults that the user can override. Otherwise ONNX Runtime writes an identity of the machine and a database of its
executions into the home folder at import."""


class Timeouts:
    """Seconds that a worker may take for each kind of request."""

    hello = 60.0
    """Loading the runtime."""
    load = 120.0
    """Loading a network and running it once; callers give large models more."""
    time = 120.0
    """One execution."""
    bye = 2.0

    @classmethod
    def loading(cls, size_bytes: int, *, bound_s: float = math.inf) -> float:
        """Return ``load``, or the caller's smaller limit, plus time for large files."""
        return min(cls.load, bound_s) + size_bytes / _LOADED_BYTES_PER_S

    @classmethod
    def optimising(cls, weight_bytes: int) -> float:
        """Return ``load`` plus time for a large model that is written as executed graph or profiled."""
        return cls.load + weight_bytes / _OPTIMISED_BYTES_PER_S


class _Ended(ABC):
    """What ends with its context: in order, or at once after an error."""

    @abstractmethod
    def close(self) -> None:
        """End in order."""

    @abstractmethod
    def kill(self) -> None:
        """End now."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()


class Worker(_Ended):
    """A worker process, from its start to its end.

    The parent blocks in ``select`` while the worker works: no thread, no polling, no timer. Standard error is read
    into a small ring, and only its last line is shown, in the reason of a failure. The worker runs in an empty folder
    and in a separate session, so that Ctrl-C reaches the parent alone, and its priority is its own.

    Args:
        command: Program and arguments; a runtime with pinned versions has a separate environment.

    Attributes:
        greeting: Its first reply; None before that.
        failed: True if it died, did not answer in time, or hit its memory limit: replace it.

    Raises:
        WorkerCrashed: It could not be started.
    """

    def __init__(self, *, command: Sequence[str] = WORKER_COMMAND) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="dlbricks-worker-"))
        work, temporary = self._folder / "work", self._folder / "tmp"
        work.mkdir()
        temporary.mkdir()
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=work,
                env=worker_environment(temporary),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise errors.WorkerCrashed(f"the worker {command[0]} cannot be started: {error.strerror}") from error
        self._pending = bytearray()
        self._ring = bytearray()
        self._selector = selectors.DefaultSelector()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None  # noqa: S101  # both were asked for as pipes
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream.fileno(), selectors.EVENT_READ, stream is self._process.stdout)
        self._ending = None
        if hasattr(os, "pidfd_open"):
            # Ready when the worker ends: a process that it started may keep its output open.
            self._ending = os.pidfd_open(self._process.pid)
            self._selector.register(self._ending, selectors.EVENT_READ)
        self._killed = False
        self.failed = False
        self.greeting: messages.Greeting | None = None

    @classmethod
    def start(cls, hello: messages.Hello, *, command: Sequence[str] = WORKER_COMMAND) -> Self:
        """Start a worker and greet it.

        Raises:
            BackendUnavailable: The runtime is not usable here, or the system does not support an option.
            UsageError: An option is unknown or has a wrong value, or the backend does not support the precision.
            WorkerError: The worker died or did not answer.
        """
        worker = cls(command=command)
        try:
            worker.greeting = worker.ask(hello, messages.Greeting, Timeouts.hello)
        except BaseException:
            worker.kill()
            raise
        return worker

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def stderr_tail(self) -> str:
        """Last line of its standard error, or nothing."""
        lines = self._ring.decode(errors="replace").split("\n")
        return next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")

    def load(self, request: messages.Load, *, timeout_s: float = Timeouts.load) -> messages.Loaded:
        """Load a network, or a pack of bricks.

        Raises:
            UnsupportedBrick: The runtime cannot express it.
            BackendError: The runtime or the file is at fault.
            WorkerError: The worker died, hung, or hit its memory limit.
        """
        return self.ask(request, messages.Loaded, timeout_s)

    def time(self, request: messages.Time, *, timeout_s: float = Timeouts.time) -> messages.Timed:
        """Execute a pack or a network between two probes; raises as ``load``."""
        return self.ask(request, messages.Timed, timeout_s)

    def read(self, name: str, *, timeout_s: float = Timeouts.load) -> messages.Readings:
        """Return the times of a pack's bricks; raises as ``load``."""
        return self.ask(messages.Read(name), messages.Readings, timeout_s)

    def drop(self, name: str) -> None:
        """Drop a network or a pack; raises as ``load``."""
        self.ask(messages.Drop(name), messages.Done, Timeouts.load)

    def outputs(self, name: str, path: Path, *, timeout_s: float = Timeouts.time) -> None:
        """Write inputs and outputs of one execution to an npz file; raises as ``load``."""
        self.ask(messages.Outputs(name, str(path)), messages.Done, timeout_s)

    def types(
        self, file: messages.NetworkFile, names: Sequence[str], *, timeout_s: float = Timeouts.load
    ) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """Execute a skeleton once and return the types of some values; raises as ``load``."""
        return self.ask(messages.Types(file, tuple(names)), messages.Typed, timeout_s).types

    def extract(
        self, files: Sequence[messages.NetworkFile], folders: Sequence[Path], *, timeout_s: float = Timeouts.load
    ) -> None:
        """Write the graph that the runtime executes for a model, at several sizes of its inputs, to a folder each.

        ``executed.onnx`` contains the type of every value. ``stage<i>.onnx``, nearest to the source first, contain the
        types of inputs only. Raises as ``load``, and UsageError if the backend does not report the graph.
        """
        self.ask(messages.Extract((*files,), tuple(map(str, folders))), messages.Done, timeout_s)

    def profile(self, file: messages.NetworkFile, executions: int, *, timeout_s: float) -> KernelView:
        """Run a network under the runtime's profiler; raises as ``extract``."""
        return self.ask(messages.Profile(file, executions), messages.Profiled, timeout_s).view

    def trace(self, file: messages.NetworkFile, *, timeout_s: float) -> Mapping[str, int]:
        """Run a network unchanged and count each node's executions by name; raises as ``extract``."""
        return self.ask(messages.Trace(file), messages.Traced, timeout_s).counts

    def occupy(self, request: messages.Occupy, *, timeout_s: float = Timeouts.load) -> messages.Occupied:
        """Load a network alone and execute it again and again; raises as ``load``."""
        return self.ask(request, messages.Occupied, timeout_s)

    def decode(self, request: messages.Decode, *, timeout_s: float = Timeouts.load) -> None:
        """Load a decoder, to run it token by token; raises as ``load``."""
        self.ask(request, messages.Done, timeout_s)

    def answer(self, request: messages.Answer, *, timeout_s: float = Timeouts.load) -> messages.Answered:
        """Execute a loaded decoder token by token; raises as ``load``."""
        return self.ask(request, messages.Answered, timeout_s)

    def close(self) -> None:
        """End the worker in order; kill it if it does not respond."""
        try:
            if self._process.poll() is None:
                self.ask(messages.Bye(), messages.Done, Timeouts.bye)
                self._process.wait(Timeouts.bye)
        except (errors.WorkerError, errors.BackendError, subprocess.TimeoutExpired):
            pass  # the worker needs no reply any more; kill() below makes sure that it ends
        finally:
            self.kill()

    def kill(self) -> None:
        """End the worker and all processes that it started, now."""
        if self._killed:
            return  # the system may have given its number to another group by now
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the group outlives its leader
        self._process.wait()
        self._selector.close()
        if self._ending is not None:
            os.close(self._ending)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def ask(self, request: messages.Request, expected: type[_R], timeout_s: float) -> _R:
        """Send a request and wait for its reply; raises as ``load``."""
        assert self._process.stdin is not None  # noqa: S101
        deadline = time.monotonic() + timeout_s
        try:
            try:
                self._process.stdin.write(messages.line_of(request))
            except (BrokenPipeError, ValueError) as error:
                raise self._exit_error() from error
            reply: _R | messages.Refused = messages.read_line(
                self._read_line(deadline, request.op), expected | messages.Refused
            )
            if isinstance(reply, messages.Refused):
                raise refusal_of(reply.kind, reply.reason)
        except errors.WorkerError:
            self.failed = True
            raise
        return reply

    def _read_line(self, deadline: float, op: str) -> bytes:
        """Block until the reply is complete, reading standard error meanwhile."""
        while b"\n" not in self._pending:
            remaining_s = deadline - time.monotonic()
            ready = self._selector.select(min(remaining_s, _LONGEST_WAIT_S)) if remaining_s > 0 else []
            if not ready:
                self.kill()
                raise errors.WorkerTimeout(
                    self._with_stderr_tail(
                        f"the runtime did not finish {_IN_WORDS.get(op, op)} in time and was stopped"
                    )
                )
            for key, _ in ready:
                if key.fd != self._ending:
                    self._drain(key.fd, reply=bool(key.data))
            if {key.fd for key, _ in ready} == {self._ending}:
                raise self._exit_error()  # its output has been read completely
        line, _, rest = bytes(self._pending).partition(b"\n")
        self._pending = bytearray(rest)
        return line

    def _drain(self, descriptor: int, *, reply: bool) -> None:
        chunk = os.read(descriptor, _READ_BYTES)
        if reply:
            if not chunk or len(self._pending) > _LONGEST_REPLY:
                raise self._exit_error()
            self._pending += chunk
        elif chunk:
            self._ring += chunk
            del self._ring[:-_RING_BYTES]
        else:
            self._selector.unregister(descriptor)

    def _exit_error(self) -> errors.WorkerError:
        """Return the error that says why the worker ended; kill the rest of its process group."""
        assert self._process.stderr is not None  # noqa: S101
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(Timeouts.bye)  # its output closed: it is about to end
        with contextlib.suppress(BlockingIOError, ValueError):
            while chunk := os.read(self._process.stderr.fileno(), _READ_BYTES):
                self._ring += chunk
        del self._ring[:-_RING_BYTES]
        self.kill()
        status = self._process.returncode
        if status < 0:
            # Before this line only the kernel's out-of-memory killer sends SIGKILL.
            if -status == signal.SIGKILL:
                return errors.WorkerOutOfMemory(
                    self._with_stderr_tail("the worker was killed, probably for lack of memory")
                )
            return errors.WorkerCrashed(self._with_stderr_tail(f"the worker died of {signal.Signals(-status).name}"))
        return errors.WorkerCrashed(self._with_stderr_tail(f"the worker exited with status {status}"))

    def _with_stderr_tail(self, text: str) -> str:
        return f"{text}: {redact_paths(self.stderr_tail)}" if self.stderr_tail else text


def refusal_of(
    kind: messages.Refusal | None, reason: str
) -> errors.UsageError | errors.BackendError | errors.WorkerOutOfMemory:
    """Return the error for a refusal."""
    kinds: dict[messages.Refusal, type[errors.UsageError | errors.BackendError | errors.WorkerOutOfMemory]] = {
        messages.Refusal.UNSUPPORTED: errors.UnsupportedBrick,
        messages.Refusal.MEMORY: errors.WorkerOutOfMemory,
        messages.Refusal.USAGE: errors.UsageError,
        messages.Refusal.UNAVAILABLE: errors.BackendUnavailable,
    }
    return (errors.BackendError if kind is None else kinds.get(kind, errors.BackendError))(reason)


def worker_environment(temporary: Path, *, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of a worker.

    Measurements must record their conditions, and stacks do not record environment variables: an effect must be an
    option of the backend. The variables are removed before the worker starts, since the C library, the dynamic linker
    and the interpreter read theirs once, at the start.

    Args:
        temporary: The worker's own temporary folder, removed with all files that a runtime leaves there.
        environment: The variables to choose from; None: those of this process.
    """
    variables = os.environ if environment is None else environment
    inherited = {name: value for name, value in variables.items() if name in _KEPT or not name.startswith(_DROPPED)}
    return {**_QUIET, **inherited, **_PAGES, "TMPDIR": str(temporary)}


# Workers by place: each starts when it is first needed, again after it failed, and ends with its context.


MODEL_MEMORY_BYTES = 16 << 30
"""Memory limit of a worker that loads whole models."""


def start_worker(place: messages.Place, memory_bytes: int = MODEL_MEMORY_BYTES) -> Worker:
    """Start a worker at a place, and greet it.

    Raises:
        UsageError: An option has a wrong value, or the backend does not exist.
        BackendUnavailable: The runtime cannot be used here.
        WorkerError: It could not be started.
    """
    command: Sequence[str] = get(place.runtime.backend).command() if place.command is None else place.command
    libraries = files_of(dict(place.runtime.options))
    return Worker.start(messages.Hello(place, memory_bytes, libraries), command=command)


def file_of(
    runnable: Runnable, *, seed: int = 0, as_is: bool = False, in_model: bool = False, variant: str = ""
) -> messages.NetworkFile:
    """Return a network in the form of the protocol."""
    return messages.NetworkFile(
        # Not resolved: external data is found beside a link, as in a hub's cache.
        path=str(runnable.path if str(runnable.path).startswith("@") else runnable.path.absolute()),
        synthetic=runnable.synthetic,
        overrides=runnable.overrides,
        inputs=runnable.inputs,
        seed=seed,
        as_is=as_is,
        in_model=in_model,
        variant=variant,
        feeds=tuple(str(path.absolute()) for path in (*runnable.feeds[:1], runnable.partner) if path is not None),
    )


_Place = TypeVar("_Place", bound=Hashable)


class Workers(_Ended, Generic[_Place]):
    """One worker at each place, kept from one request to the next.

    If a worker died, hung or hit its memory limit (``Worker.failed``), the next request starts another one. The first
    request after ``close`` does so too.

    Args:
        start: Starts a worker at a place.
        number: Number of the processes before; processes that begin together share one number.

    Attributes:
        number: Number of the processes that run, or ran last.
        started: Count of started processes.
        priorities: Priorities that they were granted.
    """

    def __init__(self, start: Callable[[_Place], Worker], *, number: int = -1) -> None:
        self._start = start
        self._running: dict[_Place, Worker] = {}
        self._met: set[_Place] = set()
        self.number = number
        self.started = 0
        self.priorities: set[str] = set()

    def at(self, place: _Place) -> Worker:
        """Return the worker at a place; start one if none runs, which raises as ``start``."""
        worker = self._running.get(place)
        if worker is not None and worker.failed:
            self._running.pop(place).kill()
            worker = None
        if worker is None:
            worker = self._running[place] = self._start(place)
            self.started += 1
            if worker.greeting is not None:
                self.priorities.add(worker.greeting.priority)
            if not self._met or place in self._met:
                self.number += 1
                self._met = set()
            self._met.add(place)
        return worker

    def close(self) -> None:
        """End all workers in order."""
        while self._running:
            self._running.popitem()[1].close()

    def kill(self) -> None:
        """End all workers now."""
        while self._running:
            self._running.popitem()[1].kill()
