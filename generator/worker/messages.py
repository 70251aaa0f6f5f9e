"""Requests of a parent and replies of a worker: one line of JSON per request, and one per reply.

The parent writes a request to the worker's standard input and reads its reply from the standard output. The two pipes
carry nothing else. The protocol has files, names and numbers only, so that a worker in another environment can speak
it too. ``docs/contributing/architecture.md`` lists the requests with their replies; ``Refused`` may answer any.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from ...db.values import DEFAULT_RUNTIME, NATIVE, KernelView, Runtime, Stack
from ...errors import WorkerError
from ..network.decoding import DecoderFile


class Request(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower):
    """Base of the parent's messages."""

    @property
    def op(self) -> str:
        """Its name on the wire."""
        return type(self).__name__.lower()


class Reply(msgspec.Struct, frozen=True, tag_field="reply", tag=str.lower):
    """Base of the worker's messages."""


class NetworkFile(msgspec.Struct, frozen=True, kw_only=True):
    """A network in a file.

    Attributes:
        path: ONNX file: a skeleton (``synthetic``) or a whole model. Constants of ``bricks.reference``, for example
            ``OVERHEAD``, name built-in networks instead of a file.
        synthetic: Weights are graph inputs with ``role=weight``, which the worker fills with seeded values.
        overrides: ``dim_param`` to value, for a file with dynamic dimensions.
        inputs: Name, element type and static shape of each input except weights; empty: as the file declares them.
        seed: Seed of weights and inputs.
        as_is: The graph is already in executed form: the runtime's optimisation stays off, regardless of the options.
        in_model: The worker brings a brick into the form that the runtime executes inside a model, and times the layout
            changes at its edges apart.
        variant: Name of one of the backend's algorithms; empty: the backend chooses.
        feeds: npz files with values of its inputs, the last of which holds; other inputs get seeded ones.
    """

    path: str
    synthetic: bool
    overrides: tuple[tuple[str, int], ...] = ()
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    seed: int = 0
    as_is: bool = False
    in_model: bool = False
    variant: str = ""
    feeds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A place to run networks: the configuration of one worker process.

    Attributes:
        runtime: Backend, device and options.
        threads: Threads of the runtime; 0: all physical cores.
        dtype: Precision of the computation.
        together: Its networks are visited alternately: they then share threads.
        command: Starts the process, in another environment; None: the backend's command.
        priority: Priority while it times, one of ``machine.priority.PRIORITIES``.
    """

    runtime: Runtime = DEFAULT_RUNTIME
    threads: int = 1
    dtype: str = NATIVE
    together: bool = False
    command: tuple[str, ...] | None = None
    priority: str = "high"


class Hello(Request, frozen=True):
    """Set up the worker; the first request.

    Attributes:
        place: Configuration of the worker.
        memory_bytes: Limit on private memory above the process's memory with the backend loaded; None: unlimited.
        libraries: Digest to path of the libraries of custom operators that the options name.
    """

    place: Place = Place()
    memory_bytes: int | None = None
    libraries: dict[str, str] = {}


class PackMember(msgspec.Struct, frozen=True):
    """A network that is loaded, alone or in a pack.

    Attributes:
        id: Names it in replies.
        file: Its file.
        copies: Number of copies in its pack, each with separate weights.
        boundary: Its variant (one of ``BOUNDARY``) if a model finds its inputs or outputs cold; else empty.
        twice: Whether other copies run before in its pack (``PackedBrick``).
    """

    id: str
    file: NetworkFile
    copies: int = 1
    boundary: str = ""
    twice: str = ""


class Load(Request, frozen=True, kw_only=True):
    """Load networks, run them once and keep them.

    A pack that is loaded again is made anew, with its members in the order given now.

    Attributes:
        id: Names the network or pack in later requests.
        members: One network, or the bricks of a pack in the order in which they run.
        packed: The members run together, as a pack.
        memory_reuse: For a pack, as in ``Settings``.
        unroll: For a single network: copies in one network; 0: the worker chooses. A whole model takes 1 only.
    """

    id: str
    members: tuple[PackMember, ...]
    packed: bool = False
    memory_reuse: bool = True
    unroll: int = 1


class Time(Request, frozen=True):
    """Execute a loaded network or pack and time it.

    Attributes:
        id: Id of the loaded network or pack.
        loops: Executions that are timed together.
        warmups: Executions before, which are not timed.
        cold: Evict the caches first; there is then one loop.
    """

    id: str
    loops: int = 1
    warmups: int = 0
    cold: bool = False


class Read(Request, frozen=True):
    """End the profile of a pack and read its times; the pack stays loaded."""

    id: str


class Outputs(Request, frozen=True):
    """Execute a loaded network once, and write its inputs and outputs to an npz file."""

    id: str
    to: str


class Types(Request, frozen=True):
    """Execute a skeleton once to find types."""

    file: NetworkFile
    names: tuple[str, ...]


class Extract(Request, frozen=True):
    """Write the graph that the runtime executes for a model, at each of some sizes of its inputs, to a folder each."""

    files: tuple[NetworkFile, ...]
    to: tuple[str, ...]


class Profile(Request, frozen=True):
    """Run a network under the runtime's profiler."""

    file: NetworkFile
    count: int


class Trace(Request, frozen=True):
    """Run a network unchanged and count how often each node is executed."""

    file: NetworkFile


class Occupy(Request, frozen=True):
    """Load a network in a worker that holds no other one, execute it again and again, and drop it.

    Attributes:
        file: The network.
        most: Executions at most.
        most_s: Seconds after which no further execution begins.
    """

    file: NetworkFile
    most: int
    most_s: float


class Decode(Request, frozen=True):
    """Load a decoder and keep it."""

    id: str
    decoder: DecoderFile


class Answer(Request, frozen=True):
    """Execute a kept decoder several times; each time reads the token with the highest score of the time before.

    Attributes:
        id: Id of the decoder.
        past: Cached positions at the beginning, with random keys and values.
        first: Tokens that the first execution reads.
        new: Executions.
        batch: Sequences at once.
    """

    id: str
    past: int
    first: int
    new: int
    batch: int = 1


class Drop(Request, frozen=True):
    """Drop a loaded network, pack or decoder; an unknown id is ignored."""

    id: str


class Bye(Request, frozen=True):
    """End the worker."""


class Done(Reply, frozen=True):
    """A reply without content."""


class Refusal(StrEnum):
    """The kinds of refusal."""

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


class Refused(Reply, frozen=True):
    """The worker could not execute a request."""

    kind: Refusal
    reason: str


class Greeting(Reply, frozen=True):
    """Reply to ``Hello``.

    Attributes:
        stack: Backend, device, versions and every option with its effective value.
        threads: Effective number of threads.
        pid: Process that runs the networks.
        priority: The priority that the system grants while networks are timed, for example ``nice -20``.
    """

    stack: Stack
    threads: int
    pid: int
    priority: str


class OmittedBrick(msgspec.Struct, frozen=True):
    """A brick that was left out of a pack.

    Attributes:
        id: Id of the brick.
        kind: Kind of the refusal; None if the brick may run alone, but with no other bricks.
        reason: One line that names the cause.
    """

    id: str
    kind: Refusal | None
    reason: str


class Loaded(Reply, frozen=True, kw_only=True):
    """Reply to ``Load``.

    Attributes:
        loading_ns: Time of the runtime: every loading and first execution, copies included.
        load_ns: Session creation of a single network.
        first_run_ns: Its first execution.
        unroll: Copies in a single network; divide a loop's time by it.
        left_out: Bricks that were left out of the pack.
    """

    loading_ns: int
    load_ns: int = 0
    first_run_ns: int = 0
    unroll: int = 1
    left_out: tuple[OmittedBrick, ...] = ()


class Timed(Reply, frozen=True):
    """Reply to ``Time``.

    Attributes:
        begun_us: Start of the timed part: microseconds since 1970, UTC.
        elapsed_ns: The timed executions together, less the time that the kernel gave to other programs meanwhile
            (``timing.Interruptions``).
        compute_ns: The slower of two probes of arithmetic, one before and one after.
        memory_ns: The slower of two probes of memory, likewise.
        cpu_ns: CPU time of the process in the timed part.
        switches: How often the kernel took a core away from the process, to run another program.
        waited_ns: Time that all threads of the process together waited for a core; None if the system does not tell.
        edges_ns: The layout changes at the edges of a brick, executed as often; None if it has none.
    """

    begun_us: int
    elapsed_ns: int
    compute_ns: int
    memory_ns: int
    cpu_ns: int
    switches: int | None
    waited_ns: int | None
    edges_ns: int | None = None


class Times(msgspec.Struct, frozen=True):
    """Times of one brick in the visits of a pack.

    Attributes:
        id: Id of the brick.
        whole_ns: Nanoseconds per visit, the mean of its executions.
        inner_ns: The same without the layout changes at its edges; empty if it has none.
        host_ns: Nanoseconds of the processor to enqueue it on a device. Empty if the processor executes it, or if all
            bricks are one launch.
    """

    id: str
    whole_ns: tuple[int, ...]
    inner_ns: tuple[int, ...] = ()
    host_ns: tuple[int, ...] = ()


class Readings(Reply, frozen=True):
    """Reply to ``Read``.

    Attributes:
        times: Times of each brick, per visit in order, less the cost of the runtime's clock.
        idle_ns: True time of a node that computes nothing; the rest of its reading is the cost of the clock.
        watched_ns: If it was compared: the median time of a pass, the sum of the times of all its nodes; else 0.
        unwatched_ns: Time of the same pass without the profiler; else 0.
    """

    times: tuple[Times, ...]
    idle_ns: float
    watched_ns: float = 0.0
    unwatched_ns: float = 0.0


class Typed(Reply, frozen=True):
    """Reply to ``Types``.

    Attributes:
        types: Element type and shape by name; values that could not be computed are missing.
    """

    types: dict[str, tuple[str, tuple[int, ...]]]


class Profiled(Reply, frozen=True):
    """Reply to ``Profile``."""

    view: KernelView


class Traced(Reply, frozen=True):
    """Reply to ``Trace``."""

    counts: dict[str, int]


class Occupied(Reply, frozen=True):
    """Reply to ``Occupy``: resident memory of the process, and single executions.

    Attributes:
        empty_bytes: Before the network is loaded, with the runtime, the worker's own code and the inputs.
        loaded_bytes: After it is loaded.
        first_bytes: After the first execution.
        steady_bytes: After the last one.
        peak_bytes: The largest from then on.
        executions_ns: Nanoseconds of each execution after the first.
    """

    empty_bytes: int
    loaded_bytes: int
    first_bytes: int
    steady_bytes: int
    peak_bytes: int
    executions_ns: tuple[int, ...]


class Answered(Reply, frozen=True):
    """Reply to ``Answer``.

    Attributes:
        tokens_ns: Time of each execution, with the binding of inputs and without the choice of the next token, less
            the time that the kernel gave to other programs.
        tokens: The chosen tokens, of all sequences, in the order of the executions.
    """

    tokens_ns: tuple[int, ...]
    tokens: tuple[int, ...]


AnyRequest = (
    Hello | Load | Time | Read | Outputs | Types | Extract | Profile | Trace | Occupy | Decode | Answer | Drop | Bye
)


def line_of(message: Request | Reply) -> bytes:
    """Return a message as one line of JSON.

    Raises:
        WorkerError: A text in it cannot be encoded in UTF-8, for example a path of undecodable bytes.
    """
    try:
        return msgspec.json.encode(message) + b"\n"
    except UnicodeEncodeError as error:
        raise WorkerError(f"{error.object[:80]!r} has no form in UTF-8", remedy="rename the file") from error


def read_line(line: str | bytes, kind: Any) -> Any:
    """Read one message.

    Args:
        line: A line of JSON.
        kind: The expected message, or a union of expected messages.

    Raises:
        WorkerError: The line is not an expected message.
    """
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = line if isinstance(line, str) else line.decode(errors="replace")
        raise WorkerError(f"not a message of the protocol: {error}: {text[:80]!r}") from error
