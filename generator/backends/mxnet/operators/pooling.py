"""Pooling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .node import Node, Symbol, operator
from .spatial import Window, window

__all__: list[str] = []

_GLOBAL = {"GlobalAveragePool": "avg", "GlobalMaxPool": "max"}


@operator(*_GLOBAL)
def _global_pool(node: Node) -> Symbol:
    kernel = (1,) * (node.rank() - 2)
    return node.sym.Pooling(node.symbol(), kernel=kernel, global_pool=True, pool_type=_GLOBAL[node.op])


@operator("MaxPool", "AveragePool")
def _pool(node: Node) -> Symbol:
    if node.wants(1):
        raise node.refusal("that returns its indices")
    found = window(node, node.attribute("kernel_shape"), node.result()[2:])
    if set(found.dilations) != {1}:
        raise node.refusal("with dilations")
    average = node.op == "AveragePool"
    padding_counts = bool(average and node.attribute("count_include_pad", 0))
    data, pads = node.symbol(), found.begin
    convention = _convention(found, node.shape()[2:], node.result()[2:])
    if convention is None or (padding_counts and convention == "full"):
        if average and not padding_counts:
            return _average_of_data(node, found)
        filler = 0.0 if average else float(np.finfo(node.dtype()).min)
        data, pads, convention = found.padded(node, data, filler), (0,) * len(found.begin), "valid"
        if found.places(node.shape()[2:]) != node.result()[2:]:
            raise node.refusal("that rounds its size up over padding that counts")
    return node.sym.Pooling(
        data,
        kernel=found.kernel,
        stride=found.strides,
        pad=pads,
        pool_type="avg" if average else "max",
        pooling_convention=convention,
        **({"count_include_pad": padding_counts} if average else {}),
    )


def _average_of_data(node: Node, found: Window) -> Symbol:
    """Averages with uneven padding that does not count: sums over padded data, by how much of each window is data."""
    places = node.result()[2:]
    reaches = [
        (place - 1) * stride + kernel for place, stride, kernel in zip(places, found.strides, found.kernel, strict=True)
    ]
    ends = tuple(
        max(0, reach - length - before)
        for reach, length, before in zip(reaches, node.shape()[2:], found.begin, strict=True)
    )
    data = replace(found, end=ends).padded(node, node.symbol())
    sums = node.sym.Pooling(
        data, kernel=found.kernel, stride=found.strides, pool_type="sum", pooling_convention="valid"
    )
    shares = np.ones((1, 1), dtype=node.dtype())
    for length, before, place, stride, kernel in zip(
        node.shape()[2:], found.begin, places, found.strides, found.kernel, strict=True
    ):
        begins = np.arange(place) * stride - before
        counts = np.minimum(begins + kernel, length) - np.maximum(begins, 0)
        shares = shares[..., None] / counts.astype(node.dtype())
    return node.sym.broadcast_mul(sums, node.bind(shares))


def _convention(found: Window, size: tuple[int, ...], result: tuple[int, ...]) -> str | None:
    """How MXNet rounds to get the result's size with the padding in front on both sides; None where neither way does.

    What lies behind the data does not count, so that padding there may stand for size that is rounded up.
    """
    spans = [
        (length + 2 * pad - kernel, stride)
        for length, pad, kernel, stride in zip(size, found.begin, found.kernel, found.strides, strict=True)
    ]
    if found.begin == found.end and tuple(span // stride + 1 for span, stride in spans) == result:
        return "valid"
    if tuple(-(-span // stride) + 1 for span, stride in spans) == result:
        return "full"
    return None
