"""Matching of a graph with the optimised one, on graphs written by hand."""

from __future__ import annotations

from dataclasses import replace

from dlbricks.generator.backends.base import OptimiserTraits
from dlbricks.generator.backends.onnxruntime.executed_nodes import TRAITS
from dlbricks.generator.decomposition.origins import GraphOperator, composed, match, sharing


def op(text: str, name: str = "") -> GraphOperator:
    """``y z = Kind(a, , b)``."""
    outputs, _, call = text.partition(" = ")
    kind, _, inputs = call.removesuffix(")").partition("(")
    return GraphOperator(name, kind, tuple(part.strip() for part in inputs.split(",")), tuple(outputs.split()))


def matched(before: list[GraphOperator], after: list[GraphOperator], idle: tuple[int, ...] = ()) -> list[set[int]]:
    return [set(origin) for origin in match(before, after, TRAITS, idle=idle)]


def test_a_fused_operator_comes_from_what_lies_between_its_values():
    before = [op("a = Conv(x)"), op("b = Add(a, z)"), op("y = Relu(b)")]

    assert matched(before, [op("y = FusedConv(x, , , z)")]) == [{0, 1, 2}]


def test_a_value_that_is_read_twice_is_found_once():
    before = [op("a = Sigmoid(x)"), op("y = Mul(x, a)")]

    assert matched(before, [op("y = com.microsoft.QuickGelu(x)")]) == [{0, 1}]


def test_layout_changes_come_from_nothing_and_new_names_are_seen_through():
    before = [op("a = Conv(x)"), op("b = Relu(a)"), op("c = MaxPool(b)"), op("y = Flatten(c)")]
    after = [
        op("t0 = com.microsoft.nchwc.ReorderInput(x)", "r0"),
        op("t1 = com.microsoft.nchwc.Conv(t0)", "b_nchwc"),
        op("t2 = com.microsoft.nchwc.MaxPool(t1)", "c_nchwc"),
        op("c = com.microsoft.nchwc.ReorderOutput(t2)", "r1"),
        op("y = Flatten(c)"),
    ]

    assert matched(before, after) == [set(), {0, 1}, {2}, set(), {3}]


def test_a_sum_that_only_a_later_sum_reads_is_known_by_its_operand():
    before = [op("a = Conv(x)"), op("b = Conv(a)"), op("c = Add(b, a)"), op("d = Conv(c)"), op("y = Add(d, c)")]
    after = [
        op("t0 = com.microsoft.nchwc.Conv(x)", "a_nchwc"),
        op("t1 = com.microsoft.nchwc.Conv(t0, , , t0)", "b_nchwc_token_7"),
        op("t2 = com.microsoft.nchwc.Conv(t1, , , t1)", "d_nchwc"),
        op("y = com.microsoft.nchwc.ReorderOutput(t2)"),
    ]

    assert matched(before, after) == [{0}, {1, 2}, {3, 4}, set()]


def test_a_normalisation_that_became_a_blocked_convolution_is_found():
    before = [op("a = MaxPool(x)"), op("b = BatchNormalization(a)"), op("y = Relu(b)")]
    after = [
        op("t0 = com.microsoft.nchwc.MaxPool(x)", "a_nchwc"),
        op("t1 = com.microsoft.nchwc.Conv(t0)", "b_bn_nchwc"),
        op("b = com.microsoft.nchwc.ReorderOutput(t1)"),
        op("y = Relu(b)"),
    ]

    assert matched(before, after) == [{0}, {1}, set(), {2}]


def test_transpositions_that_cancel_are_nobodys_origin():
    before = [op("a = Transpose(x)"), op("b = Relu(a)", "~b"), op("y = Transpose(b)")]

    assert matched(before, [op("y = Relu(x)", "~b")]) == [{1}]


def test_a_transposition_that_moved_past_an_operator_is_a_layout_change():
    before = [op("a = Transpose(x)", "~a"), op("y = Relu(a)", "~y")]
    after = [op("t = Relu(x)", "~y"), op("y = Transpose(t)")]

    assert matched(before, after) == [{1}, set()]


def test_operators_that_hand_on_what_they_read_are_no_origin_of_a_computation():
    before = [op("a = Reshape(x)"), op("b = Identity(a)"), op("c = MatMul(b)"), op("y = Add(c)")]

    assert matched(before, [op("y = Gemm(x)")], idle=(0,)) == [{2, 3}]
    assert matched(before[:2], [op("b = Reshape(x)")], idle=(0,)) == [{0}]


def test_several_operators_in_place_of_one_share_it():
    origins = match([op("y = HardSwish(x)")], [op("t = HardSigmoid(x)"), op("y = Mul(x, t)")], OptimiserTraits())

    assert origins == [{0}, {0}]
    assert sharing(origins) == {0: 2}


def test_repeated_operators_are_one_behind_values_that_are_handed_on():
    before = [op("a = Cast(x)"), op("b = Relu(a)"), op("c = Cast(a)"), op("d = Relu(c)"), op("y = Add(b, d)")]
    before = [replace(operator, detail="equal") for operator in before]

    assert matched(before, [op("d = Relu(x)"), op("y = Add(d, d)")], idle=(0, 2)) == [{1, 3}, {4}]


def test_an_idle_operator_hands_on_its_first_value_alone():
    """Dropout returns a mask beside it: readers of two masks do not compute the same."""
    before = [op("a m = Dropout(x, )"), op("c n = Dropout(z, )"), op("b = Not(m)"), op("d = Not(n)")]
    before = [replace(operator, detail="equal") for operator in before]
    after = [op("c n = Dropout(z, )"), op("d = Not(n)")]

    assert matched(before, after, idle=(0, 1))[1] == {3}


def test_steps_are_composed():
    first = [frozenset({0, 1}), frozenset({2}), frozenset()]

    assert composed(first, [frozenset({0, 1}), frozenset({2}), frozenset()]) == [{0, 1, 2}, set(), set()]


def test_names_that_no_runtime_states_are_only_names():
    before = [op("a = Conv(x)"), op("y = Relu(a)")]
    after = [op("t = acme.Conv(x)", "a_nchwc"), op("y = Relu(t)")]

    assert [set(origin) for origin in match(before, after, OptimiserTraits())] == [{0, 1}, {0, 1}]
    assert matched(before, after) == [{0}, {1}]
