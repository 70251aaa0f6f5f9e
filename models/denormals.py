"""Denormal numbers among the weights of a model: a processor takes many times as long for each product.

Channels that training has switched off decay to such numbers (below 1.2e-38). Bricks have ordinary weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto

from .external import ExternalFolder, raw_tensor
from .reader import read_full
from .source import ModelSource
from .subgraphs import all_graphs, is_constant

_EXPONENT, _FRACTION = np.uint32(0x7F800000), np.uint32(0x007FFFFF)

_AT_ONCE = 1 << 22
"""Weights that are looked at together, so that no second copy of them is made."""


def denormal_weights(source: ModelSource) -> dict[str, int]:
    """Count the denormal numbers of each float32 weight of a model's file.

    Reads all weights: 440 and 500 MB took 1.0 to 1.9 s on a core of a Xeon.

    Returns:
        Weights with any, by name; none for a model of the zoo, whose weights are made up.

    Raises:
        ModelError: The file or its external data cannot be read.
    """
    if source.path is None:
        return {}
    model, folder = read_full(source.path)
    counts: dict[str, int] = {}
    for name, tensor in _weights(model):
        if tensor.data_type == TensorProto.FLOAT and (count := _count(_bytes(name, tensor, folder))):
            counts[name] = counts.get(name, 0) + count
    return counts


def _weights(model: onnx.ModelProto) -> Iterator[tuple[str, TensorProto]]:
    for graph in all_graphs(model.graph):
        yield from ((tensor.name, tensor) for tensor in graph.initializer)
        for node in graph.node:
            if is_constant(node) and node.output:
                yield from ((node.output[0], attribute.t) for attribute in node.attribute if attribute.name == "value")


def _bytes(name: str, tensor: TensorProto, folder: ExternalFolder) -> bytes:
    if tensor.data_location == TensorProto.EXTERNAL:
        return folder.locate(tensor).read()
    return tensor.raw_data or raw_tensor(tensor, name).raw_data


def _count(data: bytes) -> int:
    words = np.frombuffer(data, np.dtype("<u4"))
    parts = (words[begin : begin + _AT_ONCE] for begin in range(0, words.size, _AT_ONCE))
    return sum(int(np.count_nonzero(((part & _EXPONENT) == 0) & ((part & _FRACTION) != 0))) for part in parts)
