"""Functions of one integer value that has finitely many cases: both sides are compared on all of them.

A value is *by element* of an integer value x if, in the order of memory and in as many rows as x has elements, each row
depends on one element of x. Views, elementwise operators, products with weights from the right and lookups keep this
property (``_hands_on``). x itself may be read by views, comparisons with constants, Clip, OneHot and as an index of a
constant table. So its cases are finitely many: legal indices of a table, or the integers up to one beyond the smallest
and largest constant, since further away nothing changes. Integers of 8 bits may be read by everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from ...bricks.operators import ELEMENTWISE, VIEWS, Kind, named
from ...models.subgraphs import attributes_of, plain_domain
from .both_sides import Case, Sides
from .evaluation import Unclear
from .recording import Sizes
from .rewrite import MICROSOFT, Array

_MOST_CASES, _NARROW = 1 << 16, 1
"""Limit on cases; bytes of integers all of which are tried."""
_FLOATS = frozenset({onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16})
_ROUNDINGS = 4
"""Largest difference of both sides, in rounding errors of the number itself."""

_SIZES = named(Kind.MEASURE)

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(slots=True)
class ByElement:
    """Which values are functions of one integer value, element by element.

    Attributes:
        name: The integer value, x.
        kind: Its type.
        shapes: Shapes of all values, x included.
        constants: Values that do not depend on x.
        itself: Values that are x in another shape or type.
        values: Values that are by element of x.
        bounds: Constants that x is compared with.
        rows: Rows of the smallest table that x is an index of; 0 without one.
    """

    name: str
    kind: np.dtype[Any]
    shapes: Shapes
    constants: Mapping[str, Array]
    itself: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    bounds: set[int] = field(default_factory=set)
    rows: int = 0

    def __post_init__(self) -> None:
        """Begin with x itself."""
        self.itself.add(self.name)
        self.values.add(self.name)

    @property
    def _count(self) -> int:
        return int(np.prod(self.shapes[self.name]))

    def split(self, shape: Sequence[int]) -> int | None:
        """Return how many leading axes have as many elements as x; None if no number of axes has."""
        sizes = [int(np.prod(shape[:axes])) for axes in range(len(shape) + 1)]
        return sizes.index(self._count) if self._count in sizes else None

    def follow(self, node: onnx.NodeProto) -> bool:
        """Return True if the output of a node is by element of x, and add it to ``values``."""
        has_shapes = all(name in self.shapes for name in (*node.input, *node.output) if name)
        domain = plain_domain(node.domain)
        plain = not domain or (domain == MICROSOFT and node.op_type in ELEMENTWISE)
        if not plain or len(node.output) != 1 or not has_shapes:
            return False
        operands = [name for name in node.input if name]
        if not all(name in self.values or name in self.constants for name in operands):
            return False
        if not self._hands_on(node) or not self._reads_cases(node):
            return False
        self.values.add(node.output[0])
        return True

    def _hands_on(self, node: onnx.NodeProto) -> bool:
        """Return True if the output is by element of x, since the operands are."""
        out, attributes = self.shapes[node.output[0]], attributes_of(node)
        axes, tracked = self.split(out), [slot for slot, name in enumerate(node.input) if name in self.values]
        match node.op_type:
            case "Gather":
                return tracked == [1] and attributes.get("axis", 0) == 0
            case "OneHot":
                return tracked == [0] and attributes.get("axis", -1) in {-1, len(out) - 1}
            case "Gemm" | "MatMul":
                return tracked == [0] and axes is not None and self._keeps_rows(node, axes)
            case operator if operator in VIEWS | {"Cast"}:
                return tracked == [0]
            case operator if operator in ELEMENTWISE - {"Dropout"} | {"Expand"} and axes is not None:
                rows = {True: out[:axes], False: (1,) * axes}
                operands = [name for name in node.input[: 1 if operator == "Expand" else None] if name]
                return (operator != "Expand" or tracked == [0]) and all(
                    _aligned(self.shapes[name], out)[:axes] == rows[name in self.values] for name in operands
                )
        return False

    def _keeps_rows(self, node: onnx.NodeProto, axes: int) -> bool:
        """Return True if a product treats the rows of x alike."""
        x, weights, *biases = (self.shapes[name] for name in node.input if name)
        rows = axes < len(x) and x[:axes] == self.shapes[node.output[0]][:axes]
        turned = attributes_of(node).get("transA")
        return rows and len(weights) == 2 and not turned and all(len(bias) < 2 or not axes for bias in biases)

    def _reads_cases(self, node: onnx.NodeProto) -> bool:
        """Return True if a node distinguishes finitely many values of x itself, and note their bounds."""
        if self.kind.itemsize == _NARROW or not any(name in self.itself for name in node.input):
            return True
        read = [name for name in node.input if name and name not in self.itself]
        if any(name not in self.constants for name in read):
            return False
        others = [self.constants[name] for name in read]
        whole = all(array.dtype.kind in "iu" and array.size for array in others)
        match node.op_type, len(others):
            case ("Cast" | "Expand", _) | (("Flatten" | "Identity" | "Reshape" | "Squeeze" | "Unsqueeze"), _):
                to = attributes_of(node).get("to")
                is_finite = to is None or np.can_cast(self.kind, onnx.helper.tensor_dtype_to_np_dtype(to))
                is_finite = is_finite and to not in _FLOATS
                self.itself.update(node.output if is_finite else ())
            case "Gather", 1:
                is_finite, rows = True, others[0].shape[0]
                self.rows = min(self.rows or rows, rows)
            case "OneHot", 2:
                is_finite, depth = True, int(others[0].reshape(-1)[0])
                self.bounds.update((-depth, depth - 1))
            case (("Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual"), 1) | ("Clip", 2) if whole:
                is_finite = True
                self.bounds.update(int(number) for array in others for number in array.reshape(-1))
            case _:
                is_finite = False
        return is_finite

    def cases(self, *others: ByElement) -> Array:
        """Return the integers that the nodes distinguish; ``others`` only add their bounds.

        Raises:
            Unclear: There are too many.
        """
        if self.kind.kind == "b":
            return np.array([False, True])
        info = np.iinfo(self.kind)
        bounds = self.bounds.union(*(other.bounds for other in others))
        if self.kind.itemsize == _NARROW:
            low, high = int(info.min), int(info.max)
        elif self.rows:
            low, high = -self.rows, self.rows - 1
        elif bounds:
            low, high = min(bounds) - 1, max(bounds) + 1
        else:
            raise Unclear("nothing tells its values apart")
        low, high = max(low, int(info.min)), min(high, int(info.max))
        if not 0 <= high - low < _MOST_CASES:
            raise Unclear("too many values, or none")
        return np.arange(low, high + 1, dtype=self.kind)


def _aligned(shape: Sequence[int], out: Sequence[int]) -> tuple[int, ...]:
    return (1,) * (len(out) - len(shape)) + tuple(shape)


def batches(cases: Array, shape: Sequence[int]) -> list[Array]:
    """Return all cases as arrays of a shape, repeated to fill the last one."""
    size = int(np.prod(shape))
    return [np.resize(cases[begin : begin + size], shape) for begin in range(0, len(cases), max(size, 1))]


def same_on_all_cases(case: Case, runs: Sequence[Sides], sizes: Sizes) -> bool:
    """Return True if both sides are functions of one integer with finitely many cases, and agree on all of them.

    Args:
        case: Both sides.
        runs: Both sides at each shape.
        sizes: The changing sizes of a dynamic model.

    Raises:
        Unclear: The comparison is not possible.
    """
    if len(case.front) != 1:
        return False
    (name,) = case.front
    for index, run in enumerate(runs):
        kind, shape = run.types[name]
        if kind.kind not in "iub" or any(0 in size for _, size in run.types.values()):
            return False
        sides = [_followed(nodes, run, name, sizes) for nodes in (case.old, case.new)]
        if any(side is None for side in sides):
            return False
        old, new = (side for side in sides if side is not None)
        if not (old.values.issuperset(case.targets) and new.values.issuperset(case.targets.values())):
            return False
        if index == 0 and not all(_agrees(run, {name: x}) for x in batches(old.cases(new), shape)):
            return False
    return True


def _followed(nodes: Sequence[onnx.NodeProto], run: Sides, name: str, sizes: Sizes) -> ByElement | None:
    """Return the values of nodes that are by element of x; None if a node is not, or if it computes with a size."""
    shapes = {value: shape for value, (_, shape) in run.types.items()}
    by_element = ByElement(name, run.types[name][0], shapes, dict(run.constants))
    for node in nodes:
        shaping = node.op_type in {"Expand", "Reshape"}  # their second operand is a shape
        sized = set(node.input[: 1 if shaping else None]) & sizes.sized
        if sized or not sizes.unsure.isdisjoint(node.input) or node.op_type in _SIZES or not by_element.follow(node):
            return None
    return by_element


def _agrees(run: Sides, feeds: Mapping[str, Array]) -> bool:
    """Return True if both sides agree up to rounding.

    Raises:
        Unclear: The runtime refuses a part.
    """
    try:
        olds, news = (run.run(side, feeds, names) for side, names in enumerate(
            (list(run.case.targets), list(run.case.targets.values()))))  # fmt: skip
    except Exception as error:  # in the runtime's own ways
        raise Unclear(f"the runtime refuses a part: {' '.join(str(error).split())[:120]}") from error
    return all(_equal(old, new) for old, new in zip(olds, news, strict=True))


def _equal(old: Array, new: Array) -> bool:
    if old.dtype.kind != "f":
        return np.array_equal(old, new)
    finite = np.isfinite(old)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True) or not np.isfinite(new[finite]).all():
        return False
    exact = np.where(finite, old, 0).astype(np.float64)
    gap = np.abs(np.where(finite, new, 0).astype(np.float64) - exact)
    return bool((gap <= _ROUNDINGS * float(np.finfo(old.dtype).eps) * np.abs(exact)).all())
