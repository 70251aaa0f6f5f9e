"""Bodies of If, Loop and Scan without names, at the canonical opset.

A body may read values of the graph around it. Constants with known values move into the body as initializers. A body
that reads other outside values cannot leave its model (``graph`` skips the layer).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from ...models.subgraphs import captures, drop_unread, is_standard, outer_values, plain_domain, static_shape
from ..encoding import encode_tensor, tensor_type, type_of
from ..layer import Role, TensorType
from .draft import ABSENT, OpsetBound, Slot
from .roles import CONSTANT_ELEMENTS, is_deciding

# A layer's identity and its canonical form. Two layers with equal signatures are the same computation.


class LayerSignature(NamedTuple):
    """An operator without names.

    Attributes:
        domain: Empty for ONNX's own.
        op_type: The operator.
        opsets: Opset by domain, sorted, of the model (bodies may use several).
        attributes: Each as a serialised ``AttributeProto``, sorted by name; bodies have no names (``bodies.py``).
        slots: The inputs.
        outputs: Types of the used outputs by slot; None if unused (or, inside a body, unknown).
    """

    domain: str
    op_type: str
    opsets: tuple[tuple[str, int], ...]
    attributes: tuple[bytes, ...]
    slots: tuple[Slot, ...]
    outputs: tuple[TensorType | None, ...]

    @property
    def opset(self) -> int:
        """The opset of the operator's own domain."""
        return dict(self.opsets).get(self.domain, 1)


@dataclass(frozen=True, slots=True, eq=False)
class CanonicalForm:
    """The canonical form of a signature.

    Attributes:
        node: The node without input and output names.
        opsets: Opset by domain of ``node``.
        slots: The inputs of ``node``.
        key: SHA-256, hexadecimal.
        valid: The opsets of ONNX's own domain at which ``node`` has the same meaning, half-open; None for another
            domain.
        bound: True if ``node`` is the source's, because the canonical opset cannot express its meaning.
        problem: Why the operator cannot be a brick; empty if it can.
    """

    node: onnx.NodeProto
    opsets: tuple[tuple[str, int], ...]
    slots: tuple[Slot, ...]
    key: str
    valid: tuple[int, int] | None = None
    bound: bool = False
    problem: str = ""


def nameless_attributes(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> tuple[bytes, ...]:
    """Return a node's attributes, sorted by name, without documentation and without names in bodies.

    Args:
        node: The operator; its bodies may carry inferred types.
        constants: The outer constants that the bodies read, by name. Other outer values are numbered in reading order.
    """
    attributes = []
    for attribute in sorted(node.attribute, key=attrgetter("name")):
        if attribute.doc_string or attribute.type == onnx.AttributeProto.GRAPH:
            plain = onnx.AttributeProto()
            plain.CopyFrom(attribute)
            plain.ClearField("doc_string")
            if attribute.type == onnx.AttributeProto.GRAPH:
                plain.g.CopyFrom(_Renamer(constants).body(attribute.g, {}))
            attributes.append(plain.SerializeToString())
        else:
            attributes.append(attribute.SerializeToString())
    return tuple(attributes)


class _Renamer:
    """Numbers for the values of a body and of nested bodies."""

    def __init__(self, constants: Mapping[str, onnx.TensorProto]) -> None:
        self._constants = constants
        self._outer: dict[str, str] = {}
        self._count = 0

    def body(self, source: onnx.GraphProto, around: Mapping[str, str]) -> onnx.GraphProto:
        """Return the body without names; ``around`` maps values of enclosing bodies to their new names."""
        names = dict(around)
        target = onnx.GraphProto(name="body")
        for value in source.input:
            names[value.name] = self._next()
            target.input.append(_typed(names[value.name], value.type))
        input_names = {value.name for value in source.input}
        for tensor in source.initializer:
            if tensor.name not in input_names:  # an outer value may have the same name
                names[tensor.name] = self._next()
            self._keep(target, names[tensor.name], tensor)
        constants = ((node, _constant(node)) for node in source.node)
        tensors = {node.output[0]: tensor for node, tensor in constants if tensor is not None}
        read = [*(name for node in source.node for name in node.input), *(value.name for value in source.output)]
        results = {name for node in source.node for name in node.output}
        tensors |= {
            name: self._constants[name] for name in read if name in self._constants.keys() - names.keys() - results
        }
        for name, tensor in tensors.items():  # numbered as initializers, as on the next reading
            names[name] = self._next()
            self._keep(target, names[name], tensor)
        for node in source.node:
            if _constant(node) is not None:
                continue
            inputs = [self._name(name, names) for name in node.input]
            copy = target.node.add(op_type=node.op_type, domain=plain_domain(node.domain), input=inputs)
            for attribute in sorted(node.attribute, key=attrgetter("name")):
                plain = copy.attribute.add()
                plain.CopyFrom(attribute)
                plain.ClearField("doc_string")
                if attribute.type == onnx.AttributeProto.GRAPH:
                    plain.g.CopyFrom(self.body(attribute.g, names))
            for name in node.output:
                if name:
                    names[name] = self._next()
                copy.output.append(names[name] if name else "")
        types = {value.name: value.type for value in source.value_info}
        for name, kind in types.items():
            if name in names:
                target.value_info.append(_typed(names[name], kind))
        target.output.extend(_typed(self._name(value.name, names), value.type) for value in source.output)
        return target

    def _next(self) -> str:
        self._count += 1
        return f"b{self._count - 1}"

    def _name(self, name: str, names: Mapping[str, str]) -> str:
        if not name or name in names:
            return names.get(name, "")
        return self._outer.setdefault(name, f"outer{len(self._outer)}")

    def _keep(self, target: onnx.GraphProto, name: str, tensor: onnx.TensorProto) -> None:
        target.initializer.append(onnx.TensorProto.FromString(encode_tensor(tensor)))
        target.initializer[-1].name = name


def _typed(name: str, kind: onnx.TypeProto) -> onnx.ValueInfoProto:
    """Return a value with its type, without names of dimensions."""
    value = onnx.ValueInfoProto(name=name)
    value.type.CopyFrom(kind)
    value.type.ClearField("denotation")
    for dim in value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ():
        dim.ClearField("denotation")
        if dim.HasField("dim_param"):
            dim.ClearField("dim_param")
    return value


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the tensor of a Constant node; None for other nodes, and for sparse or text constants, which remain."""
    if node.op_type != "Constant" or not is_standard(node):
        return None
    attribute = node.attribute[0]
    match attribute.name:
        case "value":
            tensor: onnx.TensorProto = attribute.t
            return tensor
        case "value_float" | "value_floats" | "value_int" | "value_ints":
            dtype = "float32" if "float" in attribute.name else "int64"
            value = onnx.helper.get_attribute_value(attribute)
            return numpy_helper.from_array(np.asarray(value, dtype))
        case _:
            return None


def upgrade_body(
    body: onnx.GraphProto, opsets: tuple[tuple[str, int], ...], form: Callable[[LayerSignature], CanonicalForm]
) -> tuple[onnx.GraphProto, dict[str, int]]:
    """Bring every node of a nameless body into canonical form.

    Returns:
        The body, and its opsets by domain.

    Raises:
        OpsetBound: An operator in the body exists only at its own opset.
        ValueError: The body contains weights, or an operator in it cannot be a brick.
    """
    upgraded, needed = _BodyUpgrade(opsets, form).body(body)
    if outer_values(upgraded):  # a nested body is renamed with the outer one
        return upgraded, needed
    return _Renamer({}).body(upgraded, {}), needed  # close gaps in the numbering


class _BodyUpgrade:
    """A conversion of a body and its nested bodies to canonical form."""

    def __init__(self, opsets: tuple[tuple[str, int], ...], form: Callable[[LayerSignature], CanonicalForm]) -> None:
        self._opsets = opsets
        self._form = form

    def body(self, source: onnx.GraphProto) -> tuple[onnx.GraphProto, dict[str, int]]:
        _refuse_weights(source)
        values: dict[str, Slot] = {}
        for value in (*source.input, *source.value_info, *source.output):
            values[value.name] = Slot(Role.ACTIVATION, _static(value.type))
        for tensor in source.initializer:
            values[tensor.name] = Slot(Role.CONSTANT, type_of(tensor), encode_tensor(tensor))
        needed: dict[str, int] = {}
        target = onnx.GraphProto(name=source.name, input=source.input, output=source.output)
        target.initializer.extend(source.initializer)
        read = {value.name for value in source.output}.union(*(node.input for node in source.node))
        for node in source.node:
            form = self._form(self._signature(node, values, read))
            if form.problem:
                raise ValueError(f"{node.op_type} in its body: {form.problem}")
            if form.bound:
                raise OpsetBound(f"{node.op_type} in its body")
            for domain, opset in form.opsets:
                needed[domain] = max(opset, needed.get(domain, 1))
            copy = target.node.add()
            copy.CopyFrom(form.node)
            copy.input.extend(_input(index, slot, node, target) for index, slot in enumerate(form.slots))
            copy.output.extend(node.output)
        drop_unread(target)
        return target, needed

    def _signature(self, node: onnx.NodeProto, values: Mapping[str, Slot], read: set[str]) -> LayerSignature:
        slots = []
        for index, name in enumerate(node.input):
            if not name:
                slots.append(ABSENT)
                continue
            slot = values.get(name, Slot(Role.ACTIVATION))
            slots.append(slot._replace(source=index))
        outputs: list[TensorType | None] = [
            values.get(name, ABSENT).type if name in read else None for name in node.output
        ]
        return LayerSignature(
            node.domain,
            node.op_type,
            self._opsets,
            tuple(attribute.SerializeToString() for attribute in node.attribute),
            tuple(slots),
            tuple(outputs),
        )


def _input(index: int, slot: Slot, node: onnx.NodeProto, target: onnx.GraphProto) -> str:
    """Return the name of an input of a canonical node; constants made by a rule become initializers of the body."""
    if slot.role is Role.ABSENT:
        return ""
    if slot.source is not None:
        return str(node.input[slot.source])
    tensor = target.initializer.add()
    tensor.ParseFromString(slot.data or b"")
    # Unique, because all bodies share one numbering of outputs.
    tensor.name = f"{next(filter(None, node.output))}c{index}"
    return str(tensor.name)


def _refuse_weights(body: onnx.GraphProto) -> None:
    """Raise ``ValueError`` if a body contains large constants that do not decide its function."""
    large = {
        tensor.name
        for tensor in body.initializer
        if (static_type := type_of(tensor)) is None or static_type.elements > CONSTANT_ELEMENTS
    }
    for node in body.node:
        for index, name in enumerate(node.input):
            if name in large and not is_deciding(node.domain, node.op_type, index):
                raise ValueError("its body holds weights, which a suite may not carry")
        if any(name in large for name in captures(node)):
            raise ValueError("its body holds weights, which a suite may not carry")
    if body.sparse_initializer:
        raise ValueError("its body holds a sparse tensor")


def _static(kind: onnx.TypeProto) -> TensorType | None:
    shape = static_shape(kind)
    return None if shape is None else tensor_type(kind.tensor_type.elem_type, shape)
