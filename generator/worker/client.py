"""The parent's handle on one worker process: requests, replies, time limits, and why it died."""

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from ...errors import (
    BackendError,
    BackendUnavailable,
    UnsupportedBrick,
    UsageError,
    WorkerCrashed,
    WorkerError,
    WorkerOutOfMemory,
    WorkerTimeout,
)
from ..backends.base import WORKER_COMMAND
from ..backends.custom_ops import files_of
from ..backends.huge_pages import huge_page_variables
from .environment import worker_environment
from .redaction import redact_paths
from .replies import (
    Done,
    Examined,
    Greeting,
    LeftOut,
    Packed,
    Prepared,
    Refusal,
    Refused,
    Reply,
    Types,
    Unpacked,
    Visited,
    parse_reply,
)
from .requests import (
    Bye,
    Examine,
    Extract,
    Hello,
    Limits,
    Outputs,
    Pack,
    Prepare,
    Release,
    Request,
    Unpack,
    Values,
    Visit,
)

__all__ = ["Timeouts", "Worker", "refused"]

_RING_BYTES = 4096
"""What is kept of the worker's standard error."""
_READ_BYTES = 1 << 16
_LONGEST_REPLY = 1 << 28
"""A reply longer than this is no reply but a runaway."""
_LOADED_BYTES_PER_S = 5e7
"""Slowest disk and packing that is waited for..."""
_OPTIMISED_BYTES_PER_S = 2e7
"""...and slowest optimiser beside them."""
_LONGEST_WAIT_S = 7 * 24 * 3600.0
"""No answer takes a week; what a damaged file says of its size may be more than the system can wait for."""

_R = TypeVar("_R", bound=Reply)


class Timeouts:
    """Seconds that a worker may take for each kind of request."""

    hello = 60.0
    """Loading the runtime."""
    prepare = 120.0
    """Loading a network and running it once; large models are given more by the caller."""
    visit = 120.0
    """One execution."""
    bye = 2.0

    @classmethod
    def loading(cls, size_bytes: int, *, bound_s: float = math.inf) -> float:
        """``prepare``, or a lower bound that the caller was given, and more for what is large."""
        return min(cls.prepare, bound_s) + size_bytes / _LOADED_BYTES_PER_S

    @classmethod
    def optimising(cls, weight_bytes: int) -> float:
        """``prepare``, and more for a large model that is written as the runtime executes it, or run while watched."""
        return cls.prepare + weight_bytes / _OPTIMISED_BYTES_PER_S


class Worker:
    """A worker process, from its start to its end.

    The parent blocks in ``select`` while the worker works: no thread, no polling, no timer. Standard error is read
    into a small ring and only ever shown as the last line of a failure's reason. The worker runs in an empty folder
    of its own, in a process group of its own, so that Ctrl-C reaches the parent alone.

    Args:
        command: Program and arguments; a runtime with pins of its own lives in an environment of its own.
        variables: Of the environment, beside what reaches every worker.

    Attributes:
        greeting: What it answered first; None before that.
        failed: Whether it died, did not answer in time, or hit its memory limit: it is best replaced.

    Raises:
        WorkerCrashed: It could not be started.
    """

    def __init__(self, *, command: Sequence[str] = WORKER_COMMAND, variables: Mapping[str, str] | None = None) -> None:
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
                env=worker_environment(temporary, own=variables),
                process_group=0,
                bufsize=0,
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise WorkerCrashed(f"the worker {command[0]} cannot be started: {error.strerror}") from error
        self._pending = bytearray()
        self._ring = bytearray()
        self._selector = selectors.DefaultSelector()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None  # noqa: S101  # both were asked for as pipes
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream.fileno(), selectors.EVENT_READ, stream is self._process.stdout)
        self._ending = None
        if hasattr(os, "pidfd_open"):
            # Ready when the worker ends: its output stays open where a process that it started still holds it.
            self._ending = os.pidfd_open(self._process.pid)
            self._selector.register(self._ending, selectors.EVENT_READ)
        self._killed = False
        self.failed = False
        self.greeting: Greeting | None = None

    @classmethod
    def start(
        cls,
        backend: str,
        *,
        device: str = "cpu",
        options: Mapping[str, str] | None = None,
        threads: int = 1,
        memory_bytes: int | None = None,
        together: bool = False,
        dtype: str = "float32",
        command: Sequence[str] = WORKER_COMMAND,
    ) -> Self:
        """Start a worker and greet it.

        Raises:
            BackendUnavailable: The runtime is not usable here, or the system cannot do what an option asks for.
            UsageError: An option is unknown or has a wrong value, or the backend does not compute in the precision.
            WorkerError: It died or did not answer.
        """
        own = dict(options or {})
        worker = cls(command=command, variables=huge_page_variables(own))
        try:
            hello = Hello(backend, device, own, threads, Limits(memory_bytes), together, dtype, files_of(own))
            worker.greeting = worker.ask(hello, Greeting, Timeouts.hello)
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

    def prepare(self, request: Prepare, *, timeout_s: float = Timeouts.prepare) -> Prepared:
        """Load a network.

        Raises:
            UnsupportedBrick: The runtime cannot express it.
            BackendError: The runtime or the file is at fault.
            WorkerError: The worker died, hung, or hit its memory limit.
        """
        return self.ask(request, Prepared, timeout_s)

    def pack(self, request: Pack, *, timeout_s: float) -> Packed:
        """Load bricks to be run together; raises as ``prepare``."""
        return self.ask(request, Packed, timeout_s)

    def visit(self, request: Visit, *, timeout_s: float = Timeouts.visit) -> Visited:
        """Execute a pack or a network between two probes; raises as ``prepare``."""
        return self.ask(request, Visited, timeout_s)

    def unpack(self, name: str, *, timeout_s: float) -> Unpacked:
        """The times of a pack's bricks; raises as ``prepare``."""
        return self.ask(Unpack(name), Unpacked, timeout_s)

    def outputs(self, name: str, path: Path, *, timeout_s: float = Timeouts.visit) -> None:
        """Write inputs and outputs of one execution to an npz file; raises as ``prepare``."""
        self.ask(Outputs(name, str(path)), Done, timeout_s)

    def values(self, path: Path, names: Sequence[str], *, timeout_s: float = Timeouts.prepare) -> Types:
        """Execute a model once and return the types of some values; raises as ``prepare``."""
        return self.ask(Values(str(path), tuple(names)), Types, timeout_s)

    def extract(self, request: Extract, *, timeout_s: float = Timeouts.prepare) -> None:
        """Write the graph that the runtime executes; raises as ``prepare``, and UsageError where it is not known."""
        self.ask(request, Done, timeout_s)

    def examine(self, request: Examine, *, timeout_s: float) -> Examined:
        """Time a model's layers with its own values and with synthetic ones; raises as ``extract``."""
        return self.ask(request, Examined, timeout_s)

    def release(self, name: str) -> None:
        """Drop a network; raises as ``prepare``."""
        self.ask(Release(name), Done, Timeouts.prepare)

    def close(self) -> None:
        """End the worker in order; kill it where it does not follow."""
        try:
            if self._process.poll() is None:
                self.ask(Bye(), Done, Timeouts.bye)
                self._process.wait(Timeouts.bye)
        except (WorkerError, BackendError, subprocess.TimeoutExpired):
            pass  # it has nothing left to say; kill() below makes sure that it ends
        finally:
            self.kill()

    def kill(self) -> None:
        """End the worker and everything it started, now."""
        if self._killed:
            return  # by now its number may be that of somebody else's group
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

    def ask(self, request: Request, expected: type[_R], timeout_s: float) -> _R:
        """Send a request and wait for its reply; raises as ``prepare``."""
        assert self._process.stdin is not None  # noqa: S101
        deadline = time.monotonic() + timeout_s
        try:
            try:
                self._process.stdin.write(request.to_json().encode() + b"\n")
            except (BrokenPipeError, ValueError) as error:
                raise self._exit_error() from error
            reply = parse_reply(self._read_line(deadline, request.op), expected)
            if isinstance(reply, Refused):
                raise _refusal(reply)
        except WorkerError:
            self.failed = True
            raise
        return reply

    def _read_line(self, deadline: float, op: str) -> str:
        """Block until the reply is complete, reading standard error on the way."""
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            ready = self._selector.select(min(left, _LONGEST_WAIT_S)) if left > 0 else []
            if not ready:
                self.kill()
                raise WorkerTimeout(self._with_stderr_tail(f"the worker did not answer '{op}' in time and was killed"))
            for key, _ in ready:
                if key.fd != self._ending:
                    self._drain(key.fd, reply=bool(key.data))
            if {key.fd for key, _ in ready} == {self._ending}:
                raise self._exit_error()  # everything that it said has been read
        line, _, rest = bytes(self._pending).partition(b"\n")
        self._pending = bytearray(rest)
        return line.decode(errors="replace")

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

    def _exit_error(self) -> WorkerError:
        """Why the worker ended; kills what is left of it."""
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
            # The kernel's out-of-memory killer sends SIGKILL, and so does nobody else here before this line.
            if -status == signal.SIGKILL:
                return WorkerOutOfMemory(self._with_stderr_tail("the worker was killed, probably for lack of memory"))
            return WorkerCrashed(self._with_stderr_tail(f"the worker died of {signal.Signals(-status).name}"))
        return WorkerCrashed(self._with_stderr_tail(f"the worker exited with status {status}"))

    def _with_stderr_tail(self, text: str) -> str:
        return f"{text}: {redact_paths(self.stderr_tail)}" if self.stderr_tail else text


def refused(left_out: LeftOut) -> BackendError | WorkerOutOfMemory:
    """Why a brick is not in a pack."""
    kinds: dict[str, type[BackendError | WorkerOutOfMemory]] = {
        Refusal.UNSUPPORTED: UnsupportedBrick,
        Refusal.MEMORY: WorkerOutOfMemory,
    }
    return kinds.get(left_out.kind, BackendError)(left_out.reason)


def _refusal(reply: Refused) -> Exception:
    kind: type[Exception] = {
        Refusal.UNSUPPORTED: UnsupportedBrick,
        Refusal.ERROR: BackendError,
        Refusal.MEMORY: WorkerOutOfMemory,
        Refusal.USAGE: UsageError,
        Refusal.UNAVAILABLE: BackendUnavailable,
    }[reply.kind]
    return kind(reply.reason)
