"""Origins by name: layers that a node names, and those whose names are lost between two that are known."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.generator.backends.base import MADE_OF
from dlbricks.generator.decomposition.executed import named_origins, taken_names
from dlbricks.models.skeleton import Skeleton
from onnx import AttributeProto, helper

FORK = "(float[4] x) => (float[4] y, float[4] z) {a = Relu(x) b = Exp(a) c = Sin(b) y = Neg(c) d = Cos(b) z = Abs(d)}"


@pytest.fixture
def graph(skeleton_of: Callable[[str], onnx.ModelProto]) -> Callable[[str], ModelGraph]:
    return lambda text: build_graph(Skeleton(skeleton_of(text)))


def operators(source: ModelGraph, names: list[set[str]]) -> list[list[str]]:
    return [[source.layers[i].op_type for i in sorted(origin)] for origin in named_origins(source, names)]


def test_a_layer_whose_name_is_lost_is_where_all_its_readers_are(graph):
    source = graph("(float[4] x) => (float[4] y) {a = Relu(x) b = Exp(a) c = Add(a, b) y = Neg(c)}")

    assert operators(source, [{"c"}, {"y"}]) == [["Relu", "Exp", "Add"], ["Neg"]]


def test_what_readers_of_several_nodes_have_is_in_none(graph):
    assert operators(graph(FORK), [{"a"}, {"y"}, {"z"}]) == [["Relu"], ["Sin", "Neg"], ["Cos", "Abs"]]


def test_what_the_caller_reads_too_is_in_none(graph):
    source = graph("(float[4] x) => (float[4] a, float[4] y) {a = Relu(x) y = Neg(a)}")

    assert operators(source, [{"y"}]) == [["Neg"]]


def test_a_layer_that_several_nodes_name_is_in_each_and_so_is_what_it_alone_reads(graph):
    source = graph("(float[4] x) => (float[4] y) {a = Relu(x) y = Softmax(a)}")

    assert operators(source, [{"y"}, {"y"}, set()]) == [["Relu", "Softmax"], ["Relu", "Softmax"], []]


def test_every_live_layer_is_found_where_every_end_is_named(graph):
    source = graph(FORK)

    assert frozenset().union(*named_origins(source, [{"b"}, {"y"}, {"z"}])) == {*source.live}


def executed(*made_of: list[str] | None) -> onnx.ModelProto:
    nodes = [helper.make_node("Fused", ["x"], [f"v{number}"], domain="runtime") for number in range(len(made_of))]
    for node, values in zip(nodes, made_of, strict=True):
        if values is not None:
            node.attribute.append(helper.make_attribute(MADE_OF, values, attr_type=AttributeProto.STRINGS))
    return helper.make_model(helper.make_graph(nodes, "executed", [], []))


def test_names_are_taken_out_of_the_graph_so_that_no_key_holds_them():
    model = executed(["a", "b"], [], None)

    assert taken_names(model) == [{"a", "b"}, set(), set()]
    assert not any(node.attribute for node in model.graph.node)


def test_names_that_the_model_does_not_have_are_passed_over(graph):
    assert operators(graph(FORK), [{"x", "nobody"}, {"a"}])[0] == []
