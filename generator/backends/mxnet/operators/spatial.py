"""Convolutions, and what they share with pooling: windows over the dimensions behind batch and channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .node import Node, Symbol, operator

__all__ = ["Window", "window"]

_NATIVE = 3
"""Spatial dimensions that MXNet convolves over at most."""


@dataclass(frozen=True, slots=True)
class Window:
    """What moves over the spatial dimensions; one number per dimension.

    Attributes:
        kernel: Its size.
        strides: Its steps.
        dilations: Distances of its elements.
        begin: Padding in front of the data.
        end: Padding behind it.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    def padded(self, node: Node, data: Symbol, filler: float = 0.0) -> Symbol:
        """The data with its padding as data."""
        width = ((0, 0), (0, 0), *zip(self.begin, self.end, strict=True))
        return node.padded(data, width, "constant", filler)

    def places(self, size: Sequence[int]) -> tuple[int, ...]:
        """Number of places of the window in padded data, rounded down."""
        room = [length + before + behind for length, before, behind in zip(size, self.begin, self.end, strict=True)]
        return tuple(
            (length - dilation * (kernel - 1) - 1) // stride + 1
            for length, kernel, dilation, stride in zip(room, self.kernel, self.dilations, self.strides, strict=True)
        )


def window(node: Node, kernel: Sequence[int], result: Sequence[int]) -> Window:
    """The window of an operator, automatic padding resolved."""
    count = len(kernel)
    if count > _NATIVE:
        raise node.refusal(f"over {count} dimensions")
    strides = tuple(node.attribute("strides", (1,) * count))
    dilations = tuple(node.attribute("dilations", (1,) * count))
    pads = tuple(node.attribute("pads", (0,) * 2 * count))
    automatic = node.attribute("auto_pad", "NOTSET")
    begin, end = pads[:count], pads[count:]
    if automatic in {"SAME_UPPER", "SAME_LOWER"}:
        reach = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
        data = node.shape()[2:]
        total = [
            max((places - 1) * stride + span - length, 0)
            for places, stride, span, length in zip(result, strides, reach, data, strict=True)
        ]
        less, more = tuple(pad // 2 for pad in total), tuple(pad - pad // 2 for pad in total)
        begin, end = (less, more) if automatic == "SAME_UPPER" else (more, less)
    elif automatic == "VALID":
        begin = end = (0,) * count
    if min(*begin, *end) < 0:
        raise node.refusal("with negative pads")
    return Window(tuple(kernel), strides, dilations, begin, end)


@operator("Conv")
def _conv(node: Node) -> Symbol:
    kernel = node.shape(1)[2:]
    found = window(node, kernel, node.result()[2:])
    even = found.begin == found.end
    return node.sym.Convolution(
        node.symbol(0) if even else found.padded(node, node.symbol(0)),
        *(node.symbol(index) for index in (1, 2) if node.has(index)),
        kernel=found.kernel,
        stride=found.strides,
        dilate=found.dilations,
        pad=found.begin if even else (0,) * len(kernel),
        num_filter=node.shape(1)[0],
        num_group=node.attribute("group", 1),
        no_bias=not node.has(2),
    )


@operator("ConvTranspose")
def _conv_transpose(node: Node) -> Symbol:
    kernel = node.shape(1)[2:]
    count = len(kernel)
    group = node.attribute("group", 1)
    pads = tuple(node.attribute("pads", (0,) * 2 * count))
    plain = node.attribute("auto_pad", "NOTSET") == "NOTSET" and node.attribute("output_shape") is None
    if not plain or pads[:count] != pads[count:] or count > _NATIVE:
        raise node.refusal("with pads that differ or are computed")
    return node.sym.Deconvolution(
        *(node.symbol(index) for index in (0, 1, 2) if node.has(index)),
        kernel=kernel,
        stride=tuple(node.attribute("strides", (1,) * count)),
        dilate=tuple(node.attribute("dilations", (1,) * count)),
        pad=pads[:count],
        adj=tuple(node.attribute("output_padding", (0,) * count)),
        num_filter=node.shape(1)[1] * group,
        num_group=group,
        no_bias=not node.has(2),
    )


@operator("Resize", "Upsample")
def _resize(node: Node) -> Symbol:
    mode = node.attribute("mode", "nearest")
    data, result = node.shape(), node.result()
    if mode != "nearest" or any(large % small for small, large in zip(data, result, strict=True)):
        raise node.refusal(f"in mode {mode} from {data} to {result}")
    rounding = node.attribute("nearest_mode", "round_prefer_floor")
    place = node.attribute("coordinate_transformation_mode", "half_pixel")
    repeats = place == "asymmetric" and rounding == "floor"
    halves = place == "half_pixel" and rounding.startswith("round_prefer")
    if node.op == "Resize" and not (repeats or halves):
        raise node.refusal(f"with {place} and {rounding}")
    symbol = node.symbol()
    for axis, (small, large) in enumerate(zip(data, result, strict=True)):
        if large != small:
            symbol = node.sym.repeat(symbol, repeats=large // small, axis=axis)
    return symbol
