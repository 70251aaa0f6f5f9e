"""Convolutions whose channels fill no blocks, with chosen latencies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.findings.analyses.measured.blocks import unblocked, unblocked_idea
from dlbricks.analyzer.findings.subject import Subject
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.executed import ExecutedModel, Layouts
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.models import find_models
from onnx import numpy_helper

SubjectOf = Callable[..., Subject]

MIXED = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1,17,16,16] x) => (float[1,16,16,16] y) {
    a = Conv<pads=[1,1,1,1]>(x, first)
    b = Conv<pads=[1,1,1,1], group=15>(a, alone)
    c = Conv<pads=[1,1,1,1]>(b, inner)
    d = Conv<pads=[2,2,2,2], group=15>(c, wide)
    y = Conv<pads=[1,1,1,1]>(d, last)
}
"""
"""17 to 15 channels, a depthwise convolution, 15 to 15, another depthwise one, 15 to 16."""

WEIGHTS = {
    "first": (15, 17, 3, 3),
    "alone": (15, 1, 3, 3),
    "inner": (15, 15, 3, 3),
    "wide": (15, 1, 5, 5),
    "last": (16, 15, 3, 3),
}
ROWS = 16 * 16
MACS = {"b": 15 * 9 * ROWS, "c": 15 * 15 * 9 * ROWS, "d": 15 * 25 * ROWS, "y": 15 * 16 * 9 * ROWS}


@pytest.fixture
def mixed(bench: Any, subject_of: SubjectOf, tmp_path: Path) -> Callable[[dict[str, float]], Subject]:
    """The model, with a latency in ms for what makes each value."""

    def made(latencies: dict[str, float]) -> Subject:
        model = onnx.parser.parse_model(MIXED)
        for name, shape in WEIGHTS.items():
            model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
        onnx.save(model, tmp_path / "mixed.onnx")
        (source,) = find_models([tmp_path / "mixed.onnx"])
        graph = build_graph(source.skeleton())
        keys = {graph.layers[part.layers[0]].outputs[0]: part.key for part in sequences(graph, 1)}
        bench.run(
            ms=sum(latencies.values()) or 1.0,
            key=graph.key,
            bricks={keys[name]: ms for name, ms in latencies.items()},
            noise=0,
        )
        return subject_of(bench, source)

    return made


def test_only_channels_that_the_rewrite_pads_add_work(mixed: Callable[[dict[str, float]], Subject]) -> None:
    latencies = {"a": 2.0, "b": 1.0, "c": 4.0, "d": 0.5, "y": 1.0}

    found = unblocked(mixed(latencies))

    dense = MACS["y"] / latencies["y"]  # the first one reads what is not padded, and is slower
    alone = MACS["d"] / latencies["d"]
    rise = 16 / 15
    left = rise * (MACS["b"] + MACS["d"]) / alone + (rise * rise * MACS["c"] + rise * MACS["y"]) / dense
    assert found is not None
    assert found.layers == ("Conv_1", "Conv_2", "Conv_3", "Conv_4")
    assert found.current_ms == pytest.approx(6.5)
    assert found.saving_ms == pytest.approx(6.5 - left, rel=1e-3)


def test_without_a_time_there_is_no_rate(mixed: Callable[[dict[str, float]], Subject]) -> None:
    subject = mixed(dict.fromkeys("abcdy", 0.0))

    assert unblocked(subject) is None
    assert [one.layers for one in unblocked_idea(subject)] == [("Conv_1", "Conv_2", "Conv_3", "Conv_4")]


def test_blocks_are_what_the_runtime_says_they_are(mixed: Callable[[dict[str, float]], Subject]) -> None:
    subject = mixed({"a": 2.0, "b": 1.0, "c": 4.0, "d": 0.5, "y": 1.0})
    graph = subject.graph
    executed = ExecutedModel(
        "mixed",
        graph,
        graph,
        tuple(frozenset({layer.index}) for layer in graph.layers),
        frozenset(),
        {},
        Layouts(flags=frozenset({"group"})),
    )
    subject.model = replace(subject.model, executed=executed)

    (idea,) = unblocked_idea(subject)

    assert idea.layers == ("Conv_2", "Conv_4")
