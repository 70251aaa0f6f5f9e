"""One measuring process per machine."""

from __future__ import annotations

import contextlib
import contextvars
import os
import re
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from dlbricks.errors import MachineBusy, UsageError
from dlbricks.generator.machine import lock
from dlbricks.generator.machine.lock import (
    LOCK_DIR_VARIABLE,
    LOCK_WAIT_VARIABLE,
    lock_path,
    machine_lock,
    patience,
    work_clock,
)

_HOLDER = """
import sys
from dlbricks.generator.machine import lock
lock._NAME = chr(0) + sys.argv[1]
with lock.machine_lock():
    print("held", flush=True)
    sys.stdin.read()
"""

_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract sockets")


@pytest.fixture(params=["folder", pytest.param("machine", marks=_LINUX)], autouse=True)
def way(request, tmp_path, monkeypatch) -> str:
    """A lock of the test's own, of either kind: the machine's may be held by a real run."""
    monkeypatch.setattr(lock, "_NAME", f"\0dlbricks-test-{uuid.uuid4()}")
    monkeypatch.delenv(LOCK_WAIT_VARIABLE, raising=False)
    monkeypatch.delenv(LOCK_DIR_VARIABLE, raising=False)
    if request.param == "folder":
        monkeypatch.setenv(LOCK_DIR_VARIABLE, str(tmp_path))
    return request.param


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("first", [None, 65534], ids=["root", "nobody"])
def test_users_exclude_each_other(tmp_path, first):
    """Whoever comes first, and whatever it may do to the other's files."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(0o711)
    tmp_path.chmod(0o1777)
    second = 65534 if first is None else None
    with trying(first) as (holder, first_said):
        assert first_said == "held"
        with trying(second) as (_, said):
            assert f"pid {holder}" in said
    with trying(second) as (_, said):
        assert said == "held"


@contextlib.contextmanager
def trying(user: int | None) -> Iterator[tuple[int, str]]:
    """A process of a user that tries to take the lock, and what comes of it; killed at the end.

    Forked, since another user cannot load the interpreter of this one.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.umask(0o077)
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        try:
            with machine_lock():
                os.write(writing, b"held")
                os.close(writing)
                time.sleep(60)
        except BaseException as error:  # noqa: BLE001  # whatever it is: the parent looks at it
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading) as said:
            yield child, said.read()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock."""
    command = [sys.executable, "-c", _HOLDER, lock._NAME.lstrip("\0")]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_second_process_is_shown_who_measures_and_leaves_nothing_behind(holder, monkeypatch, tmp_path):
    with pytest.raises(MachineBusy, match=rf"pid {holder.pid}\b.*{LOCK_WAIT_VARIABLE}"), machine_lock():
        pass
    for _ in range(300):  # more than the kernel queues
        with pytest.raises(MachineBusy, match=rf"pid ({holder.pid}|unknown)\b"), machine_lock():
            pass
    monkeypatch.setenv(LOCK_WAIT_VARIABLE, "0.3")
    told: list[str] = []
    begun = time.monotonic()
    with pytest.raises(MachineBusy), patience(tell=told.append), machine_lock():
        pass
    assert time.monotonic() - begun >= 0.3
    with pytest.raises(MachineBusy), patience(0.6), patience(tell=told.append), machine_lock():
        pass
    assert time.monotonic() - begun >= 0.9
    waiting = rf"waiting for .*\(pid ({holder.pid}, since \d\d:\d\d:\d\d|unknown)\)"
    assert [bool(re.match(waiting, line)) for line in told] == [True, True]
    monkeypatch.setenv(LOCK_WAIT_VARIABLE, "soon")
    with pytest.raises(UsageError, match="soon"), machine_lock():
        pass
    monkeypatch.delenv(LOCK_WAIT_VARIABLE)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # services with temporary folders of their own exclude each other
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(MachineBusy), machine_lock():
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()

    with machine_lock(), pytest.raises(MachineBusy, match=rf"pid {os.getpid()}\b"), machine_lock():
        pass  # a process excludes itself


def test_waiting_gets_the_lock_when_it_is_given_back(holder):
    holder.stdin.close()

    with machine_lock(wait_s=30):
        pass


def test_the_work_clock_stands_still_while_the_lock_is_waited_for(monkeypatch):
    now_s, tries = [5.0], iter((False, True))

    def sleep(_: float) -> None:
        now_s[0] += 7.0

    def waiting() -> tuple[float, float]:
        before_s = work_clock()
        with machine_lock(wait_s=30):
            return before_s, work_clock()

    monkeypatch.setattr(lock, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    monkeypatch.setattr(lock, "_way", lambda _: (lambda: next(tries), lambda: "unknown"))
    before_s, after_s = contextvars.copy_context().run(waiting)

    assert before_s == after_s
    assert now_s == [12.0]


def test_the_lock_is_not_inherited():
    """A worker that outlives its parent for a moment must not hold the machine."""
    with machine_lock():
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        with machine_lock():
            pass
    finally:
        child.communicate()


@pytest.mark.parametrize("way", ["folder"], indirect=True)
class TestAFolder:
    """What holds where a folder is named, and on other systems."""

    def test_the_file_names_its_holder_and_is_open_to_all(self):
        before = os.umask(0o077)
        try:
            with machine_lock():
                assert lock_path().read_text() == f"{os.getpid()}\n"
        finally:
            os.umask(before)

        assert stat.S_IMODE(lock_path().stat().st_mode) == 0o666

    def test_a_link_in_place_of_the_lock_is_refused(self, tmp_path):
        lock_path().symlink_to(tmp_path / "elsewhere")

        with pytest.raises(MachineBusy, match="cannot be opened"), machine_lock():
            pass

    def test_it_is_the_temporary_folder_where_sockets_are_forbidden(self, tmp_path, monkeypatch):
        def forbidden(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.delenv(LOCK_DIR_VARIABLE)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr(lock.socket, "socket", forbidden)

        with machine_lock():
            assert Path(tmp_path / "dlbricks.lock").read_text() == f"{os.getpid()}\n"
