"""Poolings of bytes run with channels last, as a model has them, and compute the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.bricks.cutting.sequences import make_sequence
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.network.network import Network, synthetic_network
from dlbricks.models.skeleton import Skeleton


def network_of(dtype: str) -> Network:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]>'
        f"g ({dtype}[1,8,13,13] x) => ({dtype}[1,8,6,6] y) {{y = MaxPool<kernel_shape=[3,3], strides=[2,2]>(x)}}"
    )
    graph = build_graph(Skeleton(model))
    return synthetic_network(onnx.load_model_from_string(build_brick(graph, make_sequence(graph, graph.live)).model))


@pytest.mark.parametrize(
    ("dtype", "operators", "edges"),
    [("uint8", ["Transpose", "NhwcMaxPool", "Transpose"], {0, 2}), ("int8", ["MaxPool"], set[int]())],
)
def test_a_pool_of_bytes_is_laid_out_and_computes_the_same(dtype: str, operators: list[str], edges: set[int]) -> None:
    backend = OrtBackend()
    settings = Settings("cpu", 1, backend.resolve("cpu", {"pinning": "off"}))
    plain = backend.optimised(network_of(dtype), settings)
    laid = backend.optimised_bricks(network_of(dtype), settings)

    assert laid.model is not None
    assert [node.op_type for node in laid.model.graph.node] == operators
    assert backend.edges(laid) == edges
    results = []
    for one in (plain, laid):
        executable = backend.prepare(one, settings)
        executable.run()
        results.append(executable.outputs()[0])
        executable.close()
    assert np.array_equal(*results)
