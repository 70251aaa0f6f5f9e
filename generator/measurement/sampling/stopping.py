"""When an item has been sampled enough, and what each request may spend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....db.values import Block, Stop
from .statistics import MIN_SAMPLES, half_width

__all__ = ["Protocol", "Slot", "decide", "next_slot", "spent_ns"]

_CONVERGED = 0.01
"""Relative 95 % half-width of the median that is narrow enough."""
_SHRUNK = 0.95
"""Twice the blocks should narrow the interval to 0.7; above this share of the old width they did nothing."""
_PLATEAU_BLOCKS = 3
"""Fewer blocks do not tell how wide an interval is, and thus not whether it shrinks."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """How one item is sampled.

    Attributes:
        processes: Worker processes, one after the other.
        rounds: Rounds per process; one block of samples each.
        item_budget_ns: Time of one item over all of them.
        timeout_ns: Hard limit of one item; strikes where a single sample is enormous.
    """

    processes: int = 2
    rounds: int = 3
    item_budget_ns: int = 250_000_000
    timeout_ns: int = 120_000_000_000

    @property
    def blocks(self) -> int:
        """Blocks of an item that runs to its end."""
        return self.processes * self.rounds


@dataclass(frozen=True, slots=True)
class Slot:
    """What one sample request may spend."""

    budget_ns: int
    min_samples: int


def spent_ns(blocks: Sequence[Block]) -> int:
    """Time in samples so far."""
    return sum(elapsed for block in blocks for elapsed, _ in block.samples)


def decide(blocks: Sequence[Block], unroll: int, protocol: Protocol) -> Stop | None:
    """Whether an item is done, and why.

    Args:
        blocks: Taken so far, in order.
        unroll: Copies of the subject per loop.
        protocol: How the item is sampled.

    Returns:
        The reason to stop, or None to go on.
    """
    samples = sum(len(block.samples) for block in blocks)
    spent = spent_ns(blocks)
    if samples < MIN_SAMPLES:
        return Stop.TIMEOUT if spent >= protocol.timeout_ns else None
    processes = len({block.process for block in blocks})
    if processes >= 2:
        width = half_width(blocks, unroll)
        if width <= _CONVERGED:
            return Stop.CONVERGED
        half = len(blocks) // 2
        if half >= _PLATEAU_BLOCKS and width >= _SHRUNK * half_width(blocks[:half], unroll):
            return Stop.PLATEAU
    exhausted = len(blocks) >= protocol.blocks or spent >= protocol.item_budget_ns
    if spent >= protocol.timeout_ns or (exhausted and processes >= protocol.processes):
        return Stop.BUDGET
    return None


def next_slot(blocks: Sequence[Block], run_ns: int, protocol: Protocol) -> Slot:
    """What the next block of an item may spend.

    The budget left is spread over the blocks left; the minimum of samples is spread likewise, so that it is reached
    by the last block even where the budget is short. Neither may run past the hard limit, and the worker executes
    once before its first sample; one sample is asked for even where that does not fit.

    Args:
        blocks: Taken so far.
        run_ns: A guess at the time of one loop.
        protocol: How the item is sampled.
    """
    left = max(1, protocol.blocks - len(blocks))
    spent = spent_ns(blocks)
    wanted = -(-max(0, MIN_SAMPLES - sum(len(block.samples) for block in blocks)) // left)
    affordable = (protocol.timeout_ns - spent) // max(1, run_ns) - 1  # the warm-up
    return Slot(
        budget_ns=max(0, protocol.item_budget_ns - spent) // left,
        min_samples=max(1, min(wanted, affordable)),
    )
