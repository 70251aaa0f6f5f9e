"""Both sides of a rewrite: with real numbers and random functions, and as the runtime computes hard numbers."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...bricks.operators import MULTIPLYING, Trait, having
from ...models.subgraphs import attributes_of, needed, plain_domain, reads
from .evaluation import Evaluation, Typed, Unclear
from .recording import Values, session
from .rewrite import Array

_LEAST_ROW, _ROW = 1e-4, 8
"""Share of its row's median that is added to an element's size; least elements of a row, which sets the size of
rounding errors."""
_NOISE, _FLOOR, _SHAKEN = 30.0, {2: 2e-2, 4: 2e-5, 8: 1e-10}, 2
"""Largest rounding error of new nodes relative to the old ones' sensitivity; and to the value, by bytes; samples of
the sensitivity."""
_OF_EACH = 64
"""Elements of each constant that are tried as arguments."""
_LEAST_DRAWS, _HARD_S = 12, 2.0
"""Draws of hard numbers that are always made; seconds for the others."""
_RANGES = ((-(1 << 62), 1 << 62), (-(1 << 31), 1 << 31), (-20_000, 20_000), *(
    (-low * most, most) for most in (1 << 20, 20_000, 1000, 256, 64, 16, 8, 4, 2, 1) for low in (1, 0)
))  # fmt: skip
"""Integers that are tried, until the old nodes accept them."""
_SPECIAL = np.array([0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 1e-40, -1e-40, 1e-12, -1e-6, 0.5, 3, -3, 6])
_FAR = {2: np.array([20.0, -20, 250, -250]), 4: np.array([1e3, -1e3, 1e6, -1e6]), 8: np.array([1e3, -1e3, 1e9, -1e9])}
"""Exceptional numbers; numbers at which functions overflow, by bytes of the type."""


@dataclass(frozen=True, slots=True)
class Case:
    """Both sides of a rewrite between a frontier and the values that it computes.

    Attributes:
        front: Values that both sides are functions of.
        old: The old nodes in order.
        new: The new nodes in order; values that the old nodes compute as well are renamed.
        targets: The computed values, and their names among the new nodes.
        constants: Constants of the new nodes as they are written.
        exact: Computed constants before rounding to their type.
    """

    front: tuple[str, ...]
    old: tuple[onnx.NodeProto, ...]
    new: tuple[onnx.NodeProto, ...]
    targets: Mapping[str, str]
    constants: Mapping[str, Array]
    exact: Mapping[str, Array]


_POLES = {"Log": ["logarithm"], "Softmax": ["division"], "Sqrt": ["root"]}
"""Functions within operators that are not finite for some operands."""

Draw = Callable[[np.random.Generator, Array, "_Place"], Array]
"""Makes the numbers of a value from a generator, ordinary numbers and its place."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A drawn value: its number in the frontier, its type, numbers that the nodes read, noise shared by its shape."""

    number: int
    kind: np.dtype[Any]
    near: Array
    common: Array


def _scaled(scale: float, offset: float) -> Draw:
    return lambda _, numbers, __: numbers * scale + offset


def _mixed(random: np.random.Generator, numbers: Array, _: _Place) -> Array:
    for axis, size in enumerate(numbers.shape):
        sizes = 10.0 ** random.integers(-2, 3, size)
        numbers = numbers * sizes.reshape([-1 if dim == axis else 1 for dim in range(numbers.ndim)])
    return numbers


def _twins(apart: float) -> Draw:
    """Return values of one shape that are nearly equal."""
    return lambda _, numbers, place: place.common * 10 + apart * numbers * (place.number > 0)


def _of_constants(apart: float) -> Draw:
    def draw(random: np.random.Generator, numbers: Array, place: _Place) -> Array:
        chosen = np.resize(random.permutation(place.near), numbers.shape)
        return chosen * (1 + apart * numbers) + apart * numbers

    return draw


def _special(turn: int) -> Draw:
    """Return exceptional numbers in a regular order, so that two values take all pairs of them."""

    def draw(_: np.random.Generator, numbers: Array, place: _Place) -> Array:
        count = np.arange(numbers.size) + turn * numbers.size
        step = len(_SPECIAL) ** min(place.number, 2)
        chosen: Array = _SPECIAL[(count // step + turn) % len(_SPECIAL)].reshape(numbers.shape)
        return chosen

    return draw


def _single(random: np.random.Generator, numbers: Array, _: _Place) -> Array:
    if numbers.size:
        numbers.reshape(-1)[random.integers(numbers.size)] = random.choice([np.nan, np.inf, -np.inf])
    return numbers


def _far(random: np.random.Generator, numbers: Array, place: _Place) -> Array:
    return np.where(
        random.random(numbers.shape) < 0.05, random.choice(_FAR[place.kind.itemsize], numbers.shape), np.round(numbers)
    )


_PLANTED: tuple[tuple[str, Draw], ...] = tuple((f"single {turn}", _single) for turn in range(6))
_DRAWS: tuple[tuple[str, Draw], ...] = (
    ("ordinary", _scaled(1, 0.3)), ("special 0", _special(0)), _PLANTED[0], ("zeros", _scaled(0, 0)),
    ("offset", _scaled(1, 100)), ("twins", _twins(1e-3)), ("constants", _of_constants(0)), ("mixed", _mixed),
    _PLANTED[1], ("large", _scaled(30, 0)), ("small", _scaled(1e-3, 0)), ("far", _far), ("close", _twins(1e-6)),
    ("near constants", _of_constants(1e-3)), ("tiny", _scaled(1e-6, 0)), ("plus 17", _scaled(1, 17)),
    ("minus 3", _scaled(1, -3)), ("special 1", _special(1)), _PLANTED[2], ("thousands", _scaled(300, 1000)),
    ("ties", lambda _, numbers, __: np.round(numbers)), ("equal", _twins(0)), *_PLANTED[3:],
    *((f"special {turn}", _special(turn)) for turn in range(2, 18)),
)  # fmt: skip
"""Draws of hard numbers by name, the most telling first."""


class Sides:
    """Both sides of a case at one shape.

    Args:
        case: The case.
        shape: Values at this shape; of large ones only their type.
        values: The graph.
    """

    def __init__(self, case: Case, shape: Mapping[str, Array], values: Values) -> None:
        self.case, self.shape, self._values = case, shape, values
        nodes = (*case.old, *case.new)
        outputs = {name for node in nodes for name in node.output if name}
        read = {name for node in nodes for name in reads(node) if name} - outputs - set(case.front)
        self.constants = dict(case.constants)
        for name in read - set(case.constants):
            array = values.graph.constants.get(name)
            array = shape.get(name) if array is None else array
            if array is None:
                raise Unclear(f"{name} is not recorded")
            self.constants[name] = array
        if missing := [name for name in case.front if name not in shape]:
            raise Unclear(f"{missing[0]} is not recorded")
        if any(name in case.front for name in case.targets):
            raise Unclear("a value that is computed again is read")

    def part(self, nodes: Sequence[onnx.NodeProto], feeds: Mapping[str, np.dtype[Any]], names: Sequence[str]) -> Any:
        """Return the nodes that some values need as a loaded model."""
        copies = list[onnx.NodeProto]()
        for node in needed(nodes, names):
            copies.append(onnx.NodeProto())
            copies[-1].CopyFrom(node)
            copies[-1].name = ""
        read = set(names).union(*map(reads, copies))
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind), None)
            for name, kind in feeds.items() if name in read
        ]  # fmt: skip
        tensors = [numpy_helper.from_array(np.ascontiguousarray(array) if array.ndim else array, name)
                   for name, array in self.constants.items() if name in read and name not in feeds]  # fmt: skip
        outputs = [onnx.ValueInfoProto(name=name) for name in names]
        model = helper.make_model(helper.make_graph(copies, "side", inputs, outputs, tensors))
        del model.opset_import[:]
        versions = {**dict.fromkeys((plain_domain(node.domain) for node in copies), 1), **self._values.graph.opsets}
        model.opset_import.extend(helper.make_opsetid(*entry) for entry in versions.items())
        model.ir_version = 8
        try:
            return session(model, optimised=False)
        except Exception as error:  # the runtime refuses nodes in its own ways
            raise Unclear(f"the runtime refuses a part: {' '.join(str(error).split())[:120]}") from error

    @cached_property
    def _names(self) -> tuple[list[str], list[str]]:
        """Names of the values that each side computes, the targets included."""
        old, new = (
            [name for node in nodes for name in node.output if name] for nodes in (self.case.old, self.case.new)
        )
        return [*dict.fromkeys([*old, *self.case.targets])], [*dict.fromkeys([*new, *self.case.targets.values()])]

    @cached_property
    def _sessions(self) -> tuple[Any, Any]:
        kinds = {name: self.shape[name].dtype for name in self.case.front}
        both = [*self.case.old, *self.case.new]
        return self.part(self.case.old, kinds, self._names[0]), self.part(both, kinds, self._names[1])

    def run(self, side: int, feeds: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
        """Return values of the old (0) or new (1) nodes as the runtime computes them; it raises in its own ways."""
        loaded = self._sessions[side]
        input_names = {value.name for value in loaded.get_inputs()}
        return list(loaded.run(list(names), {name: array for name, array in feeds.items() if name in input_names}))

    @cached_property
    def _ordinary(self) -> Mapping[str, Array]:
        """Ordinary numbers that the old nodes accept."""
        return self._drawn(0, *_DRAWS[0])

    @cached_property
    def types(self) -> dict[str, Typed]:
        """Element type and shape of each value of both sides."""
        feeds = self._ordinary
        types = {name: (array.dtype, array.shape) for name, array in {**feeds, **self.constants}.items()}
        for side in (0, 1):
            try:
                arrays = self.run(side, feeds, self._names[side])
            except Exception as error:
                raise Unclear(f"it does not run: {' '.join(str(error).split())[:120]}") from error
            for name, array in zip(self._names[side], arrays, strict=True):
                if not isinstance(array, np.ndarray):
                    raise Unclear(f"{name} is no tensor")
                if not array.size and self._values.is_dynamic:
                    raise Unclear("a value that is empty at the sizes that were tried")
                types[name] = array.dtype, array.shape
        for name, again in self.case.targets.items():
            if types[name] != types[again]:
                raise Unclear(f"{name} has another type or shape")
        return types

    def require_no_narrower(self) -> None:
        """Refuse new nodes that compute in a narrower type than the old ones."""
        old = {*self._names[0], *self.case.front}
        least = min((self.types[name][0].itemsize for name in old if self.types[name][0].kind == "f"), default=0)
        for name in self._names[1]:
            kind = self.types[name][0]
            if kind.kind == "f" and kind.itemsize < least:
                raise Unclear("a narrower type")

    def require_no_poles(self) -> None:
        """Refuse a division, root or logarithm of the new nodes if no old node contains one too."""
        old, new = ({kind for node in nodes for kind in self._poles(node)} for nodes in (self.case.old, self.case.new))
        if not new <= old:
            raise Unclear(f"the old nodes have no {', '.join(sorted(new - old))}")

    def _poles(self, node: onnx.NodeProto) -> Iterator[str]:
        exponent = self.constants.get(node.input[1]) if node.op_type == "Pow" else None
        if node.op_type == "Pow" and (exponent is None or (exponent < 0).any()):
            yield "division"
        if node.op_type == "Pow" and (exponent is None or (exponent % 1 != 0).any()):
            yield "root"
        if node.op_type == "Reciprocal" or (node.op_type == "Div" and node.input[1] not in self.constants):
            yield "division"
        both = node.op_type == "LRN" or node.op_type.endswith("Normalization")
        yield from ["division", "root"] if both else _POLES.get(node.op_type, [])

    # Real numbers.

    @property
    def has_maximum(self) -> bool:
        """True if a maximum over elements is taken."""
        return any(node.op_type in having(Trait.MAXIMUM) for node in (*self.case.old, *self.case.new))

    @property
    def folds(self) -> bool:
        """True if a new node reads constants only."""
        constant_names = self.constants.keys() - {name for node in self.case.new for name in node.output}
        return any(node.input and constant_names.issuperset(filter(None, node.input)) for node in self.case.new)

    def difference(self, seed: int, **how: Any) -> float:
        """Return the largest difference of both sides on a draw of real numbers; ``how`` as for ``Evaluation``."""
        state = Evaluation(
            self.types, {**self.constants, **self.case.exact}, self._values.graph.opsets, seed=seed,
            computed=self.case.exact, sizes=self._values.sizes, **how,
        )  # fmt: skip
        for name in self.case.front:
            state.draw(name)
        targets = [*self.case.targets, *self.case.targets.values()]
        state.evaluate([*self.case.old, *map(self._unrounded, self.case.new)], targets)
        return max(_gap(state.number(again), state.number(name)) for name, again in self.case.targets.items())

    def _unrounded(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return an Identity in place of a cast that only rounds a target to its type; any other node unchanged."""
        if node.op_type != "Cast" or node.output[0] not in set(self.case.targets.values()):
            return node
        before, after = self.types[node.input[0]][0], self.types[node.output[0]][0]
        narrower = before.kind == after.kind == "f" and after.itemsize < before.itemsize
        return helper.make_node("Identity", list(node.input), list(node.output)) if narrower else node

    # Hard numbers.

    def worse(self, *, digits: bool = True, most_s: float = _HARD_S) -> str:
        """Return how new nodes are worse than the old ones in floating point; empty if they are not.

        Args:
            digits: Also compare finite numbers, and not only infinities and NaN.
            most_s: Seconds after which the draws end. The most telling ones are always made; if 0, only the first.
        """
        if self._reads_more():
            return "it reads what the old nodes do not"
        targets, end, drawn = self.case.targets, time.perf_counter() + most_s, 0
        for number, (name, draw) in enumerate(_DRAWS):
            if number >= _LEAST_DRAWS * (most_s > 0) + 1 and (time.perf_counter() > end or not self.case.front):
                break
            try:
                feeds = self._drawn(number, name, draw) if number else self._ordinary
            except Unclear:
                continue
            drawn += 1
            olds = self.run(0, feeds, list(targets))
            try:
                news = self.run(1, feeds, list(targets.values()))
            except Exception as error:  # noqa: BLE001
                return f"it fails where the old nodes do not: {' '.join(str(error).split())[:100]}"
            if name == "far" and self._overflows(feeds):
                return "it overflows where the old nodes do not"
            planted, exact = name.startswith(("single", "special")), name.startswith("special")
            near = [] if planted else self._shaken(feeds)
            for index, (old, new) in enumerate(zip(olds, news, strict=True)):
                lost = _hidden(old, new, spreads=planted, overflows=name == "far")
                if not lost and digits and (exact or not planted):
                    agrees = _agrees(old, new, [other[index] for other in near])
                    lost = "" if agrees else "it loses digits" if old.dtype.kind == "f" else "other integers"
                if lost and (planted or not self._is_closer(feeds, index, old, new)):
                    return lost
        return "" if drawn else "no legal numbers were found"

    def _reads_more(self) -> bool:
        """Return True if a new product spreads a NaN of elements that it multiplies by zeros alone."""
        feeds = self._ordinary
        planted = dict(feeds)
        for node in self.case.new:
            if node.op_type not in MULTIPLYING or node.input[0] not in feeds:
                continue
            x, weights = planted[node.input[0]], self.constants.get(node.input[1])
            if weights is None or node.op_type == "FusedMatMul" or x.dtype.kind != "f":
                continue
            turned = bool(attributes_of(node).get("transB"))
            axis = (
                1 if node.op_type == "Conv" or turned else 0 if node.op_type != "MatMul" else max(weights.ndim - 2, 0)
            )
            unread = np.atleast_1d(~weights.any(tuple(other for other in range(weights.ndim) if other != axis)))
            at = 1 if node.op_type.startswith("Conv") else 0 if attributes_of(node).get("transA") else x.ndim - 1
            if unread.any() and len(unread) == x.shape[at]:
                planted[node.input[0]] = np.where(unread.reshape([-1 if dim == at else 1 for dim in range(x.ndim)]),
                                                  np.asarray(np.nan, x.dtype), x)  # fmt: skip
        if all(planted[name] is feeds[name] for name in feeds):
            return False
        olds, news = (self.run(side, planted, names) for side, names in enumerate(
            (list(self.case.targets), list(self.case.targets.values()))))  # fmt: skip
        return any((np.isnan(new) & ~np.isnan(old)).any() for old, new in zip(olds, news, strict=True)
                   if old.dtype.kind == "f")  # fmt: skip

    def _drawn(self, number: int, name: str, draw: Draw) -> dict[str, Array]:
        """Return numbers that the old nodes accept; integers from a smaller range if a larger one is not legal."""
        small = {"twins": 1, "close": 2, "equal": 0, "ties": 3}.get(name)
        for low, high in (*([] if small is None else [(0, small)]), *self._legal_ranges):
            feeds = self._numbers(number, draw, low, high, small)
            try:
                self.run(0, feeds, list(self.case.targets))
            except Unclear:
                raise
            except Exception:  # noqa: BLE001, S112  # an index may be too large, told in the runtime's own ways
                continue
            return feeds
        feeds = self._numbers(number, draw, None, None, None)
        try:
            self.run(0, feeds, list(self.case.targets))
        except Exception as error:
            if number == 0:
                raise Unclear(f"no legal numbers were found: {' '.join(str(error).split())[:100]}") from error
            return self._one_by_one(feeds)
        return feeds

    def _one_by_one(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return ordinary numbers, with others for each value that the old nodes accept them for."""
        legal_feeds = dict(self._ordinary)
        for name, array in feeds.items():
            changed = {**legal_feeds, name: array}
            with contextlib.suppress(Exception):  # told in the runtime's own ways
                self.run(0, changed, list(self.case.targets))
                legal_feeds = changed
        return legal_feeds

    @property
    def _legal_ranges(self) -> Sequence[tuple[int, int]]:
        integers = any(self.shape[name].dtype.kind in "iu" for name in self.case.front)
        return _RANGES if integers else _RANGES[:1]

    def _numbers(
        self, number: int, draw: Draw, low: int | None, high: int | None, apart: int | None
    ) -> dict[str, Array]:
        feeds = dict[str, Array]()
        for index, name in enumerate(self.case.front):
            like = self.shape[name]
            shape, kind = like.shape, like.dtype
            random = np.random.default_rng([number, zlib.crc32(name.encode())])
            common = np.random.default_rng([number, *shape]).standard_normal(shape)
            if kind.kind in "iu":
                if low is None or high is None:
                    feeds[name] = np.ascontiguousarray(like)
                    continue
                info = np.iinfo(kind)
                least, most = max(low, int(info.min)), min(high, int(info.max))
                numbers = random.integers(least, most, shape, np.int64, endpoint=True)
                if apart is not None:  # neighbours
                    numbers = np.clip(
                        np.asarray(common * 1000, np.int64) % max(most, 1) + numbers % (apart + 1), least, most
                    )
                feeds[name] = numbers.astype(kind)
            elif kind.kind == "b":
                share = {"zeros": 0.0, "far": 1.0}.get(_DRAWS[number][0], 0.5)
                feeds[name] = np.asarray(random.random(shape) < share)
            elif kind.kind == "f":
                with np.errstate(all="ignore"):
                    numbers = draw(random, random.standard_normal(shape), _Place(index, kind, self._near, common))
                    feeds[name] = np.asarray(numbers, kind).reshape(shape)
            else:
                raise Unclear(f"a value of type {kind}")
        return feeds

    @cached_property
    def _near(self) -> Array:
        """Numbers that the nodes read, some of each constant: there differences cancel, and guards act."""
        floats = [array.reshape(-1)[:_OF_EACH] for array in self.constants.values() if array.dtype.kind == "f"]
        numbers = np.unique(np.concatenate([np.zeros(1), *floats]).astype(np.float64))
        return numbers[np.isfinite(numbers)]

    def _shaken(self, feeds: Mapping[str, Array]) -> list[list[Array]]:
        """Return the results of the old nodes for numbers that differ in their last digit."""
        random, results = np.random.default_rng(11), list[list[Array]]()
        for _ in range(_SHAKEN):
            moved = dict(feeds)
            for name, array in feeds.items():
                if array.dtype.kind == "f":
                    eps = float(np.finfo(array.dtype).eps)
                    with np.errstate(all="ignore"):
                        moved[name] = (array * (1 + eps * random.choice([-1.0, 1.0], array.shape))).astype(array.dtype)
            results.append(self.run(0, moved, list(self.case.targets)))
        return results

    def _overflows(self, feeds: Mapping[str, Array]) -> bool:
        """Return True if a new node has infinite results and no old node has."""
        old, new = (
            any(np.isinf(array).any() for array in self.run(side, feeds, names) if array.dtype.kind == "f")
            for side, names in enumerate(self._names)
        )
        return new and not old

    def _is_closer(self, feeds: Mapping[str, Array], index: int, old: Array, new: Array) -> bool:
        """Return True if new nodes are as close to the double-precision result as the old; False if it is unknown."""
        if old.dtype.kind != "f":
            return False
        state = Evaluation(
            self.types, self.constants, self._values.graph.opsets, seed=0, sizes=self._values.sizes, actual=True
        )
        target = [*self.case.targets][index]
        try:
            for name, array in feeds.items():
                state.give(name, array.astype(np.float64) if array.dtype.kind == "f" else array)
            state.evaluate(self.case.old, [target])
        except Unclear:
            return False
        exact, axes = state.number(target), _row_axes(old.shape)
        with np.errstate(all="ignore"):
            before, after = (np.abs(side.astype(np.float64) - exact) for side in (old, new))
            before = np.nan_to_num(before, nan=np.inf)
            limit = 2 * np.fmax(before, np.median(before, axes, keepdims=True))
            limit += _FLOOR[old.dtype.itemsize] * np.abs(exact) + 1e-37
        return bool((after <= limit).all())


def _row_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the last axes that form a row of at least ``_ROW`` elements, or all: a row sets the rounding errors."""
    axes, count = list[int](), 1
    for axis in reversed(range(len(shape))):
        if count >= _ROW:
            break
        axes.append(axis)
        count *= shape[axis]
    return tuple(axes)


def _gap(new: Array, old: Array) -> float:
    """Return the largest difference of an element, relative to it and its row."""
    if new.shape != old.shape:
        return np.inf
    if not old.size:
        return 0.0
    if old.dtype.kind == "i":
        return 0.0 if np.array_equal(new, old) else np.inf
    size = np.abs(old)
    row = np.median(size, _row_axes(old.shape), keepdims=True)
    return float((np.abs(new - old) / (size + _LEAST_ROW * row + 1e-300)).max())


def _hidden(old: Array, new: Array, *, spreads: bool, overflows: bool) -> str:
    """Return how new results lose finite numbers, infinities or NaN; empty if they do not.

    A NaN that was planted may spread in a sample that has one anyway (``spreads``), and an infinity may become another
    one by an overflow (``overflows``).
    """
    if old.dtype.kind != "f":
        return ""
    finite = np.isfinite(old)
    lost = finite & ~np.isfinite(new)
    if spreads and lost.any():
        samples = finite.reshape(len(old) if old.ndim and len(old) > 1 else 1, -1)
        lost = lost.reshape(len(samples), -1) & samples.all(1, keepdims=True)
    if lost.any():
        return "it is not finite where the old nodes are"
    infinite = np.isinf(old)
    if np.isfinite(new[infinite]).any() or (not (overflows or spreads) and (new != old)[infinite].any()):
        return "it hides an infinity"
    if not overflows and np.isfinite(new[np.isnan(old)]).any():
        return "it hides a NaN"
    return ""


def _agrees(old: Array, new: Array, near: Sequence[Array]) -> bool:
    """Return True if rounding explains the difference, judged by the effect of the arguments' last digit."""
    if old.dtype.kind != "f":
        moves = np.zeros(old.shape, bool)
        for other in near:
            moves |= old != other
        return bool(((old == new) | moves).all())
    finite = np.isfinite(old) & np.isfinite(new)
    with np.errstate(all="ignore"):
        exact, candidate = np.where(finite, old, 0).astype(np.float64), np.where(finite, new, 0).astype(np.float64)
        noise = np.zeros(exact.shape)
        for other in near:
            noise = np.fmax(noise, np.abs(np.where(finite, other, 0).astype(np.float64) - exact))
        axes = _row_axes(old.shape)
        noise = np.maximum(np.nan_to_num(noise, nan=np.inf), np.median(noise, axes, keepdims=True))
        rows = np.median(np.abs(exact), axes, keepdims=True)
        floor = _FLOOR[old.dtype.itemsize] if near else 1e-3
        limit = _NOISE * noise + floor * (np.abs(exact) + 1e-3 * rows) + 1e-37
        return bool((np.abs(candidate - exact) <= limit).all())
