"""State of the pass that sizes weights: the moments of each value, and the distribution of each weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from statistics import NormalDist
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from ....bricks.operators import MOVES, PRODUCTS, Trait, having
from ....models.skeleton import is_weight
from ....models.subgraphs import static_shapes

# How one synthetic weight is drawn, and the drawing itself, at memory speed.
#
# Fresh normal numbers cost 10 ns each, 1.5 s for VGG-19. Tensors are therefore cut from one pool of normal numbers per
# seed (modulo ``OTHER_WEIGHTS``), each from its own offset. The pool's length is prime, so that the rows of a matrix do
# not repeat within it.


# The first two moments of a tensor's elements, and what pooling does to them.


_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of a value's elements; the elements count as normally distributed.

    Attributes:
        rms: Root mean square ("magnitude").
        mean: Mean; 0 if nothing shifts the value.
    """

    rms: float
    mean: float = 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation."""
        return math.sqrt(max(0.0, self.rms * self.rms - self.mean * self.mean))

    def scaled(self, factor: float) -> Moments:
        """Moments of the value times a positive factor."""
        return Moments(self.rms * factor, self.mean * factor)

    def largest_of(self, count: int) -> Moments:
        """Moments of the largest of ``count`` independent elements.

        The mean is Blom's approximation of the normal order statistic. The variance is 0.4, between the variances for 4
        elements (0.49) and for 9 (0.36), the windows of real pooling layers.
        """
        if count <= 1:
            return self
        mean = self.mean + self.deviation * _NORMAL.inv_cdf((count - 0.375) / (count + 0.25))
        return Moments(math.hypot(mean, self.deviation * math.sqrt(0.4)), mean)


UNKNOWN = Moments(math.sqrt(0.5))
"""Moments of an unknown value: the magnitude of a rectified normal, hence plain He."""


BIAS = 0.02
"""Standard deviation of biases, and of float weights that nothing asks anything of."""

_NORMALS = 1_048_573
_UNIFORMS = 65_521
_MASK64 = (1 << 64) - 1

OTHER_WEIGHTS = 1 << 32
"""Seeds that differ by a multiple of it share a pool, and cut other numbers from it."""

Array = npt.NDArray[Any]
# numpy's own know no bfloat16, float8 and int4; these are untyped
_iinfo: Callable[..., Any] = ml_dtypes.iinfo
_finfo: Callable[..., Any] = ml_dtypes.finfo


@dataclass(frozen=True, slots=True)
class Draw:
    """The distribution of one weight.

    Attributes:
        kind: ``normal``: mean 0, standard deviation ``high``. ``uniform``: from ``low`` to ``high``. ``integer``:
            from ``low`` to ``high`` - 1. ``quantised``: normal around the middle of the integer type, standard
            deviation ``high``, clipped to the type. ``values``: exactly ``values``, repeated over the shape.
        low: See ``kind``.
        high: See ``kind``.
        values: See ``kind``.
    """

    kind: Literal["normal", "uniform", "integer", "quantised", "values"]
    low: float = 0.0
    high: float = 0.0
    values: tuple[float, ...] = ()

    @property
    def rms(self) -> float:
        """Root mean square of the drawn numbers."""
        if self.kind in {"normal", "quantised"}:
            return self.high
        if self.kind == "values":
            return math.sqrt(sum(value * value for value in self.values) / max(1, len(self.values)))
        return math.sqrt((self.low * self.low + self.low * self.high + self.high * self.high) / 3)


@lru_cache(maxsize=2)
def _pools(seed: int) -> tuple[Array, Array]:
    generator = np.random.Generator(np.random.PCG64(seed))
    normals = generator.standard_normal(_NORMALS, dtype=np.float32)
    # In double precision: in which order NumPy adds depends on its version and the processor, and must not show.
    normals -= np.float32(normals.mean(dtype=np.float64))
    normals /= np.float32(normals.std(dtype=np.float64))
    return normals, generator.random(_UNIFORMS, dtype=np.float32)


def _offset(numbers: Sequence[int], length: int) -> int:
    """Return the offset of a tensor in a pool of ``length``: a splitmix64 hash of its identifying numbers."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
        state ^= state >> 31
    return state % length


def _cut(pool: Array, offset: int, shape: Sequence[int], scale: float) -> Array:
    """Numbers from ``pool`` times ``scale``, starting at ``offset`` and wrapping around."""
    out = np.empty(math.prod(shape), np.float32)
    done = 0
    while done < out.size:
        part = pool[offset : offset + out.size - done]
        np.multiply(part, np.float32(scale), out=out[done : done + part.size])
        done += part.size
        offset = 0
    return out.reshape(tuple(shape))


def draw(recipe: Draw, dtype: int, shape: tuple[int, ...], *, seed: int, ordinal: int) -> Array:
    """Draw the array of one weight: equal for equal arguments, on every machine.

    Args:
        recipe: Its distribution.
        dtype: ONNX element type (``onnx.TensorProto.FLOAT``).
        shape: Its shape.
        seed: Seed of the model; at least 0. Those that differ by multiples of ``OTHER_WEIGHTS`` take other numbers of
            one pool: making a pool takes as long as drawing from it.
        ordinal: Position among the weights of the model. Names play no part.
    """
    target = helper.tensor_dtype_to_np_dtype(dtype)
    part, seed = divmod(seed, OTHER_WEIGHTS)
    normals, uniforms = _pools(seed)
    identity = (ordinal, *shape, part) if part else (ordinal, *shape)
    if recipe.kind == "values":
        return np.asarray(np.resize(np.array(recipe.values), shape).astype(target))
    if recipe.kind == "normal":
        return _cast(_cut(normals, _offset(identity, _NORMALS), shape, recipe.high), target)
    if recipe.kind == "quantised":
        limits = _iinfo(target)
        middle = (int(limits.min) + int(limits.max) + 1) // 2
        numbers = np.rint(_cut(normals, _offset(identity, _NORMALS), shape, recipe.high))
        return np.asarray(np.clip(numbers + middle, int(limits.min), int(limits.max)).astype(target))
    numbers = _cut(uniforms, _offset(identity, _UNIFORMS), shape, recipe.high - recipe.low)
    numbers += np.float32(recipe.low)
    if recipe.kind == "uniform":
        return _cast(numbers, target)
    return np.asarray(np.minimum(np.floor(numbers), recipe.high - 1).astype(target))


def _cast(numbers: Array, target: np.dtype[Any]) -> Array:
    """Cast to the target type; numbers that would be denormal there become zero."""
    if target == np.float32:
        return numbers
    if target != np.float64:
        limits = _finfo(target)
        numbers[np.abs(numbers) < float(limits.smallest_normal)] = 0
    return np.asarray(numbers.astype(target))


# Elementwise operators, followed exactly: a value as a function of the normal value that it was computed from.
#
# ``x · sigmoid(x)`` is no product of independent values, and 10 % per activation add up to a factor of a thousand over
# EfficientNet. So the numbers of a chain of elementwise operators are tabulated over one normal variable, its root, and
# their moments are integrals over that table.


Numbers = npt.NDArray[np.float64]

_GRID: Numbers = np.linspace(-6.0, 6.0, 121)
_DENSITY: Numbers = np.exp(-_GRID * _GRID / 2)
_DENSITY /= _DENSITY.sum()
_erf: Callable[[Any], Any] = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """A value as a function of a normal variable.

    Attributes:
        root: Name of the value behind the variable.
        numbers: The function over the grid of the standard normal variable behind the root.
    """

    root: str
    numbers: Numbers

    @classmethod
    def normal(cls, name: str, moments: Moments) -> Profile:
        """Return the profile of a normal value."""
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


def _of(operands: int, functions: Mapping[str, Function]) -> dict[str, tuple[int, Function]]:
    return {name: (operands, function) for name, function in functions.items()}


FUNCTIONS: Mapping[str, tuple[int, Function]] = {
    **_of(1, {
    "Abs": lambda _, x: np.abs(x), "Cast": lambda _, x: x, "Celu": lambda _, x: _elu(x, 1.0),
    "Cos": lambda _, x: np.cos(x), "Dropout": lambda _, x: x,
    "Elu": lambda node, x: _elu(x, _attribute(node, "alpha", 1.0)), "Erf": lambda _, x: np.asarray(_erf(x)),
    "Exp": lambda _, x: np.exp(np.clip(x, -80, 20)), "FastGelu": lambda _, x: _gelu(x), "Gelu": lambda _, x: _gelu(x),
    "HardSigmoid": lambda node, x: np.clip(_attribute(node, "alpha", 0.2) * x + _attribute(node, "beta", 0.5), 0, 1),
    "HardSwish": lambda _, x: x * np.clip(x / 6 + 0.5, 0, 1), "Identity": lambda _, x: x,
    "LeakyRelu": lambda node, x: np.where(x > 0, x, _attribute(node, "alpha", 0.01) * x),
    "Mish": lambda _, x: x * np.tanh(_softplus(x)), "Neg": lambda _, x: -x,
    "PRelu": lambda _, x: np.where(x > 0, x, 0.25 * x),
    "QuickGelu": lambda node, x: x * _sigmoid(_attribute(node, "alpha", 1.702) * x),
    "Relu": lambda _, x: np.maximum(x, 0), "Selu": lambda _, x: 1.0507 * _elu(x, 1.67326),
    "Sigmoid": lambda _, x: _sigmoid(x), "Sin": lambda _, x: np.sin(x), "Softplus": lambda _, x: _softplus(x),
    "Softsign": lambda _, x: x / (1 + np.abs(x)),
    "Swish": lambda node, x: x * _sigmoid(_attribute(node, "alpha", 1.0) * x), "Tanh": lambda _, x: np.tanh(x),
    "ThresholdedRelu": lambda node, x: np.where(x > _attribute(node, "alpha", 1.0), x, 0),
    }),
    **_of(2, {
    "Add": lambda _, x, y: np.add(x, y), "Div": lambda _, x, y: np.divide(x, y),
    "Max": lambda _, x, *more: reduce(np.maximum, more, x), "Min": lambda _, x, *more: reduce(np.minimum, more, x),
    "Mul": lambda _, x, y: np.multiply(x, y), "Pow": lambda _, x, y: np.power(x, y),
    "Sub": lambda _, x, y: np.subtract(x, y),
    }),
    "Clip": (3, lambda _, x, low=None, high=None: x if low is None and high is None else np.clip(x, low, high)),
}  # fmt: skip
"""Operator to the number of operands that count, and its function of the node and their numbers."""


def combine(node: NodeProto, operands: Sequence[Profile | float | None]) -> Profile | None:
    """Apply an elementwise operator to operands with one root.

    Returns:
        None if the operands have no common root or the result is not finite.
    """
    roots = {operand.root for operand in operands if isinstance(operand, Profile)}
    if len(roots) != 1:
        return None
    numbers = [operand.numbers if isinstance(operand, Profile) else operand for operand in operands]
    with np.errstate(all="ignore"):
        result = np.asarray(FUNCTIONS[node.op_type][1](node, *numbers))
    return Profile(roots.pop(), result) if np.isfinite(result).all() else None


_SENTINEL = 1e4  # constants beyond it mean "minus infinity" in masks and clips
_LARGEST = 1e30
FLOATS = frozenset(
    (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.FLOAT8E4M3FN,
     TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ)
)  # fmt: skip

_FILTERING = PRODUCTS | {"Conv"}
_LINEAR = (_FILTERING | MOVES | having(Trait.AFFINE)) - {"BatchNormalization"}


class Walk:
    """State of the pass: the moments of every value, and the distribution of each weight.

    Args:
        graph: The graph with the types of shape inference.

    Attributes:
        weights: Element type of each weight input.
        draws: Distributions decided so far, by weight.
        sources: Weights behind a value that only rearranges weights.
        steps: Magnitude of the quantised data that such a value multiplies its weight (a scale) with.
        averages: Values whose last axis sums to one.
        constants: Values of the initializers.
        shapes: Static shapes.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.weights = {value.name: value.type.tensor_type.elem_type for value in graph.input if is_weight(value)}
        self.draws: dict[str, Draw] = {}
        self.sources: dict[str, tuple[str, ...]] = {name: (name,) for name in self.weights}
        self.steps: dict[str, float] = {}
        self.averages: set[str] = set()
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self.shapes = static_shapes(graph)
        self._moments: dict[str, Moments] = {}
        self._profiles: dict[str, Profile] = {}
        self._producers: dict[str, NodeProto] = {}

    def record(self, node: NodeProto, moments: Moments, profile: Profile | None) -> None:
        """Record the moments of a node's outputs."""
        rms = min(max(moments.rms, 1 / _LARGEST), _LARGEST)
        bounded = Moments(rms, min(max(moments.mean, -rms), rms))
        for value in node.output:
            self._producers[value] = node
            self._moments[value] = bounded
            if profile:
                self._profiles[value] = profile

    def follow(self, node: NodeProto) -> Profile | None:
        """Return an elementwise operator's output as a function of the operands' common root; None without one."""
        if node.op_type not in FUNCTIONS:
            return None
        if node.op_type == "PRelu":
            self.claim(node.input[1], Draw("uniform", 0.2, 0.3))
        if node.input[0] in self.averages:  # a cast or rectified softmax is still an average
            self.averages.update(node.output)
        operands: list[Profile | float | None] = []
        for value in node.input[: FUNCTIONS[node.op_type][0]]:
            number = self.scalar(value)
            if not value:
                operands.append(None)
            elif value in self.sources or (value in self.constants and number is None):
                return None  # weights are claimed, and tables counted, by the operator's rule
            elif number is not None:
                if abs(number) > _SENTINEL:
                    return None
                operands.append(number)
            else:
                operands.append(self._profiles.get(value) or Profile.normal(value, self.moments(value)))
        return combine(node, operands)

    def moments(self, value: str) -> Moments:
        """Moments of a value; a weight that nobody has claimed yet becomes a bias."""
        if value in self.sources:
            return Moments(self.claim(value, Draw("normal", high=BIAS)))
        if value not in self._moments:
            self._moments[value] = self._constant_moments(value)
        return self._moments[value]

    def rms(self, value: str) -> float:
        """Root mean square of a value."""
        return self.moments(value).rms

    def _constant_moments(self, value: str) -> Moments:
        constant = self.constants.get(value)
        if constant is None:
            return UNKNOWN
        numbers = constant.astype(np.float64).ravel()
        numbers = numbers[np.abs(numbers) < _SENTINEL]
        if not numbers.size:
            return Moments(0.0)
        return Moments(float(np.sqrt(np.mean(numbers * numbers))), float(np.mean(numbers)))

    def scalar(self, value: str) -> float | None:
        """Return the number of a constant with one element."""
        constant = self.constants.get(value)
        return None if constant is None or constant.size != 1 else float(constant.ravel()[0])

    def extent(self, value: str, axis: int) -> int | None:
        """Return the length of one axis of a value; None if unknown."""
        shape = self.shapes.get(value)
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None

    def settle(self, name: str) -> Draw:
        """Return the distribution of a weight; the default of its type if no consumer decided it."""
        if name not in self.draws:
            kind = self.weights[name]
            if kind in FLOATS:
                self.draws[name] = Draw("normal", high=BIAS)
            elif kind == TensorProto.BOOL:
                self.draws[name] = Draw("integer", 0, 2)
            else:
                self.draws[name] = Draw("values", values=(0,))
        return self.draws[name]

    def claim(self, value: str, recipe: Draw) -> float:
        """Give every undecided float weight behind ``value`` this distribution; the value's magnitude.

        If ``value`` is not a weight, this is its magnitude; 0 if it is absent (the empty name).
        """
        if not value:
            return 0.0
        if value not in self.sources:
            return self.rms(value)
        for name in self.sources[value]:
            if name not in self.draws and self.weights[name] in FLOATS:
                self.draws[name] = recipe
        return max(self.settle(name).rms for name in self.sources[value]) * self.steps.get(value, 1.0)

    def filter(self, value: str, fan_in: int | None, partner: float) -> Moments:
        """Claim a filter so that its product with values of magnitude ``partner`` has magnitude one.

        Returns:
            Moments of the product: one, unless the filter was settled before or is not a weight.
        """
        fan = math.sqrt(max(1, fan_in or 1))
        size = 1.0 / (fan * max(partner, 1e-6))
        recipe = Draw("normal", high=size)
        if value in self.steps:
            size /= self.steps[value]
            recipe = Draw("uniform", 0.9 * size, 1.1 * size)
        return Moments(self.claim(value, recipe) * fan * partner)

    def damp(self, value: str, factor: float) -> None:
        """Scale a linear value by scaling the nearest filter before it, if any."""
        pending, seen = [value], {value}
        while pending:
            node = self._producers.get(pending.pop())
            if node is None or node.op_type not in _LINEAR:
                continue
            for operand in node.input[:2] if node.op_type in _FILTERING else ():
                names = self.sources.get(operand, ())
                recipes = {name: self.draws[name] for name in names if name in self.draws}
                if recipes and all(recipe.kind == "normal" for recipe in recipes.values()):
                    self.draws |= {name: replace(item, high=item.high * factor) for name, item in recipes.items()}
                    return
            pending += [operand for operand in reversed(node.input) if operand not in seen]
            seen.update(node.input)

    def quantise(self, value: str, rms: float) -> None:
        """Make every undecided integer weight behind ``value`` quantised data; 0 makes it a zero point."""
        for name in self.sources.get(value, ()):
            if self.weights[name] not in FLOATS:
                self.draws.setdefault(name, Draw("quantised", high=rms))


def operand(node: NodeProto, slot: int) -> str:
    """Return the name in one operand slot; empty for an absent operand."""
    return node.input[slot] if slot < len(node.input) else ""
