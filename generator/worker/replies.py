"""What a worker answers (``requests`` says to what), and how a message becomes a line of JSON and is read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from ...db.values import KernelView, Stack
from ...errors import WorkerError

__all__ = [
    "Done",
    "Examined",
    "Greeting",
    "LayerEffect",
    "LeftOut",
    "Message",
    "Packed",
    "Prepared",
    "Profiled",
    "Refusal",
    "Refused",
    "Reply",
    "Times",
    "Traced",
    "Types",
    "Unpacked",
    "Visited",
    "parse_line",
    "parse_reply",
]


@dataclass(frozen=True, slots=True)
class Message:
    """Base of everything that is said.

    Attributes:
        marker: Name of the class attribute that its line begins with.
    """

    marker: ClassVar[str]

    def to_json(self) -> str:
        """One line of JSON, without the newline."""
        return json.dumps({self.marker: getattr(self, self.marker), **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_fields(cls, found: Mapping[str, Any]) -> Self:
        """Build from parsed JSON; raises ``WorkerError`` where a field is missing, unknown or of a wrong kind."""
        try:
            message: Self = _revive(cls, {name: value for name, value in found.items() if name != cls.marker})
        except (KeyError, TypeError, ValueError) as error:
            raise WorkerError(f"not a {cls.__name__} message: {error}") from error
        return message


@dataclass(frozen=True, slots=True)
class Reply(Message):
    """Said by the worker."""

    marker: ClassVar[str] = "ok"
    ok: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Done(Reply):
    """Reply without content."""


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
class Refused(Reply):
    """Reply of a worker that could not do it and goes on.

    Attributes:
        kind: Why.
        reason: One line that names the cause.
    """

    ok: ClassVar[bool] = False

    kind: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class Greeting(Reply):
    """Reply to ``Hello``.

    Attributes:
        stack: Backend, device, versions and every option with its effective value.
        threads: Effective number of threads.
        pid: Process that the networks run in.
    """

    stack: Stack
    threads: int
    pid: int


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
class LeftOut:
    """A brick that is not in a pack.

    Attributes:
        id: Of the brick.
        kind: A ``Refusal``; empty where it may run by itself, but with no others.
        reason: One line that names the cause.
    """

    id: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Packed(Reply):
    """Reply to ``Pack``.

    Attributes:
        prepare_ns: Time of the whole request.
        loading_ns: What the runtime took of it.
        bytes: Memory that the worker holds for it.
        left_out: Bricks that it is without.
    """

    prepare_ns: int
    loading_ns: int
    bytes: int
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Visited(Reply):
    """Reply to ``Visit``.

    Attributes:
        begun_us: When the timed part began: microseconds since 1970, UTC.
        elapsed_ns: The timed executions together.
        compute_ns: The slower of two probes of arithmetic, one before and one after.
        memory_ns: The slower of two probes of memory, likewise.
    """

    begun_us: int
    elapsed_ns: int
    compute_ns: int
    memory_ns: int


@dataclass(frozen=True, slots=True)
class Times:
    """What a pack's visits say of a brick.

    Attributes:
        id: Of the brick.
        whole_ns: Nanoseconds per visit, the mean of its executions.
        inner_ns: The same without the layout changes at its edges; empty where there are none.
        host_ns: What the processor takes to enqueue it, where a device does the work; empty where it does it itself, or
            where all bricks are one launch.
    """

    id: str
    whole_ns: tuple[int, ...]
    inner_ns: tuple[int, ...] = ()
    host_ns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Unpacked(Reply):
    """Reply to ``Unpack``.

    Attributes:
        times: Of each brick, per visit in order; the cost of the runtime's clock is taken off.
        watched_ns: Median time of a pass, by the times of all its nodes.
        unwatched_ns: Of passes that nobody watched.
    """

    times: tuple[Times, ...]
    watched_ns: float
    unwatched_ns: float


@dataclass(frozen=True, slots=True)
class Types(Reply):
    """Reply to ``Values``.

    Attributes:
        types: Name to (dtype, shape); a value that could not be computed is missing.
    """

    types: Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class LayerEffect:
    """One layer with the model's own values and with synthetic ones.

    Attributes:
        index: Of the layer, in the executed graph's order.
        op_type: Its operator.
        subnormal_in: Share of subnormal numbers among the floating ones that it reads.
        subnormal_out: Among those that it writes.
        own_ns: Median latency with the model's own values.
        synthetic_ns: With those of a brick.
        differences_ns: Per round, by how much it is longer with its own values.
    """

    index: int
    op_type: str
    subnormal_in: float
    subnormal_out: float
    own_ns: float
    synthetic_ns: float
    differences_ns: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Examined(Reply):
    """Reply to ``Examine``.

    Attributes:
        layers: Every layer that reads what is computed from the model's inputs.
    """

    layers: tuple[LayerEffect, ...]


@dataclass(frozen=True, slots=True)
class Profiled(Reply):
    """Reply to ``Profile``.

    Attributes:
        view: The kernels that ran.
    """

    view: KernelView


@dataclass(frozen=True, slots=True)
class Traced(Reply):
    """Reply to ``Trace``.

    Attributes:
        calls: Executions of each node by its name, those in bodies of control flow too.
    """

    calls: Mapping[str, int]


_R = TypeVar("_R", bound=Reply)


def parse_reply(line: str, expected: type[_R]) -> _R | Refused:
    """Read one reply of the expected kind, or a refusal; raises ``WorkerError`` for anything else."""
    found = parse_line(line)
    if found.get("ok") is True:
        return expected.from_fields(found)
    if found.get("ok") is False:
        return Refused.from_fields(found)
    raise WorkerError("a reply of the worker has no 'ok'")


def parse_line(text: str) -> dict[str, Any]:
    """Read one line; raises ``WorkerError`` for anything but a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise WorkerError(f"not a line of JSON: {text[:80]!r}") from error
    if not isinstance(found, dict):
        raise WorkerError(f"not a JSON object: {text[:80]!r}")
    return found


def _revive(hint: Any, value: Any) -> Any:
    """Give a JSON value the field's type: a dataclass, a tuple of these, an enum, or tuples for lists."""
    if isinstance(hint, type) and is_dataclass(hint):
        if not isinstance(value, dict):
            raise TypeError(f"{hint.__name__} cannot be {value!r:.80}")
        hints = get_type_hints(hint)
        return hint(**{name: _revive(hints[name], item) for name, item in value.items()})
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(value)
    if get_origin(hint) is tuple and is_dataclass(get_args(hint)[0]) and isinstance(value, list):
        return tuple(_revive(get_args(hint)[0], item) for item in value)
    if isinstance(hint, type) and not isinstance(value, hint):
        raise TypeError(f"{value!r:.80} is not {hint.__name__}")
    return _frozen(value)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return value
