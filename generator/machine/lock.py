"""One measuring process per machine: an advisory lock that the kernel drops when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

from ...errors import MachineBusy, UsageError

LOCK_WAIT_VARIABLE = "DLBRICKS_LOCK_WAIT"
"""Environment variable: seconds to wait for another measuring process before giving up (default 0)."""

LOCK_DIR_VARIABLE = "DLBRICKS_LOCK_DIR"
"""Environment variable: a folder whose users exclude each other, instead of all users of the machine."""

_NAME = "\0dlbricks-measuring"
"""An abstract socket (unix(7)): it belongs to the machine's network namespace, and to no folder and no user."""

_RETRY_S = 0.25
"""Rare enough not to disturb the process that is measuring."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group, as SO_PEERCRED gives them."""


def lock_path() -> Path:
    """Return the lock file, for systems without abstract sockets and for a named folder."""
    return Path(os.environ.get(LOCK_DIR_VARIABLE) or tempfile.gettempdir()) / "dlbricks.lock"


_Tell = Callable[[str], None]

_PATIENCE: ContextVar[tuple[float | None, _Tell | None]] = ContextVar("patience", default=(None, None))

_WAITED_S: ContextVar[float] = ContextVar("waited_s", default=0.0)


def work_clock() -> float:
    """Return the monotonic clock in seconds, less all that ``machine_lock`` has waited: budgets count work."""
    return time.monotonic() - _WAITED_S.get()


@contextlib.contextmanager
def patience(wait_s: float | None = None, tell: _Tell | None = None) -> Iterator[None]:
    """Set how long ``machine_lock`` waits within this context, and a function that reports the wait.

    Args:
        wait_s: Seconds to wait; None: as before.
        tell: Called with one line when a wait begins; None: as before.
    """
    before = _PATIENCE.get()
    token = _PATIENCE.set((before[0] if wait_s is None else wait_s, tell or before[1]))
    try:
        yield
    finally:
        _PATIENCE.reset(token)


@contextlib.contextmanager
def machine_lock(*, wait_s: float | None = None) -> Iterator[None]:
    """Hold the machine's measuring lock.

    Two measurements at once would each see the other as noise. On Linux the lock is an abstract socket, common to all
    users and temporary folders of the machine. It is a file, locked as a whole, on other systems, if sockets are
    forbidden, and with ``$DLBRICKS_LOCK_DIR``. Both end with their process; the file stays, empty or with the last
    holder's process id.

    Args:
        wait_s: Seconds to wait for another holder; default: ``patience``, else ``$DLBRICKS_LOCK_WAIT``, else 0.

    Raises:
        MachineBusy: Another process holds it; the message contains its process id.
        UsageError: ``$DLBRICKS_LOCK_WAIT`` is not a number, or ``$DLBRICKS_LOCK_DIR`` is not a folder.
    """
    patient_s, tell = _PATIENCE.get()
    given_s = next((limit for limit in (wait_s, patient_s) if limit is not None), None)
    limit_s = _wait_from_environment() if given_s is None else given_s
    begun = time.monotonic()
    deadline = begun + limit_s
    with contextlib.ExitStack() as held:
        take, holder = _way(held)
        while not take():
            if time.monotonic() >= deadline:
                raise MachineBusy(
                    f"another dlbricks process ({_described(holder())}) is measuring on this machine",
                    remedy=f"wait for it with --wait 10m, or with {LOCK_WAIT_VARIABLE}, in seconds",
                )
            if tell is not None:
                tell(
                    f"waiting for another dlbricks process ({_described(holder())}) to end its measurement, "
                    f"at most {limit_s:.0f} s"
                )
                tell = None
            time.sleep(_RETRY_S)
        _WAITED_S.set(_WAITED_S.get() + time.monotonic() - begun)
        yield


def _described(holder: str) -> str:
    """Return the process id of the holder, and its start time."""
    import psutil

    try:
        since = datetime.fromtimestamp(psutil.Process(int(holder)).create_time(), UTC).astimezone()
    except (ValueError, psutil.Error):
        return f"pid {holder}"
    return f"pid {holder}, since {since:%H:%M:%S}"


def _wait_from_environment() -> float:
    text = os.environ.get(LOCK_WAIT_VARIABLE, "0")
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"{LOCK_WAIT_VARIABLE}={text!r} is not a number of seconds") from error


def _way(held: contextlib.ExitStack) -> tuple[Callable[[], bool], Callable[[], str]]:
    """Return a function that tries the lock, and one that asks for its holder; ``held`` closes their files."""
    folder = os.environ.get(LOCK_DIR_VARIABLE)
    if folder and not Path(folder).is_dir():
        raise UsageError(f"{LOCK_DIR_VARIABLE}={folder!r} is no folder", remedy="create it, or unset the variable")
    if not folder and sys.platform == "linux":
        try:
            unix_socket = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        except OSError:
            pass  # a service whose address families are restricted
        else:
            return lambda: _bind(unix_socket), _listener
    descriptor = _open(lock_path())
    held.callback(os.close, descriptor)
    return lambda: _lock(descriptor), lambda: os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"


def _bind(unix_socket: socket.socket) -> bool:
    try:
        unix_socket.bind(_NAME)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise MachineBusy(
            f"the machine lock cannot be taken: {error.strerror}", remedy=f"name a folder with {LOCK_DIR_VARIABLE}"
        ) from error
    unix_socket.listen()  # so that whoever waits can ask who holds it; nobody is answered
    return True


def _listener() -> str:
    """Return the process that holds the socket: the kernel reports the other end of a connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(0)  # a full queue would block
        try:
            asking.connect(_NAME)
        except OSError:
            return "unknown"  # it has just ended, or more have asked than the kernel queues
        pid, _, _ = _CREDENTIALS.unpack(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return str(pid or "unknown")  # 0: in a container, whose processes have other numbers


def _open(path: Path) -> int:
    """Open the lock file for every user of the machine; create it if it is missing."""
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


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return False
        raise
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return True
