"""Faults of data that is moved or converted for nothing; the clean twin does nothing in their place."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto
from plants.net import Fault, Net


def einsum_pair(net: Net, x: str) -> str:
    """Channels last by Einsum, and back by Transpose. The runtime's transpose optimizer does not read Einsum."""
    shape = net.shapes[x]
    if len(shape) == 4:
        last = net.op("Einsum", x, shape=(shape[0], *shape[2:], shape[1]), equation="nchw->nhwc")
        return net.transpose(last, 0, 3, 1, 2)
    swapped = net.op("Einsum", x, shape=(shape[0], shape[2], shape[1]), equation="bij->bji")
    return net.transpose(swapped, 0, 2, 1)


def grouped_pair(net: Net, x: str) -> str:
    """Write heads first, a scale, and heads last again, with the heads flattened in between.

    Reshape joins permuted axes, so that the transpose optimizer does not move one Transpose to the other.
    """
    batch, tokens, width = net.shapes[x]
    heads = width // 4
    if net.faulty:
        split = net.transpose(net.reshape(x, batch, tokens, heads, 4), 0, 2, 1, 3)
        x = net.reshape(split, batch, heads, tokens * 4)
    x = _scaled(net, x)
    if net.faulty:
        split = net.transpose(net.reshape(x, batch, heads, tokens, 4), 0, 2, 1, 3)
        x = net.reshape(split, batch, tokens, width)
    return x


def depth_pair(net: Net, x: str) -> str:
    """Write channels to pixels and back, with a clipping in between. The runtime lacks a rule for this pair."""
    batch, channels, height, width = net.shapes[x]
    if net.faulty:
        x = net.op("DepthToSpace", x, shape=(batch, channels // 4, 2 * height, 2 * width), blocksize=2)
    with net.innocent():
        x = net.op("Clip", x, net.scalar(-3.0), net.scalar(3.0), shape=net.shapes[x])
    if net.faulty:
        x = net.op("SpaceToDepth", x, shape=(batch, channels, height, width), blocksize=2)
    return x


def half_pair(net: Net, x: str) -> str:
    """To float16 and back. It rounds, so that the runtime keeps it."""
    return _there_and_back(net, x, TensorProto.FLOAT16)


def bfloat_pair(net: Net, x: str) -> str:
    """To bfloat16 and back. It rounds, so that the runtime keeps it."""
    return _there_and_back(net, x, TensorProto.BFLOAT16)


def _there_and_back(net: Net, x: str, dtype: int) -> str:
    return net.op("Cast", net.op("Cast", x, to=dtype), to=TensorProto.FLOAT)


def double_detour(net: Net, x: str) -> str:
    """To float64 and back around two Reshapes, over which the runtime does not join casts."""
    shape = net.shapes[x]
    wide = net.reshape(net.op("Cast", x, to=TensorProto.DOUBLE), 1, math.prod(shape))
    return net.reshape(net.op("Cast", wide, to=TensorProto.FLOAT), *shape)


def windows(net: Net, x: str) -> str:
    """Write a partition into windows, a scale, and the reverse.

    Reshapes split and join permuted axes and stop the transpose optimizer; the scale separates the two.
    """
    batch, channels, height, width = net.shapes[x]
    rows, columns, size = height // 4, width // 4, 4
    if net.faulty:
        split = net.reshape(x, batch, channels, rows, size, columns, size)
        x = net.reshape(net.transpose(split, 0, 2, 4, 3, 5, 1), batch * rows * columns, size * size, channels)
    x = _scaled(net, x)
    if net.faulty:
        back = net.reshape(x, batch, rows, columns, size, size, channels)
        x = net.reshape(net.transpose(back, 0, 5, 1, 3, 2, 4), batch, channels, height, width)
    return x


def shuffles(net: Net, x: str) -> str:
    """Write a shuffle of channels, a scale, and the shuffle back, twice: Reshape, Transpose, Reshape each.

    Without the scale between them the runtime would cancel them.
    """
    _, channels, *rest = net.shapes[x]
    for groups in (4, channels // 4, 2, channels // 2):
        if net.faulty:
            split = net.reshape(x, 1, groups, channels // groups, *rest)
            x = net.reshape(net.transpose(split, 0, 2, 1, *range(3, 3 + len(rest))), 1, channels, *rest)
        if groups <= 4:
            x = _scaled(net, x)
    return x


def _scaled(net: Net, x: str) -> str:
    with net.innocent():
        return net.op("Mul", x, net.scalar(0.5))


def double_scale(net: Net, x: str) -> str:
    """Write a scale, a shift and x / sqrt(1 + x^2) in float64. The runtime obeys the graph's type."""
    size = (net.shapes[x][1], 1, 1) if len(net.shapes[x]) == 4 else (net.shapes[x][-1],)
    scale, shift = net.drawn("scale", size, 0.1, 1.0), net.drawn("shift", size, 0.1)
    kind = np.float64 if net.faulty else np.float32
    if net.faulty:
        x = net.op("Cast", x, to=TensorProto.DOUBLE)
    x = net.op("Mul", x, net.constant("scale", scale.astype(kind)))
    x = net.op("Add", x, net.constant("shift", shift.astype(kind)))
    x = net.op("Div", x, net.op("Sqrt", net.op("Add", net.op("Mul", x, x), net.scalar(1, kind))))
    return net.op("Cast", x, to=TensorProto.FLOAT) if net.faulty else x


def double_softmax(net: Net, x: str) -> str:
    """Softmax in float64. The runtime computes in the type that the graph says."""
    wide = net.op("Softmax", net.op("Cast", x, to=TensorProto.DOUBLE), axis=-1)
    return net.op("Cast", wide, to=TensorProto.FLOAT)


FAULTS = {
    "einsum-pair": Fault("transposes", "edge", einsum_pair),
    "grouped-pair": Fault("transposes", "edge", grouped_pair, both=True),
    "depth-pair": Fault("transposes", "edge", depth_pair, both=True),
    "half-pair": Fault("casts", "edge", half_pair),
    "bfloat-pair": Fault("casts", "edge", bfloat_pair),
    "double-detour": Fault("casts", "edge", double_detour),
    "windows": Fault("storm", "edge", windows, both=True),
    "shuffles": Fault("storm", "edge", shuffles, both=True),
    "double-scale": Fault("float64", "edge", double_scale, both=True),
    "double-softmax": Fault("float64", "softmax", double_softmax),
}
