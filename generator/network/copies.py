"""Copies of a brick in one network: its nodes and constants under other names, and its weights with other values.

Runtimes share packed weights between nodes where the packed bytes are equal (ONNX Runtime does), and copies would then
read warm what a model reads cold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ...models.subgraphs import own_names, rename

__all__ = ["add_copy", "add_value", "distinct"]

Array = npt.NDArray[Any]


def add_copy(graph: onnx.GraphProto, source: onnx.GraphProto, name_of: Callable[[str], str]) -> list[onnx.NodeProto]:
    """Add the nodes and constants of a graph to another one, all its values under other names.

    Args:
        graph: Added to; inputs and outputs are the caller's to declare.
        source: Left as it is.
        name_of: From a name in it to that of the copy.

    Returns:
        The nodes as they were added, in order; they have no names of their own.
    """
    names = {name: name_of(name) for name in own_names(source) if name}
    for tensor in source.initializer:
        twin = graph.initializer.add()
        twin.CopyFrom(tensor)
        twin.name = names[tensor.name]
    added = []
    for node in source.node:
        added.append(graph.node.add())
        added[-1].CopyFrom(node)
        added[-1].ClearField("name")
        rename(added[-1], names)
    return added


def add_value(values: Any, value: onnx.ValueInfoProto, name: str) -> None:
    """Declare an input or output (``graph.input``, ``graph.output``) of the type of another one."""
    twin = values.add()
    twin.CopyFrom(value)
    twin.name = name


def distinct(array: Array, copy: int) -> Array:
    """The values in memory of their own, turned by as many places as the number of the copy says.

    Turned values keep their distribution and their range, whatever they mean.
    """
    return np.roll(array.reshape(-1), copy).reshape(array.shape)
