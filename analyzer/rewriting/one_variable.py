"""Both sides of a rewrite as elementwise functions of one value, compared on all numbers of bfloat16.

A function may bend or jump between two of these numbers, so that the places where an interior value changes its sign,
or passes a constant, are found by bisection, and the numbers next to them are compared too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from ...bricks.operators import ELEMENTWISE, Trait, having
from ...models.subgraphs import attribute_of
from .both_sides import Case, Sides
from .evaluation import Unclear
from .recording import Values
from .rewrite import Array, ordered

_ROUNDINGS, _MOST_NOISE = 4.0, 1e-5
"""Largest difference of two functions, in rounding errors of the old nodes; largest such error relative to the value
and the argument, since a number may be added just to round."""
_REACH = 2.0**60
"""Largest finite number that is compared: beyond, powers overflow in one spelling and not in another."""
_ELEMENTS, _FEWEST_ROWS = 1 << 14, 64
"""Elements of the value where its shape does not matter."""
_MOST_NODES, _MOST_FUNCTIONS, _MOST_PLACES, _BISECTIONS = 200, 1 << 12, 4096, {2: 12, 4: 17, 8: 46}


@dataclass(frozen=True, slots=True)
class OneVariable:
    """Both sides as elementwise functions of one value.

    Attributes:
        sides: The nodes, with the value as their frontier, at a small shape.
        name: The value.
        shape: Shape of the constants that they read, after broadcasting.
    """

    sides: Sides
    name: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, case: Case, values: Values) -> OneVariable | None:
        """Return both sides as functions of one value; None if they are not."""
        graph, front, old = values.graph, list(case.front), list(case.old)
        while len(front) > 1:  # a value of the frontier may be a function of another one
            name = max(front, key=lambda name: graph.producer.get(name, -1))
            maker = graph.maker(name)
            if maker is None or maker.op_type not in ELEMENTWISE or len(old) > _MOST_NODES:
                return None
            old.insert(0, maker)
            front.remove(name)
            inside = {output for node in old for output in node.output} | graph.constants.keys() | values.of_shapes
            front += [read for read in dict.fromkeys(maker.input) if read and read not in front and read not in inside]
        nodes = [*ordered(old), *case.new]
        if len(front) != 1 or len(case.targets) != 1 or any(_jumps(node) for node in nodes):
            return None
        (name,), (target,) = front, case.targets
        kind = values.dtypes.get(name)
        if kind is None or kind.kind != "f" or values.dtypes.get(target) != kind:
            return None
        variables = {output for node in nodes for output in node.output} | {name}
        shape: tuple[int, ...] = (1,) * len(values.shapes[name])
        for read in {read for node in nodes for read in node.input if read} - variables:
            array = case.constants.get(read, graph.constants.get(read))
            if array is None:
                return None
            shape = np.broadcast_shapes(shape, array.shape)
        if len(shape) > len(values.shapes[name]) or (shape and shape[0] > 1) or np.prod(shape) > _MOST_FUNCTIONS:
            return None
        renamed = replace(case, front=(name,), old=tuple(ordered(old)))
        small = np.zeros((max(_FEWEST_ROWS, _ELEMENTS // int(np.prod(shape))), *shape[1:]) if shape else (), kind)
        return cls(Sides(renamed, {**values.runs[0], name: small}, values), name, shape)

    def difference(self) -> float:
        """Return the largest difference over all numbers, in multiples of what rounding explains."""
        kind = self.sides.shape[self.name].dtype
        bits = np.arange(1 << 16, dtype=np.uint32)
        numbers = bits.astype(np.uint16).view(np.float16) if kind.itemsize == 2 else (bits << 16).view(np.float32)
        numbers = numbers.astype(kind)
        if kind.itemsize > 2:  # a number at random beside each of these
            inside = np.random.default_rng(3).uniform(0, 2.0**-7, numbers.shape)
            with np.errstate(all="ignore"):
                numbers = np.concatenate([numbers, (numbers * (1 + inside)).astype(kind)])
        numbers = numbers[~(np.isfinite(numbers) & (np.abs(numbers) > _REACH))]
        numbers = np.concatenate([numbers, self._next_to_bends(np.sort(numbers))])
        x = self._spread(numbers)
        (target, again), *_ = self.sides.case.targets.items()
        with np.errstate(all="ignore"):
            (old,), (new,) = self._values(0, x, target), self._values(1, x, again)
            old, new = old.astype(np.float64), new.astype(np.float64)
            finite, infinite = np.isfinite(old), np.isinf(old)
            if not np.isfinite(new[finite]).all() or np.isfinite(new[np.isnan(old)]).any():
                return np.inf
            if (new != old)[infinite].any():
                return np.inf
            most = _MOST_NOISE * (np.abs(old) + np.abs(np.broadcast_to(x.astype(np.float64), old.shape)))
            noise = np.fmin(self._noise(x, target, old), most)
            limit = _ROUNDINGS * (noise + float(np.finfo(kind).eps) * np.abs(old)) + np.finfo(kind).tiny
            return float((np.abs(new - old) / limit)[finite].max(initial=0.0))

    def _spread(self, numbers: Array) -> Array:
        """Return numbers along the first axis, for each function of the others."""
        x = np.broadcast_to(numbers.reshape(-1, *[1] * (len(self.shape) - 1)), (len(numbers), *self.shape[1:]))
        return np.ascontiguousarray(x)

    def _next_to_bends(self, numbers: Array) -> Array:
        """Return the numbers next to each place where an interior value changes its sign or passes a constant."""
        finite = numbers[np.isfinite(numbers)]
        low, high = finite[:-1], finite[1:]
        neighbours = [np.zeros(0, finite.dtype)]
        for side in (0, 1):
            before = self._signs(side, finite)
            for row in range(len(before)):
                places = np.nonzero(before[row][:-1] != before[row][1:])[0][:_MOST_PLACES]
                if not len(places):
                    continue
                lower, upper = low[places], high[places]
                for _ in range(_BISECTIONS[finite.dtype.itemsize]):
                    middle = (lower + (upper - lower) / 2).astype(finite.dtype)
                    same = self._signs(side, middle)[row] == before[row][places]
                    lower, upper = np.where(same, middle, lower), np.where(same, upper, middle)
                neighbours += [lower, upper]
        return np.concatenate(neighbours)

    def _signs(self, side: int, numbers: Array) -> Array:
        """Return for interior values, and for their distances to constants, the sign at each number."""
        nodes = self.sides.case.old if side == 0 else self.sides.case.new
        names = [node.output[0] for node in nodes]
        arrays = self._values(side, self._spread(numbers), *names)
        bounds = [0.0, *np.unique([float(array.reshape(-1)[0]) for array in self.sides.constants.values()
                                   if array.size == 1 and array.dtype.kind == "f"])]  # fmt: skip
        bounds += [1.0, -1.0]
        rows = [numbers.astype(np.float64) - bound for bound in bounds]
        for array in arrays:
            flat = np.broadcast_to(array, (len(numbers), *array.shape[1:])).reshape(len(numbers), -1)
            for column in {0, flat.shape[1] // 2, flat.shape[1] - 1}:
                rows += [flat[:, column].astype(np.float64) - bound for bound in bounds]
        with np.errstate(all="ignore"):
            return np.stack([np.sign(np.nan_to_num(row)) for row in rows])

    def _noise(self, x: Array, target: str, exact: Array) -> Array:
        """Return how far the result moves if the value and each interior one, in turn, move by their last digit."""
        nodes, moved = self.sides.case.old, np.zeros(exact.shape)
        interior = [node.output[0] for node in nodes if node.output[0] != target]
        at = dict(zip(interior, self._values(0, x, *interior), strict=True)) if interior else {}
        for name, array in {self.name: x, **at}.items():
            if array.dtype.kind == "f":
                rest = [node for node in nodes if node.output[0] != name]
                step = 1 + 2 * float(np.finfo(array.dtype).eps)
                feeds = {self.name: x, name: (array * step).astype(array.dtype)}
                loaded = self.sides.part(rest, {read: array.dtype for read, array in feeds.items()}, [target])
                input_names = {value.name for value in loaded.get_inputs()}
                (other,) = loaded.run([target], {read: array for read, array in feeds.items() if read in input_names})
                moved += np.abs(other.astype(np.float64) - exact)
        return moved

    def _values(self, side: int, x: Array, *names: str) -> list[Array]:
        try:
            return self.sides.run(side, {self.name: x}, names)
        except Unclear:
            raise
        except Exception as error:  # the runtime refuses parts in its own ways
            raise Unclear(f"the runtime refuses a part: {' '.join(str(error).split())[:120]}") from error


def _jumps(node: onnx.NodeProto) -> bool:
    """Return True if a node may jump between two numbers, or is not elementwise."""
    floats: Sequence[Any] = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    return (
        node.op_type not in ELEMENTWISE - having(Trait.JUMPS)
        or (node.op_type == "Cast" and attribute_of(node, "to") not in floats)
    )  # fmt: skip
