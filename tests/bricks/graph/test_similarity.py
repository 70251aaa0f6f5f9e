"""Similarity and repetition on models small enough to count by hand."""

from __future__ import annotations

from collections.abc import Callable

from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.graph import ModelGraph
from dlbricks.bricks.graph.similarity import (
    jaccard,
    layer_keys,
    repetition,
    sequence_repetition,
    similarity_matrix,
)
from hypothesis import given
from hypothesis import strategies as st

KEYS = st.frozensets(st.sampled_from("abcdef"))


def test_jaccard() -> None:
    assert jaccard({"a", "b"}, {"b", "c"}) == 1 / 3
    assert jaccard({"a"}, {"b"}) == 0
    assert jaccard(set(), set()) == 1


@given(st.dictionaries(st.text(max_size=3), KEYS, max_size=5))
def test_matrix_is_symmetric_with_a_unit_diagonal(models: dict[str, frozenset[str]]) -> None:
    matrix = similarity_matrix(models)
    assert matrix.names == tuple(models)
    for row, one in enumerate(matrix.names):
        assert matrix.values[row][row] == 1
        for column, other in enumerate(matrix.names):
            assert matrix.values[row][column] == matrix.values[column][row] == jaccard(models[one], models[other])
    assert matrix.frame().shape == (len(models), len(models))


def test_repetition_counts_layers(parse_graph: Callable[[str], ModelGraph]) -> None:
    chain = parse_graph("a (float[4] x) => (float[4] y) { t = Relu(x) u = Tanh(t) y = Relu(u) }")
    wide = parse_graph("a (float[8] x) => (float[8] y) { y = Relu(x) }")
    found = repetition([chain, chain, wide])
    assert (found.total, found.unique) == (7, 3)
    assert [(entry.operator, entry.total, entry.unique) for entry in found.operators] == [
        ("Relu", 5, 2),
        ("Tanh", 2, 1),
    ]
    assert found.share == 3 / 7
    assert list(found.frame()["share"]) == [2 / 5, 1 / 2]
    assert len(layer_keys(chain)) == 2
    assert repetition([]).share == 0


def test_repetition_of_sequences(parse_graph: Callable[[str], ModelGraph]) -> None:
    chain = parse_graph("a (float[4] x) => (float[4] y) { t = Relu(x) u = Tanh(t) v = Relu(u) y = Tanh(v) }")
    found = sequence_repetition([(chain, sequences(chain, 2))])
    assert (found.total, found.unique) == (2, 1)
    assert found.operators[0].operator == "Relu+Tanh"
