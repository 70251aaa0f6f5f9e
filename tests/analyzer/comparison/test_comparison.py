"""Stored results against each other: what is found, what is not, and what is missing."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import NoReturn

import onnx
import pytest
from dlbricks.analyzer.advice import advise
from dlbricks.analyzer.comparison.compare import Comparison, compare
from dlbricks.analyzer.comparison.difference import Relation
from dlbricks.analyzer.comparison.results import Results
from dlbricks.analyzer.report.answers.comparison import comparison_answer
from dlbricks.analyzer.report.tables import render
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.footprint import CORE_LEVEL, level_name
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.constructor.uncertainty.calibration import CALIBRATION, Calibration, Method, scatter_of
from dlbricks.db import Conditions, Run, Store, Subject, System
from dlbricks.errors import AmbiguousQuery, UsageError
from dlbricks.models import find_models


def of(bench, **options: object) -> Comparison:
    return compare([bench.source], store=bench.store, **options)


def only(bench, **options: object):
    (row,) = of(bench, **options).rows
    return row


FOLDED = """
<ir_version: 8, opset_import: ["" : 17]>
folded (float[4, 8] x) => (int64[2] y) { y = Shape(x) }
"""


# Models ---------------------------------------------------------------------------------------------------------------


def test_a_fifth_is_found_and_to_swap_the_sides_swaps_it(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.torch, ms=1.2)

    row, back = only(bench), only(bench, base="torch")

    assert (row.base, row.other, row.pair.basis) == ("onnxruntime", "torch", "measured")
    assert row.ratio == pytest.approx(1.2, rel=0.01)
    assert row.ratio_ci95[0] < row.ratio < row.ratio_ci95[1]
    base = row.pair.base.measured
    assert base.ms == pytest.approx(1.0, rel=0.01)
    assert base.ci95_ms[0] <= base.ms <= base.ci95_ms[1]
    assert (row.verdict, row.reason) == (Relation.SLOWER, None)
    assert (back.base, back.other, back.verdict) == ("torch", "onnxruntime", Relation.FASTER)
    assert back.ratio == pytest.approx(1 / row.ratio)
    assert of(bench).complete


def test_a_stack_is_the_same_as_itself_within_what_runs_differ_by(bench) -> None:
    bench.run(ms=1.0)
    bench.run(ms=1.001)

    row = only(bench, by="run")

    assert only(bench, by="run", minimum_effect=0.2).verdict is Relation.SAME
    assert row.verdict is Relation.UNCLEAR  # runs repeat to 3 %, and 3 % are asked for
    assert row.pair.apart


def test_stacks_of_different_runs_are_kept_apart_beyond_what_runs_differ_by(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.torch, ms=1.04)

    close = only(bench)
    bench.run(bench.torch, ms=math.exp(6 * math.sqrt(2) * scatter_of(None, 1, Subject.MODEL).run_sd))
    far = only(bench)

    assert (close.verdict, close.pair.apart) == (Relation.UNCLEAR, True)
    assert "the interval of the ratio reaches from 0." in close.reason
    assert (far.verdict, far.pair.apart) == (Relation.SLOWER, True)


def test_of_different_runs_the_table_shows_the_quiet_latencies_that_the_ratio_is_of(bench) -> None:
    bench.run(ms=1.0, bricks=bench.bricks(0.1), undisturbed=0.9)
    bench.run(ms=2.0, bricks=bench.bricks(0.2), undisturbed=0.5)

    row = only(bench, by="run")
    (shown,) = comparison_answer(of(bench, by="run")).results
    table = render(comparison_answer(of(bench, by="run")))

    assert row.ratio == pytest.approx(2.0 * 0.5 / 0.9, rel=0.01)
    assert shown["other_ms"] / shown["base_ms"] == pytest.approx(row.ratio)
    assert shown["base_ci95_ms"][0] < shown["base_ms"] < shown["base_ci95_ms"][1]
    assert row.pair.base.measured.ms == pytest.approx(1.0, rel=0.01)
    assert "on a quiet machine" in table
    for layer in row.layers:
        assert layer.other_ms / layer.base_ms == pytest.approx(layer.ratio)
        assert layer.gain_ms == pytest.approx(layer.brick.occurrences * (layer.base_ms - layer.other_ms))


@pytest.mark.parametrize("measured", [False, True])
def test_a_model_of_which_nothing_is_left_is_a_row_with_its_reason(bench, tmp_path: Path, measured: bool) -> None:
    (tmp_path / "folded.onnx").write_bytes(onnx.parser.parse_model(FOLDED).SerializeToString())
    models = [bench.source, *find_models([tmp_path / "folded.onnx"])]
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.torch, ms=1.2)
    if measured:
        bench.run(bench.plain, ms=0.01, key=build_graph(models[1].skeleton()).key)

    known, folded = compare(models, store=bench.store).rows
    best, nothing = advise(models, store=bench.store).advice

    assert (known.verdict, best.best) == (Relation.SLOWER, "onnxruntime")
    assert folded.verdict is None
    assert "the model is not measured, and nothing of it is left to be a brick" in folded.reason
    assert nothing.best == ("onnxruntime" if measured else None)
    assert "nothing of it is left to be a brick" in nothing.rows[0].reason


def test_every_other_side_is_compared_with_the_base(bench) -> None:
    for stack, ms in ((bench.plain, 1.0), (bench.disabled, 2.0), (bench.torch, 0.5)):
        bench.run(stack, ms=ms)

    found = of(bench)

    assert [side.name for side in found.sides] == [
        "onnxruntime optimization=all", "onnxruntime optimization=disabled", "torch",
    ]  # fmt: skip
    assert [row.verdict for row in found.rows] == [Relation.SLOWER, Relation.FASTER]
    by_option = of(bench, base="optimization=disabled", others=["torch"])
    assert [(row.base, row.other) for row in by_option.rows] == [("onnxruntime optimization=disabled", "torch")]
    by_key = of(bench, base=bench.torch.key[:10], others=[bench.plain.key[:10]])
    assert [(row.base, row.other) for row in by_key.rows] == [("torch", "onnxruntime optimization=all")]
    assert [row.other for row in of(bench, backend="onnxruntime").rows] == ["optimization=disabled"]
    assert [row.other for row in of(bench, others=["disabled"]).rows] == ["onnxruntime optimization=disabled"]


def test_threads_precisions_and_systems_are_sides(bench) -> None:
    bench.run(ms=1.0)
    bench.run(ms=0.6, conditions=Conditions(2, "hot"))
    bench.run(ms=0.5, conditions=Conditions(1, "hot", "bfloat16"))
    bench.run(ms=2.0, system=System("Slow CPU", "x86_64", 1, 1, (), 4))

    found = of(bench)

    names = [side.name for side in found.sides]
    assert "Xeon Example 2 threads float32" in names
    assert "Xeon Example 1 thread bfloat16" in names
    assert "Slow CPU 1 thread float32" in names
    assert only(bench, dtype="bfloat16").other is None
    assert only(bench, dtype="float32", system="", threads=1).verdict is Relation.SLOWER
    with pytest.raises(UsageError, match="minimum effect"):
        of(bench, minimum_effect=0.0)


def test_a_model_measured_hot_or_at_reuse_distances_is_one_side(bench) -> None:
    bench.run(ms=1.0, bricks=bench.bricks(0.1))
    bench.run(ms=1.001, conditions=Conditions(1, "model"))
    bench.run(bench.torch, ms=1.3)

    assert [side.name for side in of(bench).sides] == ["onnxruntime", "torch"]
    bench.run(ms=5.0, conditions=Conditions(1, "cold"))
    assert len(of(bench).sides) == 3


# Nothing to compare ---------------------------------------------------------------------------------------------------


# Bricks ---------------------------------------------------------------------------------------------------------------


def test_bricks_show_what_the_base_would_gain(bench) -> None:
    keys = list(bench.counts)
    bench.run(bench.plain, bricks=bench.bricks(0.4, 0.1, 0.1, 0.1), ms=1.0)
    bench.run(bench.torch, bricks=bench.bricks(0.2, 0.1, 0.3, 0.08), ms=1.0)

    row = only(bench)

    layers = {layer.brick.key: layer for layer in row.layers}
    assert [layer.gain_ms for layer in row.layers] == sorted((layer.gain_ms for layer in row.layers), reverse=True)
    assert row.layers[0].brick.key == keys[0]
    assert layers[keys[0]].brick.occurrences == 2
    assert layers[keys[0]].brick.operators == ("Conv",)
    assert layers[keys[0]].gain_ms == pytest.approx(2 * 0.2, rel=0.01)
    assert layers[keys[0]].verdict is layers[keys[3]].verdict is Relation.FASTER
    assert layers[keys[2]].verdict is Relation.SLOWER
    assert layers[keys[2]].gain_ms == pytest.approx(-0.2, rel=0.02)
    assert row.gain_ms == pytest.approx(0.4 + 0.02, rel=0.02)  # what is faster, and nothing else
    assert row.missing == ()


VIEWS = """
<ir_version: 8, opset_import: ["" : 17]>
views (float[4, 8] x) => (float[4, 8] y) {
    a = Transpose(x)
    b = Relu(a)
    y = Transpose(b)
}
"""


def test_a_view_is_no_gain_for_a_runtime_that_copies(bench, tmp_path: Path) -> None:
    """Else a transpose that moves nothing would be the largest gain of all."""
    path = tmp_path / "views.onnx"
    path.write_bytes(onnx.parser.parse_model(VIEWS).SerializeToString())
    (source,) = find_models([path])
    keys = [part.key for part in sequences(build_graph(source.skeleton()), 1)]
    eager = dataclasses.replace(bench.torch, options=(("mode", "eager"),))
    bench.run(bench.plain, bricks=dict(zip(keys, (2.0, 3.0, 2.0), strict=True)))
    bench.run(eager, bricks=dict(zip(keys, (0.001, 1.0, 0.001), strict=True)))

    (row,) = compare([source], store=bench.store).rows

    gains = {layer.brick.operators: layer.gain_ms for layer in row.layers}
    assert gains["Relu",] == pytest.approx(2.0, rel=0.01)
    assert gains["Transpose",] == 0
    assert row.gain_ms == pytest.approx(2.0, rel=0.01)


def test_a_missing_brick_is_listed_with_its_reason(bench) -> None:
    keys = list(bench.counts)
    bricks = bench.bricks(0.1)
    bench.run(bench.plain, bricks=bricks)
    some = {key: bricks[key] for key in keys[:2]}
    run = bench.run(bench.torch, bricks=some)
    bench.fail(run, bench.torch, keys[2], "unsupported", "torch has no Sigmoid")
    bench.fail(run, bench.torch, bench.key, "crashed", "signal 11", Subject.MODEL)

    row = only(bench)

    assert [layer.brick.key for layer in row.layers] != []
    assert row.ratio is None
    absent = {one.key: one for one in row.missing}
    assert set(absent) == set(keys[2:])
    assert absent[keys[2]].reason == "unsupported: torch has no Sigmoid"
    assert absent[keys[3]].reason == "not measured"
    assert absent[keys[2]].sides == ("torch",)
    assert row.verdict is None
    assert row.reason == "torch: the model could not be measured (crashed: signal 11)"
    assert "torch: no verdict, since" in render(comparison_answer(of(bench)))


LEVEL = Conditions(threads=1, cache=level_name(CORE_LEVEL))


def calibrated(bench):
    """Store what the user's own runs say of both runtimes at this level."""
    system = System("Xeon Example", "x86_64", 2, 4, (("L2", 2097152),), 16)
    stack, key = bench.store.put_stack(bench.plain), bench.store.put_system(system)
    methods = (Method(backend, "cpu", "source", 1, "model", 1, 1, "float32") for backend in ("onnxruntime", "torch"))
    fits = [Calibration(method, "", 0.05, 0.05, holds=True).record() for method in methods]
    run = Run("fits", "2026-01-01T00:00:00+00:00", "0", "system --calibrate", None, key, stack, {CALIBRATION: fits})
    bench.store.begin_run(run)


@pytest.mark.parametrize(
    ("base", "other", "by", "basis", "verdict", "reason"),
    [
        ({"bricks": 0.1}, {"bricks": 0.5}, "combination", "estimate", Relation.UNCLEAR,
         "not known (onnxruntime, torch): measure the model itself"),
        ({"bricks": 0.1}, {"bricks": 0.5, "ms": 2.5}, "combination", "estimate", Relation.UNCLEAR, "torch"),
        ({"bricks": 0.1, "conditions": LEVEL}, {"bricks": 0.5, "conditions": LEVEL}, "combination", "estimate",
         Relation.SLOWER, None),
        ({"bricks": 0.1}, {"ms": 6.0}, "combination", "measured and estimate", Relation.UNCLEAR, "(onnxruntime)"),
        ({"bricks": 0.1}, {"bricks": 0.12}, "run", "bricks", Relation.SLOWER, None),
    ],
    ids=["not known", "like with like", "known", "mixed", "the error of the method is shared"],
)  # fmt: skip
def test_estimates_stand_in_where_models_are_not_measured(bench, base, other, by, basis, verdict, reason) -> None:
    if base.get("conditions") is LEVEL:
        calibrated(bench)
    for stack, given in ((bench.plain, base), (bench.plain if by == "run" else bench.torch, other)):
        known = {"bricks": bench.bricks(given["bricks"])} if "bricks" in given else {}
        bench.run(stack, **(given | known))

    row = only(bench, by=by)
    (answer,) = comparison_answer(of(bench, by=by)).results

    assert (row.pair.basis, row.verdict) == (basis, verdict)
    assert row.reason is None if reason is None else reason in row.reason
    estimate, there = row.pair.base.estimate, row.pair.other
    assert estimate.ci95_ms[0] < estimate.ms < estimate.ci95_ms[1]
    taken = there.measured.ms if "bricks" not in other else there.estimate.ms
    assert row.ratio == pytest.approx(taken / estimate.ms)
    assert (answer["base_ms"], answer["other_ms"]) == (estimate.ms, taken)
    assert (there.measured is None) == ("ms" not in other)
    if by == "run":
        assert row.ratio == pytest.approx(1.2, rel=0.01)
    elif verdict is Relation.SLOWER:
        assert row.ratio_ci95[1] / row.ratio > 1.15  # the error of two methods


def test_a_side_of_which_too_little_is_stored_takes_no_worker(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run(bench.plain, ms=1.0, bricks=bench.bricks(0.2))
    bench.run(bench.torch, bricks=dict([*bench.bricks(0.2).items()][:2]))

    def started(*_: object) -> NoReturn:
        raise AssertionError("an estimate may load the model in a worker, and nothing could be compared with it")

    monkeypatch.setattr(Results, "estimate", started)
    (row,) = of(bench).rows

    assert row.pair.base.best is not None
    assert row.verdict is None
    assert "the model is not measured" in (row.reason or "")


def test_runs_are_apart_and_the_oldest_is_the_base(bench) -> None:
    first = bench.run(ms=1.0, bricks=bench.bricks(0.1))
    last = bench.run(ms=0.7, bricks=bench.bricks(0.05))

    found = of(bench, by="run")

    assert [side.run.id for side in found.sides] == [first, last]
    assert found.sides[0].name == f"2026-11-21 10:01:00 {first[:8]}"
    assert found.rows[0].verdict is Relation.FASTER
    assert all(layer.verdict is Relation.FASTER for layer in found.rows[0].layers)
    assert of(bench, by="run", base=last[:12]).rows[0].verdict is Relation.SLOWER
    bench.run(bench.torch, ms=1.0)
    with pytest.raises(AmbiguousQuery):
        of(bench, by="run", backend=None)


def test_variants_are_compared_within_one_combination(bench) -> None:
    bench.run(ms=1.0, bricks=bench.bricks(0.1))
    conv = next(iter(bench.counts))
    bench.run(bricks={conv: 0.05}, variant="winograd")

    (row,) = of(bench, by="variant").rows

    assert (row.base, row.other) == ("default", "winograd")
    (layer,) = row.layers
    assert (layer.verdict, layer.gain_ms) == (Relation.FASTER, pytest.approx(0.1, rel=0.02))
    assert len(row.missing) == 3
    assert row.verdict is None


def test_many_bricks_are_judged_together(bench) -> None:
    """A difference that passes alone need not among others."""
    bench.run(bricks=bench.bricks(0.1), noise=0.03)
    bench.run(bricks=bench.bricks(0.1), noise=0.03)

    (row,) = of(bench, by="run").rows

    assert {layer.verdict for layer in row.layers} <= {Relation.SAME, Relation.UNCLEAR}
    assert all(layer.reason for layer in row.layers if layer.verdict is Relation.UNCLEAR)


# Answers --------------------------------------------------------------------------------------------------------------


# Real measurements ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_options_of_a_runtime_are_compared_as_they_were_measured(really_measured: Path) -> None:
    models = find_models([really_measured / "branches.onnx"])
    with Store.open(really_measured / "dlbricks.db", create=False, read_only=True) as store:
        found = compare(models, store=store)
        best = advise(models, store=store)
        runs = compare(models, store=store, by="run", stack=found.sides[0].choice.stack_key)

    (row,) = found.rows
    assert (row.base, row.other) == ("optimization=all", "optimization=disabled")
    assert (row.pair.basis, row.pair.apart, row.missing) == ("measured", True, ())  # each in a run of its own
    assert row.ratio > 0  # of what both are on a quiet machine, where both were seen quiet
    assert row.ratio_ci95[0] <= row.ratio <= row.ratio_ci95[1]
    assert row.verdict in Relation
    assert sum(layer.brick.occurrences for layer in row.layers) == 6
    assert row.gain_ms >= 0
    assert best.complete
    assert {best.rows[0].base, best.rows[0].other} == {"optimization=all", "optimization=disabled"}
    assert best.advice[0].mixing_ms >= 0
    (again,) = runs.rows
    assert again.pair.basis == "measured"
    assert len(again.layers) == 4


def test_a_brick_that_takes_no_time_has_no_ratio(bench) -> None:
    conv, *rest = bench.counts
    bench.run(bricks=bench.bricks(0.1))
    bench.run(bricks={conv: 0.0} | dict.fromkeys(rest, 0.1))

    (row,) = of(bench, by="run").rows

    layer = next(layer for layer in row.layers if layer.brick.key == conv)
    assert (layer.ratio, layer.verdict) == (None, Relation.UNCLEAR)
    assert layer.reason == "it takes no time that could be measured"


def test_a_side_must_be_distinguished_from_the_others(bench) -> None:
    for stack in (bench.plain, bench.disabled, bench.torch):
        bench.run(stack, ms=1.0)

    with pytest.raises(AmbiguousQuery, match="'onnxruntime' is several sides"):
        of(bench, base="onnxruntime")
    with pytest.raises(UsageError, match=r"no side of the comparison is 'openvino'.*torch"):
        of(bench, base="openvino")


def test_one_side_is_nothing_to_compare_with(bench) -> None:
    nothing = of(bench)
    bench.run(ms=1.0)
    alone = of(bench)

    assert (nothing.rows[0].verdict, nothing.rows[0].reason) == (None, "nothing is stored")
    assert alone.rows[0].reason == "nothing to compare with: only onnxruntime is stored"
    assert not nothing.complete
    assert not alone.complete
