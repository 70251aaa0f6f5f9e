"""Who is sampled when: interleaved rounds in a seeded order, within a total time."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..item import Item
from .stopping import Protocol, Slot, next_slot

__all__ = ["USUAL_PASSES", "Pace", "fitting", "interleaved", "queued", "slots_of", "warmups_of"]

_FEWEST_ROTATED, _MOST_ROTATED = 3, 256
"""Networks of one rotation: enough to make each other's code cold, and no more than memory maps allow."""

USUAL_PASSES, _MOST_PASSES = 8, 64
"""Passes of one rotation request: where time is not given, and at most."""


def interleaved(items: Iterable[Item], seed: int, process: int, round_: int) -> list[Item]:
    """The items in the order of one round.

    Every round has an order of its own, so that no item always follows the same neighbour: what that one leaves in
    caches and clocks averages out. The order depends on keys and seed alone.
    """
    ordered = sorted(items, key=lambda item: (item.subject, item.key, item.cache or "", item.variant))
    random.Random(f"{seed}:{process}:{round_}").shuffle(ordered)  # noqa: S311  # an order, not a secret
    return ordered


def queued(items: Iterable[Item], seed: int, process: int, *, hurried: bool) -> deque[Item]:
    """The items in the order in which one process loads them.

    Args:
        items: What it measures.
        seed: As for ``interleaved``.
        process: Its number.
        hurried: Whether time may run out: bricks and models themselves then come before other ways to run them.
    """
    order = interleaved(items, seed, process, -1)
    return deque(sorted(order, key=lambda item: bool(item.variant)) if hurried else order)


_PLANNED = 0.8
"""Part of a given total time that is planned; the rest covers what takes longer than was guessed."""

_WARMUPS = ((30_000_000, 4), (300_000_000, 2), (math.inf, 0))
"""Warm-up passes by the time of a pass, nanoseconds: short ones leave less time to settle."""


def fitting(resident: Collection[Item], queue: deque[Item]) -> bool:
    """Whether the next item may be loaded beside others; brings one to the front that may.

    Networks are rotated with others of the same reuse distance, until they touch that much together. What is timed by
    itself goes with its neighbours in the queue only, so that models and rotations alternate.
    """
    first = next(iter(resident), None)
    if first is None:
        return True
    if not first.distance:
        return not queue[0].distance
    touched = sum(item.touched_bytes for item in resident)
    if len(resident) >= _MOST_ROTATED or (touched >= first.distance and len(resident) >= _FEWEST_ROTATED):
        return False
    for place, item in enumerate(queue):
        if item.distance == first.distance:
            del queue[place]
            queue.appendleft(item)
            return True
    return False


def slots_of(item: Item, protocol: Protocol) -> int:
    """Sample requests that an item may still need."""
    return max(1, protocol.blocks - len(item.blocks)) if item.open else 0


@dataclass(slots=True)
class Pace:
    """Keeps a run within its total time.

    Attributes:
        protocol: How items are sampled where time does not press.
        budget_s: Total time; None: as long as it takes.
        overhead_s: Expected time of what is not sampling (workers, loading) from now on.
        shares: Time of an item relative to an equal share, where the total time is given (``allocation``).
    """

    protocol: Protocol
    budget_s: float | None = None
    overhead_s: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)
    _begun: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._begun

    @property
    def expired(self) -> bool:
        """Whether the total time is spent."""
        return self.budget_s is not None and self.elapsed_s >= self.budget_s

    def slot(self, item: Item, left: int) -> Slot:
        """What the next request of an item may spend.

        Args:
            item: The item.
            left: Requests left in the whole run, this one included.
        """
        slot = next_slot(item.blocks, item.run_ns, self.protocol)
        if self.budget_s is None:
            return slot
        share_s = max(0.0, self.budget_s - self.elapsed_s - self.overhead_s) / max(1, left)
        share_s *= _PLANNED * self.shares.get(item.id, 1.0)
        return Slot(min(slot.budget_ns, int(share_s * 1e9)), slot.min_samples)

    def passes(self, items: Sequence[Item], left: int) -> int:
        """How often the next request of a rotation visits each of its items.

        Args:
            items: All of one rotation.
            left: Requests left in the whole run, those of these items included.
        """
        slots = [self.slot(item, left) for item in items]
        fewest = max(slot.min_samples for slot in slots)
        afford = sum(slot.budget_ns for slot in slots) // max(1, sum(item.pass_ns for item in items))
        most = USUAL_PASSES if self.budget_s is None else _MOST_PASSES
        return max(fewest, min(afford, most))


def warmups_of(items: Sequence[Item], *, begun: bool) -> int:
    """Passes of a rotation before those that count: the first ones find memory that was just written elsewhere.

    Args:
        items: What is rotated.
        begun: Whether the same rotation was turned before; only the commits in between then disturbed it.
    """
    pass_ns = sum(item.pass_ns for item in items)
    wanted = next(count for limit, count in _WARMUPS if pass_ns < limit)
    return min(wanted, 1) if begun else max(wanted, 1)
