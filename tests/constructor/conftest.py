"""The models and the database of ``lab``, and a model of any length."""

from __future__ import annotations

from functools import cache

import onnx
from dlbricks.bricks.graph.graph import ModelGraph, build_graph
from dlbricks.models.skeleton import Skeleton
from lab import chain, fork, graph_of_fixture, keys_of_fixture, lab

__all__ = ["chain", "fork", "graph_of_fixture", "keys_of_fixture", "lab"]

# Two products whose shapes meet at length 8, and a Relu that is twice the same brick at every length.
ATTENTION = """
<ir_version: 8, opset_import: ["" : 17]>
attention (float[2, {0}, 8] x) => (float[2, {0}, 8] y) {{
    a = Relu(x)
    t = Transpose<perm=[0, 2, 1]>(a)
    s = MatMul(a, t)
    v = MatMul(s, a)
    y = Relu(v)
}}
"""


@cache
def attention(length: int) -> ModelGraph:
    """That model at a length."""
    return graph(ATTENTION.format(length))


def graph(text: str) -> ModelGraph:
    """A model as text."""
    return build_graph(Skeleton(onnx.parser.parse_model(text)))
