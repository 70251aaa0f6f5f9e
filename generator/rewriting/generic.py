"""Equality for every input: run a model with injective functions in place of lossy ones.

A Relu makes zeros of different numbers, and most comparisons give the same result. The generic model replaces these
operators by functions of the same inputs that nearly never give equal results for different arguments. Values that are
equal there are equal for every input, because no property of the operators made them equal.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from .form import Array, Draft
from .values import MOVING, POINTWISE, Feeds, Values, recorder

Indices = npt.NDArray[np.int64]

_LOSING = frozenset({
    "Abs", "Celu", "Ceil", "Clip", "Elu", "Erf", "FastGelu", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu",
    "Mish", "PRelu", "QuickGelu", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Swish", "Tanh",
    "ThresholdedRelu",
})  # fmt: skip
"""Functions of one value that are flat somewhere, in float32 at least."""
_NOT_ZERO = frozenset({"HardSigmoid", "Sigmoid", "Softplus"})
"""Functions of these that are not zero at zero."""
_COMPARING = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})

_EXACT = MOVING | frozenset({
    "Add", "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "Div", "Dropout", "Einsum", "Exp",
    "FusedMatMul", "GRU", "Gemm", "GlobalAveragePool", "InstanceNormalization", "LSTM", "LayerNormalization", "Log",
    "LogSoftmax", "MatMul", "Mean", "Mul", "Neg", "Pad", "Pow", "RNN", "Range", "Reciprocal", "ReduceMean",
    "ReduceSum", "ReduceSumSquare", "Shape", "SimplifiedLayerNormalization", "Size", "Softmax", "Softsign", "Sqrt",
    "Sub", "Sum", "Where",
})  # fmt: skip
"""Operators that generic runs compute as they are: no flat parts. Any other operator makes its results unclear."""

_LEAST, _MOST = 32, 1 << 24
"""Number of elements of a value that are compared."""
_CLOSE, _ZERO = 1e-5, 1e-7
_LONGEST = 4096
"""Largest axis along which slices are compared."""
_RANGES = (20_000, 1000, 256, 64, 16, 0)
"""Limits of integers that are tried, the last for the recorded ones."""
_SAMPLES = 32
"""Elements of each slice that are looked at first."""
_FEWER = 0.8
"""Share of different slices from which copies do not count."""


class Generic:
    """Equalities of a model's values by generic runs.

    Args:
        values: The graph.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._unclear = set[str]()
        self._draft = Draft(values.graph)
        for index in range(len(values.graph.nodes)):
            self._follow(index)

    @cached_property
    def runs(self) -> list[Feeds]:
        """Values of two runs by name; values behind an operator without a generic form are missing."""
        values, graph = self._values, self._values.graph
        replaced = [name for node in self._draft.nodes for name in node.output if name in graph.producer]
        model = graph.build([self._draft.rewrite("generic", replaced, (), 0.0)], values.recordable)
        record = recorder(model)
        for most in _RANGES:
            feeds = [self._numbered(run, most, seed) for seed, run in enumerate((*values.runs, values.runs[0])[:2])]
            with contextlib.suppress(Exception):  # an index may be too large, which the runtime says in its own ways
                runs = [record(feed) for feed in feeds]
                break
        else:
            return [{}, {}]
        unclear = {
            value.name for value in graph.inputs
            if feeds[0][value.name].dtype.kind in "iub" and feeds[0][value.name].size > 1
            and any(_prints(feeds, value.name, axis) for axis in range(feeds[0][value.name].ndim))
        }  # fmt: skip
        for index, node in enumerate(graph.nodes):
            if not unclear.isdisjoint(graph.reads[index]):
                unclear.update(node.output)
        unclear |= self._unclear
        return [{name: array for name, array in run.items() if name not in unclear} for run in runs]

    def _numbered(self, run: Feeds, most: int, seed: int) -> Feeds:
        """Return inputs with different integers, as far as possible below a limit."""
        random, made = np.random.default_rng(seed), dict[str, Array]()
        for value in self._values.graph.inputs:
            array = run[value.name]
            axes = range(array.ndim) if array.dtype.kind in "iu" and most else ()
            if any(_prints(self._values.runs[:2], value.name, axis) for axis in axes):
                array = np.resize(random.permutation(most), array.shape).astype(array.dtype)
            elif array.dtype.kind == "b" and array.size > 1:
                array = random.random(array.shape) < 0.7
            made[value.name] = array
        return made

    def _follow(self, index: int) -> None:
        """Write the generic form of a node; note the outputs of a node without one."""
        values, node = self._values, self._values.graph.nodes[index]
        reads, value = values.computed(node), node.output[0]
        if any(name in self._unclear for name in reads):
            self._unclear.update(node.output)
        if not reads:
            return
        single = all(values.dtypes.get(name) == np.float32 for name in (value, *reads))
        if single and node.op_type in _LOSING and reads == [node.input[0]]:
            self._bend(node.input[0], node, keeps_zero=node.op_type not in _NOT_ZERO and self._passes_zero(node))
        elif single and node.op_type in {"Max", "Min"} and len(reads) <= 2:
            sides = [self._scaled(name, 0.5 + 0.2 * place) for place, name in enumerate(reads)]
            self._bend(sides[0] if len(sides) < 2 else self._draft.op("Add", *sides), node, keeps_zero=len(sides) > 1)
        elif node.op_type in _COMPARING or (node.op_type == "Cast" and values.dtypes.get(value) == np.bool_):
            self._compare(node)
        elif node.op_type not in _EXACT | {"Cast"} or self._is_rounding(node) or self._is_whole(node):
            self._unclear.update(node.output)

    def _is_rounding(self, node: onnx.NodeProto) -> bool:
        kinds = [self._values.dtypes.get(name) for name in (node.input[0], node.output[0])]
        return node.op_type == "Cast" and kinds[0] is not None and kinds[0].kind == "f" and (
            kinds[1] is None or kinds[1].kind != "f")  # fmt: skip

    def _is_whole(self, node: onnx.NodeProto) -> bool:
        """Return True if a node divides integers, which loses digits."""
        kind = self._values.dtypes.get(node.output[0])
        return node.op_type in {"Div", "Pow"} and (kind is None or kind.kind in "iu")

    def _passes_zero(self, node: onnx.NodeProto) -> bool:
        if node.op_type != "Clip" or len(node.input) < 2:
            return True
        bounds = [self._values.constant(name) for name in node.input[1:] if name]
        return all(bound is not None for bound in bounds) and float(np.clip(0.0, *_bounds(node, bounds))) == 0.0

    def _scaled(self, name: str, factor: float) -> str:
        return self._draft.op("Mul", name, self._draft.constant(factor, np.float32))

    def _mark(self, node: onnx.NodeProto) -> float:
        """Return a number that tells functions apart, the same for equal operators with equal constants."""
        words = [node.op_type, *sorted(repr(attribute) for attribute in node.attribute)]
        arrays = [self._values.constant(name) for name in node.input if name]
        words += [repr(array.tolist()) for array in arrays if array is not None and array.size < _LEAST]
        return 0.2 + zlib.crc32("".join(words).encode()) % 997 / 500

    def _bend(self, x: str, node: onnx.NodeProto, *, keeps_zero: bool) -> None:
        draft, mark = self._draft, self._mark(node)
        bent = draft.op("Softsign", draft.op("Add", x, draft.constant(mark, np.float32)))
        if keeps_zero:
            bent = draft.op("Sub", bent, draft.constant(np.float32(mark) / (1 + np.float32(mark)), np.float32))
        draft.op("Add", self._scaled(x, 0.6), bent, to=node.output[0])

    def _compare(self, node: onnx.NodeProto) -> None:
        """Write a comparison as the sign of a wave, which different arguments hit at random."""
        draft, total = self._draft, ""
        for place, name in enumerate(filter(None, node.input)):
            side = draft.op("Cast", name, to=self._values.graph.fresh("wave"))
            draft.nodes[-1].attribute.append(onnx.helper.make_attribute("to", TensorProto.FLOAT))
            side = self._scaled(side, 3.0 + 2.3 * place)
            total = draft.op("Add", total, side) if total else side
        shifted = draft.op("Add", total, draft.constant(self._mark(node), np.float32))
        draft.op("Greater", draft.op("Sin", shifted), draft.constant(0.0, np.float32), to=node.output[0])

    @cached_property
    def copies(self) -> dict[str, dict[int, Indices]]:
        """For each value with equal slices, by axis: the first index with the same slice."""
        found = dict[str, dict[int, Indices]]()
        for node in reversed(self._values.graph.nodes):
            name = node.output[0]
            array = self.runs[0].get(name)
            if (
                array is None
                or len(node.output) > 1
                or array.dtype.kind not in "fiub"
                or not _LEAST <= array.size <= _MOST
                or self._values.is_constant(name)
            ):
                continue
            axes = {
                axis: first
                for axis, size in enumerate(array.shape)
                if 1 < size <= _LONGEST and (first := self._equal_slices(name, axis)) is not None
            }
            if axes := {axis: first for axis, first in axes.items() if self._is_useful(node, first, found)}:
                found[name] = axes
        return found

    def _is_useful(self, node: onnx.NodeProto, first: Indices, found: Mapping[str, object]) -> bool:
        """Return True if equal slices of a value save more than the copies that restore them."""
        if node.op_type not in MOVING:
            return True
        graph = self._values.graph
        readers = [graph.nodes[index] for index in graph.readers[node.output[0]]]
        return any(
            reader.output[0] in found or (not first.any() and reader.op_type in POINTWISE | {"MatMul"})
            for reader in readers
        )

    def _equal_slices(self, name: str, axis: int) -> Indices | None:
        """Return for each index the first one with an equal slice; None if nearly all slices differ."""
        arrays = [run[name] for run in self.runs]
        size = arrays[0].shape[axis]
        if arrays[0].shape != arrays[1].shape or len(np.unique(_sampled(arrays[0], axis).round(6))) > _FEWER * size:
            return None
        slices = [_rows(array, axis) for array in arrays]
        scale = max(float(np.abs(rows).max()) for rows in slices)
        if not np.isfinite(scale):
            return None
        random = np.random.default_rng(4)
        prints = np.zeros(size)
        for rows in slices:
            weights = np.asarray(random.standard_normal(rows.shape[1]), dtype=rows.dtype)
            prints = prints + rows @ weights
        order = np.argsort(prints, kind="stable")
        limit = _CLOSE * (scale + 1e-30) * np.sqrt(slices[0].shape[1])
        starts = np.concatenate([[True], np.diff(prints[order]) > limit])
        if starts.mean() > _FEWER:
            return None
        group = np.empty(size, np.int64)
        group[order] = np.cumsum(starts) - 1
        least = np.full(int(group.max()) + 1, size)
        np.minimum.at(least, group, np.arange(size))
        first: Indices = least[group]
        if any(np.abs(rows - rows[first]).max() > _CLOSE * scale for rows in slices):
            return None
        return first

    def is_one_slice(self, name: str, axis: int) -> bool:
        """Return True if all slices of a value along an axis are equal for every input."""
        if name not in self.runs[0] or self.runs[0][name].dtype.kind not in "fiub":
            return False
        first = self._equal_slices(name, axis)
        return first is not None and not first.any()

    def zeros(self, name: str, axis: int) -> Indices:
        """Return the indices along an axis at which a value is zero for every input."""
        none = np.zeros(0, np.int64)
        if name not in self.runs[0] or self.runs[0][name].dtype.kind != "f":
            return none
        few = [np.moveaxis(run[name], axis, 0).reshape(run[name].shape[axis], -1)[:, :_SAMPLES] for run in self.runs]
        if any(run[name].shape != self.runs[0][name].shape for run in self.runs) or (few[0] != few[1]).any(1).all():
            return none
        slices = [_rows(run[name], axis) for run in self.runs]
        with np.errstate(invalid="ignore"):  # infinities of a generic run are never equal
            fixed = np.abs(slices[0] - slices[1]).max(1) <= _ZERO * (np.abs(slices[0]).max() + 1e-30)
        for run in self._values.runs:
            fixed &= ~_rows(run[name], axis).any(1)
        return np.nonzero(fixed)[0]


def _bounds(node: onnx.NodeProto, given: list[Array | None]) -> tuple[float, float]:
    numbers = iter(given)
    low, high = (next(numbers) if len(node.input) > slot and node.input[slot] else None for slot in (1, 2))
    return (-np.inf if low is None else float(low), np.inf if high is None else float(high))


def _rows(array: Array, axis: int) -> Array:
    """Return the slices along an axis as rows of numbers."""
    kind = np.float64 if array.dtype.kind in "fiu" and array.itemsize > 4 else np.float32
    rows: Array = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).astype(kind)
    return rows


def _prints(feeds: Sequence[Feeds], name: str, axis: int) -> bool:
    """Return True if an input has equal slices along an axis in all feeds."""
    size = feeds[0][name].shape[axis]
    rows = np.concatenate([_rows(feed[name], axis) for feed in feeds], 1)
    return bool(size > 1 and len({row.tobytes() for row in rows}) < size)


def _sampled(array: Array, axis: int) -> Array:
    """Return a print of each slice along an axis by few of its elements, relative to the largest print."""
    before, after = int(np.prod(array.shape[:axis])), int(np.prod(array.shape[axis + 1 :]))
    random = np.random.default_rng(6)
    rows, columns = random.integers(0, before, _SAMPLES), random.integers(0, after, _SAMPLES)
    chosen = array.reshape(before, array.shape[axis], after)[rows, :, columns].astype(np.float64)
    chosen = np.nan_to_num(chosen, posinf=1e30, neginf=-1e30).clip(-1e30, 1e30)
    prints: Array = random.standard_normal(_SAMPLES) @ chosen
    relative: Array = prints / (np.abs(prints).max() + 1e-30)
    return relative


def generic_of(values: Values) -> Generic:
    """Return the equalities of a graph's values; they are made once."""
    if Generic not in values.shared:
        values.shared[Generic] = Generic(values)
    found: Generic = values.shared[Generic]
    return found


def is_exact(values: Values, index: int) -> bool:
    """Return True if a node has no flat parts, so that equal results on a few numbers are not due to the numbers."""
    node = values.graph.nodes[index]
    kind = values.dtypes.get(node.output[0])
    return node.op_type in _EXACT and kind is not None and kind.kind == "f"
