"""The canonical form of an operator, and its key: found once per signature and process."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import lru_cache, partial

import onnx

from ..layer import Role, TensorType
from .bodies import CanonicalForm, LayerSignature, upgrade_body
from .draft import CanonicalDraft, OpsetBound, Slot, Value, find_rule, read_value, spell_value, write_attribute
from .roles import ANY, CANONICAL_OPSET, CONSTANT_ELEMENTS, Schema, find_schema, is_deciding, versions_around
from .spatial import DILATED_AVERAGES

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode

_WITHOUT_EFFECT = ("consumed_inputs",)
"""Attributes of ONNX's first opsets that named the buffers which a framework may reuse."""
_RUNTIME_OPSETS = {"LayerNormalization": 17}
"""Operators that runtimes took in ONNX's domain before ONNX had them, with the first opset that has the same."""
_OTHER_KERNELS = {"AveragePool": DILATED_AVERAGES}
"""Since which opset runtimes compute an operator with another kernel: what a model has from before stays before it.

ONNX Runtime 1.31 takes five to ten times as long for an AveragePool that could be dilated, and 1.20.1 lays none out in
blocks of channels."""


@lru_cache(maxsize=16384)
def canonical_form(signature: LayerSignature, *, in_body: bool = False) -> CanonicalForm:
    """Bring an operator into canonical form.

    Operators of ONNX's own domain are written for ``CANONICAL_OPSET``; those that came later, or changed their
    meaning later, for the opset of their version, and those that a runtime computes with another kernel since some
    opset, for the last one before, where the source is from before. Other domains keep the source's form. Where the
    source's meaning cannot be written at the canonical opset, the form is the source's and the key says its version.

    Args:
        signature: The operator.
        in_body: Whether it is one of a body, all of which have the opset of the operator around them.
    """
    attributes = [onnx.AttributeProto.FromString(data) for data in signature.attributes]
    try:
        return _form(signature, attributes, in_body=in_body)
    except (LookupError, ValueError, TypeError, ArithmeticError) as error:
        # Rules trust that an operator is legal. One that is not ends here, whatever a rule tripped over.
        return _hopeless(signature, f"not legal: {error}")


@lru_cache(maxsize=16384)
def source_form(signature: LayerSignature) -> CanonicalForm:
    """The form of an operator that has to run exactly as it is written: a node of the graph that a runtime executes.

    Nothing is filled in, resolved or brought to another opset. The file may import any opset from the operator's own
    version up to that of its graph; the key says the version.
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
    given = [index for index, slot in enumerate(signature.slots) if slot.role is not Role.ABSENT]
    slots = signature.slots[: max(given, default=-1) + 1]
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
    """The form of an operator that is not brought to another spelling.

    Args:
        signature: The operator.
        attributes: Its attributes; those of a node with bodies keep the opsets of the model.
        version: Its version, which enters the key; None: no version does.
        described: Values of attributes that enter the key.
        bound: As of the form.
        problem: As of the form.
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
        return _foreign(signature, attributes, values, schema)
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
    """The form of an operator whose meaning cannot be written at the canonical opset: the source's."""
    described = {name: value for name, value in {**schema.defaults, **values}.items() if name not in _WITHOUT_EFFECT}
    problem = _unknown_decider("", signature.op_type, signature.slots)
    return _as_written(signature, attributes, schema.since, described, bound=True, problem=problem)


def _targets(schema: Schema, op_type: str, *, in_body: bool) -> list[Schema]:
    """The versions to try: the one at the canonical opset, then the source's own where that is newer."""
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
        OpsetBound: Its meaning cannot be said there.
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
    """Take out what another version does not know, where that changes nothing.

    Raises:
        OpsetBound: It changes something.
    """
    for name in _WITHOUT_EFFECT:
        draft.pop(name)
    for name in draft.attributes.keys() - target.kinds.keys():
        if name not in source.kinds:
            draft.pop(name)  # what a rule made explicit, and neither version knows
            continue
        if target.since > source.since or source.defaults.get(name) != draft.attributes[name]:
            raise OpsetBound(f"attribute {name}")
        draft.pop(name)  # what a newer version added, at its default


def _since_alike(draft: CanonicalDraft, version: Schema, slots: tuple[Slot, ...]) -> int:
    """The first opset whose version of an operator differs from a later one's in nothing that it uses.

    Types and attributes that came later may be missing; a brick leaves such an attribute out.
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
    """Refuse to write a newer operator for an older version that does not take its element types."""
    for index, slot in enumerate(slots):
        if slot.type is not None and not target.takes(index, slot.type.dtype):
            raise OpsetBound(f"input {index} as {slot.type.dtype}")
    for index, output in enumerate(outputs):
        if output is not None and not target.gives(index, output.dtype):
            raise OpsetBound(f"output {index} as {output.dtype}")


def _foreign(
    signature: LayerSignature, attributes: list[onnx.AttributeProto], values: dict[str, Value], schema: Schema | None
) -> CanonicalForm:
    """The form of an operator of another domain, or unknown to ONNX: the source's, attributes sorted by name."""
    domain, op_type = signature.domain, signature.op_type
    if not domain and op_type in _RUNTIME_OPSETS:
        return canonical_form(signature._replace(opsets=(("", _RUNTIME_OPSETS[op_type]),)))
    if schema is not None:
        version: int | None = schema.since
        values = {**schema.defaults, **values}
    else:
        version = signature.opset if domain else None
    return _as_written(signature, attributes, version, values)


def _valid(signature: LayerSignature, attributes: list[onnx.AttributeProto]) -> tuple[int, int] | None:
    """The opsets of ONNX's own domain at which an operator in its source form means the same."""
    if _has_bodies(attributes):
        own = dict(signature.opsets).get("", 1)
        return own, own + 1
    if signature.domain:
        return None
    schema = find_schema("", signature.op_type, signature.opset)
    return versions_around("", signature.op_type, schema.since) if schema is not None else (1, ANY)


def _has_bodies(attributes: list[onnx.AttributeProto]) -> bool:
    return any(attribute.type == onnx.AttributeProto.GRAPH for attribute in attributes)


def _payload(attributes: list[onnx.AttributeProto]) -> str:
    """Why attributes hold data that no suite may carry; empty where they do not.

    Trees, vocabularies and the like are weights that their operators keep in attributes.
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
            return f"input {index} decides what {op_type} does, and its values are not known"
    return ""


def _key(
    node: onnx.NodeProto,
    version: int | None,
    attributes: Mapping[str, Value],
    slots: tuple[Slot, ...],
    outputs: tuple[TensorType | None, ...],
) -> str:
    """SHA-256 of a form as canonical JSON; nothing in it depends on names, order of attributes or the process."""
    description = [
        node.domain,
        node.op_type,
        version,
        [[name, spell_value(attributes[name])] for name in sorted(attributes)],
        _spell_slots(slots),
        [_spell_type(output) for output in outputs],
    ]
    return hashlib.sha256(_ENCODE(description).encode()).hexdigest()


def hash_signature(signature: LayerSignature) -> str:
    """SHA-256 of an operator as the source has it: identifies a layer that has no key of its own."""
    description = [
        signature.domain,
        signature.op_type,
        signature.opsets,
        [attribute.hex() for attribute in signature.attributes],
        _spell_slots(signature.slots),
        [_spell_type(output) for output in signature.outputs],
    ]
    return hashlib.sha256(_ENCODE(description).encode()).hexdigest()


def _spell_slots(slots: tuple[Slot, ...]) -> list[object]:
    return [[slot.role.value, *_spell_type(slot.type), slot.data.hex() if slot.data else None] for slot in slots]


def _spell_type(found: TensorType | None) -> tuple[str | None, tuple[int, ...] | None]:
    return (None, None) if found is None else (found.dtype, found.shape)
