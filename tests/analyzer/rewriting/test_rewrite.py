"""Rewrites compose: any subset of what all engines find in a random graph is a valid model with the same outputs."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from dlbricks.analyzer.rewriting.engines import ENGINES
from dlbricks.analyzer.rewriting.prover import Prover
from dlbricks.analyzer.rewriting.recording import Values, apart, session
from dlbricks.analyzer.rewriting.rewrite import Draft, Rewrite, RewriteGraph
from dlbricks.errors import ModelError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

ROWS, WIDTH = 6, 32
UNARY = ("Relu", "Tanh", "Sigmoid", "Erf", "Abs", "Neg", "Exp", "Sqrt")
BINARY = ("Add", "Mul", "Sub", "Max")


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """A graph of products, pointwise operators, moves there and back, and selections on values of one shape."""
    generator = np.random.default_rng(draw(st.integers(0, 3)))
    weights = {
        "w": generator.standard_normal((WIDTH, WIDTH)) / 6, "v": np.eye(WIDTH)[generator.permutation(WIDTH)],
        "k": np.array(0.5), "c": generator.standard_normal(WIDTH),
    }  # fmt: skip
    nodes, values = list[onnx.NodeProto](), ["x"]
    for number in range(draw(st.integers(3, 12))):
        source, made = draw(st.sampled_from(values[-3:])), f"t{number}"
        match draw(st.sampled_from(("unary", "binary", "constant", "product", "move"))):
            case "unary":
                nodes.append(helper.make_node(draw(st.sampled_from(UNARY)), [source], [made]))
            case "binary":
                nodes.append(
                    helper.make_node(draw(st.sampled_from(BINARY)), [source, draw(st.sampled_from(values))], [made])
                )
            case "constant":
                other = draw(st.sampled_from(("k", "c")))
                nodes.append(helper.make_node(draw(st.sampled_from(BINARY[:3])), [source, other], [made]))
            case "product":
                nodes.append(helper.make_node("MatMul", [source, draw(st.sampled_from(("w", "v")))], [made]))
            case _:
                nodes.append(helper.make_node("Transpose", [source], [f"{made}_turned"], perm=[1, 0]))
                nodes.append(helper.make_node("Transpose", [f"{made}_turned"], [made], perm=[1, 0]))
        values.append(made)
    shape, outputs = [ROWS, WIDTH], dict.fromkeys((values[-1], draw(st.sampled_from(values[1:]))))
    graph = helper.make_graph(
        nodes, "random", [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info(name, 1, shape) for name in outputs],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def feeds(seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(np.float32)}


def proposals(values: Values) -> list[Rewrite]:
    found = []
    for engine, _ in ENGINES.values():
        found += engine(values, time.perf_counter() + 5)
    prover = Prover(values, {})
    return [rewrite for rewrite in found if prover.prove(rewrite).reason]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(model=models(), data=st.data())
def test_any_subset_of_rewrites_is_a_model_with_the_same_outputs(model: onnx.ModelProto, data: st.DataObject):
    values = Values(RewriteGraph(model), [feeds(0), feeds(1)])
    found = proposals(values)
    chosen = data.draw(st.lists(st.sampled_from(found), unique=True)) if found else []

    changed = values.graph.build(chosen)

    onnx.checker.check_model(values.graph.build())
    inputs = feeds(5)
    before, after = (session(made, optimised=False).run(None, inputs) for made in (model, changed))
    for mine, theirs in zip(after, before, strict=True):
        assert apart(mine, theirs) < 1e-4


def chain() -> RewriteGraph:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])], "chain",
        [helper.make_tensor_value_info("x", 1, [2])], [helper.make_tensor_value_info("y", 1, [2])],
    )  # fmt: skip
    return RewriteGraph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def by(graph: RewriteGraph, operator: str, read: str, made: str) -> Rewrite:
    draft = Draft(graph)
    draft.op(operator, read, to=made)
    return draft.rewrite("planted: other", [made], [], 1.0)


def test_of_two_rewrites_of_one_value_the_first_counts_and_what_nobody_reads_goes():
    graph = chain()

    made = graph.build([by(graph, "Sin", "x", "y"), by(graph, "Cos", "x", "y")])

    assert [node.op_type for node in made.graph.node] == ["Sin"]


def test_what_applications_read_of_a_model_stays():
    graph = chain()
    graph.model.metadata_props.add(key="names", value="cat, dog")

    assert [entry.value for entry in graph.build().metadata_props] == ["cat, dog"]


def test_rewrites_in_a_circle_are_refused():
    graph = chain()

    with pytest.raises(ModelError, match="circle"):
        graph.build([by(graph, "Sin", "y", "a")])


def test_names_are_new_and_nodes_without_a_name_get_one():
    graph = chain()

    assert len({graph.fresh("a") for _ in range(5)} - {"a", "x", "y"}) == 5
    assert all(node.name for node in graph.nodes)
