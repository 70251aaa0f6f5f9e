"""The canonical form of an operator and its key, computed once per signature and process."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import onnx

from ..layer import Role, TensorType
from .bodies import CanonicalForm, LayerSignature, upgrade_body
from .draft import CanonicalDraft, OpsetBound, Slot, Value, find_rule, read_value, spell_value, write_attribute
from .roles import ANY, CANONICAL_OPSET, CONSTANT_ELEMENTS, Schema, find_schema, is_deciding, versions_around
from .spatial import DILATED_AVERAGES

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode

_WITHOUT_EFFECT = ("consumed_inputs",)
"""Attribute of ONNX's first opsets that named buffers for a framework to reuse."""
_RUNTIME_OPSETS = {"LayerNormalization": 17}
"""Operators that runtimes defined in ONNX's domain before ONNX did, with the first ONNX opset of the same operator."""
_OTHER_KERNELS = {"AveragePool": DILATED_AVERAGES}
"""Opset since which runtimes use another kernel for an operator. Older operators stay before it.

ONNX Runtime 1.31 takes 5 to 10 times as long for an AveragePool that allows dilation. Version 1.20.1 keeps it out of
its channel-blocked layout."""


@lru_cache(maxsize=16384)
def canonical_form(signature: LayerSignature, *, in_body: bool = False) -> CanonicalForm:
    """Bring an operator into canonical form.

    Operators of ONNX's own domain are written for ``CANONICAL_OPSET``. Operators that ONNX defined or changed later are
    written for the opset of their version. An operator from before a change of kernels (``_OTHER_KERNELS``) is written
    for the last opset before that change. Other domains keep the source's form. If the canonical opset cannot express
    the source's meaning, the form is the source's and the key contains its version.

    Args:
        signature: The operator.
        in_body: True for an operator in a body; all of these have the opset of the operator around them.
    """
    attributes = [onnx.AttributeProto.FromString(data) for data in signature.attributes]
    try:
        return _form(signature, attributes, in_body=in_body)
    except (LookupError, ValueError, TypeError, ArithmeticError) as error:
        # Rules assume a legal operator. Every exception of an illegal one is caught here.
        return _hopeless(signature, f"not legal: {error}")


@lru_cache(maxsize=16384)
def source_form(signature: LayerSignature) -> CanonicalForm:
    """Return the form of a node of an executed graph, which has to run exactly as written.

    Nothing is filled in, resolved or brought to another opset. The file may import any opset from the operator's own
    version to that of its graph. The key contains the version.
    """
    attributes = [onnx.AttributeProto.FromString(data) for data in signature.attributes]
    problem = _payload(attributes)
    if problem:
        return _hopeless(signature, problem)
    domain, op_type = signature.domain, signature.op_type
    schema = find_schema(domain, op_type, signature.opset)
    if schema is not None:
        version, defaults = schema.since, dict(schema.defaults)
    else:  # a runtime's own operator; those in ONNX's domain are there at any opset
        version, defaults = signature.opset if domain else 1, {}
    described = {**defaults, **{attribute.name: read_value(attribute) for attribute in attributes}}
    present_slots = [index for index, slot in enumerate(signature.slots) if slot.role is not Role.ABSENT]
    slots = signature.slots[: max(present_slots, default=-1) + 1]
    problem = _unknown_decider(domain, op_type, slots)
    return _as_written(
        signature._replace(slots=slots), attributes, version, described, bound=not domain, problem=problem
    )


def _as_written(
    signature: LayerSignature,
    attributes: list[onnx.AttributeProto],
    version: int | None,
    described: Mapping[str, Value],
    *,
    bound: bool = False,
    problem: str = "",
) -> CanonicalForm:
    """Return the form of an operator in the source's spelling.

    Args:
        signature: The operator.
        attributes: Its attributes. If they contain bodies, the form keeps the opsets of the model.
        version: The version that enters the key; None for no version.
        described: Values of attributes that enter the key.
        bound: As in ``CanonicalForm``.
        problem: As in ``CanonicalForm``.
    """
    node = onnx.NodeProto(op_type=signature.op_type, domain=signature.domain, attribute=attributes)
    opsets = signature.opsets if _has_bodies(attributes) else ((signature.domain, version or CANONICAL_OPSET),)
    key = _key(node, version, described, signature.slots, signature.outputs)
    return CanonicalForm(node, opsets, signature.slots, key, _valid(signature, attributes), bound, problem)


def _hopeless(signature: LayerSignature, problem: str) -> CanonicalForm:
    return CanonicalForm(onnx.NodeProto(), (), signature.slots, "", bound=True, problem=problem)


def _form(signature: LayerSignature, attributes: list[onnx.AttributeProto], *, in_body: bool) -> CanonicalForm:
    problem = _payload(attributes)
    if problem:
        return _hopeless(signature, problem)
    values = {attribute.name: read_value(attribute) for attribute in attributes}
    schema = find_schema(signature.domain, signature.op_type, signature.opset)
    if schema is None or signature.domain:
        # The source's form with sorted attributes, for another domain or an operator unknown to ONNX.
        domain, op_type = signature.domain, signature.op_type
        if not domain and op_type in _RUNTIME_OPSETS:
            return canonical_form(signature._replace(opsets=(("", _RUNTIME_OPSETS[op_type]),)))
        if schema is not None:
            version: int | None = schema.since
            values = {**schema.defaults, **values}
        else:
            version = signature.opset if domain else None
        return _as_written(signature, attributes, version, values)
    for target in _targets(schema, signature.op_type, in_body=in_body):
        draft = CanonicalDraft(
            signature.op_type, schema.since, {**schema.defaults, **values}, list(signature.slots), signature.outputs
        )
        try:
            return _write(draft, schema, target, signature)
        except OpsetBound:
            continue
    return _bound(signature, attributes, values, schema)


def _bound(
    signature: LayerSignature, attributes: list[onnx.AttributeProto], values: dict[str, Value], schema: Schema
) -> CanonicalForm:
    """Return the source's form, for an operator that the canonical opset cannot express."""
    described = {name: value for name, value in {**schema.defaults, **values}.items() if name not in _WITHOUT_EFFECT}
    problem = _unknown_decider("", signature.op_type, signature.slots)
    return _as_written(signature, attributes, schema.since, described, bound=True, problem=problem)


def _targets(schema: Schema, op_type: str, *, in_body: bool) -> list[Schema]:
    """Return the versions to try: first that at the canonical opset, then the source's own if it is newer."""
    changed = _OTHER_KERNELS.get(op_type, 0)
    older = schema.since < changed and not in_body
    canonical = find_schema("", op_type, changed - 1 if older else CANONICAL_OPSET)
    targets = [canonical] if canonical is not None else []
    if schema.since > CANONICAL_OPSET:
        targets.append(schema)
    return targets


def _write(draft: CanonicalDraft, source: Schema, target: Schema, signature: LayerSignature) -> CanonicalForm:
    """Apply the rule of an operator and write it for a version of its schema.

    Raises:
        OpsetBound: The version cannot express its meaning.
    """
    rule = find_rule(draft.op_type)
    if rule is not None:
        rule(draft)
    if draft.op_type != signature.op_type:
        target = find_schema("", draft.op_type, CANONICAL_OPSET) or target
    _fit_attributes(draft, source, target)
    while draft.slots and draft.slots[-1].role is Role.ABSENT:
        draft.slots.pop()
    slots = tuple(draft.slots)
    if target.since < source.since:
        _check_types(target, slots, draft.outputs)
    version = target.since if target.since > CANONICAL_OPSET else None
    _, until = versions_around("", draft.op_type, target.since)
    older = until <= CANONICAL_OPSET
    opsets = {"": version or (until - 1 if older else CANONICAL_OPSET)}
    valid = _since_alike(draft, target, slots), until if older else ANY
    attributes = {**target.defaults, **draft.attributes}
    for name, value in attributes.items():
        if isinstance(value, onnx.GraphProto):
            attributes[name], needed = upgrade_body(value, signature.opsets, partial(canonical_form, in_body=True))
            for domain, opset in needed.items():
                opsets[domain] = max(opset, opsets.get(domain, 1))
            valid = opsets[""], ANY
    node = onnx.NodeProto(op_type=draft.op_type)
    for name in sorted(attributes):
        write_attribute(node, name, attributes[name], target.kinds[name])
    return CanonicalForm(
        node,
        tuple(sorted(opsets.items())),
        slots,
        _key(node, version, attributes, slots, draft.outputs),
        valid,
        problem=_unknown_decider("", draft.op_type, slots),
    )


def _fit_attributes(draft: CanonicalDraft, source: Schema, target: Schema) -> None:
    """Remove attributes that another version does not know, if the meaning stays the same.

    Raises:
        OpsetBound: The meaning would change.
    """
    for name in _WITHOUT_EFFECT:
        draft.pop(name)
    for name in draft.attributes.keys() - target.kinds.keys():
        if name not in source.kinds:
            draft.pop(name)  # made explicit by a rule; unknown to both versions
            continue
        if target.since > source.since or source.defaults.get(name) != draft.attributes[name]:
            raise OpsetBound(f"attribute {name}")
        draft.pop(name)  # added by a newer version, at its default


def _since_alike(draft: CanonicalDraft, version: Schema, slots: tuple[Slot, ...]) -> int:
    """Return the first opset from which the parts of an operator that it uses stay the same up to a later version.

    Types and attributes that were added later may be missing; a brick omits these attributes.
    """
    while version.since > 1:
        older = find_schema("", draft.op_type, version.since - 1)
        if older is None or not older.reads_as(version, draft.attributes):
            break
        try:
            _check_types(older, slots, draft.outputs)
        except OpsetBound:
            break
        version = older
    return version.since


def _check_types(target: Schema, slots: tuple[Slot, ...], outputs: tuple[TensorType | None, ...]) -> None:
    """Raise ``OpsetBound`` if an older version does not accept the element types of a newer operator."""
    for index, slot in enumerate(slots):
        if slot.type is not None and not target.takes(index, slot.type.dtype):
            raise OpsetBound(f"input {index} as {slot.type.dtype}")
    for index, output in enumerate(outputs):
        if output is not None and not target.gives(index, output.dtype):
            raise OpsetBound(f"output {index} as {output.dtype}")


def _valid(signature: LayerSignature, attributes: list[onnx.AttributeProto]) -> tuple[int, int] | None:
    """Return the opsets of ONNX's own domain, half-open, with the same meaning of an operator in source form."""
    if _has_bodies(attributes):
        opset = dict(signature.opsets).get("", 1)
        return opset, opset + 1
    if signature.domain:
        return None
    schema = find_schema("", signature.op_type, signature.opset)
    return versions_around("", signature.op_type, schema.since) if schema is not None else (1, ANY)


def _has_bodies(attributes: list[onnx.AttributeProto]) -> bool:
    return any(attribute.type == onnx.AttributeProto.GRAPH for attribute in attributes)


def _payload(attributes: list[onnx.AttributeProto]) -> str:
    """Return why the attributes hold data that a suite must not contain; empty if they do not.

    Trees, vocabularies and similar attributes are weights of their operators.
    """
    for attribute in attributes:
        match attribute.type:
            case onnx.AttributeProto.FLOATS:
                count = len(attribute.floats)
            case onnx.AttributeProto.STRINGS:
                count = len(attribute.strings)
            case onnx.AttributeProto.TENSOR | onnx.AttributeProto.TENSORS:
                count = max(math.prod(tensor.dims) for tensor in (attribute.t, *attribute.tensors))
            case onnx.AttributeProto.SPARSE_TENSOR | onnx.AttributeProto.SPARSE_TENSORS:
                return f"attribute {attribute.name} is a sparse tensor"
            case _:
                continue
        if count > CONSTANT_ELEMENTS:
            return f"attribute {attribute.name} holds {count} values, which a suite may not carry"
    return ""


def _unknown_decider(domain: str, op_type: str, slots: tuple[Slot, ...]) -> str:
    for index, slot in enumerate(slots):
        if slot.role is Role.WEIGHT and is_deciding(domain, op_type, index):
            return f"the values of input {index}, which decide the work of {op_type}, are not known"
    return ""


def _key(
    node: onnx.NodeProto,
    version: int | None,
    attributes: Mapping[str, Value],
    slots: tuple[Slot, ...],
    outputs: tuple[TensorType | None, ...],
) -> str:
    """Return the key of a form, independent of names and attribute order."""
    spelt = [[name, spell_value(attributes[name])] for name in sorted(attributes)]
    return _hash((node.domain, node.op_type, version), spelt, slots, outputs)


def hash_signature(signature: LayerSignature) -> str:
    """Return the SHA-256 of an operator in source form: the identity of a layer without a key."""
    attributes = [attribute.hex() for attribute in signature.attributes]
    return _hash(signature[:3], attributes, signature.slots, signature.outputs)


def _hash(
    what: tuple[object, ...], attributes: list[Any], slots: tuple[Slot, ...], outputs: tuple[TensorType | None, ...]
) -> str:
    """Return the SHA-256 of a description as JSON, which is the same in every process."""
    inputs = [[slot.role.value, *_spell_type(slot.type), slot.data.hex() if slot.data else None] for slot in slots]
    description = [*what, attributes, inputs, [_spell_type(output) for output in outputs]]
    return hashlib.sha256(_ENCODE(description).encode()).hexdigest()


def _spell_type(value_type: TensorType | None) -> tuple[str | None, tuple[int, ...] | None]:
    return (None, None) if value_type is None else (value_type.dtype, value_type.shape)
