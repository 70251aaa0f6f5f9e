"""Networks of our own: the reference, timed in every round of every worker, and those that tell what a machine can do.

The reference is small and fixed. Its latency tells whether two measurements saw the same machine. It has a
convolution, which is bound by arithmetic, and a matrix product whose 3 MiB of weights come from beyond L2 on most
machines, so that it feels a busy memory as well as a lower clock.
"""

from __future__ import annotations

import hashlib
from functools import cache

import onnx
from onnx import helper

from ...models.skeleton import mark_weight

__all__ = [
    "CHAIN",
    "CHAIN_NODES",
    "COPY",
    "GEMM",
    "OVERHEAD",
    "REFERENCE",
    "STREAM",
    "built_in",
    "built_in_key",
]

REFERENCE = "@reference"
"""In place of a path in ``Prepare``: the reference network."""

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
    if name == REFERENCE:
        return _reference()
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


def _reference() -> onnx.ModelProto:
    """Conv 3x3 (32 channels, 28 x 28), Relu, MaxPool, Gemm 800 x 1024: about 8 M MACs."""
    nodes = [
        helper.make_node("Conv", ["x0", "w0", "w1"], ["v0"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["v0"], ["v1"]),
        helper.make_node("MaxPool", ["v1"], ["v2"], kernel_shape=[5, 5], strides=[5, 5]),
        helper.make_node("Flatten", ["v2"], ["v3"]),
        helper.make_node("Gemm", ["v3", "w2", "w3"], ["v4"]),
    ]
    return _model(
        nodes,
        {"x0": [1, 32, 28, 28]},
        {"w0": [32, 32, 3, 3], "w1": [32], "w2": [800, 1024], "w3": [1024]},
        {"v4": [1, 1024]},
    )


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
        "reference",
        [
            *(value(name, shape) for name, shape in inputs.items()),
            *(mark_weight(value(name, shape)) for name, shape in weights.items()),
        ],
        [value(name, shape) for name, shape in outputs.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
