"""Running a suite: what is measured, what is reused, and what a bad brick costs."""

from __future__ import annotations

import math
import shutil
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db.values import INNER, PROTOCOL, Stop, Subject, Verdict
from dlbricks.errors import UsageError
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.run import run
from dlbricks.generator.progress import Stage
from dlbricks.generator.worker.client import Timeouts, Worker
from dlbricks.models import find_models

QUICK = {"cache": "hot", "visits": 12, "processes": 2, "sessions": 2}
QUICKEST = {"cache": "hot", "visits": 10, "processes": 1, "sessions": 1}
PACKED = {**QUICKEST, "cache": "model"}
BOTH = pytest.mark.parametrize("protocol", [QUICKEST, PACKED], ids=["hot", "model"])


def _keys_with(suite: Suite, operator: str) -> set[str]:
    return {key for key in suite.keys if operator in suite.brick(key).operators}


@pytest.mark.parametrize("cache", ["hot", "model"])
def test_every_brick_is_measured_and_then_reused(small_suite, small_models, store, cache):
    protocol = {**QUICK, "cache": cache}
    report = run(small_suite, store=store, models=small_models, **protocol)

    assert (report.bricks, report.measured, report.reused, report.failed, report.remaining) == (10, 10, 0, 0, 0)
    assert report.models == 1
    assert report.complete
    again = run(small_suite, store=store, models=small_models, **protocol)
    assert (again.bricks, again.measured, again.reused, again.models) == (10, 0, 10, 1)
    assert again.run is None


@pytest.mark.parametrize(("cache", "state"), [("hot", "hot"), ("model", "8MiB")])
def test_a_measurement_says_how_it_came_about(small_suite, small_models, store, cache, state):
    report = run(small_suite, store=store, models=small_models, **{**QUICK, "cache": cache})

    measurements = store.measurements(subject=Subject.BRICK)
    assert {entry.key for entry in measurements} == set(small_suite.keys)
    for entry in measurements:
        blocks = store.blocks(entry.id)
        assert entry.run == report.run
        assert entry.protocol == PROTOCOL
        assert [(block.process, block.round) for block in blocks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert [len(block.samples) for block in blocks] == [3, 3, 3, 3]
        assert all(len(block.visits) == len(block.samples) for block in blocks)
        assert entry.summary.samples == 12
        assert len(entry.summary.block_medians_ns) == len(blocks)
        assert 0 <= entry.ci95_ns[0] <= entry.latency_ns == entry.summary.mean_ns <= entry.ci95_ns[1]
        assert entry.summary.median_ns <= entry.summary.p90_ns <= entry.summary.p99_ns
        assert entry.undisturbed_ns >= 0
        assert 0 <= entry.quiet <= 1
        assert entry.summary.verdict in {Verdict.STABLE, Verdict.NOISY, Verdict.UNSTABLE}
        assert entry.stop is Stop.VISITS
        assert entry.conditions.cache == state
        if cache == "model":
            assert entry.footprint_bytes > 0
            assert entry.unroll == 1
        else:
            assert min(entry.load_ns, entry.first_run_ns) > 0
    (model,) = store.measurements(subject=Subject.MODEL)
    assert model.unroll == 1
    assert model.load_ns > 0
    assert model.footprint_bytes > 0
    assert len(store.measurements(subject=Subject.REFERENCE)) == 1  # what a call costs
    (stored,) = store.runs()
    assert stored.suite == small_suite.hash
    assert stored.finished is not None
    assert {"governor", "load_1m", "kernel"} <= set(stored.before) & set(stored.after)
    compute_ns, memory_ns = stored.after["probes_ns"]
    assert min(compute_ns, memory_ns) > 0


@pytest.mark.parametrize("cache", ["hot", "model"])
def test_bricks_and_models_are_visited_in_turn(small_suite, small_models, store, cache):
    """Sample i of a brick was taken within the same turn as sample i of the model."""
    run(small_suite, store=store, models=small_models, **{**QUICK, "cache": cache})

    (model,) = store.measurements(subject=Subject.MODEL)
    own = {(block.process, block.round): block.visits for block in store.blocks(model.id)}
    orders = set()
    for entry in store.measurements(subject=Subject.BRICK):
        for block in store.blocks(entry.id):
            turns = own[block.process, block.round]
            for turn, visit in enumerate(block.visits):
                if turn:
                    assert visit.begun_us > turns[turn - 1].begun_us
                if turn + 1 < len(turns):
                    assert visit.begun_us < turns[turn + 1].begun_us
                orders.add((turn, visit.begun_us < turns[turn].begun_us))
    assert {before for _, before in orders} == {True, False}  # now before it, now after


def test_the_time_of_a_short_brick_is_that_of_one_execution(small_suite, store):
    """Loops and copies are divided out: a brick of 40 elements takes microseconds, not its raw sample's 20 ms."""
    run(small_suite, store=store, **QUICK)

    (key,) = _keys_with(small_suite, "Tanh")
    (entry,) = store.measurements(keys=[key])
    raw = [sample for block in store.blocks(entry.id) for sample in block.samples]
    assert entry.unroll * min(loops for _, loops in raw) > 1
    assert entry.summary.min_ns == pytest.approx(min(elapsed / loops for elapsed, loops in raw) / entry.unroll)


def test_in_every_session_of_a_process_a_pack_stands_in_another_order(small_suite, store):
    """And all bricks of one pack have its visits in common."""
    run(small_suite, store=store, **{**QUICK, "cache": "model"})

    visits = {
        tuple((block.process, block.round, block.visits) for block in store.blocks(entry.id))
        for entry in store.measurements(subject=Subject.BRICK)
    }
    assert len(visits) == 1


@pytest.fixture
def impatient(monkeypatch):
    """Bricks that hang are waited for a second."""
    monkeypatch.setattr(Timeouts, "prepare", 1.0)


@pytest.mark.sweep(1, by="fault")
@BOTH
@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        ("prepare:crash", "crashed", "SIGSEGV: something broke inside"),
        ("run:exit", "crashed", "status 3"),
        ("prepare:memory", "memory", "memory limit"),
        ("prepare:unsupported", "unsupported", "no kernel for this"),
        ("run:crash@4", "crashed", "SIGSEGV"),
        ("run:unsupported@4", "unsupported", "no kernel for this"),
    ],
)
def test_a_bad_brick_costs_only_itself(small_suite, store, faulty, protocol, fault, kind, reason):
    faulty({"Sqrt": fault})

    report = run(small_suite, store=store, backend="faulty", memory_bytes=1 << 29, **protocol)

    (bad,) = _keys_with(small_suite, "Sqrt")
    assert (report.measured, report.failed, report.remaining) == (9, 1, 0)
    assert [key for key, _ in report.failures] == [bad]
    assert reason in report.failures[0][1]
    (failure,) = store.failures()
    assert (failure.key, failure.kind) == (bad, kind)
    assert store.measured_keys(report.system, report.stack, failure.conditions, Subject.BRICK) == {
        *small_suite.keys
    } - {bad}
    assert {entry.summary.samples for entry in store.measurements(subject=Subject.BRICK)} == {10}
    assert store.info()["counts"]["open"] == 0


@pytest.mark.sweep(1, by="protocol")
@BOTH
@pytest.mark.parametrize("fault", ["prepare:hang", "run:hang", "run:hang@4"])
@pytest.mark.usefixtures("impatient")
def test_a_brick_that_hangs_costs_only_itself(small_suite, store, faulty, protocol, fault):
    faulty({"Sqrt": fault})

    report = run(small_suite, store=store, backend="faulty", item_timeout_s=1, **protocol)

    assert (report.measured, report.failed, report.remaining) == (9, 1, 0)
    (failure,) = store.failures()
    assert {failure.key} == _keys_with(small_suite, "Sqrt")
    assert failure.kind == "timeout"
    assert "in time" in failure.reason


@pytest.mark.slow
@BOTH
def test_several_bad_bricks_of_every_kind(small_suite, store, faulty, protocol):
    faulty({"Sqrt": "run:crash", "Exp": "prepare:exit", "Tanh": "prepare:unsupported", "Sigmoid": "prepare:crash"})

    report = run(small_suite, store=store, backend="faulty", **protocol)

    assert (report.measured, report.failed) == (6, 4)
    assert sorted(failure.kind for failure in store.failures()) == ["crashed", "crashed", "crashed", "unsupported"]
    assert store.info()["counts"]["open"] == 0


@pytest.mark.sweep(1)
@BOTH
def test_a_brick_that_ruins_the_worker_for_others_costs_them_nothing(small_suite, store, faulty, protocol):
    """The worker dies under an innocent one, which is then measured by itself, as is in the end who did it."""
    faulty({"Softmax": "run:later"})

    report = run(small_suite, store=store, backend="faulty", **protocol)

    assert report.measured + report.failed == 10
    assert {failure.key for failure in store.failures()} <= _keys_with(small_suite, "Softmax")
    assert store.info()["counts"]["open"] == 0


@BOTH
@pytest.mark.parametrize("fault", ["prepare:crash", "run:crash@4"])
def test_a_model_that_crashes_costs_itself(
    small_suite, small_models, store, faulty, model_file, tmp_path, protocol, fault
):
    path = model_file(tmp_path / "deadly.onnx", "(float[4] x) => (float[4] y) {a = Neg(x) y = Abs(a)}", {})
    faulty({"Neg": fault})
    (deadly,) = find_models([path])

    report = run(small_suite, store=store, backend="faulty", models=[deadly, *small_models], **protocol)

    assert (report.measured, report.failed, report.models, report.models_remaining) == (10, 0, 1, 0)
    assert [name for name, _ in report.failures] == [deadly.name]
    (failure,) = store.failures()
    assert (failure.subject, failure.kind) == (Subject.MODEL, "crashed")


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["cold", "model"])
def test_a_worker_that_dies_at_a_release_aborts_nothing(small_suite, store, faulty, cache):
    """What it measured is complete: there is nobody left to blame."""
    faulty({"Sqrt": "close:crash"})

    report = run(small_suite, store=store, backend="faulty", **{**QUICKEST, "cache": cache})

    assert (report.measured, report.failed, report.remaining) == (10, 0, 0)


@BOTH
def test_a_failure_is_tried_again_only_when_asked(small_suite, store, faulty, protocol):
    faulty({"Sqrt": "prepare:unsupported"})
    run(small_suite, store=store, backend="faulty", **protocol)
    faulty({})

    ignored = run(small_suite, store=store, backend="faulty", **protocol)
    tried = run(small_suite, store=store, backend="faulty", again=["failed"], **protocol)

    assert (ignored.measured, ignored.reused, ignored.failed) == (0, 9, 1)
    assert ignored.failures[0][1] == "no kernel for this"
    assert (tried.measured, tried.reused, tried.failed) == (1, 9, 0)
    assert store.failures() == []


def test_noisy_measurements_are_repeated_when_asked(small_suite, store):
    run(small_suite, store=store, **QUICKEST)
    noisy = sum(entry.summary.verdict is not Verdict.STABLE for entry in store.measurements(subject=Subject.BRICK))

    report = run(small_suite, store=store, again=["noisy"], dry_run=True, **QUICKEST)

    assert (report.remaining, report.reused) == (noisy, 10 - noisy)


def test_all_measures_everything_again(small_suite, store):
    run(small_suite, store=store, **QUICKEST)

    report = run(small_suite, store=store, again=["all"], **QUICKEST)

    assert (report.measured, report.reused) == (10, 0)
    assert len(store.measurements(subject=Subject.BRICK, latest=False)) == 20
    assert {entry.run for entry in store.measurements(subject=Subject.BRICK)} == {report.run}


def test_what_was_measured_or_failed_since_a_time_is_not_tried_again(small_suite, store, faulty):
    faulty({"Sqrt": "prepare:unsupported"})
    run(small_suite, store=store, backend="faulty", **QUICKEST)
    faulty({})
    noisy = sum(entry.summary.verdict is not Verdict.STABLE for entry in store.measurements(subject=Subject.BRICK))
    before, now = datetime.now(UTC) - timedelta(hours=1), datetime.now().astimezone()

    def planned(again: str, since: datetime) -> tuple[int, int, int]:
        report = run(small_suite, store=store, backend="faulty", again=[again], since=since, dry_run=True, **QUICKEST)
        return report.remaining, report.reused, report.failed

    assert {planned(again, before) for again in ("all", "failed", "noisy")} == {(0, 9, 1)}
    assert planned("all", now) == (10, 0, 0)
    assert planned("failed", now.replace(tzinfo=None)) == (1, 9, 0)
    assert planned("noisy", now) == (noisy, 9 - noisy, 1)


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
    assert report.forecast_s > 10 * 24 * 2e-3  # of bricks, visits, and ms with what warms up
    assert report.run is None
    assert store.info()["counts"]["runs"] == 0
    assert store.systems() == {}


def test_a_total_time_is_filled_with_visits(small_suite, small_models, store):
    report = run(small_suite, store=store, models=small_models, budget_s=40, processes=2, sessions=2)

    assert report.remaining == report.models_remaining == 0
    measurements = store.measurements(subject=Subject.BRICK)
    assert {entry.stop for entry in measurements} <= {Stop.BUDGET, Stop.VISITS}
    assert min(entry.summary.samples for entry in measurements) >= 10


def test_what_the_time_does_not_suffice_for_remains(small_suite, store):
    report = run(small_suite, store=store, budget_s=0.01)

    assert report.remaining == 10
    assert not report.complete
    resumed = run(small_suite, store=store, **PACKED)
    assert resumed.measured == 10


def test_few_visits_are_a_measurement_that_says_so(small_suite, store):
    report = run(small_suite, store=store, **{**PACKED, "visits": 3})

    assert report.measured == 10
    assert {entry.summary.verdict for entry in store.measurements(subject=Subject.BRICK)} == {Verdict.TIMED_OUT}


@pytest.mark.slow
@BOTH
def test_an_execution_that_takes_its_time_is_no_failure(small_suite, store, faulty, protocol):
    """What warms up counts as well, and the request may take longer."""
    faulty({"Sqrt": "run:slow"})

    report = run(small_suite, store=store, backend="faulty", item_timeout_s=1, **{**protocol, "visits": 3})

    assert (report.measured, report.failed) == (10, 0)


@pytest.mark.parametrize("cache", ["hot", "model"])
def test_bricks_that_do_not_fit_together_go_in_chunks(small_suite, store, cache):
    report = run(small_suite, store=store, memory_bytes=30_000, **{**QUICK, "cache": cache})

    assert report.measured == 10
    visits = {store.blocks(entry.id)[0].visits for entry in store.measurements(subject=Subject.BRICK)}
    assert len(visits) > 1


def test_what_cannot_be_packed_is_measured_by_itself(store, tmp_path, model_file):
    path = model_file(
        tmp_path / "parts.onnx",
        "(float[6,4] x) => (float[6,4] y)"
        "{a = Relu(x) s = SplitToSequence<axis=0>(a) b = ConcatFromSequence<axis=0>(s) y = Exp(b)}",
        {},
    )
    models = find_models([path])
    suite = generate(models, granularity=1, out=tmp_path / "suite").suite

    report = run(suite, store=store, models=models, **PACKED)

    assert (report.failed, report.remaining, report.models) == (0, 0, 1)
    alone = {entry.key: entry.footprint_bytes == 0 for entry in store.measurements(subject=Subject.BRICK)}
    assert alone == {
        key: bool({"SplitToSequence", "ConcatFromSequence"} & {*suite.brick(key).operators}) for key in suite.keys
    }


def test_layout_changes_at_the_edges_of_bricks_are_measured_apart(store, tmp_path, model_file):
    path = model_file(
        tmp_path / "c.onnx",
        "(float[1,16,8,8] x) => (float[1,32,8,8] y) {a = Conv<pads=[1,1,1,1]>(x, w0) y = Sigmoid(a)}",
        {"w0": (32, 16, 3, 3)},
    )
    suite = generate(find_models([path]), granularity=1, out=tmp_path / "suite").suite

    run(suite, store=store, **{**QUICK, "cache": "model"})

    (inner,) = store.measurements(subject=Subject.BRICK, variant=INNER)
    (whole,) = store.measurements(keys=[inner.key])
    assert {inner.key} == _keys_with(suite, "Conv")
    assert inner.summary.samples == whole.summary.samples == 12
    assert inner.footprint_bytes == whole.footprint_bytes
    assert [block.visits for block in store.blocks(inner.id)] == [block.visits for block in store.blocks(whole.id)]


def test_bricks_of_an_annotated_suite_are_visited_again_beside_new_models(small_models, store, tmp_path, model_file):
    """A ratio needs visits of the same minutes: what was measured before is measured once more."""
    path = model_file(
        tmp_path / "other.onnx", "(float[1,40] x) => (float[1,40] y) {a = Tanh(x) b = Softmax(a) y = Sqrt(b)}", {}
    )
    models = [*small_models, *find_models([path])]
    suite = generate(models, granularity=1, out=tmp_path / "suite", annotate=True).suite
    first = run(suite, store=store, models=small_models, **PACKED)
    assert (first.measured, first.models) == (10, 1)

    second = run(suite, store=store, models=models, **PACKED)

    assert (second.measured, second.reused, second.remaining, second.models) == (0, 10, 0, 2)
    again = {entry.key for entry in store.measurements(subject=Subject.BRICK) if entry.run == second.run}
    assert again == set.union(*(_keys_with(suite, name) for name in ("Tanh", "Softmax", "Sqrt")))
    assert len(store.measurements(subject=Subject.BRICK, latest=False)) == 13
    assert store.info()["counts"]["open"] == 0
    third = run(suite, store=store, models=models, **PACKED)
    assert third.run is None


def test_models_are_cut_where_the_suite_does_not_say_what_they_hold(small_suite, small_models, store):
    run(small_suite, store=store, **PACKED)

    second = run(small_suite, store=store, models=small_models, **PACKED)

    assert (second.reused, second.models) == (10, 1)
    assert {entry.run for entry in store.measurements(subject=Subject.BRICK)} == {second.run}


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


def test_packs_share_memory_in_turns(small_suite, store, monkeypatch):
    asked: list[bool] = []
    pack = Worker.pack

    def noted(self, request, **options):
        asked.append(request.memory_reuse)
        return pack(self, request, **options)

    monkeypatch.setattr(Worker, "pack", noted)

    run(small_suite, store=store, **PACKED | {"sessions": 4})

    assert asked == [True, False] * (len(asked) // 2)
    assert len(asked) >= 4


def test_bricks_with_a_broken_file_fail_and_the_others_are_measured(small_suite, store, tmp_path):
    shutil.copytree(small_suite.path, tmp_path / "suite")
    suite = Suite.open(tmp_path / "suite")
    swapped, gone, *others = suite.keys
    suite.brick_path(swapped).write_bytes(suite.brick_path(others[0]).read_bytes())
    suite.brick_path(gone).unlink()

    report = run(suite, store=store, **QUICKEST)
    again = run(small_suite, store=store, **QUICKEST)

    assert {key for key, _ in report.failures} == {swapped, gone}
    assert "lacks the file" in dict(report.failures)[gone]
    assert "is not the file" in dict(report.failures)[swapped]
    assert (report.bricks, report.measured, report.failed) == (len(suite.keys), len(others), 2)
    assert not report.complete
    assert (again.measured, again.reused, again.failed) == (2, len(others), 0)  # with their files they run


@pytest.mark.parametrize(
    "wrong",
    [
        {"cache": "lukewarm"},
        {"threads": -1},
        {"processes": 0},
        {"sessions": 0},
        {"visits": 0},
        {"budget_s": 0},
        {"item_timeout_s": -1},
        {"again": ["everything"]},
        {"since": datetime.now(UTC)},
        {"again": ["all"], "since": datetime.now(UTC) + timedelta(days=1)},
        {"node": "a host / a path"},
        {"campaign": "x" * 64},
        {"backend": "no_such_backend"},
        {"device": "abacus"},
        {"options": {"no_such_option": "1"}},
    ],
)
def test_wrong_options_are_usage_errors(small_suite, store, wrong):
    with pytest.raises(UsageError):
        run(small_suite, store=store, **wrong)


@BOTH
def test_progress_comes_between_requests_only(small_suite, store, protocol):
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

    run(small_suite, store=store, progress=observe, **protocol)

    seen = [event for event, _ in events]
    assert {event.stage for event in seen} >= {Stage.PREPARE, Stage.SAMPLE}
    assert all(idle == 0 for _, idle in events)
    assert [event.done for event in seen] == sorted(event.done for event in seen)
    assert all(event.done <= event.total for event in seen)
    left_s = [event.remaining_s for event in seen if event.remaining_s is not None]
    assert left_s
    assert all(math.isfinite(one) and one >= 0 for one in left_s)


@BOTH
def test_the_parts_make_up_the_whole(small_suite, store, protocol):
    report = run(small_suite, store=store, **protocol)

    costs = report.costs
    parts = costs.start_s + costs.prepare_s + costs.sample_s + costs.store_s + costs.statistics_s + costs.read_s
    parts += costs.unpack_s
    assert costs.load_s <= costs.prepare_s
    assert costs.timed_s <= costs.sample_s
    assert parts <= report.wall_s
    assert report.wall_s - parts < 0.2 * report.wall_s + 0.5
