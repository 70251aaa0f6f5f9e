"""Elementwise operators, followed exactly: a value as a function of the normal value that it was computed from.

``x · sigmoid(x)`` is no product of independent values, and 10 % per activation add up to a factor of a thousand over
EfficientNet. So the numbers of a chain of elementwise operators are tabulated over one normal variable, its root, and
their moments are integrals over that table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, NodeProto

from .moments import Moments

__all__ = ["FUNCTIONS", "Profile", "combine"]

Numbers = npt.NDArray[np.float64]

_GRID: Numbers = np.linspace(-6.0, 6.0, 121)
_DENSITY: Numbers = np.exp(-_GRID * _GRID / 2)
_DENSITY /= _DENSITY.sum()
_erf: Callable[[Any], Any] = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """A value as a function of a normal variable.

    Attributes:
        root: Name of the value that the variable stands for.
        numbers: The function over the grid of the standard normal variable behind the root.
    """

    root: str
    numbers: Numbers

    @classmethod
    def normal(cls, name: str, moments: Moments) -> Profile:
        """A value that counts as normal itself."""
        return cls(name, moments.mean + moments.deviation * _GRID)

    def moments(self) -> Moments:
        """Mean and root mean square under the normal density."""
        mean = float(self.numbers @ _DENSITY)
        return Moments(math.sqrt(float((self.numbers * self.numbers) @ _DENSITY)), mean)


def _sigmoid(x: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-np.clip(x, -80, 80)))


def _softplus(x: Numbers) -> Numbers:
    return np.logaddexp(0, x)


def _gelu(x: Numbers) -> Numbers:
    return np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2))))


def _elu(x: Numbers, alpha: float) -> Numbers:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _attribute(node: NodeProto, name: str, default: float) -> float:
    return next((item.f for item in node.attribute if item.name == name and item.type == AttributeProto.FLOAT), default)


Function = Callable[..., Numbers]

_UNARY: Mapping[str, Function] = {
    "Abs": lambda _, x: np.abs(x),
    "Cast": lambda _, x: x,
    "Celu": lambda _, x: _elu(x, 1.0),
    "Cos": lambda _, x: np.cos(x),
    "Dropout": lambda _, x: x,
    "Elu": lambda node, x: _elu(x, _attribute(node, "alpha", 1.0)),
    "Erf": lambda _, x: np.asarray(_erf(x)),
    "Exp": lambda _, x: np.exp(np.clip(x, -80, 20)),
    "FastGelu": lambda _, x: _gelu(x),
    "Gelu": lambda _, x: _gelu(x),
    "HardSigmoid": lambda node, x: np.clip(_attribute(node, "alpha", 0.2) * x + _attribute(node, "beta", 0.5), 0, 1),
    "HardSwish": lambda _, x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Identity": lambda _, x: x,
    "LeakyRelu": lambda node, x: np.where(x > 0, x, _attribute(node, "alpha", 0.01) * x),
    "Mish": lambda _, x: x * np.tanh(_softplus(x)),
    "Neg": lambda _, x: -x,
    "PRelu": lambda _, x: np.where(x > 0, x, 0.25 * x),
    "QuickGelu": lambda node, x: x * _sigmoid(_attribute(node, "alpha", 1.702) * x),
    "Relu": lambda _, x: np.maximum(x, 0),
    "Selu": lambda _, x: 1.0507 * _elu(x, 1.67326),
    "Sigmoid": lambda _, x: _sigmoid(x),
    "Sin": lambda _, x: np.sin(x),
    "Softplus": lambda _, x: _softplus(x),
    "Softsign": lambda _, x: x / (1 + np.abs(x)),
    "Swish": lambda node, x: x * _sigmoid(_attribute(node, "alpha", 1.0) * x),
    "Tanh": lambda _, x: np.tanh(x),
    "ThresholdedRelu": lambda node, x: np.where(x > _attribute(node, "alpha", 1.0), x, 0),
}
_BINARY: Mapping[str, Function] = {
    "Add": lambda _, x, y: np.add(x, y),
    "Div": lambda _, x, y: np.divide(x, y),
    "Max": lambda _, x, *more: reduce(np.maximum, more, x),
    "Min": lambda _, x, *more: reduce(np.minimum, more, x),
    "Mul": lambda _, x, y: np.multiply(x, y),
    "Pow": lambda _, x, y: np.power(x, y),
    "Sub": lambda _, x, y: np.subtract(x, y),
}
_BOUNDED: Mapping[str, Function] = {
    # NumPy before 2.1 refuses to clip where there is no bound at all.
    "Clip": lambda _, x, low=None, high=None: x if low is None and high is None else np.clip(x, low, high)
}

FUNCTIONS: Mapping[str, tuple[int, Function]] = {
    **{name: (1, function) for name, function in _UNARY.items()},
    **{name: (2, function) for name, function in _BINARY.items()},
    **{name: (3, function) for name, function in _BOUNDED.items()},
}
"""Operator to the number of operands that count, and its function of the node and their numbers."""


def combine(node: NodeProto, operands: Sequence[Profile | float | None]) -> Profile | None:
    """What an elementwise operator makes of operands with one root.

    Args:
        node: The operator, one of ``FUNCTIONS``.
        operands: Profiles, scalar constants, and None for absent ones.

    Returns:
        None where the operands have no common root, or the result is not finite.
    """
    roots = {operand.root for operand in operands if isinstance(operand, Profile)}
    if len(roots) != 1:
        return None
    numbers = [operand.numbers if isinstance(operand, Profile) else operand for operand in operands]
    with np.errstate(all="ignore"):
        result = np.asarray(FUNCTIONS[node.op_type][1](node, *numbers))
    return Profile(roots.pop(), result) if np.isfinite(result).all() else None
