"""Architectures for text and signals."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto
from plants.blocks import attention, conv, dense, layer_norm, mlp, relu, towers
from plants.net import Net


def encoder(net: Net) -> None:
    """Build a transformer over tokens, like BERT."""
    tokens, vocabulary, width = 128, 1000, 96
    ids = net.input("input_ids", (1, tokens), TensorProto.INT64)
    with net.scope("embeddings"):
        table = net.drawn("table", (vocabulary, width))
        x = net.at("embed", _gathered, ids, table)
        x = layer_norm(net, net.op("Add", x, net.constant("positions", net.drawn("positions", (tokens, width)))))
    for layer in range(3):
        with net.scope("layer", layer):
            with net.scope("attention"):
                x = layer_norm(net, net.op("Add", x, attention(net, x, 4)))
            with net.scope("mlp"):
                x = net.edge(layer_norm(net, net.op("Add", x, mlp(net, x, 384))))
    net.output(x)


def _gathered(net: Net, ids: str, table: np.ndarray) -> str:
    return net.op("Gather", net.constant("table", table), ids, shape=(*net.shapes[ids], table.shape[1]), axis=0)


def recurrent(net: Net) -> None:
    """Convolutions and two GRUs for each of four sensors, and perceptrons over all of them."""
    views = [net.input(f"sensor{number}", (1, 16, 1, 96)) for number in range(4)]

    def tower(net: Net, x: str) -> str:
        batch, _, _, steps = net.shapes[x]
        for layer in range(2):
            with net.scope("conv", layer):
                x = relu(net, conv(net, x, 64, 1))
        x = net.transpose(net.reshape(x, batch, 64, steps), 2, 0, 1)
        for layer in range(2):
            with net.scope("gru", layer):
                x = net.reshape(_gru(net, x, 64), steps, batch, 64)
        return net.transpose(x, 1, 0, 2)

    x = net.concat(towers(net, views, tower), 2)
    for layer in range(3):
        with net.scope("joint", layer):
            x = net.edge(net.op("Add", x, mlp(net, layer_norm(net, x), 256)))
    with net.scope("head"):
        net.output(dense(net, x, 64))


def _gru(net: Net, x: str, hidden: int) -> str:
    steps, batch, width = net.shapes[x]
    weights = [
        net.constant(role, net.drawn(role, (1, 3 * hidden, into), 1 / math.sqrt(into)))
        for role, into in (("W", width), ("R", hidden))
    ]
    return net.op("GRU", x, *weights, shape=(steps, 1, batch, hidden), hidden_size=hidden, linear_before_reset=1)
