"""One measuring process per machine."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time

import pytest
from dlbricks.errors import MachineBusy, UsageError
from dlbricks.generator.machine.lock import LOCK_WAIT_VARIABLE, lock_path, machine_lock

_HOLDER = """
import sys, time
from dlbricks.generator.machine.lock import machine_lock
with machine_lock():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """A lock of the test's own: the machine's may be held by a real run."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv(LOCK_WAIT_VARIABLE, raising=False)


@pytest.fixture
def holder():
    process = subprocess.Popen([sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    with process:
        yield process
        process.kill()


def test_a_second_process_is_shown_who_measures(holder):
    with pytest.raises(MachineBusy, match=rf"pid {holder.pid}\b.*{LOCK_WAIT_VARIABLE}"), machine_lock():
        pass


def test_the_lock_ends_with_its_process(holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()

    with machine_lock():
        assert lock_path().read_text() == f"{os.getpid()}\n"


def test_waiting_gets_the_lock_when_it_is_given_back(holder):
    holder.stdin.close()

    with machine_lock(wait_s=30):
        pass


def test_waiting_ends(holder, monkeypatch):
    monkeypatch.setenv(LOCK_WAIT_VARIABLE, "0.3")
    begun = time.monotonic()

    with pytest.raises(MachineBusy), machine_lock():
        pass

    assert time.monotonic() - begun >= 0.3


def test_every_user_may_take_the_lock():
    before = os.umask(0o077)
    try:
        with machine_lock():
            pass
    finally:
        os.umask(before)

    assert stat.S_IMODE(lock_path().stat().st_mode) == 0o666


def test_the_lock_is_not_inherited():
    """A worker that outlives its parent for a moment must not hold the machine."""
    with machine_lock():
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        with machine_lock():
            pass
    finally:
        child.communicate()


def test_a_link_in_place_of_the_lock_is_refused(tmp_path):
    lock_path().symlink_to(tmp_path / "elsewhere")

    with pytest.raises(MachineBusy, match="cannot be opened"), machine_lock():
        pass


def test_a_wrong_wait_is_a_usage_error(monkeypatch):
    monkeypatch.setenv(LOCK_WAIT_VARIABLE, "soon")

    with pytest.raises(UsageError, match="soon"), machine_lock():
        pass
