"""Which values an operator may be given: one small rule per operator and input slot.

Random numbers are legal for most inputs. The rest is here: indices in range, shapes that give the output its
static shape, positive denominators. A rule looks at one node (``Site``) and answers with a ``Domain``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ...bricks.operators import REDUCTIONS
from ...models.subgraphs import attribute_of

# Domains: which values an input may hold, and the site at which an operator says so.


Shape = tuple[int, ...]


class DomainKind(IntEnum):
    """Kinds of domain; if several consumers differ, the first kind wins."""

    EXACT = 0
    """These values and no others."""
    RANGE = 1
    """Integers in [low, high), floats in [low, high]."""
    POSITIVE = 2
    """Positive and away from zero."""
    SPARSE = 3
    """So many elements are not zero, at random places."""
    MIXED = 4
    """Booleans: both."""
    ONES = 5
    """A mask that masks nothing, a harmless integer."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Legal values of one input.

    Attributes:
        kind: Decides the fields that count.
        values: For ``EXACT``: flattened; repeated if the input has more elements.
        low: For ``RANGE``; for ``SPARSE`` how many are not zero.
        high: For ``RANGE``; for ``SPARSE`` the number of elements.
    """

    kind: DomainKind
    values: tuple[float, ...] = ()
    low: float = 0
    high: float = 0


POSITIVE = Domain(DomainKind.POSITIVE)
MIXED = Domain(DomainKind.MIXED)
ONES = Domain(DomainKind.ONES)


def exact(*values: float) -> Domain:
    """Return the domain of exactly these values."""
    return Domain(DomainKind.EXACT, values=values)


def between(low: float, high: float) -> Domain:
    """Return the domain of a range with at least one value."""
    return Domain(DomainKind.RANGE, low=low, high=max(high, low + 1) if isinstance(high, int) else high)


@dataclass(frozen=True, slots=True)
class Site:
    """One node, seen from one of its inputs.

    Attributes:
        node: The node.
        slot: Index of the input in question.
        shapes: Known static shapes, by value.
        constants: Known constants, by value.
        sizes: Shapes by value, with 0 for each unknown dimension.
    """

    node: onnx.NodeProto
    slot: int
    shapes: Mapping[str, Shape]
    constants: Mapping[str, npt.NDArray[Any]]
    sizes: Mapping[str, Shape] = field(default_factory=dict)

    def input(self, slot: int) -> Shape | None:
        """Shape of an input."""
        return self.shapes.get(self.node.input[slot]) if slot < len(self.node.input) else None

    def output(self, slot: int = 0) -> Shape | None:
        """Shape of an output."""
        return self.shapes.get(self.node.output[slot]) if slot < len(self.node.output) else None

    def constant(self, slot: int) -> npt.NDArray[Any] | None:
        """Return the value of a constant input; None for any other."""
        return self.constants.get(self.node.input[slot]) if slot < len(self.node.input) else None

    def attribute(self, name: str, default: Any) -> Any:
        """Value of an attribute."""
        return attribute_of(self.node, name, default)


Rule = Callable[[Site], Domain | None]


def domain_of(site: Site) -> Domain | None:
    """Return the values that the operator accepts for this input; None: any value of its type."""
    rule = _RULES.get(site.node.op_type, {}).get(site.slot)
    return rule(site) if rule else None


def structure_of(site: Site) -> Domain | None:
    """Return the same for an index, a shape, a size or an axis, which the computed data does not decide."""
    rule = _STRUCTURE.get(site.node.op_type, {}).get(site.slot)
    return rule(site) if rule else None


def _always(domain: Domain) -> Rule:
    return lambda _: domain


def _indices(data: int, axis: int | None = None) -> Rule:
    """In range of one axis of another input (by default the node's ``axis``)."""

    def rule(site: Site) -> Domain:
        shape = site.input(data)
        chosen = site.attribute("axis", 0) if axis is None else axis
        return between(0, shape[chosen] if shape and -len(shape) <= chosen < len(shape) else 1)

    return rule


def _gather_nd(site: Site) -> Domain:
    """Every index tuple in range: below the smallest axis that it addresses."""
    data, indices = site.input(0), site.input(1)
    if not data or not indices:
        return exact(0)
    first = site.attribute("batch_dims", 0)
    return between(0, min(data[first : first + indices[-1]], default=1))


def _unpool(site: Site) -> Domain:
    return between(0, math.prod(site.output() or site.input(0) or (1,)))


def _output_shape(site: Site) -> Domain | None:
    """Return the output's shape as the target."""
    shape = site.output()
    return None if shape is None else exact(*shape)


def _expanded_shape(site: Site) -> Domain | None:
    """Return the output's shape, or its last axes if the target has fewer."""
    shape, count = site.output(), site.input(1)
    if shape is None or not count:
        return None
    return exact(*shape[len(shape) - count[0] :])


def _output_axis(site: Site) -> Domain | None:
    """Return the size of the output along the attribute ``axis``."""
    shape, axis = site.output(), site.attribute("axis", -1)
    return exact(shape[axis]) if shape and -len(shape) <= axis < len(shape) else None


def _repeats(site: Site) -> Domain | None:
    """How many times larger the output is along each axis."""
    before, after = site.input(0), site.output()
    if before is None or after is None or len(before) != len(after):
        return None
    return exact(
        *(new / old if new % max(old, 1) else new // max(old, 1) for old, new in zip(before, after, strict=True))
    )


def _resize_ratio(site: Site) -> Domain | None:
    """Scales that round down to the output's size: half an element more than the plain ratio."""
    before, after = site.input(0), site.output()
    if before is None or after is None or len(before) != len(after):
        return None
    return exact(*(new / old if new % old == 0 else (new + 0.5) / old for old, new in zip(before, after, strict=True)))


def _axes(site: Site, slot: int, count: int) -> Sequence[int]:
    """Axes that an operator works on: a constant input, or the first ones."""
    constant = site.constant(slot)
    if constant is not None:
        return [int(axis) for axis in constant.ravel()]
    return range(count)


def _slice(site: Site) -> Domain | None:
    """From the start of each axis, as long as the output is."""
    after, bounds = site.output(), site.input(site.slot)
    if after is None or not bounds:
        return None
    axes = _axes(site, 3, bounds[0])
    match site.slot:
        case 1:
            return exact(*(0 for _ in axes))
        case 2:
            return exact(*(after[axis] for axis in axes))
        case 3:
            return exact(*axes)
        case _:
            return exact(*(1 for _ in axes))


def _pad(site: Site) -> Domain | None:
    """Nothing in front, the rest behind."""
    before, after = site.input(0), site.output()
    if before is None or after is None:
        return None
    axes = _axes(site, 3, len(before))
    return exact(*(0 for _ in axes), *(after[axis] - before[axis] for axis in axes))


def _split(site: Site) -> Domain | None:
    axis = site.attribute("axis", 0)
    parts = [site.output(slot) for slot in range(len(site.node.output))]
    return exact(*(part[axis] for part in parts if part)) if all(parts) else None


def _changed_axes(site: Site) -> Domain | None:
    """Return the axes that a reduction, Squeeze or Unsqueeze removes, adds or makes 1; any if unknown."""
    before, after, count = site.input(0), site.output(), site.input(site.slot)
    if before is None or after is None or count is None:
        return None
    axis_count = math.prod(count)
    long, short = (before, after) if len(before) >= len(after) else (after, before)
    if len(long) == len(short):
        changed = [axis for axis, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        spare = [axis for axis in range(len(before)) if axis not in changed and before[axis] == 1]
        return exact(*sorted([*changed, *spare][:axis_count]))
    gone: list[int] = []
    remaining = list(short)
    for axis, size in enumerate(long):
        if remaining and size == remaining[0] and len(long) - axis > axis_count - len(gone):
            remaining.pop(0)
        else:
            gone.append(axis)
    return exact(*gone[:axis_count])


def _as_many(site: Site) -> Domain | None:
    """As many elements that are not zero as the output has: their number decides the time of the operator."""
    elements, found = site.input(site.slot), site.output()
    if elements is None or not found:
        return MIXED if site.node.op_type == "Compress" else None
    axis = site.attribute("axis", 0) if site.node.op_type == "Compress" else -1
    return Domain(DomainKind.SPARSE, low=found[axis], high=math.prod(elements))


def _most_boxes(site: Site) -> Domain:
    """As many boxes of each class as the output has on average."""
    scores, found = site.input(1), site.output()
    return exact(max(1, math.ceil(found[0] / math.prod(scores[:2]))) if scores and found and all(scores) else 3)


def _distinct(site: Site) -> Domain | None:
    """Return a range of as many integers as the output has."""
    found = site.output()
    return between(0, found[site.attribute("axis", 0)]) if found else None


def _range(site: Site) -> Domain | None:
    shape = site.output()
    if shape is None:
        return None
    return exact((0, shape[0], 1)[site.slot])


def _compared(site: Site) -> Domain | None:
    """Return the constant that a number (for example a sampling rate) is compared with: the first branch runs."""
    constant = site.constant(1 - site.slot)
    if site.input(site.slot) != () or constant is None or constant.size != 1 or constant.dtype.kind not in "iu":
        return None
    return exact(int(constant.item()))


def _sequence_length(site: Site) -> Domain | None:
    shape = site.input(0) or site.sizes.get(site.node.input[0])
    axis = site.attribute("time_axis", site.attribute("layout", 0))
    return exact(shape[axis]) if shape and shape[axis] else None


def _fractional_power(site: Site) -> Domain | None:
    exponent = site.constant(1)
    integral = exponent is not None and bool(np.all(exponent == np.round(exponent))) and bool(np.all(exponent >= 0))
    return None if integral else POSITIVE


def _huge_factor(site: Site) -> Domain | None:
    """Return a range below 1 if the other factor is a constant near the largest float, as in additive masks."""
    other = site.constant(1 - site.slot)
    return between(0.0, 1.0) if other is not None and other.size and _huge(other) else None


def _huge(values: npt.NDArray[Any]) -> bool:
    return values.dtype.kind == "f" and float(np.abs(values).max()) > np.finfo(values.dtype).max / 100


def _trip_count(site: Site) -> Domain:
    """Return the length of the scan outputs as the number of rounds; 2 without scan outputs."""
    carried = max(len(site.node.input) - 2, 0)
    for slot in range(carried, len(site.node.output)):
        shape = site.output(slot)
        if shape:
            return exact(shape[0])
    return exact(2)


def _boxes(site: Site) -> Domain:
    shape = site.input(0)
    return between(0.0, float(min(shape[-2:]) if shape else 1))


def _crop(site: Site) -> Domain | None:
    after, count = site.output(), site.input(1)
    if after is None or not count:
        return None
    return exact(*(after[axis] for axis in site.attribute("axes", range(count[0]))))


def _image(site: Site) -> Domain | None:
    shape = site.output()
    return exact(*shape[2:]) if shape else None


def _affine_size(site: Site) -> Domain | None:
    shape = site.output()
    return exact(shape[0], 1, *shape[1:-1]) if shape else None


def _mask(keys: int) -> Rule:
    """Return a mask that hides nothing: the number of keys of the input ``keys``, or ones."""

    def rule(site: Site) -> Domain:
        mask, data = site.input(site.slot), site.input(keys)
        if mask is None or len(mask) != 1 or not data:
            return exact(1)
        batch = data[0]
        return exact(*(data[1] for _ in range(batch)), *(0 for _ in range(mask[0] - batch)))

    return rule


def _kv_length(site: Site) -> Domain | None:
    """Return the number of valid entries of a key/value cache: the length of the outputs."""
    shape = site.output(1)
    if not shape:
        return exact(1)
    return exact(shape[-2] - 1 if site.slot == 5 else shape[-2])


_ZERO, _UNIT = _always(exact(0)), _always(between(0.0, 1.0))
_INSIDE = _always(between(-0.9, 0.9))
_SCALE = _always(between(0.01, 0.1))
_POSITIVE = _always(POSITIVE)
_TRUE = _always(exact(1))

_STRUCTURE: dict[str, dict[int, Rule]] = {
    # indices
    "Gather": {1: _indices(0)}, "GatherElements": {1: _indices(0)}, "GatherND": {1: _gather_nd},
    "Scatter": {1: _indices(0)}, "ScatterElements": {1: _indices(0)}, "ScatterND": {1: _gather_nd},
    "TensorScatter": {2: _ZERO}, "ArrayFeatureExtractor": {1: _indices(0, -1)},
    "OneHot": {0: lambda site: between(0, (_output_axis(site) or exact(1)).values[0]), 1: _output_axis},
    "GatherBlockQuantized": {1: lambda site: _indices(0, site.attribute("gather_axis", 0))(site)},
    "EmbedLayerNormalization": {0: _indices(2, 0), 1: _indices(4, 0), 8: _indices(3, 0)},
    "MaxUnpool": {1: _unpool, 2: _output_shape}, "RoiAlign": {1: _boxes, 2: _indices(0, 0)}, "MaxRoiPool": {1: _UNIT},
    "NegativeLogLikelihoodLoss": {1: _indices(0, 1)}, "SoftmaxCrossEntropyLoss": {1: _indices(0, 1)},
    "RotaryEmbedding": {
        # com.microsoft has the positions in slot 1 (integers), ONNX 23 in slot 3; floats ignore the bound
        1: lambda site: _indices(2, 0)(site) if site.node.domain else None,
        3: lambda site: None if site.node.domain else _indices(1, 0)(site),
    },
    # shapes, sizes, axes
    "Reshape": {1: _output_shape}, "Expand": {1: _expanded_shape}, "ConstantOfShape": {0: _output_shape},
    "Tile": {1: _repeats}, "Slice": {1: _slice, 2: _slice, 3: _slice, 4: _slice},
    "Resize": {1: _resize_ratio, 2: _resize_ratio, 3: _output_shape}, "Upsample": {1: _resize_ratio}, "Pad": {1: _pad},
    "CenterCropPad": {1: _crop}, "Col2Im": {1: _image}, "AffineGrid": {1: _affine_size}, "TopK": {1: _output_axis},
    "Range": {0: _range, 1: _range, 2: _range}, "Split": {1: _split}, "Squeeze": {1: _changed_axes},
    "Unsqueeze": {1: _changed_axes}, **{name: {1: _changed_axes} for name in REDUCTIONS}, "Trilu": {1: _ZERO},
    "CumSum": {1: _ZERO}, "CumProd": {1: _ZERO}, "DFT": {1: _output_axis}, "HannWindow": {0: _output_shape},
    "HammingWindow": {0: _output_shape}, "BlackmanWindow": {0: _output_shape}, "SequenceAt": {1: _ZERO},
}  # fmt: skip

_RULES: dict[str, dict[int, Rule]] = {
    **_STRUCTURE,
    # control
    "If": {0: _TRUE}, "Equal": {0: _compared, 1: _compared}, "Loop": {0: _trip_count, 1: _TRUE},
    "Where": {0: _always(MIXED)}, "Compress": {1: _as_many}, "NonZero": {0: _as_many}, "Unique": {0: _distinct},
    "NonMaxSuppression": {0: _UNIT, 2: _most_boxes, 3: _always(exact(0.5)), 4: _ZERO},
    "Dropout": {1: _always(exact(0.5)), 2: _ZERO}, "RNN": {4: _sequence_length}, "GRU": {4: _sequence_length},
    "LSTM": {4: _sequence_length}, "ReverseSequence": {1: _sequence_length},
    "Attention": {3: lambda site: _mask(0)(site) if site.node.domain else None}, "MultiHeadAttention": {4: _mask(1)},
    "GroupQueryAttention": {5: _kv_length, 6: _kv_length},
    # arithmetic
    "Mul": {0: _huge_factor, 1: _huge_factor}, "Log": {0: _POSITIVE}, "Sqrt": {0: _POSITIVE},
    "Reciprocal": {0: _POSITIVE}, "Div": {1: _POSITIVE}, "Mod": {1: _POSITIVE}, "Pow": {0: _fractional_power},
    "BitShift": {1: _always(between(0, 8))}, "Acos": {0: _INSIDE}, "Asin": {0: _INSIDE}, "Atanh": {0: _INSIDE},
    "Acosh": {0: _always(between(1.1, 3.0))}, "Bernoulli": {0: _UNIT}, "GridSample": {1: _INSIDE},
    "Clip": {1: _ZERO, 2: _always(exact(6))}, "BatchNormalization": {4: _POSITIVE},
    # quantisation: small scales, zero points that every type has
    "QuantizeLinear": {1: _SCALE, 2: _ZERO}, "DequantizeLinear": {1: _SCALE, 2: _ZERO},
    "QLinearConv": {1: _SCALE, 2: _ZERO, 4: _SCALE, 5: _ZERO, 6: _SCALE, 7: _ZERO},
    "QLinearMatMul": {1: _SCALE, 2: _ZERO, 4: _SCALE, 5: _ZERO, 6: _SCALE, 7: _ZERO},
    "QLinearAdd": {1: _SCALE, 2: _ZERO, 4: _SCALE, 5: _ZERO, 6: _SCALE, 7: _ZERO},
    "QLinearMul": {1: _SCALE, 2: _ZERO, 4: _SCALE, 5: _ZERO, 6: _SCALE, 7: _ZERO},
    "QGemm": {1: _SCALE, 2: _ZERO, 4: _SCALE, 5: _ZERO, 7: _SCALE, 8: _ZERO}, "MatMulInteger": {2: _ZERO, 3: _ZERO},
    "ConvInteger": {2: _ZERO, 3: _ZERO},
}  # fmt: skip
