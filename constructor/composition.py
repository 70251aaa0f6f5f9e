r"""Composition of a model's latency from the latencies of its sequences.

A model's latency is composed from the latencies :math:`t_i` of its sequences in two ways (DLBricks section 2.1, Benanza
section III.D):

* *sequential*: one after the other, :math:`\sum_i t_i`, each sequence by its number of occurrences;
* *critical path*: independent branches at once, the largest :math:`\sum_{i \in p} t_i` over all paths :math:`p` from
  a start to an end of the *quotient* DAG, in which every sequence is contracted to one node.

Any number of inputs, outputs and unconnected parts is fine. The critical path is at most the sequential latency, and
equal to it on a chain: exactly, since both are sums that are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..bricks.cutting.sequences import KeyedWindow
from ..errors import InvalidSequence

# Covers by overlapping windows.
#
# If windows begin at every layer, a model can be cut in many ways. An estimate from overlapping sequences (DLBricks
# section 6) and the lower bound use the cheapest.


@dataclass(frozen=True, slots=True)
class Window:
    """A window of consecutive layers, half-open.

    Attributes:
        begin: Position of the first layer.
        end: Position behind the last.
        latency: Its latency in any unit; None if not measured.
    """

    begin: int
    end: int
    latency: float | None


def cheapest_cover(windows: Sequence[Window], size: int) -> list[int]:
    """Return the windows that cover each of ``size`` layers exactly once at the smallest total latency.

    This is a shortest path over the cut points 0..size with windows as edges; O(windows). Covers are ordered by number
    of unmeasured layers, then latency, then number of windows. Latencies are added exactly, so that more candidates
    never increase the total, not even by rounding.

    Returns:
        Positions in ``windows``, in the order of the layers.

    Raises:
        InvalidSequence: No choice of windows covers every layer exactly once.
    """
    by_begin: list[list[int]] = [[] for _ in range(size + 1)]
    for position, window in enumerate(windows):
        by_begin[window.begin].append(position)
    cost: list[tuple[int, Fraction, int] | None] = [None] * (size + 1)
    chosen: list[int] = [-1] * (size + 1)
    cost[0] = (0, Fraction(0), 0)
    for begin in range(size):
        base = cost[begin]
        if base is None:
            continue
        missing, latency, count = base
        for position in by_begin[begin]:
            window = windows[position]
            unknown = window.end - begin if window.latency is None else 0
            candidate = (missing + unknown, latency + Fraction(window.latency or 0), count + 1)
            current = cost[window.end]
            if current is None or candidate < current:
                cost[window.end], chosen[window.end] = candidate, position
    if cost[size] is None:
        raise InvalidSequence(f"the sequences given cannot be joined to hold each of {size} layers once")
    cover: list[int] = []
    at = size
    while at > 0:
        cover.append(chosen[at])
        at = windows[chosen[at]].begin
    return cover[::-1]


@dataclass(frozen=True, slots=True)
class Quotient:
    """A DAG with each group of nodes contracted to one node.

    Attributes:
        order: Positions of the groups in topological order.
        predecessors: Predecessors of each group, ascending.
        ends: Groups without successors.
    """

    order: tuple[int, ...]
    predecessors: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """A path of greatest latency.

    Attributes:
        latency: Sum over its groups, in the given unit.
        members: Its groups by position, from a start to an end; empty for a model without sequences.
    """

    latency: float
    members: tuple[int, ...]


def contract(edges: Iterable[tuple[int, int]], groups: Sequence[Sequence[int]]) -> Quotient:
    """Contract groups of nodes and sort them topologically, O(nodes + edges).

    Args:
        edges: (producer, consumer) pairs of node numbers; edges of nodes outside all groups are ignored.
        groups: Disjoint groups of node numbers.

    Raises:
        InvalidSequence: The groups overlap, or the contraction has a cycle.
    """
    import networkx as nx

    group_of: dict[int, int] = {}
    for position, group in enumerate(groups):
        for node in group:
            if group_of.setdefault(node, position) != position:
                raise InvalidSequence(f"layer {node} is in sequences {group_of[node]} and {position}")
    dag: nx.DiGraph[int] = nx.DiGraph()
    dag.add_nodes_from(range(len(groups)))
    pairs = ((group_of.get(producer), group_of.get(consumer)) for producer, consumer in edges)
    dag.add_edges_from((first, then) for first, then in pairs if first is not None and then is not None)
    dag.remove_edges_from(list(nx.selfloop_edges(dag)))
    try:
        order = tuple(nx.topological_sort(dag))
    except nx.NetworkXUnfeasible:
        stuck = sorted({position for edge in nx.find_cycle(dag) for position in edge})
        raise InvalidSequence(
            f"sequences {', '.join(map(str, stuck[:5]))} wait for each other: they cannot be run one by one",
            remedy="use sequences that are paths, without --connected",
        ) from None
    return Quotient(
        order=order,
        predecessors=tuple(tuple(sorted(dag.predecessors(position))) for position in range(len(groups))),
        ends=tuple(position for position in range(len(groups)) if not dag.out_degree(position)),
    )


def sequential(latencies: Iterable[float]) -> float:
    """Return the sum of all latencies, rounded once."""
    return math.fsum(latencies)


def critical_path(quotient: Quotient, latencies: Sequence[float]) -> CriticalPath:
    r"""Return the path of greatest latency, in one topological pass (O(nodes + edges)).

    With :math:`f_i = t_i + \max_{j \to i} f_j` the latency is :math:`\max_i f_i`. The graph may have several starts and
    ends.

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


# The lower bound: the least latency of a model here, from the best stored bricks.
#
# A *cover* cuts the model into measured windows. The cost of a window is the lowest latency of its
# brick over all stacks and variants (frameworks, versions, options, algorithms) on the same system and device, at the
# same precision, threads and cache state. Bricks of at most G layers compete, for every granularity of the estimate:
# a larger G adds longer stored bricks with possibly fused layers. The sequential bound
# therefore never grows with G. The critical path is minimised separately, over a few covers; it assumes that
# parallel branches do not contend (Benanza section III.D).


@dataclass(frozen=True, slots=True)
class Cover:
    """Windows that cover every layer of a model once."""

    quotient: Quotient
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Lower bounds, in the unit of the latencies given.

    Attributes:
        sequential: Least sum of lowest latencies.
        critical_path: Least of the greatest sums along a path; at most ``sequential``.
        sequential_keys: Bricks of the cover of ``sequential``.
        path_keys: Bricks on the critical path.
    """

    sequential: float
    critical_path: float
    sequential_keys: tuple[str, ...]
    path_keys: tuple[str, ...]


def further_covers(
    edges: Iterable[tuple[int, int]], live: Sequence[int], windows: Iterable[KeyedWindow], lowest: Mapping[str, float]
) -> list[Cover]:
    """Return further candidate covers: the cheapest one, and all layers one by one.

    Args:
        edges: (producer, consumer) pairs of layer indices.
        live: Indices of the layers to cover, in order.
        windows: All candidate windows.
        lowest: Lowest latency per key.

    Returns:
        Measured covers without cycles between windows.
    """
    edges = tuple(edges)
    measured = [window for window in windows if window.key in lowest]
    covers: list[Cover] = []
    for choice in (measured, [window for window in measured if window.end == window.begin + 1]):
        candidates = [Window(window.begin, window.end, lowest[window.key]) for window in choice]
        try:
            cover = [choice[position] for position in cheapest_cover(candidates, len(live))]
            quotient = contract(edges, [live[window.begin : window.end] for window in cover])
        except InvalidSequence:
            continue
        covers.append(Cover(quotient, tuple(window.key for window in cover)))
    return covers


def lower_bound(covers: Iterable[Cover], lowest: Mapping[str, float]) -> LowerBound | None:
    """Return the least latencies among covers.

    Args:
        covers: Candidates.
        lowest: Lowest latency per key.

    Returns:
        None if every cover has a brick without any measurement.
    """
    sums: list[tuple[float, tuple[str, ...]]] = []
    paths: list[tuple[float, tuple[str, ...], tuple[str, ...]]] = []
    for cover in covers:
        if all(key in lowest for key in cover.keys):
            latencies = [lowest[key] for key in cover.keys]
            sums.append((sequential(latencies), cover.keys))
            path = critical_path(cover.quotient, latencies)
            paths.append((path.latency, cover.keys, tuple(cover.keys[position] for position in path.members)))
    if not sums:
        return None
    (least_sum, of_sum), (least_path, _, members) = min(sums), min(paths)
    return LowerBound(least_sum, least_path, of_sum, members)


# Selection bias of a lower bound from noisy latencies.
#
# The lowest of several noisy latencies of equal work is too low on average (the winner's curse). A bound selects the
# lowest many times, and a critical path is the longest of several paths, which is too long on average. The cure is to
# select by one view of the data and to read from an independent one. For a normal :math:`x` with error :math:`e` drawn
# anew, :math:`x + e` and :math:`x - e` are such a pair: both have twice its variance, and their covariance is zero
# (Rasines and Young 2023, "Splitting strategies for post-selection inference", Biometrika 110). In each replicate
# bricks, cover and path are chosen anew by the one and read from the other.
#
# Such a latency is never too low on average: it is an unbiased latency of a possibly suboptimal choice. Its distance to
# the bound is the greatest bias. The least bias is a bootstrap's: the fall of the minimum when the same errors are
# added once more. It finds nearly all of the bias for well separated latencies, and two fifths for equal ones. The bias
# of a path is at most the difference between the longest path and an independently selected one.


Array = NDArray[np.float64]

_Seen = Mapping[str, tuple[Array, Array]]
"""Values for selection and for reading of each replicate, by key."""


@dataclass(frozen=True, slots=True)
class SelectionBias:
    """Least and greatest selection bias of bounds (positive: too low), in the unit of the latencies.

    Attributes:
        sequential: The sequential bound.
        critical_path: The critical path; may be negative, because the longest of several paths is too long.
    """

    sequential: tuple[float, float]
    critical_path: tuple[float, float]


def selection_bias(
    covers: Sequence[Cover],
    windows: Sequence[KeyedWindow],
    size: int,
    latencies: Mapping[str, Sequence[float]],
    errors: Mapping[str, Array],
) -> SelectionBias:
    """Return the selection bias of the lowest latencies and covers.

    Args:
        covers: Measured candidates of the bound.
        windows: Parts of further covers, for the sequential bound only.
        size: Number of covered layers.
        latencies: Competing latencies by key.
        errors: Random errors of these latencies by key: one row per latency, one column per replicate.
    """
    seen: dict[str, tuple[Array, Array]] = {}
    taken: dict[str, tuple[Array, Array]] = {}
    alike: dict[int, list[str]] = {}
    for key, values in latencies.items():
        alike.setdefault(len(values), []).append(key)
    for keys in alike.values():  # keys with equal numbers of rivals together
        means = np.array([latencies[key] for key in keys], dtype=np.float64)[:, :, None]
        drawn = np.stack([errors[key] for key in keys])
        chosen_by, read = means + drawn, means - drawn
        best = chosen_by.argmin(axis=1)[:, None]
        lucky, honest = (np.take_along_axis(side, best, axis=1)[:, 0] for side in (chosen_by, read))
        for number, (key, lowest) in enumerate(zip(keys, means.argmin(axis=1)[:, 0], strict=True)):
            seen[key] = lucky[number], honest[number]
            taken[key] = chosen_by[number, lowest], read[number, lowest]
    plain = {key: min(values) for key, values in latencies.items()}
    sums = [(_summed(cover, seen, 0), _summed(cover, seen, 1)) for cover in covers]
    sums += _cheapest([window for window in windows if window.key in seen], size, seen)
    paths = [(_longest(cover, seen, 0, 0), _longest(cover, seen, 1, 1)) for cover in covers]
    naive_sum = min(sum(plain[key] for key in cover.keys) for cover in covers)
    flat = {key: (np.array([value]), np.array([value])) for key, value in plain.items()}
    naive_paths = [float(_longest(cover, flat, 0, 0)[0]) for cover in covers]
    naive_path = min(naive_paths)
    shortest = covers[naive_paths.index(naive_path)]
    longest = _longest(shortest, taken, 1, 1) - _longest(shortest, taken, 0, 1)
    along = critical_path(shortest.quotient, [plain[key] for key in shortest.keys]).members
    fallen = sum(plain[shortest.keys[index]] - float(seen[shortest.keys[index]][0].mean()) for index in along)
    return SelectionBias(
        sequential=_within(naive_sum - _lowest(sums), _read(sums) - naive_sum),
        critical_path=_within(fallen - max(0.0, float(longest.mean())), _read(paths) - naive_path),
    )


def _within(least: float, most: float) -> tuple[float, float]:
    """Return both values with ``most`` raised to at least ``least`` and 0, because replicates are a sample."""
    return least, max(0.0, least, most)


def _lowest(choices: Sequence[tuple[Array, Array]]) -> float:
    """Return the mean over replicates of the selected values."""
    return float(np.stack(np.broadcast_arrays(*(by for by, _ in choices))).min(axis=0).mean())


def _summed(cover: Cover, seen: _Seen, side: int) -> Array:
    return np.sum(np.stack([seen[key][side] for key in cover.keys]), axis=0) if cover.keys else np.zeros(1)


def _read(choices: Sequence[tuple[Array, Array]]) -> float:
    """Return the mean over replicates of the values read."""
    by, read = (np.stack(np.broadcast_arrays(*side)) for side in zip(*choices, strict=True))
    return float(np.take_along_axis(read, by.argmin(axis=0)[None], axis=0).mean())


def _cheapest(windows: Sequence[KeyedWindow], size: int, seen: _Seen) -> list[tuple[Array, Array]]:
    """Return the cheapest cover of each replicate, as selected and as read, if any."""
    cost: list[tuple[Array, Array] | None] = [None] * (size + 1)
    cost[0] = np.zeros(1), np.zeros(1)
    for window in sorted(windows, key=lambda window: window.begin):
        base, current = cost[window.begin], cost[window.end]
        if base is None:
            continue
        by, read = (reached + more for reached, more in zip(base, seen[window.key], strict=True))
        if current is not None:
            less = by < current[0]
            by, read = np.where(less, by, current[0]), np.where(less, read, current[1])
        cost[window.end] = by, read
    last = cost[size]
    return [last] if last is not None and windows else []


def _longest(cover: Cover, seen: _Seen, by: int, read: int) -> Array:
    """Return the longest path of each replicate, selected by one side and read from a side."""
    quotient: Quotient = cover.quotient
    finish: list[tuple[Array, Array]] = [(np.zeros(1), np.zeros(1))] * len(cover.keys)
    for position in quotient.order:
        sides = seen[cover.keys[position]]
        last = _latest([finish[before] for before in quotient.predecessors[position]])
        finish[position] = last[0] + sides[by], last[1] + sides[read]
    return _latest([finish[position] for position in quotient.ends])[1]


def _latest(finished: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the latest of several times in each replicate."""
    if not finished:
        return np.zeros(1), np.zeros(1)
    (by, read), *others = finished
    for other, there in others:
        later = other > by
        by, read = np.where(later, other, by), np.where(later, there, read)
    return by, read
