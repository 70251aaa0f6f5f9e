"""Analyses that hold a model against other stored measurements: chosen latencies, really stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.findings.analyses.measured import batch, padding
from dlbricks.analyzer.findings.subject import Subject
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.graph import ModelGraph, build_graph
from dlbricks.db import Conditions
from dlbricks.models import find_models
from onnx import numpy_helper

SubjectOf = Callable[..., Subject]


def measured_in(bench: Any, latencies: Mapping[int, float], **settings: Any) -> None:
    """Store the bench's model in several batches; the bricks of its own."""
    for size, latency in latencies.items():
        (source,) = find_models([bench.source.path], batches=[size])
        key = build_graph(source.skeleton()).key
        bench.run(ms=latency, key=key, bricks=bench.bricks(1.0) if size == 1 else None, **settings)


def test_the_first_batch_is_found_whose_doubling_gains_little(bench: Any, subject_of: SubjectOf) -> None:
    measured_in(bench, {1: 10.0, 2: 12.0, 4: 16.0, 8: 31.5, 16: 40.0})

    found = next(iter(batch.ANALYSIS.run(subject_of(bench))))

    assert found.remedy.settings == {"batch": "4"}
    assert found.share == pytest.approx(1 - 16 / 4 / 10, rel=0.02)
    assert found.ci95_ms is not None
    assert found.ci95_ms[0] < found.saving_ms < found.ci95_ms[1]
    assert found.saving_ms == pytest.approx(found.current_ms - found.achievable_ms)
    assert any("twice as many at once gain 2%" in line for line in found.evidence)


def test_where_every_doubling_gains_the_largest_is_named_as_such(bench: Any, subject_of: SubjectOf) -> None:
    measured_in(bench, {1: 10.0, 2: 12.0})

    found = next(iter(batch.ANALYSIS.run(subject_of(bench))))

    assert found.remedy.settings == {"batch": "2"}
    assert "batches of 4 are not measured" in found.evidence


@pytest.mark.parametrize("latencies", [{1: 10.0}, {1: 10.0, 2: 19.5, 4: 20.0}, {1: 10.0, 4: 11.0}])
def test_a_batch_that_suits_the_machine_is_none(
    bench: Any, subject_of: SubjectOf, latencies: Mapping[int, float]
) -> None:
    measured_in(bench, latencies)

    assert not list(batch.ANALYSIS.run(subject_of(bench)))


def test_other_threads_are_no_other_batch(bench: Any, subject_of: SubjectOf) -> None:
    measured_in(bench, {1: 10.0})
    measured_in(bench, {2: 11.0}, conditions=Conditions(4, "hot"))

    assert not list(batch.ANALYSIS.run(subject_of(bench)))


UNEVEN = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1,16,16,16] x) => (float[1,16,16,16] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)
    b = Relu(a)
    c = Conv<pads=[1,1,1,1]>(b, v)
    d = Relu(c)
    y = Conv<pads=[1,1,1,1]>(d, u)
}
"""
"""Three convolutions, 16 to 15 to 15 to 16 channels."""


def uneven(folder: Path, text: str = UNEVEN) -> tuple[Any, ModelGraph, dict[str, str]]:
    """A model, its graph, and the keys of its bricks by what they make."""
    model = onnx.parser.parse_model(text)
    shapes = {"w": (15, 16, 3, 3), "v": (15, 15, 3, 3), "u": (16, 15, 3, 3)}
    for name, shape in shapes.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    onnx.save(model, folder / "uneven.onnx")
    (source,) = find_models([folder / "uneven.onnx"])
    graph = build_graph(source.skeleton())
    keys = {graph.layers[part.layers[0]].outputs[0]: part.key for part in sequences(graph, 1)}
    return source, graph, keys


def test_channels_are_found_that_are_faster_when_they_are_padded(
    bench: Any, subject_of: SubjectOf, tmp_path: Path
) -> None:
    source, graph, keys = uneven(tmp_path)
    bench.run(ms=3.3, key=graph.key, bricks={key: 1.0 if name in "acy" else 0.1 for name, key in keys.items()})
    bench.run(variant="padded-8", bricks={keys["a"]: 0.6, keys["c"]: 0.5, keys["y"]: 1.1})

    (found,) = padding.ANALYSIS.run(subject_of(bench, source))

    assert found.layers == ("Conv_0", "Conv_2", "Conv_4")
    assert found.current_ms == pytest.approx(3.0, rel=0.05)
    assert found.saving_ms == pytest.approx(0.4 + 0.5 - 0.1, rel=0.1)
    assert found.ci95_ms is not None
    assert found.ci95_ms[0] < found.saving_ms < found.ci95_ms[1]
    assert any("1 of the 3 layers take longer" in line for line in found.evidence)


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        (("=> (float[1,16,16,16] y)", "=> (float[1,16,16,16] y, float[1,15,16,16] b)"), ("Conv_4",)),
        (("d = Relu(c)", "d = Softmax<axis=1>(c)"), ("Conv_0",)),
    ],
)
def test_channels_that_others_see_are_left_alone(
    bench: Any, subject_of: SubjectOf, tmp_path: Path, change: tuple[str, str], layers: tuple[str, ...]
) -> None:
    source, graph, keys = uneven(tmp_path, UNEVEN.replace(*change))
    bench.run(ms=3.3, key=graph.key, bricks={key: 1.0 if name in "acy" else 0.1 for name, key in keys.items()})
    bench.run(variant="padded-8", bricks={keys[name]: 0.5 for name in "acy"})

    (found,) = padding.ANALYSIS.run(subject_of(bench, source))

    assert found.layers == layers


def test_channels_whose_padding_is_not_measured_are_none(bench: Any, subject_of: SubjectOf, tmp_path: Path) -> None:
    source, graph, keys = uneven(tmp_path)
    bench.run(ms=3.3, key=graph.key, bricks={key: 1.0 if name in "acy" else 0.1 for name, key in keys.items()})

    assert not list(padding.ANALYSIS.run(subject_of(bench, source)))
