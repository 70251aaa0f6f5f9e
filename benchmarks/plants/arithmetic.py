"""Faults of arithmetic: the clean twin computes the same with fewer or faster operators."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import TensorProto
from plants.blocks import batch_norm, conv, dense, ln_parameters, mlp, relu, statistics
from plants.net import Array, Fault, Net

_GELU_TANH = math.sqrt(2 / math.pi)


# Constants that are computed in every run. ---------------------------------------------------------------------------


def quantised_filter(net: Net, role: str, array: Array) -> str:
    """Write a filter of 8 bits that is converted in every run: constant folding leaves DequantizeLinear alone."""
    scale = np.abs(array).reshape(len(array), -1).max(axis=1) / 127 + 1e-12
    column = scale.reshape(-1, *[1] * (array.ndim - 1)).astype(np.float32)
    whole = np.rint(array / column).astype(np.int8)
    if not net.faulty:
        return net.constant(role, whole.astype(np.float32) * column)
    stored = net.constant(role, whole), net.constant("scale", scale.astype(np.float32))
    return net.op("DequantizeLinear", *stored, shape=array.shape, axis=0)


def normalised_matrix(net: Net, role: str, array: Array) -> str:
    """Write a matrix of weight normalisation, v * (g / |v|), computed in every run.

    Its v is an input with a default value, like every weight before IR version 4. A caller may replace it, which
    prevents folding.
    """
    lengths = np.linalg.norm(array.astype(np.float64), axis=0, keepdims=True).astype(np.float32)
    gains = net.drawn("gain", lengths.shape, 0.1, 1.0)
    if not net.faulty:
        return net.constant(role, array * (gains / lengths))
    direction = net.constant(role, array, replaceable=True)
    length = net.op("ReduceL2", direction, shape=lengths.shape, axes=[0], keepdims=1)
    return net.op("Mul", direction, net.op("Div", net.constant("gain", gains), length))


# Fusions that something else than the pattern breaks. ----------------------------------------------------------------


def exposed_convolution(net: Net, x: str) -> str:
    """Make the convolution an output of the model, too, so that its normalisation is not folded into it."""
    net.expose(x)
    return batch_norm(net, x)


def watched_convolution(net: Net, x: str) -> str:
    """Add the mean of the convolution: a second reader. The twin computes it from the normalised value."""
    made = batch_norm(net, x)
    scale, bias, mean, var = statistics(net, x)
    shape = (*net.shapes[x][:2], 1, 1)
    if net.faulty:
        pooled = net.op("GlobalAveragePool", x, shape=shape)
    else:
        slope = np.where(scale == 0, 0, np.sqrt(var + 1e-5) / np.where(scale == 0, 1, scale))
        pooled = net.op("GlobalAveragePool", made, shape=shape)
        pooled = net.op("Mul", pooled, net.constant("slope", slope.reshape(-1, 1, 1).astype(np.float32)))
        shift = (mean - bias * slope).reshape(-1, 1, 1).astype(np.float32)
        pooled = net.op("Add", pooled, net.constant("shift", shift))
    return net.op("Add", made, pooled)


def exposed_gelu(net: Net, x: str) -> str:
    """Write GELU in the form that the runtime knows, with its inner value as an output of the model."""
    ratio = net.op("Erf", net.op("Div", x, net.scalar(math.sqrt(2))))
    net.expose(ratio)
    return net.op("Mul", net.op("Mul", x, net.op("Add", ratio, net.scalar(1))), net.scalar(0.5))


def exposed_norm(net: Net, x: str) -> str:
    """Write layer normalisation in the form that the runtime knows, with its variance as an output of the model."""
    centred = net.op("Sub", x, _mean(net, x))
    variance = _mean(net, net.op("Pow", centred, net.scalar(2)))
    net.expose(variance)
    return _scaled(net, x, net.op("Div", centred, _root(net, variance)))


# Denormal numbers. ---------------------------------------------------------------------------------------------------


def denormal_mask(net: Net, x: str) -> str:
    """Add -95 to the scores of every second key; the clean twin adds -60.

    exp(-95) is denormal, and so are the Softmax's outputs, which the next product reads. Only an option makes the
    runtime flush them to zero. exp(-60) is normal, and small enough to be lost in rounding. (-10000 and minus infinity
    would not be clean: the runtime's Softmax writes zeros there, ten times as slowly.)
    """
    keys = net.shapes[x][-1]
    blocked = (np.arange(keys) % 2).astype(np.float32)
    bias = net.op("Mul", net.constant("blocked", blocked), net.scalar(-95.0 if net.faulty else -60.0))
    return net.op("Add", x, bias)


def denormal_gate(net: Net, x: str) -> str:
    """Write a branch with a gate of 1e-39 after weight decay; the clean twin has 0."""
    with net.scope("adapter"):
        width = net.shapes[x][1 if len(net.shapes[x]) == 4 else -1]
        signs = net.constant("gate", np.sign(net.drawn("gate", (width, 1, 1) if len(net.shapes[x]) == 4 else (width,))))
        gated = net.op("Mul", x, net.op("Mul", signs, net.scalar(1e-39 if net.faulty else 0.0)))
        made = conv(net, gated, width, 1) if len(net.shapes[x]) == 4 else dense(net, gated, width, bias=False)
    with net.innocent():
        return net.op("Add", x, made)


# Slow kernels. -------------------------------------------------------------------------------------------------------


def response_norm(net: Net, x: str) -> str:
    """Write LRN, which has a scalar kernel; the twin uses a convolution for the sums and roots for the power of 3/4."""
    if net.faulty:
        return net.op("LRN", x, size=5, alpha=0.1, beta=0.75, bias=1.0)
    channels = net.shapes[x][1]
    near = np.abs(np.subtract.outer(np.arange(channels), np.arange(channels))) <= 2
    band = net.constant("weight", (near * (0.1 / 5)).astype(np.float32)[:, :, None, None])
    ones = net.constant("bias", np.ones(channels, np.float32))
    root = net.op("Sqrt", net.op("Conv", net.op("Mul", x, x), band, ones, shape=net.shapes[x]))
    return net.op("Div", x, net.op("Mul", root, net.op("Sqrt", root)))


def power(net: Net, x: str) -> str:
    """Write the power of 3/4, for which the runtime calls pow for each number; the twin uses roots."""
    with net.innocent():
        size = net.op("Abs", x)
    if net.faulty:
        return net.op("Pow", size, net.scalar(0.75))
    root = net.op("Sqrt", size)
    return net.op("Mul", root, net.op("Sqrt", root))


def large_pool(net: Net, x: str) -> str:
    """Write a maximum over 13x13; the twin has three maxima over 5x5."""
    sizes = (13,) if net.faulty else (5, 5, 5)
    for size in sizes:
        x = net.op("MaxPool", x, kernel_shape=[size, size], pads=[size // 2] * 4, shape=net.shapes[x])
    return x


# A Gather written as a product. --------------------------------------------------------------------------------------


def one_hot_rows(net: Net, ids: str, table: Array) -> str:
    """Rows of a table by a product with one-hot vectors; the runtime executes it as written."""
    depth, on = net.constant("depth", np.array(len(table))), net.constant("values", np.array([0, 1], np.float32))
    chosen = net.op("OneHot", ids, depth, on, shape=(*net.shapes[ids], len(table)), axis=-1)
    return net.matmul(chosen, net.constant("table", table))


def compared_rows(net: Net, ids: str, table: Array) -> str:
    """Write the same with one-hot vectors by comparison."""
    axes, every = net.constant("axes", np.array([-1])), net.constant("range", np.arange(len(table)))
    column = net.op("Unsqueeze", ids, axes, shape=(*net.shapes[ids], 1))
    chosen = net.op("Cast", net.op("Equal", column, every), to=TensorProto.FLOAT)
    return net.matmul(chosen, net.constant("table", table))


def permuting_product(net: Net, x: str) -> str:
    """Tokens, or channels, in another order by a product with a permutation; the twin gathers."""
    count = net.shapes[x][1]
    order = np.random.default_rng(count).permutation(count)
    if not net.faulty:
        return net.op("Gather", x, net.constant("order", order), shape=net.shapes[x], axis=1)
    chosen = np.eye(count, dtype=np.float32)[order]
    if len(net.shapes[x]) == 4:
        return net.op("Conv", x, net.constant("weight", chosen[:, :, None, None]), shape=net.shapes[x])
    return net.matmul(net.constant("order", chosen), x)


# The same thing twice. -----------------------------------------------------------------------------------------------


def computed_twice(net: Net, x: str) -> str:
    """Write a product f(x) * sigmoid(f(x)) with f twice, each with its own copy of the weights.

    The runtime joins equal nodes only if they read the same constant.
    """

    def once() -> str:
        with net.scope("adapter"):
            if len(net.shapes[x]) == 4:
                return relu(net, conv(net, x, net.shapes[x][1], 3))
            return mlp(net, x, net.shapes[x][-1])

    value = once()
    gate = net.op("Sigmoid", once() if net.faulty else value)
    with net.innocent():
        return net.op("Add", x, net.op("Mul", value, gate))


# Activations and normalisations in other words than the runtime knows. -----------------------------------------------


def gelu_distributed(net: Net, x: str) -> str:
    """As x/2 + x/2 * erf: no Add of 1 for the pattern to find."""
    half, ratio = net.op("Mul", x, net.scalar(0.5)), net.op("Erf", net.op("Div", x, net.scalar(math.sqrt(2))))
    return net.op("Add", half, net.op("Mul", half, ratio))


def gelu_outer(net: Net, x: str) -> str:
    """As x * ((1 + erf) * 1/2): the half is multiplied in first."""
    ratio = net.op("Erf", net.op("Div", x, net.scalar(math.sqrt(2))))
    return net.op("Mul", net.op("Mul", net.op("Add", ratio, net.scalar(1)), net.scalar(0.5)), x)


def gelu_product(net: Net, x: str) -> str:
    """Write a product with 1/sqrt 2 instead of the division."""
    ratio = net.op("Erf", net.op("Mul", x, net.scalar(math.sqrt(0.5))))
    return net.op("Mul", net.op("Mul", x, net.op("Add", ratio, net.scalar(1))), net.scalar(0.5))


def gelu_tanh(net: Net, x: str) -> str:
    """GELU by tanh with the cube as two products; the twin has Pow, which the runtime knows."""
    cube = net.op("Mul", net.op("Mul", x, x), x) if net.faulty else net.op("Pow", x, net.scalar(3))
    inner = net.op("Add", x, net.op("Mul", cube, net.scalar(0.044715)))
    curve = net.op("Tanh", net.op("Mul", inner, net.scalar(_GELU_TANH)))
    return net.op("Mul", net.op("Mul", x, net.scalar(0.5)), net.op("Add", curve, net.scalar(1)))


def norm_squares(net: Net, x: str) -> str:
    """Write the variance with a product instead of Pow."""
    centred = net.op("Sub", x, _mean(net, x))
    return _scaled(net, x, net.op("Div", centred, _root(net, _mean(net, net.op("Mul", centred, centred)))))


def norm_moments(net: Net, x: str) -> str:
    """Write the variance as the mean of squares minus the square of the mean."""
    mean = _mean(net, x)
    variance = net.op("Sub", _mean(net, net.op("Mul", x, x)), net.op("Mul", mean, mean))
    return _scaled(net, x, net.op("Div", net.op("Sub", x, mean), _root(net, variance)))


def _mean(net: Net, x: str) -> str:
    return net.op("ReduceMean", x, shape=(*net.shapes[x][:-1], 1), axes=[-1], keepdims=1)


def _root(net: Net, variance: str) -> str:
    return net.op("Sqrt", net.op("Add", variance, net.scalar(1e-5)))


def _scaled(net: Net, x: str, normal: str) -> str:
    scale, bias = ln_parameters(net, x)
    return net.op("Add", net.op("Mul", normal, scale), bias)


# Branches one after the other. ---------------------------------------------------------------------------------------


def one_by_one(net: Net, views: list[str], tower: Callable[[Net, str], str]) -> list[str]:
    """Write the same part for each input, one after the other: small operators leave the other cores idle.

    The runtime runs branches at once only with an option; the twin puts them into one batch.
    """
    with net.shared():
        return [tower(net, view) for view in views]


FAULTS = {
    "quantised-filter": Fault("constants", "weight", quantised_filter, both=True),
    "normalised-matrix": Fault("constants", "weight", normalised_matrix, both=True),
    "exposed-convolution": Fault("fusion", "conv_bn", exposed_convolution),
    "watched-convolution": Fault("fusion", "conv_bn", watched_convolution, both=True),
    "exposed-gelu": Fault("fusion", "gelu", exposed_gelu),
    "exposed-norm": Fault("fusion", "norm", exposed_norm),
    "denormal-mask": Fault("denormals", "mask", denormal_mask, both=True),
    "denormal-gate": Fault("denormals", "edge", denormal_gate, both=True),
    "response-norm": Fault("kernel", "edge", response_norm, both=True),
    "power": Fault("kernel", "edge", power, both=True),
    "large-pool": Fault("kernel", "edge", large_pool, both=True),
    "uneven": Fault("channels", "channels", lambda *_: None),
    "one-hot-rows": Fault("gather", "embed", one_hot_rows),
    "compared-rows": Fault("gather", "embed", compared_rows),
    "permuting-product": Fault("gather", "edge", permuting_product, both=True),
    "computed-twice": Fault("duplicates", "edge", computed_twice, both=True),
    "gelu-distributed": Fault("gelu", "gelu", gelu_distributed),
    "gelu-outer": Fault("gelu", "gelu", gelu_outer),
    "gelu-product": Fault("gelu", "gelu", gelu_product),
    "gelu-tanh": Fault("gelu", "gelu", gelu_tanh, both=True),
    "norm-squares": Fault("normalisation", "norm", norm_squares),
    "norm-moments": Fault("normalisation", "norm", norm_moments),
    "one-by-one": Fault("branches", "towers", one_by_one, threads=0),
}
