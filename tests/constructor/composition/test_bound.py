from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from dlbricks.bricks.cutting.sequences import KeyedWindow
from dlbricks.constructor.composition import Cover, contract, critical_path, further_covers, lower_bound, sequential
from dlbricks.constructor.correction import benanza_note
from dlbricks.constructor.result import Term
from dlbricks.db import Stack, Subject
from dlbricks.db.values import INNER
from hypothesis import given
from hypothesis import strategies as st

from ..conftest import one

LATENCIES = st.just(0.0) | st.floats(1e-3, 1e9) | st.integers(0, 3).map(float)


@st.composite
def dags(draw):
    """A DAG of up to nine layers, and what some of its windows of up to five layers cost."""
    size = draw(st.integers(0, 9))
    edges = [pair for pair in itertools.combinations(range(size), 2) if draw(st.booleans())]
    spans = [(a, b) for a in range(size) for b in range(a + 1, min(a + 5, size) + 1)]
    windows = [KeyedWindow(a, b, f"{a} {b}") for a, b in spans if b == a + 1 or draw(st.booleans())]
    lowest = {window.key: draw(LATENCIES) for window in windows if draw(st.integers(0, 7))}
    return size, edges, windows, lowest


def bound_at(granularity, dag):
    size, edges, windows, lowest = dag
    chosen = [window for window in windows if window.end - window.begin <= granularity]
    return lower_bound(further_covers(edges, range(size), chosen, lowest), lowest)


@given(dags())
def test_a_larger_granularity_never_raises_the_sequential_bound(dag):
    bounds = [bound_at(granularity, dag) for granularity in range(1, 6)]
    for smaller, larger in itertools.pairwise(bounds):
        if smaller is not None:
            assert larger.sequential <= smaller.sequential
    for bound in bounds:
        assert bound is None or bound.critical_path <= bound.sequential
    on_a_chain = bound_at(5, (dag[0], [*itertools.pairwise(range(dag[0]))], *dag[2:]))
    assert on_a_chain is None or on_a_chain.critical_path == on_a_chain.sequential


@given(dags(), st.integers(1, 5), st.data())
def test_the_bound_is_below_every_cover(dag, granularity, data):
    """Whatever is asked for, at whatever the bricks cost on one stack."""
    size, edges, windows, lowest = dag
    cover, at = [], 0
    while at < size:
        fitting = [one for one in windows if one.begin == at and one.end - at <= granularity]
        cover.append(data.draw(st.sampled_from(fitting)))
        at = cover[-1].end
    quotient = contract(edges, [range(one.begin, one.end) for one in cover])
    asked = Cover(quotient, tuple(one.key for one in cover))
    chosen = [window for window in windows if window.end - window.begin <= granularity]
    bound = lower_bound([asked, *further_covers(edges, range(size), chosen, lowest)], lowest)
    if any(key not in lowest for key in asked.keys):
        assert bound is None or bound.critical_path <= bound.sequential
        return
    latencies = [lowest[key] + data.draw(LATENCIES) for key in asked.keys]
    assert bound.critical_path <= bound.sequential <= sequential(latencies)
    assert bound.critical_path <= critical_path(quotient, latencies).latency * (1 + 1e-12)
    assert bound.sequential == sequential(lowest[key] for key in bound.sequential_keys)


def test_without_a_measured_cover_there_is_no_bound():
    windows = [KeyedWindow(0, 1, "a"), KeyedWindow(1, 2, "b"), KeyedWindow(0, 2, "ab")]
    assert further_covers([(0, 1)], range(2), windows, {"a": 1.0}) == []
    assert lower_bound([Cover(contract([(0, 1)], [(0,), (1,)]), ("a", "b"))], {"a": 1.0}) is None
    (cover,) = further_covers([(0, 1)], range(2), windows, {"ab": 3.0, "a": 1.0})
    assert cover.keys == ("ab",)


def test_the_critical_path_has_a_cover_of_its_own():
    """Two branches in one brick: the cheapest sum, but nothing in it runs at once."""
    windows = [KeyedWindow(0, 1, "a"), KeyedWindow(1, 2, "b"), KeyedWindow(0, 2, "ab")]
    lowest = {"a": 4.0, "b": 5.0, "ab": 7.0}
    bound = lower_bound(further_covers([], range(2), windows, lowest), lowest)
    assert (bound.sequential, bound.critical_path) == (7.0, 5.0)
    assert (bound.sequential_keys, bound.path_keys) == (("ab",), ("b",))


def test_shorter_bricks_bound_longer_sequences(lab, chain, keys_of, other):
    """The bricks of a finer suite compete, and so do those of any other place to cut."""
    relu, sigmoid = keys_of(chain)[:2]
    pair, inner = (keys_of(chain, 2, overlap=True)[index] for index in (1, 3))
    lab.put([(relu, 2.0), (sigmoid, 3.0), (pair, 9.0)])
    coarse, fine = one(lab, chain, granularity=2), one(lab, chain)
    assert (coarse.sums.sequential_ms, fine.sums.sequential_ms) == (18.0, 10.0)
    assert coarse.bounds.sequential.ms == fine.bounds.sequential.ms == 10.0
    lab.put([(inner, 1.0)], stack=other.key)
    coarse = one(lab, chain, granularity=2, backend="onnxruntime")
    assert coarse.bounds.sequential.ms == coarse.bounds.critical_path.ms == 6.0
    assert one(lab, chain, backend="onnxruntime").bounds.sequential.ms == 10.0


def test_a_bound_needs_no_brick_of_the_asked_cut(lab, fork, keys_of):
    """A sequence that is not measured leaves the total open; its layers one by one still bound it."""
    singles = keys_of(fork)
    lab.put([(key, 1.0) for key in singles])
    answer = one(lab, fork, granularity=2)
    assert answer.sums.sequential_ms is None
    assert (answer.bounds.sequential.ms, answer.bounds.critical_path.ms) == (5.0, 4.0)


def test_connected_bricks_compete_where_they_are_asked_for(lab, fork, keys_of):
    lab.put([(key, 3.0) for key in keys_of(fork, 1)])
    lab.put([(key, 3.0) for key in keys_of(fork, 3)])
    (whole,) = keys_of(fork, 5, connected=True)
    lab.put([(whole, 4.0)])
    assert one(lab, fork, granularity=5, connected=True).bounds.sequential.ms == 4.0
    assert one(lab, fork, granularity=3, connected=True).bounds.sequential.ms > 4.0
    assert one(lab, fork, granularity=5).bounds.sequential.ms > 4.0


def test_algorithms_compete_and_what_is_no_way_to_run_a_brick_does_not(lab, chain, keys_of):
    relu, sigmoid = keys_of(chain)[:2]
    lab.put([(relu, 2.0), (sigmoid, 3.0)])
    lab.put([(relu, 1.0), (sigmoid, 4.0)], variant="extended")
    lab.put([(sigmoid, 2.5)], variant="unpacked")
    lab.put([(relu, 0.1), (sigmoid, 0.1)], variant="inner")
    answer = one(lab, chain)
    assert (answer.sums.sequential_ms, answer.bounds.sequential.ms) == (10.0, 7.0)
    rows = [
        (row.latency_ms, row.lower_bound_ms, row.fastest_stack, row.fastest_variant) for row in answer.parts.sequences
    ]
    assert rows[:2] == [(2.0, 1.0, lab.stack.key, "extended"), (3.0, 2.5, lab.stack.key, "unpacked")]


def test_an_algorithm_alone_is_no_measurement_of_a_brick(lab, chain, keys_of):
    """Nor is there a combination to choose where nothing but algorithms is measured."""
    relu, sigmoid = keys_of(chain)[:2]
    lab.put([(relu, 1.0), (sigmoid, 1.0)], variant="extended")
    answer = one(lab, chain)
    assert (answer.place.system, answer.sums.sequential_ms, answer.parts.coverage.sequences) == (None, None, 0.0)
    lab.put([(relu, 2.0)])
    answer = one(lab, chain)
    assert (answer.parts.coverage.sequences, answer.sums.sequential_ms, answer.bounds.sequential.ms) == (0.5, None, 4.0)


def test_the_references_of_other_stacks_are_other_computations(lab, chain, keys_of, other, graph_of):
    relu, sigmoid = keys_of(chain)[:2]
    lab.put([(relu, 2.0), (sigmoid, 3.0)])
    lab.put([(graph_of(chain).key, 8.0)], subject=Subject.MODEL)
    lab.put([(sigmoid, 1.0)], stack=other.key)
    answer = one(lab, chain, backend="onnxruntime")
    assert answer.bounds.sequential.ratio == 6.0 / 8.0
    assert [row.fastest_stack for row in answer.parts.sequences] == [lab.stack.key, other.key] * 2


@pytest.mark.parametrize("inner", [False, True])
def test_a_stack_that_takes_more_cores_than_threads_bounds_only_its_like(lab, chain, keys_of, inner):
    relu, sigmoid = keys_of(chain)[:2]
    lab.put([(relu, 2.0), (sigmoid, 3.0)])
    several = Stack("onnxruntime", "cpu", lab.stack.versions, (("execution", "parallel"), ("inter_op", "2")))
    lab.store.put_stack(several)
    lab.put([(relu, 1.0), (sigmoid, 1.0)], stack=several.key)
    if inner:  # no way to run the brick: what else there is of it is looked at one by one
        lab.put([(relu, 0.5)], variant=INNER)

    alone, beside = one(lab, chain, stack=lab.stack.key), one(lab, chain, stack=several.key)

    assert {row.fastest_stack for row in alone.parts.sequences} == {lab.stack.key}
    assert {row.fastest_stack for row in beside.parts.sequences} == {several.key}


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("measured_ms", "said"),
    [(20.0, None), (10.0, None), (9.95, "within their intervals"), (9.0, "cause unknown: fusion: ")],
)
def test_a_model_that_beats_its_bound_is_explained(lab, chain, keys_of, graph_of, measured_ms, said):
    lab.put([(key, latency) for key, latency in zip(keys_of(chain)[:2], (2.0, 3.0), strict=True)])
    lab.put([(graph_of(chain).key, measured_ms)], subject=Subject.MODEL)
    answer = one(lab, chain)
    assert answer.bounds.sequential.ratio == pytest.approx(10.0 / measured_ms)
    if said is None:
        assert answer.bounds.note is None
    else:
        assert said in answer.bounds.note
    known = {"overhead": Term(0.2, (0.1, 0.3)), "fusion": Term(0.4, (0.3, 0.5)), "cache": Term(0.3, (0.2, 0.4))}
    reported = benanza_note(answer.bounds, answer.truth, known, parallel=False)
    if measured_ms < 9.5:
        wide = replace(answer.bounds, sequential=replace(answer.bounds.sequential, ci95_ms=(8.0, 12.0)))
        assert benanza_note(wide, answer.truth, known, parallel=False).endswith("equal within their intervals")
        assert "fastest bricks 10 ms, measured 9 ms" in reported
        assert reported.endswith("(0.4 ms), calls of the runtime that only bricks take (0.2 ms)")
        unsure = known | {"fusion": Term(0.4, (-0.1, 0.9))}
        reported = benanza_note(answer.bounds, answer.truth, unsure, parallel=False)
        assert reported.endswith("9 ms: calls of the runtime that only bricks take (0.2 ms); the rest is not explained")
        assert "not every brick" in benanza_note(answer.bounds, answer.truth, None, parallel=False)


def test_windows_that_wait_for_each_other_are_no_cover():
    """Layers that are not in topological order: 0 -> 2 -> 1, with 0 and 1 in one window."""
    windows = [KeyedWindow(0, 2, "ab"), KeyedWindow(2, 3, "c"), *(KeyedWindow(i, i + 1, "abc"[i]) for i in range(2))]
    lowest = {"ab": 1.0, "a": 5.0, "b": 5.0, "c": 1.0}
    (singles,) = further_covers([(0, 2), (2, 1)], range(3), windows, lowest)
    assert singles.keys == ("a", "b", "c")


def test_an_algorithm_is_no_truth(lab, chain, keys_of, graph_of):
    lab.put([(key, 1.0) for key in set(keys_of(chain))])
    lab.put([(graph_of(chain).key, 3.0)], subject=Subject.MODEL, variant="extended")
    assert one(lab, chain).truth.ms is None
