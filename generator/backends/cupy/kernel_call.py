"""A brick of one operator: its inputs and outputs as arrays on a GPU, and the pointwise operators.

A pointwise operator is one kernel, which computes in float32; comparisons and logic are CuPy's functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from ....errors import UnsupportedBrick
from ....models.subgraphs import attributes_of, declared_shape, infer_shapes, is_standard
from ...device.device import Run
from ...network.network import Network
from ..library import Buffer, Memory, described, narrowed, values_of

Array = npt.NDArray[Any]

_CARRIERS = {1: np.uint8, 2: np.uint16}
"""Types that carry the bytes of types unknown to CuPy, by size."""
_SHARED = frozenset({"int4", "uint4", "int2", "uint2", "float4_e2m1fn"})
"""Types with several elements per byte."""


class DeviceCall:
    """One operator with its values.

    Inputs go to the device on request, so that parameters stay on the host.

    Raises:
        UnsupportedBrick: The brick has several operators, or values that cannot be held.
    """

    def __init__(self, network: Network, dtype: str, memory: Memory) -> None:
        model = infer_shapes(described(network), strict=True)
        self.node = node_of(model)
        self.given = attributes_of(self.node)
        self._network = network
        self._dtype = dtype
        self._memory = memory
        self._values: Mapping[str, Array] = values_of(network)
        self._held: dict[str, tuple[Buffer, Any]] = {}
        declared = {value.name: value.type for value in model.graph.output}
        if set(declared) - set(self.node.output):
            raise refused(self.node, "passes a value on")
        self._types = {
            name: (helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type), declared_shape(kind))
            for name, kind in declared.items()
        }
        self._written = {name: self._empty(*kind) for name, kind in self._types.items()}

    def has(self, index: int) -> bool:
        """Return True if an optional input is present."""
        return index < len(self.node.input) and bool(self.node.input[index])

    def host(self, index: int) -> Array:
        """Return the value of an input on the host: parameters do not change."""
        return self._values[self.node.input[index]]

    def numbers(self, index: int) -> list[int]:
        """Value of an input as a list of integers."""
        return [int(each) for each in self.host(index).reshape(-1)]

    def x(self, index: int = 0) -> Any:
        """Return an input as a CuPy array; types unknown to CuPy become integers of the same size.

        Raises:
            UnsupportedBrick: The input is empty, or has several elements per byte.
        """
        name = self.node.input[index]
        if name not in self._held:
            array = narrowed(self._values[name], self._dtype)
            self._require(array.dtype, array.shape)
            buffer = self._memory.holding(array)
            self._held[name] = buffer, buffer.array(_carrier(array.dtype), array.shape)
        return self._held[name][1]

    def number(self, index: int = 0) -> Any:
        """As ``x``, of an input that is computed with.

        Raises:
            UnsupportedBrick: CuPy does not compute in its type.
        """
        kind = narrowed(self._values[self.node.input[index]], self._dtype).dtype
        if kind.kind not in "biuf":
            raise refused(self.node, f"of {kind.name}, in which CuPy is not asked to compute")
        return self.x(index)

    def fraction(self, index: int = 0) -> Any:
        """As ``number``, of float32 or float16: kernels of this room compute in float32.

        Raises:
            UnsupportedBrick: It is of another type.
        """
        array = self.number(index)
        if array.dtype not in {np.dtype(np.float32), np.dtype(np.float16)}:
            raise refused(self.node, f"of {array.dtype.name}; only float32 and float16 have a kernel")
        return array

    def y(self, index: int = 0) -> Any:
        """Return an output as a CuPy array, as ``x`` does for inputs.

        Raises:
            UnsupportedBrick: The value is not an output of the brick.
        """
        name = self.node.output[index]
        if name not in self._written:
            raise refused(self.node, "without its output")
        kind, shape = self._types[name]
        return self._written[name].array(_carrier(self._computed(kind)), shape)

    @property
    def wanted(self) -> list[int]:
        """Places of the outputs that are asked for."""
        return [index for index, name in enumerate(self.node.output) if name in self._written]

    @property
    def stream(self) -> Any:
        """The stream of the kernels."""
        return self._memory.stream

    @property
    def inputs(self) -> list[Buffer]:
        """Memory of the network's inputs that went to the device."""
        return [buffer for name, (buffer, _) in self._held.items() if name in self._network.feeds]

    @property
    def outputs(self) -> list[Buffer]:
        """Memory of the outputs."""
        return list(self._written.values())

    def constant(self, values: Array) -> Any:
        """Return an array on the device."""
        return self._memory.holding(values).array(values.dtype, values.shape)

    def read(self) -> list[Array]:
        """Return the outputs on the host, in the network's types."""
        arrays = []
        for name in self._network.outputs:
            kind, shape = self._types[name]
            arrays.append(self._memory.read(self._written[name], self._computed(kind), shape).astype(kind))
        return arrays

    def _empty(self, kind: np.dtype[Any], shape: tuple[int, ...]) -> Buffer:
        self._require(kind, shape)
        return self._memory.empty(math.prod(shape) * self._computed(kind).itemsize)

    def _computed(self, kind: np.dtype[Any]) -> np.dtype[Any]:
        return narrowed(np.zeros(0, kind), self._dtype).dtype

    def _require(self, kind: np.dtype[Any], shape: tuple[int, ...]) -> None:
        if kind.name in _SHARED or kind.kind in "OUS":
            raise refused(self.node, f"of {kind.name}")
        if 0 in shape:
            raise refused(self.node, "of nothing")


def node_of(model: onnx.ModelProto) -> onnx.NodeProto:
    """Return the operator of a brick.

    Raises:
        UnsupportedBrick: The brick has several operators, or one of another domain.
    """
    first: onnx.NodeProto
    first, *rest = model.graph.node
    if rest:
        raise UnsupportedBrick(f"CuPy: {first.op_type} beside {rest[0].op_type}; bricks of one operator are executed")
    if not is_standard(first):
        raise refused(first, "is of another domain")
    return first


def refused(node: onnx.NodeProto, why: str) -> UnsupportedBrick:
    """Return the error for an operator that is not executed."""
    return UnsupportedBrick(f"CuPy: {node.op_type} {why}")


def _carrier(kind: np.dtype[Any]) -> np.dtype[Any]:
    return kind if kind.kind in "biufc" else np.dtype(_CARRIERS[kind.itemsize])


_UNARY = {
    "Abs": "fabsf(a)", "Ceil": "ceilf(a)", "Cos": "cosf(a)", "Erf": "erff(a)", "Exp": "expf(a)", "Floor": "floorf(a)",
    "Log": "logf(a)", "Neg": "-a", "Reciprocal": "1.f / a", "Relu": "a < 0.f ? 0.f : a", "Round": "rintf(a)",
    "Sigmoid": "1.f / (1.f + expf(-a))", "Sin": "sinf(a)", "Softplus": "fmaxf(a, 0.f) + log1pf(expf(-fabsf(a)))",
    "Sqrt": "sqrtf(a)", "Tanh": "tanhf(a)", "HardSwish": "a * fminf(fmaxf(a / 6.f + 0.5f, 0.f), 1.f)",
}  # fmt: skip
"""By operator: of ``a``."""
_TUNED = {
    "Elu": ("a < 0.f ? alpha * expm1f(a) : a", 1.0, 0.0),
    "HardSigmoid": ("fminf(fmaxf(alpha * a + beta, 0.f), 1.f)", 0.2, 0.5),
    "LeakyRelu": ("a < 0.f ? alpha * a : a", 0.01, 0.0),
}
"""By operator: of ``a``, ``alpha`` and ``beta``, and the defaults of these."""
_GELU = {
    "none": "0.5f * a * (1.f + erff(a * 0.70710678118654752f))",
    "tanh": "0.5f * a * (1.f + tanhf(0.79788456080286536f * (a + 0.044715f * a * a * a)))",
}
_BINARY = {
    "Add": "a + b", "Div": "a / b", "Max": "a < b ? b : a", "Min": "b < a ? b : a", "Mul": "a * b",
    "PRelu": "a < 0.f ? a * b : a", "Pow": "powf(a, b)", "Sub": "a - b", "Sum": "a + b",
}  # fmt: skip
"""Expressions of ``a`` and ``b`` by operator; more operands are combined two at a time."""
_FUNCTIONS = {
    "And": "logical_and", "Equal": "equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "Less": "less",
    "LessOrEqual": "less_equal", "Not": "logical_not", "Or": "logical_or", "Xor": "logical_xor",
}  # fmt: skip
"""By operator: the function of CuPy that it is."""


_TWO_NUMBERS = "T x, float32 alpha, float32 beta"


def _unary(call: DeviceCall) -> Run:
    op_type = call.node.op_type
    if op_type == "Gelu":
        code, alpha, beta = _GELU[call.given.get("approximate", "none")], 0.0, 0.0
    else:
        code, alpha, beta = _TUNED.get(op_type) or (_UNARY[op_type], 0.0, 0.0)
    x, y = call.fraction(), call.y()
    numbers = call.given.get("alpha", alpha), call.given.get("beta", beta)
    kernel = _kernel(code, _TWO_NUMBERS, "float a = (float)x;")
    return partial(kernel, x, *numbers, y)


def _binary(call: DeviceCall) -> Run:
    count = len(call.node.input)
    first, *rest = (call.fraction(index) for index in range(count))
    y = call.y()
    kernel = _kernel(_BINARY[call.node.op_type], "T x, T z", "float a = (float)x, b = (float)z;")

    def run() -> None:
        result = first
        for other in rest:
            kernel(result, other, y)
            result = y

    return run if rest else lambda: y.__setitem__(..., first)


def _clip(call: DeviceCall) -> Run:
    x, y = call.fraction(), call.y()
    low = float(call.host(1).item()) if call.has(1) else float("-inf")
    high = float(call.host(2).item()) if call.has(2) else float("inf")
    kernel = _kernel("a < alpha ? alpha : a > beta ? beta : a", _TWO_NUMBERS, "float a = (float)x;")
    return partial(kernel, x, low, high, y)


def _function(call: DeviceCall) -> Run:
    import cupy

    function: Any = getattr(cupy, _FUNCTIONS[call.node.op_type])
    operands = [call.number(index) for index in range(len(call.node.input))]
    y = call.y()
    return partial(function, *operands, out=y)


POINTWISE: dict[str, Callable[[DeviceCall], Run]] = {
    **dict.fromkeys((*_UNARY, *_TUNED, "Gelu"), _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_FUNCTIONS, _function),
    "Clip": _clip,
}
"""Functions by operator; each returns a function that enqueues one execution in the current stream."""


@cache
def _kernel(code: str, takes: str, begin: str) -> Any:
    import cupy

    return cupy.ElementwiseKernel(takes, "T y", f"{begin} y = (T)({code});", "dlb_pointwise")
