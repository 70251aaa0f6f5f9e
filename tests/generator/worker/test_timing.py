"""The sampling loop, on a clock that only the network moves."""

from __future__ import annotations

import gc

import pytest
from dlbricks.generator.worker.execution import timing
from dlbricks.generator.worker.execution.timing import RAW_NS, Evictor, measure


class Machine:
    """Time passes only while a network runs or a cache is evicted."""

    def __init__(self, *run_ns: int, evict_ns: int = 0) -> None:
        self.now = 0
        self.runs = 0
        self.syncs = 0
        self.log: list[str] = []
        self._run_ns = run_ns
        self._evict_ns = evict_ns

    def run(self) -> None:
        self.now += self._run_ns[min(self.runs, len(self._run_ns) - 1)]
        self.runs += 1
        self.log.append("run")
        assert not gc.isenabled()

    def synchronize(self) -> None:
        self.syncs += 1

    def evict(self) -> None:
        self.now += self._evict_ns
        self.log.append("evict")


@pytest.fixture
def machine(monkeypatch):
    """Make a machine and put its clock in place."""

    def make(*run_ns: int, **options: int) -> Machine:
        made = Machine(*run_ns, **options)
        monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: made.now)
        return made

    return make


def test_short_runs_are_looped_until_a_sample_is_long_enough(machine):
    one = machine(7_000)

    samples = measure(one.run, one.synchronize, budget_ns=100_000_000)

    assert {elapsed / loops for elapsed, loops in samples.raw} == {7_000}
    assert all(elapsed >= RAW_NS for elapsed, _ in samples.raw)
    assert len({loops for _, loops in samples.raw}) == 1


def test_long_runs_are_samples_by_themselves(machine):
    one = machine(3 * RAW_NS)

    samples = measure(one.run, one.synchronize, budget_ns=20 * RAW_NS)

    assert set(samples.raw) == {(3 * RAW_NS, 1)}
    assert one.now < 20 * RAW_NS + 3 * RAW_NS


def test_the_budget_holds_but_for_the_samples_that_must_be(machine):
    one = machine(10 * RAW_NS)

    samples = measure(one.run, one.synchronize, budget_ns=1, min_samples=3)

    assert samples.raw == ((10 * RAW_NS, 1),) * 3
    assert samples.warmups == 1


def test_sampling_ends_at_the_most_samples_wanted(machine):
    one = machine(RAW_NS)

    samples = measure(one.run, one.synchronize, budget_ns=10**12, max_samples=5)

    assert len(samples.raw) == 5


def test_slow_first_runs_are_warm_up_and_no_samples(machine):
    one = machine(*[9 * RAW_NS] * 3, *[5 * RAW_NS] * 3, 2 * RAW_NS)

    samples = measure(one.run, one.synchronize, budget_ns=1000 * RAW_NS)

    assert set(samples.raw) == {(2 * RAW_NS, 1)}
    assert samples.warmups >= 6


def test_warm_up_ends_with_its_share_of_the_budget(machine):
    one = machine(*(10 * RAW_NS - 100_000 * step for step in range(90)))  # faster with every run

    samples = measure(one.run, one.synchronize, budget_ns=100 * RAW_NS)

    assert samples.warmups <= 3
    assert len(samples.raw) >= 6


def test_cold_samples_are_single_runs_after_an_eviction_that_is_not_timed(machine):
    one = machine(1_000, evict_ns=RAW_NS)

    samples = measure(one.run, one.synchronize, budget_ns=10 * RAW_NS, evict=one.evict)

    assert set(samples.raw) == {(1_000, 1)}
    assert one.log == ["evict", "run"] * (len(samples.raw) + 1)


def test_every_sample_ends_when_the_device_is_done(machine):
    one = machine(5 * RAW_NS)

    samples = measure(one.run, one.synchronize, budget_ns=50 * RAW_NS)

    assert one.syncs == len(samples.raw) + samples.warmups


def test_garbage_collection_comes_back_even_when_a_run_fails(machine):
    one = machine(RAW_NS)

    def fail() -> None:
        raise RuntimeError("no such thing")

    with pytest.raises(RuntimeError):
        measure(fail, one.synchronize, budget_ns=RAW_NS)
    assert gc.isenabled()


def test_the_evictor_streams_through_more_than_the_private_cache():
    evictor = Evictor()

    evictor()

    assert evictor.nbytes >= 2 * timing.private_cache_bytes()
    assert int(evictor._buffer[0]) == 2
