"""What PyTorch executes of a network eagerly: its operators as written, except for strided views.

A Transpose, a Split or a Slice moves nothing: its result is the memory of its input in another order. The operator that
reads it pays, with slower reads or a copy. In a brick of its own it costs nothing, and its reader gets ordered memory,
so that the sum of both lacks the time. Here each view is therefore part of every operator that reads it.

Whether a result is a view follows from operators and shapes, never from values: PyTorch's rules for strides decide.
"""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
import torch
from onnx import AttributeProto, TensorProto, helper

from ....bricks.encoding import element_name
from ....models.subgraphs import reads
from ...network.network import Network
from ..base import MADE_OF, ExecutedGraph, ValueType
from ..reports import node_name
from .torch_graph import element_of, translated

_DOMAIN = "torch"

_IR_VERSION = 10


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """One executed operator.

    Attributes:
        node: The operator.
        types: The types of its outputs.
        viewed: The input whose memory all outputs are, in another order; empty if it computes or copies.
    """

    node: onnx.NodeProto
    types: Mapping[str, ValueType]
    viewed: str


def eager_graph(network: Network, *, float_type: torch.dtype, device: str, channels_last: bool) -> ExecutedGraph:
    """Return the graph that PyTorch executes, with views in their readers; raises as ``translated``.

    Each node lists the values of the network that it was made of (``MADE_OF``): its own, and views that it reads.
    """
    calls: list[_Call] = []

    def observe(node: onnx.NodeProto, inputs: Sequence[torch.Tensor | None], results: Sequence[torch.Tensor]) -> None:
        outputs = {name: tensor for name, tensor in zip(node.output, results, strict=False) if name}
        types = {name: _type_of(tensor) for name, tensor in outputs.items()}
        calls.append(_Call(node, types, _viewed(node, inputs, [*outputs.values()])))

    translated(network, float_type=float_type, device=device, channels_last=channels_last, observe=observe)
    return _written(network, calls)


def _viewed(node: onnx.NodeProto, inputs: Sequence[torch.Tensor | None], results: Sequence[torch.Tensor]) -> str:
    """Return the name of the input that an operator's results show in another order; empty if there is none."""
    if all(tensor.is_contiguous() for tensor in results):
        return ""
    memory = {
        tensor.untyped_storage().data_ptr(): name
        for name, tensor in zip(node.input, inputs, strict=True)
        if tensor is not None
    }
    names = {memory.get(tensor.untyped_storage().data_ptr(), "") for tensor in results}
    return names.pop() if len(names) == 1 else ""


def _type_of(tensor: torch.Tensor) -> ValueType:
    return element_name(element_of(tensor.dtype)), tuple(tensor.shape)


def _written(network: Network, calls: Sequence[_Call]) -> ExecutedGraph:
    views = {name: call for call in calls if call.viewed for name in call.types}
    model = onnx.ModelProto(ir_version=_IR_VERSION)
    model.opset_import.extend([helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)])
    graph = model.graph
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in network.feeds)
    known = {*network.feeds}
    types: dict[str, ValueType] = {}
    for call in calls:
        if call.viewed and call.types.keys().isdisjoint(network.outputs):
            continue
        seen = [value for name in reads(call.node) for value in _through(name, views)]
        read = [name for name in seen if name not in views]
        graph.initializer.extend(_constant(name) for name in dict.fromkeys(read) if name not in known)
        known.update(read, call.types)
        node = graph.node.add(op_type=call.node.op_type, domain=_DOMAIN, input=read, output=[*call.types])
        node.name = node_name(node)
        made_of = sorted({*call.types, *(name for name in seen if name in views)})
        node.attribute.append(helper.make_attribute(MADE_OF, made_of, attr_type=AttributeProto.STRINGS))
        types |= call.types
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in network.outputs)
    return ExecutedGraph(model, types)


def _through(name: str, views: Mapping[str, _Call]) -> Iterator[str]:
    """Yield a value, and if it is a view everything down to the memory that it shows."""
    while name in views:
        yield name
        name = views[name].viewed
    if name:
        yield name


def _constant(name: str) -> TensorProto:
    """Return a constant without values; nothing reads its type, since nothing of this graph is run."""
    return TensorProto(name=name, data_type=TensorProto.FLOAT, dims=(1,), data_location=TensorProto.EXTERNAL)
