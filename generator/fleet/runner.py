"""Measure one cell: ``dlbricks run`` in a separate process with a separate file, while the worker sleeps."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from ..machine.lock import LOCK_WAIT_VARIABLE
from ..machine.system import quietness

# Ending on SIGTERM and SIGINT: whoever waits is woken, and what runs is interrupted once.


class Stopping:
    """A request to stop."""

    def __init__(self) -> None:
        self.asked = False
        self._child: int | None = None
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)

    def ask(self) -> None:
        """Request the end: interrupt the child and wake waiting threads."""
        if self.asked:
            return
        self.asked = True
        os.write(self._wakes, b"\n")
        if self._child is not None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self._child, signal.SIGINT)

    def wait(self, seconds: float) -> None:
        """Sleep, or until the end is asked for."""
        import select

        select.select([self._woken], [], [], max(0.0, seconds))

    @contextmanager
    def passed_on_to(self, child: int) -> Iterator[None]:
        """Interrupt a child process when the end is asked for."""
        self._child = child
        try:
            if self.asked:  # before we knew it
                os.kill(child, signal.SIGINT)
            yield
        finally:
            self._child = None

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self._woken)
        os.close(self._wakes)


@contextmanager
def stopping_on_signals() -> Iterator[Stopping]:
    """Request the end on SIGTERM and SIGINT, instead of the previous handlers."""
    stopping = Stopping()

    def ask(_number: int, _frame: FrameType | None) -> None:
        stopping.ask()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stopping.close()


_PR_SET_PDEATHSIG = 1

_INCOMPLETE = 3
"""Exit status of ``dlbricks run`` if bricks failed or the budget was spent."""

_ATTEMPTS = 25
"""Maximum number of runners of one cell that die of a signal; each resumes the previous one."""

_PAUSE_S, _LONGEST_S = 0.5, 5.0
"""Seconds before the next look or runner; doubled between looks up to the second number."""

_HOUSE = ("DLBRICKS_DB", "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE")
"""Environment variables that a runner does not need, since it measures into a file."""

_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
"""Environment variables of this interpreter that would affect another one."""

_SAID = (
    "bricks", "measured", "reused", "failed", "remaining", "models", "models_measured", "models_remaining", "wall_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """How a cell's runner ended.

    Attributes:
        complete: True if it ran to its end; counts and database say which bricks could not be measured.
        reason: Why not, in one line.
        counts: Its counts of bricks and models; None without an answer.
        wall_s: Duration of all attempts in seconds.
        failures: Reason by key or name, for each brick and model that could not be measured.
    """

    complete: bool
    reason: str
    counts: dict[str, Any] | None
    wall_s: float
    failures: tuple[tuple[str, str], ...] = ()

    @classmethod
    def failed(cls, reason: str, wall_s: float = 0.0) -> Self:
        """Return the end of a runner that said nothing of bricks and models."""
        return cls(complete=False, reason=reason, counts=None, wall_s=wall_s)


def wait_until_quiet(busy: float, patience_s: float, stopping: Stopping) -> tuple[float, str]:
    """Wait until others leave the processors alone.

    Args:
        busy: Share of the allowed processors that others may use.
        patience_s: Maximum wait in seconds.
        stopping: Ends the wait.

    Returns:
        Seconds waited, and why the wait failed; empty if the machine is quiet.
    """
    began_s, pause_s = time.monotonic(), _PAUSE_S
    while True:
        seen = quietness().busy
        waited_s = time.monotonic() - began_s
        if seen <= busy or stopping.asked:
            return waited_s, ""
        if waited_s >= patience_s:
            return (
                waited_s,
                f"the machine was not quiet for {patience_s:.0f} s: others used {seen:.0%} of its processors",
            )
        stopping.wait(min(pause_s, patience_s - waited_s))
        pause_s = min(2 * pause_s, _LONGEST_S)


def measure_cell(python: str, words: list[str], log: Path, *, patience_s: float, stopping: Stopping) -> Measured:
    """Run ``dlbricks`` until it ends; restart it if it dies of a signal, to resume.

    Its answer and messages go to files, so that no process has to read them meanwhile.

    Args:
        python: Interpreter of the environment.
        words: Arguments of ``dlbricks``.
        log: File for its messages; its answer goes to the same folder.
        patience_s: Maximum wait for another measuring process, in seconds.
        stopping: Interrupts it.
    """
    began_s, answer = time.monotonic(), log.with_suffix(".json")
    dropped = _HOUSE if python == sys.executable else (*_HOUSE, *_OURS)
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment[LOCK_WAIT_VARIABLE] = f"{patience_s:.0f}"
    code = 0
    for _ in range(_ATTEMPTS):
        with answer.open("wb") as out, log.open("wb") as err:
            runner = subprocess.Popen(
                [python, "-P", "-m", "dlbricks", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,  # Ctrl-C is ours, and is passed on once
                preexec_fn=_end_with_parent,  # noqa: PLW1509  (one thread, and nothing but a system call)
            )
        with stopping.passed_on_to(runner.pid):
            code = runner.wait()  # asleep in the kernel: with a time limit it would poll
        if code in {0, _INCOMPLETE}:
            return _answered(answer, time.monotonic() - began_s)
        if stopping.asked or not _killed(code):
            break
        stopping.wait(_PAUSE_S)
    reason = "interrupted" if stopping.asked else _reason(code, log)
    return Measured.failed(reason, time.monotonic() - began_s)


def _end_with_parent() -> None:
    """Die with the node's worker: its successor starts a new runner."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _killed(code: int) -> bool:
    """Return True if a signal killed or interrupted it."""
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # dlbricks ends in order on these
    return code < 0 or code - 128 in ending


def _answered(answer: Path, wall_s: float) -> Measured:
    """Return a runner's answer; missing keys are unknown, since its dlbricks may be another version."""
    try:
        said = json.loads(answer.read_bytes())
        counts = {name: said.get(name) for name in _SAID}
        failures = tuple((row["key"], row["reason"]) for row in said.get("results", ()) if not row.get("variant"))
    except (AttributeError, KeyError, TypeError, ValueError):
        return Measured.failed("dlbricks run ended without an answer that can be read", wall_s)
    return Measured(True, "", counts, wall_s, failures)  # noqa: FBT003


def _reason(code: int, log: Path) -> str:
    if _killed(code):
        return f"dlbricks run died {_ATTEMPTS} times, at last of signal {-code if code < 0 else code - 128}"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = lines[-1].removeprefix("dlbricks: ") if lines else "it said nothing"
    return f"dlbricks run ended with status {code}: {said}"
