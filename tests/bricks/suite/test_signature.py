"""The signature of a sequence in its model is that of its brick."""

from __future__ import annotations

import pytest
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.bricks.suite.signature import signature_in, signature_of
from dlbricks.models import find_models


@pytest.mark.parametrize("model", ["shufflenet", "bert_base"])
@pytest.mark.parametrize("granularity", [1, 3])
def test_a_sequence_has_the_signature_of_its_brick(model: str, granularity: int) -> None:
    (source,) = find_models([model])
    graph = build_graph(source.skeleton())
    parts = sequences(graph, granularity)[:60]

    for part in parts:
        assert signature_in(graph, part) == signature_of(build_brick(graph, part))


def test_kernels_and_strides_are_reported_of_convolutions_and_poolings() -> None:
    (source,) = find_models(["shufflenet"])
    graph = build_graph(source.skeleton())

    first, *_, pool = [signature_in(graph, part) for part in sequences(graph, 1)[:4]]

    assert (first.inputs, first.outputs) == ("float[1,3,224,224]", "float[1,24,112,112]")
    assert first.weights.split()[0] == "float[24,3,3,3]"
    assert (first.kernel, first.strides) == (pool.kernel, pool.strides) == ("3x3", "2x2")
