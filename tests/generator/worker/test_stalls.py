"""Stalls of the scheduler in the visits of a pack."""

import subprocess
import sys
import time

import numpy as np
import pytest
from dlbricks.generator.worker.execution import timing
from dlbricks.generator.worker.execution.pack import without_stalls, without_stolen
from dlbricks.generator.worker.execution.timing import Interruptions, KernelClock
from hypothesis import given
from hypothesis import strategies as st

US = 1e3


def test_a_stall_is_shared_by_all_bricks_of_its_visit():
    times = np.tile([100 * US, 300 * US, 600 * US], (6, 1))
    times[2, 0] += 5000 * US

    even = without_stalls(times)

    assert even.sum(axis=1) == pytest.approx(times.sum(axis=1))
    assert even[2, 2] / even[2, 1] == pytest.approx(2)
    assert even[2, 0] < 0.35 * times[2, 0]
    assert (even[[0, 1, 3, 4, 5]] == times[[0, 1, 3, 4, 5]]).all()


def test_a_machine_that_is_slow_for_a_while_stalls_nothing():
    times = np.tile([100 * US, 300 * US], (6, 1))
    times[3:] *= 2

    assert (without_stalls(times) == times).all()


@given(st.lists(st.lists(st.integers(0, 10**9), min_size=3, max_size=3), min_size=1, max_size=8))
def test_the_sum_of_a_visit_stays(rows):
    times = np.array(rows, dtype=float)

    even = without_stalls(times)

    assert even.sum(axis=1) == pytest.approx(times.sum(axis=1))
    assert (even >= 0).all()


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=3, max_size=3), min_size=1, max_size=8), st.floats(0, 1))
def test_what_other_programs_had_is_taken_off(rows, share):
    times = np.array(rows, dtype=float)
    stolen = share * times.sum(axis=1)

    even = without_stolen(times, stolen)

    assert even.sum(axis=1) == pytest.approx(times.sum(axis=1) - stolen, abs=1e-3)
    assert (even >= 0).all()


def test_it_is_taken_off_the_node_that_it_met():
    usual = np.tile([100 * US, 300 * US, 20 * US], (8, 1))
    stolen = np.zeros(8)
    times = usual.copy()
    for row, column, taken in ((1, 0, 3000 * US), (4, 1, 4000 * US), (5, 2, 3000 * US)):  # the last: between nodes
        times[row, column] += taken
        stolen[row] = taken

    assert without_stolen(times, stolen) == pytest.approx(usual)


@pytest.mark.parametrize(
    ("wall", "cpu", "switches", "waited", "stolen"),
    [
        (30, 10, 2, 20, 20),
        (30, 10, 2, 25, 20),
        (30, 10, 2, 5, 5),  # it slept as well
        (30, 10, 0, 20, 0),  # no other program ran
        (30, 10, 2, None, 0),  # the system does not tell
        (30, 60, 2, 20, 0),  # several threads computed
    ],
)
def test_stolen_is_what_other_programs_had_while_one_thread_waited(wall, cpu, switches, waited, stolen):
    assert Interruptions(wall, cpu, switches, None if waited is None else (waited,)).stolen_ns(1) == stolen


@pytest.mark.parametrize(
    ("waits", "stolen"), [((0, 4000), 4000), ((0, 0), 0), ((4000, 5000), 5000), ((0, 90_000), 15_000), (None, 0)]
)
def test_several_threads_wait_for_the_one_that_waits_for_a_core(waits, stolen):
    seen = Interruptions(20_000, 36_000, 2, waits)

    assert seen.stolen_ns(2) == stolen
    assert seen.stolen_ns(0) == 0


@pytest.mark.parametrize("computing", [0, 1, 2])
@given(st.integers(100, 10**9), st.integers(1, 10**9), st.floats(0, 1), st.integers(1, 10**6))
def test_what_ran_beside_a_stretch_is_not_taken_off_it(computing, elapsed, around, share, cpu):
    """A program that ran between the clocks' readings would leave a negative time."""
    wall = elapsed + around
    stolen = Interruptions(wall, cpu, 2, (round(share * wall),))

    left = stolen.left_ns(elapsed, computing)

    assert 0 < left <= elapsed
    assert left >= elapsed - stolen.stolen_ns(computing)


def test_a_process_that_sleeps_and_computes_is_told_of_both():
    clock = KernelClock()
    time.sleep(0.02)
    begun = time.process_time_ns()
    while time.process_time_ns() - begun < 20e6:
        pass

    seen = clock.read()

    assert seen.wall_ns >= 35e6
    assert seen.cpu_ns >= 19e6
    assert seen.stolen_ns(1) <= seen.wall_ns - seen.cpu_ns


_ENDS = """
import threading, time
from pathlib import Path
from dlbricks.generator.worker.execution.timing import KernelClock

ended = threading.Event()
thread = threading.Thread(target=ended.wait)
thread.start()
clock = KernelClock()
before, opened = clock.read(), len([*Path("/proc/self/fd").iterdir()])
ended.set()
thread.join()
while Path(f"/proc/self/task/{thread.native_id}").exists():
    time.sleep(0.001)  # the kernel removes it a moment later
after = clock.read()
print(len(before.waits_ns) - len(after.waits_ns), opened - len([*Path("/proc/self/fd").iterdir()]))
"""


def test_a_thread_that_has_ended_is_not_counted_and_leaves_no_file_open():
    """In a process of its own: other tests leave threads that end at any time."""
    said = subprocess.run([sys.executable, "-c", _ENDS], check=True, capture_output=True, text=True)

    assert said.stdout.split() == ["1", "1"]


@pytest.mark.parametrize(("waited_ms", "executions"), [([0], 1), ([1], 1), ([30, 0], 2), ([30, 30, 30, 30, 30], 4)])
def test_threads_settle_until_they_hardly_wait(monkeypatch, waited_ms, executions):
    """A program that runs for a moment is no reason to execute again."""
    told, made = iter(waited_ms), []
    waits = ((0, round(next(told) * 1e6)) for _ in iter(int, 1))
    monkeypatch.setattr(KernelClock, "read", lambda _: Interruptions(100_000_000, 180_000_000, 1, next(waits)))

    timing.settle(lambda: made.append(1), lambda: None, 2)

    assert len(made) == executions
