"""A product's operands in memory of a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper

from ....errors import UnsupportedBrick
from ....models.shapes import declared_shape
from ...network.network import Network
from ..library import computed_in, described, values_of
from ..memory import Buffer, Loaded, Memory, narrowed
from .problem import Addend, Problem, problem_of

__all__ = ["Operands", "added"]

Array = npt.NDArray[Any]


class Operands:
    """Operands and result of the one product that a brick is.

    Args:
        network: One copy, with a model.
        dtype: Precision of the settings.
        memory: Where they go.

    Attributes:
        problem: The product.
        dtype: Precision of all of them in memory.
        left: Of the library.
        right: Of the library.
        result: Of the library.
        matrix: What is added element by element; None where nothing is.
        vector: What is added per column of the network's result; None where nothing is.
        beta: Factor of ``matrix``.

    Raises:
        UnsupportedBrick: It is something else than a product that the library has.
        MemoryError: There is not enough memory.
    """

    def __init__(self, network: Network, dtype: str, memory: Memory) -> None:
        self.problem = problem_of(described(network))
        self.dtype = computed_in(network, dtype, "cuBLAS")
        self._memory = memory
        self._network = network
        values = values_of(network)
        found = {name: memory.holding(narrowed(values[name], self.dtype)) for name in self._read()}
        self._inputs = [buffer for name, buffer in found.items() if name in network.feeds]
        self.left, self.right = found[self.problem.left.value], found[self.problem.right.value]
        size = self.problem.batch * self.problem.result.rows * self.problem.result.columns
        self.result = memory.empty(size * self._type.itemsize)
        self.matrix: Buffer | None = None
        self.vector: Buffer | None = None
        self.beta = 0.0
        if self.problem.addend is not None:
            self._add(self.problem.addend, values)

    def loaded(self) -> Loaded:
        """The brick in memory; its ``run`` is still to be chosen."""
        return Loaded(_unplanned, self._inputs, [self.result], self._results)

    @property
    def _type(self) -> np.dtype[Any]:
        return narrowed(np.zeros(0, np.float32), self.dtype).dtype

    def _read(self) -> list[str]:
        return sorted({self.problem.left.value, self.problem.right.value})

    def _add(self, addend: Addend, values: Mapping[str, Array]) -> None:
        fixed = addend.value not in self._network.feeds
        array, self.beta = added(self.problem, addend, values[addend.value], fixed=fixed)
        buffer = self._memory.holding(narrowed(array, self.dtype))
        if not fixed:
            self._inputs.append(buffer)
        if self.beta:
            self.matrix = buffer
        else:
            self.vector = buffer

    def _results(self) -> list[Array]:
        declared = self._network.brick.graph.output[0].type
        shape = declared_shape(declared)
        found = self._memory.read(self.result, self._type, (math.prod(shape),))
        kind = helper.tensor_dtype_to_np_dtype(declared.tensor_type.elem_type)
        return [found.reshape(shape).astype(kind)]


def added(problem: Problem, addend: Addend, array: Array, *, fixed: bool) -> tuple[Array, float]:
    """What is added, as the library takes it, and its factor: 0 for a vector, one number per column, without one.

    Args:
        problem: The product.
        addend: Of it.
        array: Its value in the network.
        fixed: Whether that is a weight, which may be changed once and for all.

    Raises:
        UnsupportedBrick: An input of the network would have to be changed in each execution.
    """
    whole = problem.result.columns * problem.batch, problem.result.rows
    if addend.shape == whole and whole[0] > 1:
        return array, addend.factor
    is_vector = addend.shape == (1, whole[1])
    if not fixed and not (is_vector and addend.factor == 1.0):
        raise UnsupportedBrick("cuBLAS: a bias that is an input and no vector of one number per column")
    scaled = array.reshape(addend.shape).astype(np.float64) * addend.factor
    if addend.shape[0] == 1:
        return np.broadcast_to(scaled, (1, whole[1])).reshape(-1).astype(array.dtype), 0.0
    return np.ascontiguousarray(np.broadcast_to(scaled, whole)).astype(array.dtype), 1.0


def _unplanned() -> None:
    raise RuntimeError("no algorithm was chosen")
