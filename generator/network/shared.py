"""Caches of keys and values that an operator extends in place, where what it reads and what it writes are one buffer.

A loop that generates text may bind the ``past`` and the ``present`` of a step to the same memory, as large as the
longest answer: GroupQueryAttention then writes the new position and copies nothing. A model is made for that where both
are declared with the same shape; otherwise ``present`` is longer by the new positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

__all__ = ["shared_buffers"]

_SLOTS = {"GroupQueryAttention": ((3, 1), (4, 2))}
"""Operators that extend a cache in place: inputs, and the outputs that may be the same memory."""


def shared_buffers(graph: onnx.GraphProto) -> dict[str, str]:
    """Outputs of a network that a loop binds to the memory of an input, by name, each with the input.

    Args:
        graph: The network.
    """
    inputs, outputs = _shapes(graph.input), _shapes(graph.output)
    return {
        present: past
        for past, present in _caches(graph)
        if past in inputs and present in outputs and inputs[past] == outputs[present]
    }


def _caches(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    for node in graph.node:
        for read, written in _SLOTS.get(node.op_type, ()):
            if len(node.input) > read and len(node.output) > written:
                yield node.input[read], node.output[written]


def _shapes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, bytes]:
    """Element types and shapes as they are declared, open dimensions by their names."""
    return {value.name: value.type.SerializeToString(deterministic=True) for value in values}
