"""When an item has been sampled enough."""

from __future__ import annotations

from dlbricks.db.values import Block, Stop
from dlbricks.generator.measurement.sampling.statistics import MIN_SAMPLES
from dlbricks.generator.measurement.sampling.stopping import Protocol, decide, next_slot, spent_ns
from hypothesis import given, settings
from hypothesis import strategies as st

_MS = 1_000_000


def _blocks(*values: tuple[int, list[int]]) -> list[Block]:
    rounds: dict[int, int] = {}
    blocks = []
    for process, samples in values:
        blocks.append(Block(process, rounds.get(process, 0), tuple((value, 1) for value in samples)))
        rounds[process] = rounds.get(process, 0) + 1
    return blocks


def test_equal_samples_of_two_processes_converge():
    blocks = _blocks((0, [_MS] * 10), (1, [_MS] * 10))

    assert decide(blocks, 1, Protocol()) is Stop.CONVERGED


def test_one_process_never_converges():
    """The interval within one process does not see what differs between processes."""
    blocks = _blocks((0, [_MS] * 10), (0, [_MS] * 10), (0, [_MS] * 10))

    assert decide(blocks, 1, Protocol()) is None


def test_less_than_the_minimum_goes_on():
    blocks = _blocks((0, [_MS] * 4), (1, [_MS] * 5))

    assert decide(blocks, 1, Protocol()) is None


def test_more_samples_that_do_not_help_are_a_plateau():
    blocks = _blocks(*((0, [_MS] * 10) for _ in range(3)), *((1, [2 * _MS] * 10) for _ in range(3)))

    assert decide(blocks[:5], 1, Protocol()) is None
    assert decide(blocks, 1, Protocol()) is Stop.PLATEAU


def test_noise_that_shrinks_ends_with_the_budget():
    wide = [(0, [900] * 5), (0, [1000] * 5), (0, [1100] * 5)]
    narrow = [(1, [990] * 20), (1, [1000] * 20), (1, [1010] * 20)]

    assert decide(_blocks(*wide, *narrow), 1, Protocol()) is Stop.BUDGET


def test_a_spent_budget_waits_for_the_second_process():
    protocol = Protocol(item_budget_ns=5 * _MS)
    first = _blocks((0, [_MS] * 12))

    assert decide(first, 1, protocol) is None
    assert decide(first, 1, Protocol(processes=1, item_budget_ns=5 * _MS)) is Stop.BUDGET


def test_an_enormous_sample_times_out():
    protocol = Protocol(timeout_ns=100 * _MS)

    assert decide(_blocks((0, [60 * _MS]), (0, [60 * _MS])), 1, protocol) is Stop.TIMEOUT


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 400 * _MS),
    st.integers(1, 300 * _MS),
    st.randoms(use_true_random=False),
)
def test_sampling_always_ends_with_enough_samples_or_a_timeout(processes, rounds, run_ns, budget_ns, random):
    """Plays the worker: it takes samples until the budget of the request is spent, at least the minimum."""
    protocol = Protocol(processes, rounds, budget_ns, timeout_ns=2_000 * _MS)
    blocks: list[Block] = []
    stop = None
    for position in range(4 * protocol.blocks + 4):
        slot = next_slot(blocks, run_ns, protocol)
        samples = []
        while len(samples) < slot.min_samples or sum(samples) + run_ns < min(slot.budget_ns, 50 * run_ns):
            samples.append(random.randint(max(1, run_ns // 2), run_ns))
        blocks.append(Block(position // rounds, position % rounds, tuple((value, 1) for value in samples)))
        stop = decide(blocks, 1, protocol)
        if stop is not None:
            break

    assert stop is not None
    if 4 * MIN_SAMPLES * run_ns <= protocol.timeout_ns:  # otherwise requests are cut short, and more are needed
        assert len(blocks) <= protocol.blocks
    taken = sum(len(block.samples) for block in blocks)
    if stop is Stop.TIMEOUT:
        assert taken < MIN_SAMPLES
        assert spent_ns(blocks) >= protocol.timeout_ns
    else:
        assert taken >= MIN_SAMPLES


def test_the_budget_is_spread_over_what_is_left():
    protocol = Protocol(item_budget_ns=60 * _MS)

    assert next_slot([], _MS, protocol).budget_ns == 10 * _MS
    assert next_slot(_blocks((0, [10 * _MS])), _MS, protocol).budget_ns == 10 * _MS
    assert next_slot(_blocks((0, [100 * _MS])), _MS, protocol).budget_ns == 0


def test_one_enormous_sample_is_asked_for_one_at_a_time():
    protocol = Protocol(timeout_ns=1000 * _MS)

    assert next_slot([], 900 * _MS, protocol).min_samples == 1


def test_the_warm_up_counts_towards_the_limit():
    protocol = Protocol(processes=1, rounds=1, timeout_ns=1000 * _MS)

    assert next_slot([], 300 * _MS, protocol).min_samples == 2
    assert next_slot([], 2000 * _MS, protocol).min_samples == 1
