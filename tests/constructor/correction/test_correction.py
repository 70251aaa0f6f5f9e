"""From raw sums to corrected estimates: corrections, the size of each cause, and the answer where one is unknown."""

from __future__ import annotations

import dataclasses
import json
import math
import uuid

import pytest
from dlbricks import estimate
from dlbricks.analyzer.estimation.estimates import estimate_record
from dlbricks.analyzer.estimation.query import why_not_here
from dlbricks.analyzer.shell import shell_command
from dlbricks.bricks.cutting.fused import edge_layouts, fused_sequences
from dlbricks.bricks.graph.footprint import CORE_LEVEL, REUSE_LEVELS, level_name, level_of
from dlbricks.bricks.reference import OVERHEAD, built_in_key
from dlbricks.constructor.correction import with_denormals
from dlbricks.constructor.result import SIGNS, Term
from dlbricks.constructor.uncertainty.calibration import Method, method_error
from dlbricks.db import Conditions, Run, Stack, Subject
from dlbricks.db.values import INNER
from dlbricks.errors import AmbiguousQuery
from dlbricks.generator.backends.registry import get
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decomposer import Decomposer
from dlbricks.generator.machine.system import probe_system
from dlbricks.generator.worker.client import Worker
from dlbricks.models import find_models

from ..conftest import one

LEVEL, OTHER = level_name(CORE_LEVEL), level_name(REUSE_LEVELS[-1])
"""That of every small model, and another."""

EXECUTED = Method("onnxruntime", "cpu", "runtime", 1, "model", 1, 1, "float32")


def under(cache: str, threads: int = 1) -> Conditions:
    return Conditions(threads=threads, cache=cache)


@pytest.fixture
def home(lab):
    """The lab, on this machine and with the stack that is installed here."""
    lab.system, lab.stack = probe_system(), get("onnxruntime").stack("cpu", {})
    lab.store.put_system(lab.system)
    lab.store.put_stack(lab.stack)
    lab.run = str(uuid.uuid4())
    lab.store.begin_run(Run(lab.run, "2026-11-22T00:00:00Z", "0", "run", None, lab.system.key, lab.stack.key))
    return lab


@pytest.fixture
def model(tmp_path, write_branches):
    (source,) = find_models([write_branches(tmp_path / "branches.onnx")])
    return source


@pytest.fixture(scope="module")
def executed():
    """What the runtime executes for a model; one worker for the whole module."""
    with Decomposer(Cut(1, graph="runtime")) as cutter:
        yield lambda source: cutter(source).executed


def executed_keys(found, granularity=1, **options):
    from dlbricks.bricks.cutting.sequences import sequences

    return [part.key for part in sequences(found.graph, granularity, **options)]


def reference(lab, name, ms, cache):
    lab.put([(built_in_key(name), ms)], subject=Subject.REFERENCE, conditions=under(cache))


def value(answer, name):
    return answer.attribution[name].ms if name in answer.attribution else None


def balance(answer):
    """The terms with their signs; the measured latency where nothing is unknown."""
    return math.fsum(sign * (value(answer, name) or 0.0) for name, sign in SIGNS.items())


# Calls ----------------------------------------------------------------------------------------------------------------


def test_calls_that_the_model_does_not_pay_are_taken_off(lab, fork, keys_of):
    keys = keys_of(fork)
    lab.put([(key, 1.0) for key in keys[:3]])
    lab.put([(key, 1.0) for key in keys[3:]], unroll=4)
    reference(lab, OVERHEAD, 0.1, "hot")

    answer = one(lab, fork)

    excess = (3 + 2 / 4 - 1) * 0.1  # a network of four copies is called once for four
    assert answer.sums.sequential_ms == 5.0
    assert value(answer, "overhead") == pytest.approx(excess)
    assert answer.latency.ms == pytest.approx(5.0 - excess)


def test_cold_calls_are_cold(lab, fork, keys_of):
    lab.put([(key, 1.0) for key in keys_of(fork)], conditions=under("cold"))
    reference(lab, OVERHEAD, 0.1, "hot")
    reference(lab, OVERHEAD, 0.5, "cold")

    answer = one(lab, fork, cache="cold")
    assert answer.latency.ms == pytest.approx(5.0 - 4 * 0.5)


# Levels of reuse distance ---------------------------------------------------------------------------------------------


def test_each_model_is_looked_up_at_its_own_level(lab, keys_of):
    small, large = (
        lab.source(
            f"""
            <ir_version: 8, opset_import: ["" : 17]>
            wide (float[1, {size}] x) => (float[1, {size}] y) {{ y = Relu(x) }}
            """,
            f"wide{size}",
        )
        for size in (8, 4_000_000)
    )
    for source in (small, large):
        for number, level in enumerate(REUSE_LEVELS):
            lab.put([(keys_of(source)[0], 1.0 + number)], conditions=under(level_name(level)))

    answers = estimate([small, large], store=lab.store, cache="model")

    beyond = level_of(32_000_000)  # two activations
    assert [answer.model.level for answer in answers] == [LEVEL, level_name(beyond)]
    assert [answer.sums.sequential_ms for answer in answers] == [1.0, 1.0 + REUSE_LEVELS.index(beyond)]
    assert {answer.place.cache for answer in answers} == {"model"}


def test_levels_together_are_one_combination(lab, fork, keys_of):
    keys = keys_of(fork)
    for level in REUSE_LEVELS:
        lab.put([(key, 2.0) for key in keys], conditions=under(level_name(level)))

    assert one(lab, fork).place.cache == "model"
    assert one(lab, fork).sums.sequential_ms == 10.0
    assert one(lab, fork, cache=OTHER).place.cache == OTHER

    lab.put([(keys[0], 1.0)])
    with pytest.raises(AmbiguousQuery, match=r"--cache hot .* 1 of these.*--cache model .* 5 of these"):
        one(lab, fork)
    assert one(lab, fork, cache="model").sums.sequential_ms == 10.0


def test_a_brick_that_is_not_measured_at_the_model_s_level_is_taken_from_the_nearest(lab, fork, keys_of):
    keys = keys_of(fork)
    lab.put([(key, 2.0) for key in keys], conditions=under(OTHER))
    lab.put([(key, 1.0) for key in keys[1:]], conditions=under(LEVEL))

    answer = one(lab, fork, cache="model")

    assert answer.complete
    assert answer.sums.sequential_ms == 2.0 + 4 * 1.0


@pytest.mark.parametrize(("level", "unroll", "calls"), [(OTHER, 1, 0), (LEVEL, 1, 1 + 4 / 2), (LEVEL, 8, 5 / 8)])
def test_packs_lack_one_call_and_bricks_of_small_models_have_too_many(lab, fork, keys_of, level, unroll, calls):
    lab.put([(key, 1.0) for key in keys_of(fork)], conditions=under(level), unroll=unroll)
    reference(lab, OVERHEAD, 0.1, "hot")

    answer = one(lab, fork)

    assert answer.latency.ms == pytest.approx(5 - (calls - 1) * 0.1)
    assert value(answer, "overhead") == pytest.approx((calls - 1) * 0.1)


@pytest.mark.parametrize("asked", ["hot", "model"])
def test_ground_truth_of_a_repeated_model_is_that_of_its_own_state(lab, fork, keys_of, graph_of, asked):
    cache = "hot" if asked == "hot" else LEVEL
    lab.put([(key, 1.0) for key in keys_of(fork)], conditions=under(cache))
    truth = graph_of(fork).key
    lab.put([(truth, 8.0)], subject=Subject.MODEL, conditions=under("hot"))
    assert one(lab, fork).truth.ms == 8.0
    later = str(uuid.uuid4())
    lab.store.begin_run(Run(later, "2026-11-25T00:00:00Z", "0", "run", None, lab.system.key, lab.stack.key))
    lab.put([(truth, 6.0)], subject=Subject.MODEL, conditions=under("model"), run=later)
    assert one(lab, fork).truth.ms == 6.0
    lab.put([(truth, 99.0)], subject=Subject.MODEL, conditions=under("cold"))
    assert one(lab, fork).truth.ms == 6.0


# The executed graph ---------------------------------------------------------------------------------------------------


def test_the_executed_graph_at_the_models_own_level(home, model, executed):
    found = executed(model)
    keys = executed_keys(found)
    home.put([(key, 1.0) for key in set(keys)], conditions=under(LEVEL))
    reference(home, OVERHEAD, 0.1, "hot")
    home.put([(found.source.key, 8.0)], subject=Subject.MODEL)

    answer = one(home, model, graph="runtime", cache="model")

    expected = len(keys) - (len(keys) - 1) / 2 * 0.1
    assert (answer.model.cutting.graph, answer.place.cache, answer.model.level) == ("runtime", "model", LEVEL)
    assert answer.sums.sequential_ms == len(keys)
    assert answer.latency.ms == pytest.approx(expected)
    assert [value(answer, name) for name in ("fusion", "layout", "cache")] == [0.0, 0.0, 0.0]
    assert value(answer, "unexplained") == pytest.approx(8.0 - expected)
    assert answer.attribution_absolute_ms == pytest.approx((len(keys) - 1) / 2 * 0.1 + abs(8.0 - expected))
    assert balance(answer) == pytest.approx(8.0)
    assert answer.truth.ratio == pytest.approx(expected / 8.0)
    half = (answer.latency.ci95_ms[1] - answer.latency.ci95_ms[0]) / 2
    error = method_error(EXECUTED, home.system.cpu)
    unsure = (len(keys) - 1) / 2 * 0.1 / expected / math.sqrt(3)  # between none and all of the calls
    assert answer.latency.method.sd == pytest.approx(math.hypot(error.sd, unsure))
    assert half > 1.96 * error.sd * expected


@pytest.fixture
def explained(home, model, executed, keys_of):
    """A model of which everything is measured: own bricks hot, executed bricks hot and at its level."""
    found = executed(model)
    source, runtime = keys_of(model), executed_keys(found)
    home.put([(key, 2.0) for key in set(source)])
    home.put([(key, 1.0) for key in set(runtime)])
    home.put([(key, 1.2) for key in set(runtime)], conditions=under(LEVEL))
    reference(home, OVERHEAD, 0.1, "hot")
    home.put([(found.source.key, 8.0)], subject=Subject.MODEL)
    return home, model, len(source), len(runtime)


def test_whichever_bricks_are_asked_for_the_best_that_is_stored_is_the_estimate(explained):
    lab, model, _, nodes = explained

    answers = [
        one(lab, model, graph=graph, cache=cache)
        for graph, cache in (("source", "hot"), ("runtime", "hot"), ("runtime", "model"))
    ]

    expected = nodes * 1.2 - (nodes - 1) / 2 * 0.1
    assert [answer.latency.ms for answer in answers] == pytest.approx([expected] * 3)
    assert [balance(answer) for answer in answers[1:]] == pytest.approx([8.0] * 2)
    assert len({answer.sums.sequential_ms for answer in answers}) == 3


@pytest.fixture
def windows(executed, model):
    """Windows of several layers that the runtime fuses; each window has as many milliseconds as layers, unfused."""
    found = [part for part in fused_sequences(executed(model), 1) if len(part.layers) > 1]
    assert found

    def put(lab, *, saving_ms=1.5, cache="hot"):
        unfused = {part.key: float(len(part.layers)) for part in found}
        lab.put([*unfused.items()], variant="unfused", conditions=under(cache))
        lab.put([(key, ms - saving_ms) for key, ms in unfused.items()], variant="extended", conditions=under(cache))
        return len(found) * saving_ms

    return put


def test_fusion_is_what_windows_save_with_it(explained, windows):
    """It does not look at the executed graph, nor at the model: what is left unexplained may be anything."""
    lab, model, layers, nodes = explained
    saved = windows(lab)

    answer = one(lab, model, cache="hot")

    assert value(answer, "fusion") == pytest.approx(saved)
    explained_ms = 2.0 * layers - saved - (layers - 1) * 0.1 + nodes * 0.3 - (nodes + 1) / 2 * 0.1
    assert value(answer, "unexplained") == pytest.approx(8.0 - explained_ms)
    assert abs(8.0 - explained_ms) > 0.5, "a residual that is not the estimate's own error"
    assert balance(answer) == pytest.approx(8.0)


def test_an_estimate_does_not_depend_on_what_the_cache_folder_keeps(explained, windows, monkeypatch, tmp_path):
    lab, model, *_ = explained
    windows(lab)
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path))

    made = one(lab, model, cache="hot")
    monkeypatch.setattr(Worker, "start", lambda *_, **__: pytest.fail("a worker was started"))
    kept = one(lab, model, cache="hot")

    assert made.latency == kept.latency
    assert made.attribution == kept.attribution
    assert value(made, "cache") is not None
    assert value(made, "fusion") is not None


def test_no_worker_is_started_for_a_graph_that_no_estimate_can_use(home, model, keys_of, monkeypatch, tmp_path):
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path))
    home.put([(key, 2.0) for key in set(keys_of(model))], conditions=under(LEVEL))
    monkeypatch.setattr(Worker, "start", lambda *_, **__: pytest.fail("a worker was started"))

    answer = one(home, model, cache="model")

    assert "no brick of the executed graph" in answer.attribution["fusion"].reason


def test_without_bricks_of_the_executed_graph_the_estimate_is_what_is_explained(home, model, windows, keys_of):
    keys = keys_of(model)
    home.put([(key, 2.0) for key in set(keys)], conditions=under(LEVEL))
    reference(home, OVERHEAD, 0.1, "hot")
    saved = windows(home, cache=LEVEL)

    answer = one(home, model, cache="model")

    assert answer.latency.ms == pytest.approx(2.0 * len(keys) - (len(keys) - 1) / 2 * 0.1 - saved)


def test_a_cause_within_its_interval_is_shown_and_not_counted(explained, windows):
    """Windows that differ by less than they scatter, 1 %: fusion saves nothing that is known."""
    lab, model, *_ = explained
    saved = windows(lab, saving_ms=0.005)

    answer = one(lab, model, cache="hot")

    fusion = answer.attribution["fusion"]
    assert fusion.ms == pytest.approx(saved)
    assert fusion.ci95_ms[0] < 0 < fusion.ci95_ms[1]
    assert not fusion.counted
    others = {name: value(answer, name) or 0.0 for name in SIGNS if name not in {"bricks", "fusion"}}
    assert answer.attribution_absolute_ms == pytest.approx(sum(map(abs, others.values())))
    assert value(answer, "bricks") + sum(SIGNS[name] * ms for name, ms in others.items()) == pytest.approx(8.0)


def test_every_cause_is_what_was_done_about_it(explained):
    lab, model, layers, nodes = explained

    answer = one(lab, model, cache="hot")

    assert value(answer, "bricks") == 2.0 * layers
    assert value(answer, "overhead") == pytest.approx((layers - 1) * 0.1)
    assert value(answer, "fusion") is None
    assert "what fusion saves is not measured" in answer.attribution["fusion"].reason
    assert "--algorithm unfused --algorithm extended" in shell_command(answer.attribution["fusion"].remedy)
    assert value(answer, "cache") == pytest.approx(nodes * 0.3 - (nodes + 1) / 2 * 0.1)
    assert answer.attribution["layout"].ms is None
    assert "not measured by themselves" in answer.attribution["layout"].reason
    for term in answer.attribution.values():
        assert term.ms is None or term.ci95_ms[0] <= term.ms <= term.ci95_ms[1]
    assert json.loads(json.dumps(estimate_record(answer)))["attribution"]["bricks"]["reason"] is None


def test_a_model_that_is_asked_for_cold_stays_cold(explained, keys_of, executed):
    """Ground truth of cold caches is that of a cold model: nothing brings the bricks to its own reuse distance."""
    lab, model, _, nodes = explained
    found = executed(model)
    lab.put([(key, 5.0) for key in set(keys_of(model))], conditions=under("cold"))
    lab.put([(key, 4.0) for key in set(executed_keys(found))], conditions=under("cold"))
    lab.put([(found.source.key, 25.0)], subject=Subject.MODEL, conditions=under("cold"))
    reference(lab, OVERHEAD, 0.5, "cold")

    answer = one(lab, model, cache="cold")

    assert answer.truth.ms == 25.0
    assert answer.latency.ms == pytest.approx(nodes * 3.5 + 0.5)
    assert value(answer, "cache") == 0.0


def test_layout_changes_at_edges_less_those_of_the_model(explained, keys_of, executed):
    from dlbricks.bricks.cutting.sequences import sequences

    lab, model, layers, _ = explained
    source, found = keys_of(model), executed(model)
    conv = source[0]
    lab.put([(conv, 1.5)], variant=INNER)
    shares = edge_layouts(found, sequences(found.source, 1))
    assert 0 < sum(shares) < len(shares)  # the model changes some layouts itself

    answer = one(lab, model, cache="hot")

    excess = sum(0.5 * (1 - share) for key, share in zip(source, shares, strict=True) if key == conv)
    assert value(answer, "layout") == pytest.approx(excess)
    assert answer.bounds.sequential.ms == 2.0 * layers  # half a brick bounds nothing


def test_bricks_along_fusions_need_no_bricks_of_the_executed_graph(home, model, executed):
    """The portable way: what is not known of the runtime's own bricks is made up for by layouts and calls."""
    found = executed(model)
    parts = fused_sequences(found, 1)
    home.put([(part.key, 1.0) for part in {part.key: part for part in parts}.values()], conditions=under(LEVEL))
    home.put([(parts[0].key, 0.8)], variant=INNER, conditions=under(LEVEL))
    reference(home, OVERHEAD, 0.1, "hot")
    excess = sum(
        0.2 * (1 - share)
        for part, share in zip(parts, edge_layouts(found, parts), strict=True)
        if part.key == parts[0].key
    )  # fmt: skip

    answer = one(home, model, graph="fused", cache="model")

    assert answer.model.cutting.graph == "fused"
    assert answer.sums.sequential_ms == len(parts) < len(found.source.live)
    assert value(answer, "layout") == pytest.approx(excess)
    assert value(answer, "fusion") == 0.0
    assert answer.latency.ms == pytest.approx(len(parts) - excess - (len(parts) - 1) / 2 * 0.1)


def test_bricks_along_fusions_of_a_system_that_the_model_never_saw(lab, model, executed):
    """Where to cut is learnt here; the latencies are those of another stack and machine."""
    parts = fused_sequences(executed(model), 2)
    lab.put([(part.key, 1.0) for part in {part.key: part for part in parts}.values()], conditions=under(LEVEL))

    answer = one(lab, model, graph="fused", granularity=2)

    assert answer.error is None
    assert answer.place.stack == lab.stack.key
    assert answer.sums.sequential_ms == len(parts)

    every = fused_sequences(executed(model), 2, overlap=True)
    lab.put([(part.key, 1.0) for part in {part.key: part for part in every}.values()], conditions=under(LEVEL))
    answer = one(lab, model, graph="fused", granularity=2, overlap=True)
    assert sorted(layer for row in answer.parts.sequences for layer in row.layers) == list(executed(model).source.live)
    assert answer.sums.sequential_ms <= len(parts)


def test_what_is_not_stored_has_a_reason_and_a_command(home, model, keys_of, executed):
    home.put([(key, 2.0) for key in set(keys_of(model))])
    reference(home, OVERHEAD, 0.1, "hot")
    home.put([(executed_keys(executed(model))[0], 1.0)], conditions=under(LEVEL))
    home.put([(executed(model).source.key, 8.0)], subject=Subject.MODEL)

    answer = one(home, model, cache="hot")

    for name in ("fusion", "cache", "unexplained"):
        assert answer.attribution[name].ms is None
        assert answer.attribution[name].reason
    assert "--graph fused" in shell_command(answer.attribution["fusion"].remedy)
    assert f"with cache {LEVEL}" in answer.attribution["cache"].reason
    assert "--cache model" in shell_command(answer.attribution["cache"].remedy)
    assert answer.attribution["unexplained"].reason.startswith("it cannot be separated from fusion and cache")
    assert answer.latency.ms == pytest.approx(answer.sums.sequential_ms - value(answer, "overhead"))


def test_longer_sequences_of_the_executed_graph(home, model, executed):
    found = executed(model)
    for key in set(executed_keys(found, 2, overlap=True)):
        home.put([(key, 1.0)], conditions=under(LEVEL))

    answer = one(home, model, graph="runtime", granularity=2, overlap=True)

    layers = [layer for row in answer.parts.sequences for layer in row.layers]
    assert sorted(layers) == list(found.graph.live)
    assert len(answer.parts.sequences) < len(layers)
    assert answer.latency.ms == pytest.approx(answer.sums.sequential_ms)


# Where the executed graph cannot be had -------------------------------------------------------------------------------


def test_a_stack_that_is_not_installed_here_is_an_error_of_each_model(lab, fork, chain, keys_of):
    lab.put([(key, 1.0) for key in keys_of(fork)])

    answers = estimate([fork, chain], store=lab.store, graph="runtime")

    assert all("is not the one that is installed here" in answer.error for answer in answers)
    assert all("--graph source" in answer.error for answer in answers)
    assert [answer.name for answer in answers] == ["fork", "chain"]


def test_what_is_not_of_this_machine_or_its_runtime_has_no_executed_graph(home, model):
    other = dataclasses.replace(home.system, isa=("none",))
    home.store.put_system(other)
    home.put([("a" * 64, 1.0)], system=other.key)
    odd = dataclasses.replace(home.stack, options=(("warp", "9"),))
    short = dataclasses.replace(home.stack, options=home.stack.options[:1])

    assert "instruction sets" in one(home, model, graph="runtime").error
    assert "instruction sets" in why_not_here(home.stack, other)
    assert "cannot be used here" in why_not_here(odd, home.system)
    assert "other options" in why_not_here(short, home.system)
    assert why_not_here(home.stack, home.system) is None


def test_two_stacks_that_are_installed_here_are_not_guessed_among(home, model):
    basic = get("onnxruntime").stack("cpu", {"optimization": "basic"})
    home.store.put_stack(basic)
    home.put([("a" * 64, 1.0)])
    home.put([("a" * 64, 1.0)], stack=basic.key)

    with pytest.raises(AmbiguousQuery, match="--stack"):
        one(home, model, graph="runtime")
    answer = one(home, model, graph="runtime", stack=basic.key[:12])
    assert answer.error is None
    command = shell_command(answer.parts.missing[0].remedy)
    assert "--graph runtime" in command
    assert "--option optimization=basic" in command


# Branches at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inter_op", "base"), [("1", 31.0), ("2", 25.0)])
def test_a_runtime_that_runs_branches_at_once_is_composed_by_the_critical_path(lab, fork, keys_of, inter_op, base):
    stack = Stack("onnxruntime", "cpu", (), (("execution", "parallel"), ("inter_op", inter_op)))
    lab.store.put_stack(stack)
    lab.put(zip(keys_of(fork), (1.0, 2.0, 4.0, 8.0, 16.0), strict=True), stack=stack.key)

    answer = one(lab, fork)

    assert (answer.sums.sequential_ms, answer.sums.critical_path_ms) == (31.0, 25.0)
    assert answer.latency.ms == base
    assert value(answer, "bricks") == base


def test_where_a_call_is_not_measured_the_sum_stands(lab, fork, keys_of):
    lab.put([(key, 1.0) for key in keys_of(fork)])

    term = one(lab, fork).attribution["overhead"]

    assert one(lab, fork).latency.ms == 5.0
    assert term.ms is None
    assert "call" in term.reason
    assert shell_command(term.remedy).endswith("--again all")


def test_denormal_numbers_are_a_part_of_what_was_unexplained(explained, windows):
    lab, model, *_ = explained
    windows(lab)
    before = one(lab, model, cache="hot").attribution

    after = with_denormals(before, (0.25, 0.2, 0.3), 8.0)

    assert (after["denormals"].ms, after["denormals"].ci95_ms) == (2.0, (1.6, 2.4))
    assert after["unexplained"].ms == pytest.approx(before["unexplained"].ms - 2.0)
    low, high = after["unexplained"].ci95_ms
    assert high - low > before["unexplained"].ci95_ms[1] - before["unexplained"].ci95_ms[0]
    nothing = {**before, "unexplained": Term(reason="unknown")}
    assert with_denormals(nothing, (0.25, 0.2, 0.3), 8.0) == nothing
