"""Padding of windows that slide over the last axes: of convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence

from .call import Call

__all__ = ["explicit_pads", "padding_list"]


def explicit_pads(
    call: Call, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Padding at the beginning and at the end of each axis, from ``pads`` or ``auto_pad``.

    With ``SAME_UPPER`` and ``SAME_LOWER`` the output has ``ceil(size / stride)`` elements; an odd rest goes to the end
    or to the beginning.
    """
    rank = len(sizes)
    automatic = call.get("auto_pad", "NOTSET")
    if automatic in {"NOTSET", ""}:
        pads = call.get("pads") or [0] * (2 * rank)
        return list(pads[:rank]), list(pads[rank:])
    if automatic == "VALID":
        return [0] * rank, [0] * rank
    before, after = [], []
    for size, window, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size, 0)
        small = total // 2
        before.append(small if automatic == "SAME_UPPER" else total - small)
        after.append(total - before[-1])
    return before, after


def padding_list(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """What ``torch.nn.functional.pad`` takes: the last axis first."""
    return [pad for pair in reversed(list(zip(before, after, strict=True))) for pad in pair]
