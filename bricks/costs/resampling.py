"""Work of interpolation and of operators on signals: resizing, grid sampling, Fourier transforms, windows."""

from __future__ import annotations

import math

from ..cost import Cost
from .call import Call, Formula, UnknownCostError

__all__ = ["FORMULAS", "interpolate"]

_TAPS = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
"""Neighbours read per axis by interpolation mode."""


def interpolate(elements: int, mode: str, axes: int) -> Cost:
    """``taps^axes`` macs per output element: 2 taps an axis for linear, 4 for cubic; nearest only copies."""
    taps = _TAPS.get(mode)
    if taps is None:
        raise UnknownCostError(f"interpolation mode {mode}")
    if taps == 1:
        return Cost()
    return Cost(multiplications=elements * taps**axes, additions=elements * (taps**axes - 1))


def resize(call: Call) -> Cost:
    """``interpolate`` over the axes whose size changes (or is named by ``axes``)."""
    data, out = call.input(0), call.output()
    changed = sum(before != after for before, after in zip(data.shape, out.shape, strict=True))
    return interpolate(out.elements, call.attribute("mode", "nearest"), changed)


def grid_sample(call: Call) -> Cost:
    """``interpolate`` over all spatial axes."""
    out = call.output()
    return interpolate(out.elements, call.attribute("mode", "linear"), len(out.shape) - 2)


def affine_grid(call: Call) -> Cost:
    """One matrix-vector product per point: ``macs = points * d (d + 1)`` with d spatial axes."""
    out = call.output()
    d = out.shape[-1]
    return Cost(macs=out.elements // d * d * (d + 1)) if d else Cost()


def col2im(call: Call) -> Cost:
    """Overlapping blocks are added up: ``additions = input elements``."""
    return Cost(additions=call.input(0).elements)


def _fourier(transforms: int, length: int) -> Cost:
    """Radix-2 butterflies of length N: ``2 N log2 N`` multiplications and ``3 N log2 N`` additions each."""
    stages = max(1, (length - 1).bit_length())
    return Cost(
        multiplications=2 * transforms * length * stages,
        additions=3 * transforms * length * stages,
    )


def dft(call: Call) -> Cost:
    """``transforms * (2 + 3) N log2 N`` (``_fourier``); N is the transformed axis of the output."""
    out = call.output()
    axis = call.parameter(2, "axis")
    index = int(axis[0]) if axis else (1 if call.attribute("axis") is not None else -2)
    length = max(out.shape[index], call.input(0).shape[index])
    transforms = out.elements // (out.shape[index] * out.shape[-1]) if out.elements else 0
    return _fourier(transforms, length)


def stft(call: Call) -> Cost:
    """Per frame one windowing (N multiplications) and one transform (``_fourier``) of N = frame length."""
    out = call.output()
    length = call.values(3)
    size = int(length[0]) if length else (call.input(2).elements if call.has(2) else 0)
    if size == 0:
        raise UnknownCostError("STFT with a frame length computed at run time")
    frames = math.prod(out.shape[:-2])
    work = _fourier(frames, size)
    return work + Cost(multiplications=frames * size) if call.has(2) else work


def window(call: Call) -> Cost:
    """Per point of the window at most two cosines with a multiplication and an addition each."""
    n = call.output().elements
    terms = 2 if call.node.op_type == "BlackmanWindow" else 1
    return Cost(exponentials=terms * n, multiplications=2 * terms * n, additions=terms * n)


def uniform(call: Call) -> Cost:
    """Per element scale and shift of one draw; the generator's integer arithmetic is not counted."""
    n = call.output().elements
    return Cost(multiplications=n, additions=n)


def normal(call: Call) -> Cost:
    """Box-Muller per element: a logarithm, a cosine, a root, then scale and shift."""
    n = call.output().elements
    return Cost(exponentials=2 * n, divisions=n, multiplications=2 * n, additions=n)


def bernoulli(call: Call) -> Cost:
    """One draw and one comparison per element."""
    n = call.output().elements
    return Cost(comparisons=n)


FORMULAS: dict[tuple[str, str], Formula] = {
    ("", "AffineGrid"): affine_grid,
    ("", "Bernoulli"): bernoulli,
    ("", "BlackmanWindow"): window,
    ("", "Col2Im"): col2im,
    ("", "DFT"): dft,
    ("", "GridSample"): grid_sample,
    ("", "HammingWindow"): window,
    ("", "HannWindow"): window,
    ("", "RandomNormal"): normal,
    ("", "RandomNormalLike"): normal,
    ("", "RandomUniform"): uniform,
    ("", "RandomUniformLike"): uniform,
    ("", "Resize"): resize,
    ("", "STFT"): stft,
    ("", "Upsample"): resize,
}
