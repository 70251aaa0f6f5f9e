"""Branches side by side: which operation has which lane, and that none reads what another lane has not written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
from dlbricks.generator.network.network import synthetic_network
from dlbricks.models import find_models
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from dlbricks.generator.backends.torch.torch_graph import MOST_LANES, Lane, TorchNetwork, branched, lanes, translated  # noqa: E402

MODELS = ("squeezenet", "inception_v1")

Reads = list[list[int]]


@st.composite
def graphs(draw: st.DrawFn) -> Reads:
    """Operations in an order in which they can run: what each of them reads, maybe the same value twice."""
    count = draw(st.integers(0, 24))
    return [draw(st.lists(st.integers(0, place - 1), max_size=3)) if place else [] for place in range(count)]


def known(reads: Reads, places: Sequence[Lane]) -> list[set[int]]:
    """Of each operation, those that are over when it begins: what its lane did, and what that waited for."""
    lane_knows: dict[int, set[int]] = {}
    begun: list[set[int]] = []
    for number, place in enumerate(places):
        knows = lane_knows.setdefault(place[0], set())
        for one in place[1]:
            knows |= begun[one] | {one}
        begun.append({*knows})
        knows.add(number)
    return begun


@given(graphs(), st.integers(1, 10))
def test_an_operation_begins_when_all_that_it_reads_is_over(reads, most):
    places = lanes(reads, most)

    assert len(places) == len(reads)
    for number, (before, over) in enumerate(zip(reads, known(reads, places), strict=True)):
        assert {*before} <= over
        assert all(one < number for one in over)


@given(graphs(), st.integers(1, 10))
def test_it_waits_for_what_it_reads_in_other_lanes_and_for_nothing_else(reads, most):
    places = lanes(reads, most)

    for before, place in zip(reads, places, strict=True):
        assert list(place[1]) == sorted({one for one in before if places[one][0] != place[0]})


@given(graphs(), st.integers(1, 10))
def test_there_are_never_more_lanes_than_asked_for_and_none_is_left_out(reads, most):
    used = {lane for lane, _ in lanes(reads, most)}

    assert used == set(range(len(used)))
    assert len(used) <= most


@given(graphs())
def test_where_there_are_lanes_enough_an_only_reader_goes_on_in_the_lane_of_what_it_reads(reads):
    places = lanes(reads, len(reads) + 1)
    readers = [[number for number, before in enumerate(reads) if one in before] for one in range(len(reads))]

    for number, before in enumerate(reads):
        if len({*before}) == 1 and readers[before[0]] == [number]:
            assert places[number][0] == places[before[0]][0]


@given(st.integers(1, 40), st.integers(1, 10))
def test_a_chain_stays_in_one_lane(length, most):
    assert lanes([[], *([place] for place in range(length))], most) == [(0, ())] * (length + 1)


def test_a_fork_has_a_lane_for_each_branch_and_its_join_goes_on_in_one_of_them():
    # 0 ┬ 1 ─ 2 ┬ 5
    #   └ 3 ─ 4 ┘
    found = lanes([[], [0], [1], [0], [3], [2, 4]])

    assert [lane for lane, _ in found] == [0, 0, 0, 1, 1, 0]
    assert [waits for _, waits in found] == [(), (), (), (0,), (), (4,)]


def test_a_lane_whose_branch_is_over_is_used_again():
    # two forks, one after the other
    found = lanes([[], [0], [0], [1, 2], [3], [3], [4, 5]])

    assert {lane for lane, _ in found} == {0, 1}


class Recorded:
    """Streams that run at once what they are given, and keep what each knows to be over, in numbers of operations."""

    def __init__(self) -> None:
        self.lanes: list[int] = []
        self.begun: list[set[int]] = []
        self.knows: dict[int, set[int]] = {0: {-1}}  # -1: the inputs, which the caller's lane has

    @contextmanager
    def entered(self, lane: int) -> Iterator[None]:
        """One operation."""
        self.lanes.append(lane)
        self.begun.append({*self.knows.setdefault(lane, set())})
        yield
        self.knows[lane].add(len(self.lanes) - 1)

    def mark(self, lane: int) -> frozenset[int]:
        """What is over when a lane comes to this."""
        return frozenset(self.knows[lane])

    def wait(self, lane: int, event: frozenset[int]) -> None:
        """That is over for this lane too."""
        self.knows.setdefault(lane, set()).update(event)


@cache
def model(name: str) -> TorchNetwork:
    """A model of the zoo, as functions of PyTorch."""
    (source,) = find_models([name])
    network = synthetic_network(source.skeleton().model)
    return translated(network, float_type=torch.float32, device="cpu", channels_last=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_in_branches_what_it_does_in_a_row(name):
    found = model(name)
    call = branched(found.module, Recorded())

    with torch.inference_mode():
        expected = found.module.forward(*found.inputs)
        for _ in range(2):
            outputs = call(*found.inputs)
            for one, other in zip(outputs, expected, strict=True):
                np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("name", MODELS)
def test_each_value_of_a_model_is_over_for_the_lane_that_reads_it_and_all_for_the_caller_at_the_end(name):
    found, streams = model(name), Recorded()
    nodes = [node for node in found.module.graph.nodes if node.op == "call_function"]
    numbers = {node: number for number, node in enumerate(nodes)}

    with torch.inference_mode():
        branched(found.module, streams)(*found.inputs)

    assert len(streams.lanes) == len(nodes)
    for number, node in enumerate(nodes):
        read = {numbers[each] for each in node.all_input_nodes if each in numbers}
        assert read | {-1} <= streams.begun[number], f"{node} begins too early"
    crossing = [
        (number, numbers[each])
        for number, node in enumerate(nodes)
        for each in node.all_input_nodes
        if each in numbers and streams.lanes[numbers[each]] != streams.lanes[number]
    ]
    assert crossing
    assert streams.knows[0] == {-1, *range(len(nodes))}


def test_the_branches_of_a_module_of_inception_have_lanes_of_their_own():
    found, streams = model("inception_v1"), Recorded()

    with torch.inference_mode():
        branched(found.module, streams)(*found.inputs)

    assert 4 <= len({*streams.lanes}) <= MOST_LANES


def test_branches_that_meet_neither_before_nor_after_begin_with_the_caller_and_end_with_it(skeleton_of):
    graph = (
        "(float[2,3] x, float[2,3] y) => (float[2,3] c, float[2,3] d){a = Relu(x) b = Exp(y) c = Tanh(a) d = Abs(b)}"
    )
    network = synthetic_network(skeleton_of(graph))
    found = translated(network, float_type=torch.float32, device="cpu", channels_last=False)
    streams = Recorded()

    branched(found.module, streams)(*found.inputs)

    assert streams.lanes == [0, 1, 0, 1]
    assert all(-1 in over for over in streams.begun)
    assert streams.knows[0] == {-1, 0, 1, 2, 3}
