"""The process that asks cuDNN for plans: a brick is untrusted, and a library may crash.

It speaks as a worker does (``worker.messages``): one JSON object per line, a request and then its reply.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from ...errors import BackendUnavailable, WorkerError
from ..backends.cudnn.plans import Offer
from ..machine.cores import limit_memory
from ..worker.messages import Bye, Done, Reply, Request
from ..worker.serving import answer_all, serve_confined

COMMAND = (sys.executable, "-P", "-m", "dlbricks.generator.planning.planner")
"""Starts the process."""


class Start(Request, frozen=True):
    """Load the library.

    Attributes:
        gpu: JSON description of the GPU that plans are for.
        memory_bytes: Private memory that the process may take from now on; None: no limit.
    """

    gpu: str
    memory_bytes: int | None = None


class AskPlans(Request, frozen=True):
    """Ask for the plans of one brick."""

    path: str
    dtype: str
    channels_last: bool


class OfferedPlans(Reply, frozen=True):
    """Reply to ``AskPlans``: a ``plans.Offer``, and True for bricks with images, since their layout matters."""

    offer: Offer
    images: bool


class _Planner:
    """State of the process: the library and the GPU."""

    def __init__(self) -> None:
        self._place: dict[str, Any] | None = None

    def answer(self, request: Request) -> Reply:
        if isinstance(request, Start):
            return self._start(request)
        if isinstance(request, AskPlans):
            return self._plans(request)
        return Done()

    def _start(self, request: Start) -> Reply:
        try:
            import cudnn
        except (ImportError, OSError) as error:
            raise BackendUnavailable(f"cuDNN cannot be loaded: {error}") from error
        try:
            self._place = {"device_property": cudnn.create_device_properties(request.gpu)}
        except Exception as error:  # the library's exceptions share no base class
            raise BackendUnavailable(f"cuDNN {cudnn.backend_version_string()} does not plan here: {error}") from error
        limit_memory(request.memory_bytes)
        return Done()

    def _plans(self, request: AskPlans) -> Reply:
        from ...models.reader import read_structure
        from ..backends.cudnn.lowering import translate
        from ..backends.cudnn.operations import merged
        from ..backends.cudnn.plans import Target, offered

        if self._place is None:
            raise WorkerError("plans were asked for before the library was loaded")
        whole = translate(read_structure(Path(request.path)))
        graph = merged(whole, channels_last=request.channels_last)
        offer = offered(graph, Target(request.dtype, request.channels_last, self._place))
        return OfferedPlans(offer, images=any(tensor.image for tensor in whole.tensors.values()))


def serve(requests: Iterable[str], replies: IO[str]) -> None:
    """Answer requests until ``Bye`` or the end of the input."""
    answer_all(requests, replies, Start | AskPlans | Bye, _Planner().answer)


def main() -> None:
    """Confine the process, take the protocol's descriptors, and serve."""
    serve_confined(serve)


if __name__ == "__main__":
    main()
