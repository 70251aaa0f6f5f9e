"""Refusals of ONNX Runtime in clear words: the cause and the remedy."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping

import onnx

from ....errors import DlbricksError
from ....models.control_flow import label_of
from ....models.subgraphs import all_nodes, infer_shapes

_OPSET = re.compile(
    r"Opset (?P<asked>\d+) is under development.*support for domain (?P<domain>\S+) is till opset (?P<newest>\d+)"
)
_IR = re.compile(r"Unsupported model IR version: (?P<asked>\d+), max supported IR version: (?P<newest>\d+)")
_KERNEL = re.compile(r"Could not find an implementation for (?P<operator>\w+)\(\d+\) node with name '(?P<name>[^']*)'")

_OLDEST_OPSET = 7
"""ONNX Runtime has kernels for opsets from this one on, of older operators only for those that changed later
(its page on compatibility)."""

_ODD_TYPES = {"bfloat16": "float16 or float32", "double": "float32", "float16": "float32"}
"""Element types for which operators often lack a kernel, and what to convert a model to."""


def clear_refusal(structure: Callable[[], onnx.ModelProto], version: str, text: str) -> str:
    """Return the cause of a refusal and the remedy; another text unchanged.

    Args:
        structure: Returns the refused model.
        version: Version of the runtime.
        text: Its message.
    """
    if found := _OPSET.search(text):
        domain = "" if found["domain"] == "ai.onnx" else f" of domain {found['domain']}"
        return (
            f"its opset {found['asked']}{domain} is too new: the newest that version {version} takes is "
            f"{found['newest']}; export the model with opset {found['newest']}, convert it with "
            "onnx.version_converter, or install a newer onnxruntime"
        )
    if found := _IR.search(text):
        return (
            f"its IR version {found['asked']} is too new: the newest that version {version} takes is "
            f"{found['newest']}; save the model with ir_version {found['newest']}, or install a newer onnxruntime"
        )
    if found := _KERNEL.search(text):
        return _without_kernel(structure(), version, found["operator"], found["name"])
    return with_places(structure, text)


_NAMELESS = re.compile(
    r"(?P<before>Node )\(\)(?P<between> Op \((?P<operator>\w+)\))|(?P<running>running (?P<run>\w+) node\. Name:)''"
)


def with_places(structure: Callable[[], onnx.ModelProto], text: str) -> str:
    """Return a message with the place of a node that has no name: the value that it makes, if it is the only one.

    Args:
        structure: Returns the model that was refused or failed.
        text: The runtime's message.
    """
    found = _NAMELESS.search(text)
    if found is None:
        return text
    operator = found["operator"] or found["run"]
    nodes = [node for node in all_nodes(structure().graph.node) if node.op_type == operator and not node.name]
    if not nodes:  # made by the runtime
        return text
    place = f"that makes {label_of(nodes[0])!r}" if len(nodes) == 1 else f"one of {len(nodes)} without a name"
    named = f"{found['before']}({place}){found['between']}" if found["operator"] else f"{found['running']} {place}"
    return text[: found.start()] + named + text[found.end() :]


def _without_kernel(model: onnx.ModelProto, version: str, operator: str, name: str) -> str:
    with contextlib.suppress(DlbricksError):  # what the file states must do
        model = infer_shapes(model)
    kinds = _element_types(model)
    nodes = list(all_nodes(model.graph.node))
    fitting = [node for node in nodes if node.op_type == operator and node.name == name]
    alike = fitting or [node for node in nodes if node.op_type == operator]
    types = sorted({kinds[value] for node in alike[:1] for value in node.input if value in kinds})
    odd = next((kind for kind in types if kind in _ODD_TYPES), None)
    where = f" (layer {name})" if name else ""
    opset = max(
        (entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), default=_OLDEST_OPSET
    )
    if opset < _OLDEST_OPSET:
        return (
            f"version {version} has no kernel for {operator} of opset {opset}{where}: the oldest opset that it takes "
            f"is {_OLDEST_OPSET}; export the model anew, or convert it with onnx.version_converter"
        )
    if odd is None:
        taken = f" of {', '.join(types)}" if types else ""
        return f"version {version} has no kernel for {operator}{taken}{where}; try another opset or backend"
    count = sum(any(kinds.get(value) == odd for value in (*node.input, *node.output)) for node in nodes)
    layers = "1 layer" if count == 1 else f"{count} layers"
    return (
        f"version {version} has no kernel for {operator} in {odd}{where}; {layers} of it read or make {odd}: convert "
        f"the model to {_ODD_TYPES[odd]}"
    )


def _element_types(model: onnx.ModelProto) -> Mapping[str, str]:
    """Return the element types of values, as far as they are known."""
    graph = model.graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.output, *graph.input):
        types[value.name] = value.type.tensor_type.elem_type
    return {name: onnx.TensorProto.DataType.Name(kind).lower() for name, kind in types.items() if kind}
