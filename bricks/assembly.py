"""Assembly: from typed nodes to layers. Which state each is in, what its inputs are, and its canonical form."""

from __future__ import annotations

import hashlib
import json

import onnx
from onnx import numpy_helper

from ..errors import BrokenModel
from .canonical import Form, Signature, canonical_form
from .canonical.bodies import nameless_attributes
from .canonical.draft import ABSENT, Slot
from .canonical.roles import constant_role
from .canonical.schemas import find_schema
from .constants import encode_array, encode_tensor
from .costs import Cost, layer_cost
from .layer import Layer, LayerState, Operand, Role
from .shapes import Inference
from .subgraphs import bodies, captures
from .tensor import TensorType

__all__ = ["Assembly"]

_NO_OPERAND = Operand("", None, Role.ABSENT)


class Assembly:
    """Makes the layers of one model.

    Attributes:
        layers: One per node, in file order.
        digests: One per layer: its key, or for a layer that is not live a hash of what is known of it.

    Args:
        model: The skeleton's model.
        inference: What is known of its values.

    Raises:
        BrokenModel: A value is read before it is defined, or defined twice.
    """

    def __init__(self, model: onnx.ModelProto, inference: Inference) -> None:
        graph = model.graph
        self._inference = inference
        self._types = inference.types
        self._constants = inference.constants
        self._opsets = tuple(sorted({_domain(entry.domain): entry.version for entry in model.opset_import}.items()))
        self._opset = dict(self._opsets)
        self._captures = [captures(node) for node in graph.node]
        _check_order(graph, self._captures)
        self._read = self._values_read(graph)
        self._data: dict[str, bytes] = {}
        self._costs: dict[str, Cost | None] = {}
        self._makers = {name: node for node in graph.node for name in node.output}
        layers, digests = [], []
        for index, node in enumerate(graph.node):
            layer, digest = self._layer(index, node)
            layers.append(layer)
            digests.append(digest)
        self.layers = tuple(layers)
        self.digests = tuple(digests)

    def _values_read(self, graph: onnx.GraphProto) -> set[str]:
        """Values that something needs at inference: an operator that is not folded, or the model's user."""
        read = {value.name for value in graph.output}
        for index, node in enumerate(graph.node):
            if index not in self._constants.folded:
                read.update(node.input)
                read.update(self._captures[index])
        return read

    def _layer(self, index: int, node: onnx.NodeProto) -> tuple[Layer, str]:
        outputs = self._wanted(node)
        types = tuple([self._types.get(name) if name else None for name in outputs])
        signature = self._signature(index, node, types)
        why = self._constants.folded.get(index)
        if why is not None:
            return self._idle(index, node, signature, outputs, LayerState.FOLDED, why)
        why = self._why_untyped(index, node, signature, outputs)
        form = None if why else canonical_form(signature)
        if form is not None:
            why = form.problem
            if not why and form.node is None and self._captures[index]:
                why = f"its body reads {self._captures[index][0]!r} and cannot be written at the canonical opset"
        if form is None or why:
            return self._idle(index, node, signature, outputs, LayerState.SKIPPED, why)
        return self._live(index, node, form, outputs, types), form.key

    def _live(
        self, index: int, node: onnx.NodeProto, form: Form, outputs: tuple[str, ...],
        types: tuple[TensorType | None, ...],
    ) -> Layer:  # fmt: skip
        operands = tuple([_operand(slot, position, node) for position, slot in enumerate(form.slots)])
        canonical = None
        if form.node is not None:
            canonical = onnx.NodeProto()
            canonical.CopyFrom(form.node)
            canonical.input.extend([operand.value for operand in operands])
            canonical.output.extend(outputs)
        return Layer(
            index=index,
            name=node.name or f"{node.op_type}_{index}",
            node=node,
            opsets=self._own_opsets(node),
            canonical=canonical,
            canonical_opsets=form.opsets,
            operands=operands,
            outputs=outputs,
            output_types=types,
            key=form.key,
            cost=self._cost(form.key, canonical if canonical is not None else node, operands, types),
            state=LayerState.LIVE,
        )

    def _idle(
        self, index: int, node: onnx.NodeProto, signature: Signature, outputs: tuple[str, ...], state: LayerState,
        reason: str,
    ) -> tuple[Layer, str]:  # fmt: skip
        layer = Layer(
            index=index,
            name=node.name or f"{node.op_type}_{index}",
            node=node,
            opsets=self._own_opsets(node),
            canonical=None,
            canonical_opsets=(),
            operands=tuple([_operand(slot, position, node) for position, slot in enumerate(signature.slots)]),
            outputs=outputs,
            output_types=signature.outputs,
            key="",
            cost=None,
            state=state,
            reason=reason,
        )
        return layer, _digest(signature)

    def _cost(
        self, key: str, node: onnx.NodeProto, operands: tuple[Operand, ...], types: tuple[TensorType | None, ...]
    ) -> Cost | None:
        """The cost of a layer; a value in two slots counts once, so that the pattern is part of what decides it."""
        names = [operand.value for operand in operands]
        pattern = "".join(map(str, map(names.index, names))) if len(set(names)) < len(names) else ""
        found = key + pattern
        if found not in self._costs:
            self._costs[found] = layer_cost(node, operands, types)
        return self._costs[found]

    def _own_opsets(self, node: onnx.NodeProto) -> tuple[tuple[str, int], ...]:
        domain = _domain(node.domain)
        if next(bodies(node), None) is not None:
            return self._opsets
        return ((domain, self._opset.get(domain, 1)),)

    def _wanted(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """Outputs by slot, without the optional ones that nothing needs."""
        named = node.output
        if len(named) == 1:
            return (named[0],)
        domain = _domain(node.domain)
        schema = find_schema(domain, node.op_type, self._opset.get(domain, 1))
        if schema is None:
            return tuple(named)
        wanted = [name if name in self._read or not schema.may_omit(slot) else "" for slot, name in enumerate(named)]
        if not any(wanted):  # nothing needs it, yet it is a layer: it makes what the file says
            wanted = list(named)
        while wanted and not wanted[-1]:
            wanted.pop()
        return tuple(wanted)

    def _signature(self, index: int, node: onnx.NodeProto, types: tuple[TensorType | None, ...]) -> Signature:
        domain, op_type = _domain(node.domain), node.op_type
        slots = tuple([self._slot(domain, op_type, slot, name) for slot, name in enumerate(node.input)])
        typed = self._inference.model.graph.node[index]
        if next(bodies(node), None) is not None:
            typed = typed if typed.op_type == op_type else node  # folding may have put a Constant there
            attributes = nameless_attributes(typed, self._captured(index))
            return Signature(domain, op_type, self._opsets, attributes, slots, types)
        opset = self._opset.get(domain, 1)
        schema = find_schema(domain, op_type, opset)
        opsets = ((domain, schema.since if schema is not None else opset),)
        return Signature(domain, op_type, opsets, nameless_attributes(node, {}), slots, types)

    def _slot(self, domain: str, op_type: str, slot: int, name: str) -> Slot:
        if not name:
            return ABSENT
        found = self._types.get(name)
        if name not in self._constants:
            return Slot(Role.ACTIVATION, found, None, slot)
        known = found is not None and self._constants.known(name)
        role = constant_role(domain, op_type, slot, known=known, elements=found.elements if found else 0)
        return Slot(role, found, self._constant(name) if role is Role.CONSTANT else None, slot)

    def _constant(self, name: str) -> bytes:
        """The value of a known constant, without a name."""
        data = self._data.get(name)
        if data is None:
            tensor = self._constants.tensors.get(name)
            data = encode_tensor(tensor) if tensor is not None else encode_array(self._constants.arrays[name])
            self._data[name] = data
        return data

    def _captured(self, index: int) -> dict[str, onnx.TensorProto]:
        """The known constants that a node's bodies read."""
        found: dict[str, onnx.TensorProto] = {}
        for name in self._captures[index]:
            if name in self._constants.tensors:
                found[name] = self._constants.tensors[name]
            elif name in self._constants.arrays:
                found[name] = numpy_helper.from_array(self._constants.arrays[name])
        return found

    def _why_untyped(self, index: int, node: onnx.NodeProto, signature: Signature, outputs: tuple[str, ...]) -> str:
        """Why a layer has no static type, naming the value; empty where it has all."""
        for slot, name in zip(signature.slots, node.input, strict=True):
            if slot.type is None and slot.role is not Role.ABSENT:
                return f"input {self._describe(name)}"
        for name, found in zip(outputs, signature.outputs, strict=True):
            if name and found is None:
                domain = _domain(node.domain)
                if find_schema(domain, node.op_type, self._opset.get(domain, 1)) is None:
                    return f"unknown operator {domain or 'ai.onnx'}:{node.op_type}: output {self._describe(name)}"
                return f"output {self._describe(name)}"
        for name in self._captures[index]:
            if name not in self._constants:
                return f"its body reads {name!r} of the graph around it"
            if not self._constants.known(name):
                return f"its body reads the weight {name!r} of the graph around it"
        if not any(outputs):
            return "it has no output"
        return ""

    def _describe(self, name: str) -> str:
        known = self._inference.unknown.get(name, "no type")
        maker = self._makers.get(name)
        origin = f", from {maker.op_type} {maker.name!r}" if maker is not None and maker.name else ""
        return f"{name!r} has no static type ({known}{origin})"


def _operand(slot: Slot, position: int, node: onnx.NodeProto) -> Operand:
    if slot.role is Role.ABSENT:
        return _NO_OPERAND
    value = f"%{position}" if slot.source is None else node.input[slot.source]
    return Operand(value, slot.type, slot.role, slot.data)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _check_order(graph: onnx.GraphProto, captured: list[tuple[str, ...]]) -> None:
    """Refuse a graph whose values are not each defined once, before they are read."""
    defined = {value.name for value in graph.input}
    defined.update(tensor.name for tensor in graph.initializer)
    defined.update(tensor.values.name for tensor in graph.sparse_initializer)
    defined.add("")
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


def _digest(signature: Signature) -> str:
    """Hash of a layer that has no key: what is known of it, free of names."""
    description = [
        signature.domain,
        signature.op_type,
        signature.opsets,
        [attribute.hex() for attribute in signature.attributes],
        [[slot.role.value, _spell(slot.type), slot.data.hex() if slot.data else None] for slot in signature.slots],
        [_spell(found) for found in signature.outputs],
    ]
    return hashlib.sha256(json.dumps(description, separators=(",", ":")).encode()).hexdigest()


def _spell(found: TensorType | None) -> list[object] | None:
    return None if found is None else [found.dtype, found.shape]
