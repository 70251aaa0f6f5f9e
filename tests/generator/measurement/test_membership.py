"""Which bricks of a suite models are made of, and which were bound to other shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.bricks.suite.suite import Suite
from dlbricks.generator.backends.registry import get
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decompose import decompose
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.selection import Sources, membership_of
from dlbricks.models import find_models
from onnx import numpy_helper

DECODER = """
<ir_version: 8, opset_import: ["": 17]>
g (float[batch,past_sequence_length,8] past, float[batch,sequence_length,8] x) => (float[batch,total,8] y) {
    a = MatMul(x, w)
    b = Concat<axis=1>(past, a)
    c = Relu(b)
    d = Sigmoid(c)
    y = MatMul(d, w)
}
"""


STACK = get("onnxruntime").stack("cpu", {})


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(DECODER)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8), np.float32), "w"))
    onnx.save(model, tmp_path / "decoder.onnx")
    return tmp_path / "decoder.onnx"


def bound_to(path: Path, graph: str = "source", **dims: int) -> Sources:
    return Sources.of(decompose(find_models([path], dims=dims), Cut(1).of(graph, STACK)))


@pytest.mark.parametrize("annotate", [False, True])
def test_a_model_that_is_bound_otherwise_than_the_suite_is_reported(
    decoder: Path, tmp_path: Path, annotate: bool
) -> None:
    suite = tmp_path / "suite"
    generate(find_models([decoder], dims={"past_sequence_length": 4}), granularity=1, out=suite, annotate=annotate)

    same = bound_to(decoder, past_sequence_length=4)
    other = bound_to(decoder)
    alike, apart = (membership_of(items, Suite.open(suite)) for items in (same, other))

    assert same.bound["decoder"] == {"batch": 1, "past_sequence_length": 4, "sequence_length": 1}
    assert [len(keys) for keys in alike.bricks.values()] == [5]
    assert alike.apart == {}
    assert apart.bricks == {}
    assert "past_sequence_length=127" in apart.apart["decoder"]
    assert "has 1 of its 5 bricks in the suite" in apart.apart["decoder"]
    left = other.without(apart.apart)
    assert (left.keys, left.names) == ([], (("decoder", None),))
    assert left.problems == apart.apart


@pytest.mark.parametrize("graph", ["fused", "runtime"])
def test_what_a_runtime_fuses_is_asked_where_a_suite_notes_no_models(decoder: Path, tmp_path: Path, graph: str) -> None:
    suite = tmp_path / "suite"
    generate(find_models([decoder], dims={"past_sequence_length": 4}), granularity=1, graph=graph, out=suite)

    found = membership_of(bound_to(decoder, graph, past_sequence_length=4), Suite.open(suite))

    assert [set(keys) for keys in found.bricks.values()] == [set(Suite.open(suite).keys)]
