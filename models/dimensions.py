"""Dynamic dimensions: what a name or a place says about a sensible value, and arithmetic on names."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from onnx import TensorProto

_BATCH = 1
_DEFAULT_SEQUENCE = 128
_DEFAULT_PAST = _DEFAULT_SEQUENCE - 1
"""With the one token of a decoding step, the cache and its attention mask come to ``_DEFAULT_SEQUENCE``."""

_IMAGE_SIDE = 224
_IMAGE_CHANNELS = 3
_AUDIO_SAMPLES = 16_000  # one second at 16 kHz; a speech model's convolutions reject much less
_MEL_BINS = 80

_MAX_EXPRESSION = 200
_ARITHMETIC = re.compile(r"(?:[A-Za-z_]\w*|\d{1,9}(?!\w)|[ +\-*/()])+", re.ASCII)


class DimensionKind(StrEnum):
    """What a dynamic dimension counts."""

    BATCH = "batch"
    PAST = "past"
    """Positions in a decoder's cache."""
    TOTAL = "total"
    """Positions in the cache and new ones together."""
    ENCODER = "encoder"
    """Positions of the encoder's sequence, which a decoding step does not shorten."""
    SEQUENCE = "sequence"
    AUDIO = "audio"
    MEL = "mel"
    CHANNELS = "channels"
    SIDE = "side"
    """Height or width of an image."""
    UNKNOWN = "unknown"


# The first match decides.
_NAMES: tuple[tuple[re.Pattern[str], DimensionKind], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"batch|beam|^(n|b|bs)$", DimensionKind.BATCH),
        (r"encoder(?!_hidden_size)", DimensionKind.ENCODER),
        (r"past|cache|history", DimensionKind.PAST),
        (r"total|max_?seq|^kv_|attention_mask", DimensionKind.TOTAL),
        (r"audio|waveform|samples", DimensionKind.AUDIO),
        (r"mel|^feature_size$", DimensionKind.MEL),
        (r"seq|text|token|len(gths?)?(_|$)|time|frame|^(t|s|l)$", DimensionKind.SEQUENCE),
        (r"height|width|^(h|w)$|image_size", DimensionKind.SIDE),
        (r"channel|^c$", DimensionKind.CHANNELS),
    )
)
_AUTOMATIC = re.compile(
    r"^(s\d+|_?d\d+|unk__\d+|unknown\w*|dim_?\d+|\w*dynamic_axes_\d+|\w+_dim_\d+|sym\w*\d+|none|\?|-1|)$", re.IGNORECASE
)
"""Names that exporters make up; they say nothing, so that the place decides."""

NAMELESS = frozenset({"?", "-1", "None"})
"""Texts that exporters write as the name of several dimensions, which need not be equal."""

_AUDIO_INPUTS = frozenset({"input_values", "waveform", "audio", "audio_signal", "speech"})
_STATES = re.compile(r"state|hidden|^[hc](_?0|_?n|_?in)?$", re.IGNORECASE)
"""Inputs that hold the state of a recurrent network: layers or directions, batch, width."""

_INTEGERS = frozenset({TensorProto.INT32, TensorProto.INT64})
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dynamic dimension of one input.

    Attributes:
        input: Name of the input.
        axis: Which of its dimensions.
        name: The dimension's name in the model (``dim_param``); empty where it has none.
        dtype: ONNX's number of the input's element type.
        shape: The input's shape; None for each dynamic dimension.
    """

    input: str
    axis: int
    name: str
    dtype: int
    shape: tuple[int | None, ...]

    @property
    def label(self) -> str:
        """What addresses it: its name, or ``input[axis]``."""
        return self.name or f"{self.input}[{self.axis}]"


def classify(dimension: Dimension) -> DimensionKind:
    """What a dimension counts, by its name, else by its place."""
    if _AUTOMATIC.match(dimension.name):
        return _by_place(dimension)
    kind = classify_name(dimension.name, dimension.input)
    if kind is DimensionKind.UNKNOWN and dimension.axis == 0:
        return DimensionKind.BATCH  # whatever its name, as nearly every first dimension is
    return kind


def classify_name(name: str, input_name: str) -> DimensionKind:
    """What a name of a dimension says that it counts."""
    kind = next((kind for pattern, kind in _NAMES if pattern.search(name)), DimensionKind.UNKNOWN)
    return DimensionKind.AUDIO if kind is DimensionKind.SEQUENCE and input_name in _AUDIO_INPUTS else kind


def _by_place(dimension: Dimension) -> DimensionKind:
    axis, rank = dimension.axis, len(dimension.shape)
    recurrent = rank == 3 and dimension.dtype in _FLOATS and _STATES.search(dimension.input)
    if axis == (1 if recurrent else 0):
        return DimensionKind.BATCH
    if rank == 4 and dimension.dtype in _FLOATS:
        last = dimension.shape[3]
        channels_last = last is not None and last <= 4 and dimension.shape[1] is None
        if axis == (3 if channels_last else 1):
            return DimensionKind.CHANNELS
        return DimensionKind.SIDE
    if dimension.input in _AUDIO_INPUTS:
        return DimensionKind.AUDIO
    if rank == 2 and dimension.dtype in _INTEGERS:
        return DimensionKind.SEQUENCE  # token ids, or their mask
    return DimensionKind.UNKNOWN


def default_value(kind: DimensionKind, *, decoding: bool) -> int | None:
    """A sensible value, None where there is none.

    Args:
        kind: What the dimension counts.
        decoding: Whether the model has a cache of past positions: it then gets one new token.
    """
    values = {
        DimensionKind.BATCH: _BATCH,
        DimensionKind.PAST: _DEFAULT_PAST,
        DimensionKind.TOTAL: _DEFAULT_SEQUENCE,
        DimensionKind.ENCODER: _DEFAULT_SEQUENCE,
        DimensionKind.SEQUENCE: 1 if decoding else _DEFAULT_SEQUENCE,
        DimensionKind.AUDIO: _AUDIO_SAMPLES,
        DimensionKind.MEL: _MEL_BINS,
        DimensionKind.CHANNELS: _IMAGE_CHANNELS,
        DimensionKind.SIDE: _IMAGE_SIDE,
    }
    return values.get(kind)


# ---------------------------------------------------------------------- arithmetic

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


@dataclass(frozen=True, slots=True)
class Expression:
    """A dimension such as ``past_sequence_length + 1``, as exporters write it into a name."""

    tree: ast.expr

    @property
    def names(self) -> tuple[str, ...]:
        """The names in it, in order, each once."""
        found = (node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name))
        return tuple(dict.fromkeys(found))

    def value(self, bound: Mapping[str, int]) -> int | None:
        """Its value; None where a name is not bound, or the result is no dimension."""
        try:
            result = _evaluate(self.tree, bound)
        except (KeyError, ZeroDivisionError):
            return None
        return result if result >= 0 else None


def _evaluate(node: ast.expr, bound: Mapping[str, int]) -> int:
    match node:
        case ast.Name():
            return bound[node.id]
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp():
            return int(_OPERATORS[type(node.op)](_evaluate(node.left, bound), _evaluate(node.right, bound)))
    raise KeyError(node)


def expression(name: str) -> Expression | None:
    """The arithmetic in a dimension's name; None where it is a plain name (or not understood, hence just a name)."""
    if name.isidentifier() or len(name) > _MAX_EXPRESSION or not _ARITHMETIC.fullmatch(name):
        return None
    try:
        tree = ast.parse(name.strip(), mode="eval").body
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp):
            if type(node.op) not in _OPERATORS:
                return None
        elif not isinstance(node, ast.Name | ast.operator | ast.expr_context) and not (
            isinstance(node, ast.Constant) and type(node.value) is int
        ):
            return None
    parsed = Expression(tree)
    return parsed if isinstance(tree, ast.BinOp) and parsed.names else None
