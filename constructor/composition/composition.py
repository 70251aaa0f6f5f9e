r"""From the latencies of sequences to the latency of a model: the whole method in one short file.

A model's latency is composed from the latencies :math:`t_i` of its sequences in two ways (DLBricks section 2.1, Benanza
section III.D):

* *sequential*: one after the other, :math:`\sum_i t_i`, each sequence as often as the model holds it;
* *critical path*: independent branches at once, the largest :math:`\sum_{i \in p} t_i` over all paths :math:`p` from
  a start to an end of the DAG that remains when every sequence is contracted to one node (the *quotient* DAG).

Any number of inputs, outputs and unconnected parts is fine. The critical path is at most the sequential latency, and
equal to it on a chain: exactly, since both are sums that are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...errors import InvalidSequence

__all__ = ["CriticalPath", "Quotient", "contract", "critical_path", "sequential"]


@dataclass(frozen=True, slots=True)
class Quotient:
    """What remains of a DAG when each group of its nodes is contracted to one node.

    Attributes:
        order: The groups, by position, in a topological order.
        predecessors: For each group the groups that it waits for, ascending.
        ends: Groups that nothing waits for.
    """

    order: tuple[int, ...]
    predecessors: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """A path of greatest latency.

    Attributes:
        latency: Sum over its groups, in the unit that was given.
        members: Its groups by position, from a start to an end; empty for a model without sequences.
    """

    latency: float
    members: tuple[int, ...]


def contract(edges: Iterable[tuple[int, int]], groups: Sequence[Sequence[int]]) -> Quotient:
    """Contract groups of nodes and order what remains (Kahn's algorithm, O(nodes + edges)).

    Args:
        edges: (producer, consumer) pairs of node numbers; edges at nodes in no group are left out.
        groups: Disjoint groups of node numbers.

    Raises:
        InvalidSequence: The groups overlap, or wait for each other in a circle: then no order runs them one by one.
    """
    group_of: dict[int, int] = {}
    for position, group in enumerate(groups):
        for node in group:
            if group_of.setdefault(node, position) != position:
                raise InvalidSequence(f"layer {node} is in sequences {group_of[node]} and {position}")
    before: list[set[int]] = [set() for _ in groups]
    after: list[list[int]] = [[] for _ in groups]
    for producer, consumer in edges:
        first, then = group_of.get(producer), group_of.get(consumer)
        if first is not None and then is not None and first != then and first not in before[then]:
            before[then].add(first)
            after[first].append(then)
    waiting = [len(ready) for ready in before]
    order = [position for position, count in enumerate(waiting) if not count]
    for position in order:  # grows while it is walked
        for follower in after[position]:
            waiting[follower] -= 1
            if not waiting[follower]:
                order.append(follower)
    if len(order) < len(groups):
        stuck = [position for position, count in enumerate(waiting) if count]
        raise InvalidSequence(
            f"sequences {', '.join(map(str, stuck[:5]))} wait for each other: they cannot be run one by one",
            remedy="use sequences that are paths, without --connected",
        )
    return Quotient(
        order=tuple(order),
        predecessors=tuple(tuple(sorted(ready)) for ready in before),
        ends=tuple(position for position, followers in enumerate(after) if not followers),
    )


def sequential(latencies: Iterable[float]) -> float:
    """Sum of all latencies, rounded once."""
    return math.fsum(latencies)


def critical_path(quotient: Quotient, latencies: Sequence[float]) -> CriticalPath:
    r"""The path of greatest latency, in one pass in topological order (O(nodes + edges)).

    With :math:`f_i = t_i + \max_{j \to i} f_j` the latency is :math:`\max_i f_i`; each group remembers which
    predecessor it waited for. No single start or end is assumed.

    Args:
        quotient: From ``contract``.
        latencies: One per group, not negative, in any unit.
    """
    finish = [0.0] * len(quotient.order)
    waited_for: list[int | None] = [None] * len(quotient.order)
    for position in quotient.order:
        last = max(quotient.predecessors[position], key=finish.__getitem__, default=None)
        waited_for[position] = last
        finish[position] = latencies[position] + (0.0 if last is None else finish[last])
    members: list[int] = []
    step = max(quotient.ends, key=finish.__getitem__, default=None)
    while step is not None:
        members.append(step)
        step = waited_for[step]
    members.reverse()
    return CriticalPath(latency=sequential(latencies[position] for position in members), members=tuple(members))
