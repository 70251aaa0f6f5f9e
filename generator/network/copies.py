"""Copies of a brick in one network: their nodes under other names, and their weights with other values.

Runtimes share packed weights between nodes where the packed bytes are equal (ONNX Runtime does), and copies would then
read warm what a model reads cold.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ...models.subgraphs import rename

__all__ = ["distinct", "renamed"]

Array = npt.NDArray[Any]


def distinct(array: Array, copy: int) -> Array:
    """The values in memory of their own, turned by as many places as the number of the copy says.

    Turned values keep their distribution and their range, whatever they mean.
    """
    return np.roll(array.reshape(-1), copy).reshape(array.shape)


def renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A node with its values renamed, those that its bodies capture included."""
    twin = deepcopy(node)
    twin.ClearField("name")
    rename(twin, names)
    return twin
