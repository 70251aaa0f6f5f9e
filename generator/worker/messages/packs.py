"""Bricks that are run together, visit by visit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .message import Reply, Request

__all__ = ["LeftOut", "Pack", "Packed", "Times", "Unpack", "Unpacked", "Visit", "Visited"]


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
class Unpack(Request):
    """End the profile of a pack, which stays loaded.

    Attributes:
        id: Of the pack.
    """

    op: ClassVar[str] = "unpack"

    id: str


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
