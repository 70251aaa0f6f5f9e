"""The graph that a runtime executes, in skeleton form: the worker writes it for the parent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import onnx

from ....bricks.encoding import element_number
from ....models.normal import hoist_constants
from ....models.skeleton import KEPT_ELEMENTS, mark_weight
from ....models.subgraphs import all_graphs, all_nodes, own_names, plain_domain
from ...backends.base import ExecutedGraph, ValueType
from ...network.network import Network, array_type

EXECUTED = "executed.onnx"
"""File of the graph that is executed."""

_IR_VERSION = 10
"""The first IR version with metadata on values, which marks the weights."""


def stage_files(folder: Path) -> list[Path]:
    """Return the files of the stages from the source to the executed graph, nearest to the source first."""
    return sorted(folder.glob("stage*.onnx"))


def write_graph(executed: ExecutedGraph, network: Network, folder: Path) -> None:
    """Write the executed graph and its stages in skeleton form.

    Args:
        executed: The backend's report.
        network: The executed network; gives the types of the inputs.
        folder: An existing folder.
    """
    inputs = {name: array_type(array) for name, array in network.feeds.items()}
    models = {EXECUTED: _skeleton(executed.model, inputs, executed.types)}
    for number, stage in enumerate(executed.stages):
        models[f"stage{number}.onnx"] = _skeleton(stage, inputs, {})
    for name, model in models.items():
        (folder / name).write_bytes(model.SerializeToString(deterministic=True))


def _skeleton(
    source: onnx.ModelProto, inputs: Mapping[str, ValueType], types: Mapping[str, ValueType]
) -> onnx.ModelProto:
    """Return the skeleton of an optimised graph; ``source`` is used up.

    Nothing is folded or inlined: each node stays. Only used domains are imported, since a runtime may declare all
    domains that it knows.
    """
    graph = source.graph
    model = onnx.ModelProto(ir_version=max(source.ir_version, _IR_VERSION))
    used = {plain_domain(node.domain) for node in all_nodes(graph.node)}
    for opset in source.opset_import:
        domain = plain_domain(opset.domain)
        if domain in used or not domain:
            model.opset_import.add(domain=domain, version=opset.version)
    body = model.graph
    body.name = "executed"
    constants = {tensor.name for tensor in graph.initializer}
    defined = constants | {value.name for value in graph.input} | {v for node in graph.node for v in node.output}
    within = Counter(name for inner in islice(all_graphs(graph), 1, None) for name in own_names(inner))
    hoisted = hoist_constants(graph.node, defined, within) if within else []
    for value in graph.input:
        if value.name not in constants:
            value_type = inputs.get(value.name)
            body.input.append(_value(value.name, value_type) if value_type is not None else value)
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= KEPT_ELEMENTS and tensor.data_location != onnx.TensorProto.EXTERNAL:
            body.initializer.append(tensor)
        else:
            body.input.append(_weight(tensor.name, tensor.data_type, tuple(tensor.dims)))
    body.input.extend(_weight(name, constant.dtype, tuple(constant.dims)) for name, constant in hoisted)
    body.node.extend(graph.node)
    for node in body.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    handed_out = {value.name for value in graph.output}
    for value in graph.output:
        value_type = types.get(value.name) or inputs.get(value.name)
        body.output.append(_value(value.name, value_type) if value_type is not None else value)
    body.value_info.extend(_value(name, value_type) for name, value_type in types.items() if name not in handed_out)
    return model


def _value(name: str, value_type: ValueType) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, element_number(value_type[0]), value_type[1])


def _weight(name: str, element: int, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return mark_weight(onnx.helper.make_tensor_value_info(name, element, shape))
