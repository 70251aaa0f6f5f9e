"""Similarity of models that are small enough to count by hand."""

from __future__ import annotations

from dlbricks.analyzer.report.page.payload import jaccard, similarity_matrix
from hypothesis import given
from hypothesis import strategies as st

KEYS = st.frozensets(st.sampled_from("abcdef"))


def test_jaccard() -> None:
    assert jaccard({"a", "b"}, {"b", "c"}) == 1 / 3
    assert jaccard({"a"}, {"b"}) == 0
    assert jaccard(set(), set()) == 1


@given(st.lists(KEYS, max_size=5))
def test_matrix_is_symmetric_with_a_unit_diagonal(models: list[frozenset[str]]) -> None:
    matrix = similarity_matrix(models)
    assert len(matrix) == len(models)
    for row, one in enumerate(models):
        assert matrix[row][row] == 1
        for column, other in enumerate(models):
            assert matrix[row][column] == matrix[column][row] == jaccard(one, other)
