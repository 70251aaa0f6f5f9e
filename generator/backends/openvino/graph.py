"""Which layers OpenVINO executes together: the names that its executed graph keeps of the operators that it came from.

An executed graph states for each node the names of the operators that it was made of. OpenVINO's reader names an
operator as ONNX does, or makes a name up; transformations keep some names and drop others. So every operator is named
anew once it was read: by the values that ONNX has for it, and what is only on the way to such a value by that value. Of
which layers no name is kept the dataflow of the model shows (``generator.decomposition.named``).

Operators of this graph are OpenVINO's own (``Subgraph``, ``FullyConnected``), and have no form that runs in parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import onnx
from onnx import AttributeProto, TensorProto, helper

from ....bricks.constants import element_number
from ..base import MADE_OF, ExecutedGraph, ValueType, node_name

if TYPE_CHECKING:
    import openvino

__all__ = ["executed_graph", "renamed"]

_DOMAIN = "openvino"

_IR_VERSION = 10

_LABEL = re.compile(r"(~+\d+)(?:/.*)?")
"""A name that ``renamed`` gave. OpenVINO adds endings for parts of an operator, such as ``/WithoutBiases``."""

_EDGES = frozenset({"Parameter", "Result"})

_TYPES = {
    "f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16", "boolean": "bool", "i4": "int4",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u4": "uint4", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "f8e4m3": "float8e4m3fn", "f8e5m2": "float8e5m2",
}  # fmt: skip
"""OpenVINO's name of an element type to ONNX's."""


def renamed(model: openvino.Model) -> Mapping[str, tuple[str, ...]]:
    """Name each operator of a model that was just read, in place; inputs keep their names.

    Returns:
        Name to the values of the ONNX model that the operator gives, or that it is on the way to; none for constants.
    """
    operators, prefix = [one for one in model.get_ordered_ops() if one.get_type_name() not in _EDGES], _prefix(model)
    for number, operator in enumerate(operators):
        operator.set_friendly_name(f"{prefix}{number}")
    computed = _computed(model)
    values: dict[str, tuple[str, ...]] = {}
    for operator in reversed(operators):
        own = sorted(name for port in operator.outputs() for name in port.get_names())
        behind = (values[name] for name in _readers(operator) if name in values)
        if operator.get_friendly_name() in computed:
            values[operator.get_friendly_name()] = tuple(own) or next(behind, ())
    return values


def executed_graph(compiled: openvino.CompiledModel, made_of: Mapping[str, tuple[str, ...]]) -> ExecutedGraph:
    """What a compiled model executes, each node with the values of ONNX that it was made of (``MADE_OF``).

    What depends on constants alone is computed once, when the model is compiled, and is a constant here. Values have
    names of their own, but for the inputs.

    Args:
        compiled: The model.
        made_of: As ``renamed`` gave it.
    """
    executed = compiled.get_runtime_model()
    model = onnx.ModelProto(ir_version=_IR_VERSION)
    model.opset_import.extend([helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)])
    graph, computed, prefix = model.graph, _computed(executed), _prefix(executed)
    types: dict[str, ValueType] = {}
    for operator in executed.get_ordered_ops():
        given = {_value(port, prefix): _type(port) for port in operator.outputs()}
        known = {name: found for name, found in given.items() if found is not None}
        kind = operator.get_type_name()
        if kind == "Parameter":
            graph.input.extend(onnx.ValueInfoProto(name=name) for name in given)
        elif kind == "Result":
            graph.output.append(onnx.ValueInfoProto(name=_value(operator.input_value(0), prefix)))
        elif operator.get_friendly_name() not in computed:
            graph.initializer.extend(_constant(name, *found) for name, found in known.items())
        else:
            # A constant without a type is that of an operand that is not given.
            read = [
                "" if port.get_element_type().is_dynamic() else _value(port, prefix) for port in operator.input_values()
            ]
            node = graph.node.add(op_type=_stated(operator, "layerType"), domain=_DOMAIN, input=read, output=given)
            node.name = node_name(node)
            labels = (_LABEL.fullmatch(name) for name in _stated(operator, "originalLayersNames").split(","))
            values = {value for label in labels if label for value in made_of.get(label[1], ())}
            node.attribute.append(helper.make_attribute(MADE_OF, sorted(values), attr_type=AttributeProto.STRINGS))
            types |= known
    return ExecutedGraph(model, types)


def _computed(model: openvino.Model) -> set[str]:
    """Names of the operators that depend on an input, or on none and are no constants, such as random numbers."""
    found: set[str] = set()
    for operator in model.get_ordered_ops():
        ports = operator.input_values()
        constant = operator.get_type_name() == "Constant" or _stated(operator, "layerType") == "Const"
        if any(port.get_node().get_friendly_name() in found for port in ports) or not (ports or constant):
            found.add(operator.get_friendly_name())
    return found


def _readers(operator: openvino.Node) -> Iterator[str]:
    for port in operator.outputs():
        yield from (reader.get_node().get_friendly_name() for reader in port.get_target_inputs())


def _stated(operator: openvino.Node, what: str) -> str:
    """What an operator of an executed graph states of itself; empty where it does not."""
    stated = operator.get_rt_info()
    return str(stated[what].astype(str)) if what in stated else ""


def _prefix(model: openvino.Model) -> str:
    """What names of ours begin with: it stands in no name of an input or output, so that none is like one of ours."""
    kept = [one.get_friendly_name() for one in model.get_ordered_ops() if one.get_type_name() in _EDGES]
    prefix = "~"
    while any(prefix in name for name in kept):
        prefix += "~"
    return prefix


def _value(port: openvino.Output, prefix: str) -> str:
    """The name of a value: an input's own, else one of its operator's place in the order of execution."""
    operator = port.get_node()
    if operator.get_type_name() == "Parameter":
        return str(operator.get_friendly_name())
    return f"{prefix}{_stated(operator, 'execOrder')}.{port.get_index()}"


def _type(port: openvino.Output) -> ValueType | None:
    """Element type and shape; None where ONNX has no such type, or the shape is not static."""
    element, shape = _TYPES.get(port.get_element_type().get_type_name()), port.get_partial_shape()
    return (element, tuple(shape.to_shape())) if element is not None and shape.is_static else None


def _constant(name: str, element: str, shape: tuple[int, ...]) -> TensorProto:
    """A constant without its values."""
    return TensorProto(name=name, data_type=element_number(element), dims=shape, data_location=TensorProto.EXTERNAL)
