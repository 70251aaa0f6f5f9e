"""How often to visit, and when the time is up."""

from __future__ import annotations

import pytest
from dlbricks.db.samples.statistics import MIN_SAMPLES
from dlbricks.generator.machine.lock import work_clock
from dlbricks.generator.measurement import pace as module
from dlbricks.generator.measurement.pace import Pace, loops_of, warmups_of
from hypothesis import given
from hypothesis import strategies as st

MS = 1_000_000


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module", autouse=True)
def usual_visits(brief_visits):
    """Visits as long, and as many, as those of users."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in brief_visits.items():
            patch.setattr(module, name, value)
        yield


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module.time, "monotonic", made)
    return made


def paced(clock: Clock, **options: object) -> Pace:
    return Pace(_begun=clock.now, **options)


def ended(sessions: int) -> Pace:
    """A pace of many sessions whose time is just spent."""
    return Pace(24, budget_s=1e4, waiting=sessions, _begun=module.time.monotonic() - 1.01e4)


def test_without_a_budget_there_are_as_many_visits_as_asked_for(clock):
    pace = paced(clock, visits=24)
    pace.allot()
    clock.now += 1e6

    assert not pace.expired
    assert pace.wanted == 24
    assert [pace.enough(done, 6) for done in (0, 5, 6, 7)] == [False, False, True, True]


def test_a_budget_is_parted_among_the_sessions_that_are_left(clock):
    pace = paced(clock, visits=24, budget_s=40.0, waiting=4)
    fewest = -(-24 * MIN_SAMPLES // pace.wanted)

    pace.allot()
    assert pace.waiting == 3
    clock.now += 9.9
    assert not pace.enough(fewest, 24)
    clock.now += 0.2
    assert pace.enough(fewest, 24)
    assert not pace.enough(fewest - 1, 24)  # a session keeps to its share of the least, whatever the time
    pace.allot()  # the second of four has a third of what is left
    clock.now += 9.9
    assert not pace.enough(fewest, 24)
    clock.now += 0.2
    assert pace.enough(fewest, 24)


def test_a_generous_budget_ends_with_the_visits_that_were_planned(clock):
    pace = paced(clock, visits=24, budget_s=1e6, waiting=1)
    pace.allot()

    assert pace.wanted > 24
    assert pace.enough(pace.wanted, pace.wanted)
    assert not pace.enough(pace.wanted - 1, pace.wanted)


def test_a_deadline_ends_visits_whatever_was_planned(clock):
    pace = paced(clock, visits=24, deadline=work_clock() + 5)

    assert (pace.expired, pace.enough(0, 24)) == (False, False)
    clock.now += 5
    assert (pace.expired, pace.enough(0, 24)) == (True, True)


@given(st.integers(1, 96), st.integers(1, 8))
def test_sessions_that_end_early_have_enough_samples_together(wanted, sessions):
    """However late: what all sessions visit at least makes a measurement, while the total time is not overrun."""
    pace = ended(sessions)
    planned = -(-pace.wanted // sessions)

    done = 0
    for _ in range(sessions):
        pace.allot()
        done += next(count for count in range(planned + 1) if pace.enough(count, planned))

    assert done >= MIN_SAMPLES
    assert not Pace(wanted).enough(wanted - 1, wanted)


@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_the_first_process_alone_makes_a_measurement(sessions):
    """On a machine so busy that the time is up before another process begins, everything has been visited enough."""
    pace, done = ended(sessions), {True: 0, False: 0}

    for first in done:
        pace.expect(2, sessions, first=first)
        for _ in range(sessions):
            pace.allot()
            done[first] += next(count for count in range(25) if pace.enough(count, 24))

    assert done[True] >= MIN_SAMPLES > done[False] > 0


def test_once_the_time_is_overrun_three_visits_are_a_measurement(clock):
    pace = paced(clock, visits=24, budget_s=60.0)
    pace.expect(1, 1, first=True)
    pace.allot()

    clock.now += 61.0
    assert (pace.enough(3, pace.wanted), pace.enough(9, pace.wanted), pace.enough(10, pace.wanted)) == (
        False,
        False,
        True,
    )
    assert pace.suffices == MIN_SAMPLES
    clock.now += 6.0
    assert (pace.enough(2, pace.wanted), pace.enough(3, pace.wanted)) == (False, True)
    assert pace.suffices == 3


@pytest.mark.parametrize(("others", "fewest"), [(0, 10), (1, 3)])
def test_a_group_whose_share_is_spent_leaves_time_for_the_first_visits_of_others(clock, others, fewest):
    pace = paced(clock, visits=24, budget_s=60.0)
    pace.expect(1 + others, 1, first=True, others=others)
    pace.allot()

    clock.now += 29.0
    assert not pace.enough(9, pace.wanted)
    clock.now += 2.0 if others else 32.0
    done = next(count for count in range(25) if pace.enough(count, pace.wanted))
    pace.expect(1, 1, first=False)

    assert (done, pace.suffices) == (fewest, fewest)


@given(st.integers(1, 10**10))
def test_short_ones_are_looped_and_long_ones_are_not(run_ns):
    loops = loops_of(run_ns)

    assert loops >= 1
    assert loops == 1 or (loops - 1) * max(run_ns, 1000) < 20 * MS <= loops * max(run_ns, 1000)


def test_what_is_left_begins_as_the_forecast_and_keeps_to_the_budget(clock):
    pace = paced(clock, visits=24, forecast_s=100.0)
    assert pace.remaining_s(0, 24) == pytest.approx(100.0)

    clock.now += 40.0  # loading, and the first visit
    assert pace.remaining_s(1, 23) == pytest.approx((40 * 23 * 1 + 60 * 23) / 24)
    clock.now += 80.0
    assert pace.remaining_s(23, 1) == pytest.approx(120 / 23 * 23 / 24)
    assert paced(clock, visits=24).remaining_s(0, 24) is None

    bounded = paced(clock, visits=24, budget_s=30.0, forecast_s=460.0)
    clock.now += 10.0
    assert bounded.remaining_s(2, 90) == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("budget_s", "waiting", "taken_s", "enough"),
    [(None, 1, 1e9, True), (60.0, 0, 50.0, True), (60.0, 3, 20.0, True), (60.0, 9, 20.0, False), (0.0, 1, 1.0, False)],
)
def test_a_session_is_taken_again_where_half_of_its_time_is_left_for_all(clock, budget_s, waiting, taken_s, enough):
    pace = paced(clock, visits=24, budget_s=budget_s, waiting=waiting)

    assert pace.again(taken_s) is enough
    assert pace.waiting == waiting + enough


def test_the_time_is_up_when_the_budget_is_spent(clock):
    pace = paced(clock, visits=24, budget_s=5.0)

    assert not pace.expired
    clock.now += 5.0
    assert pace.expired
    pace.allot()
    assert pace.enough(pace.wanted, pace.wanted)


def test_what_was_never_run_is_tried_once():
    assert loops_of(0) == 1


def test_what_fits_into_the_caches_is_warmed_up_and_what_evicts_itself_is_not():
    assert [warmups_of(run_ns) for run_ns in (0, 1000, 25 * MS, 59 * MS, 61 * MS)] == [1, 5, 2, 1, 0]
    assert [warmups_of(run_ns, evicts=False) for run_ns in (1000, 25 * MS, 61 * MS)] == [5, 2, 1]
    assert [warmups_of(run_ns, evicts=True) for run_ns in (1000, 61 * MS)] == [0, 0]


def test_a_process_begins_only_if_it_can_load_within_the_budget(clock):
    pace = paced(clock, visits=24, budget_s=30.0)
    clock.now += 20.0

    assert (pace.affords(9.0), pace.affords(11.0)) == (True, False)
    assert paced(clock, visits=24).affords(1e6)
