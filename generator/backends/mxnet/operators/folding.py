"""Values that depend on constants or shapes alone: computed once, while the network is loaded, whatever their size."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from .node import DOMAINS, Array, ValueType

__all__ = ["Folding"]

_COMPARED_BYTES = 1024
"""Arrays of up to this size are equal where their values are: each copy of a network has its own. Larger ones share."""

_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"})
"""Operators whose output may not be computed ahead, even where no activation reaches them."""

_SINCE_ONE_AXIS = 13
_OVER_ONE_AXIS = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
"""Before this opset they ran over all dimensions from their axis on, which the evaluator does not know."""


class Folding:
    """Computes constants from constants.

    Operators that do the same to the same arrays, as those of copies do, give the same array: MXNet gets it once.

    Args:
        model: The network.
        constants: Value to what is known; grows.
        types: Value to element type and shape, where they are static.
    """

    def __init__(self, model: onnx.ModelProto, constants: dict[str, Array], types: Mapping[str, ValueType]) -> None:
        self._model = model
        self._constants = constants
        self._types = types
        self._done: dict[Hashable, list[Array]] = {}
        self._opset = next((entry.version for entry in model.opset_import if entry.domain in DOMAINS), 1)

    def fold(self, proto: onnx.NodeProto) -> bool:
        """Compute the outputs of an operator; False where that is left to MXNet, which may refuse it."""
        if proto.op_type in {"Shape", "Size"} and proto.domain in DOMAINS and proto.input[0] in self._types:
            results = [_measured(proto, self._types[proto.input[0]][1])]
        elif self._constant(proto):
            found = self._evaluated(proto)
            if found is None:
                return False
            results = found
        else:
            return False
        self._constants |= dict(zip([name for name in proto.output if name], results, strict=True))
        return True

    def _constant(self, proto: onnx.NodeProto) -> bool:
        if proto.op_type in _RANDOM or any(attribute.HasField("g") for attribute in proto.attribute):
            return False
        if proto.op_type in _OVER_ONE_AXIS and self._opset < _SINCE_ONE_AXIS:
            return False
        inputs = [name for name in proto.input if name]
        return all(name in self._constants for name in inputs) and (bool(inputs) or proto.op_type == "Constant")

    def _evaluated(self, proto: onnx.NodeProto) -> list[Array] | None:
        key = self._key(proto)
        if key not in self._done:
            results = self._computed(proto)
            if results is None:
                return None
            self._done[key] = results
        return self._done[key]

    def _key(self, proto: onnx.NodeProto) -> Hashable:
        """What the results depend on. The arrays named by their place in memory are held by the constants."""
        bare = onnx.NodeProto(op_type=proto.op_type, domain=proto.domain, attribute=proto.attribute)
        inputs = tuple(_identity(self._constants[name]) if name else None for name in proto.input)
        return bare.SerializeToString(deterministic=True), inputs, tuple(map(bool, proto.output))

    def _computed(self, proto: onnx.NodeProto) -> list[Array] | None:
        from onnx.reference import ReferenceEvaluator

        names = dict.fromkeys(name for name in proto.input if name)
        given = {name: self._constants[name] for name in names}
        inner = helper.make_graph(
            [proto],
            "folded",
            [helper.make_tensor_value_info(name, _onnx_type(array), array.shape) for name, array in given.items()],
            [onnx.ValueInfoProto(name=name) for name in proto.output if name],
        )
        alone = helper.make_model(inner, opset_imports=self._model.opset_import, ir_version=self._model.ir_version)
        try:
            with np.errstate(all="ignore"):
                results: Any = ReferenceEvaluator(alone).run(None, given)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  # whatever NumPy raises: MXNet can compute it, or says why it cannot
            return None
        return [np.asarray(result) for result in results]


def _measured(proto: onnx.NodeProto, shape: tuple[int, ...]) -> Array:
    """What Shape or Size return."""
    if proto.op_type == "Size":
        return np.array(math.prod(shape), np.int64)
    bounds = {attribute.name: attribute.i for attribute in proto.attribute}
    return np.array(shape[bounds.get("start") : bounds.get("end")], np.int64)


def _onnx_type(array: Array) -> int:
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def _identity(array: Array) -> Hashable:
    small = array.nbytes <= _COMPARED_BYTES and array.dtype.kind != "O"
    return (array.dtype, array.shape, array.tobytes()) if small else id(array)
