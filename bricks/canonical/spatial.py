"""Rules of elementwise and recurrent operators, resampling, convolutions and pools: all geometry becomes explicit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from .draft import CanonicalDraft, OpsetBound, resolve_axis, rule

_ACTIVATIONS = {"RNN": (b"Tanh",), "GRU": (b"Sigmoid", b"Tanh"), "LSTM": (b"Sigmoid", b"Tanh", b"Tanh")}


@rule("RNN", "GRU", "LSTM")
def recurrent(draft: CanonicalDraft) -> None:
    """Give hidden size and activations; the outputs show which of them are used."""
    draft.pop("output_sequence")
    directions, _, hidden = draft.shape(2)
    if draft.attributes.get("direction") == b"foward":  # the default of opset 1, as printed there
        draft.attributes["direction"] = b"forward"
    draft.attributes["hidden_size"] = hidden
    draft.attributes["activations"] = tuple(
        draft.attributes.get("activations") or _ACTIVATIONS[draft.op_type] * directions
    )


_FLOAT8 = ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0")


@rule("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
def binary(draft: CanonicalDraft) -> None:
    """Convert broadcasting from before opset 7, if it aligned the last axes as numpy does."""
    legacy = draft.pop("broadcast", 0)
    axis = draft.pop("axis")
    if draft.since >= 7 or not legacy or axis is None:
        return
    rank, other_rank = draft.rank, len(draft.shape(1))
    if resolve_axis(axis, rank) + other_rank != rank:
        raise OpsetBound("broadcast along leading axes")


@rule("PRelu")
def prelu(draft: CanonicalDraft) -> None:
    """Convert from before opset 7: then the slope ran along the channels, since then numpy's rule holds."""
    if draft.since >= 7:
        return
    slope = draft.type(1)
    if slope.elements != 1 and draft.rank != 2:
        raise OpsetBound("slope along the channels")


@rule("Clip")
def clip(draft: CanonicalDraft) -> None:
    """Give bounds as inputs; a bound at the limit of its type becomes absent."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(draft.type(0).dtype.upper()))
    for slot, name in ((1, "min"), (2, "max")):
        value = draft.pop(name)
        if value is not None:
            draft.put(slot, np.asarray(value, np.float32).astype(dtype))
        bound = draft.array(slot)
        if bound is None or bound.size != 1:
            continue
        if _binds(bound.ravel()[0], largest=slot == 2):
            draft.put(slot, bound.reshape(()))
        else:
            draft.drop(slot)


def _binds(value: Any, *, largest: bool) -> bool:
    """Return True if a bound is inside the range of its type."""
    if value.dtype.kind not in "fiu":  # bfloat16 and others without limits in numpy
        return True
    limits: Any = np.finfo(value.dtype) if value.dtype.kind == "f" else np.iinfo(value.dtype)
    return bool(value < limits.max) if largest else bool(value > limits.min)


@rule("Cast", "CastLike")
def cast(draft: CanonicalDraft) -> None:
    """Write the target as a number; saturation and rounding apply to 8-bit floats only."""
    target = draft.attributes["to"] if draft.op_type == "Cast" else None
    if isinstance(target, bytes):  # before opset 6 it was a name
        draft.attributes["to"] = onnx.TensorProto.DataType.Value(target.decode().upper())
    if draft.output().dtype not in _FLOAT8:
        draft.attributes["saturate"] = 1
        draft.pop("round_mode")


@rule("Dropout")
def dropout(draft: CanonicalDraft) -> None:
    """Remove ratio, training mode and seed: at inference Dropout is the identity."""
    draft.pop("is_test")
    draft.pop("seed")
    ratio = draft.pop("ratio")
    if draft.since < 12:
        if len(draft.outputs) > 1:
            raise OpsetBound("the mask was no boolean, or said nothing at inference")
        return
    if draft.given(2):
        training = draft.array(2)
        if training is None or training.any():
            if ratio is not None:
                raise OpsetBound("ratio given twice")
            return
    draft.drop(1)
    draft.drop(2)


@rule("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def random(draft: CanonicalDraft) -> None:
    """Remove the seed, which does not affect the cost."""
    draft.pop("seed")


@rule("GlobalLpPool")
def whole_order(draft: CanonicalDraft) -> None:
    """Make the attribute ``p`` an integer."""
    order = draft.attributes.get("p", 2)
    if order != int(order):
        raise OpsetBound(f"norm of order {order}")
    draft.attributes["p"] = int(order)


@rule("Softmax", "LogSoftmax", "Hardmax")
def softmax(draft: CanonicalDraft) -> None:
    """Convert from before opset 13: then all axes from ``axis`` on were one.

    Equivalent if only one of them is longer than 1.
    """
    shape = draft.shape(0)
    if not shape:
        raise OpsetBound("a scalar has no axis")
    axis = resolve_axis(draft.attributes["axis"], len(shape))
    if draft.since < 13:
        long = [candidate for candidate in range(axis, len(shape)) if shape[candidate] != 1]
        if len(long) > 1:
            raise OpsetBound("several axes are one")
        axis = long[0] if long else axis
    draft.attributes["axis"] = axis


@rule("Einsum")
def einsum(draft: CanonicalDraft) -> None:
    """Write subscripts explicitly, without blanks, lettered in order of appearance."""
    equation = draft.attributes["equation"].decode().replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    if not arrow:  # numpy's rule: subscripts that appear once, in alphabetical order, after the ellipsis
        letters = inputs.replace(".", "").replace(",", "")
        output = ("..." if "..." in inputs else "") + "".join(
            sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        )
    names: dict[str, str] = {}
    for letter in inputs + output:
        if letter.isalpha() and letter not in names:
            names[letter] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[len(names)]
    relabelled = "".join(names.get(letter, letter) for letter in f"{inputs}->{output}")
    draft.attributes["equation"] = relabelled.encode()


@rule("Gemm")
def gemm(draft: CanonicalDraft) -> None:
    """Remove ``broadcast``: before opset 7 it let the bias broadcast to the last axes, as numpy does."""
    draft.pop("broadcast")


# Rules of operators that resample.


@rule("Upsample")
def upsample(draft: CanonicalDraft) -> None:
    """Rewrite Upsample as a Resize that counts from the corner and rounds down."""
    scales = draft.pop("scales")
    height, width = draft.pop("height_scale"), draft.pop("width_scale")
    if height is not None and width is not None:
        scales = (1.0, 1.0, height, width)
    if scales is None:
        scale_array = draft.array(1)
        if scale_array is None:
            raise OpsetBound("scales are not known")
        scales = scale_array.tolist()
    mode = draft.attributes["mode"]
    draft.attributes["mode"] = b"linear" if mode == b"bilinear" else mode
    draft.op_type = "Resize"
    draft.slots[1:] = []
    draft.put(2, np.asarray(scales, np.float32))
    draft.attributes["coordinate_transformation_mode"] = b"asymmetric"
    if draft.attributes["mode"] == b"nearest":
        draft.attributes["nearest_mode"] = b"floor"


@rule("Resize")
def resize(draft: CanonicalDraft) -> None:
    """Convert sizes to scales if this is exact; set attributes that the mode ignores to their defaults."""
    if draft.since < 11:
        # Convert from opset 10, without roi and choice of coordinates: from the corner, rounding down.
        scales = draft.slot(1)
        draft.drop(1)
        draft.place(2, scales)
        draft.attributes["coordinate_transformation_mode"] = b"asymmetric"
        draft.attributes["nearest_mode"] = b"floor"
    attributes = draft.attributes
    coordinates = attributes["coordinate_transformation_mode"]
    if coordinates == b"tf_half_pixel_for_nn":
        raise OpsetBound("tf_half_pixel_for_nn was withdrawn")
    if coordinates != b"tf_crop_and_resize":
        draft.drop(1)
        attributes.pop("extrapolation_value", None)
    if attributes["mode"] != b"nearest":
        attributes.pop("nearest_mode", None)
    if attributes["mode"] != b"cubic":
        attributes.pop("cubic_coeff_a", None)
    for slot in (1, 2, 3):  # an empty tensor means an absent one
        slot_type = draft.slot(slot).type
        if slot_type is not None and slot_type.elements == 0:
            draft.drop(slot)
    if "axes" in attributes:
        _all_axes(draft)
    stretched = attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    if draft.given(3) and stretched and "axes" not in attributes:
        _say_as_scales(draft)
    if not draft.given(3):
        attributes.pop("keep_aspect_ratio_policy", None)


def _all_axes(draft: CanonicalDraft) -> None:
    """Give scales or sizes for every axis, and remove ``axes``."""
    shape = draft.shape(0)
    axes = [resolve_axis(axis, len(shape)) for axis in draft.attributes["axes"]]
    if draft.given(1) or draft.attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        draft.attributes["axes"] = tuple(axes)
        return
    scales, sizes = draft.array(2), draft.integers(3)
    if scales is not None:
        full = np.ones(len(shape), np.float32)
        full[axes] = scales
        draft.put(2, full)
    elif sizes is not None:
        extents = list(shape)
        for axis, size in zip(axes, sizes, strict=True):
            extents[axis] = size
        draft.put_integers(3, extents)
    else:
        draft.attributes["axes"] = tuple(axes)
        return
    draft.pop("axes")


def _say_as_scales(draft: CanonicalDraft) -> None:
    """Convert sizes to scales if a float32 represents each ratio exactly."""
    shape, sizes = draft.shape(0), draft.integers(3)
    if sizes is None or draft.given(1) or 0 in shape:
        return
    scales = np.asarray([size / extent for size, extent in zip(sizes, shape, strict=True)], np.float32)
    if all(float(scale) * extent == size for scale, extent, size in zip(scales, shape, sizes, strict=True)):
        draft.put(2, scales)
        draft.drop(3)


@rule("GridSample")
def grid_sample(draft: CanonicalDraft) -> None:
    """Remove the prefix of the modes."""
    modes = {b"bilinear": b"linear", b"bicubic": b"cubic"}
    draft.attributes["mode"] = modes.get(draft.attributes["mode"], draft.attributes["mode"])


@rule("RoiAlign")
def roi_align(draft: CanonicalDraft) -> None:
    """Set the default from before opset 16, when pixels were not shifted by a half."""
    if draft.since < 16:
        draft.attributes["coordinate_transformation_mode"] = b"output_half_pixel"


_SAME = (b"SAME_UPPER", b"SAME_LOWER")

DILATED_AVERAGES = 19
"""The opset that added dilations to AveragePool."""


@rule("Conv", "ConvInteger", "DeformConv")
def conv(draft: CanonicalDraft) -> None:
    """Take the kernel's shape from the weight."""
    _window(draft, draft.shape(1)[2:])


@rule("QLinearConv")
def qlinear_conv(draft: CanonicalDraft) -> None:
    """Take the kernel's shape from the weight, input 3."""
    _window(draft, draft.shape(3)[2:])


@rule("ConvTranspose")
def conv_transpose(draft: CanonicalDraft) -> None:
    """Compute the padding from the output's shape; remove ``output_shape`` and ``auto_pad``."""
    kernel = draft.shape(1)[2:]
    mode = draft.attributes.get("auto_pad", b"NOTSET")
    rank = len(kernel)
    draft.attributes["kernel_shape"] = kernel
    strides = _fill(draft, "strides", (1,) * rank)
    dilations = _fill(draft, "dilations", (1,) * rank)
    extra = _fill(draft, "output_padding", (0,) * rank)
    if mode == b"NOTSET" and "output_shape" not in draft.attributes:
        _fill(draft, "pads", (0,) * (2 * rank))
        return
    extents = draft.shape(0)[2:]
    output_extents = draft.output().shape[2:]
    total = [
        stride * (extent - 1) + more + (size - 1) * dilation + 1 - out
        for stride, extent, more, size, dilation, out in zip(
            strides, extents, extra, kernel, dilations, output_extents, strict=True
        )
    ]
    if any(pad < 0 for pad in total):
        raise OpsetBound("the output is larger than the kernel reaches")
    if mode != b"SAME_UPPER" and any(pad % 2 for pad in total):
        raise OpsetBound("the side of the odd padding changed between versions")  # opset 1 and 11 say the opposite
    low = [pad // 2 for pad in total]
    draft.attributes["pads"] = (*low, *(pad - first for pad, first in zip(total, low, strict=True)))
    draft.attributes["auto_pad"] = b"NOTSET"
    draft.pop("output_shape")


@rule("MaxPool")
def max_pool(draft: CanonicalDraft) -> None:
    """Ignore the order of indices unless indices are used."""
    _pool(draft)
    if len(draft.outputs) < 2:
        draft.attributes["storage_order"] = 0


@rule("AveragePool")
def average_pool(draft: CanonicalDraft) -> None:
    """Ignore ``count_include_pad`` if there is no padding."""
    _pool(draft)
    if not any(draft.attributes["pads"]) and not draft.attributes.get("ceil_mode", 0):
        draft.attributes["count_include_pad"] = 0


@rule("LpPool")
def lp_pool(draft: CanonicalDraft) -> None:
    """Make the window explicit and the norm's order an integer."""
    if "kernel_shape" not in draft.attributes:
        raise OpsetBound("no kernel_shape")
    whole_order(draft)
    _pool(draft)


@rule("MaxUnpool")
def max_unpool(draft: CanonicalDraft) -> None:
    """Make strides and padding explicit."""
    rank = len(draft.attributes["kernel_shape"])
    _fill(draft, "strides", (1,) * rank)
    _fill(draft, "pads", (0,) * (2 * rank))


@rule("Col2Im")
def col2im(draft: CanonicalDraft) -> None:
    """Make strides, padding and dilations explicit."""
    rank = draft.type(1).elements
    _fill(draft, "strides", (1,) * rank)
    _fill(draft, "dilations", (1,) * rank)
    _fill(draft, "pads", (0,) * (2 * rank))


def _pool(draft: CanonicalDraft) -> None:
    kernel = draft.attributes["kernel_shape"]
    _window(draft, kernel)
    if not draft.attributes.get("ceil_mode", 0):
        return
    extents = draft.shape(0)[2:]
    attributes = draft.attributes
    pads = attributes["pads"]
    floor = tuple(
        (extent + pads[i] + pads[i + len(kernel)] - (kernel[i] - 1) * attributes["dilations"][i] - 1)
        // attributes["strides"][i]
        + 1
        for i, extent in enumerate(extents)
    )
    if floor == draft.output().shape[2:]:  # the last window is whole: rounding up and down agree
        attributes["ceil_mode"] = 0


def _window(draft: CanonicalDraft, kernel: tuple[int, ...]) -> None:
    """Make a sliding window's geometry explicit: kernel, strides, dilations, and pads instead of ``auto_pad``."""
    rank = len(kernel)
    draft.attributes["kernel_shape"] = tuple(kernel)
    strides = _fill(draft, "strides", (1,) * rank)
    dilations = _fill(draft, "dilations", (1,) * rank)
    mode = draft.attributes.get("auto_pad", b"NOTSET")
    if mode == b"VALID":
        draft.attributes["pads"] = (0,) * (2 * rank)
    elif mode in _SAME:
        draft.attributes["pads"] = same_pads(draft.shape(0)[2:], kernel, strides, dilations, upper=mode == _SAME[0])
    else:
        _fill(draft, "pads", (0,) * (2 * rank))
    if "auto_pad" in draft.attributes:
        draft.attributes["auto_pad"] = b"NOTSET"


def same_pads(
    extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], *, upper: bool
) -> tuple[int, ...]:
    """Return the padding for ``ceil(extent / stride)`` outputs; an odd one goes to the end (upper) or the beginning."""
    low: list[int] = []
    high: list[int] = []
    for extent, size, stride, dilation in zip(extents, kernel, strides, dilations, strict=True):
        outputs = -(-extent // stride)
        total = max((outputs - 1) * stride + (size - 1) * dilation + 1 - extent, 0)
        small, large = total // 2, total - total // 2
        low.append(small if upper else large)
        high.append(large if upper else small)
    return (*low, *high)


def _fill(draft: CanonicalDraft, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return a per-axis attribute; set its default if missing or empty.

    Raises:
        ValueError: Its value has another number of axes.
    """
    value: tuple[int, ...] = draft.attributes.get(name) or default
    if len(value) != len(default):
        raise ValueError(f"{name} {value} for {len(default)} values")
    draft.attributes[name] = value
    return value
