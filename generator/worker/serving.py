"""The serving loop of a child process: confined, one request after the other, each with a reply."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import IO, Any, TypeVar

from ...errors import BackendUnavailable, DlbricksError, UnsupportedBrick, UsageError
from .messages import Bye, Load, Refusal, Refused, Reply, Request, line_of, read_line

_REASON_LENGTH = 400
_PR_SET_PDEATHSIG = 1
_ABSOLUTE = re.compile(r"(?<![\w.:/])/[^\s'\"`<>|:,;()\[\]{}]+")

_R = TypeVar("_R", bound=Request)


def answer_all(requests: Iterable[str], replies: IO[str], kind: Any, answer: Callable[[_R], Reply]) -> None:
    """Answer requests until ``Bye`` or the end of the input.

    Args:
        requests: Lines of JSON.
        replies: One line for each request is written here.
        kind: A union of the requests that are expected.
        answer: Returns the reply; an exception becomes the reply too (``refusal``).
    """
    for line in requests:
        request: _R | None = None
        try:
            request = read_line(line, kind)
            assert request is not None  # noqa: S101  # no kind of request is None
            reply = answer(request)
        except Exception as error:  # noqa: BLE001  # the boundary of the process: every error is reported to the parent
            reply = refusal(error, _path_of(request))
        replies.write(line_of(reply).decode())
        replies.flush()
        if isinstance(request, Bye):
            return


def serve_confined(serve: Callable[[Iterable[str], IO[str]], None]) -> None:
    """Confine the process, take the protocol's descriptors, and serve."""
    confine()
    with _taken_streams() as (requests, replies):
        serve(requests, replies)


def confine() -> None:
    """Leave Ctrl-C to the parent, write no core files, and die with the parent's thread that started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _taken_streams() -> Iterator[tuple[IO[str], IO[str]]]:
    """Yield the protocol's streams, moved off descriptors 0 and 1.

    Afterwards descriptor 0 is empty and descriptor 1 is standard error: a library that prints, from Python or from
    C++, cannot break a reply.
    """
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    with os.fdopen(requests, encoding="utf-8") as source, os.fdopen(replies, "w", encoding="utf-8") as sink:
        yield source, sink


def refusal(error: Exception, path: str = "") -> Refused:
    """Return the reply for an exception: its kind, and one line without paths of this machine."""
    kinds: tuple[tuple[type[Exception], Refusal], ...] = (
        (UnsupportedBrick, Refusal.UNSUPPORTED),
        (BackendUnavailable, Refusal.UNAVAILABLE),
        (UsageError, Refusal.USAGE),
        (MemoryError, Refusal.MEMORY),
    )
    kind = next((kind for cause, kind in kinds if isinstance(error, cause)), Refusal.ERROR)
    text = str(error) if isinstance(error, DlbricksError) else f"{type(error).__name__}: {error}"
    if kind is Refusal.MEMORY:
        text = f"the memory limit was hit: {error}" if str(error) else "the memory limit was hit"
    text = text.encode(errors="backslashreplace").decode()
    return Refused(kind=kind, reason=" ".join(redact_paths(text, path).split())[:_REASON_LENGTH])


def _path_of(request: Request | None) -> str:
    """Return the file of a request; empty unless there is exactly one."""
    if isinstance(request, Load):
        return request.members[0].file.path if len(request.members) == 1 else ""
    return str(getattr(getattr(request, "file", None) or request, "path", ""))


def redact_paths(text: str, path: str = "") -> str:
    """Return the text with absolute paths shortened to their last part: stored reasons must not contain paths.

    Names of nodes look like paths, for example ``/encoder/layer.0/MatMul``: a path that does not exist here is kept.

    Args:
        text: A message of a runtime.
        path: The file that the text is probably about; its folder is found even if its name has spaces.
    """
    folder = os.path.dirname(path)  # noqa: PTH120  # unchanged, as in the text
    if len(folder) > 1:
        text = text.replace(folder + "/", "")
    return _ABSOLUTE.sub(_shortened, text)


def _shortened(match: re.Match[str]) -> str:
    text = match.group()
    path = PurePath(text)
    folders = list(path.parents)[:-1]  # not the root
    # A folder of the system may have the name of a model's first module: one existing folder is not yet a path.
    candidates = [path, *folders[:1], *folders[:-1]]
    return path.name if path.name and any(map(os.path.exists, candidates)) else text
