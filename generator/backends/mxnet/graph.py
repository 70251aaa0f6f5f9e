"""Which layers MXNet executes together: the names that its optimised symbol keeps of what it fused.

oneDNN's subgraphs hold the operators that they were made of, with their names. While a network is translated, every
operator is named after its node in ONNX (``operators.graph.label``), so that each is known again.

Operators of this graph are MXNet's own (``_sg_mkldnn_conv``), and have no form that runs in parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from ....bricks.constants import element_name
from ..base import MADE_OF, ExecutedGraph, ValueType, node_name
from .operators.graph import Translated, labelled
from .operators.node import Symbol

__all__ = ["executed_graph"]

_DOMAIN = "mxnet"

_IR_VERSION = 10

_VARIABLE = "null"
"""What MXNet writes for the operator of what is bound: inputs, weights and states."""


def executed_graph(translated: Translated, symbol: Symbol) -> ExecutedGraph:
    """What MXNet executes, each node with the values of ONNX that it was made of (``MADE_OF``).

    Values have names of their own, but for the inputs.

    Args:
        translated: The network in MXNet's terms.
        symbol: Its symbol as it is bound, optimised or not.
    """
    written = json.loads(symbol.tojson())
    known = _types(translated, symbol)
    model = onnx.ModelProto(ir_version=_IR_VERSION)
    model.opset_import.extend([helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)])
    graph = model.graph
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in translated.feeds.values())
    names: dict[tuple[int, int], str] = {}
    types: dict[str, ValueType] = {}
    for number, entry in enumerate(written["nodes"]):
        name = str(entry["name"])
        if entry["op"] == _VARIABLE:
            names[number, 0] = translated.feeds.get(name, name)
            if name not in translated.feeds:
                graph.initializer.append(_constant(name, translated.arrays[name]))
            continue
        found = known.get(name, ())
        given = [f"{name}.{place}" for place in range(max(len(found), 1))]
        names |= {(number, place): value for place, value in enumerate(given)}
        types |= dict(zip(given, found, strict=False))
        read = [names[source, place] for source, place, *_ in entry["inputs"]]
        node = graph.node.add(op_type=entry["op"], domain=_DOMAIN, input=read, output=given)
        node.name = node_name(node)
        values = {value for one in _inside(entry) for value in translated.labels.get(labelled(one), ())}
        node.attribute.append(helper.make_attribute(MADE_OF, sorted(values), attr_type=AttributeProto.STRINGS))
    graph.output.extend(onnx.ValueInfoProto(name=names[source, place]) for source, place, *_ in written["heads"])
    return ExecutedGraph(model, types)


def _inside(entry: Mapping[str, Any]) -> Iterator[str]:
    """Names of the operators that a node executes: its own, or those of its subgraphs."""
    inner = [one for graph in entry.get("subgraphs", ()) for one in graph["nodes"] if one["op"] != _VARIABLE]
    if not inner:
        yield str(entry["name"])
    for one in inner:
        yield from _inside(one)


def _types(translated: Translated, symbol: Symbol) -> dict[str, list[ValueType]]:
    """Operator to the types of its outputs."""
    values = symbol.get_internals()
    bound = translated.arrays
    _, shapes, _ = values.infer_shape(**{name: bound[name].shape for name in values.list_inputs()})
    _, elements, _ = values.infer_type(**{name: bound[name].dtype for name in values.list_inputs()})
    found: dict[str, list[ValueType]] = {}
    for value, shape, element in zip(values, shapes, elements, strict=True):
        found.setdefault(value.name, []).append(
            (element_name(helper.np_dtype_to_tensor_dtype(np.dtype(element))), tuple(shape))
        )
    return found


def _constant(name: str, array: np.ndarray[Any, Any]) -> TensorProto:
    """A constant without its values."""
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    return TensorProto(name=name, data_type=element, dims=array.shape, data_location=TensorProto.EXTERNAL)
