"""Decide whether a rewrite holds for every input. What was seen on generated inputs decides nothing.

A rewrite is accepted for one of these reasons:

* *algebra*: old and new nodes agree on random numbers, with a stand-in for every operator that is not real arithmetic
  (``evaluation``). The numbers stand for the values that the new nodes read. If the sides do not agree there, the same
  is tried from values further upstream, at last from the model's inputs.
* *order*: the same with functions that never fall and maxima, which commute.
* *all numbers*: both sides are elementwise functions of one value, and agree on all 65,536 numbers of bfloat16.

Algebra knows no rounding, no infinity and no NaN, so that both sides are then run by the runtime on numbers that are
hard for floating point: far from zero, of very different size, zero, denormal, infinite, NaN. New nodes may not lose
digits that the old ones keep, and are finite where the old ones are.

The shapes of a dynamic model are several, and what is only true of the sizes that are tried is no parameter of a proof
(``recording.Sizes``).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...models.subgraphs import attribute_of, plain_domain, reads, rename
from .evaluation import Evaluation, Typed, Unclear, same_function
from .recording import Values, session
from .rewrite import Array, Rewrite, ordered
from .traits import ELEMENTWISE, MAXIMA, STEPS

_LEVELS = (0, 8, 40, 120, 100_000)
"""Nodes upstream of the values that are read, whose properties count too."""
_EQUAL, _LEAST_ROW = 1e-9, 1e-4
"""Largest difference of an element that counts as equal, relative to it and this share of the largest in its row."""
_DRAWS = ((0, False), (1, True))
"""Number of a draw, and whether its slices differ in size."""
_NOISE, _FLOOR = 30.0, {2: 2e-2, 4: 2e-5, 8: 1e-10}
"""Largest rounding error of new nodes relative to the old ones' sensitivity; and to the value, by bytes."""
_PLANTED_SHARE, _RANGES = 0.03, (1 << 40, 1 << 20, 20_000, 1000, 256, 64, 16, 2)
_ROW = 8
"""Elements of a row, whose largest element is the scale of rounding errors."""
_SCALAR, _REACH = 1e-6, 8.0
"""Largest difference of two functions of one value, relative to the value and to arguments up to this one."""
_MOST_S = 8.0

_SPECIAL = np.array([0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-40, 1e-12, -1e-6, 0.5, 3, -3, 6])
_FAR = np.array([1e3, -1e3, 1e6, -1e6])
_PLANTED, _ZEROS, _CLOSE, _HARD = {4: _SPECIAL, 6: _FAR}, 5, 7, 8
"""Numbers of draws by what is planted: exceptional numbers, and those at which functions overflow; of one of zeros;
of one close to the constants that are read; of all draws."""
_OF_EACH = 64


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision on a rewrite.

    Attributes:
        reason: Why it holds for every input; empty if that is not shown.
        refusal: Why it is not accepted.
    """

    reason: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class _Case:
    """Both sides of a rewrite between a frontier and the values that it computes.

    Attributes:
        front: Values that both sides are functions of.
        old: The old nodes in order.
        new: The new nodes in order; values that the old nodes compute as well have names of their own.
        targets: The computed values, and their names among the new nodes.
        constants: Constants of the new nodes as they are written.
        exact: Those that were computed, before rounding to their type.
    """

    front: tuple[str, ...]
    old: tuple[onnx.NodeProto, ...]
    new: tuple[onnx.NodeProto, ...]
    targets: Mapping[str, str]
    constants: Mapping[str, Array]
    exact: Mapping[str, Array]


class Prover:
    """Decides on rewrites of one graph.

    Args:
        values: The graph.
        known: Decisions on rewrites that are spelled alike.
    """

    def __init__(self, values: Values, known: dict[object, Verdict]) -> None:
        self._values, self._graph, self._known = values, values.graph, known
        self._until = np.inf
        self.spent_s = 0.0

    def prove(self, rewrite: Rewrite, *, most_s: float = _MOST_S) -> Verdict:
        """Return whether a rewrite holds for every input, and why.

        Args:
            rewrite: The rewrite.
            most_s: Seconds to give up after.
        """
        begun = time.perf_counter()
        self._until = begun + most_s
        try:
            key = self._spelling(self._case(rewrite, 0))
            if key is None:
                return self._decided(rewrite)
            if key not in self._known:
                self._known[key] = self._decided(rewrite)
            return self._known[key]
        except Unclear as error:
            return Verdict(refusal=f"not shown: {error}")
        finally:
            self.spent_s += time.perf_counter() - begun

    def _decided(self, rewrite: Rewrite) -> Verdict:
        refusal, seen = "", None
        for level in _LEVELS:
            case = self._case(rewrite, level)
            if case.front == seen:
                break
            seen = case.front
            try:
                verdict = self._at(case, level)
            except Unclear as error:
                refusal = refusal or f"not shown: {error}"
                continue
            if verdict.reason:
                return verdict
            refusal = verdict.refusal
        return Verdict(refusal=refusal)

    def _at(self, case: _Case, level: int) -> Verdict:
        """Decide from one frontier."""
        values = self._values
        sizes = any(array.dtype.kind in "iu" for array in case.constants.values())
        if sizes and values.is_dynamic and not values.others:
            raise Unclear("the model runs at one shape only")
        runs = [_Run(case, shape, values) for shape in (values.runs[0], *values.others)]
        for run in runs:
            run.require_no_narrower()
        reason, unclear = self._equal(runs)
        if not reason and level == 0 and (alone := _OneVariable.of(case, values)) is not None:
            gap = alone.difference()
            return Verdict("all numbers") if gap <= _SCALAR else Verdict(refusal=f"the functions differ by {gap:.1g}")
        if not reason:
            return Verdict(refusal=unclear or "it is not shown to hold for every input")
        worse = next(filter(None, (run.worse() for run in runs)), "")
        return Verdict(refusal=worse) if worse else Verdict(reason)

    def _equal(self, runs: Sequence[_Run]) -> tuple[str, str]:
        """Return why both sides agree on all draws of real numbers, and what cannot be evaluated; both may be empty."""
        unclear, first = "", runs[0]
        draws = [(run, draw) for run in runs for draw in _DRAWS[: 1 if run is not first else 2]]
        ways = [("algebra", False), *([("algebra", True)] if first.folds else []),
                *([("order", False)] if first.has_maximum else [])]  # fmt: skip
        for reason, unrounded in ways:
            how = {"order": reason == "order", "unrounded": unrounded, "until": self._until}
            try:
                if all(
                    run.difference(seed + 10 * place, large=large, **how) <= _EQUAL
                    for place, (run, (seed, large)) in enumerate(draws)
                ):
                    return reason, ""
            except Unclear as error:
                unclear = f"not shown: {error}"
        return "", unclear

    def _spelling(self, case: _Case) -> object:
        """Return a spelling of both sides that has no names of values; None if more than the nodes decides."""
        nodes = [*case.old, *case.new]
        plain = all(node.op_type in ELEMENTWISE for node in nodes)
        if not plain or not all(name in self._values.dtypes for name in case.front):
            return None
        numbers: dict[str, object] = {name: place for place, name in enumerate(case.front)}
        constants, lines = {**self._conditions, **case.constants}, list[object]()
        for node in nodes:
            read = list[object]()
            for name in node.input:
                array = None if name in numbers else constants.get(name)
                read.append(
                    numbers.get(name, name) if array is None else (array.dtype.str, array.shape, array.tobytes())
                )
            numbers.update((name, (len(lines), slot)) for slot, name in enumerate(node.output) if name)
            lines.append((same_function(node), *read))
        ends = [(numbers.get(name, name), numbers[again]) for name, again in case.targets.items()]
        kinds = [(self._values.dtypes[name].str, len(self._values.shapes[name])) for name in case.front]
        return repr((lines, ends, kinds))

    # The nodes on both sides.

    @cached_property
    def _conditions(self) -> Mapping[str, Array]:
        """Constants, and what is computed from them and from sizes that never change."""
        values, run = self._values, self._values.runs[0]
        fixed = {name: run[name] for name in values.of_shapes - values.sizes.sized if name in run}
        return {**fixed, **values.graph.constants}

    def _is_fixed(self, name: str) -> bool:
        """Return True if a value counts as a constant: it is one, or it depends on shapes alone."""
        if name in self._graph.constants:
            return True
        kind = self._values.dtypes.get(name)
        drawn = name in self._values.sizes.sized and (kind is None or kind.kind in "fb")
        return name in self._values.of_shapes and not drawn

    def _case(self, rewrite: Rewrite, level: int) -> _Case:
        graph = self._graph
        new = _unfolded(ordered(rewrite.nodes), {**self._conditions, **rewrite.constants})
        made = {name for node in new for name in node.output if name}
        read = dict.fromkeys(name for node in new for name in reads(node) if name and name not in made)
        sources = [name for name in read if name not in rewrite.constants and not self._is_fixed(name)]
        places, front = self._region(rewrite.values, sources, level)
        old = _unfolded([graph.nodes[place] for place in places], self._conditions)
        renamed = {name: graph.fresh("again") for name in made if name in graph.producer}
        again = list[onnx.NodeProto]()
        for node in new:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            rename(copy, renamed)
            again.append(copy)
        targets = {name: renamed[name] for name in rewrite.values if name in renamed}
        if set(targets) != set(rewrite.values):
            raise Unclear("a value is not computed")
        return _Case(front, tuple(old), tuple(again), targets, rewrite.constants, rewrite.exact)

    def _region(self, targets: Sequence[str], read: Sequence[str], level: int) -> tuple[list[int], tuple[str, ...]]:
        """Return the old nodes between a frontier and the targets, and the frontier.

        At level 0 the frontier are the values that the new nodes read, and what else the old nodes between them and
        the targets read. Each level replaces more values of the frontier by their makers, the latest first.
        """
        graph, producer = self._graph, self._graph.producer
        after = set[str]()  # values that depend on those that are read
        for index, node in enumerate(graph.nodes):
            if any(name in read or name in after for name in graph.reads[index]):
                after.update(node.output)
        inner, _ = self._walk(targets, set(read))
        front = set(read) | {
            name for index in inner for name in graph.reads[index]
            if name not in after and not self._is_fixed(name)
        }  # fmt: skip
        taken = set[int]()
        ends = {producer[name] for name in front if name in producer}
        while ends and len(taken) < level:
            index = max(ends)
            ends.discard(index)
            taken.add(index)
            front -= set(graph.nodes[index].output)
            for name in graph.reads[index]:
                if not self._is_fixed(name):
                    front.add(name)
                    if name in producer and producer[name] not in taken:
                        ends.add(producer[name])
        nodes, front = self._walk([*targets, *read], front)
        nodes |= {producer[name] for name in targets if name in producer and self._is_fixed(name)}
        return sorted(nodes), tuple(sorted(front))

    def _walk(self, roots: Iterable[str], stop: set[str]) -> tuple[set[int], set[str]]:
        graph, nodes, front, waiting, seen = self._graph, set[int](), set[str](), list(roots), set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen or self._is_fixed(name):
                continue
            seen.add(name)
            index = graph.producer.get(name)
            if name in stop or index is None:
                front.add(name)
            elif index not in nodes:
                nodes.add(index)
                waiting += graph.reads[index]
        return nodes, front


def _unfolded(nodes: Sequence[onnx.NodeProto], constants: Mapping[str, Array]) -> list[onnx.NodeProto]:
    """Return nodes with the branch that is taken in place of each If whose condition is a constant."""
    found = list[onnx.NodeProto]()
    for node in nodes:
        condition = constants.get(node.input[0]) if node.op_type == "If" and node.input else None
        if condition is None:
            found.append(node)
            continue
        body = attribute_of(node, "then_branch" if condition.reshape(-1)[0] else "else_branch")
        own = f"{node.output[0]}__branch__"
        names = {name: own + name for inner in body.node for name in inner.output if name}
        names |= {tensor.name: own + tensor.name for tensor in body.initializer}
        for tensor in body.initializer:
            value = helper.make_attribute("value", tensor)
            found.append(onnx.NodeProto(op_type="Constant", output=[names[tensor.name]], attribute=[value]))
        for inner in body.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(inner)
            rename(copy, names)
            found.append(copy)
        found += [
            helper.make_node("Identity", [names.get(value.name, value.name)], [name])
            for value, name in zip(body.output, node.output, strict=True) if name
        ]  # fmt: skip
    return found


class _Run:
    """Both sides of a case at one shape, as the runtime computes them.

    Args:
        case: The case.
        shape: Values at this shape; of large ones only their type.
        values: The graph.
    """

    def __init__(self, case: _Case, shape: Mapping[str, Array], values: Values) -> None:
        self.case, self.shape, self._values = case, shape, values
        read = {name for node in (*case.old, *case.new) for name in reads(node) if name}
        made = {name for node in (*case.old, *case.new) for name in node.output if name}
        self._constants = dict(case.constants)
        for name in read - made - set(case.front) - set(case.constants):
            array = values.graph.constants.get(name)
            array = shape.get(name) if array is None else array
            if array is None:
                raise Unclear(f"{name} is not recorded")
            self._constants[name] = array
        missing = [name for name in case.front if name not in shape and name not in values.graph.constants]
        if missing:
            raise Unclear(f"{missing[0]} is not recorded")

    @cached_property
    def runner(self) -> Callable[[Mapping[str, Array], Sequence[str]], list[Array]]:
        """Return some values of both sides for values of the frontier, as the runtime computes them."""
        case, graph = self.case, self._values.graph
        nodes = [_without_name(node) for node in (*case.old, *case.new)]
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(self.shape[name].dtype), None)
            for name in case.front
        ]
        names = [*dict.fromkeys([*self._names, *case.targets, *case.targets.values()])]
        outputs = [onnx.ValueInfoProto(name=name) for name in names]
        tensors = [numpy_helper.from_array(np.ascontiguousarray(array) if array.ndim else array, name)
                   for name, array in self._constants.items()]  # fmt: skip
        passed = [name for name in case.targets if name in case.front]
        if passed:
            raise Unclear("a value that is computed again is read")
        model = helper.make_model(helper.make_graph(nodes, "both", inputs, outputs, tensors))
        del model.opset_import[:]
        domains = {plain_domain(node.domain) for node in nodes}
        versions = {**dict.fromkeys(domains, 1), **graph.opsets}
        model.opset_import.extend(helper.make_opsetid(*entry) for entry in versions.items())
        model.ir_version = 8
        try:
            loaded = session(model, optimised=False)
        except Exception as error:  # the runtime refuses nodes in its own ways
            raise Unclear(f"the runtime refuses a part: {' '.join(str(error).split())[:120]}") from error
        return lambda feeds, wanted: list(loaded.run(list(wanted), dict(feeds)))

    @property
    def _names(self) -> list[str]:
        return [name for node in (*self.case.old, *self.case.new) for name in node.output if name]

    @property
    def has_maximum(self) -> bool:
        """True if a maximum over elements is taken."""
        return any(node.op_type in MAXIMA for node in (*self.case.old, *self.case.new))

    @cached_property
    def types(self) -> dict[str, Typed]:
        """Element type and shape of each value of both sides."""
        feeds = next(self._legal(0))
        found = zip(self._names, self.runner(feeds, self._names), strict=True)
        known = {name: (array.dtype, array.shape) for name, array in {**feeds, **self._constants}.items()}
        for name, array in found:
            if not isinstance(array, np.ndarray):
                raise Unclear(f"{name} is no tensor")
            known[name] = array.dtype, array.shape
        for name, again in self.case.targets.items():
            if known[name] != known[again]:
                raise Unclear(f"{name} has another type or shape")
        return known

    def require_no_narrower(self) -> None:
        """Refuse new nodes that compute in a narrower type than the old ones."""
        old = {name for node in self.case.old for name in node.output} | set(self.case.front) | set(self.case.targets)
        least = min((self.types[name][0].itemsize for name in old if name in self.types
                     and self.types[name][0].kind == "f"), default=0)  # fmt: skip
        for node in self.case.new:
            for name in filter(None, node.output):
                kind = self.types[name][0]
                if kind.kind == "f" and kind.itemsize < least:
                    raise Unclear("a narrower type")

    def _legal(self, seed: int) -> Any:
        """Yield inputs that the old nodes accept: integers of a smaller range if a larger one is not legal."""
        wanted = list(self.case.targets)
        integers = any(self.shape[name].dtype.kind in "iu" for name in self.case.front)
        last: Exception | None = None
        for most in (*_RANGES, None) if integers else (2,):
            feeds = {name: _drawn(name, self.shape[name], seed, most, self._near) for name in self.case.front}
            try:
                with np.errstate(all="ignore"):
                    self.runner(feeds, wanted)
            except Unclear:
                raise
            except Exception as error:  # noqa: BLE001  # an index may be too large, told in the runtime's own ways
                last = error
                continue
            yield feeds
            return
        raise Unclear(f"no legal numbers were found: {' '.join(str(last).split())[:100]}")

    @cached_property
    def _near(self) -> Array:
        """Numbers that the nodes read, some of each constant: close to them differences cancel, and guards act."""
        floats = [array.reshape(-1)[:_OF_EACH] for array in self._constants.values() if array.dtype.kind == "f"]
        found = np.concatenate([np.zeros(1), *floats]).astype(np.float64)
        return found[np.isfinite(found)]

    @property
    def folds(self) -> bool:
        """True if a new node reads constants only."""
        made = {name for node in self.case.new for name in node.output}
        known = self._constants.keys() - made
        return any(node.input and known.issuperset(filter(None, node.input)) for node in self.case.new)

    def difference(self, seed: int, **how: Any) -> float:
        """Return the largest difference of both sides on a draw of real numbers; ``how`` as for ``Evaluation``."""
        constants = {**self._constants, **self.case.exact}
        opsets, sizes = self._values.graph.opsets, self._values.sizes
        computed = self.case.exact
        state = Evaluation(self.types, constants, opsets, seed=seed, computed=computed, sizes=sizes, **how)
        for name in self.case.front:
            state.draw(name)
        new = [*self.case.new]
        wanted = [*self.case.targets, *self.case.targets.values()]
        state.evaluate([*self.case.old, *(_unrounded(node, self.case, self.types) for node in new)], wanted)
        return max(_gap(state.number(again), state.number(name)) for name, again in self.case.targets.items())

    def worse(self) -> str:
        """Return what new nodes lose in floating point that the old ones keep; empty if nothing."""
        targets, random = self.case.targets, np.random.default_rng(11)
        for seed in range(1, _HARD):
            try:
                feeds = next(self._legal(seed))
                olds = self.runner(feeds, list(targets))
                near = [self.runner(_shaken(feeds, random), list(targets)) for _ in range(2)]
            except Unclear:
                continue
            except Exception:  # noqa: BLE001, S112  # numbers that the old nodes do not accept
                continue
            try:
                news = self.runner(feeds, list(targets.values()))
            except Exception as error:  # noqa: BLE001
                return f"it fails where the old nodes do not: {' '.join(str(error).split())[:100]}"
            for place, (old, new) in enumerate(zip(olds, news, strict=True)):
                if lost := _lost(old, new, [other[place] for other in near], overflows=_PLANTED.get(seed) is _FAR):
                    return lost
        return ""


def _without_name(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = ""
    return copy


def _unrounded(node: onnx.NodeProto, case: _Case, types: Mapping[str, Typed]) -> onnx.NodeProto:
    """Return a cast to the type of a computed value as what it is: the rounding that the value has anyway."""
    if node.op_type != "Cast" or node.output[0] not in set(case.targets.values()):
        return node
    before, after = types[node.input[0]][0], types[node.output[0]][0]
    if before.kind != "f" or after.kind != "f" or after.itemsize >= before.itemsize:
        return node
    return helper.make_node("Identity", list(node.input), list(node.output))


def _drawn(name: str, like: Array, seed: int, most: int | None, near: Array) -> Array:
    """Return numbers that are hard for floating point."""
    random, shape, kind = np.random.default_rng([seed, zlib.crc32(name.encode())]), like.shape, like.dtype
    if kind.kind in "iu":
        if most is None:
            return np.ascontiguousarray(like)
        info = np.iinfo(kind)
        low = info.min if most == _RANGES[0] else max(-most // 4 if seed % 2 else 0, info.min)
        return random.integers(low, min(most, info.max), shape, endpoint=True).astype(kind)
    if kind.kind == "b":
        return np.asarray(random.random(shape) < {4: 1.0, 5: 0.0}.get(seed, 0.5))
    if kind.kind != "f":
        raise Unclear(f"a value of type {kind}")
    made = random.standard_normal(shape) + 0.3
    if seed == 2:
        made = made + 100
    if seed == 3:
        for axis, size in enumerate(shape):
            made = made * (10.0 ** random.integers(-2, 3, size)).reshape(
                [-1 if own == axis else 1 for own in range(made.ndim)]
            )
    if seed in _PLANTED:
        planted = random.choice(_PLANTED[seed], shape)
        made = np.where(random.random(shape) < _PLANTED_SHARE, planted, np.round(made))
    if seed == _CLOSE:
        made = random.choice(near, shape) * (1 + 1e-3 * made) + random.choice([0, 1e-3], shape) * made
    if seed == _ZEROS:
        made = np.full(shape, 0.0)
    with np.errstate(all="ignore"):
        return np.asarray(made, kind)


def _shaken(feeds: Mapping[str, Array], random: np.random.Generator) -> dict[str, Array]:
    """Return numbers that differ in their last digit."""
    made = dict[str, Array]()
    for name, array in feeds.items():
        if array.dtype.kind == "f":
            eps = float(np.finfo(array.dtype).eps)
            with np.errstate(all="ignore"):
                made[name] = (array * (1 + eps * random.choice([-1.0, 1.0], array.shape))).astype(array.dtype)
        else:
            made[name] = array
    return made


def _lost(old: Array, new: Array, near: Sequence[Array], *, overflows: bool) -> str:
    """Return what a result has lost: digits, finite numbers, NaN unless of an overflow; empty if nothing."""
    if old.dtype.kind != "f":
        return (
            ""
            if np.array_equal(old, new) or any(not np.array_equal(old, other) for other in near)
            else "other integers"
        )
    finite = np.isfinite(old)
    if not np.isfinite(new[finite]).all():
        return "it is not finite where the old nodes are"
    if not overflows and np.isfinite(new[np.isnan(old)]).any():
        return "it hides a NaN"
    with np.errstate(all="ignore"):
        exact, made = np.where(finite, old, 0).astype(np.float64), np.where(finite, new, 0).astype(np.float64)
        noise = np.max([np.abs(np.where(finite, other, 0).astype(np.float64) - exact) for other in near], axis=0)
        noise = np.nan_to_num(noise, nan=np.inf, posinf=np.inf)
        axes = _row_axes(old.shape)
        noise = np.maximum(noise, np.sqrt((noise * noise).mean(axes, keepdims=True)))
        rows = np.sqrt((exact * exact).mean(axes, keepdims=True))
        limit = _NOISE * noise + _FLOOR[old.dtype.itemsize] * (np.abs(exact) + 0.1 * rows) + 1e-37
        return "" if (np.abs(made - exact) <= limit).all() else "it loses digits"


def _row_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the last axes, as many as make a row of some elements, whose size is that of its rounding errors."""
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
    row = size.max(_row_axes(old.shape), keepdims=True)
    return float((np.abs(new - old) / (size + _LEAST_ROW * row + 1e-300)).max())


@dataclass(frozen=True, slots=True)
class _OneVariable:
    """Both sides as elementwise functions of one value.

    Attributes:
        run: The nodes, with the value as their frontier.
        name: The value.
        shape: Shape of the constants that they read, after broadcasting.
    """

    run: _Run
    name: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, case: _Case, values: Values) -> _OneVariable | None:
        """Return both sides as functions of one value; None if they are not."""
        graph, fixed = values.graph, values.of_shapes
        front, old = list(case.front), list(case.old)
        while len(front) > 1:  # a value of the frontier may be a function of another one
            name = max(front, key=lambda name: graph.producer.get(name, -1))
            maker = graph.maker(name)
            if maker is None or maker.op_type not in ELEMENTWISE or len(old) > 200:
                return None
            old.insert(0, maker)
            front.remove(name)
            known = {output for node in old for output in node.output}
            front += [read for read in dict.fromkeys(maker.input) if read and read not in front and read not in known
                      and read not in graph.constants and read not in fixed]  # fmt: skip
        nodes = [*ordered(old), *case.new]
        kinds = {node.op_type for node in nodes}
        if len(front) != 1 or len(case.targets) != 1 or not kinds <= ELEMENTWISE or kinds & STEPS:
            return None
        (name,), (target,) = front, case.targets
        kind = values.dtypes.get(name)
        if kind is None or kind.kind != "f" or values.dtypes.get(target) != kind:
            return None
        made = {output for node in nodes for output in node.output} | {name}
        shape: tuple[int, ...] = (1,) * len(values.shapes[name])
        for node in nodes:
            for read in filter(None, node.input):
                if read not in made:
                    array = case.constants.get(read, graph.constants.get(read))
                    if array is None:
                        return None
                    shape = np.broadcast_shapes(shape, array.shape)
        if len(shape) > len(values.shapes[name]):
            return None
        renamed = replace(case, front=(name,), old=tuple(ordered(old)))
        return cls(_Run(renamed, values.runs[0], values), name, shape)

    def difference(self) -> float:
        """Return the largest difference over all numbers of bfloat16, or of float16 if the value has that type."""
        kind, size = self.run.shape[self.name].dtype, int(np.prod(self.shape))
        bits = np.arange(1 << 16, dtype=np.uint32)
        numbers = bits.astype(np.uint16).view(np.float16) if kind.itemsize == 2 else (bits << 16).view(np.float32)
        x = np.broadcast_to(numbers.reshape(-1, *[1] * (len(self.shape) - 1)), (1 << 16, *self.shape[1:]))
        if (self.shape and self.shape[0] > 1) or size > 1 << 12:
            raise Unclear("too many functions")
        x = np.ascontiguousarray(x.reshape(1 << 16, *self.shape[1:]) if self.shape else numbers).astype(kind)
        (target, again), *_ = self.run.case.targets.items()
        with np.errstate(all="ignore"):
            old, new = (array.astype(np.float64) for array in self._both(x, target, again))
            finite, x = np.isfinite(old), np.broadcast_to(x.astype(np.float64), old.shape)
            if not np.isfinite(new[finite]).all() or np.isfinite(new[np.isnan(old)]).any():
                return np.inf
            gap = np.abs(new - old)[finite] / (np.abs(old) + 0.3 * np.minimum(_REACH, np.abs(x)) + 1e-30)[finite]
        loose = 1.0 if kind.itemsize > 2 else 1e-3
        return float(gap.max(initial=0.0)) * loose

    def _both(self, x: Array, target: str, again: str) -> list[Array]:
        try:
            return self.run.runner({self.name: x}, [target, again])
        except Unclear:
            raise
        except Exception as error:  # the runtime refuses parts in its own ways
            raise Unclear(f"the runtime refuses a part: {' '.join(str(error).split())[:120]}") from error
