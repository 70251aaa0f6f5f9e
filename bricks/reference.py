"""Built-in networks that measure the overhead of a call and the ceilings of a machine."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import onnx
from onnx import helper

from ..models.skeleton import mark_weight

OVERHEAD = "@overhead"
"""Name in place of a path: a network of one addition of one element, to measure the overhead of a call."""

CHAIN = "@chain"
"""Name in place of a path: a chain of small operators; each operator after the first adds one launch."""

CHAIN_NODES = 12
"""Operators of the chain."""

GEMM = "@ceiling-gemm-"
"""Prefix before N: the product of two N x N matrices, for the machine's arithmetic ceiling."""

STREAM = "@ceiling-stream-"
"""Prefix before a number of bytes: an addition of two arrays; operands and sum together have this size."""

COPY = "@ceiling-copy-"
"""Prefix before a number of bytes: two arrays concatenated. Large copies may bypass the caches on writing."""

_OPSET = 17
_IR_VERSION = 8


def write_built_in(name: str, path: Path) -> None:
    """Write a built-in network in skeleton form.

    Raises:
        KeyError: No network has this name.
    """
    model = built_in(name)
    if model is None:
        raise KeyError(name)
    path.write_bytes(model.SerializeToString(deterministic=True))


def built_in(name: str) -> onnx.ModelProto | None:
    """Return the built-in network with a name, in skeleton form; None for other names."""
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
    """Return the SHA-256 of a built-in network's content, its key in the database."""
    model = built_in(name)
    assert model is not None  # noqa: S101  # the names are constants
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def _overhead() -> onnx.ModelProto:
    return _model([helper.make_node("Add", ["x0", "x1"], ["v0"])], {"x0": [1], "x1": [1]}, {}, {"v0": [1]})


def _chain() -> onnx.ModelProto:
    """Return a chain of ``CHAIN_NODES`` operators on 128 elements."""
    nodes = [
        helper.make_node("Abs", [f"v{number - 1}" if number else "x0"], [f"v{number}"]) for number in range(CHAIN_NODES)
    ]
    return _model(nodes, {"x0": [8, 16]}, {}, {f"v{CHAIN_NODES - 1}": [8, 16]})


def _gemm(size: int) -> onnx.ModelProto:
    """Return a product with a weight as second operand, as in a model: runtimes may pack it in advance."""
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
        "reference",  # enters the key
        [
            *(value(name, shape) for name, shape in inputs.items()),
            *(mark_weight(value(name, shape)) for name, shape in weights.items()),
        ],
        [value(name, shape) for name, shape in outputs.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
