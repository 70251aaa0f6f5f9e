"""Rules of operators that slide a window: convolutions and pools. Padding, strides and dilations become explicit."""

from __future__ import annotations

from .draft import Draft, OpsetBound
from .elementwise import whole_order
from .registry import rule

_SAME = (b"SAME_UPPER", b"SAME_LOWER")

DILATED_AVERAGES = 19
"""The opset since which AveragePool has dilations."""


@rule("Conv")
def conv(draft: Draft) -> None:
    """The kernel's extent comes from the weight."""
    _window(draft, draft.shape(1)[2:])


@rule("ConvInteger")
def conv_integer(draft: Draft) -> None:
    """The kernel's extent comes from the weight."""
    _window(draft, draft.shape(1)[2:])


@rule("QLinearConv")
def qlinear_conv(draft: Draft) -> None:
    """The kernel's extent comes from the weight, which is input 3."""
    _window(draft, draft.shape(3)[2:])


@rule("DeformConv")
def deform_conv(draft: Draft) -> None:
    """The kernel's extent comes from the weight."""
    _window(draft, draft.shape(1)[2:])


@rule("ConvTranspose")
def conv_transpose(draft: Draft) -> None:
    """Padding is what the output's extent says; ``output_shape`` and ``auto_pad`` go."""
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
    wanted = draft.output().shape[2:]
    total = [
        stride * (extent - 1) + more + (size - 1) * dilation + 1 - out
        for stride, extent, more, size, dilation, out in zip(
            strides, extents, extra, kernel, dilations, wanted, strict=True
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
def max_pool(draft: Draft) -> None:
    """The order of indices matters only where indices are wanted."""
    _pool(draft)
    if len(draft.outputs) < 2:
        draft.attributes["storage_order"] = 0


@rule("AveragePool")
def average_pool(draft: Draft) -> None:
    """Whether padding counts matters only where there is padding. Before opset 19 windows were not dilated."""
    _pool(draft)
    if not any(draft.attributes["pads"]) and not draft.attributes.get("ceil_mode", 0):
        draft.attributes["count_include_pad"] = 0


@rule("LpPool")
def lp_pool(draft: Draft) -> None:
    """As the other pools, and the norm's order is an integer."""
    if "kernel_shape" not in draft.attributes:
        raise OpsetBound("no kernel_shape")
    whole_order(draft)
    _pool(draft)


@rule("MaxUnpool")
def max_unpool(draft: Draft) -> None:
    """Strides and padding are explicit."""
    rank = len(draft.attributes["kernel_shape"])
    _fill(draft, "strides", (1,) * rank)
    _fill(draft, "pads", (0,) * (2 * rank))


@rule("MaxRoiPool")
def max_roi_pool(draft: Draft) -> None:
    """Nothing to resolve: its defaults say it all."""


@rule("Col2Im")
def col2im(draft: Draft) -> None:
    """Strides, padding and dilations are explicit."""
    rank = draft.type(1).elements
    _fill(draft, "strides", (1,) * rank)
    _fill(draft, "dilations", (1,) * rank)
    _fill(draft, "pads", (0,) * (2 * rank))


def _pool(draft: Draft) -> None:
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


def _window(draft: Draft, kernel: tuple[int, ...]) -> None:
    """Make a sliding window's geometry explicit: kernel, strides, dilations, and pads instead of ``auto_pad``."""
    rank = len(kernel)
    draft.attributes["kernel_shape"] = tuple(kernel)
    strides = _fill(draft, "strides", (1,) * rank)
    dilations = _fill(draft, "dilations", (1,) * rank)
    mode = draft.attributes.get("auto_pad", b"NOTSET")
    if mode == b"VALID":
        draft.attributes["pads"] = (0,) * (2 * rank)
    elif mode in _SAME:
        draft.attributes["pads"] = _same_pads(draft.shape(0)[2:], kernel, strides, dilations, upper=mode == _SAME[0])
    else:
        _fill(draft, "pads", (0,) * (2 * rank))
    if "auto_pad" in draft.attributes:
        draft.attributes["auto_pad"] = b"NOTSET"


def _same_pads(
    extents: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...],
    *, upper: bool,
) -> tuple[int, ...]:  # fmt: skip
    """Padding that makes ``ceil(extent / stride)`` outputs; an odd one goes to the end (upper) or the beginning."""
    low: list[int] = []
    high: list[int] = []
    for extent, size, stride, dilation in zip(extents, kernel, strides, dilations, strict=True):
        outputs = -(-extent // stride)
        total = max((outputs - 1) * stride + (size - 1) * dilation + 1 - extent, 0)
        small, large = total // 2, total - total // 2
        low.append(small if upper else large)
        high.append(large if upper else small)
    return (*low, *high)


def _fill(draft: Draft, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """The value of a per-axis attribute; its default where it is missing or empty.

    Raises:
        ValueError: It has a value for another number of axes.
    """
    value: tuple[int, ...] = draft.attributes.get(name) or default
    if len(value) != len(default):
        raise ValueError(f"{name} {value} for {len(default)} values")
    draft.attributes[name] = value
    return value
