"""Channels of convolutions that are padded with zeros to a multiple of what a runtime's kernels take at once.

A convolution that makes more channels makes zeros in them: its filters and its bias there are zeros. What reads them
has zeros for them in its weights, so that whatever an operator on single channels makes of zeros in between does not
count as long as it is finite. Inputs and outputs of the model stay as they are, and so does every convolution whose
channels something reads that has no place for more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...bricks.layer import GLOBAL_POOLS, PARAMETERISED, POINTWISE, POOLS, Layer, Role
from ...errors import ModelError
from ...models.subgraphs import captures
from .moments import reduced_axes
from .pattern import Array, Match, ModelDraft, View

ChannelMask = npt.NDArray[np.bool_]
"""One for each channel of a value once it is padded: whether it is one of the model's own."""

_IMAGE = 4
"""Axes of what is blocked: samples, channels, rows, columns."""

_NOT_FINITE = frozenset({"Acosh", "Acos", "Asin", "Atanh", "Div", "Exp", "Log", "Pow", "Reciprocal", "Sqrt", "Tan"})
"""Operators that may make of a finite number one that is not, or none."""


@dataclass
class _Widening:
    """One pass over a model with some of its convolutions widened.

    Attributes:
        view: The model.
        multiple: What channels are padded to a multiple of.
        wide: Convolutions that make more channels.
        channel_masks: Of every value that is padded, along its axis 1.
        makers: The convolutions that made these channels.
        refused: Convolutions whose channels something cannot read.
    """

    view: View
    multiple: int
    wide: frozenset[int]
    channel_masks: dict[str, ChannelMask] = field(default_factory=dict)
    makers: dict[str, frozenset[int]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)

    def run(self) -> None:
        for index in self.view.graph.live:
            self._layer(self.view.graph.layers[index])
        for name in self.view.graph.outputs:
            self._refuse(name)

    def _layer(self, layer: Layer) -> None:
        node = layer.node
        read = [name for name in (*node.input, *captures(node)) if name in self.channel_masks]
        makers = frozenset[int]().union(*(self.makers[name] for name in read))
        if read:
            passed = self._passed(layer)
            if passed is None:
                self._refuse(*read)
                return
            if passed.size:
                self._pad(layer.outputs[0], passed, makers)
        if layer.index in self.wide:
            shape = self.view.shape(layer.outputs[0])
            assert shape is not None  # noqa: S101  # else it were no candidate
            self._pad(
                layer.outputs[0], np.arange(_rounded(shape[1], self.multiple)) < shape[1], frozenset({layer.index})
            )

    def _pad(self, value: str, channel_mask: ChannelMask, makers: frozenset[int]) -> None:
        self.channel_masks[value], self.makers[value] = channel_mask, makers

    def _refuse(self, *values: str) -> None:
        self.refused |= frozenset[int]().union(*(self.makers.get(name, frozenset()) for name in values))

    def _passed(self, layer: Layer) -> ChannelMask | None:
        """The channels that a layer hands on; none where it reads them all, None where it cannot read them."""
        view, node = self.view, layer.node
        others = [name for name in (*node.input[1:], *captures(node)) if name in self.channel_masks]
        if layer.domain or any(layer.outputs[1:]) or view.shape(layer.outputs[0]) is None:
            return None
        if layer.op_type in POINTWISE - _NOT_FINITE or layer.op_type == "Div":
            return self._pointwise(layer)
        if layer.op_type == "Concat":
            return self._joined(layer)
        rule = _RULES.get(layer.op_type)
        if others or rule is None or node.input[0] not in self.channel_masks:
            return None
        return rule(view, layer, self.channel_masks[node.input[0]])

    def _pointwise(self, layer: Layer) -> ChannelMask | None:
        """Channels stay where they are, and as many as they were."""
        made = self.view.shape(layer.outputs[0])
        channel_mask = next(self.channel_masks[name] for name in layer.node.input if name in self.channel_masks)
        if made is None or len(made) < 2 or made[1] != channel_mask.sum():
            return None
        for slot, name in enumerate(layer.node.input):
            shape, constant = self.view.shape(name), self.view.weight(layer, slot) is not None
            if not name:
                continue
            if layer.op_type == "Div" and slot == 1 and not constant:
                return None  # a zero may be among the channels that are added
            if name in self.channel_masks:
                passes = (
                    np.array_equal(self.channel_masks[name], channel_mask)
                    and shape is not None
                    and len(shape) == len(made)
                )
            else:
                passes = shape is not None and (constant or _across(shape, len(made)) == 1)
            if not passes:
                return None
        return channel_mask

    def _joined(self, layer: Layer) -> ChannelMask | None:
        shapes = [self.view.shape(name) for name in layer.node.input]
        axis = self.view.attribute(layer, "axis")
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes) or axis is None or axis % len(known[0]) != 1:
            return None
        parts = zip(layer.node.input, known, strict=True)
        return np.concatenate([self.channel_masks.get(name, np.ones(shape[1], bool)) for name, shape in parts])


_READ = np.zeros(0, bool)
"""Of a layer that reads all channels and hands none on."""


def _convolution(view: View, layer: Layer, channel_mask: ChannelMask) -> ChannelMask | None:
    weight, group = view.weight(layer, 1), view.attribute(layer, "group") or 1
    if weight is None or weight.type is None:
        return None
    if group == 1:
        return _READ
    count = int(channel_mask.sum())
    alone = group == count == weight.type.shape[0] and weight.type.shape[1] == 1
    return channel_mask if alone and _bias_is_constant(view, layer) and layer.op_type == "Conv" else None


def _bias_is_constant(view: View, layer: Layer) -> bool:
    """Also where there is none."""
    return len(layer.operands) < 3 or not layer.operands[2].value or view.weight(layer, 2) is not None


def _product(view: View, layer: Layer, _: ChannelMask) -> ChannelMask | None:
    shape, weight = view.shape(layer.node.input[0]), view.weight(layer, 1)
    flat = shape is not None and len(shape) == 2 and not view.attribute(layer, "transA")
    return _READ if flat and weight is not None and weight.type is not None and len(weight.type.shape) == 2 else None


def _normalisation(view: View, layer: Layer, channel_mask: ChannelMask) -> ChannelMask | None:
    weights = [view.weight(layer, slot) for slot in range(1, 5)]
    return channel_mask if all(weight is not None and weight.type is not None for weight in weights) else None


def _flat(view: View, layer: Layer, channel_mask: ChannelMask) -> ChannelMask | None:
    """All that follows the samples becomes one axis, or nothing but single rows and columns goes."""
    before, after = view.shape(layer.node.input[0]), view.shape(layer.outputs[0])
    if before is None or after is None or len(after) < 2 or after[0] != before[0]:
        return None
    if layer.op_type == "Flatten" and view.attribute(layer, "axis") not in {None, 1, 1 - len(before)}:
        return None
    if layer.op_type == "Squeeze" and min(reduced_axes(view, layer) or (0,)) < 2:
        return None
    inner = int(np.prod(before[2:]))
    if len(after) == 2 and after[1] == before[1] * inner:
        return np.repeat(channel_mask, inner)
    return channel_mask if inner == 1 and after[1] == before[1] and int(np.prod(after[2:])) == 1 else None


def _averaged(view: View, layer: Layer, channel_mask: ChannelMask) -> ChannelMask | None:
    before, after = view.shape(layer.node.input[0]), view.shape(layer.outputs[0])
    if before is None or after is None or min(reduced_axes(view, layer) or (0,)) < 2:
        return None
    return channel_mask if after[:2] == before[:2] and int(np.prod(after[2:])) == 1 else None


def _resized(view: View, layer: Layer, channel_mask: ChannelMask) -> ChannelMask | None:
    before, after = view.shape(layer.node.input[0]), view.shape(layer.outputs[0])
    constant = all(not operand.value or view.weight(layer, slot) for slot, operand in enumerate(layer.operands) if slot)
    if view.attribute(layer, "keep_aspect_ratio_policy") not in {None, "stretch"}:
        return None  # what it makes of sizes depends on all of them
    return channel_mask if constant and before is not None and after is not None and before[:2] == after[:2] else None


_Rule = Callable[[View, Layer, ChannelMask], ChannelMask | None]
_RULES: dict[str, _Rule] = {
    "BatchNormalization": _normalisation,
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "Flatten": _flat,
    "Gemm": _product,
    "MatMul": _product,
    "Pad": _resized,
    "ReduceMean": _averaged,
    "Reshape": _flat,
    "Resize": _resized,
    "Squeeze": _flat,
    **dict.fromkeys(POOLS | GLOBAL_POOLS, lambda _view, _layer, channel_mask: channel_mask),
}


def channel_masks_of(view: View, multiple: int) -> tuple[dict[str, ChannelMask], frozenset[int]]:
    """The channels of all values that can be padded, and the convolutions that make more of them.

    Args:
        view: A model.
        multiple: What channels are padded to a multiple of.
    """
    wide = frozenset(layer.index for layer in view.live("Conv") if _can_make_more(view, layer, multiple))
    while True:
        walk = _Widening(view, multiple, wide)
        walk.run()
        if not walk.refused:
            return walk.channel_masks, wide
        wide -= walk.refused


def _can_make_more(view: View, layer: Layer, multiple: int) -> bool:
    shape, weight, group = view.shape(layer.outputs[0]), view.weight(layer, 1), view.attribute(layer, "group") or 1
    constant = weight is not None and weight.type is not None
    if not constant or group != 1 or not _bias_is_constant(view, layer):
        return False
    return shape is not None and len(shape) == _IMAGE and shape[1] % multiple > 0


def find(view: View, multiple: int = 16) -> list[Match]:
    """One match of all layers that read or make padded channels; none where there are no such."""
    channel_masks, wide = channel_masks_of(view, multiple)
    if not wide:
        return []
    read = {index for name in channel_masks for index in view.graph.consumers(name)}
    last = view.graph.layers[max(wide)]
    return [view.match(wide | read, last.outputs[0], (), numbers={"multiple": multiple})]


def apply(draft: ModelDraft, view: View, match: Match) -> None:
    """Pad weights and shapes, in place."""
    channel_masks, wide = channel_masks_of(view, int(match.numbers["multiple"]))
    for index in view.graph.live:
        layer = view.graph.layers[index]
        if index in wide or any(name in channel_masks for name in layer.node.input):
            _widen(draft, view, layer, channel_masks)
    for entry in draft.model.graph.value_info:
        if entry.name in channel_masks and len(entry.type.tensor_type.shape.dim) > 1:
            entry.type.tensor_type.shape.dim[1].dim_value = len(channel_masks[entry.name])


def _widen(draft: ModelDraft, view: View, layer: Layer, channel_masks: dict[str, ChannelMask]) -> None:
    """Give one layer the weights and attributes that it needs."""
    node = draft.maker(layer.outputs[0])
    read, made = channel_masks.get(layer.node.input[0]), channel_masks.get(layer.outputs[0])
    match layer.op_type:
        case "Conv" | "ConvTranspose":
            group = next((attribute for attribute in node.attribute if attribute.name == "group"), None)
            alone = group is not None and group.i > 1
            inner, outer = (1, 0) if layer.op_type == "Conv" else (0, 1)
            places: list[tuple[int, ChannelMask | None, float]] = [(outer, made, 0.0)]
            places += [] if alone else [(inner, read, 0.0)]
            _replace(draft, view, layer, 1, places)
            _replace(draft, view, layer, 2, [(0, made, 0.0)])
            if group is not None and alone and made is not None:
                group.i = len(made)
        case "Gemm" | "MatMul":
            _replace(draft, view, layer, 1, [(1 if view.attribute(layer, "transB") else 0, read, 0.0)])
        case "BatchNormalization":
            for slot, fill in enumerate((0.0, 0.0, 0.0, 1.0), start=1):
                _replace(draft, view, layer, slot, [(0, made, fill)])
        case "Reshape":
            before, after = view.shape(layer.node.input[0]), view.shape(layer.outputs[0])
            assert before is not None and after is not None and made is not None  # noqa: S101, PT018  # it passed
            node.input[1] = draft.constant(np.array([after[0], len(made), *after[2:]], np.int64), "padded_shape")
        case "Resize" if len(layer.node.input) > 3 and layer.node.input[3] and made is not None:
            after = view.shape(layer.outputs[0])
            assert after is not None  # noqa: S101  # it passed
            sizes = np.array([after[0], len(made), *after[2:]], np.int64)
            axes = view.attribute(layer, "axes")
            node.input[3] = draft.constant(sizes if axes is None else sizes[list(axes)], "padded_sizes")
        case operator if operator in POINTWISE and operator not in PARAMETERISED and made is not None:
            shape = view.shape(layer.outputs[0])
            assert shape is not None  # noqa: S101  # it passed
            for slot, name in enumerate(layer.node.input):
                operand = view.weight(layer, slot)
                if operand is None or operand.type is None or name in channel_masks:
                    continue
                axis = 1 - len(shape) + len(operand.type.shape)
                if _across(operand.type.shape, len(shape)) != 1:
                    _replace(draft, view, layer, slot, [(axis, made, 1.0 if operator == "Div" else 0.0)])
        case _:
            pass


def _replace(
    draft: ModelDraft, view: View, layer: Layer, slot: int, places: Sequence[tuple[int, ChannelMask | None, float]]
) -> None:
    """Put a constant input of a layer with more room along some of its axes; what is new there holds a number."""
    if slot >= len(layer.operands) or layer.operands[slot].role is Role.ABSENT:
        return
    wanted = [(axis, channel_mask, fill) for axis, channel_mask, fill in places if channel_mask is not None]
    if not wanted:
        return
    array = _content(view, layer, slot)
    for axis, channel_mask, fill in wanted:
        shape = (*array.shape[:axis], len(channel_mask), *array.shape[axis + 1 :])
        wide = np.full(shape, fill, dtype=array.dtype)
        np.moveaxis(wide, axis, 0)[channel_mask] = np.moveaxis(array, axis, 0)
        array = wide
    draft.maker(layer.outputs[0]).input[slot] = draft.constant(array, "padded")


def _content(view: View, layer: Layer, slot: int) -> Array:
    array = view.content(layer, slot)
    if array is None:
        raise ModelError(f"what '{layer.operands[slot].value}' holds cannot be read", remedy="give the model as a file")
    return array


def _across(shape: Sequence[int], axes: int) -> int:
    """The size of a value along the channels of what it is broadcast to, which has so many axes."""
    place = 1 - axes + len(shape)
    return shape[place] if place >= 0 else 1


def _rounded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
