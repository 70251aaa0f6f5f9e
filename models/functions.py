"""Inlining of model-local functions, so that every node of a model is an operator."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto

from ..errors import BrokenModel, UnsupportedModel
from .names import require_text
from .subgraphs import all_nodes

__all__ = ["inline_functions"]

_MAX_NODES = 1_000_000
_MAX_DEPTH = 100

_Id = tuple[str, str, str]
"""Domain, name and overload of a function."""


def inline_functions(model: ModelProto) -> ModelProto:
    """The model with every call of a model-local function replaced by the function's nodes, in place of the call.

    Returns ``model`` itself where it has no functions. The values of large constants may be absent.

    Raises:
        BrokenModel: Functions call each other in a circle.
        UnsupportedModel: The calls expand to more nodes than any real model has, or a function is written for
            another opset than the model and cannot be converted.
    """
    if not model.functions:
        return model
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    for function in model.functions:
        require_text(function.domain, function.name, *(opset.domain for opset in function.opset_import))
        for node in all_nodes(function.node):
            require_text(node.domain, node.op_type)
    _measure(model, functions)
    try:
        inlined = onnx.inliner.inline_local_functions(model, not _align(model))
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise UnsupportedModel(f"its model-local functions cannot be inlined: {reason}") from error
    if inlined.functions:
        raise UnsupportedModel(f"its model-local function '{inlined.functions[0].name}' cannot be inlined")
    return inlined


def _measure(model: ModelProto, functions: dict[_Id, FunctionProto]) -> None:
    """Refuse functions that recur, or that expand without bound, before anything expands them."""
    sizes: dict[_Id, int] = {}
    open_calls: list[_Id] = []

    def expanded(nodes: Iterable[NodeProto]) -> int:
        total = 0
        for node in all_nodes(nodes):
            name = (node.domain, node.op_type, node.overload)
            total += size(name) if name in functions else 1
        return total

    def size(name: _Id) -> int:
        if name not in sizes:
            if name in open_calls:
                raise BrokenModel(f"model-local function '{name[1]}' calls itself")
            if len(open_calls) >= _MAX_DEPTH:
                raise UnsupportedModel(f"model-local functions are nested more than {_MAX_DEPTH} deep")
            open_calls.append(name)
            sizes[name] = expanded(functions[name].node)
            open_calls.pop()
        return sizes[name]

    total = expanded(model.graph.node)
    if total > _MAX_NODES:
        raise UnsupportedModel(f"its model-local functions expand to {total} nodes, more than {_MAX_NODES}")


def _align(model: ModelProto) -> bool:
    """Set each function's opsets to the model's where that changes no operator; whether that was so everywhere."""
    wanted = {opset.domain: opset.version for opset in model.opset_import}
    aligned = True
    for function in model.functions:
        for opset in function.opset_import:
            version = wanted.setdefault(opset.domain, opset.version)
            if version != opset.version:
                if _same_operators(function, opset.domain, opset.version, version):
                    opset.version = version
                else:
                    aligned = False
    for domain in wanted.keys() - {opset.domain for opset in model.opset_import}:
        model.opset_import.add(domain=domain, version=wanted[domain])
    return aligned


def _same_operators(function: FunctionProto, domain: str, one: int, other: int) -> bool:
    for operator in {node.op_type for node in all_nodes(function.node) if node.domain == domain}:
        if onnx.defs.has(operator, domain):
            try:
                first, second = (onnx.defs.get_schema(operator, version, domain) for version in (one, other))
            except onnx.defs.SchemaError:
                return False  # one of the opsets does not have it yet
            if first.since_version != second.since_version:
                return False
    return True
