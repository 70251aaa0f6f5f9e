"""Analyses that hold a model against other stored measurements: chosen latencies, really stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.findings.analyses import slow_kernels
from dlbricks.analyzer.findings.analyses.measured import batch, padding, roofline
from dlbricks.analyzer.findings.subject import Subject
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.graph import ModelGraph, build_graph
from dlbricks.bricks.reference import GEMM, STREAM
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


CEILINGS = {f"{GEMM}512": 2.684, f"{STREAM}{1 << 20}": 1.149}
"""10^11 FLOP/s, and 10^9 bytes/s beside a call of 0.1 ms."""


def by_operator(bench: Any, conv: float, relu: float, sigmoid: float, add: float) -> dict[str, float]:
    return bench.bricks(conv, relu, sigmoid, add)  # type: ignore[no-any-return]


def test_operators_far_from_both_ceilings_are_found(bench: Any, subject_of: SubjectOf) -> None:
    bench.run(ms=1.0, bricks=by_operator(bench, 0.2, 0.009, 0.009, 0.0135), references=CEILINGS)
    subject = subject_of(bench)

    (found,) = roofline.ANALYSIS.run(subject)

    assert not list(slow_kernels.ANALYSIS.run(subject))  # its own rate is all that this model has to show
    assert found.at_most
    assert found.layers == ("Conv_0", "Conv_2")
    assert found.current_ms == pytest.approx(0.4, rel=0.02)
    assert found.achievable_ms == pytest.approx(2 * (2 * 4 * 16 * 16 + 4 * 4 * 9) * 4 / 1e9 * 1e3, rel=0.02)
    assert "40% of the model" in found.title
    assert any("2 x Conv" in line and "by memory" in line for line in found.evidence)


@pytest.mark.parametrize("conv", [0.012, 0.03])
def test_operators_near_a_ceiling_are_none(bench: Any, subject_of: SubjectOf, conv: float) -> None:
    bench.run(ms=1.0, bricks=by_operator(bench, conv, 0.009, 0.009, 0.0135), references=CEILINGS)

    assert not list(roofline.ANALYSIS.run(subject_of(bench)))


def test_what_is_slow_beside_its_own_model_is_not_shown_again(bench: Any, subject_of: SubjectOf) -> None:
    bench.run(ms=2.0, bricks=by_operator(bench, 0.012, 0.009, 0.009, 0.5), references=CEILINGS)
    subject = subject_of(bench)

    assert [found.layers for found in slow_kernels.ANALYSIS.run(subject)] == [("Add_4",)]
    assert not list(roofline.ANALYSIS.run(subject))


def test_without_ceilings_nothing_is_far_from_them(bench: Any, subject_of: SubjectOf) -> None:
    bench.run(ms=1.0, bricks=by_operator(bench, 0.2, 0.009, 0.009, 0.0135))

    assert not list(roofline.ANALYSIS.run(subject_of(bench)))
