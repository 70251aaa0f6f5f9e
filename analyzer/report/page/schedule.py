"""When each sequence of a model would run, if branches ran at once."""

from __future__ import annotations

from collections.abc import Sequence

from ....constructor.composition.composition import Quotient

__all__ = ["at_once"]


def at_once(quotient: Quotient, latencies: Sequence[float]) -> list[tuple[float, int]]:
    """Start and lane of each sequence, each as soon as what it waits for is done (O(sequences x lanes)).

    The end of the last is the critical path. Lanes are filled greedily: they are places in a picture, not cores.

    Args:
        quotient: The sequences as a DAG.
        latencies: One per sequence, not negative, in any unit.

    Returns:
        Per sequence its start, in the unit that was given, and the number of its lane from 0.
    """
    starts = [0.0] * len(latencies)
    for position in quotient.order:
        before = quotient.predecessors[position]
        starts[position] = max((starts[one] + latencies[one] for one in before), default=0.0)
    lanes = [0] * len(latencies)
    ends: list[float] = []
    place = {position: number for number, position in enumerate(quotient.order)}
    for position in sorted(quotient.order, key=lambda one: (starts[one], place[one])):
        lane = next((lane for lane, end in enumerate(ends) if end <= starts[position]), len(ends))
        end = starts[position] + latencies[position]
        if lane == len(ends):
            ends.append(end)
        else:
            ends[lane] = end
        lanes[position] = lane
    return list(zip(starts, lanes, strict=True))
