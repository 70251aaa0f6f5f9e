"""What a parent asks of a worker, and what it answers to that: one JSON object per line, a request and then its reply.

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
from dataclasses import dataclass, field
from typing import ClassVar

from ...errors import WorkerError
from .replies import Message, parse_line

__all__ = [
    "Bye",
    "Examine",
    "Extract",
    "Hello",
    "Limits",
    "NetworkRequest",
    "Outputs",
    "Pack",
    "Prepare",
    "Profile",
    "Release",
    "Request",
    "Trace",
    "Unpack",
    "Values",
    "Visit",
    "parse_request",
]


@dataclass(frozen=True, slots=True)
class Request(Message):
    """Said by the parent."""

    marker: ClassVar[str] = "op"
    op: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRequest(Request):
    """Base of what is asked about the network in a file.

    Attributes:
        path: ONNX file: a brick or zoo skeleton (``synthetic``), or a whole model. ``OVERHEAD`` of
            ``bricks.reference`` and its like (in place of a path) are networks of our own.
        synthetic: Whether weights are graph inputs marked ``role=weight``, to be filled with seeded values.
        overrides: ``dim_param`` to value, for a file with dynamic dimensions.
        inputs: Non-weight graph inputs (name, dtype, static shape); empty: as the file declares them.
        seed: Seed of weights and inputs.
    """

    path: str
    synthetic: bool
    overrides: tuple[tuple[str, int], ...] = ()
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may use.

    Attributes:
        memory_bytes: Private memory of the worker above what it holds when the backend is loaded; None: no limit.
    """

    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Hello(Request):
    """First request: which runtime, set up how.

    Attributes:
        backend: Name of the entry point in the group ``dlbricks.backends``.
        device: ``cpu`` or ``cuda``.
        options: The backend's own options, checked by it.
        threads: Threads of the runtime; 0 means all physical cores that this process may use.
        limits: Memory limit.
        together: Whether many networks will be visited in turn: they then share threads.
        dtype: Precision that networks are computed in; ``float32``: that of each network itself.
        libraries: Digest to path of the libraries of custom operators that the options name.
    """

    op: ClassVar[str] = "hello"

    backend: str
    device: str = "cpu"
    options: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    limits: Limits = field(default_factory=Limits)
    together: bool = False
    dtype: str = "float32"
    libraries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(NetworkRequest):
    """Load a network, fill it, run it once, and keep it.

    Attributes:
        id: Chosen by the parent; names the network in later requests.
        unroll: Copies in one network; 0: the worker chooses. Networks that are not synthetic take 1 only.
        as_is: It is of a graph that the runtime executes: the runtime's own optimisation stays off, whatever the
            options say.
        variant: The name of one of the backend's algorithms: run with that; empty: as it chooses.
        feeds: npz file with the values of inputs, as ``Outputs`` writes it; empty: seeded ones.
    """

    op: ClassVar[str] = "prepare"

    id: str
    unroll: int = 0
    as_is: bool = False
    variant: str = ""
    feeds: str = ""


@dataclass(frozen=True, slots=True)
class Pack(Request):
    """Load bricks to be run together, and run them once.

    A pack that is packed again, with the same members, only changes their order.

    Attributes:
        id: Chosen by the parent; names the pack in later requests.
        members: Id and ONNX file of each brick, and how often it stands in the pack, each time with weights of its own;
            in the order in which they are run.
        seed: Of weights and inputs.
        as_is: As for ``Prepare``.
        variant: Name of one of the backend's algorithms; empty: as it chooses.
        memory_reuse: As in ``Settings``.
        boundary: Id of each brick that stands at a model's own inputs or outputs, and which of ``BOUNDARY`` it is.
    """

    op: ClassVar[str] = "pack"

    id: str
    members: tuple[tuple[str, str, int], ...]
    seed: int = 0
    as_is: bool = False
    variant: str = ""
    memory_reuse: bool = True
    boundary: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Visit(Request):
    """Execute a pack, or a kept network, and look how quiet the machine is.

    Attributes:
        id: Of a pack or of a prepared network.
        loops: Executions that are timed together.
        warmups: Executions before, that are not.
        cache: ``hot`` (as it is) or ``cold`` (caches are evicted before; there is then one loop).
    """

    op: ClassVar[str] = "visit"

    id: str
    loops: int = 1
    warmups: int = 0
    cache: str = "hot"


@dataclass(frozen=True, slots=True)
class Unpack(Request):
    """End the profile of a pack, which stays loaded.

    Attributes:
        id: Of the pack.
    """

    op: ClassVar[str] = "unpack"

    id: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract(NetworkRequest):
    """Write the graph that the runtime executes for a model, in skeleton form, and the stages on its way there.

    ``executed.onnx`` states the type of every value; ``stage<i>.onnx``, nearest to the source first, those of its
    inputs alone.

    Attributes:
        folder: An existing folder for the files.
    """

    op: ClassVar[str] = "extract"

    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examine(NetworkRequest):
    """Execute the graph that the runtime executes for a model, and time each layer on the way.

    Each is timed with the values that it has there, and with those that it has as a brick.

    Attributes:
        rounds: Differences per layer.
    """

    op: ClassVar[str] = "examine"

    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(NetworkRequest):
    """Load a network, run it under the runtime's profiler, and drop it.

    Attributes:
        executions: How many to profile, after one that warms up.
        as_is: As for ``Prepare``.
        variant: The name of one of the backend's algorithms; empty: as it is.
    """

    op: ClassVar[str] = "profile"

    executions: int
    as_is: bool = False
    variant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(NetworkRequest):
    """Load a network as it stands, run it once, and count how often each of its nodes is executed."""

    op: ClassVar[str] = "trace"


@dataclass(frozen=True, slots=True)
class Release(Request):
    """Drop a kept network or a pack; an unknown id is fine."""

    op: ClassVar[str] = "release"

    id: str


@dataclass(frozen=True, slots=True)
class Bye(Request):
    """End the worker."""

    op: ClassVar[str] = "bye"


_REQUESTS: dict[str, type[Request]] = {
    kind.op: kind
    for kind in (Hello, Prepare, Pack, Visit, Unpack, Outputs, Values, Extract, Examine, Profile, Trace, Release, Bye)
}


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
