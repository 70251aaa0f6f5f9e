"""Building blocks of architectures; each place for a fault asks the net."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from plants.net import Array, Net


def conv(net: Net, x: str, outputs: int, kernel: int, *, stride: int = 1) -> str:
    """Add a convolution with padding that keeps the size, without a bias."""
    into, out = net.lanes_of(x), net.channels(outputs)
    real = net.drawn("weight", (outputs, int(into.sum()), kernel, kernel), math.sqrt(2 / (into.sum() * kernel**2)))
    weight = np.zeros((len(out), len(into), kernel, kernel), np.float32)
    weight[np.ix_(out, into)] = real
    batch, _, height, width = net.shapes[x]
    filters = net.weight("weight", weight)
    with net.uneven(len(into), len(out)):
        made = net.op(
            "Conv", x, filters, shape=(batch, len(out), -(-height // stride), -(-width // stride)),
            kernel_shape=[kernel, kernel], pads=_pads(kernel, stride, height), strides=[stride, stride],
        )  # fmt: skip
    net.lanes[made] = out
    return made


def _pads(kernel: int, stride: int, size: int) -> list[int]:
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return [total // 2, total // 2, total - total // 2, total - total // 2]


def depthwise(net: Net, x: str, kernel: int, *, stride: int = 1) -> str:
    """Add a depthwise convolution."""
    batch, channels, height, width = net.shapes[x]
    weight = net.drawn("weight", (channels, 1, kernel, kernel), 1 / kernel)
    return net.op(
        "Conv", x, net.weight("weight", weight), shape=(batch, channels, -(-height // stride), -(-width // stride)),
        kernel_shape=[kernel, kernel], pads=_pads(kernel, stride, height), strides=[stride, stride], group=channels,
    )  # fmt: skip


def batch_norm(net: Net, x: str) -> str:
    """Normalisation by stored statistics."""
    stored = map(net.constant, ("scale", "bias", "mean", "var"), statistics(net, x))
    return net.op("BatchNormalization", x, *stored, shape=net.shapes[x])


def statistics(net: Net, x: str) -> list[Array]:
    """Scale, bias, mean and variance; of lanes that are not real 0, 0, 0 and 1."""
    real = net.lanes_of(x)
    rows = [
        net.drawn("scale", (int(real.sum()),), 0.1, 1.0), net.drawn("bias", (int(real.sum()),), 0.1),
        net.drawn("mean", (int(real.sum()),), 0.1), np.abs(net.drawn("var", (int(real.sum()),), 0.1, 1.0)),
    ]  # fmt: skip
    wide = [np.full(len(real), filling, np.float32) for filling in (0, 0, 0, 1)]
    for one, row in zip(wide, rows, strict=True):
        one[real] = row
    return wide


def conv_bn(net: Net, x: str, outputs: int, kernel: int, stride: int = 1) -> str:
    """Add a convolution and its normalisation."""
    return str(net.at("conv_bn", batch_norm, conv(net, x, outputs, kernel, stride=stride)))


def relu(net: Net, x: str) -> str:
    """Add the maximum of x and 0."""
    return net.op("Relu", x)


def dense(net: Net, x: str, outputs: int, *, bias: bool = True) -> str:
    """Add a matrix product over the last axis."""
    into = net.shapes[x][-1]
    made = net.matmul(x, net.weight("weight", net.drawn("weight", (into, outputs), 1 / math.sqrt(into))))
    return net.op("Add", made, net.constant("bias", net.drawn("bias", (outputs,), 0.1))) if bias else made


def gelu(net: Net, x: str) -> str:
    """GELU, x * (1 + erf(x / sqrt 2)) / 2, in the form that the runtime knows."""

    def plain(net: Net, x: str) -> str:
        ratio = net.op("Erf", net.op("Div", x, net.scalar(math.sqrt(2))))
        return net.op("Mul", net.op("Mul", x, net.op("Add", ratio, net.scalar(1))), net.scalar(0.5))

    return str(net.at("gelu", plain, x))


def layer_norm(net: Net, x: str) -> str:
    """Normalisation over the last axis."""

    def plain(net: Net, x: str) -> str:
        return net.op("LayerNormalization", x, *ln_parameters(net, x), shape=net.shapes[x], axis=-1, epsilon=1e-5)

    return str(net.at("norm", plain, x))


def ln_parameters(net: Net, x: str) -> tuple[str, str]:
    """Scale and bias of a normalisation."""
    size = (net.shapes[x][-1],)
    return net.constant("scale", net.drawn("scale", size, 0.1, 1.0)), net.constant("bias", net.drawn("bias", size, 0.1))


def softmax(net: Net, x: str) -> str:
    """Over the last axis."""
    return str(net.at("softmax", lambda net, x: net.op("Softmax", x, axis=-1), x))


def attention(net: Net, x: str, heads: int) -> str:
    """Self-attention; ``mask`` is a place between the scores and their softmax."""
    batch, tokens, width = net.shapes[x]

    def split(role: str, *perm: int) -> str:
        with net.scope(role):
            return net.transpose(net.reshape(dense(net, x, width), batch, tokens, heads, width // heads), *perm)

    query, key, value = split("q", 0, 2, 1, 3), split("k", 0, 2, 3, 1), split("v", 0, 2, 1, 3)
    scores = net.op("Mul", net.matmul(query, key), net.scalar(1 / math.sqrt(width // heads)))
    found = net.matmul(softmax(net, net.at("mask", lambda _, unchanged: unchanged, scores)), value)
    with net.scope("out"):
        return dense(net, net.reshape(net.transpose(found, 0, 2, 1, 3), batch, tokens, width), width)


def mlp(net: Net, x: str, hidden: int) -> str:
    """Two matrices with a GELU between them."""
    width = net.shapes[x][-1]
    with net.scope("fc1"):
        inner = gelu(net, dense(net, x, hidden))
    with net.scope("fc2"):
        return dense(net, inner, width)


def classifier(net: Net, x: str, classes: int = 100) -> None:
    """Mean over space, and a matrix; the output."""
    with net.scope("head"):
        batch, channels, *_ = net.shapes[x]
        real = net.lanes_of(x)
        pooled = net.op("GlobalAveragePool", x, shape=(batch, channels, 1, 1))
        flat = net.op("Flatten", pooled, shape=(batch, channels), axis=1)
        weight = np.zeros((len(real), classes), np.float32)
        weight[real] = net.drawn("weight", (int(real.sum()), classes), 0.1)
        bias = net.constant("bias", net.drawn("bias", (classes,), 0.1))
        net.output(net.op("Gemm", flat, net.constant("weight", weight), bias, shape=(batch, classes)))


def towers(net: Net, views: list[str], tower: Callable[[Net, str], str]) -> list[str]:
    """Add the same part for several inputs, in one batch unless a fault is planted."""

    def together(net: Net, views: list[str], tower: Callable[[Net, str], str]) -> list[str]:
        batch = net.shapes[views[0]][0]
        made = tower(net, net.concat(views, 0))
        sizes = net.constant("split", np.full(len(views), batch, np.int64))
        return net.ops("Split", made, sizes, shapes=[(batch, *net.shapes[made][1:])] * len(views), axis=0)

    return list(net.at("towers", together, views, tower))
