"""How a process answers its parent: one request after the other, each with a reply, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import IO

from ...errors import BackendUnavailable, DlbricksError, UnsupportedBrick, UsageError
from .redaction import redact_paths
from .replies import Refusal, Refused, Reply
from .requests import Bye, Request
from .sandbox import confine, take_streams

__all__ = ["answer_all", "confined", "refusal"]

_REASON_LENGTH = 400


def answer_all(
    requests: Iterable[str], replies: IO[str], parse: Callable[[str], Request], answer: Callable[[Request], Reply]
) -> None:
    """Answer requests until ``Bye`` or the end of the input.

    Args:
        requests: Lines of JSON.
        replies: One line for each request is written here.
        parse: Reads a line.
        answer: Gives the reply; what it raises is the reply too (``refusal``).
    """
    for line in requests:
        request: Request | None = None
        try:
            request = parse(line)
            reply = answer(request)
        except Exception as error:  # noqa: BLE001  # the boundary of the process: reported to the parent, whatever it is
            reply = refusal(error, getattr(request, "path", ""))
        replies.write(reply.to_json() + "\n")
        replies.flush()
        if isinstance(request, Bye):
            return


def confined(serve: Callable[[Iterable[str], IO[str]], None]) -> None:
    """Confine the process, take the protocol's descriptors, and serve."""
    confine()
    with take_streams() as (requests, replies):
        serve(requests, replies)


def refusal(error: Exception, path: str = "") -> Refused:
    """The reply for an exception: its kind, and one line that names no place on this machine.

    Args:
        error: What was raised.
        path: The file that the request was about.
    """
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
    return Refused(kind=kind, reason=" ".join(redact_paths(text, path).split())[:_REASON_LENGTH])
