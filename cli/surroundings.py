"""The surroundings of a command: standard streams, signals and temporary files."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from types import FrameType

_PREFIX = "dlbricks-command-"
_YOUNG_S = 60.0
"""Age in seconds of folders that are left alone: their owner may not have locked them yet."""


class Ended(KeyboardInterrupt):
    """Raised when a signal asks the command to end; treated as Ctrl-C.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def prepare() -> None:
    """Open missing standard streams, end in order on TERM, HUP and QUIT, and keep temporary files in one folder."""
    _open_streams()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores HUP
            signal.signal(number, _end)
    _own_temporary_folder()


def _open_streams() -> None:
    """Open the null device in place of missing streams: the next file would get their descriptor and their output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # to the end
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _end(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    raise Ended(number)


@cache
def _own_temporary_folder() -> None:
    """Keep all temporary files of the process in one folder, and remove those that killed processes left.

    The folder's lock ends with its process. It is removed last, after the files of modules that are imported later.
    """
    try:
        root = Path(tempfile.gettempdir())
        _remove_left(root)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # whoever needs a temporary file reports it
    tempfile.tempdir = str(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _remove_left(root: Path) -> None:
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            status = folder.stat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_S:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # its process lives
        finally:
            os.close(descriptor)
