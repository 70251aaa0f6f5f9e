"""Products of matrices, convolutions, pools, normalisations, and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from .....models.subgraphs import attributes_of
from ...geometry import SlidingWindow, nearest
from .translation import Array, OnnxNode, Symbol, operator, register


@operator("Gemm")
def _gemm(node: OnnxNode) -> Symbol:
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    first = node.sym.transpose(node.symbol(0)) if node.attribute("transA", 0) else node.symbol(0)
    rows_first = bool(node.attribute("transB", 0))
    width = node.shape(1)[0 if rows_first else 1]
    bias = None
    weight = node.constant(1) if _fast(node) else None
    if weight is not None:
        bias = _bias(node, width, beta) if node.has(2) else None
        stored = _stored(node, weight, alpha, rows_first=rows_first)
        parameters = [stored] if bias is None else [stored, bias]
        product = node.sym.FullyConnected(first, *parameters, num_hidden=width, no_bias=bias is None)
    else:
        product = node.sym.linalg_gemm2(first, node.symbol(1), transpose_b=rows_first, alpha=alpha)
    if node.has(2) and bias is None:
        shape = (1,) * (2 - node.rank(2)) + node.shape(2)
        summand = node.reshaped(node.symbol(2), shape)
        product = node.sym.broadcast_add(product, summand if beta == 1.0 else summand * beta)
    return product


def _fast(node: OnnxNode) -> bool:
    """Return True if oneDNN computes the product, which MXNet's layer for it requires."""
    return node.dtype() == np.float32


def _bias(node: OnnxNode, width: int, beta: float) -> Symbol | None:
    """Return the summand as one value per column; None for other summands."""
    shape = node.shape(2)
    if shape not in {(width,), (1, width)}:
        return None
    constant = node.constant(2)
    if constant is None:
        bias = node.reshaped(node.symbol(2), (width,)) if len(shape) == 2 else node.symbol(2)
        return bias if beta == 1.0 else bias * beta
    return node.variables.add(
        node.variables.derived(constant, f"bias {beta}", lambda array: array.ravel() * _like(array, beta))
    )


def _stored(node: OnnxNode, weight: Array, alpha: float = 1.0, *, rows_first: bool = False) -> Symbol:
    """Return a weight in MXNet's layout, one row per column of the product; transposed once, at loading."""
    make: Callable[[Array], Array] = lambda array: (array if rows_first else array.T) * _like(array, alpha)  # noqa: E731
    if rows_first and alpha == 1.0:
        return node.symbol(1)
    return node.variables.add(node.variables.derived(weight, f"weight {alpha} {rows_first}", make))


def _like(array: Array, value: float) -> Array:
    return np.asarray(value, dtype=array.dtype)


@operator("MatMul")
def _matmul(node: OnnxNode) -> Symbol:
    weight = node.constant(1) if _fast(node) else None
    left, right = node.shape(0), node.shape(1)
    if weight is not None and weight.ndim == 2 and len(left) >= 2:
        stored = _stored(node, weight)
        return node.sym.FullyConnected(node.symbol(0), stored, num_hidden=right[1], no_bias=True, flatten=False)
    if len(left) < 2 or len(right) < 2:
        if len(left) > 2 or len(right) > 2:
            raise node.refusal("of a vector and a stack of matrices")
        first = node.reshaped(node.symbol(0), (1, *left)) if len(left) == 1 else node.symbol(0)
        second = node.reshaped(node.symbol(1), (*right, 1)) if len(right) == 1 else node.symbol(1)
        return node.reshaped(node.sym.dot(first, second), node.result())
    if len(right) == 2 and len(left) > 2:
        return node.sym.dot(node.symbol(0), node.symbol(1))
    batch = node.result()[:-2]
    return node.sym.linalg_gemm2(*(_batched(node, index, batch) for index in (0, 1)))


def _batched(node: OnnxNode, index: int, batch: tuple[int, ...]) -> Symbol:
    """Return an input with the batch of the product, because MXNet does not broadcast batches."""
    shape = node.shape(index)
    symbol = node.symbol(index)
    aligned = (1,) * (len(batch) + 2 - len(shape)) + shape
    if aligned != shape:
        symbol = node.reshaped(symbol, aligned)
    whole = batch + shape[-2:]
    return symbol if aligned == whole else node.sym.broadcast_to(symbol, shape=whole)


_NATIVE = 3
"""Spatial dimensions that MXNet convolves over at most."""


def _padded(node: OnnxNode, window: SlidingWindow, data: Symbol, filler: float = 0.0) -> Symbol:
    """Return the data with its padding as data."""
    width = ((0, 0), (0, 0), *zip(window.begin, window.end, strict=True))
    return node.padded(data, width, "constant", filler)


def _places(window: SlidingWindow, size: Sequence[int]) -> tuple[int, ...]:
    """Return the number of positions of the window in padded data, rounded down."""
    room = [length + before + behind for length, before, behind in zip(size, window.begin, window.end, strict=True)]
    return tuple(
        (length - dilation * (kernel - 1) - 1) // stride + 1
        for length, kernel, dilation, stride in zip(room, window.kernel, window.dilations, window.strides, strict=True)
    )


def _window(node: OnnxNode, kernel: Sequence[int]) -> SlidingWindow:
    """Return the window of an operator, with automatic padding resolved."""
    if len(kernel) > _NATIVE:
        raise node.refusal(f"over {len(kernel)} dimensions")
    window = SlidingWindow.of(attributes_of(node.proto), node.shape()[2:], kernel)
    if min((*window.begin, *window.end)) < 0:
        raise node.refusal("with negative pads")
    return window


@operator("Conv")
def _conv(node: OnnxNode) -> Symbol:
    kernel = node.shape(1)[2:]
    window = _window(node, kernel)
    even = window.begin == window.end
    return node.sym.Convolution(
        node.symbol(0) if even else _padded(node, window, node.symbol(0)),
        *(node.symbol(index) for index in (1, 2) if node.has(index)),
        kernel=window.kernel,
        stride=window.strides,
        dilate=window.dilations,
        pad=window.begin if even else (0,) * len(kernel),
        num_filter=node.shape(1)[0],
        num_group=node.attribute("group", 1),
        no_bias=not node.has(2),
    )


@operator("ConvTranspose")
def _conv_transpose(node: OnnxNode) -> Symbol:
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
def _resize(node: OnnxNode) -> Symbol:
    mode = node.attribute("mode", "nearest")
    data, result = node.shape(), node.result()
    if mode != "nearest" or any(large % small for small, large in zip(data, result, strict=True)):
        raise node.refusal(f"in mode {mode} from {data} to {result}")
    how = node.attribute("coordinate_transformation_mode", "half_pixel")
    rounded = node.attribute("nearest_mode", "round_prefer_floor")
    if node.op == "Upsample":
        how, rounded = "asymmetric", "floor"
    symbol = node.symbol()
    for axis, (small, large) in enumerate(zip(data, result, strict=True)):
        if large != small:
            repeats = large // small
            indices = nearest(small, large, repeats, how, rounded)
            if indices is None or np.any(indices != np.arange(large) // repeats):
                raise node.refusal(f"with {how} and {rounded}")
            symbol = node.sym.repeat(symbol, repeats=repeats, axis=axis)
    return symbol


register(
    {
        "Einsum": lambda node: node.numpy(
            "einsum", node.attribute("equation"), *(node.symbol(index) for index in range(node.count))
        ),
        "InstanceNormalization": lambda node: node.sym.InstanceNorm(
            *(node.symbol(index) for index in (0, 1, 2)), eps=node.attribute("epsilon", 1e-5)
        ),
        "LRN": lambda node: node.sym.LRN(
            node.symbol(),
            alpha=node.attribute("alpha", 1e-4),
            beta=node.attribute("beta", 0.75),
            knorm=node.attribute("bias", 1.0),
            nsize=node.attribute("size"),
        ),
    }
)

_GLOBAL = {"GlobalAveragePool": "avg", "GlobalMaxPool": "max"}


@operator(*_GLOBAL)
def _global_pool(node: OnnxNode) -> Symbol:
    kernel = (1,) * (node.rank() - 2)
    return node.sym.Pooling(node.symbol(), kernel=kernel, global_pool=True, pool_type=_GLOBAL[node.op])


@operator("MaxPool", "AveragePool")
def _pool(node: OnnxNode) -> Symbol:
    if node.wants(1):
        raise node.refusal("that returns its indices")
    window = _window(node, node.attribute("kernel_shape"))
    if set(window.dilations) != {1}:
        raise node.refusal("with dilations")
    average = node.op == "AveragePool"
    padding_counts = bool(average and node.attribute("count_include_pad", 0))
    data, pads = node.symbol(), window.begin
    convention = _convention(window, node.shape()[2:], node.result()[2:])
    if convention is None or (padding_counts and convention == "full"):
        if average and not padding_counts:
            return _average_of_data(node, window)
        filler = 0.0 if average else float(np.finfo(node.dtype()).min)
        data, pads, convention = _padded(node, window, data, filler), (0,) * len(window.begin), "valid"
        if _places(window, node.shape()[2:]) != node.result()[2:]:
            raise node.refusal("that rounds its size up over padding that counts")
    return node.sym.Pooling(
        data,
        kernel=window.kernel,
        stride=window.strides,
        pad=pads,
        pool_type="avg" if average else "max",
        pooling_convention=convention,
        **({"count_include_pad": padding_counts} if average else {}),
    )


def _average_of_data(node: OnnxNode, window: SlidingWindow) -> Symbol:
    """Averages with uneven padding that does not count: sums over padded data, by how much of each window is data."""
    places = node.result()[2:]
    reaches = [
        (positions - 1) * stride + kernel
        for positions, stride, kernel in zip(places, window.strides, window.kernel, strict=True)
    ]
    ends = tuple(
        max(0, reach - length - before)
        for reach, length, before in zip(reaches, node.shape()[2:], window.begin, strict=True)
    )
    data = _padded(node, replace(window, end=ends), node.symbol())
    sums = node.sym.Pooling(
        data, kernel=window.kernel, stride=window.strides, pool_type="sum", pooling_convention="valid"
    )
    shares = np.ones((1, 1), dtype=node.dtype())
    for length, before, positions, stride, kernel in zip(
        node.shape()[2:], window.begin, places, window.strides, window.kernel, strict=True
    ):
        begins = np.arange(positions) * stride - before
        counts = np.minimum(begins + kernel, length) - np.maximum(begins, 0)
        shares = shares[..., None] / counts.astype(node.dtype())
    return node.sym.broadcast_mul(sums, node.variables.add(shares))


def _convention(window: SlidingWindow, size: tuple[int, ...], result: tuple[int, ...]) -> str | None:
    """Return the rounding mode that gives the result's size with the front padding on both sides; None if neither does.

    Elements after the data do not count, so that padding there can replace a size that is rounded up.
    """
    spans = [
        (length + 2 * pad - kernel, stride)
        for length, pad, kernel, stride in zip(size, window.begin, window.kernel, window.strides, strict=True)
    ]
    if window.begin == window.end and tuple(span // stride + 1 for span, stride in spans) == result:
        return "valid"
    if tuple(-(-span // stride) + 1 for span, stride in spans) == result:
        return "full"
    return None


_SINCE_ONE_AXIS = 13
"""Before this opset, softmax ran over all dimensions from its axis on."""


@operator("BatchNormalization")
def _batch(node: OnnxNode) -> Symbol:
    if node.attribute("training_mode", 0) or node.wants(1):
        raise node.refusal("that trains")
    if node.attribute("spatial", 1) != 1:
        raise node.refusal("with statistics of single positions")
    return node.sym.BatchNorm(
        *(node.symbol(index) for index in (0, 1, 2)),
        *(node.variables.add(node.known(index, "as a state")) for index in (3, 4)),
        eps=node.attribute("epsilon", 1e-5),
        fix_gamma=False,
        use_global_stats=True,
    )


@operator("LayerNormalization")
def _layer(node: OnnxNode) -> Symbol:
    if node.wants(1) or node.wants(2):
        raise node.refusal("that returns its statistics")
    shape = node.shape()
    axis = node.axis(node.attribute("axis", -1))
    size = math.prod(shape[axis:])
    if any(math.prod(node.shape(index)) != size for index in (1, 2) if node.has(index)):
        raise node.refusal("with a scale that is repeated")
    several = axis != len(shape) - 1
    data = node.reshaped(node.symbol(), (*shape[:axis], size)) if several else node.symbol()
    scale = node.reshaped(node.symbol(1), (size,)) if several else node.symbol(1)
    if not node.has(2):
        bias = node.variables.add(np.zeros(size, node.dtype(1)))
    else:
        bias = node.reshaped(node.symbol(2), (size,)) if several else node.symbol(2)
    normal = node.sym.LayerNorm(data, scale, bias, axis=-1, eps=node.attribute("epsilon", 1e-5))
    return node.reshaped(normal, shape) if several else normal


@operator("Softmax", "LogSoftmax")
def _softmax(node: OnnxNode) -> Symbol:
    compute = node.sym.softmax if node.op == "Softmax" else node.sym.log_softmax
    if node.opset >= _SINCE_ONE_AXIS:
        return compute(node.symbol(), axis=node.attribute("axis", -1))
    shape = node.shape()
    axis = node.axis(node.attribute("axis", 1))
    several = math.prod(shape[axis + 1 :]) != 1
    if not several:
        return compute(node.symbol(), axis=axis)
    flat = node.reshaped(node.symbol(), (math.prod(shape[:axis]), math.prod(shape[axis:])))
    return node.reshaped(compute(flat, axis=1), shape)
