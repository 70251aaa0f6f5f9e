"""Models by sides, in one table."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import onnx.parser
from dlbricks.analyzer.comparison.compare import compare
from dlbricks.analyzer.report.answers.comparison import comparison_answer
from dlbricks.analyzer.report.answers.side_table import models_by_sides
from dlbricks.analyzer.report.tables import render
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.models import find_models

from ..conftest import Bench

OTHER = '<ir_version: 8, opset_import: ["": 17]> other (float[4] x) => (float[4] y) {y = Relu(x)}'


def test_three_sides_have_a_table_with_totals_and_geometric_means(bench: Bench, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(OTHER), tmp_path / "other.onnx")
    sources = [bench.source, *find_models([tmp_path / "other.onnx"])]
    other = build_graph(sources[1].skeleton()).key
    for stack, first, second in ((bench.plain, 8.0, 2.0), (bench.disabled, 16.0, 1.0)):
        bench.run(stack, ms=first)
        bench.run(stack, ms=second, key=other)
    two = compare(sources, store=bench.store)
    bench.run(bench.torch, ms=4.0)

    comparison = compare(sources, store=bench.store)

    assert models_by_sides(two) == [], "two sides are pairs"
    lines = [line.split() for line in render(comparison_answer(comparison)).splitlines()]
    begin = next(number for number, line in enumerate(lines) if line[:1] == ["ms"])
    plain, disabled, torch = (
        lines[begin].index(word) for word in ("optimization=all", "optimization=disabled", "torch")
    )
    assert plain < disabled < torch
    rows = {" ".join(line[:-3]): line[-3:] for line in lines[begin + 2 : begin + 4]}
    assert [round(float(cell)) for cell in rows["branches"]] == [8, 16, 4]
    assert rows["other"][2] == "-"
    assert not any(line[:1] == ["total"] for line in lines), "one model alone is known on every side"

    bench.run(bench.torch, ms=1.0, key=other)
    text = render(comparison_answer(compare(sources, store=bench.store)))
    total, mean = (line.split()[-3:] for line in text.splitlines() if line.startswith(("total", "geometric mean")))
    assert [round(float(cell)) for cell in total] == [10, 17, 5]
    assert [round(float(cell)) for cell in mean] == [round(math.sqrt(of)) for of in (16, 16, 4)]


def test_a_side_that_was_never_quiet_has_a_table_of_means(bench: Bench) -> None:
    for stack, quiet in ((bench.plain, 0.5), (bench.disabled, 0.5), (bench.torch, None)):
        bench.run(stack, ms=8.0, undisturbed=quiet)

    (row,) = [
        line.split()[-3:]
        for line in render(comparison_answer(compare([bench.source], store=bench.store))).splitlines()
        if line.startswith("branches") and line.count("8.") == 3
    ]

    assert [round(float(cell)) for cell in row] == [8, 8, 8], "half as long on a quiet machine is known of two only"
