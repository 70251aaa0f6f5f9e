"""The command line in a process of its own, with limits, which reports what it touched."""

from __future__ import annotations

import importlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Ended", "Limits", "call", "preload"]

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = {
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.symlink",
    "os.link",
    "os.truncate",
    "os.chmod",
    "os.chown",
}
_MODULES = (
    "alembic.command", "networkx", "numpy.random", "onnx.inliner", "onnx.shape_inference", "sqlalchemy.dialects.sqlite",
    *(f"dlbricks.{name}" for name in (
        "analyzer.comparison.compare", "analyzer.estimation.estimate", "analyzer.history.history",
        "analyzer.kernels.kernels", "analyzer.report.answers.comparison", "analyzer.report.answers.estimates",
        "analyzer.report.answers.generation", "analyzer.report.answers.history", "analyzer.report.answers.kernels",
        "cli.commands", "cli.inventory", "cli.latencies", "cli.storage", "db.merging", "db.exporting", "db.upgrading",
        "generator.decomposition.generate", "generator.measurement.run", "generator.network.export", "models.zoo",
    )),
)  # fmt: skip
"""What most cases need, imported once."""

_ALLOWED = ("/dev/null", "/dev/tty", "/proc/", "/dev/shm/")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a case may take.

    Attributes:
        address_bytes: Address space of the process, and of each that it starts.
        resident_bytes: Memory that it really had, at most; its workers included, the largest of them.
        file_bytes: Size of any file.
        seconds: Time.
    """

    address_bytes: int = 6 << 30
    resident_bytes: int = 1 << 30
    file_bytes: int = 256 << 20
    seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a case ended.

    Attributes:
        code: Exit code; None where a signal ended it.
        signal: The signal; None where it ended by itself.
        late: Whether time ran out.
        out: What it wrote to standard output.
        err: What it wrote to standard error.
        touched: Files outside its folders that it opened for writing or changed, and secrets that it opened.
        resident_bytes: Most memory that it, or a process that it started, had.
        seconds: Time.
    """

    code: int | None
    signal: int | None
    late: bool
    out: str
    err: str
    touched: tuple[str, ...]
    resident_bytes: int
    seconds: float


def preload() -> None:
    """Import what most cases need once, before there are cases."""
    for name in _MODULES:
        importlib.import_module(name)


def call(arguments: Sequence[str], folder: Path, limits: Limits, *, asks: bool = True) -> Ended:
    """Run a command in a fork of this process, in ``folder/case``; its home and temporary files lie beside that.

    Args:
        arguments: Behind ``dlbricks``.
        folder: Of the case, with ``case`` and ``outside`` in it.
        limits: What it may take.
        asks: Shapes that inference does not find are asked of a worker, which takes a second to start; else they stay
            unknown, as where the worker cannot run the model.
    """
    for name in ("home", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    out, err, told = folder / "out.txt", folder / "err.txt", folder / "touched.json"
    begun = time.monotonic()
    child = os.fork()
    if not child:
        if not asks:
            _never_ask()
        _child(arguments, folder, limits, (out, err, told))
    late = False
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - begun > limits.seconds:
            late = True
            os.killpg(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            break
        time.sleep(0.005)
    return Ended(
        code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        late=late,
        out=out.read_text(errors="replace") if out.exists() else "",
        err=err.read_text(errors="replace") if err.exists() else "",
        touched=tuple(json.loads(told.read_text())) if told.exists() else (),
        resident_bytes=usage.ru_maxrss << 10,
        seconds=time.monotonic() - begun,
    )


def _child(arguments: Sequence[str], folder: Path, limits: Limits, files: tuple[Path, Path, Path]) -> None:
    """What the fork does; it never returns."""
    code, touched = 70, _Touched(folder)
    try:
        os.setpgid(0, 0)
        out, err, told = files
        for path, descriptor in ((out, 1), (err, 2)):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(opened, descriptor)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True)
        os.chdir(folder / "case")
        os.environ.update(HOME=str(folder / "home"), TMPDIR=str(folder / "tmp"), DLBRICKS_LOCK_DIR=str(folder / "tmp"))
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_AS, (limits.address_bytes, limits.address_bytes))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.argv = ["dlbricks", *arguments]
        sys.addaudithook(touched)
        code = _main()
        touched.watching = False
        told.write_text(json.dumps(touched.found))
    except BaseException:  # noqa: BLE001  # nothing may come back into the parent's code
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        sys.stdout.flush()
        os._exit(code)


def _never_ask() -> None:
    from dlbricks.generator.decomposition.oracle import WorkerOracle

    WorkerOracle.__call__ = lambda *_: {}  # type: ignore[method-assign]


def _main() -> int:
    from dlbricks.cli import main

    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    return 0


class _Touched:
    """An audit hook that notes files outside a case's folders."""

    def __init__(self, folder: Path) -> None:
        self.found: list[str] = []
        self.watching = True
        self._own = tuple(f"{os.path.realpath(folder / name)}" for name in ("case", "tmp"))
        self._secret = (os.path.realpath(folder / "outside"), "/etc/passwd")

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event == "open":
            path, _, flags = arguments
            self._note(event, path, writing=bool(isinstance(flags, int) and flags & _WRITING))
        elif event in _CHANGES:
            self._note(event, arguments[0], writing=True)
        elif event == "sqlite3.connect":
            self._note(event, str(arguments[0]).removeprefix("file:").partition("?")[0], writing=False)

    def _note(self, event: str, path: object, *, writing: bool) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor that was opened before
        text = os.path.realpath(os.fsdecode(path))
        if any(text == place or text.startswith(f"{place}/") for place in self._own) or text.startswith(_ALLOWED):
            return
        if any(text == place or text.startswith(f"{place}/") for place in self._secret) or (
            writing and "__pycache__" not in text
        ):
            self.found.append(f"{event} {text}")
