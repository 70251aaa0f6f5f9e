"""Attention that is spelt out becomes one operator that computes the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from computing import session
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.generator.network.export import join_attention
from dlbricks.models.skeleton import Skeleton
from onnx import helper, numpy_helper

HEADS, GROUPS, WIDTH, TOKENS, PAST = 6, 2, 32, 3, 5


def decoder(
    *, grouped: bool = False, cached: bool = False, masked: bool = True, more: tuple[onnx.NodeProto, ...] = ()
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """One attention as exporters of decoders write it, and inputs."""
    heads, value, node = GROUPS if grouped else HEADS, helper.make_tensor_value_info, helper.make_node
    total = TOKENS + (PAST if cached else 0)
    constants: dict[str, np.ndarray] = {"scale": np.array(0.17, np.float32)}
    inputs = [value("q", 1, [1, HEADS, TOKENS, WIDTH])]
    inputs += [value(name, 1, [1, heads, TOKENS, WIDTH]) for name in "kv"]
    outputs = [value("y", 1, [1, HEADS, TOKENS, WIDTH])]
    nodes, names = [], {"k": "k", "v": "v"}
    for name in "kv" if cached else "":
        inputs.append(value(f"past.{name}", 1, [1, heads, PAST, WIDTH]))
        outputs.append(value(f"present.{name}", 1, [1, heads, total, WIDTH]))
        nodes.append(node("Concat", [f"past.{name}", name], [f"present.{name}"], axis=-2))
        names[name] = f"present.{name}"
    for name in "kv" if grouped else "":
        repeats = np.array([1, 1, HEADS // GROUPS, 1, 1])
        constants |= {"heads": np.array([2]), "repeats": repeats, "all": np.array([1, HEADS, -1, WIDTH])}
        nodes.append(node("Unsqueeze", [names[name], "heads"], [f"wide.{name}"]))
        nodes.append(node("Expand", [f"wide.{name}", "repeats"], [f"repeated.{name}"]))
        nodes.append(node("Reshape", [f"repeated.{name}", "all"], [f"every.{name}"]))
        names[name] = f"every.{name}"
    nodes.append(node("Transpose", [names["k"]], ["turned"], perm=[0, 1, 3, 2]))
    nodes.append(node("MatMul", ["q", "turned"], ["product"]))
    nodes.append(node("Mul", ["product", "scale"], ["scores"]))
    if masked:
        inputs.append(value("mask", 1, [1, 1, TOKENS, total]))
        nodes.append(node("Add", ["scores", "mask"], ["seen"]))
    nodes.append(node("Softmax", ["seen" if masked else "scores"], ["shares"], axis=-1))
    nodes.append(node("MatMul", ["shares", names["v"]], ["y"]))
    outputs += [value(one.output[0], 1, None) for one in more]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([*nodes, *more], "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    draws = np.random.default_rng(0)
    feeds = {
        one.name: draws.normal(size=[dim.dim_value for dim in one.type.tensor_type.shape.dim]).astype(np.float32)
        for one in inputs
    }
    if masked:
        ahead = np.arange(total)[None] > total - TOKENS + np.arange(TOKENS)[:, None]
        feeds["mask"] = np.where(ahead, np.float32(-3e38), np.float32(0))[None, None]
    return model, feeds


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_one_operator_that_computes_the_same(grouped: bool, cached: bool, masked: bool) -> None:
    model, feeds = decoder(grouped=grouped, cached=cached, masked=masked)
    before = session(model).run(None, feeds)

    assert join_attention(model) == 1

    assert [node.op_type for node in model.graph.node] == ["Attention"]
    assert not model.graph.initializer
    onnx.checker.check_model(model, full_check=True)
    for mine, theirs in zip(session(model).run(None, feeds), before, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_its_work_is_known() -> None:
    model, _ = decoder(grouped=True, cached=True)
    join_attention(model)

    (layer,) = build_graph(Skeleton(model)).layers

    assert layer.cost is not None
    assert layer.cost.macs == 2 * HEADS * TOKENS * (TOKENS + PAST) * WIDTH


@pytest.mark.parametrize("value", ["shares", "scores", "turned"])
def test_what_something_else_reads_stays(value: str) -> None:
    model, feeds = decoder(more=(helper.make_node("Neg", [value], ["other"]),))
    before = session(model).run(None, feeds)

    assert join_attention(model) == 0

    assert Counter(node.op_type for node in model.graph.node)["Softmax"] == 1
    np.testing.assert_array_equal(session(model).run(None, feeds)[0], before[0])


def test_a_cache_that_something_else_reads_stays_a_concatenation() -> None:
    model, feeds = decoder(cached=True, more=(helper.make_node("Neg", ["present.k"], ["other"]),))
    before = session(model).run(None, feeds)
    kept = [node.op_type for node in model.graph.node]

    assert join_attention(model) == 0  # one cache is joined and the other is not

    assert [node.op_type for node in model.graph.node] == kept
    np.testing.assert_array_equal(session(model).run(None, feeds)[0], before[0])


def test_operators_that_changed_since_keep_a_model_as_it_is() -> None:
    model, _ = decoder(more=(helper.make_node("Mystery", ["q"], ["other"]),))

    assert join_attention(model) == 0
    assert model.opset_import[0].version == 18
