"""One measuring process per machine: an advisory lock that the kernel drops when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ...errors import MachineBusy, UsageError

__all__ = ["LOCK_WAIT_VARIABLE", "lock_path", "machine_lock"]

LOCK_WAIT_VARIABLE = "DLBRICKS_LOCK_WAIT"
"""Environment variable: seconds to wait for another measuring process before giving up (default 0)."""

_RETRY_S = 0.25
"""Rare enough not to disturb the process that is measuring."""


def lock_path() -> Path:
    """The lock file: one per temporary folder, thus one per machine as long as users share ``/tmp``."""
    return Path(tempfile.gettempdir()) / "dlbricks.lock"


@contextlib.contextmanager
def machine_lock(*, wait_s: float | None = None) -> Iterator[None]:
    """Hold the machine's measuring lock.

    Two measurements at once would each see the other as noise. The lock belongs to the open file, so it ends with
    its process, however that ends; the file stays, empty or with the last holder's process id.

    Args:
        wait_s: Seconds to wait for another holder; default ``$DLBRICKS_LOCK_WAIT``, else 0.

    Raises:
        MachineBusy: Another process holds it; the message names its process id.
        UsageError: ``$DLBRICKS_LOCK_WAIT`` is not a number.
    """
    deadline = time.monotonic() + (_wait_from_environment() if wait_s is None else wait_s)
    path = lock_path()
    descriptor = _open(path)
    try:
        while not _try(descriptor):
            if time.monotonic() >= deadline:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                raise MachineBusy(
                    f"another dlbricks process (pid {holder}) is measuring on this machine",
                    remedy=f"wait for it, or set {LOCK_WAIT_VARIABLE} to the seconds to wait",
                )
            time.sleep(_RETRY_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _wait_from_environment() -> float:
    text = os.environ.get(LOCK_WAIT_VARIABLE, "0")
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"{LOCK_WAIT_VARIABLE}={text!r} is not a number of seconds") from error


def _open(path: Path) -> int:
    """Open the lock file for every user of the machine, creating it where it is missing."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            # Without O_CREAT first: fs.protected_regular forbids it on another user's file in a sticky folder.
            return os.open(path, flags)
        except FileNotFoundError:
            descriptor = os.open(path, flags | os.O_CREAT, 0o666)
            with contextlib.suppress(PermissionError):  # another user created it in between; it is open all the same
                os.fchmod(descriptor, 0o666)  # the umask must not lock other users out
            return descriptor
    except OSError as error:
        raise MachineBusy(f"the machine lock {path} cannot be opened: {error.strerror}", remedy="remove it") from error


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return False
        raise
    return True
