"""Whether two latencies differ: verdicts by test and minimum effect, and how often chance makes one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dlbricks.analyzer.comparison.difference import Relation, difference, discoveries, paired, relation, two_sided
from dlbricks.constructor.uncertainty.calibration import scatter_of
from dlbricks.constructor.uncertainty.interval import Uncertainty, student
from dlbricks.db import Block, Conditions, Measurement, Stop, Subject
from dlbricks.db.samples.statistics import summarise
from dlbricks.db.values import Identity
from hypothesis import given
from hypothesis import strategies as st

SCATTER = scatter_of(None, 1, Subject.MODEL)
LATENCIES = st.floats(1e-3, 1e6)


def verdict(ratio: float, error: float, *, effect: float = 0.03, apart: float = 0.0) -> Relation:
    seen = difference(100.0, 100.0 * ratio, (error, 10), apart=apart)
    return relation(seen, minimum_effect=effect, discovered=discoveries([seen.p])[0])


@pytest.mark.parametrize(
    ("ratio", "error", "more", "expected"),
    [
        (1.00, 0.005, {}, Relation.SAME),
        (1.015, 0.001, {}, Relation.SAME),  # a difference, but none that matters
        (0.80, 0.02, {}, Relation.FASTER),
        (1.25, 0.02, {}, Relation.SLOWER),
        (1.25, 0.30, {}, Relation.UNCLEAR),  # too noisy to tell
        (1.00, 0.05, {}, Relation.UNCLEAR),  # to measure badly is no way to be the same
        (1.029, 0.008, {}, Relation.UNCLEAR),  # a difference, which may matter or not
        (1.029, 0.004, {}, Relation.SLOWER),  # more than half of what matters, and perhaps all of it
        (1 / 1.029, 0.004, {}, Relation.FASTER),
        (1.05, 0.002, {}, Relation.SLOWER),
        (1.05, 0.002, {"effect": 0.10}, Relation.SAME),
        (1.05, 0.005, {"apart": 0.03}, Relation.UNCLEAR),  # the machine may have done it
        (1.25, 0.005, {"apart": 0.03}, Relation.SLOWER),
    ],
)
def test_the_verdict_is_by_test_and_minimum_effect(ratio, error, more, expected) -> None:
    assert verdict(ratio, error, **more) is expected


@given(LATENCIES, LATENCIES, st.floats(0, 0.5), st.floats(3, 100), st.floats(0, 0.1))
def test_to_swap_the_sides_swaps_the_verdict(
    base: float, other: float, error: float, degrees: float, apart: float
) -> None:
    there = difference(base, other, (error, degrees), apart=apart)
    back = difference(other, base, (error, degrees), apart=apart)

    swapped = {Relation.FASTER: Relation.SLOWER, Relation.SLOWER: Relation.FASTER}
    verdicts = [relation(seen, minimum_effect=0.03, discovered=seen.p <= 0.05) for seen in (there, back)]
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.p == pytest.approx(back.p)
    # At an edge of the minimum effect rounding may decide.
    if not math.isclose(abs(math.log(there.ratio)), math.log(1.03), rel_tol=1e-9) and all(
        not math.isclose(end, edge, rel_tol=1e-9)
        for end in (*there.ci95, *back.ci95)
        for edge in (1.03, 1.03**0.5, 1.03**-0.5, 1 / 1.03)
    ):
        assert swapped.get(verdicts[0], verdicts[0]) is verdicts[1]


def test_what_is_known_of_the_machine_has_the_normal_quantile() -> None:
    found = difference(100, 106, (0.0, 1), apart=0.02)

    assert found.ci95 == pytest.approx((1.06 * math.exp(-0.0392), 1.06 * math.exp(0.0392)), rel=1e-3)


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [(2.776, 4, 0.05), (12.706, 1, 0.05), (2.228, 10, 0.05), (4.587, 10, 0.001), (1.96, 1e9, 0.05), (0, 7, 1.0)],
)
def test_p_is_that_of_students_distribution(t: float, degrees: float, p: float) -> None:
    """Critical values as in any table."""
    assert two_sided(t, degrees) == pytest.approx(p, rel=0.002)


@given(st.floats(3, 1e6))
def test_p_agrees_with_the_interval(degrees: float) -> None:
    assert two_sided(student(degrees), degrees) == pytest.approx(0.05, rel=0.03)


def test_discoveries_are_those_of_benjamini_and_hochberg() -> None:
    """The example of their paper (1995, section 3.2): of 15, the four smallest pass; Bonferroni leaves three."""
    ps = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528,
          0.7590, 1.0]  # fmt: skip

    assert discoveries(ps) == [True] * 4 + [False] * 11
    assert discoveries(ps[::-1]) == [False] * 11 + [True] * 4
    assert discoveries([]) == []


# How often -----------------------------------------------------------------------------------------------------------


Taken = tuple[Measurement, list[Block]]


def measured(rng: np.random.Generator, name: str, truth: float = 1e6, visit_sd: float = 0.01) -> Taken:
    """Two processes of two sessions of six visits, as processes and visits scatter on such machines."""
    processes = rng.normal(1, SCATTER.process_sd, 2).repeat(2)[:, None]
    times = truth * (processes + rng.normal(0, visit_sd, (4, 6)))
    blocks = [
        Block(number // 2, number % 2, tuple((int(ns), 1) for ns in session)) for number, session in enumerate(times)
    ]
    identity = Identity(Subject.MODEL, "m", "s", "t", Conditions(1))
    measurement = Measurement(name, name, identity, 1, summarise(blocks, 1), Stop.VISITS)
    return measurement, blocks


def seen(base: Taken, other: Taken, run_sd: float = SCATTER.run_sd) -> tuple[float, Relation]:
    (one, _), (two, _) = base, other
    error, degrees = Uncertainty([one, two], {entry.id: blocks for entry, blocks in (base, other)}).error_ns(
        {one.id: -1 / one.latency_ns, two.id: 1 / two.latency_ns}
    )
    found = difference(one.latency_ns, two.latency_ns, (error, degrees), apart=math.sqrt(2) * run_sd)
    return found.p, relation(found, minimum_effect=0.03, discovered=found.p <= 0.05)


@pytest.mark.parametrize("visit_sd", [0.003, 0.02, 0.1])
def test_what_is_the_same_is_called_different_by_chance_only(visit_sd: float) -> None:
    """500 times A against A: at most the nominal 5 % differ, within what 500 draws scatter."""
    rng = np.random.default_rng(1)

    verdicts = [seen(measured(rng, "a", visit_sd=visit_sd), measured(rng, "b", visit_sd=visit_sd)) for _ in range(500)]

    different = sum(verdict in {Relation.FASTER, Relation.SLOWER} for _, verdict in verdicts)
    assert different / 500 <= 0.07
    assert sum(p <= 0.05 for p, _ in verdicts) / 500 <= 0.07


FAR = math.exp(6 * math.sqrt(2) * math.hypot(SCATTER.run_sd, SCATTER.process_sd))


@pytest.mark.parametrize(
    ("slower", "faster", "run_sd"),
    [(1.2, 0.8, 0.033), (FAR, 1 / FAR, SCATTER.run_sd)],
    ids=["a fifth, on machines that are left alone", "far beyond what runs differ by"],
)
def test_a_difference_is_found_where_blocks_are_tight(slower: float, faster: float, run_sd: float) -> None:
    rng = np.random.default_rng(2)

    for ratio, relation_ in ((slower, Relation.SLOWER), (faster, Relation.FASTER)):
        found = [seen(measured(rng, "a"), measured(rng, "b", truth=1e6 * ratio), run_sd)[1] for _ in range(200)]
        assert found.count(relation_) == 200


def test_what_is_twice_the_minimum_effect_apart_is_never_the_same() -> None:
    rng = np.random.default_rng(3)

    verdicts = [seen(measured(rng, "a"), measured(rng, "b", truth=1.06e6))[1] for _ in range(300)]

    assert verdicts.count(Relation.SAME) <= 3
    assert Relation.FASTER not in verdicts


def test_a_difference_that_nothing_is_known_of_has_an_interval_without_end():
    """One degree of freedom and a wide scatter: the interval would pass what a float can hold."""
    found = difference(1.0, 2.0, (100.0, 1))

    assert found.ratio == 2.0
    assert found.ci95[0] < 1e-20
    assert found.ci95[1] > 1e20
    assert found.p > 0.9


@pytest.mark.parametrize(("by_order", "apart"), [(False, 0.0), (True, 0.0), (True, 0.1)])
def test_processes_are_the_unit_where_there_are_enough(by_order, apart) -> None:
    """Processes differ by 2 %, visits of one process by much less, and orders of loading by 10 % at most."""
    draw = np.random.default_rng(0)
    found = []
    for _ in range(400):
        before = [draw.normal(1e6, 1e3, 9) for _ in range(5)]
        after = [
            own * math.exp(draw.normal(0, 0.02) + apart * (0.5 - process % 2)) for process, own in enumerate(before)
        ]
        low, high = paired(before, after, by_order=by_order).difference.ci95
        found.append(low <= 1 <= high)

    assert 0.92 <= np.mean(found) <= 0.98


def test_few_processes_fall_back_to_time_blocks() -> None:
    before = [np.full(9, 1e6) * (1 + 0.001 * np.arange(9))] * 2

    levels = paired(before, [1.1 * side for side in before])

    assert levels.difference.ratio == pytest.approx(1.1)
    assert levels.after_ms == pytest.approx(1.1 * levels.before_ms)
