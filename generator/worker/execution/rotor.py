"""One brick on a rotation: its head and its tail, and what one visit tells about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from ...backends.base import Executable, RotatingBackend, Settings
from ...network.copies import chain_input, copied, ordinary
from ...network.network import Network
from .timing import time_once

__all__ = ["Rotor", "build_rotor", "copies_of", "gap_rotor", "head_share"]

_TAIL_NS = 1_200_000
"""The further copies together should run this long: a clock read and a call weigh nothing against it..."""

_FEWEST, _USUAL, _MOST = 2, 8, 32
"""...within these numbers of copies: at least the second, so that heads cost little beside them, where the weights
leave room on the rotation for others; the first in any case."""

_LONGEST_NS = 1_000_000_000
"""A tail is not made to run longer."""

_COPIES_BYTES = 1 << 30
"""Most memory for the weights of one brick's copies."""

_LONG_DISTANCE = 64 << 20
_SHARES = (12, 3)
"""One brick's copies together take at most this part of a short and of a long reuse distance: a short one is made up
of many small bricks, a long one of a few large ones, which the heads of too few copies would make expensive."""

_OFTEN_NS, _SELDOM_NS = 2_000_000, 10_000_000
"""A tail shorter than the first has its head run on every visit; one longer than the second on every eighth."""

_PROBES = 5


@dataclass(slots=True, eq=False)
class Rotor:
    """What is run of one brick on each pass of a rotation.

    Attributes:
        head: One copy.
        tail: ``copies`` more than the head.
        copies: Copies that a net time is of.
        touched_bytes: What one pass touches of its own: weights of all copies, and activations.
        held_bytes: Memory that it holds.
        offset_ns: What the tail takes longer than the head for other reasons than those that are measured.
        heads_ns: Times of the head.
        tails_ns: Times of the tail.
    """

    head: Executable
    tail: Executable
    copies: int
    touched_bytes: int
    held_bytes: int
    offset_ns: int = 0
    heads_ns: list[int] = field(default_factory=list)
    tails_ns: list[int] = field(default_factory=list)

    def begin(self) -> None:
        """Forget the times taken so far."""
        self.heads_ns.clear()
        self.tails_ns.clear()

    def visit(self, number: int) -> None:
        """Run and time the tail, and the head as often as it is worth."""
        expected = self.tails_ns[-1] if self.tails_ns else 0
        if number % _period(expected) == 0:
            self.heads_ns.append(time_once(self.head.run, self.head.synchronize))
        self.tails_ns.append(time_once(self.tail.run, self.tail.synchronize))

    def samples(self) -> tuple[tuple[int, int], ...]:
        """(elapsed_ns, loops) of the copies alone: each time of the tail, less the median time of the head."""
        head = int(median(self.heads_ns))
        return tuple((tail - head - self.offset_ns, 1) for tail in self.tails_ns)

    def close(self) -> None:
        """Release both networks."""
        self.head.close()
        self.tail.close()


def build_rotor(
    network: Network, head: Executable, backend: RotatingBackend, settings: Settings, *, distance: int
) -> Rotor:
    """Make the tail of a brick beside its head.

    Args:
        network: One copy, in the form that the runtime executes.
        head: ``copied(network, 1)``, loaded and run once; the rotor's from now on, unless this fails.
        backend: The runtime.
        settings: How it is set up.
        distance: Reuse distance in bytes that it will be rotated at.

    Raises:
        BackendError: The runtime failed.
    """
    once = _once_ns(head)
    copies = copies_of(once, network.weight_bytes, distance)
    results = head.outputs()
    chained = chain_input(network, results[0]) if results and ordinary(results[0]) else None
    tail = _tail(network, copies, chained, backend, settings)
    activations = network.feed_bytes + head.output_bytes()
    return Rotor(
        head=head,
        tail=tail,
        copies=copies,
        touched_bytes=(copies + 2) * network.weight_bytes + 2 * activations,
        held_bytes=2 * (copies + 2) * network.weight_bytes + 4 * activations,  # packed beside the original
    )


def head_share(tail_ns: float) -> float:
    """Heads that are run per tail, for a tail of so many nanoseconds."""
    return 1 / _period(tail_ns)


def _period(tail_ns: float) -> int:
    """On every how many visits the head is run."""
    return 1 if tail_ns < _OFTEN_NS else 4 if tail_ns < _SELDOM_NS else 8


def gap_rotor(prepare: Callable[[str], Executable], base: str, mixed: str, nodes: int) -> Rotor:
    """The probe of executor gaps: what a node costs more where the one before it was of another kind.

    Args:
        prepare: Loads a built-in network.
        base: A chain of operators of one kind.
        mixed: A chain of as many operators, all of different kinds.
        nodes: How many.

    Returns:
        A rotor whose net time, per copy, is the extra time per node.
    """
    head, tail = prepare(base), prepare(mixed)
    hot = [min(time_once(each.run, each.synchronize) for _ in range(10 * _PROBES)) for each in (head, tail)]
    # The kinds differ in what they compute as well: their difference where all of them are warm is taken off.
    return Rotor(head, tail, copies=nodes, touched_bytes=0, held_bytes=0, offset_ns=hot[1] - hot[0])


def copies_of(once_ns: int, weight_bytes: int, distance: int) -> int:
    """Copies beyond the head's, so that their time stands out and they leave room for others on the rotation."""
    wanted = min(max(math.ceil(_TAIL_NS / max(once_ns, 1)), _USUAL), _MOST)
    fair = distance // _SHARES[distance >= _LONG_DISTANCE] // max(weight_bytes, 1) - 2
    room = _COPIES_BYTES // max(weight_bytes, 1) - 2
    patient = _LONGEST_NS // max(once_ns, 1)
    return max(1, min(wanted, max(fair, _FEWEST), room, patient))


def _once_ns(head: Executable) -> int:
    """Shortest of a few executions, of one where that is long."""
    times: list[int] = []
    while len(times) < _PROBES and sum(times) < _LONGEST_NS // 10:
        times.append(time_once(head.run, head.synchronize))
    return min(times)


def _tail(
    network: Network, copies: int, chained: str | None, backend: RotatingBackend, settings: Settings
) -> Executable:
    """The tail, as a chain where that keeps its values ordinary."""
    if chained is not None:
        tail = backend.prepare(copied(network, 1 + copies, chained=chained), settings)
        tail.run()
        tail.synchronize()
        if ordinary(tail.outputs()[0]):
            return tail
        tail.close()
    tail = backend.prepare(copied(network, 1 + copies), settings)
    tail.run()
    return tail
