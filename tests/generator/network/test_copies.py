"""Copies of a brick: the same nodes under other names, with weights of their own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from dlbricks.generator.network.copies import distinct, renamed
from onnx import helper


@pytest.mark.parametrize("shape", [(300, 3), (7,), (1,), (), (0, 4)], ids=str)
def test_every_copy_has_the_same_values_in_other_places(shape):
    array = np.random.default_rng(0).standard_normal(shape)

    copies = [distinct(array, copy) for copy in range(5)]

    assert all(one.shape == shape for one in copies)
    assert all(np.array_equal(np.sort(one, axis=None), np.sort(array, axis=None)) for one in copies)
    assert len({one.tobytes() for one in copies}) == min(5, max(1, array.size)), "a runtime would share what is equal"
    assert np.array_equal(copies[0], array)
    assert not any(np.shares_memory(one, other) for one in (array, *copies) for other in copies if one is not other)


def test_a_renamed_node_is_another_node_without_a_name():
    node = helper.make_node("Add", ["x", "w"], ["y"], name="secret")

    twin = renamed(node, {"x": "1/x", "y": "1/y"})

    assert twin == helper.make_node("Add", ["1/x", "w"], ["1/y"])
    assert node == helper.make_node("Add", ["x", "w"], ["y"], name="secret")


def branch(node: onnx.NodeProto, output: str) -> onnx.GraphProto:
    value = helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, [4])
    return helper.make_graph([node], "branch", [], [value])


def test_captured_values_of_bodies_are_renamed_and_their_own_are_not():
    inner = helper.make_node(
        "If", ["c"], ["t"],
        then_branch=branch(helper.make_node("Add", ["x", "own"], ["own"]), "own"),
        else_branch=branch(helper.make_node("Neg", ["x"], ["e"]), "x"),
    )  # fmt: skip
    negated = helper.make_node("Neg", ["x"], ["x"])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch(inner, "t"), else_branch=branch(negated, "x"))

    twin = renamed(node, {name: f"1/{name}" for name in ("c", "x", "y", "own", "t")})

    assert (twin.input[0], twin.output[0]) == ("1/c", "1/y")
    bodies = {attribute.name: attribute.g for attribute in twin.attribute}
    nested = bodies["then_branch"].node[0]
    assert (nested.input[0], nested.output[0], bodies["then_branch"].output[0].name) == ("1/c", "t", "t")
    deeper = {attribute.name: attribute.g for attribute in nested.attribute}
    assert deeper["then_branch"].node[0] == helper.make_node("Add", ["1/x", "own"], ["own"])
    assert deeper["else_branch"].node[0] == helper.make_node("Neg", ["1/x"], ["e"])
    assert deeper["else_branch"].output[0].name == "1/x"  # a captured value, given as it is
    shadowed = bodies["else_branch"]
    assert shadowed.node[0] == negated  # a value of its own, of the same name
