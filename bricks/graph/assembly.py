"""Assembly of layers from typed nodes: state, inputs and canonical form of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import onnx
from onnx import numpy_helper

from ...errors import BrokenModel
from ...models.control_flow import fixed_trips, unknown_course
from ...models.subgraphs import bodies, captures, given_names, is_standard, plain_domain
from ...models.time_limit import in_time
from ..canonical import CanonicalForm, LayerSignature, canonical_form, source_form
from ..canonical.bodies import nameless_attributes
from ..canonical.draft import ABSENT, Slot
from ..canonical.roles import constant_role, find_schema
from ..encoding import encode_array, encode_tensor
from ..inference.shapes import Inference
from ..layer import Cost, Layer, LayerState, Operand, Role, TensorType
from ..operators import Kind, operator_of
from ..work import layer_cost

_NO_OPERAND = Operand("", None, Role.ABSENT)

_Types = tuple[TensorType | None, ...]
_COSTS: dict[tuple[CanonicalForm, _Types, tuple[int, ...]], Cost | None] = {}
"""Costs of layers, which repeat within and between models. Forms are compared by identity, as ``canonical_form`` caches
them."""


class Assembly:
    """The layers of one model.

    Attributes:
        layers: One per node, in file order.
        idle: Signature of each layer that is not live.

    Args:
        model: The skeleton's model.
        inference: Types and constants of its values.
        as_is: True for an executed graph: layers keep their form and outputs.

    Raises:
        BrokenModel: A value is read before it is defined, or defined twice.
    """

    def __init__(self, model: onnx.ModelProto, inference: Inference, *, as_is: bool = False) -> None:
        graph = model.graph
        self._as_is = as_is
        self._inference = inference
        self._nodes = list(graph.node)
        self._types = inference.types
        self._constants = inference.constants
        self._opsets = tuple(
            sorted({plain_domain(entry.domain): entry.version for entry in model.opset_import}.items())
        )
        self._opset = dict(self._opsets)
        self._captures = [captures(node) for node in graph.node]
        _check_order(graph, self._captures)
        self._read = self._values_read(graph)
        self._data: dict[str, bytes] = {}
        self.idle: dict[int, LayerSignature] = {}
        self.layers = tuple(
            [self._layer(*numbered) for numbered in enumerate(in_time(graph.node, "assembling layers"))]
        )

    @cached_property
    def _makers(self) -> dict[str, onnx.NodeProto]:
        return {name: node for node in self._nodes for name in node.output}

    def _values_read(self, graph: onnx.GraphProto) -> set[str]:
        """Return the values that the model's user or an operator that is not folded reads at inference."""
        read = {value.name for value in graph.output}
        for index, node in enumerate(graph.node):
            if index not in self._constants.folded:
                read.update(node.input)
                read.update(self._captures[index])
        return read

    def _layer(self, index: int, node: onnx.NodeProto) -> Layer:
        outputs = self._wanted(node)
        types = tuple([self._types.get(name) if name else None for name in outputs])
        signature = self._signature(index, node, types)
        folded = self._constants.folded.get(index)
        if folded is not None:
            return self._idle(index, signature, outputs, LayerState.FOLDED, folded)
        why = self._why_untyped(index, signature, outputs) or self._why_captive(index) or self._why_open(node)
        if not why:
            form = source_form(signature) if self._as_is else canonical_form(signature)
            why = form.problem
            if not why and form.bound and self._captures[index]:
                why = f"its body reads {self._captures[index][0]!r} and cannot be written at the canonical opset"
            if not why:
                layer = self._live(index, form, outputs, types)
                return self._costed(layer, signature) if self._as_is else layer
        return self._idle(index, signature, outputs, LayerState.SKIPPED, why)

    def _costed(self, layer: Layer, signature: LayerSignature) -> Layer:
        """Return a layer in source form with the cost of its canonical form, because formulas read canonical forms."""
        form = canonical_form(signature)
        if form.problem:
            return layer
        plain = self._live(layer.index, form, layer.outputs, layer.output_types)
        return dataclasses.replace(layer, cost=plain.cost)

    def _live(self, index: int, form: CanonicalForm, outputs: tuple[str, ...], types: _Types) -> Layer:
        layer = self._plain(index, form.slots, outputs, types, LayerState.LIVE)
        canonical = None
        if not form.bound:
            canonical = onnx.NodeProto()
            canonical.CopyFrom(form.node)
            canonical.input.extend([operand.value for operand in layer.operands])
            canonical.output.extend(outputs)
        return dataclasses.replace(
            layer,
            canonical=canonical,
            canonical_opsets=form.opsets,
            valid_opsets=form.valid,
            key=form.key,
            cost=_cost(form, canonical if canonical is not None else layer.node, layer.operands, types),
        )

    def _idle(
        self, index: int, signature: LayerSignature, outputs: tuple[str, ...], state: LayerState, reason: str
    ) -> Layer:
        self.idle[index] = signature
        layer = self._plain(index, signature.slots, outputs, signature.outputs, state)
        return dataclasses.replace(layer, reason=reason)

    def _plain(
        self, index: int, slots: Sequence[Slot], outputs: tuple[str, ...], types: _Types, state: LayerState
    ) -> Layer:
        """Return a layer without the fields that its canonical form determines."""
        node = self._nodes[index]
        operands = tuple([_operand(slot, position, node) for position, slot in enumerate(slots)])
        name = node.name or f"{node.op_type}_{index}"
        return Layer(index, name, node, self._own_opsets(node), operands, outputs, types, state)

    def _own_opsets(self, node: onnx.NodeProto) -> tuple[tuple[str, int], ...]:
        domain = plain_domain(node.domain)
        if any(bodies(node)):
            return self._opsets
        return ((domain, self._opset.get(domain, 1)),)

    def _wanted(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """Return outputs by slot, without unused optional ones."""
        named = node.output
        if len(named) == 1:
            return (named[0],)
        if self._as_is:
            used_slots = [slot for slot, name in enumerate(named) if name]
            return tuple(named[: max(used_slots, default=-1) + 1])
        domain = plain_domain(node.domain)
        schema = find_schema(domain, node.op_type, self._opset.get(domain, 1))
        if schema is None:
            return tuple(named)
        outputs = [name if name in self._read or not schema.may_omit(slot) else "" for slot, name in enumerate(named)]
        if not any(outputs):  # an unused layer makes all its outputs
            outputs = list(named)
        while outputs and not outputs[-1]:
            outputs.pop()
        return tuple(outputs)

    def _signature(self, index: int, node: onnx.NodeProto, types: _Types) -> LayerSignature:
        domain, op_type = plain_domain(node.domain), node.op_type
        slots = self._slots(domain, op_type, node)
        if any(bodies(node)):
            typed = self._inference.model.graph.node[index]
            typed = typed if typed.op_type == op_type else node  # folding may have replaced it by a Constant
            attributes = nameless_attributes(typed, self._captured(index))
            return LayerSignature(domain, op_type, self._opsets, attributes, slots, types)
        opset = self._opset.get(domain, 1)
        schema = find_schema(domain, op_type, opset)
        opsets = ((domain, schema.since if schema is not None else opset),)
        return LayerSignature(domain, op_type, opsets, nameless_attributes(node, {}), slots, types)

    def _slots(self, domain: str, op_type: str, node: onnx.NodeProto) -> tuple[Slot, ...]:
        slots = []
        types, constants = self._types, self._constants
        for index, name in enumerate(node.input):
            if not name:
                slots.append(ABSENT)
                continue
            value_type = types.get(name)
            if name not in constants:
                slots.append(Slot(Role.ACTIVATION, value_type, None, index))
                continue
            known = value_type is not None and constants.known(name)
            role = constant_role(domain, op_type, index, known=known, elements=value_type.elements if value_type else 0)
            slots.append(Slot(role, value_type, self._constant(name) if role is Role.CONSTANT else None, index))
        return tuple(slots)

    def _constant(self, name: str) -> bytes:
        """Return the value of a known constant, without a name."""
        data = self._data.get(name)
        if data is None:
            tensor = self._constants.tensors.get(name)
            data = encode_tensor(tensor) if tensor is not None else encode_array(self._constants.arrays[name])
            self._data[name] = data
        return data

    def _captured(self, index: int) -> dict[str, onnx.TensorProto]:
        """Return the known constants that a node's bodies read."""
        tensors: dict[str, onnx.TensorProto] = {}
        for name in self._captures[index]:
            if name in self._constants.tensors:
                tensors[name] = self._constants.tensors[name]
            elif name in self._constants.arrays:
                tensors[name] = numpy_helper.from_array(self._constants.arrays[name])
        return tensors

    def _why_untyped(self, index: int, signature: LayerSignature, outputs: tuple[str, ...]) -> str:
        """Return why a layer has no static type, with the name of the value; empty if all types are static."""
        node = self._nodes[index]
        for position, slot in enumerate(signature.slots):
            if slot.type is None and slot.role is not Role.ABSENT:
                return f"input {self._describe(node.input[position])}"
        for name, output_type in zip(outputs, signature.outputs, strict=True):
            if output_type is None and name:
                if find_schema(signature.domain, node.op_type, signature.opset) is None:
                    return f"unknown operator {signature.domain or 'ai.onnx'}:{node.op_type}: {self._describe(name)}"
                return f"output {self._describe(name)}"
        if operator_of(node).kind is Kind.SEQUENCE:
            return f"{node.op_type} is of lists or optional values: bricks read and write tensors only"
        return "" if any(outputs) else "it has no output"

    def _why_captive(self, index: int) -> str:
        """Return why a layer's bodies cannot leave the graph around them; empty if they can."""
        for name in self._captures[index]:
            if name not in self._constants:
                return f"its body reads {name!r} of the graph around it"
            if not self._constants.known(name):
                return f"its body reads the weight {name!r} of the graph around it"
        return ""

    def _why_open(self, node: onnx.NodeProto) -> str:
        """Return why nobody knows how often the body of a Loop runs; empty if the file tells, or there is no Loop.

        On made-up values it may run once or always: such a latency is no part of an estimate.
        """
        if node.op_type != "Loop" or not is_standard(node):
            return ""
        fixed = fixed_trips(node, self._inference.constants.scalar) is not None
        return "" if fixed else unknown_course(node.op_type)

    def _describe(self, name: str) -> str:
        description = self._inference.unknown.get(name, "no type")
        maker = self._makers.get(name)
        origin = f"from {maker.op_type} {maker.name!r}" if maker is not None and maker.name else ""
        if maker is not None and maker.name[1:] in maker.output:  # a name that a node got for a while
            origin = f"from {maker.op_type}"
        if description.startswith(("a ", "an ")):
            return f"{name!r} is {description}{f' ({origin})' if origin else ''}: bricks read and write tensors only"
        return f"{name!r} has no static type ({', '.join(filter(None, (description, origin)))})"


def _operand(slot: Slot, position: int, node: onnx.NodeProto) -> Operand:
    if slot.role is Role.ABSENT:
        return _NO_OPERAND
    value = f"%{position}" if slot.source is None else node.input[slot.source]
    return Operand(value, slot.type, slot.role, slot.data)


def _repeats(operands: tuple[Operand, ...]) -> tuple[int, ...]:
    """Return for each operand the first one that reads the same value; empty if all differ (x * x is not x * y)."""
    names = [operand.value for operand in operands]
    return tuple(map(names.index, names)) if len(set(names)) < len(names) else ()


def _cost(form: CanonicalForm, node: onnx.NodeProto, operands: tuple[Operand, ...], types: _Types) -> Cost | None:
    """Return the cost of a layer, which depends on its form and on operands with the same value."""
    decisive = (form, types, _repeats(operands))
    if decisive not in _COSTS:
        if len(_COSTS) >= 16384:  # bound the memory of long-running services
            _COSTS.clear()
        _COSTS[decisive] = layer_cost(node, operands, types)
    return _COSTS[decisive]


def _check_order(graph: onnx.GraphProto, captured: list[tuple[str, ...]]) -> None:
    """Refuse a graph with values that are read before their definition or defined twice."""
    defined = {*given_names(graph), ""}
    for index, node in enumerate(graph.node):
        for name in (*node.input, *captured[index]):
            if name not in defined:
                raise BrokenModel(
                    f"{node.op_type} {node.name or index} reads {name!r}, which nothing before it makes",
                    remedy="nodes must be in topological order and every input must exist",
                )
        for name in node.output:
            if name and name in defined:
                raise BrokenModel(
                    f"{node.op_type} {node.name or index} makes {name!r}, which exists already",
                    remedy="every value must have one producer",
                )
            defined.add(name)
    for value in graph.output:
        if value.name not in defined:
            raise BrokenModel(f"nothing makes the output {value.name!r}", remedy="check it with onnx.checker")
