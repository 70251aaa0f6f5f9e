"""Normalisations, and softmax."""

from __future__ import annotations

import math

import numpy as np

from .node import Node, Symbol, operator

__all__: list[str] = []

_SINCE_ONE_AXIS = 13
"""Before this opset, softmax ran over all dimensions from its axis on."""


@operator("BatchNormalization")
def _batch(node: Node) -> Symbol:
    if node.attribute("training_mode", 0) or node.wants(1):
        raise node.refusal("that trains")
    if node.attribute("spatial", 1) != 1:
        raise node.refusal("with statistics of single positions")
    return node.sym.BatchNorm(
        *(node.symbol(index) for index in (0, 1, 2)),
        *(node.own(index) for index in (3, 4)),
        eps=node.attribute("epsilon", 1e-5),
        fix_gamma=False,
        use_global_stats=True,
    )


@operator("LRN")
def _across_channels(node: Node) -> Symbol:
    return node.sym.LRN(
        node.symbol(),
        alpha=node.attribute("alpha", 1e-4),
        beta=node.attribute("beta", 0.75),
        knorm=node.attribute("bias", 1.0),
        nsize=node.attribute("size"),
    )


@operator("LayerNormalization")
def _layer(node: Node) -> Symbol:
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
        bias = node.bind(np.zeros(size, node.dtype(1)))
    else:
        bias = node.reshaped(node.symbol(2), (size,)) if several else node.symbol(2)
    normal = node.sym.LayerNorm(data, scale, bias, axis=-1, eps=node.attribute("epsilon", 1e-5))
    return node.reshaped(normal, shape) if several else normal


@operator("InstanceNormalization")
def _instance(node: Node) -> Symbol:
    symbols = (node.symbol(index) for index in (0, 1, 2))
    return node.sym.InstanceNorm(*symbols, eps=node.attribute("epsilon", 1e-5))


@operator("Softmax", "LogSoftmax")
def _softmax(node: Node) -> Symbol:
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
