"""State of the pass that sizes weights: what is known of each value, and decided about each weight."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from ....bricks.operators import PRODUCTS
from ....models.shapes import static_shapes
from ....models.skeleton import is_weight
from .draws import BIAS, Draw
from .elementwise import FUNCTIONS, Profile, combine
from .moments import UNKNOWN, Moments

__all__ = ["FLOATS", "Walk", "operand"]

_SENTINEL = 1e4  # constants beyond it mean "minus infinity" in masks and clips
_LARGEST = 1e30
FLOATS = frozenset(
    (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.FLOAT8E4M3FN,
     TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ)
)  # fmt: skip

_FILTERING = PRODUCTS | {"Conv"}
_LINEAR = _FILTERING | frozenset(
    ("Add", "Sub", "Mul", "Div", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Expand", "Identity", "Cast", "Slice",
     "Split", "Concat", "Neg")
)  # fmt: skip


class Walk:
    """State of the pass: the moments of every value, and what is decided about each weight.

    Args:
        graph: With the types that shape inference found.

    Attributes:
        weights: Element type of each weight input.
        draws: What is decided.
        sources: Weights behind a value, where it is nothing but weights rearranged.
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
        """Note what a node's outputs are."""
        rms = min(max(moments.rms, 1 / _LARGEST), _LARGEST)
        kept = Moments(rms, min(max(moments.mean, -rms), rms))
        for value in node.output:
            self._producers[value] = node
            self._moments[value] = kept
            if profile:
                self._profiles[value] = profile

    def follow(self, node: NodeProto) -> Profile | None:
        """The output of an elementwise operator as a function of its operands' common root; None where it is none."""
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
        """The value of a constant of one element."""
        constant = self.constants.get(value)
        return None if constant is None or constant.size != 1 else float(constant.ravel()[0])

    def extent(self, value: str, axis: int) -> int | None:
        """Length of one axis of a value, where it is known."""
        shape = self.shapes.get(value)
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None

    def settle(self, name: str) -> Draw:
        """What was decided about a weight, or what suits its type where no consumer said anything."""
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

        Where ``value`` is no weight this is its magnitude, and 0 where it is absent (the empty name).
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
            Moments of the product: one, unless the filter was settled before or is no weight.
        """
        fan = math.sqrt(max(1, fan_in or 1))
        size = 1.0 / (fan * max(partner, 1e-6))
        recipe = Draw("normal", high=size)
        if value in self.steps:
            size /= self.steps[value]
            recipe = Draw("uniform", 0.9 * size, 1.1 * size)
        return Moments(self.claim(value, recipe) * fan * partner)

    def damp(self, value: str, factor: float) -> None:
        """Scale a linear value by scaling the filter nearest in front of it, where there is one."""
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
    """The name in one operand slot; empty where the operand is absent."""
    return node.input[slot] if slot < len(node.input) else ""
