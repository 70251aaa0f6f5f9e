"""The interval of a lower bound: whether it holds the true one, which the lowest of noisy latencies is below."""

from __future__ import annotations

import itertools
import math
import uuid

import numpy as np
import pytest
from dlbricks.constructor.bounds import bounded
from dlbricks.constructor.composition import Cover, contract
from dlbricks.constructor.uncertainty.calibration import scatter_of
from dlbricks.constructor.uncertainty.interval import Uncertainty
from dlbricks.db import Conditions, Run, Stack, Subject

from .conftest import one, taken

STACK = Stack("onnxruntime", "cpu", ())
SHARED_SD = scatter_of(STACK, 1, Subject.BRICK).process_sd
OWN_SD, TRUE_NS, LAYERS, TRIALS = 0.15, 1e6, 20, 200

SCENES = {  # distances of what competes with each brick, in standard errors of one; visits of each of four sessions
    "nothing competes": ((), 6),
    "one that is the same": ((0.0,), 6),
    "five that are the same": ((0.0,) * 5, 6),
    "five at various distances": ((0.3, 1.0, 2.0, 4.0, 8.0), 6),
    "four time blocks": ((0.0,), 3),
}


def chain(size):
    return Cover(contract(itertools.pairwise(range(size)), [(n,) for n in range(size)]), tuple(map(str, range(size))))


def branches(size):
    return Cover(contract([], [(n,) for n in range(size)]), tuple(map(str, range(size))))


def trials(scene, cover, count=TRIALS):
    """Bounds of layers that are measured in several ways each, relative to the true ones."""
    gaps, visits = SCENES[scene]
    rng = np.random.default_rng(5)
    error = OWN_SD / math.sqrt(4 * visits)
    for _ in range(count):
        shared = rng.normal(1, SHARED_SD, 2).repeat(2)[:, None]
        rivals, blocks = {}, {}
        for layer in range(LAYERS):
            some = []
            for way, gap in enumerate((0.0, *gaps)):
                times = TRUE_NS * (1 + gap * error) * shared * rng.normal(1, OWN_SD, (4, visits))
                one, blocks[one.id] = made = taken(f"{layer}-{way}", times)
                some.append(made[0])
            rivals[str(layer)] = sorted(some, key=lambda one: one.latency_ns)
        uncertainty = Uncertainty([one for some in rivals.values() for one in some], blocks, {STACK.key: STACK})
        yield bounded([cover(LAYERS)], (), LAYERS, rivals, uncertainty)


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_the_interval_holds_the_true_bound(scene):
    """Nominal 95 %; 200 trials have a standard error of 1.5 %."""
    true_ns = LAYERS * TRUE_NS
    found = [one.sequential for one in trials(scene, chain)]

    held = np.mean([one.ci95_ns[0] <= true_ns <= one.ci95_ns[1] for one in found])

    assert held >= 0.9
    assert held <= 0.98 or scene in {"four time blocks", "five at various distances"}, "these may be wider"
    assert all(one.ci95_ns[0] <= one.latency_ns <= one.ci95_ns[1] for one in found)


@pytest.mark.slow
def test_without_luck_the_lowest_of_several_would_miss_the_true_bound():
    """The winner's curse: bounds are too low by more than their own scatter, so that it alone would not hold them."""
    true_ns = LAYERS * TRUE_NS
    found = [one.sequential for one in trials("five that are the same", chain, 40)]

    alone = [one.latency_ns - one.ci95_ns[0] + one.bias_ns[0] for one in found]

    assert np.mean([one.latency_ns for one in found]) < 0.975 * true_ns
    assert np.mean([one.latency_ns + half >= true_ns for one, half in zip(found, alone, strict=True)]) < 0.7
    assert np.mean([one.ci95_ns[1] >= true_ns for one in found]) > 0.9


def test_the_longest_of_equal_branches_is_too_long_and_its_interval_says_so():
    found = [one.critical_path for one in trials("nothing competes", branches, 60)]

    assert np.mean([one.latency_ns for one in found]) > 1.03 * TRUE_NS
    assert np.mean([one.ci95_ns[0] <= TRUE_NS <= one.ci95_ns[1] for one in found]) >= 0.9


def test_fewer_time_blocks_widen():
    widths = {
        visits: np.mean([np.diff(one.sequential.ci95_ns) for one in trials(scene, chain, 10)])
        for scene, visits in (("one that is the same", 6), ("four time blocks", 3))
    }

    assert widths[3] > 1.2 * widths[6], "half as many visits, and less is known of how they scatter"


@pytest.mark.parametrize("shape", [chain, branches], ids=["chain", "branches"])
def test_no_end_of_a_path_is_above_that_of_the_sum(shape):
    for found in trials("one that is the same", shape, 5):
        path, whole = found.critical_path, found.sequential
        assert path.latency_ns <= whole.latency_ns
        assert all(0 <= ours <= theirs for ours, theirs in zip(path.ci95_ns, whole.ci95_ns, strict=True))
        assert shape is branches or path.latency_ns == whole.latency_ns


# In estimates ---------------------------------------------------------------------------------------------------------


def test_the_interval_widens_by_what_runs_differ_by_where_several_compete(lab, chain, keys_of, other):
    lab.put([(key, 2.0) for key in {*keys_of(chain)}])
    alone = one(lab, chain)
    later = str(uuid.uuid4())
    lab.store.begin_run(Run(later, "2026-11-25T00:00:00Z", "0", "run", None, lab.system.key, other.key))
    lab.put([(key, 2.01) for key in {*keys_of(chain)}], stack=other.key, run=later)

    both = one(lab, chain, backend="onnxruntime")

    assert both.bounds.sequential.ms == alone.bounds.sequential.ms == 8.0
    for answer in (alone, both):
        for low, high in (answer.bounds.sequential.ci95_ms, answer.bounds.critical_path.ci95_ms):
            assert 0 <= low < 8.0 < high
    assert np.diff(both.bounds.sequential.ci95_ms) > np.diff(alone.bounds.sequential.ci95_ms)


def test_a_bound_is_of_the_cache_state_that_the_brick_itself_was_measured_in(lab, chain, keys_of, other):
    """Of a footprint class that lacks a brick the nearest stands in, for the estimate and the bound alike."""
    relu, sigmoid = keys_of(chain)[:2]
    here, there = Conditions(1, "8MiB"), Conditions(1, "32MiB")
    lab.put([(relu, 2.0)], conditions=here)
    lab.put([(sigmoid, 3.0)], conditions=there)
    lab.put([(sigmoid, 1.0)], conditions=here, stack=other.key)  # in another state than the brick: no rival
    lab.put([(relu, 1.0)], conditions=there, stack=other.key)

    answer = one(lab, chain, backend="onnxruntime", cache="model")

    assert answer.sums.sequential_ms == answer.bounds.sequential.ms == 10.0
    lab.put([(sigmoid, 2.5)], conditions=there, stack=other.key)
    assert one(lab, chain, backend="onnxruntime", cache="model").bounds.sequential.ms == 9.0


@pytest.mark.parametrize(
    ("bricks", "model", "alike"),
    [("hot", "hot", True), ("hot", "model", False), ("64KiB", "model", True), ("64KiB", "hot", True),
     ("128MiB", "model", False), ("cold", "cold", True)],
)  # fmt: skip
def test_a_bound_stands_beside_a_model_of_the_same_cache_state_only(
    lab, chain, keys_of, graph_of, bricks, model, alike
):
    lab.put([(key, 2.0) for key in {*keys_of(chain)}], conditions=Conditions(1, bricks))
    lab.put([(graph_of(chain).key, 10.0)], subject=Subject.MODEL, conditions=Conditions(1, model))

    answer = one(lab, chain, cache=bricks)

    assert answer.bounds.sequential.ms == 8.0
    if alike:
        low, high = answer.bounds.sequential.ratio_ci95
        assert low < answer.bounds.sequential.ratio == 0.8 < high
        assert answer.bounds.critical_path.ratio_ci95 is not None
        assert answer.bounds.reason is None
    else:
        assert answer.bounds.sequential.ratio is answer.bounds.sequential.ratio_ci95 is None
        assert f"cache state {bricks}, and the model was measured with cache {model}" in answer.bounds.reason


def test_what_disturbs_bricks_and_model_alike_is_not_in_the_ratio(lab, chain, keys_of, graph_of):
    """Visited in turn: the bound is as uncertain as the machine was restless, its share of the model is not."""
    machine = np.random.default_rng(4).choice([1.0, 1.8], (4, 6)).tolist()
    model = graph_of(chain).key
    lab.put_in_turn(dict.fromkeys(keys_of(chain), 2.0) | {model: 8.0}, machine, model=model)

    answer = one(lab, chain)

    assert np.diff(answer.bounds.sequential.ci95_ms) / answer.bounds.sequential.ms > 0.2
    assert answer.bounds.sequential.ratio == pytest.approx(1)
    assert answer.bounds.sequential.ratio_ci95 == pytest.approx((1, 1), abs=1e-6)
