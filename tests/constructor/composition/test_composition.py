from __future__ import annotations

import itertools
import math

import networkx as nx
import pytest
from dlbricks.constructor.composition import Window, cheapest_cover, contract, critical_path, sequential
from dlbricks.errors import InvalidSequence
from hypothesis import given
from hypothesis import strategies as st

LATENCIES = st.floats(0, 1e9, allow_nan=False) | st.integers(0, 3).map(float)


@st.composite
def dags(draw, largest: int = 9):
    """A DAG of up to ``largest`` nodes, cut into consecutive groups, with one latency per group."""
    size = draw(st.integers(0, largest))
    pairs = list(itertools.combinations(range(size), 2))
    edges = [pair for pair in pairs if draw(st.booleans())]
    cuts = sorted(draw(st.sets(st.integers(1, size - 1)))) if size > 1 else []
    bounds = [0, *cuts, size] if size else []
    groups = [tuple(range(a, b)) for a, b in itertools.pairwise(bounds)]
    return edges, groups, [draw(LATENCIES) for _ in groups]


def all_paths(size: int, edges: set[tuple[int, int]]):
    """Every path from a start to an end, by brute force."""

    def onwards(path: tuple[int, ...]):
        followers = [b for a, b in edges if a == path[-1]]
        if not followers:
            yield path
        for follower in followers:
            yield from onwards((*path, follower))

    for start in set(range(size)) - {b for _, b in edges}:
        yield from onwards((start,))


@given(dags())
def test_the_critical_path_is_the_longest_of_all_paths(dag):
    edges, groups, latencies = dag
    group_of = {node: i for i, group in enumerate(groups) for node in group}
    contracted = {(group_of[a], group_of[b]) for a, b in edges if group_of[a] != group_of[b]}
    found = critical_path(contract(edges, groups), latencies)
    paths = set(all_paths(len(groups), contracted))
    assert found.latency == pytest.approx(
        max((math.fsum(latencies[i] for i in path) for path in paths), default=0.0), rel=1e-12
    )
    assert found.members in paths or not groups
    assert found.latency == math.fsum(latencies[i] for i in found.members)


@given(dags())
def test_the_critical_path_is_at_most_sequential(dag):
    edges, groups, latencies = dag
    assert critical_path(contract(edges, groups), latencies).latency <= sequential(latencies)


@given(st.lists(LATENCIES, max_size=30))
def test_on_a_chain_they_are_equal(latencies):
    """Bit for bit, whatever the rounding."""
    size = len(latencies)
    quotient = contract(itertools.pairwise(range(size)), [(i,) for i in range(size)])
    found = critical_path(quotient, latencies)
    assert found.members == tuple(range(size))
    assert found.latency == sequential(latencies)


@given(dags())
def test_the_order_is_topological(dag):
    edges, groups, _ = dag
    quotient = contract(edges, groups)
    seen: set[int] = set()
    for group in quotient.order:
        assert set(quotient.predecessors[group]) <= seen
        seen.add(group)
    assert seen == set(range(len(groups)))


def test_a_diamond():
    #      1 ─ 2
    #    /       \
    #  0           4      5 ─ 6 (another component, with its own start and end)
    #    \       /
    #      ─ 3 ─
    edges = [(0, 1), (1, 2), (0, 3), (2, 4), (3, 4), (5, 6)]
    groups = [(0,), (1, 2), (3,), (4,), (5, 6)]
    quotient = contract(edges, groups)
    assert quotient.predecessors == ((), (0,), (0,), (1, 2), ())
    assert quotient.ends == (3, 4)
    found = critical_path(quotient, [1.0, 5.0, 7.0, 1.0, 2.0])
    assert (found.latency, found.members) == (9.0, (0, 2, 3))
    assert critical_path(quotient, [1.0, 5.0, 7.0, 1.0, 20.0]).members == (4,)
    assert sequential([1.0, 5.0, 7.0, 1.0, 2.0]) == 16.0


def test_a_circle_of_groups_is_an_error():
    """0 -> 1 -> 2 with 0 and 2 in one group: each group waits for the other."""
    with pytest.raises(InvalidSequence, match="wait for each other"):
        contract([(0, 1), (1, 2)], [(0, 2), (1,)])


def test_a_layer_in_two_groups_is_an_error():
    with pytest.raises(InvalidSequence, match="layer 1 is in sequences 0 and 1"):
        contract([], [(0, 1), (1, 2)])


@given(st.integers(1, 8), st.data())
def test_arbitrary_groups_are_accepted_exactly_where_the_quotient_is_acyclic(size, data):
    edges = [pair for pair in itertools.combinations(range(size), 2) if data.draw(st.booleans())]
    labels = [data.draw(st.integers(0, 3)) for _ in range(size)]
    groups = [tuple(i for i in range(size) if labels[i] == label) for label in sorted(set(labels))]
    group_of = {node: i for i, group in enumerate(groups) for node in group}
    quotient = nx.DiGraph((group_of[a], group_of[b]) for a, b in edges if group_of[a] != group_of[b])
    if nx.is_directed_acyclic_graph(quotient):
        contract(edges, groups)
    else:
        with pytest.raises(InvalidSequence):
            contract(edges, groups)


# The cheapest choice of windows ------------------------------------------------------------------------------------


def covers(windows: list[Window], size: int, at: int = 0):
    """Every choice of windows that holds each layer once, by brute force."""
    if at == size:
        yield ()
    for position, window in enumerate(windows):
        if window.begin == at:
            for rest in covers(windows, size, window.end):
                yield (position, *rest)


@st.composite
def candidates(draw):
    size = draw(st.integers(0, 7))
    spans = [(begin, end) for begin in range(size) for end in range(begin + 1, min(begin + 3, size) + 1)]
    windows = [
        Window(begin, end, draw(st.none() | st.integers(0, 9).map(float)))
        for begin, end in spans
        if draw(st.booleans())
    ]
    return windows, size


@given(candidates())
def test_the_cheapest_of_all_covers(given_):
    windows, size = given_

    def price(cover):
        chosen = [windows[position] for position in cover]
        return (
            sum(window.end - window.begin for window in chosen if window.latency is None),
            sum(window.latency for window in chosen if window.latency is not None),
            len(chosen),
        )

    every = list(covers(windows, size))
    if not every:
        with pytest.raises(InvalidSequence):
            cheapest_cover(windows, size)
        return
    found = tuple(cheapest_cover(windows, size))
    assert found in every
    assert price(found) == min(map(price, every))


def test_what_is_not_measured_is_never_cheap():
    windows = [Window(0, 2, None), Window(0, 1, 50.0), Window(1, 2, 60.0)]
    assert cheapest_cover(windows, 2) == [1, 2]
    assert cheapest_cover(windows[:1], 2) == [0]


def test_a_model_without_sequences_takes_no_time():
    found = critical_path(contract([], []), [])
    assert (found.latency, found.members, sequential([])) == (0.0, (), 0.0)
