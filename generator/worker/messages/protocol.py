"""What parent and worker say to each other: one JSON object per line, a request and then its reply.

The parent writes a request (``{"op": ...}``) to the worker's standard input and reads one reply
(``{"ok": ...}``) from its standard output; nothing else ever travels on the two pipes. The protocol knows
files, names and numbers only, so that a runtime that needs an environment of its own can be spoken to as well.

============  ==============  =====================================================
request       reply           what happens
============  ==============  =====================================================
``Hello``     ``Greeting``    backend loaded, options checked, limits set
``Prepare``   ``Prepared``    a network is loaded, run once, and kept
``Pack``      ``Packed``      bricks are loaded to be run together, and run once
``Visit``     ``Visited``     a pack or a kept network is executed, between two probes
``Unpack``    ``Unpacked``    the times of a pack's bricks, visit by visit
``Outputs``   ``Done``        the outputs of one execution are written to an npz file
``Values``    ``Types``       a model is executed once; types of named values
``Extract``   ``Done``        the graph that the runtime executes is written
``Examine``   ``Examined``    its layers are timed with the model's own values and with synthetic ones
``Profile``   ``Profiled``    a network is loaded, run under the runtime's profiler, and dropped
``Trace``     ``Traced``      a network is loaded as it stands, run once, and its nodes' calls are counted
``Release``   ``Done``        a kept network is dropped
``Bye``       ``Done``        the worker ends (so it does when its input closes)
any of them   ``Refused``     what could not be done, in one line
============  ==============  =====================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeVar

from ....errors import WorkerError
from .greeting import Greeting, Hello, Limits
from .inspection import Examine, Examined, LayerEffect, Profile, Profiled, Trace, Traced
from .message import Message, Reply, Request, parse_line
from .packs import LeftOut, Pack, Packed, Times, Unpack, Unpacked, Visit, Visited

__all__ = [
    "Bye",
    "Done",
    "Examine",
    "Examined",
    "Extract",
    "Greeting",
    "Hello",
    "LayerEffect",
    "LeftOut",
    "Limits",
    "Message",
    "Outputs",
    "Pack",
    "Packed",
    "Prepare",
    "Prepared",
    "Profile",
    "Profiled",
    "Refusal",
    "Refused",
    "Release",
    "Reply",
    "Request",
    "Times",
    "Trace",
    "Traced",
    "Types",
    "Unpack",
    "Unpacked",
    "Values",
    "Visit",
    "Visited",
    "parse_reply",
    "parse_request",
]


class Refusal(StrEnum):
    """Why a request was refused."""

    UNSUPPORTED = "unsupported"
    """The runtime cannot express this network."""
    ERROR = "error"
    """The runtime, the file or the request is at fault."""
    MEMORY = "memory"
    """The memory limit was hit; the worker is alive, but best replaced."""
    USAGE = "usage"
    """An option is unknown or has a wrong value."""
    UNAVAILABLE = "unavailable"
    """The runtime is not installed or not usable here."""


@dataclass(frozen=True, slots=True)
class Prepare(Request):
    """Load a network, fill it, run it once, and keep it.

    Attributes:
        id: Chosen by the parent; names the network in later requests.
        path: ONNX file: a brick or zoo skeleton (``synthetic``), or a whole model. ``OVERHEAD`` of
            ``bricks.reference`` and its like (in place of a path) are networks of our own.
        synthetic: Whether weights are graph inputs marked ``role=weight``, to be filled with seeded values.
        overrides: ``dim_param`` to value, for a file with dynamic dimensions.
        inputs: Non-weight graph inputs (name, dtype, static shape); empty: as the file declares them.
        seed: Seed of weights and inputs.
        unroll: Copies in one network; 0: the worker chooses. Networks that are not synthetic take 1 only.
        as_is: It is of a graph that the runtime executes: the runtime's own optimisation stays off, whatever the
            options say.
        variant: The name of one of the backend's algorithms: run with that; empty: as it chooses.
        feeds: npz file with the values of inputs, as ``Outputs`` writes it; empty: seeded ones.
    """

    op: ClassVar[str] = "prepare"

    id: str
    path: str
    synthetic: bool
    overrides: tuple[tuple[str, int], ...] = ()
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    seed: int = 0
    unroll: int = 0
    as_is: bool = False
    variant: str = ""
    feeds: str = ""


@dataclass(frozen=True, slots=True)
class Prepared(Reply):
    """Reply to ``Prepare``.

    Attributes:
        load_ns: Time that the runtime took to load the network (session creation).
        first_run_ns: Time of its first execution.
        prepare_ns: Time of the whole request, both included.
        loading_ns: What the runtime took of it: every loading and first execution, those of the copies included.
        bytes: Weights (twice: runtimes pack them), inputs and outputs that the worker holds for it.
        unroll: Copies in the network; divide a loop's time by it.
    """

    load_ns: int
    first_run_ns: int
    prepare_ns: int
    loading_ns: int
    bytes: int
    unroll: int


@dataclass(frozen=True, slots=True)
class Outputs(Request):
    """Execute a kept network once and write its inputs and outputs (of the first copy).

    Attributes:
        id: Of a prepared network.
        path: The npz file to write, arrays by name of the graph's values.
    """

    op: ClassVar[str] = "outputs"

    id: str
    path: str


@dataclass(frozen=True, slots=True)
class Values(Request):
    """Execute a skeleton-form model once and return the types of some of its values (shape oracle).

    Attributes:
        path: ONNX file in skeleton form.
        names: Values wanted: graph inputs, interior values, outputs.
        seed: Seed of weights and inputs.
    """

    op: ClassVar[str] = "values"

    path: str
    names: tuple[str, ...]
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Types(Reply):
    """Reply to ``Values``.

    Attributes:
        types: Name to (dtype, shape); a value that could not be computed is missing.
    """

    types: Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Extract(Request):
    """Write the graph that the runtime executes for a model, in skeleton form, and the stages on its way there.

    ``executed.onnx`` states the type of every value; ``stage<i>.onnx``, nearest to the source first, those of its
    inputs alone.

    Attributes:
        path: As for ``Prepare``.
        synthetic: As for ``Prepare``.
        folder: An existing folder for the files.
        overrides: As for ``Prepare``.
        inputs: As for ``Prepare``.
        seed: As for ``Prepare``.
    """

    op: ClassVar[str] = "extract"

    path: str
    synthetic: bool
    folder: str
    overrides: tuple[tuple[str, int], ...] = ()
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Release(Request):
    """Drop a kept network or a pack; an unknown id is fine."""

    op: ClassVar[str] = "release"

    id: str


@dataclass(frozen=True, slots=True)
class Bye(Request):
    """End the worker."""

    op: ClassVar[str] = "bye"


@dataclass(frozen=True, slots=True)
class Done(Reply):
    """Reply without content."""


@dataclass(frozen=True, slots=True)
class Refused(Reply):
    """Reply of a worker that could not do it and goes on.

    Attributes:
        kind: Why.
        reason: One line that names the cause.
    """

    ok: ClassVar[bool] = False

    kind: Refusal
    reason: str


_REQUESTS: dict[str, type[Request]] = {
    kind.op: kind
    for kind in (Hello, Prepare, Pack, Visit, Unpack, Outputs, Values, Extract, Examine, Profile, Trace, Release, Bye)
}

_R = TypeVar("_R", bound=Reply)


def parse_request(line: str, known: Mapping[str, type[Request]] = _REQUESTS) -> Request:
    """Read one request; raises ``WorkerError`` for anything else.

    Args:
        line: Of JSON.
        known: Requests by name; a worker's where not given.
    """
    found = parse_line(line)
    kind = known.get(str(found.get("op")))
    if kind is None:
        raise WorkerError(f"unknown request {found.get('op')!r}", remedy=f"known are {', '.join(known)}")
    return kind.from_fields(found)


def parse_reply(line: str, expected: type[_R]) -> _R | Refused:
    """Read one reply of the expected kind, or a refusal; raises ``WorkerError`` for anything else."""
    found = parse_line(line)
    if found.get("ok") is True:
        return expected.from_fields(found)
    if found.get("ok") is False:
        return Refused.from_fields(found)
    raise WorkerError("a reply of the worker has no 'ok'")
