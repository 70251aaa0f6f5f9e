"""Running a suite: what is measured, what is reused, and what a bad brick costs."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from dlbricks.bricks.graph.boundary import BOUNDARY, Caches
from dlbricks.bricks.graph.footprint import REUSE_LEVELS
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store
from dlbricks.db.values import INNER, PROTOCOL, Stop, Subject, Verdict
from dlbricks.errors import UsageError
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement import execution, pace
from dlbricks.generator.measurement.plan import plan_groups
from dlbricks.generator.measurement.run import run
from dlbricks.generator.progress import Stage
from dlbricks.generator.worker.client import Timeouts, Worker
from dlbricks.generator.worker.messages import Load, Loaded
from dlbricks.models import find_models

QUICK = {"cache": "hot", "visits": 12, "processes": 2, "sessions": 2}
QUICKEST = {"cache": "hot", "visits": 10, "processes": 1, "sessions": 1}
PACKED = {**QUICKEST, "cache": "model"}
HANGS = ("prepare:hang", "run:hang", "run:hang@4")
BOTH = pytest.mark.parametrize("protocol", [QUICKEST, PACKED], ids=["hot", "model"])


def _keys_with(suite: Suite, *operators: str) -> set[str]:
    return {key for key in suite.keys if {*operators} & {*suite.brick(key).operators}}


@pytest.fixture(scope="module", params=["hot", "model"])
def ran(request, tmp_path_factory, small_suite, small_models):
    """What a run of bricks and a model reports, the database that it left, and the state of the cache."""
    with Store.open(tmp_path_factory.mktemp("ran") / "m.db") as store:
        report = run(small_suite, store=store, models=small_models, **{**QUICK, "cache": request.param})
        yield report, store, request.param


@pytest.fixture
def suite_of(source, tmp_path):
    """The suite of a model that is written as text, and the model."""

    def made(*model, **options):
        found = source(*model)
        return generate([found], granularity=1, out=tmp_path / "suite", **options).suite, [found]

    return made


@pytest.mark.parametrize(("together_bytes", "groups"), [(None, 1), (1, 10)])
def test_bricks_are_loaded_together_up_to_a_size(small_suite, store, monkeypatch, together_bytes, groups):
    planned = []

    def noted(*given, **options):
        planned.append(plan_groups(*given, **options))
        return planned[-1]

    monkeypatch.setattr(execution, "plan_groups", noted)
    report = run(small_suite, store=store, together_bytes=together_bytes, **QUICKEST)

    assert report.complete
    assert list(map(len, planned)) == [groups]


def test_every_brick_is_measured_and_then_reused(ran, small_suite, small_models):
    report, store, cache = ran

    assert (report.bricks, report.measured, report.reused, report.failed, report.remaining) == (10, 10, 0, 0, 0)
    assert report.models == 1
    assert report.complete
    again = run(small_suite, store=store, models=small_models, **{**QUICK, "cache": cache})
    assert (again.bricks, again.measured, again.reused, again.models) == (10, 0, 10, 1)
    assert again.run is None
    assert list(report.frame().state) == ["measured"] * 11  # ten bricks, one model
    assert list(again.frame().state) == ["reused"] * 11
    assert set(report.frame().key) > set(small_suite.keys)
    assert report.frame(inner=True).empty


def test_a_measurement_says_how_it_came_about(ran, small_suite):
    report, store, cache = ran

    measurements = store.measurements(subject=Subject.BRICK)
    assert {entry.key for entry in measurements} == set(small_suite.keys)
    visits = set()
    for entry in measurements:
        blocks = store.blocks(entry.id)
        visits.add(tuple(block.visits for block in blocks))
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
        assert entry.conditions.cache == {"hot": "hot", "model": "64KiB"}[cache]
        assert min(entry.load_ns, entry.first_run_ns) > 0  # a small model's bricks run alone in either state
    assert len(visits) > 1
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


def test_bricks_and_models_are_visited_in_turn(ran):
    """Sample i of a brick was taken within the same turn as sample i of the model."""
    _, store, _ = ran

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
                orders.add(visit.begun_us < turns[turn].begun_us)
    assert orders == {True, False}  # now before it, now after


@pytest.mark.parametrize("ran", ["hot"], indirect=True)
def test_the_time_of_a_short_brick_is_that_of_one_execution(ran, small_suite):
    """Loops and copies are divided out: a brick of 40 elements takes microseconds, not its raw sample's 20 ms."""
    _, store, _ = ran

    (entry,) = store.measurements(keys=list(_keys_with(small_suite, "Tanh")))
    raw = [sample for block in store.blocks(entry.id) for sample in block.samples]
    assert entry.unroll * min(loops for _, loops in raw) > 1
    assert entry.summary.min_ns == pytest.approx(min(elapsed / loops for elapsed, loops in raw) / entry.unroll)


def test_the_parts_make_up_the_whole(ran):
    report, _, _ = ran

    costs = report.costs
    parts = costs.start_s + costs.prepare_s + costs.sample_s + costs.store_s + costs.statistics_s + costs.read_s
    parts += costs.unpack_s
    assert costs.load_s <= costs.prepare_s
    assert costs.timed_s <= costs.sample_s
    assert parts <= report.wall_s
    assert report.wall_s - parts < 0.2 * report.wall_s + 0.5


@pytest.mark.sweep(1, by="kinds")
@BOTH
@pytest.mark.parametrize(
    ("faults", "kinds", "reason"),
    [
        ({"Sqrt": "prepare:crash"}, ["crashed"], "SIGSEGV: something broke inside"),
        ({"Sqrt": "run:exit"}, ["crashed"], "status 3"),
        ({"Sqrt": "run:crash@4"}, ["crashed"], "SIGSEGV"),
        pytest.param({"Sqrt": "prepare:memory"}, ["memory"], "memory limit", marks=pytest.mark.slow),
        ({"Sqrt": "prepare:unsupported"}, ["unsupported"], "no kernel for this"),
        ({"Sqrt": "run:unsupported@4"}, ["unsupported"], "no kernel for this"),
        *(pytest.param({"Sqrt": fault}, ["timeout"], "in time", marks=pytest.mark.slow) for fault in HANGS),
        ({"Sqrt": "run:crash", "Exp": "prepare:exit", "Tanh": "prepare:unsupported"}, [*"ccu"], ""),
    ],
    ids=str,
)
def test_a_bad_brick_costs_only_itself(small_suite, store, faulty, monkeypatch, protocol, faults, kinds, reason):
    faulty(faults)
    patience = {}
    if kinds == ["timeout"]:
        monkeypatch.setattr(Timeouts, "load", 3.0)  # of a busy machine
        patience = {"item_timeout_s": 3}

    report = run(small_suite, store=store, backend="faulty", memory_bytes=1 << 29, **patience, **protocol)

    bad = _keys_with(small_suite, *faults)
    assert (report.measured, report.failed, report.remaining) == (10 - len(bad), len(bad), 0)
    assert {key for key, _ in report.failures} == {failure.key for failure in store.failures()} == bad
    assert all(reason in said for _, said in report.failures)
    found = sorted(failure.kind for failure in store.failures())
    assert found == kinds or [kind[0] for kind in found] == kinds
    conditions = store.failures()[0].conditions
    assert store.measured_keys(report.system, report.stack, conditions, Subject.BRICK) == {*small_suite.keys} - bad
    assert {entry.summary.samples for entry in store.measurements(subject=Subject.BRICK)} == {10}
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


@pytest.mark.sweep(1)
@BOTH
@pytest.mark.parametrize("fault", ["prepare:crash", "run:crash@4"])
def test_a_model_that_crashes_costs_itself(small_suite, small_models, store, faulty, source, protocol, fault):
    deadly = source("(float[4] x) => (float[4] y) {a = Neg(x) y = Abs(a)}", name="deadly")
    faulty({"Neg": fault})

    report = run(small_suite, store=store, backend="faulty", models=[deadly, *small_models], **protocol)

    assert (report.measured, report.failed, report.models, report.models_remaining) == (10, 0, 1, 0)
    assert [name for name, _ in report.failures] == [deadly.name]
    (failure,) = store.failures()
    assert (failure.subject, failure.kind) == (Subject.MODEL, "crashed")


@pytest.mark.sweep(1)
@BOTH
def test_what_was_measured_or_failed_is_tried_again_where_it_is_asked_for(small_suite, store, faulty, protocol):
    faulty({"Sqrt": "prepare:unsupported"})
    run(small_suite, store=store, backend="faulty", **protocol)
    faulty({})
    noisy = sum(entry.summary.verdict is not Verdict.STABLE for entry in store.measurements(subject=Subject.BRICK))
    before, now = datetime.now(UTC) - timedelta(hours=1), datetime.now().astimezone()

    def planned(*again, **more):
        report = run(small_suite, store=store, backend="faulty", again=again, dry_run=True, **{**protocol, **more})
        return report.remaining, report.reused, report.failed

    assert planned() == (0, 9, 1)
    assert planned("noisy") == (noisy, 9 - noisy, 1)
    assert {planned(again, since=before) for again in ("all", "failed", "noisy")} == {(0, 9, 1)}
    assert planned("all", since=now) == (10, 0, 0)
    assert planned("failed", since=now.replace(tzinfo=None)) == (1, 9, 0)
    assert planned("noisy", since=now) == (noisy, 9 - noisy, 1)
    assert planned(cache="cold") == planned(options={"optimization": "disabled"}) == (10, 0, 0)

    ignored = run(small_suite, store=store, backend="faulty", **protocol)
    tried = run(small_suite, store=store, backend="faulty", again=["failed"], **protocol)
    everything = run(small_suite, store=store, backend="faulty", again=["all"], **protocol)

    assert ignored.failures[0][1] == "no kernel for this"
    assert (tried.measured, tried.reused, tried.failed, store.failures()) == (1, 9, 0, [])
    assert (everything.measured, everything.reused) == (10, 0)
    assert len(store.measurements(subject=Subject.BRICK, latest=False)) == 20
    assert {entry.run for entry in store.measurements(subject=Subject.BRICK)} == {everything.run}


FAR = "(float[1,1200,256] x) => (float[1,1200,256] y) {a = Relu(x) b = Sqrt(a) y = Neg(b)}"


def caches_noted(suite, models, store):
    """The caches that the store has noted for a run."""
    report = run(suite, store=store, models=models, **PACKED)
    (noted,) = [one for one in store.runs() if one.id == report.run]
    return noted.options["caches"]


def test_a_run_with_cold_variants_notes_for_which_caches_they_were_chosen(store, suite_of, monkeypatch):
    """Reading chooses the same ones then, even where another look would have found other caches."""
    caches = Caches(3 << 20, 32 << 20, 64 << 20)
    monkeypatch.setattr("dlbricks.generator.decomposition.generate.caches_here", lambda: caches)
    suite, models = suite_of(FAR, graph="runtime")

    noted = caches_noted(suite, models, store)

    assert {variant for key in suite.keys for variant in suite.boundary(key)} >= {"kept"}
    assert noted == [*caches]


def test_a_suite_along_fusions_has_cold_variants_for_any_machine_and_the_run_notes_its_own(
    store, suite_of, monkeypatch
):
    """A later run takes what the store noted of this machine, though another look would find more."""
    caches = Caches(1 << 20, 24 << 20, 64 << 20)
    monkeypatch.setattr("dlbricks.generator.measurement.execution.caches_here", lambda: caches)
    suite, models = suite_of(FAR, graph="fused")

    noted = caches_noted(suite, models, store)

    assert suite.caches is None
    assert {variant for key in suite.keys for variant in suite.boundary(key, caches.last)} >= {"given", "kept"}
    measured = [stored.variant for stored in store.measurements(variant=None) if stored.variant in BOUNDARY]
    assert len(measured) == sum(len(suite.boundary(key, caches.last)) for key in suite.keys)
    assert noted == [*caches]
    monkeypatch.setattr("dlbricks.generator.measurement.execution.caches_here", lambda: Caches(2 << 20, 64 << 20))
    assert run(suite, store=store, models=models, **PACKED).measured == 0


def test_two_models_of_one_name_are_refused(small_suite, store, source):
    named = source("(float[1,8] x) => (float[1,8] y) {y = Relu(x)}")
    other = replace(source("(float[1,9] x) => (float[1,9] y) {y = Relu(x)}", name="other"), name=named.name)

    with pytest.raises(UsageError, match=f"two models are called '{named.name}'"):
        run(small_suite, store=store, models=[named, other], **QUICKEST)


def test_a_dry_run_changes_nothing(small_suite, small_models, store):
    report = run(small_suite, store=store, models=small_models, cache="hot", dry_run=True)

    assert (report.bricks, report.measured, report.reused, report.remaining) == (10, 0, 0, 10)
    assert report.models_remaining == len(small_models)
    assert report.forecast_s > 10 * 24 * 2e-3  # of bricks, visits, and ms with what warms up
    assert report.run is None
    assert store.info()["counts"]["runs"] == 0
    assert store.systems() == {}


def test_what_the_time_does_not_suffice_for_remains_and_few_visits_are_a_measurement_that_says_so(small_suite, store):
    report = run(small_suite, store=store, budget_s=0.01)

    assert report.remaining == 10
    assert not report.complete
    resumed = run(small_suite, store=store, **{**PACKED, "visits": 3})
    assert resumed.measured == 10
    assert {entry.summary.verdict for entry in store.measurements(subject=Subject.BRICK)} == {Verdict.TIMED_OUT}


def test_loading_beyond_the_total_time_is_given_up_and_nothing_has_failed(
    small_suite, store, install_backend, monkeypatch
):
    install_backend("sleeping", "SleepingBackend", (Path(__file__).parents[1] / "sleeping_backend.py").read_text())
    monkeypatch.setattr(pace, "_LEAST_S", 0.5)
    asked: list[float] = []
    load = Worker.load

    def bounded(self: Worker, request: Load, *, timeout_s: float) -> Loaded:
        asked.append(timeout_s)
        return load(self, request, timeout_s=timeout_s)

    monkeypatch.setattr(Worker, "load", bounded)

    report = run(
        small_suite, store=store, backend="sleeping", options={"sleep_us": "60000000"}, cache="hot", budget_s=1
    )

    assert (report.measured, report.remaining, report.failures) == (0, 10, ())
    assert asked
    assert max(asked) <= 1.2  # of the minute that the first network takes


@pytest.mark.sweep(1)
@pytest.mark.parametrize("cache", ["hot", "model"])
def test_bricks_that_do_not_fit_together_go_in_chunks(small_suite, store, cache):
    report = run(small_suite, store=store, memory_bytes=30_000, **{**QUICK, "cache": cache})

    assert report.measured == 10
    visits = {store.blocks(entry.id)[0].visits for entry in store.measurements(subject=Subject.BRICK)}
    assert len(visits) > 1


def test_what_cannot_be_packed_is_measured_by_itself(store, suite_of):
    suite, models = suite_of(
        "(float[6,4] x) => (float[6,4] y)"
        "{a = Relu(x) s = SplitToSequence<axis=0>(a) b = ConcatFromSequence<axis=0>(s) y = Exp(b)}"
    )

    report = run(suite, store=store, models=models, **PACKED)

    assert (report.failed, report.remaining, report.models) == (0, 0, 1)
    alone = {entry.key: entry.footprint_bytes == 0 for entry in store.measurements(subject=Subject.BRICK)}
    wanted = _keys_with(suite, "SplitToSequence", "ConcatFromSequence")
    assert alone == {key: key in wanted for key in suite.keys}


def test_layout_changes_at_the_edges_of_bricks_are_measured_apart(store, suite_of):
    graph = "(float[1,16,8,8] x) => (float[1,32,8,8] y) {a = Conv<pads=[1,1,1,1]>(x, w0) y = Sigmoid(a)}"
    suite, _ = suite_of(graph, {"w0": (32, 16, 3, 3)})

    run(suite, store=store, **{**QUICK, "cache": "model"})

    (inner,) = store.measurements(subject=Subject.BRICK, variant=INNER)
    (whole,) = store.measurements(keys=[inner.key])
    assert {inner.key} == _keys_with(suite, "Conv")
    assert inner.summary.samples == whole.summary.samples == 12
    assert inner.footprint_bytes == whole.footprint_bytes
    assert [block.visits for block in store.blocks(inner.id)] == [block.visits for block in store.blocks(whole.id)]


def test_bricks_of_an_annotated_suite_are_visited_again_beside_new_models(small_models, store, tmp_path, source):
    """A ratio needs visits of the same minutes: what was measured before is measured once more."""
    models = [*small_models, source("(float[1,40] x) => (float[1,40] y) {a = Tanh(x) b = Softmax(a) y = Sqrt(b)}")]
    suite = generate(models, granularity=1, out=tmp_path / "suite", annotate=True).suite
    first = run(suite, store=store, models=small_models, **PACKED)
    assert (first.measured, first.models) == (10, 1)

    second = run(suite, store=store, models=models, **PACKED)

    assert (second.measured, second.reused, second.remaining, second.models) == (0, 10, 0, 2)
    again = {entry.key for entry in store.measurements(subject=Subject.BRICK) if entry.run == second.run}
    assert again == _keys_with(suite, "Tanh", "Softmax", "Sqrt")
    assert len(store.measurements(subject=Subject.BRICK, latest=False)) == 13
    assert store.info()["counts"]["open"] == 0
    third = run(suite, store=store, models=models, **PACKED)
    assert third.run is None


def test_models_are_cut_where_the_suite_does_not_say_what_they_hold(small_suite, small_models, store):
    run(small_suite, store=store, **PACKED)

    second = run(small_suite, store=store, models=small_models, **PACKED)

    assert (second.reused, second.models) == (10, 1)
    assert {entry.run for entry in store.measurements(subject=Subject.BRICK)} == {second.run}


def test_packs_share_memory_in_turns(small_suite, store, monkeypatch):
    asked: list[bool] = []
    load = Worker.load

    def noted(self, request, **options):
        if request.packed:
            asked.append(request.memory_reuse)
        return load(self, request, **options)

    monkeypatch.setattr(Worker, "load", noted)
    monkeypatch.setattr(Suite, "footprints", lambda *_: REUSE_LEVELS[:1])  # as of a model too large for a core

    run(small_suite, store=store, **PACKED | {"sessions": 4})

    assert asked == [True, False] * (len(asked) // 2)
    assert len(asked) >= 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"cache": "lukewarm"},
        {"threads": -1},
        {"visits": 0},
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


@pytest.mark.sweep(1)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cache", "more"),
    [
        ("close:crash", "cold", {}),  # at a release what it measured is complete: there is nobody left to blame
        ("run:slow", "hot", {"visits": 3, "item_timeout_s": 2}),  # what warms up counts: a request may take longer
        ("run:slow", "model", {"visits": 3, "item_timeout_s": 2}),
    ],
)
def test_what_dies_at_a_release_and_what_takes_its_time_is_no_failure(small_suite, store, faulty, fault, cache, more):
    faulty({"Sqrt": fault})

    report = run(small_suite, store=store, backend="faulty", **{**QUICKEST, "cache": cache, **more})

    assert (report.measured, report.failed, report.remaining) == (10, 0, 0)


def test_cold_samples_are_single_executions(small_suite, store):
    run(small_suite, store=store, **{**QUICK, "cache": "cold"})

    for entry in store.measurements(subject=Subject.BRICK):
        assert entry.unroll == 1
        assert all(loops == 1 for block in store.blocks(entry.id) for _, loops in block.samples)


def test_a_total_time_is_filled_with_visits(small_suite, small_models, store):
    report = run(small_suite, store=store, models=small_models, budget_s=40, processes=2, sessions=2)

    assert report.remaining == report.models_remaining == 0
    measurements = store.measurements(subject=Subject.BRICK)
    assert {entry.stop for entry in measurements} <= {Stop.BUDGET, Stop.VISITS}
    assert min(entry.summary.samples for entry in measurements) >= 10


def test_a_broken_model_costs_only_itself_and_equal_ones_are_measured_once(small_suite, small_models, store, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    shutil.copy(small_models[0].path, tmp_path / "twin.onnx")
    models = [*small_models, *find_models([tmp_path / f"{name}.onnx" for name in ("twin", "broken", "absent")])]

    report = run(small_suite, store=store, models=models, **QUICKEST)

    assert (report.measured, report.models, len(report.failures), report.complete) == (10, 1, 2, False)
    assert len(store.measurements(subject=Subject.MODEL)) == 1


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
