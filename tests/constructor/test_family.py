"""Families: the same part of a model at several sizes, whatever its extents; none where another part stands there."""

from __future__ import annotations

from typing import Any

import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import ExecutedModel, Layouts, ModelGraph
from dlbricks.constructor.interpolation import families
from hypothesis import given, settings
from hypothesis import strategies as st

from .conftest import ATTENTION, attention, graph


@settings(deadline=None)  # the first example imports
@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 3))
def test_families_do_not_depend_on_the_size(one: int, other: int, granularity: int) -> None:
    found, same = (families(made, sequences(made, granularity)) for made in map(attention, (one, other)))

    assert found == same
    assert len({*found}) == len(found)


def test_bricks_that_are_the_same_may_be_of_several_families() -> None:
    parts = sequences(attention(8), 1)

    assert len({part.key for part in parts}) == 3  # Relu, Transpose and both products
    assert len({*families(attention(8), parts)}) == 5


@pytest.mark.parametrize(
    "change",
    [
        ("Relu(v)", "Sigmoid(v)"),  # another operator
        ("MatMul(s, a)", "MatMul(a, t)"),  # other wiring: of what is multiplied with whom only extents would differ
        ("MatMul(s, a)", "Add(s, s)"),
        ("a = Relu(x)", "c = Relu(x) a = Relu(c)"),  # every later layer has another place, and so another name
    ],
)
def test_what_is_another_part_is_of_another_family(change: tuple[str, str]) -> None:
    other = graph(ATTENTION.format(8).replace(*change))

    own, theirs = (families(made, sequences(made, 2)) for made in (attention(8), other))

    assert {*own} != {*theirs}


EXECUTED = """
<ir_version: 8, opset_import: ["" : 17]>
executed (float[1, 4, {0}, {0}] x) => (float[1, 4, {0}, {0}] y) {{
    r = Identity(x)
    a = Relu(r)
    {1}
    y = Sigmoid(b)
}}
"""


def executed(size: int, between: str, *origins: set[int]) -> tuple[ModelGraph, ExecutedModel]:
    """A graph in which identities stand for changes of layout that a runtime puts in."""
    text = EXECUTED.format(size, "b = Identity(a)").replace("r = Identity(x)", "").replace("Relu(r)", "Relu(x)")
    source = graph(text.replace("b = Identity(a)", "b = Tanh(a)"))
    made = graph(EXECUTED.format(size, between))
    mapped = (frozenset[int](), frozenset({0}), *map(frozenset, origins), frozenset({2}))
    return made, ExecutedModel("m", source, made, mapped, frozenset(), {}, Layouts())


def named(size: int, between: str, *origins: set[int]) -> tuple[Any, ...]:
    made, model = executed(size, between, *origins)
    return families(made, sequences(made, 1), model)


def test_what_a_runtime_puts_in_is_told_by_the_layers_around_it() -> None:
    small, large = (named(size, "c = Tanh(a) b = Identity(c)", {1}, set()) for size in (8, 16))
    elsewhere = named(16, "c = Identity(a) b = Tanh(c)", set(), {1})

    assert small == large
    assert len({*small} & {*elsewhere}) == 4  # all but the change of layout, which stands before Tanh now
    assert small[3] not in elsewhere


def test_what_a_runtime_fuses_at_one_size_alone_has_no_like_at_the_other() -> None:
    apart = named(8, "c = Tanh(a) b = Identity(c)", {1}, set())
    fused = named(16, "c = Tanh(a) b = Identity(c)", {1, 2}, set())

    assert apart[2] not in fused
