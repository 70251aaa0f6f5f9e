"""Both ends of the search process: it executes untrusted models, so that it runs apart and may be killed."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Self

import msgspec

from ...errors import WorkerError, WorkerTimeout
from ...generator.backends.onnxruntime.session import WORDING
from ...generator.device.host import HostDevice
from ...generator.worker.client import MODEL_MEMORY_BYTES, Timeouts, Worker
from ...generator.worker.messages import Bye, Done, Reply, Request
from ...generator.worker.serving import answer_all, serve_confined
from ...models.user_inputs import UserInputs
from .checked_model import read_subject
from .recording import configure
from .search import Found, Search, SearchRequest, found_path

_COMMAND = (sys.executable, "-P", "-m", "dlbricks.analyzer.rewriting.process")

_REST = "further rewrites"
"""Name of what a search that died left."""

_GRACE_S = 10.0
"""Least seconds beyond its budget after which a search is killed; otherwise as long again as the budget. A large file
gets more."""


class Find(Request, frozen=True):
    """Search rewrites of a model.

    Attributes:
        request: Settings of the search.
    """

    request: SearchRequest


class LeaveOut(Request, frozen=True):
    """Write the model without some of the steps that were found.

    Attributes:
        steps: Numbers of the steps, from 0 on.
    """

    steps: tuple[int, ...]


class FoundSteps(Reply, frozen=True):
    """Reply to ``Find``."""

    found: Found


class LeftOut(Reply, frozen=True):
    """Reply to ``LeaveOut``: why the model cannot be written without these steps; empty if it was."""

    refusal: str


class Searching:
    """A search process, kept while its models are proven.

    Args:
        request: Settings of the search.
        file_bytes: Size of the model with its external data.
    """

    def __init__(self, request: SearchRequest, file_bytes: int = 0) -> None:
        self._request = request
        self._limit_s = request.budget_s + Timeouts.loading(file_bytes, bound_s=max(_GRACE_S, request.budget_s))
        self._worker = Worker(command=_COMMAND)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.kill()

    def find(self) -> tuple[Found, KeyboardInterrupt | None]:
        """Search, and return the results so far even if the process dies or is interrupted, with the interruption.

        Raises:
            BackendError: The model cannot be read or run.
            KeyboardInterrupt: The search was interrupted before it began.
            UsageError: A file of data does not fit the model.
            WorkerError: The process died before anything was tried.
        """
        try:
            return self._worker.ask(Find(self._request), FoundSteps, self._limit_s).found, None
        except (WorkerError, KeyboardInterrupt) as error:
            path = found_path(Path(self._request.folder))
            if not path.exists():
                raise
            found = msgspec.json.decode(path.read_bytes(), type=Found)
            if isinstance(error, KeyboardInterrupt):
                return found, error
            reason = "one of its steps took too long" if isinstance(error, WorkerTimeout) else str(error)
            why = (_REST, f"the search ended: {reason}")
            return replace(found, rejected=(*found.rejected, why), untried=(*found.untried, _REST)), None

    def without(self, steps: tuple[int, ...]) -> str:
        """Have the model written without some steps, and return why that is not possible; empty if it is.

        Raises:
            WorkerError: The process died.
        """
        return self._worker.ask(LeaveOut(steps), LeftOut, self._limit_s).refusal


class _Server:
    """Answers the requests of one search."""

    def __init__(self) -> None:
        self._search: Search | None = None

    def answer(self, request: Request) -> Reply:
        """Execute a request and return its reply."""
        if isinstance(request, Find):
            from .engines import ENGINES

            asked = request.request
            configure(asked.libraries, denormal_as_zero=asked.denormal_as_zero)
            given = UserInputs(tuple(map(Path, asked.data)), asked.values)
            try:
                subject = read_subject(Path(asked.path), asked.batch, dict(asked.dims), given)
                self._search = Search(subject, asked)
                return FoundSteps(self._search.run(ENGINES))
            except Exception as error:
                if type(error).__module__.startswith("onnxruntime."):
                    raise WORDING.meaning(error) from error
                raise
        if isinstance(request, LeaveOut) and self._search is not None:
            return LeftOut(self._search.without(request.steps))
        return Done()


def main() -> None:
    """Serve one search."""
    logging.disable(logging.WARNING)
    HostDevice().limit(MODEL_MEMORY_BYTES)
    server = _Server()
    serve_confined(lambda requests, replies: answer_all(requests, replies, Find | LeaveOut | Bye, server.answer))


if __name__ == "__main__":
    main()
