"""The best stored way to run a model: its comparison with the fastest side, and what that advises."""

from __future__ import annotations

import shlex

import onnx
import pytest
from dlbricks.analyzer.advice import Advice, ModelAdvice, advise
from dlbricks.analyzer.comparison.difference import Relation
from dlbricks.analyzer.report.answers.comparison import advice_answer
from dlbricks.analyzer.report.drawing import plots
from dlbricks.analyzer.report.tables import render
from dlbricks.analyzer.shell import shell_command
from dlbricks.bricks.graph.footprint import footprint, level_name, level_of
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.db import Conditions, System
from dlbricks.errors import UsageError
from dlbricks.models import find_models


def of(bench, **options: object) -> Advice:
    return advise([bench.source], store=bench.store, **options)


def only(bench, **options: object) -> ModelAdvice:
    (one,) = of(bench, **options).advice
    return one


def ranking(one: ModelAdvice) -> list[str | None]:
    """The sides of a model, the fastest first."""
    return [one.rows[0].base, *(row.other for row in one.rows)]


def level_of_bench(bench) -> str:
    """The level of reuse distance that the bricks of the model are measured at."""
    graph = build_graph(bench.source.skeleton())
    return level_name(level_of(footprint(graph)))


def test_the_fastest_is_the_best_and_the_others_are_ranked(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.torch, ms=0.5)
    bench.run(bench.disabled, ms=2.0)

    advised = of(bench)

    (one,), (second, last) = advised.advice, advised.rows
    assert (one.best, advised.base) == ("torch", "torch")
    assert ranking(one) == ["torch", "onnxruntime optimization=all", "onnxruntime optimization=disabled"]
    assert second.pair.base.best.ms == pytest.approx(0.5, rel=0.01)
    assert (second.verdict, last.verdict) == (Relation.SLOWER, Relation.SLOWER)
    assert last.ratio == pytest.approx(4.0, rel=0.01)
    assert one.ties == ()
    assert advised.complete


def test_what_cannot_be_distinguished_from_the_best_is_named(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.torch, ms=1.02)
    bench.run(bench.disabled, ms=3.0)

    one = only(bench)

    assert (one.best, one.ties) == ("onnxruntime optimization=all", ("torch",))
    assert "not distinguishable from it: torch" in render(advice_answer(of(bench)))


def test_the_command_measures_the_model_as_the_best_did(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.disabled, ms=0.5, conditions=Conditions(2, "hot"))

    command = shell_command(only(bench).measured_by)

    words = shlex.split(command)
    assert words[:2] == ["dlbricks", "measure"]
    assert words[2] == str(bench.source.path)
    for option in ("--backend onnxruntime", "--option optimization=disabled", "--threads 2", "--cache hot"):
        assert option in command


def test_layers_show_what_the_best_saves_and_loses(bench) -> None:
    bench.run(bench.plain, ms=2.0, bricks=bench.bricks(0.4, 0.1, 0.1, 0.1))
    bench.run(bench.torch, ms=1.0, bricks=bench.bricks(0.1, 0.1, 0.2, 0.1))

    table = render(advice_answer(of(bench), layers=True))

    _, listed = table.split("what torch would gain if it ran the brick as fast")
    first, second = [line.split() for line in listed.splitlines() if "Conv" in line or "Sigmoid" in line]
    assert (float(first[0]), first[1], "SLOWER" in first) == (pytest.approx(-0.6, rel=0.02), "2", True)
    assert (float(second[0]), "FASTER" in second) == (pytest.approx(0.1, rel=0.02), True)
    assert "Conv 3x3 1x4x16x16 → 1x4x16x16; " in table
    assert "would gain" not in render(advice_answer(of(bench)))


def test_mixing_frameworks_gains_what_other_sides_run_faster(bench) -> None:
    bench.run(bench.plain, ms=2.0, bricks=bench.bricks(0.4, 0.1, 0.1, 0.1))
    bench.run(bench.disabled, ms=3.0, bricks=bench.bricks(0.4, 0.2, 0.2, 0.2))
    bench.run(bench.torch, ms=1.0, bricks=bench.bricks(0.1, 0.1, 0.3, 0.1))
    bench.run(bench.plain, ms=9.0, bricks=bench.bricks(0.01), conditions=Conditions(2, "hot"))

    one = only(bench)

    ((side, layer),) = one.mixed
    assert (side, layer.brick.key) == ("onnxruntime 1 thread optimization=all", list(bench.counts)[2])
    assert one.mixing_ms == layer.gain_ms == pytest.approx(0.2, rel=0.02)
    assert one.record()["mixed"][0]["side"] == side
    assert "a framework for every layer could save 0.2" in render(advice_answer(of(bench)))


def test_estimates_are_ranked_where_nothing_is_measured_and_it_is_said(bench) -> None:
    bench.run(bench.plain, bricks=bench.bricks(0.1))
    bench.run(bench.torch, ms=4.0)

    one = only(bench)

    assert ranking(one) == ["onnxruntime", "torch"]
    assert [one.rows[0].pair.base.basis, one.rows[0].pair.other.basis] == ["estimate", "measured"]
    assert "best is onnxruntime, 0.100 ms (estimate)" in render(advice_answer(of(bench)))


def test_the_cache_state_of_its_bricks_makes_no_second_way_to_run_a_model(bench) -> None:
    bench.run(bench.plain, ms=1.0, bricks=bench.bricks(0.1))
    bench.run(bench.plain, bricks=bench.bricks(0.1), conditions=Conditions(1, level_of_bench(bench)))

    alone, table = of(bench), render(advice_answer(of(bench)))
    bench.run(bench.torch, ms=2.0, bricks=bench.bricks(0.2))
    one = only(bench)

    assert (alone.advice[0].best, alone.advice[0].ties) == ("onnxruntime", ())
    assert "nothing to compare with" in alone.rows[0].reason
    assert "best is onnxruntime, 1.0" in table
    assert not alone.complete
    assert ranking(one) == ["onnxruntime", "torch"]  # both hot, which torch has
    assert len(one.rows[0].layers) == 4


def test_what_is_stored_in_part_is_listed_with_the_reason(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.torch, ms=2.0)
    bench.run(bench.disabled, bricks=dict(list(bench.bricks(0.1).items())[:1]))

    advised = of(bench)

    assert advised.rows[-1].pair.other.best is None
    assert "1 of its 4 bricks are" in advised.rows[-1].reason
    assert not advised.complete


def test_precisions_are_apart_unless_all_are_asked_for(bench) -> None:
    bench.run(ms=1.0)
    bench.run(ms=0.5, conditions=Conditions(1, "hot", "bfloat16"))

    assert ranking(only(bench, dtype="any")) == ["bfloat16", "float32"]
    for asked, dtype in (({}, "float32"), ({"dtype": "bfloat16"}, "bfloat16")):
        assert [side.choice.conditions.dtype for side in of(bench, **asked).sides] == [dtype]


def test_a_cold_model_is_another_question(bench) -> None:
    bench.run(ms=1.0)
    bench.run(bench.torch, ms=1.5)
    bench.run(ms=9.0, conditions=Conditions(1, "cold"))

    pair, cold = only(bench).rows[0].pair, only(bench, cache="cold").rows[0].pair
    assert [pair.base.best.ms, pair.other.best.ms] == pytest.approx([1.0, 1.5], rel=0.01)
    assert (cold.base.best.ms, cold.other.best) == (pytest.approx(9.0, rel=0.01), None)


def test_of_two_cache_states_that_with_all_bricks_is_taken(bench) -> None:
    bench.run(bench.plain, bricks=dict(list(bench.bricks(0.1).items())[:1]))
    bench.run(bench.plain, bricks=bench.bricks(0.1), conditions=Conditions(1, level_of_bench(bench)))
    bench.run(bench.torch, ms=2.0)

    assert of(bench).complete


def test_advice_is_for_one_system(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.torch, ms=2.0)
    bench.run(bench.plain, ms=0.1, system=System("Fast CPU", "x86_64", 8, 8, (), 64))

    with pytest.raises(UsageError, match="Fast CPU"):
        of(bench)
    key = bench.store.combinations()[0].system
    assert ranking(only(bench, system=key)) == ["onnxruntime", "torch"]


def test_nothing_stored_is_said(bench) -> None:
    one = only(bench)

    assert (one.best, one.rows[0].reason, one.measured_by) == (None, "nothing is stored", None)
    assert one.remedies
    assert "another runtime is measured by: dlbricks measure" in render(advice_answer(of(bench)))


def test_each_model_has_its_own_base(bench, write_branches, tmp_path) -> None:
    text = onnx.printer.to_text(onnx.load(write_branches(tmp_path / "again.onnx")))
    (tmp_path / "other.onnx").write_bytes(onnx.parser.parse_model(text.replace("Sigmoid", "Tanh")).SerializeToString())
    (other,) = find_models([tmp_path / "other.onnx"])
    key = build_graph(other.skeleton()).key
    for stack, ours, theirs in ((bench.plain, 1.0, 2.0), (bench.torch, 2.0, 1.0)):
        bench.run(stack, ms=ours)
        bench.run(stack, ms=theirs, key=key)

    advised = advise([bench.source, other], store=bench.store)

    assert [one.best for one in advised.advice] == ["onnxruntime", "torch"]
    assert advised.base is None
    assert advised.to_json()["base"] is None
    assert [row["base"] for row in advised.to_json()["results"]] == ["onnxruntime", "torch"]
    table = render(advice_answer(advised))
    assert "base: the fastest side of each model" in table
    assert any(line.startswith("model     base         other side") for line in table.splitlines())
    assert plots(advised).names == ("models",)
