"""Statistics of visits: means and their intervals, stalls, quiet visits and what a quiet machine takes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from dlbricks.db.samples.statistics import (
    Baseline,
    block_values,
    half_width,
    quiet_visits,
    student,
    summarise,
    time_blocks,
    undisturbed,
    undisturbed_error,
)
from dlbricks.db.values import Block, Verdict, Visit
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

US = 1_000
QUIET = Visit(0, 20 * US, 30 * US)
LOUD = Visit(0, 60 * US, 300 * US)
BASELINE = Baseline(20 * US, 30 * US)


def block(process: int, session: int, values: list[int], loops: int = 1, visits: tuple[Visit, ...] = ()) -> Block:
    return Block(process, session, tuple((value * loops, loops) for value in values), 0, visits)


def test_times_are_of_one_execution():
    assert block_values([Block(0, 0, ((6000, 3), (8000, 4)))], unroll=2)[0].tolist() == [1000.0, 1000.0]


def test_statistics_of_known_samples():
    summary = summarise([block(0, 0, [1, 2, 3, 4, 5]), block(1, 0, [6, 7, 8, 9, 100])], unroll=1)

    assert summary.median_ns == 5.5
    assert summary.mean_ns == 14.5
    assert summary.trimmed_mean_ns == 5.5  # 3 .. 8
    assert summary.min_ns == 1
    assert summary.samples == 10
    assert summary.block_medians_ns == (3.0, 8.0)
    assert summary.p90_ns == pytest.approx(np.quantile([*range(1, 10), 100], 0.9))


def test_the_mean_and_the_quantiles_are_of_all_visits():
    """Nothing is cut: means add up, trimmed ones do not."""
    summary = summarise([block(0, 0, [10**6] * 19 + [10**9])], unroll=1)

    assert summary.mean_ns == pytest.approx((19 * 1e6 + 1e9) / 20)
    assert summary.p99_ns > 1e8


def test_visits_that_follow_each_other_are_blocks_of_time():
    assert time_blocks([np.arange(6.0), np.arange(3.0)]).tolist() == [1.0, 4.0, 1.0]
    assert time_blocks([np.arange(2.0)]).tolist() == [0.5]
    assert time_blocks([np.arange(7.0)]).size == 2
    assert time_blocks([np.empty(0)]).size == 0


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), min_size=1, max_size=5))
def test_blocks_of_time_keep_to_their_session_and_leave_nothing_out(sessions):
    arrays = [np.array(values, dtype=float) for values in sessions]

    means = time_blocks(arrays)

    assert means.size == sum(max(1, len(values) // 3) for values in sessions)
    assert min(map(min, sessions)) <= means.min() <= means.max() <= max(map(max, sessions))


def test_the_interval_is_student_s_over_blocks_of_time():
    values = [9.0, 10.0, 11.0] * 3 + [12.0] * 3

    summary = summarise([block(0, 0, [round(value * 1e6) for value in values])], unroll=1)

    deviation = math.sqrt(3 * 0.5**2 + 1.5**2) / math.sqrt(3)
    half = student(3) * deviation / 2 * 1e6
    assert summary.ci95_ns == pytest.approx((10.5e6 - half, 10.5e6 + half))


@given(st.floats(0, 1e12))
def test_the_quantile_of_student_s_t_is_scipy_s(degrees):
    assert student(degrees) == pytest.approx(stdtrit(max(1.0, degrees), 0.975), rel=1e-9)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(-(10**4), 10**9), min_size=1, max_size=20), min_size=1, max_size=6), st.integers(1, 8)
)
def test_no_latency_is_negative_though_samples_are(values, unroll):
    """What the clock costs is taken off: a brick of nothing is now and then below zero."""
    blocks = [block(0, session, list(one)) for session, one in enumerate(values)]

    summary = summarise(blocks, unroll)
    quiet_ns, share = undisturbed(blocks, unroll, None)

    low, high = summary.ci95_ns
    assert 0 <= low <= summary.mean_ns <= high
    assert 0 <= summary.min_ns <= summary.median_ns
    assert summary.trimmed_mean_ns >= 0
    assert 0 <= summary.p90_ns <= summary.p99_ns
    assert quiet_ns >= 0
    assert share == 0


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("sessions", "visits", "slow", "noise"),
    [(4, 6, 0.0, 0.02), (4, 6, 0.3, 0.02), (4, 12, 0.3, 0.05), (2, 9, 0.0, 0.02)],
    ids=["calm", "disturbed", "many visits", "few sessions"],
)
def test_the_interval_covers_the_true_mean(sessions, visits, slow, noise):
    """Disturbances that last for three visits each or less; 1500 draws have a standard error of 0.6 %.

    An interval that covers because it is endless is worth nothing: its median half-width is held to twice what the
    noise itself makes it.
    """
    generator = np.random.default_rng(7)
    truth, covered, halves = 1.3e6 * (1 + slow / 4), 0, []
    for _ in range(1500):
        blocks = []
        for session in range(sessions):
            phases = np.repeat(generator.random(visits // 3) < 0.25, 3)
            values = 1.3e6 * (1 + slow * phases) * generator.normal(1, noise, phases.size)
            blocks.append(block(session // 2, session % 2, [round(value) for value in values]))
        low, high = summarise(blocks, 1).ci95_ns
        covered += low <= truth <= high
        halves.append((high - low) / 2 / truth)

    count = sessions * (visits // 3)
    spread = math.sqrt((slow**2 * 0.25 * 0.75) + noise**2 / 3) / math.sqrt(count)
    assert 0.88 <= covered / 1500 <= 0.995
    assert np.median(halves) < 2 * student(count - 1) * spread


def test_verdicts():
    def verdict(spread: float, processes: int = 2) -> Verdict:
        values = [round(1e6 + spread * (1e6 if turn // 3 % 2 else -1e6)) for turn in range(12)]
        return summarise([block(process, 0, values) for process in range(processes)], 1).verdict

    assert verdict(0.01) is Verdict.STABLE
    assert verdict(0.01, processes=1) is Verdict.NOISY
    assert verdict(0.08) is Verdict.NOISY
    assert verdict(0.4) is Verdict.UNSTABLE
    assert summarise([block(0, 0, [1000] * 9)], 1).verdict is Verdict.TIMED_OUT


def test_a_single_sample_shows_nothing_of_its_error():
    assert summarise([block(0, 0, [1000])], 1).ci95_ns == (0.0, 2000.0)


def test_a_baseline_is_of_the_quiet_probes():
    visits = [Visit(number, 20_000 + number, 30_000 + 100 * number) for number in range(101)]

    found = Baseline.of(visits)

    assert found is not None
    assert found.compute_ns == pytest.approx(20_001)
    assert found.memory_ns == pytest.approx(31_000)


def test_a_baseline_of_an_earlier_run_counts_where_it_was_quieter():
    earlier = Baseline(10_000, 10**6)

    assert Baseline.of([QUIET] * 5, [earlier]) == Baseline(10_000, 30_000)
    assert Baseline.of([], [earlier]) == earlier
    assert Baseline.of([]) is None


@pytest.mark.parametrize(
    ("compute", "memory", "quiet"),
    [(1.0, 1.0, True), (1.04, 2.4, True), (1.2, 1.0, False), (1.0, 2.6, False), (0.5, 0.5, True)],
)
def test_a_visit_is_quiet_where_both_probes_are(compute, memory, quiet):
    visit = Visit(0, round(compute * BASELINE.compute_ns), round(memory * BASELINE.memory_ns))

    assert BASELINE.quiet(visit) is quiet


def test_without_a_baseline_or_probes_no_visit_is_known_to_be_quiet():
    probed, unprobed = block(0, 0, [1, 2], visits=(QUIET, QUIET)), block(0, 1, [1, 2, 3])

    assert [one.tolist() for one in quiet_visits([probed, unprobed], BASELINE)] == [[True] * 2, [False] * 3]
    assert [one.tolist() for one in quiet_visits([probed], None)] == [[False] * 2]


def test_a_visit_of_several_threads_is_not_quiet_if_another_program_ran():
    met = replace(QUIET, switches=1)
    visits = block(0, 0, [1, 2, 3], visits=(QUIET, met, replace(QUIET, switches=0)))

    (alone,), (several,) = (quiet_visits([visits], BASELINE, threads=threads) for threads in (1, 2))

    assert (alone.tolist(), several.tolist()) == ([True, True, True], [True, False, True])


def test_the_undisturbed_latency_is_the_mean_of_the_quiet_visits():
    blocks = [
        block(0, 0, [10**6, 12 * 10**5, 2 * 10**6], visits=(QUIET, QUIET, LOUD)),
        block(1, 0, [14 * 10**5, 3 * 10**6], visits=(QUIET, LOUD)),
    ]

    assert undisturbed(blocks, 1, BASELINE) == (pytest.approx(1.2e6), pytest.approx(0.6))
    assert undisturbed(blocks, 2, BASELINE)[0] == pytest.approx(0.6e6)


def test_where_it_was_hardly_ever_quiet_the_fastest_visits_stand_for_it():
    values = [10**6 + 10**4 * number for number in range(21)]
    visits = (QUIET, QUIET, *[LOUD] * 19)

    latency, share = undisturbed([block(0, 0, values, visits=visits)], 1, BASELINE)

    assert latency == pytest.approx(np.mean(values[:4]))
    assert share == pytest.approx(2 / 21)


@given(st.lists(st.tuples(*[st.integers(10**5, 10**7)] * 3), min_size=1, max_size=40))
def test_bricks_of_a_pack_add_up_to_what_its_fastest_visits_took(visits):
    bricks = [[block(0, 0, list(values), visits=(LOUD,) * len(visits))] for values in zip(*visits, strict=True)]
    together = [np.array([sum(values) for values in visits], dtype=float)]

    latencies = [undisturbed(blocks, 1, BASELINE, together=together)[0] for blocks in bricks]

    fastest = np.sort(together[0])[: max(1, round(0.2 * len(visits)))].mean()
    means = [np.mean([samples[0] for samples in blocks[0].samples]) for blocks in bricks]
    assert sum(latencies) <= fastest * (1 + 1e-9)
    assert all(latency <= mean * (1 + 1e-9) for latency, mean in zip(latencies, means, strict=True))
    if all(latency < mean * (1 - 1e-9) for latency, mean in zip(latencies, means, strict=True)):
        assert sum(latencies) == pytest.approx(fastest)


def test_a_busy_neighbour_moves_the_mean_and_hardly_the_undisturbed_latency():
    """A third of all visits twice as slow, and the probes show which."""
    generator = np.random.default_rng(3)
    found = []
    for busy in (0.0, 0.33):
        disturbed = generator.random(60) < busy
        values = 1e6 * (1 + disturbed) * generator.normal(1, 0.01, 60)
        visits = tuple(LOUD if one else QUIET for one in disturbed)
        blocks = [block(0, 0, [round(value) for value in values], visits=visits)]
        found.append((summarise(blocks, 1).mean_ns, undisturbed(blocks, 1, BASELINE)[0]))

    (calm_mean, calm), (busy_mean, busy_ns) = found
    assert busy_mean > 1.15 * calm_mean
    assert busy_ns == pytest.approx(calm, rel=0.02)


def test_the_error_of_an_undisturbed_latency_is_that_of_quiet_visits_alone():
    generator = np.random.default_rng(5)
    calm = [round(value) for value in 1e6 * generator.normal(1, 0.01, 90)]
    loud = [round(value) for value in 1e6 * generator.uniform(1.5, 9.0, 45)]
    blocks = [block(0, 0, [*calm, *loud], visits=(*[QUIET] * 90, *[LOUD] * 45))]

    error, degrees = undisturbed_error(blocks, 1, BASELINE)

    assert degrees == 44
    assert error == pytest.approx(1e6 * 0.01 / math.sqrt(90), rel=0.3)
    assert undisturbed_error(blocks, 2, BASELINE)[0] == pytest.approx(error / 2)


def test_the_error_of_a_low_quantile_is_what_it_scatters_by_when_all_is_repeated():
    generator = np.random.default_rng(6)
    errors, found = [], []
    for _ in range(40):
        values = [round(value) for value in 1e6 * generator.lognormal(0, 0.2, 96)]
        blocks = [block(0, 0, values, visits=(LOUD,) * 96)]
        errors.append(undisturbed_error(blocks, 1, BASELINE)[0])
        found.append(undisturbed(blocks, 1, BASELINE)[0])

    assert np.median(errors) == pytest.approx(np.std(found), rel=0.4)


def test_no_samples_are_no_statistics():
    with pytest.raises(ValueError, match="without samples"):
        summarise([Block(0, 0, ())], unroll=1)


def test_one_block_of_time_says_nothing_of_others():
    assert half_width(np.array([1.0])) == math.inf
    low, high = summarise([block(0, 0, [100, 102])], unroll=1).ci95_ns
    assert low < 101 < high < 200  # of its visits, in place of nothing at all


def test_a_single_time_block_shows_no_error():
    assert undisturbed_error([block(0, 0, [10**6, 10**6, 10**6], visits=(QUIET,) * 3)], 1, BASELINE) is None
    assert undisturbed_error([block(0, 0, [10**6] * 6, visits=(QUIET,) * 6)], 1, BASELINE) == (0.0, 1)
