"""Causal attention: find scores that a Softmax reads behind a causal mask.

Exporters write a causal mask explicitly: they compare positions, or use a constant matrix that is True up to its
diagonal. Masked scores get a value so low that Softmax returns 0. A processor may be slow for these values, so they are
part of the measurement (docs/how-to/language-models.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ...models.skeleton import LOW, hides_future, is_causal
from ..inference.shapes import Constants
from ..layer import TensorType
from ..operators import VIEWS, Trait, having

Array = npt.NDArray[Any]

SOFTMAX = "Softmax"
"""The operator that reads scores."""

_INTEGERS = frozenset({"int32", "int64"})
_CARRYING, _HIDING = VIEWS | having(Trait.ORDERS), VIEWS | having(Trait.MASKS)


def causal_scores(graph: onnx.GraphProto, types: Mapping[str, TensorType], constants: Constants) -> frozenset[str]:
    """Find the values that a Softmax reads behind a causal mask.

    Args:
        graph: The graph of a model, nodes in topological order, or of a brick with marked inputs.
        types: Static types.
        constants: The known constants.

    Returns:
        Names of values; empty for a graph of one query, without future keys.
    """
    if all(node.op_type != SOFTMAX for node in graph.node):
        return frozenset()
    masks = _Masks(graph, types, constants)
    scores: set[str] = set()
    for node in graph.node:
        if not node.input or not node.output:
            continue
        if node.op_type == SOFTMAX and node.input[0] in masks.hidden and _over_keys(node, types[node.input[0]]):
            scores.add(node.input[0])
        else:
            masks.follow(node)
    return frozenset(scores)


class _Masks:
    """Masks among the values of a graph, found node by node.

    Attributes:
        hidden: Values with future positions as low as ``LOW``, at once or after addition to scores.
    """

    def __init__(self, graph: onnx.GraphProto, types: Mapping[str, TensorType], constants: Constants) -> None:
        self._types, self._constants = types, constants
        matrices = {name for name, value_type in types.items() if _is_matrix(value_type)}
        marked = {value.name for value in graph.input if is_causal(value)}
        masks = (matrices & marked) | {name for name in matrices if constants.known(name) and self._is_mask(name)}
        self._ordered = {name for name in masks if self._dtype(name) == "bool"}  # True at future positions
        self._low: set[str] = set()
        self.hidden = masks - self._ordered

    def follow(self, node: onnx.NodeProto) -> None:
        """Classify the result of a node."""
        reads, op_type, result = node.input, node.op_type, node.output[0]
        if op_type in having(Trait.FILLS) and self._is_low(reads[0]):
            self._low.add(result)
        if not _is_matrix(self._types.get(result)):
            return
        if self._hides(op_type, reads):
            self.hidden.add(result)
        elif self._orders(op_type, reads):
            self._ordered.add(result)

    def _hides(self, op_type: str, reads: Sequence[str]) -> bool:
        if op_type == "Trilu":
            return self._is_low(reads[0])
        if op_type == "Where" and reads[0] in self._ordered and any(map(self._is_low, reads[1:])):
            return True
        if op_type == "Mul" and not self._ordered.isdisjoint(reads) and any(map(self._is_low, reads)):
            return True
        return op_type in _HIDING and not self.hidden.isdisjoint(reads)

    def _orders(self, op_type: str, reads: Sequence[str]) -> bool:
        if op_type in having(Trait.COMPARES):
            return self._compares_positions(op_type, reads)
        return op_type == "Trilu" or (op_type in _CARRYING and not self._ordered.isdisjoint(reads))

    def _compares_positions(self, op_type: str, reads: Sequence[str]) -> bool:
        """Return True if each query is compared with each key.

        For known positions, the result must also mark future positions.
        """
        types = [self._types[name] for name in reads if self._dtype(name) in _INTEGERS]
        shapes = [value_type.shape for value_type in types]
        rows = any(shape[-1:] == (1,) for shape in shapes)
        columns = any(shape[-1:] != (1,) and shape[-2:-1] in {(), (1,)} for shape in shapes)
        if len(reads) != len(shapes) or not rows or not columns:
            return False
        first, second = (self._constants.array(name) if self._constants.known(name) else None for name in reads[:2])
        if first is None or second is None:
            return True
        try:
            compare = np.greater if op_type.startswith("Greater") else np.less
            compared: Array = np.asarray(compare(first, second))
            if op_type.endswith("OrEqual"):
                compared |= first == second
        except ValueError:  # shapes do not match: the file states the type of the result
            return False
        return hides_future(compared) or hides_future(~compared)

    def _is_mask(self, name: str) -> bool:
        array = self._constants.array(name)
        return array is not None and hides_future(array)

    def _is_low(self, name: str) -> bool:
        array: Array | None = self._constants.array(name) if self._constants.known(name) else None
        low_constant = array is not None and array.size > 0 and array.dtype.kind == "f" and bool((array <= LOW).all())
        return low_constant or name in self._low

    def _dtype(self, name: str) -> str:
        value_type = self._types.get(name)
        return "" if value_type is None else value_type.dtype


def _over_keys(node: onnx.NodeProto, scores: TensorType) -> bool:
    """Return True if a Softmax is over the last axis."""
    return all(attribute.i in {-1, len(scores.shape) - 1} for attribute in node.attribute if attribute.name == "axis")


def _is_matrix(value_type: TensorType | None) -> bool:
    """Return True if a type has rows for several queries, at most as many as keys."""
    return value_type is not None and len(value_type.shape) > 1 and 1 < value_type.shape[-2] <= value_type.shape[-1]
