"""Running a suite: what is measured, what is reused, and what a bad brick costs."""

from __future__ import annotations

import math
import shutil

import psutil
import pytest
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db.values import Stop, Subject, Verdict
from dlbricks.errors import MissingBrick, TamperedBrick, UsageError, WorkerError
from dlbricks.generator.measurement.run import run
from dlbricks.generator.progress import Stage
from dlbricks.models import find_models

QUICK = {"cache": "hot", "item_budget_s": 0.02, "processes": 2, "rounds": 2}
QUICKEST = {"cache": "hot", "item_budget_s": 0.02, "processes": 1, "rounds": 1}


def _keys_with(suite: Suite, operator: str) -> set[str]:
    return {key for key in suite.keys if operator in suite.brick(key).operators}


def test_every_brick_is_measured_and_then_reused(small_suite, small_models, store):
    report = run(small_suite, store=store, models=small_models, **QUICK)

    assert (report.bricks, report.measured, report.reused, report.failed, report.remaining) == (10, 10, 0, 0, 0)
    assert report.models == 1
    assert report.complete
    again = run(small_suite, store=store, models=small_models, **QUICK)
    assert (again.bricks, again.measured, again.reused, again.models) == (10, 0, 10, 1)
    assert again.run is None


def test_a_measurement_says_how_it_came_about(small_suite, small_models, store):
    report = run(small_suite, store=store, models=small_models, **QUICK)

    measurements = store.measurements(subject=Subject.BRICK)
    assert {entry.key for entry in measurements} == set(small_suite.keys)
    for entry in measurements:
        blocks = store.blocks(entry.id)
        assert entry.run == report.run
        assert {block.process for block in blocks} == {0, 1}
        assert entry.samples == sum(len(block.samples) for block in blocks) >= 10
        assert len(entry.block_medians_ns) == len(blocks)
        assert 0 <= entry.ci95_ns[0] <= entry.median_ns <= entry.ci95_ns[1]
        assert entry.median_ns <= entry.p90_ns <= entry.p99_ns
        assert entry.verdict in {Verdict.STABLE, Verdict.NOISY, Verdict.UNSTABLE}
        assert entry.stop in {Stop.CONVERGED, Stop.PLATEAU, Stop.BUDGET}
        assert entry.load_ns > 0
        assert entry.first_run_ns > 0
        assert entry.reference_ns > 0
    (model,) = store.measurements(subject=Subject.MODEL)
    assert model.unroll == 1
    assert {entry.unroll for entry in store.measurements(subject=Subject.REFERENCE)} == {1}
    (stored,) = store.runs()
    assert stored.suite == small_suite.hash
    assert stored.finished is not None
    assert {"governor", "load_1m", "kernel"} <= set(stored.before) & set(stored.after)


def test_the_time_of_a_short_brick_is_that_of_one_execution(small_suite, store):
    """Loops and copies are divided out: a brick of 40 elements takes microseconds, not its raw sample's 1 ms."""
    run(small_suite, store=store, **QUICK)

    (key,) = _keys_with(small_suite, "Tanh")
    (entry,) = store.measurements(keys=[key])
    raw = [sample for block in store.blocks(entry.id) for sample in block.samples]
    assert entry.unroll * min(loops for _, loops in raw) > 1
    assert entry.min_ns == pytest.approx(min(elapsed / loops for elapsed, loops in raw) / entry.unroll)


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        ("prepare:crash", "crashed", "SIGSEGV: something broke inside"),
        ("run:exit", "crashed", "status 3"),
        ("run:hang", "timeout", "in time"),
        ("prepare:memory", "memory", "memory limit"),
        ("prepare:unsupported", "unsupported", "no kernel for this"),
    ],
)
def test_a_bad_brick_costs_only_itself(small_suite, store, faulty, fault, kind, reason):
    faulty({"Sqrt": fault})

    timeout_s = 2 if "hang" in fault else 60
    report = run(small_suite, store=store, backend="faulty", item_timeout_s=timeout_s, memory_bytes=1 << 29, **QUICKEST)

    (bad,) = _keys_with(small_suite, "Sqrt")
    assert (report.measured, report.failed, report.remaining) == (9, 1, 0)
    assert [key for key, _ in report.failures] == [bad]
    assert reason in report.failures[0][1]
    (failure,) = store.failures()
    assert (failure.key, failure.kind) == (bad, kind)
    assert store.measured_keys(report.system, report.stack, failure.conditions, Subject.BRICK) == {
        *small_suite.keys
    } - {bad}


def test_several_bad_bricks_of_every_kind(small_suite, store, faulty):
    faulty({"Sqrt": "run:crash", "Exp": "prepare:exit", "Tanh": "prepare:unsupported", "Sigmoid": "prepare:crash"})

    report = run(small_suite, store=store, backend="faulty", **QUICKEST)

    assert (report.measured, report.failed) == (6, 4)
    assert sorted(failure.kind for failure in store.failures()) == ["crashed", "crashed", "crashed", "unsupported"]
    assert store.info()["counts"]["open"] == 0


@pytest.mark.sweep(1)
@pytest.mark.parametrize("protocol", [QUICK, QUICKEST, {**QUICKEST, "cache": "model"}])
def test_a_brick_that_ruins_the_worker_for_others_is_the_one_that_fails(small_suite, store, faulty, protocol):
    """The worker dies under an innocent brick, or under the reference network."""
    faulty({"Sqrt": "run:later", "Tanh": "run:later"})

    report = run(small_suite, store=store, backend="faulty", **protocol)

    bad = _keys_with(small_suite, "Sqrt") | _keys_with(small_suite, "Tanh")
    assert (report.measured, report.failed, report.remaining) == (8, 2, 0)
    failures = store.failures(subject=Subject.BRICK)  # the probe of gaps holds a Tanh, too
    assert {(failure.key, failure.kind) for failure in failures} == {(key, "crashed") for key in bad}
    assert {entry.key for entry in store.measurements(subject=Subject.BRICK)} == {*small_suite.keys} - bad


def test_a_worker_that_dies_at_a_release_aborts_nothing(small_suite, store, faulty):
    """Where what it measured is complete, there is nobody left to blame."""
    faulty({"Sqrt": "close:crash"})

    report = run(small_suite, store=store, backend="faulty", memory_bytes=1, **QUICK)

    assert (report.measured + report.failed, report.remaining) == (10, 0)
    assert {failure.key for failure in store.failures()} <= _keys_with(small_suite, "Sqrt")


def test_a_reference_network_that_fails_by_itself_ends_the_run(small_suite, store, faulty):
    faulty({"MaxPool": "run:exit"})  # the reference network has one

    with pytest.raises(WorkerError, match="status 3"):
        run(small_suite, store=store, backend="faulty", **QUICKEST)

    assert store.failures() == []


def test_a_failure_is_tried_again_only_when_asked(small_suite, store, faulty):
    faulty({"Sqrt": "prepare:unsupported"})
    run(small_suite, store=store, backend="faulty", **QUICKEST)
    faulty({})

    ignored = run(small_suite, store=store, backend="faulty", **QUICKEST)
    tried = run(small_suite, store=store, backend="faulty", again=["failed"], **QUICKEST)

    assert (ignored.measured, ignored.reused, ignored.failed) == (0, 9, 1)
    assert ignored.failures[0][1] == "no kernel for this"
    assert (tried.measured, tried.reused, tried.failed) == (1, 9, 0)
    assert store.failures() == []


def test_noisy_measurements_are_repeated_when_asked(small_suite, store):
    run(small_suite, store=store, **QUICKEST)
    noisy = sum(entry.verdict is not Verdict.STABLE for entry in store.measurements(subject=Subject.BRICK))

    report = run(small_suite, store=store, again=["noisy"], dry_run=True, **QUICKEST)

    assert (report.remaining, report.reused) == (noisy, 10 - noisy)


def test_all_measures_everything_again(small_suite, store):
    run(small_suite, store=store, **QUICKEST)

    report = run(small_suite, store=store, again=["all"], **QUICKEST)

    assert (report.measured, report.reused) == (10, 0)
    assert len(store.measurements(subject=Subject.BRICK, latest=False)) == 20
    assert {entry.run for entry in store.measurements(subject=Subject.BRICK)} == {report.run}


def test_what_is_measured_depends_on_the_conditions(small_suite, store):
    run(small_suite, store=store, **QUICKEST)

    cold = run(small_suite, store=store, dry_run=True, **{**QUICKEST, "cache": "cold"})
    other = run(small_suite, store=store, options={"optimization": "disabled"}, dry_run=True, **QUICKEST)

    assert (cold.remaining, other.remaining) == (10, 10)
    assert cold.stack != other.stack


def test_cold_samples_are_single_executions(small_suite, store):
    run(small_suite, store=store, **{**QUICK, "cache": "cold"})

    for entry in store.measurements(subject=Subject.BRICK):
        assert entry.unroll == 1
        assert all(loops == 1 for block in store.blocks(entry.id) for _, loops in block.samples)


def test_a_dry_run_changes_nothing(small_suite, small_models, store):
    report = run(small_suite, store=store, models=small_models, cache="hot", dry_run=True)

    assert (report.bricks, report.measured, report.reused, report.remaining) == (10, 0, 0, 10)
    assert report.models_remaining == len(small_models)
    assert report.forecast_s > 10 * 0.25
    assert report.run is None
    assert store.info()["counts"]["runs"] == 0
    assert store.systems() == {}


def test_a_total_time_scales_the_items(small_suite, store):
    report = run(small_suite, store=store, item_budget_s=60, budget_s=4, processes=2, rounds=2)

    assert report.remaining == 0
    assert report.wall_s < 60


def test_what_the_time_does_not_suffice_for_remains(small_suite, store):
    report = run(small_suite, store=store, budget_s=0.01)

    assert report.remaining == 10
    assert not report.complete
    resumed = run(small_suite, store=store, **QUICK)
    assert resumed.measured == 10


def test_an_enormous_sample_times_out(small_suite, store, faulty):
    """Where ten samples do not fit into the item's limit, what there is is kept, and called timed-out."""
    faulty({"Sqrt": "run:slow"})

    report = run(small_suite, store=store, backend="faulty", item_timeout_s=2, **QUICKEST)

    assert (report.measured, report.failed) == (10, 0)
    (slow,) = _keys_with(small_suite, "Sqrt")
    (entry,) = store.measurements(keys=[slow])
    assert entry.stop is Stop.TIMEOUT
    assert entry.verdict is Verdict.TIMED_OUT
    assert 1 <= entry.samples < 10
    assert entry.min_ns >= 250_000_000


def test_an_execution_as_long_as_half_the_limit_is_no_failure(small_suite, store, faulty):
    """Warm-up and one sample take the limit, and the request may take longer."""
    faulty({"Sqrt": "run:slow"})

    report = run(small_suite, store=store, backend="faulty", item_timeout_s=0.6, **QUICKEST)

    assert (report.measured, report.failed) == (10, 0)
    (slow,) = _keys_with(small_suite, "Sqrt")
    (entry,) = store.measurements(keys=[slow])
    assert entry.verdict is Verdict.TIMED_OUT
    assert entry.samples >= 1


def test_bricks_that_do_not_fit_together_go_in_chunks(small_suite, store):
    report = run(small_suite, store=store, memory_bytes=30_000, **QUICK)

    assert report.measured == 10


def test_a_broken_model_costs_only_itself(small_suite, small_models, store, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    models = [*small_models, *find_models([tmp_path / "broken.onnx", tmp_path / "absent.onnx"])]

    report = run(small_suite, store=store, models=models, **QUICKEST)

    assert report.measured == 10
    assert report.models == 1
    assert len(report.failures) == 2
    assert not report.complete


def test_equal_models_are_measured_once(small_suite, small_models, store, tmp_path):
    twin = tmp_path / "twin.onnx"
    shutil.copy(small_models[0].path, twin)

    report = run(small_suite, store=store, models=[*small_models, *find_models([twin])], **QUICKEST)

    assert report.models == 1
    assert len(store.measurements(subject=Subject.MODEL)) == 1


def test_a_tampered_brick_stops_the_run_before_it_begins(small_suite, store, tmp_path):
    shutil.copytree(small_suite.path, tmp_path / "suite")
    suite = Suite.open(tmp_path / "suite")
    suite.brick_path(suite.keys[0]).write_bytes(suite.brick_path(suite.keys[1]).read_bytes())

    with pytest.raises(TamperedBrick):
        run(suite, store=store, **QUICKEST)
    suite.brick_path(suite.keys[0]).unlink()
    with pytest.raises(MissingBrick):
        run(suite, store=store, **QUICKEST)

    assert store.info()["counts"]["runs"] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"cache": "lukewarm"},
        {"threads": -1},
        {"processes": 0},
        {"rounds": 0},
        {"budget_s": 0},
        {"item_budget_s": -1},
        {"again": ["everything"]},
        {"backend": "no_such_backend"},
        {"device": "abacus"},
        {"options": {"no_such_option": "1"}},
    ],
)
def test_wrong_options_are_usage_errors(small_suite, store, wrong):
    with pytest.raises(UsageError):
        run(small_suite, store=store, **wrong)


def test_progress_comes_between_requests_only(small_suite, store):
    """The callback never runs while a worker works: it sees the worker asleep, or gone."""
    events = []

    def observe(event):
        try:
            workers = [child for child in psutil.Process().children() if "dlbricks.generator.worker" in child.cmdline()]
            before = sum(sum(child.cpu_times()[:2]) for child in workers)
            after = sum(sum(child.cpu_times()[:2]) for child in workers)
        except psutil.NoSuchProcess:
            before = after = 0.0  # one that has just ended does nothing either
        events.append((event, after - before))

    run(small_suite, store=store, progress=observe, **QUICK)

    seen = [event for event, _ in events]
    assert {event.stage for event in seen} >= {Stage.PREPARE, Stage.SAMPLE}
    assert all(idle == 0 for _, idle in events)
    assert [event.done for event in seen] == sorted(event.done for event in seen)
    assert all(event.done <= event.total for event in seen)
    assert all(math.isfinite(event.remaining_s) and event.remaining_s >= 0 for event in seen)


def test_the_parts_make_up_the_whole(small_suite, store):
    report = run(small_suite, store=store, **QUICK)

    costs = report.costs
    parts = costs.start_s + costs.prepare_s + costs.sample_s + costs.store_s + costs.statistics_s + costs.read_s
    assert costs.load_s <= costs.prepare_s
    assert costs.timed_s <= costs.sample_s
    assert parts <= report.wall_s
    assert report.wall_s - parts < 0.2 * report.wall_s + 0.5
