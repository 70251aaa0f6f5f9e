"""Networks of our own: those that measure what a call costs, and what a machine can do."""

from __future__ import annotations

import hashlib
from functools import cache

import onnx
from onnx import helper

from ..models.skeleton import mark_weight

OVERHEAD = "@overhead"
"""In place of a path in ``Prepare``: a network of one addition of one element, whose time is that of a call."""

CHAIN = "@chain"
"""In place of a path in ``Prepare``: a chain of small operators, whose time beyond that of one is that of a launch."""

CHAIN_NODES = 12
"""Operators of the chain."""

GEMM = "@ceiling-gemm-"
"""Followed by N: the product of two squares of N by N, whose rate is the most that a machine computes."""

STREAM = "@ceiling-stream-"
"""Followed by a number of bytes: an addition of two arrays that are, with their sum, so large together."""

COPY = "@ceiling-copy-"
"""Followed by a number of bytes: two arrays joined to one. Large copies may bypass the caches when they write."""

_OPSET = 17
_IR_VERSION = 8


def built_in(name: str) -> onnx.ModelProto | None:
    """The built-in network of a name, in skeleton form; None for anything else."""
    if name == OVERHEAD:
        return _overhead()
    if name == CHAIN:
        return _chain()
    for prefix, network in ((GEMM, _gemm), (STREAM, _stream), (COPY, _copy)):
        size = name.removeprefix(prefix)
        if size != name and size.isascii() and size.isdigit():
            return network(int(size))
    return None


@cache
def built_in_key(name: str) -> str:
    """Key under which a built-in network is stored: that of its content."""
    model = built_in(name)
    assert model is not None  # noqa: S101  # the names are constants
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def _overhead() -> onnx.ModelProto:
    return _model([helper.make_node("Add", ["x0", "x1"], ["v0"])], {"x0": [1], "x1": [1]}, {}, {"v0": [1]})


def _chain() -> onnx.ModelProto:
    """So many operators on 128 elements."""
    nodes = [
        helper.make_node("Abs", [f"v{number - 1}" if number else "x0"], [f"v{number}"]) for number in range(CHAIN_NODES)
    ]
    return _model(nodes, {"x0": [8, 16]}, {}, {f"v{CHAIN_NODES - 1}": [8, 16]})


def _gemm(size: int) -> onnx.ModelProto:
    """One operand is a weight, as in a model, so that a runtime may pack it ahead."""
    square = [size, size]
    node = helper.make_node("MatMul", ["x0", "w0"], ["v0"])
    return _model([node], {"x0": square}, {"w0": square}, {"v0": square})


def _stream(size: int) -> onnx.ModelProto:
    array = [max(1, size // 12)]  # three arrays of 4 bytes an element
    return _model([helper.make_node("Add", ["x0", "x1"], ["v0"])], {"x0": array, "x1": array}, {}, {"v0": array})


def _copy(size: int) -> onnx.ModelProto:
    count = max(1, size // 16)  # two arrays, and one of both, of 4 bytes an element
    node = helper.make_node("Concat", ["x0", "x1"], ["v0"], axis=0)
    return _model([node], {"x0": [count], "x1": [count]}, {}, {"v0": [2 * count]})


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int]],
    weights: dict[str, list[int]],
    outputs: dict[str, list[int]],
) -> onnx.ModelProto:
    def value(name: str, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes,
        "reference",  # part of the content that keys are made of
        [
            *(value(name, shape) for name, shape in inputs.items()),
            *(mark_weight(value(name, shape)) for name, shape in weights.items()),
        ],
        [value(name, shape) for name, shape in outputs.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
