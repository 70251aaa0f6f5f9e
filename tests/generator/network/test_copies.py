"""Copies of a brick: the same nodes under other names, with weights of their own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from dlbricks.generator.network.network import add_copy, distinct
from onnx import helper, numpy_helper


@pytest.mark.parametrize("shape", [(300, 3), (7,), (1,), (), (0, 4)], ids=str)
def test_every_copy_has_the_same_values_in_other_places(shape):
    array = np.random.default_rng(0).standard_normal(shape)

    copies = [distinct(array, copy) for copy in range(5)]

    assert all(one.shape == shape for one in copies)
    assert all(np.array_equal(np.sort(one, axis=None), np.sort(array, axis=None)) for one in copies)
    assert len({one.tobytes() for one in copies}) == min(5, max(1, array.size)), "a runtime would share what is equal"
    assert np.array_equal(copies[0], array)
    assert not any(np.shares_memory(one, other) for one in (array, *copies) for other in copies if one is not other)


def copied(*nodes: onnx.NodeProto, reads: str = "", constants=()) -> onnx.GraphProto:
    """A graph, and behind it a copy in which every value of the graph's own is called 1/ and its name."""
    source = helper.make_graph(nodes, "source", [onnx.ValueInfoProto(name=name) for name in reads], [], constants)
    graph = onnx.GraphProto()
    graph.CopyFrom(source)

    added = add_copy(graph, source, "1/".__add__)

    assert list(graph.node) == [*source.node, *added]
    assert list(graph.initializer)[: len(constants)] == list(constants)
    return graph


def test_a_copy_has_nodes_of_its_own_without_names():
    node = helper.make_node("Add", ["x", "around"], ["y"], name="secret")

    twin = copied(node, reads="x").node[1]

    assert twin == helper.make_node("Add", ["1/x", "around"], ["1/y"])
    assert node == helper.make_node("Add", ["x", "around"], ["y"], name="secret")


def test_a_copy_has_constants_of_its_own():
    constant = numpy_helper.from_array(np.arange(3.0), "c")

    graph = copied(helper.make_node("Add", ["c", ""], ["y"]), constants=[constant])

    assert [tensor.name for tensor in graph.initializer] == ["c", "1/c"]
    assert graph.initializer[1].raw_data == constant.raw_data
    assert graph.node[1] == helper.make_node("Add", ["1/c", ""], ["1/y"])


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

    own = helper.make_node("Identity", ["x"], ["own"])
    twin = copied(own, node, reads="cx").node[3]

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
