"""Discrete Fourier transforms, whose kernels are slow, as products and convolutions with their matrices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .recording import Values, late
from .rewrite import Array, Draft, Rewrite

_MOST_WEIGHTS = 1 << 24
_SAMPLE_NS, _MACS_PER_NS = 60.0, 20.0
"""Rough times of the slow kernels by element of the result; of products."""


def transforms(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of DFT and STFT with constant lengths."""
    rewrites = list[Rewrite]()
    for index, node in enumerate(values.graph.nodes):
        search = {"DFT": _dft, "STFT": _stft}.get(node.op_type)
        if search is not None and not late(deadline):
            rewrites += values.attempt(list, search(values, index)) or []
    return rewrites


def fourier(length: int, bins: int, *, inverse: bool = False) -> Array:
    """Return the factors of a transform by sample, bin and part (real, imaginary), for real samples, in float64."""
    angle = 2 * np.pi * np.outer(np.arange(length), np.arange(bins)) / length
    sign, scale = (1, 1 / length) if inverse else (-1, 1)
    return scale * np.stack([np.cos(angle), sign * np.sin(angle)], -1)


def _dft(values: Values, index: int) -> Iterator[Rewrite]:
    """Write a DFT along the last axis but one as a product; a shorter length cuts the input."""
    graph, node, attributes = values.graph, values.graph.nodes[index], values.graph.attributes[index]
    x, shape, out = node.input[0], values.shapes.get(node.input[0]), values.shapes.get(node.output[0])
    if shape is None or out is None or values.dtypes.get(x) != np.float32:
        return
    arrays = [values.graph.constants.get(name) for name in node.input[1:] if name]
    if any(array is None for array in arrays) or len(shape) < 3:
        return
    axis = attributes.get("axis", 1)
    if len(node.input) > 2 and node.input[2]:
        axis = int(graph.constants[node.input[2]].reshape(-1)[0])
    length, parts, bins = shape[-2], shape[-1], out[-2]
    named = len(node.input) > 1 and node.input[1]
    if axis % len(shape) != len(shape) - 2 or (named and int(graph.constants[node.input[1]].reshape(-1)[0]) != length):
        return
    factors = fourier(length, bins, inverse=bool(attributes.get("inverse")))
    if parts == 2:  # (a + ib) (c + id), by part of the sample and of the result
        real, imaginary = factors[..., 0], factors[..., 1]
        factors = np.stack([np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)], 1)
    weights = factors.reshape(length * parts, bins * 2)
    if weights.size > _MOST_WEIGHTS:
        return
    draft, lead = Draft(graph), [0] * (len(shape) - 2)
    flat = draft.reshape(x, [*lead, length * parts])
    product = draft.op("MatMul", flat, draft.constant(weights, np.float32))
    draft.reshape(product, [*lead, bins, 2], to=node.output[0])
    saving_ns = _SAMPLE_NS * np.prod(out) - np.prod(out) * length * parts / _MACS_PER_NS
    if saving_ns > 0:
        yield draft.rewrite("transforms: DFT as a product", node.output, [node.name], float(saving_ns))


def _stft(values: Values, index: int) -> Iterator[Rewrite]:
    """Write an STFT of a real signal as a convolution."""
    graph, node = values.graph, values.graph.nodes[index]
    x, shape, out = node.input[0], values.shapes.get(node.input[0]), values.shapes.get(node.output[0])
    arrays = [*(graph.constants.get(name) if name else None for name in node.input[1:]), None, None, None][:3]
    step, window, length = arrays
    named = [bool(name) for name in [*node.input[1:], "", "", ""][:3]]
    all_constant = all(array is not None for array, name in zip(arrays, named, strict=True) if name)
    if shape is None or out is None or step is None or not all_constant or values.dtypes.get(x) != np.float32:
        return
    frame = int(length.reshape(-1)[0]) if length is not None else 0 if window is None else len(window)
    if not frame or (window is not None and len(window) != frame) or (len(shape) == 3 and shape[-1] != 1):
        return
    bins = out[-2]
    factors = fourier(frame, bins)
    if window is not None:
        factors = factors * window.astype(np.float64)[:, None, None]
    weights = factors.transpose(1, 2, 0).reshape(bins * 2, 1, frame)
    if weights.size > _MOST_WEIGHTS:
        return
    draft = Draft(graph)
    signal = draft.reshape(x, [0, 1, -1])
    hop = int(step.reshape(-1)[0])
    spectra = draft.op("Conv", signal, draft.constant(weights, np.float32), kernel_shape=[frame], strides=[hop])
    spectra = draft.op("Transpose", spectra, perm=[0, 2, 1])
    draft.reshape(spectra, [0, 0, bins, 2], to=node.output[0])
    saving_ns = _SAMPLE_NS * np.prod(out) - np.prod(out) * frame / _MACS_PER_NS
    yield draft.rewrite("transforms: STFT as a convolution", node.output, [node.name], float(max(saving_ns, 0.0)))
