"""Both ends of the search process: it executes untrusted models, so that it runs apart and may be killed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from ...errors import WorkerError
from ...models import ModelSource
from ..device.host import HostDevice
from ..network.export import export_model
from ..worker import messages
from ..worker.client import MODEL_MEMORY_BYTES, Worker
from ..worker.serving import answer_all, serve_confined
from .checking import Race, Samples, race, read_subject
from .engines import ENGINES
from .search import Found, Search, SearchRequest, found_path

_COMMAND = (sys.executable, "-P", "-m", "dlbricks.generator.rewriting.process")

_T = TypeVar("_T")

_GRACE_S = 60.0
"""Seconds beyond its budget after which a search is killed: reading and checking a large model is not in the budget."""


def as_file(source: ModelSource, folder: Path) -> ModelSource:
    """Return a model as a file with weights: its own file, or for the zoo the result of ``models export``.

    Raises:
        ModelError: It cannot be read or bound.
        BackendError: It cannot be written.
        OSError: It cannot be written there.
    """
    if source.path is not None:
        return source
    path = folder / "original.onnx"
    export_model(source, path, force=True)
    return replace(source, path=path, zoo=None, batch=None, dims=())


class Searching:
    """A search process, kept while its models are proven.

    Args:
        request: Settings of the search.
    """

    def __init__(self, request: SearchRequest) -> None:
        self._request = request
        self._worker = Worker(command=_COMMAND)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.kill()

    def find(self) -> Found:
        """Search, and return the results so far even if the process dies.

        Raises:
            BackendError: The model cannot be read or run.
            WorkerError: The process died before anything was tried.
        """
        call = messages.Call(what="rewrites", names=(msgspec.json.encode(self._request).decode(),))
        try:
            return self._ask(call, Found)
        except WorkerError:
            path = found_path(Path(self._request.folder))
            if not path.exists():
                raise
            return msgspec.json.decode(path.read_bytes(), type=Found)

    def without(self, steps: Sequence[int]) -> str:
        """Have the model written without some steps, and return why that is not possible; empty if it is.

        Raises:
            WorkerError: The process died.
        """
        return self._ask(messages.Call(what="without", names=tuple(map(str, steps))), str)

    def _ask(self, call: messages.Call, kind: type[_T]) -> _T:
        limit_s = self._request.budget_s + _GRACE_S
        return messages.read_answer(self._worker.ask(call, messages.Called, limit_s), kind)


def raced(asked: Race) -> Samples:
    """Time pairs of files in a fresh process.

    Raises:
        BackendError: A file does not run.
        WorkerError: The process died.
    """
    worker = Worker(command=_COMMAND)
    try:
        call = messages.Call(what="race", names=(msgspec.json.encode(asked).decode(),))
        return messages.read_answer(worker.ask(call, messages.Called, asked.budget_s + _GRACE_S), Samples)
    finally:
        worker.kill()


class _Server:
    """Answers the requests of one search."""

    def __init__(self) -> None:
        self._search: Search | None = None

    def answer(self, request: messages.AnyRequest) -> messages.Reply:
        """Execute a request and return its reply."""
        if isinstance(request, messages.Call) and request.what == "rewrites":
            wanted = msgspec.json.decode(request.names[0], type=SearchRequest)
            subject = read_subject(Path(wanted.path), wanted.batch, dict(wanted.dims))
            self._search = Search(subject, wanted)
            return messages.Called(value=msgspec.Raw(msgspec.json.encode(self._search.run(ENGINES))))
        if isinstance(request, messages.Call) and request.what == "race":
            timed = race(msgspec.json.decode(request.names[0], type=Race))
            return messages.Called(value=msgspec.Raw(msgspec.json.encode(timed)))
        if isinstance(request, messages.Call) and request.what == "without" and self._search is not None:
            why = self._search.without([int(name) for name in request.names])
            return messages.Called(value=msgspec.Raw(msgspec.json.encode(why)))
        return messages.Done()


def main() -> None:
    """Serve one search."""
    logging.disable(logging.WARNING)
    HostDevice().limit(MODEL_MEMORY_BYTES)
    server = _Server()
    serve_confined(lambda requests, replies: answer_all(requests, replies, messages.AnyRequest, server.answer))


if __name__ == "__main__":
    main()
