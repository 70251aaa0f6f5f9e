"""A walk over the protobuf wire format of a model that skips the values of weights.

A protobuf parser reads a whole file, so that a model needs memory for its weights even if only its structure is used.
Lengths precede contents on the wire, so a walk can skip each payload. The result is again a serialised ``ModelProto``,
small enough to parse.

Wire format: https://protobuf.dev/programming-guides/encoding. Field numbers: onnx.proto3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from ..errors import BrokenModel
from .external import PAYLOAD_FIELDS, check_filled, check_tensor, count_elements
from .skeleton import KEPT_ELEMENTS, may_be_mask

Read = Callable[[int, int], bytes]
"""``read(offset, size)``: up to ``size`` bytes from ``offset``, fewer only at the end of the file."""

_WINDOW = 4096
"""Bytes read at a time. Each skipped payload costs one window, so this is one page."""

_DESCEND_BYTES = 4096
"""Smaller messages are copied whole, because parsing would cost more than the payload that they could contain."""

_MAX_DEPTH = 100
"""Nesting that protobuf itself accepts."""

_MASK_BYTES = 4
"""Maximum bytes per element of a mask."""

_MAX_ELEMENT_BYTES = 16
"""Bytes of complex128, the widest element type."""

_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}


_Rule = tuple[frozenset[int], dict[int, str]]
"""The numbers of a message's dropped fields, and the kinds of its fields that are messages."""


def _number(message: type, name: str) -> int:
    return int(message.DESCRIPTOR.fields_by_name[name].number)  # type: ignore[attr-defined]


def _numbers(message: type, *names: str) -> frozenset[int]:
    fields = message.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]
    return frozenset(_number(message, name) for name in names if name in fields)


def _rule(message: type, dropped: tuple[str, ...], **children: str) -> _Rule:
    return _numbers(message, *dropped), {_number(message, name): kind for name, kind in children.items()}


_RULES = {
    "model": _rule(ModelProto, ("doc_string", "metadata_props", "training_info"), graph="graph", functions="function"),
    "graph": _rule(
        GraphProto,
        ("doc_string", "metadata_props", "quantization_annotation"),
        node="node",
        initializer="tensor",
        sparse_initializer="sparse",
    ),
    "function": _rule(FunctionProto, ("doc_string", "metadata_props"), node="node"),
    "node": _rule(NodeProto, ("doc_string", "metadata_props", "device_configurations"), attribute="attribute"),
    "constant": _rule(NodeProto, ("doc_string", "metadata_props", "device_configurations"), attribute="value"),
    # Tensors in attributes of other operators (for example decision trees) are structure, not weights.
    "attribute": _rule(AttributeProto, ("doc_string",), g="graph", graphs="graph"),
    "value": _rule(AttributeProto, ("doc_string",), t="tensor", sparse_tensor="sparse"),
    "sparse": _rule(SparseTensorProto, (), values="tensor", indices="tensor"),
    "tensor": _rule(TensorProto, ("doc_string", "metadata_props")),
}
_PAYLOADS = _numbers(TensorProto, *PAYLOAD_FIELDS)
_NAME = _number(TensorProto, "name")
_RAW = _number(TensorProto, "raw_data")
_LOCATION = _number(TensorProto, "data_location")
_DIMS = _number(TensorProto, "dims")
_DATA_TYPE = _number(TensorProto, "data_type")
_OP_TYPE = _number(NodeProto, "op_type")
_DOMAIN = _number(NodeProto, "domain")

_Field = tuple[int, int, int, int]
"""Field number, start of its tag, start of its value, end of its value."""


def compact(read: Read, size: int) -> bytes:
    """Return the serialised model without the payloads of constants of more than ``KEPT_ELEMENTS`` elements.

    Possible masks keep their payload for one inspection. Initializers (dense and sparse) and the values of Constant
    nodes lose their payload, also in subgraphs and model-local functions. Documentation, metadata, quantisation
    annotations and training graphs are omitted. Everything else is copied byte for byte, messages below 4 KiB
    unchanged.

    Args:
        read: Random access to the serialised ``ModelProto``.
        size: Its size in bytes.

    Raises:
        BrokenModel: The data is not a protobuf message, or truncated.
    """
    return _FileWalk(read).message("model", 0, size, 0)


class _FileWalk:
    """A walk over one file, with the last window read."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._base = 0
        self._data = b""

    def message(self, kind: str, start: int, end: int, depth: int) -> bytes:
        """Return the remaining bytes of the message between ``start`` and ``end``."""
        if depth > _MAX_DEPTH:
            raise BrokenModel(f"messages are nested more than {_MAX_DEPTH} deep")
        if kind == "tensor":
            return self._tensor(start, end)
        if kind == "node":
            kind = self._node_kind(start, end)
        dropped, children = _RULES[kind]
        remaining_bytes = bytearray()
        run = start  # everything from here up to the current field is copied as it is
        for number, tag, value, after in self._fields(start, end):
            if number in dropped:
                remaining_bytes += self._copy(run, tag)
                run = after
            elif after - value < _DESCEND_BYTES:
                if children.get(number) == "tensor":
                    self._check_small(value, after)
            elif child := children.get(number):
                remaining_bytes += self._copy(run, tag)
                body = self.message(child, value, after, depth + 1)
                remaining_bytes += _varint(number << 3 | _LENGTH_DELIMITED)
                remaining_bytes += _varint(len(body))
                remaining_bytes += body
                run = after
        remaining_bytes += self._copy(run, end)
        return bytes(remaining_bytes)

    def _node_kind(self, start: int, end: int) -> str:
        constant = False
        for number, _, value, after in self._fields(start, end):
            if number == _OP_TYPE:
                constant = self._copy(value, min(after, value + 16)) == b"Constant"
            elif number == _DOMAIN and self._copy(value, min(after, value + 16)) not in {b"", b"ai.onnx"}:
                return "node"
        return "constant" if constant else "node"

    def _tensor(self, start: int, end: int) -> bytes:
        dims: list[int] = []
        name = b""
        dtype = size_bytes = raw_bytes = location = 0
        for number, _, value, after in self._fields(start, end):
            if number == _DIMS:
                dims += self._varints(value, after)
            elif number == _DATA_TYPE:
                dtype = next(self._varints(value, after), 0)
            elif number == _NAME:
                name = self._copy(value, after)
            elif number == _LOCATION:
                location = next(self._varints(value, after), 0)
            elif number in _PAYLOADS:
                size_bytes += after - value
                raw_bytes += after - value if number == _RAW else 0
        elements = math.prod(dims)
        if elements > KEPT_ELEMENTS and location != TensorProto.EXTERNAL:
            signed = [size - (1 << 64) if size >> 63 else size for size in dims]
            check_filled(name.decode(errors="replace"), dtype, signed, raw_bytes, size_bytes - raw_bytes)
        dropped, _ = _RULES["tensor"]
        if elements > KEPT_ELEMENTS and not (may_be_mask(dtype, dims) and size_bytes <= elements * _MASK_BYTES):
            dropped |= _PAYLOADS
        elif size_bytes > max(elements, KEPT_ELEMENTS) * _MAX_ELEMENT_BYTES and dtype != TensorProto.STRING:
            raise BrokenModel(f"a constant of {elements} elements holds {size_bytes} bytes")
        remaining_bytes = bytearray()
        run = start
        for number, tag, _, after in self._fields(start, end):
            if number in dropped:
                remaining_bytes += self._copy(run, tag)
                run = after
        remaining_bytes += self._copy(run, end)
        return bytes(remaining_bytes)

    def _check_small(self, start: int, end: int) -> None:
        """Check a constant that is copied whole: a large shape in a short message has no values."""
        try:
            tensor = TensorProto.FromString(self._copy(start, end))
        except DecodeError as error:
            raise BrokenModel(f"not ONNX: the field at byte {start} is no constant") from error
        if count_elements(tensor.dims) > KEPT_ELEMENTS:
            check_tensor(tensor)

    def _copy(self, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        data = self._read(start, end - start)
        if len(data) != end - start:
            raise BrokenModel(f"truncated: the file became shorter than {end} bytes while it was read")
        return data

    def _varints(self, start: int, end: int) -> Iterator[int]:
        """Yield the integers of a field, packed or not."""
        data = self._copy(start, end)
        position = 0
        while position < len(data):
            value, position = _decode(data, position)
            yield value

    def _fields(self, start: int, end: int) -> Iterator[_Field]:
        """Yield the fields of the message between two offsets; the innermost loop of the walk."""
        base, data = self._base, self._data
        high = base + len(data) - 20  # a tag and a length take at most 20 bytes
        position = start
        while position < end:
            if not base <= position < high:
                base, data = position, self._read(position, _WINDOW)
                high = base + len(data) - 20
                self._base, self._data = base, data
            tag, at = _decode(data, position - base)
            wire = tag & 7
            if tag < 8:
                raise BrokenModel(f"not ONNX: the field at byte {position} has number 0")
            if wire == _LENGTH_DELIMITED:
                length, at = _decode(data, at)
                value = base + at
                after = value + length
            elif wire == 0:
                value = base + at
                after = base + _decode(data, at)[1]
            elif wire in _FIXED_BYTES:
                value = base + at
                after = value + _FIXED_BYTES[wire]
            else:
                raise BrokenModel(f"not ONNX: no protobuf field at byte {position}")
            if after > end:
                raise BrokenModel(f"truncated or not ONNX: the field at byte {position} needs {after - end} bytes more")
            yield tag >> 3, position, value, after
            position = after


def _decode(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at a position, and the position behind it."""
    try:
        byte = data[position]
        position += 1
        if byte < 0x80:
            return byte, position
        value = byte & 0x7F
        for shift in range(7, 70, 7):
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
    except IndexError as error:
        raise BrokenModel("truncated: the file ends within a field") from error
    raise BrokenModel("not ONNX: a number of more than 10 bytes")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
