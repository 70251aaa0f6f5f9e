"""When sequences would run if branches ran at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from dlbricks.analyzer.report.page.payload import OutlineBlock, at_once, outline
from dlbricks.constructor.composition import contract, critical_path
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[float]]:
    size = draw(st.integers(1, 12))
    pairs = [(one, other) for other in range(size) for one in range(other)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    latencies = draw(st.lists(st.floats(0, 100), min_size=size, max_size=size))
    return edges, latencies


@given(graphs())
def test_nothing_begins_before_what_it_waits_for_and_the_end_is_the_critical_path(
    graph: tuple[list[tuple[int, int]], list[float]],
) -> None:
    edges, latencies = graph
    quotient = contract(edges, [(index,) for index in range(len(latencies))])

    schedule = at_once(quotient, latencies)

    ends = [start + latency for (start, _), latency in zip(schedule, latencies, strict=True)]
    assert all(schedule[then][0] >= ends[first] for first, then in edges)
    assert max(ends) == pytest.approx(critical_path(quotient, latencies).latency)


@given(graphs())
def test_no_two_overlap_in_a_lane(graph: tuple[list[tuple[int, int]], list[float]]) -> None:
    edges, latencies = graph
    quotient = contract(edges, [(index,) for index in range(len(latencies))])

    lanes: dict[int, list[tuple[float, float]]] = {}
    for (start, lane), latency in zip(at_once(quotient, latencies), latencies, strict=True):
        lanes.setdefault(lane, []).append((start, start + latency))

    for jobs in lanes.values():
        jobs.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(jobs))


def test_a_fork_takes_two_lanes() -> None:
    quotient = contract([(0, 1), (0, 2), (1, 3), (2, 3)], [(0,), (1,), (2,), (3,)])

    assert at_once(quotient, [1.0, 5.0, 2.0, 1.0]) == [(0.0, 0), (1.0, 0), (1.0, 1), (6.0, 0)]


# What repeats stands once, and nothing is lost or doubled ----------------------------------------------------------


def unfolded(blocks: Sequence[OutlineBlock], keys: str) -> Iterator[str]:
    """What an outline says, written out again."""
    for begin, width, count, inside in blocks:
        once = [*unfolded(inside, keys)] if inside else [keys[begin]]
        assert len(once) == width
        yield from once * count


@given(st.text(alphabet="abc", max_size=40))
def test_an_outline_written_out_is_the_model(keys: str) -> None:
    assert "".join(unfolded(outline(keys), keys)) == keys


def test_blocks_in_blocks_are_folded() -> None:
    stage = "abb"
    keys = f"s{stage * 3}t"

    assert outline(keys) == [(0, 1, 1, []), (1, 3, 3, [(1, 1, 1, []), (2, 1, 2, [])]), (10, 1, 1, [])]


def test_the_encoders_of_a_transformer_are_one_block() -> None:
    keys = "e" + "qkvsopn" * 12 + "p"

    assert [(width, count) for _, width, count, _ in outline(keys)] == [(1, 1), (7, 12), (1, 1)]
