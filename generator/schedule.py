"""Who is sampled when: interleaved rounds in a seeded order, within a total time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from .item import Item
from .stopping import Protocol, Slot, next_slot

__all__ = ["Pace", "interleaved", "slots_of"]


def interleaved(items: Iterable[Item], seed: int, process: int, round_: int) -> list[Item]:
    """The items in the order of one round.

    Every round has an order of its own, so that no item always follows the same neighbour: what that one leaves in
    caches and clocks averages out. The order depends on keys and seed alone.
    """
    ordered = sorted(items, key=lambda item: (item.subject, item.key))
    random.Random(f"{seed}:{process}:{round_}").shuffle(ordered)  # noqa: S311  # an order, not a secret
    return ordered


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
    """

    protocol: Protocol
    budget_s: float | None = None
    overhead_s: float = 0.0
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
        return Slot(min(slot.budget_ns, int(share_s * 1e9)), slot.min_samples)
