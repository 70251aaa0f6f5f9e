"""One visit as it was taken, and the block that those of a session make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....db.values import Block, Visit
from ...worker.replies import Visited

__all__ = ["Taken", "block_of"]


@dataclass(frozen=True, slots=True)
class Taken:
    """One visit, and the executions that it was of.

    Attributes:
        visited: What the worker said.
        loops: Executions that were timed together.
        warmups: Executions before.
    """

    visited: Visited
    loops: int
    warmups: int

    @property
    def sample(self) -> tuple[int, int]:
        """Nanoseconds, and how many executions took them."""
        return self.visited.elapsed_ns, self.loops


def block_of(process: int, session: int, taken: Sequence[Taken], samples: Sequence[tuple[int, int]]) -> Block:
    """The samples of the visits of a session of a process."""
    when = tuple(Visit(one.visited.begun_us, one.visited.compute_ns, one.visited.memory_ns) for one in taken)
    return Block(process, session, tuple(samples), sum(one.warmups for one in taken), when)
