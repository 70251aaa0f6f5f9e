"""The best stored way to run a model, and why."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from dlbricks.analyzer.advice import Advice, advise
from dlbricks.analyzer.comparison.difference import Relation
from dlbricks.analyzer.report.answers.comparison import advice_answer
from dlbricks.analyzer.report.tables import render
from dlbricks.analyzer.shell import shell_command
from dlbricks.bricks.graph.footprint import footprint, level_name, level_of
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.db import Conditions, Store, System
from dlbricks.errors import UsageError
from dlbricks.models import find_models


def of(bench, **options: object) -> Advice:
    return advise([bench.source], store=bench.store, **options)


def level_of_bench(bench) -> str:
    """The level of reuse distance that the bricks of the model are measured at."""
    graph = build_graph(bench.source.skeleton())
    return level_name(level_of(footprint(graph)))


def test_the_fastest_is_the_best_and_the_others_are_ranked(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.torch, ms=0.5)
    bench.run(bench.disabled, ms=2.0)

    (row,) = of(bench).rows

    assert row.best == "torch"
    assert [one.name for one in row.ranking] == [
        "torch", "onnxruntime optimization=all", "onnxruntime optimization=disabled",
    ]  # fmt: skip
    first, second, last = row.ranking
    assert (first.verdict, first.ratio, first.basis) == (None, None, "measured")
    assert first.ci95_ms[0] <= first.latency_ms <= first.ci95_ms[1]
    assert (second.verdict, last.verdict) == (Relation.SLOWER, Relation.SLOWER)
    assert last.ratio == pytest.approx(4.0, rel=0.01)
    assert row.ties == ()
    assert row.runner_up == "onnxruntime optimization=all"
    assert row.complete


def test_what_cannot_be_distinguished_from_the_best_is_named(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.torch, ms=1.02)
    bench.run(bench.disabled, ms=3.0)

    (row,) = of(bench).rows

    assert row.best == "onnxruntime optimization=all"
    assert row.ties == ("torch",)
    assert row.runner_up == "onnxruntime optimization=disabled"  # slower by more than chance
    assert "not distinguishable from it: torch" in render(advice_answer(of(bench)))


def test_the_command_measures_the_model_as_the_best_did(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.disabled, ms=0.5, conditions=Conditions(2, "hot"))

    (row,) = of(bench).rows

    words = shlex.split(shell_command(row.measured_by))
    assert words[:2] == ["dlbricks", "measure"]
    assert words[2] == str(bench.source.path)
    for option in ("--backend onnxruntime", "--option optimization=disabled", "--threads 2", "--cache hot"):
        assert option in shell_command(row.measured_by)


def test_layers_decide_over_the_runner_up_and_the_default(bench) -> None:
    bench.run(bench.plain, ms=2.0, bricks=bench.bricks(0.4, 0.1, 0.1, 0.1))
    bench.run(bench.disabled, ms=1.5, bricks=bench.bricks(0.3, 0.1, 0.1, 0.1))
    bench.run(bench.torch, ms=1.0, bricks=bench.bricks(0.1, 0.1, 0.2, 0.1))

    (row,) = of(bench).rows

    conv, _, sigmoid, _ = bench.counts
    assert (row.runner_up, row.default) == ("onnxruntime optimization=disabled", "onnxruntime optimization=all")
    assert [layer.key for layer in row.over_runner_up][:2] == [conv, sigmoid]
    assert row.over_default[0].gain_ms == pytest.approx(-2 * 0.3, rel=0.02)  # what the best would lose by it
    assert row.over_default[0].verdict is Relation.SLOWER
    table = render(advice_answer(of(bench)))
    assert "layers that decide it over onnxruntime optimization=disabled" in table
    assert "layers that decide it over onnxruntime optimization=all (the default)" in table
    assert table.count("saves ms") == 2
    assert "Conv 3x3 1x4x16x16 → 1x4x16x16; " in table


def test_mixing_frameworks_gains_what_the_lower_bound_leaves(bench) -> None:
    bench.run(bench.plain, ms=2.0, bricks=bench.bricks(0.4, 0.1, 0.1, 0.1))
    bench.run(bench.torch, ms=1.0, bricks=bench.bricks(0.1, 0.1, 0.3, 0.1), noise=0.0)

    (row,) = of(bench).rows

    sigmoid = list(bench.counts)[2]
    assert row.lower_bound_ms < row.bricks_ms
    assert row.mixing_ms == pytest.approx(row.bricks_ms - row.lower_bound_ms)
    assert row.mixed[0].key == sigmoid
    assert row.mixed[0].side == "onnxruntime"
    assert row.mixed[0].gain_ms == pytest.approx(0.2, rel=0.02)
    assert sum(one.gain_ms for one in row.mixed) == pytest.approx(row.mixing_ms, rel=1e-6)


def test_estimates_are_ranked_where_nothing_is_measured_and_it_is_said(bench) -> None:
    bench.run(bench.plain, bricks=bench.bricks(0.1))
    bench.run(bench.torch, ms=4.0)

    (row,) = of(bench).rows

    assert [(one.name, one.basis) for one in row.ranking] == [("onnxruntime", "estimate"), ("torch", "measured")]


def test_one_combination_is_nothing_to_choose_from(bench) -> None:
    bench.run(bench.torch, ms=1.0)

    (row,) = of(bench).rows

    assert row.best == "torch"
    assert row.reason == "nothing to compare with: only torch is known"
    assert any((task.backend, task.threads) == ("onnxruntime", 1) for task in row.remedies)
    assert not of(bench).complete
    assert "run: dlbricks measure" in render(advice_answer(of(bench)))


def test_the_cache_state_of_its_bricks_makes_no_second_way_to_run_a_model(bench) -> None:
    bench.run(bench.plain, ms=1.0, bricks=bench.bricks(0.1))
    bench.run(bench.plain, bricks=bench.bricks(0.1), conditions=Conditions(1, level_of_bench(bench)))

    (alone,) = of(bench).rows
    bench.run(bench.torch, ms=2.0, bricks=bench.bricks(0.2))
    (row,) = of(bench).rows

    assert (len(alone.ranking), alone.ties) == (1, ())
    assert "nothing to compare with" in alone.reason
    assert not alone.complete
    assert [one.name for one in row.ranking] == ["onnxruntime", "torch"]  # both hot, which torch has
    assert len(row.over_runner_up) == 4


def test_of_two_cache_states_that_with_all_bricks_is_taken(bench) -> None:
    bench.run(bench.plain, bricks=dict(list(bench.bricks(0.1).items())[:1]))
    bench.run(bench.plain, bricks=bench.bricks(0.1), conditions=Conditions(1, level_of_bench(bench)))
    bench.run(bench.torch, ms=2.0)

    (row,) = of(bench).rows

    assert all(one.latency_ms is not None for one in row.ranking)


def test_what_is_stored_in_part_is_listed_with_the_reason(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.torch, ms=2.0)
    bench.run(bench.disabled, bricks=dict(list(bench.bricks(0.1).items())[:1]))

    (row,) = of(bench).rows

    assert row.ranking[-1].latency_ms is None
    assert "1 of its 4 bricks are" in row.ranking[-1].reason
    assert not row.complete


def test_precisions_are_apart_unless_all_are_asked_for(bench) -> None:
    bench.run(ms=1.0)
    bench.run(ms=0.5, conditions=Conditions(1, "hot", "bfloat16"))

    assert [one.dtype for one in of(bench).rows[0].ranking] == ["float32"]
    assert [one.dtype for one in of(bench, dtype="any").rows[0].ranking] == ["bfloat16", "float32"]
    assert [one.dtype for one in of(bench, dtype="bfloat16").rows[0].ranking] == ["bfloat16"]


def test_a_cold_model_is_another_question(bench) -> None:
    bench.run(ms=1.0)
    bench.run(bench.torch, ms=1.5)
    bench.run(ms=9.0, conditions=Conditions(1, "cold"))

    assert [one.latency_ms for one in of(bench).rows[0].ranking] == pytest.approx([1.0, 1.5], rel=0.01)
    assert [one.latency_ms for one in of(bench, cache="cold").rows[0].ranking] == pytest.approx([9.0], rel=0.01)


def test_advice_is_for_one_system(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.torch, ms=2.0)
    bench.run(bench.plain, ms=0.1, system=System("Fast CPU", "x86_64", 8, 8, (), 64))

    with pytest.raises(UsageError, match="Fast CPU"):
        of(bench)
    key = bench.store.combinations()[0].system
    assert len(of(bench, system=key).rows[0].ranking) == 2


def test_nothing_stored_is_said(bench) -> None:
    (row,) = of(bench).rows

    assert (row.best, row.reason, row.ranking) == (None, "nothing is stored", ())
    assert row.remedies


def test_a_broken_model_is_a_row_with_its_error(bench, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")

    (row,) = advise(find_models([tmp_path / "broken.onnx"]), store=bench.store).rows

    assert "broken.onnx" in row.error
    assert not row.complete


def test_options_of_a_runtime_are_ranked_as_they_were_measured(really_measured: Path) -> None:
    with Store.open(really_measured / "dlbricks.db", create=False, read_only=True) as store:
        found = advise(find_models([really_measured / "branches.onnx"]), store=store)

    (row,) = found.rows
    assert found.complete
    assert {one.name for one in row.ranking} == {"optimization=all", "optimization=disabled"}
    assert row.ranking[0].latency_ms <= row.ranking[1].latency_ms
    assert row.default == "optimization=all"
    assert len(row.over_runner_up) == 4
    assert 0 <= row.mixing_ms <= row.bricks_ms
