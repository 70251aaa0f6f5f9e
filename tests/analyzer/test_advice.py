"""The best stored way to run a model, and why."""

from __future__ import annotations

import shlex

import pytest
from dlbricks.analyzer.advice import Advice, advise
from dlbricks.analyzer.comparison.difference import Relation
from dlbricks.analyzer.report.answers.comparison import advice_answer
from dlbricks.analyzer.report.tables import render
from dlbricks.analyzer.shell import shell_command
from dlbricks.bricks.graph.footprint import footprint, level_name, level_of
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.db import Conditions, System
from dlbricks.errors import UsageError


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
    assert [ranked.name for ranked in row.ranking] == [
        "torch", "onnxruntime optimization=all", "onnxruntime optimization=disabled",
    ]  # fmt: skip
    first, second, last = row.ranking
    assert (first.verdict, first.ratio, first.figure.basis) == (None, None, "measured")
    assert first.figure.best.ci95_ms[0] <= first.latency_ms <= first.figure.best.ci95_ms[1]
    assert (second.verdict, last.verdict) == (Relation.SLOWER, Relation.SLOWER)
    assert last.ratio == pytest.approx(4.0, rel=0.01)
    assert row.ties == ()
    assert row.runner_up.other == "onnxruntime optimization=all"
    assert row.complete


def test_what_cannot_be_distinguished_from_the_best_is_named(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.torch, ms=1.02)
    bench.run(bench.disabled, ms=3.0)

    (row,) = of(bench).rows

    assert row.best == "onnxruntime optimization=all"
    assert row.ties == ("torch",)
    assert row.runner_up.other == "onnxruntime optimization=disabled"  # slower by more than chance
    assert "not distinguishable from it: torch" in render(advice_answer(of(bench)))


def test_the_command_measures_the_model_as_the_best_did(bench) -> None:
    bench.run(bench.plain, ms=1.0)
    bench.run(bench.disabled, ms=0.5, conditions=Conditions(2, "hot"))

    (row,) = of(bench).rows

    words = shlex.split(shell_command(row.fastest.measured_by))
    assert words[:2] == ["dlbricks", "measure"]
    assert words[2] == str(bench.source.path)
    for option in ("--backend onnxruntime", "--option optimization=disabled", "--threads 2", "--cache hot"):
        assert option in shell_command(row.fastest.measured_by)


def test_layers_decide_over_the_runner_up_and_the_default(bench) -> None:
    bench.run(bench.plain, ms=2.0, bricks=bench.bricks(0.4, 0.1, 0.1, 0.1))
    bench.run(bench.disabled, ms=1.5, bricks=bench.bricks(0.3, 0.1, 0.1, 0.1))
    bench.run(bench.torch, ms=1.0, bricks=bench.bricks(0.1, 0.1, 0.2, 0.1))

    (row,) = of(bench).rows

    conv, _, sigmoid, _ = bench.counts
    assert (row.runner_up.other, row.default.other) == (
        "onnxruntime optimization=disabled",
        "onnxruntime optimization=all",
    )
    assert [layer.brick.key for layer in row.runner_up.layers][:2] == [conv, sigmoid]
    assert row.default.layers[0].gain_ms == pytest.approx(-2 * 0.3, rel=0.02)  # what the best would lose by it
    assert row.default.layers[0].verdict is Relation.SLOWER
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
    side, layer = row.mixed[0]
    assert (side, layer.brick.key) == ("onnxruntime", sigmoid)
    assert layer.gain_ms == pytest.approx(0.2, rel=0.02)
    assert sum(layer.gain_ms for _, layer in row.mixed) == pytest.approx(row.mixing_ms, rel=1e-6)


def test_estimates_are_ranked_where_nothing_is_measured_and_it_is_said(bench) -> None:
    bench.run(bench.plain, bricks=bench.bricks(0.1))
    bench.run(bench.torch, ms=4.0)

    (row,) = of(bench).rows

    assert [(ranked.name, ranked.figure.basis) for ranked in row.ranking] == [
        ("onnxruntime", "estimate"),
        ("torch", "measured"),
    ]


def test_the_cache_state_of_its_bricks_makes_no_second_way_to_run_a_model(bench) -> None:
    bench.run(bench.plain, ms=1.0, bricks=bench.bricks(0.1))
    bench.run(bench.plain, bricks=bench.bricks(0.1), conditions=Conditions(1, level_of_bench(bench)))

    (alone,) = of(bench).rows
    bench.run(bench.torch, ms=2.0, bricks=bench.bricks(0.2))
    (row,) = of(bench).rows

    assert (len(alone.ranking), alone.ties) == (1, ())
    assert "nothing to compare with" in alone.reason
    assert not alone.complete
    assert [ranked.name for ranked in row.ranking] == ["onnxruntime", "torch"]  # both hot, which torch has
    assert len(row.runner_up.layers) == 4


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

    assert [ranked.side.choice.conditions.dtype for ranked in of(bench).rows[0].ranking] == ["float32"]
    assert [ranked.side.choice.conditions.dtype for ranked in of(bench, dtype="any").rows[0].ranking] == [
        "bfloat16",
        "float32",
    ]
    assert [ranked.side.choice.conditions.dtype for ranked in of(bench, dtype="bfloat16").rows[0].ranking] == [
        "bfloat16"
    ]


def test_a_cold_model_is_another_question(bench) -> None:
    bench.run(ms=1.0)
    bench.run(bench.torch, ms=1.5)
    bench.run(ms=9.0, conditions=Conditions(1, "cold"))

    assert [ranked.latency_ms for ranked in of(bench).rows[0].ranking] == pytest.approx([1.0, 1.5], rel=0.01)
    assert [ranked.latency_ms for ranked in of(bench, cache="cold").rows[0].ranking] == pytest.approx([9.0], rel=0.01)


def test_of_two_cache_states_that_with_all_bricks_is_taken(bench) -> None:
    bench.run(bench.plain, bricks=dict(list(bench.bricks(0.1).items())[:1]))
    bench.run(bench.plain, bricks=bench.bricks(0.1), conditions=Conditions(1, level_of_bench(bench)))
    bench.run(bench.torch, ms=2.0)

    (row,) = of(bench).rows

    assert all(ranked.latency_ms is not None for ranked in row.ranking)


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
