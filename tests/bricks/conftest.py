"""Tiny models for the tests of the model processor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.models.skeleton import Skeleton, mark_weight
from hypothesis import settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

settings.register_profile("bricks", deadline=None, max_examples=60)
settings.load_profile("bricks")

_SHAPE = [1, 2, 4]


@pytest.fixture(scope="session")
def parse_graph() -> Callable[[str], ModelGraph]:
    """Builds the graph of a model in ONNX's text form; graph inputs called w... are weights."""

    def build(text: str, opset: int = 21) -> ModelGraph:
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
        for value in model.graph.input:
            if value.name.startswith("w"):
                mark_weight(value)
        return build_graph(Skeleton(model))

    return build


@pytest.fixture(scope="session")
def draw_model() -> Callable[[st.DataObject], onnx.ModelProto]:
    """Draws a random model: branches, joins, unused outputs, weights, folded and skipped layers among live ones."""
    return _draw_model


def _draw_model(data: st.DataObject) -> onnx.ModelProto:
    floats = ["x0", "x1"]
    integers: list[str] = []
    nodes: list[onnx.NodeProto] = []
    kinds = st.sampled_from(
        ["chain", "chain", "chain", "relu", "add", "scale", "shift", "pool", "cast", "reshape", "count", "clip"]
    )
    for number, kind in enumerate(data.draw(st.lists(kinds, min_size=1, max_size=14))):
        out = f"n{number}"
        one = data.draw(st.sampled_from(floats))
        match kind:
            case "chain":
                nodes.append(helper.make_node("Tanh", [floats[-1]], [out]))
            case "relu":
                nodes.append(helper.make_node("Relu", [one], [out], name=f"layer {number}"))
            case "add":
                nodes.append(helper.make_node("Add", [one, data.draw(st.sampled_from(floats))], [out]))
            case "scale":
                nodes.append(helper.make_node("Mul", [one, "w0"], [out]))
            case "shift":
                nodes.append(helper.make_node("Add", [one, "c0"], [out]))
            case "clip":
                nodes.append(helper.make_node("Clip", [one, "", "c1"], [out]))
            case "pool":
                nodes.append(helper.make_node("MaxPool", [one], [out, f"{out}i"], kernel_shape=[1]))
                integers.append(f"{out}i")
            case "cast":
                source = data.draw(st.sampled_from(integers)) if integers else one
                nodes.append(helper.make_node("Cast", [source], [out], to=TensorProto.FLOAT))
            case "reshape":  # a folded Shape between two live layers
                nodes.append(helper.make_node("Shape", [data.draw(st.sampled_from(floats))], [f"{out}s"]))
                nodes.append(helper.make_node("Reshape", [one, f"{out}s"], [out]))
            case "count":  # a way through layers without static shape: skipped
                nodes.append(helper.make_node("NonZero", [one], [f"{out}z"]))
                nodes.append(helper.make_node("ReduceSum", [f"{out}z"], [f"{out}r"], keepdims=0))
                nodes.append(helper.make_node("Cast", [f"{out}r"], [f"{out}f"], to=TensorProto.FLOAT))
                nodes.append(helper.make_node("Add", [one, f"{out}f"], [out]))
        floats.append(out)
    made = floats[2:]
    outputs = data.draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, _SHAPE) for name in ("x0", "x1")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, _SHAPE) for name in outputs],
        [numpy_helper.from_array(np.float32([0.5]), "c0"), numpy_helper.from_array(np.array(0.75, np.float32), "c1")],
    )
    graph.input.append(mark_weight(helper.make_tensor_value_info("w0", TensorProto.FLOAT, _SHAPE)))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
