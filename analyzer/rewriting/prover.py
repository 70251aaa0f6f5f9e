"""Prove that a rewrite holds for every input. Results on generated inputs are never a reason to accept it.

A rewrite is accepted for one of these reasons:

* *algebra*: old and new nodes agree on random numbers, with a random function in place of every operator that is not
  real arithmetic (``evaluation``). The numbers replace the values that the new nodes read. If the sides differ, the
  proof is repeated from values further upstream, at last from the model's inputs.
* *order*: the same with functions that never fall and maxima, which commute.
* *all values*: both sides are functions of one integer, element by element, which has finitely many cases
  (``enumeration``).
* *all numbers*: both sides are elementwise functions of one value, and agree on all numbers of bfloat16, and next to
  each bend and jump of either side (``one_variable``).

Algebra ignores rounding, infinities and NaN. The runtime therefore also computes both sides on numbers that are hard
for floating point (``both_sides``). New nodes may not lose digits that the old ones keep, and must have the same
infinities.

A dynamic model has several shapes. A proof does not use facts that are only true of the tried sizes
(``recording.Sizes``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
from onnx import helper

from ...bricks.operators import ELEMENTWISE
from ...models.subgraphs import attribute_of, reads, rename
from .both_sides import Case, Sides
from .enumeration import same_on_all_cases
from .evaluation import Unclear, same_function
from .one_variable import OneVariable
from .recording import Values
from .rewrite import Array, Rewrite, ordered

_LEVELS = (0, 8, 40, 120, 100_000)
"""Numbers of nodes upstream of the values that are read; a proof may use their properties too."""
_EQUAL = 1e-9
"""Largest difference of real numbers that counts as equal."""
_DRAWS = ((0, False), (1, True))
"""Number of a draw; True if its slices differ in size."""
_MOST_S = 8.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision on a rewrite.

    Attributes:
        reason: Why it holds for every input; empty if that is not shown.
        refusal: Why it is not accepted.
    """

    reason: str = ""
    refusal: str = ""


class Prover:
    """Decides on rewrites of one graph.

    Args:
        values: The graph.
        verdicts: Decisions on rewrites that are spelled alike.
    """

    def __init__(self, values: Values, verdicts: dict[object, Verdict]) -> None:
        self._values, self._graph, self._known = values, values.graph, verdicts
        self._until = np.inf
        self.spent_s = 0.0

    def prove(self, rewrite: Rewrite, *, most_s: float = _MOST_S) -> Verdict:
        """Decide if a rewrite holds for every input, and give the reason.

        Args:
            rewrite: The rewrite.
            most_s: Seconds to give up after.
        """
        begun = time.perf_counter()
        self._until = begun + most_s
        try:
            return self._decided(rewrite)
        except Unclear as error:
            return Verdict(refusal=f"not shown: {error}")
        except Exception as error:  # noqa: BLE001  # what cannot be evaluated is not shown
            return Verdict(refusal=f"not shown: {type(error).__name__}: {' '.join(str(error).split())[:120]}")
        finally:
            self.spent_s += time.perf_counter() - begun

    def _decided(self, rewrite: Rewrite) -> Verdict:
        refusal, seen = "", None
        for level in _LEVELS:
            case = self._case(rewrite, level)
            if case.front == seen:
                break
            seen = case.front
            if time.perf_counter() > self._until:
                return Verdict(refusal=refusal or "not shown: the time for a proof is up")
            try:
                verdict = self._looked_up(case, level)
            except Unclear as error:
                refusal = refusal or f"not shown: {error}"
                continue
            if verdict.reason:
                return verdict
            refusal = verdict.refusal
        return Verdict(refusal=refusal)

    def _looked_up(self, case: Case, level: int) -> Verdict:
        """Decide from one frontier, once for all cases that are spelled alike."""
        alone = None
        if level == 0:
            with contextlib.suppress(Unclear):
                alone = OneVariable.of(case, self._values)
        spelling = self._spelling(case if alone is None else alone.sides.case)
        key = None if spelling is None else (spelling, self._spelling(case), level == 0)
        if key in self._known:
            return self._known[key]
        verdict = self._at(case, alone)
        if key is not None and time.perf_counter() < self._until:
            self._known[key] = verdict
        return verdict

    def _at(self, case: Case, alone: OneVariable | None) -> Verdict:
        values = self._values
        plain = all(node.op_type in ELEMENTWISE for node in (*case.old, *case.new))
        if not plain and values.is_dynamic and not values.others:
            raise Unclear("the model runs at one shape only")
        runs = [Sides(case, shape, values) for shape in (values.runs[0], *values.others)]
        for run in runs:
            run.require_no_narrower()
            run.require_no_poles()
        refusal, gap = "", np.inf
        with contextlib.suppress(Unclear):  # far cheaper than algebra, which takes the model's shapes
            gap = np.inf if alone is None else alone.difference()
        if alone is not None and gap <= 1:
            reason, runs = "all numbers", [alone.sides]
        else:
            reason, refusal = self._equal(runs)
            if not reason and alone is not None:
                return Verdict(refusal=f"the functions differ by {gap:.1g} times what rounding explains")
        if not reason and same_on_all_cases(case, runs, values.sizes):
            reason = "all values"
        if not reason:
            return Verdict(refusal=refusal or "it is not shown to hold for every input")
        digits = reason != "all numbers"  # that proof compares them itself
        for index, run in enumerate(runs):
            if time.perf_counter() > self._until:
                raise Unclear("the time for a proof is up")
            if worse := run.worse(digits=digits, **({"most_s": 0.0} if index else {})):
                return Verdict(refusal=worse)
        return Verdict(reason)

    def _equal(self, runs: Sequence[Sides]) -> tuple[str, str]:
        """Return the reason why both sides agree on all draws of real numbers, and a refusal if a draw is unclear.

        Both texts may be empty.
        """
        unclear, first = "", runs[0]
        draws = [(run, draw) for run in runs for draw in _DRAWS[: 1 if run is not first else 2]]
        ways = [("algebra", False), *([("algebra", True)] if first.folds else []),
                *([("order", False)] if first.has_maximum else [])]  # fmt: skip
        for reason, unrounded in ways:
            how = {"order": reason == "order", "unrounded": unrounded, "until": self._until}
            try:
                if all(
                    run.difference(seed + 10 * index, large=large, **how) <= _EQUAL
                    for index, (run, (seed, large)) in enumerate(draws)
                ):
                    return reason, ""
            except Unclear as error:
                unclear = f"not shown: {error}"
        return "", unclear

    def _spelling(self, case: Case) -> object:
        """Return a spelling of both sides without names of values; None if more than the nodes decides the verdict."""
        nodes = [*case.old, *case.new]
        plain = all(node.op_type in ELEMENTWISE for node in nodes)
        if not plain or not all(name in self._values.dtypes for name in case.front):
            return None
        numbers: dict[str, object] = {name: index for index, name in enumerate(case.front)}
        constants, lines, used = {**self._conditions, **case.constants}, list[object](), list[Array]()
        for node in nodes:
            spelt = list[object]()
            for name in node.input:
                array = None if name in numbers else constants.get(name)
                if array is not None:
                    exact = case.exact.get(name, array)
                    used.append(array)
                    spelt.append((array.dtype.str, array.shape, array.tobytes(), exact.tobytes()))
                elif name in numbers or not name:
                    spelt.append(numbers.get(name, ""))
                else:
                    return None
            numbers.update((name, (len(lines), slot)) for slot, name in enumerate(node.output) if name)
            lines.append((same_function(node), *spelt))
        ends = [(numbers.get(name, name), numbers[again]) for name, again in case.targets.items()]
        runs = (self._values.runs[0], *self._values.others)
        shapes = [[run[name].shape for name in case.front if name in run] for run in runs]
        if len(case.front) == 1 and all(constant.size == 1 for constant in used):  # the rank alone decides
            shapes = [[(len(shape),) for shape in run_shapes] for run_shapes in shapes]
        kinds = [self._values.dtypes[name].str for name in case.front]
        return repr((lines, ends, kinds, shapes, sorted(self._graph.opsets.items())))

    # The nodes on both sides.

    @cached_property
    def _conditions(self) -> Mapping[str, Array]:
        """Constants, and values that are computed from them and from sizes that never change."""
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

    def _case(self, rewrite: Rewrite, level: int) -> Case:
        graph = self._graph
        new = _unfolded(ordered(rewrite.nodes), {**self._conditions, **rewrite.constants})
        outputs = {name for node in new for name in node.output if name}
        read = dict.fromkeys(name for node in new for name in reads(node) if name and name not in outputs)
        sources = [name for name in read if name not in rewrite.constants and not self._is_fixed(name)]
        indices, front = self._region(rewrite.values, sources, level)
        old = _unfolded([graph.nodes[index] for index in indices], self._conditions)
        renamed = {name: graph.fresh("again") for name in outputs if name in graph.producer}
        again = list[onnx.NodeProto]()
        for node in new:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            rename(copy, renamed)
            again.append(copy)
        targets = {name: renamed[name] for name in rewrite.values if name in renamed}
        if set(targets) != set(rewrite.values):
            raise Unclear("a value is not computed")
        return Case(front, tuple(old), tuple(again), targets, rewrite.constants, rewrite.exact)

    def _region(self, targets: Sequence[str], read: Sequence[str], level: int) -> tuple[list[int], tuple[str, ...]]:
        """Return the old nodes between a frontier and the targets, and the frontier.

        At level 0 the frontier consists of the values that the new nodes read, and the other values that the old nodes
        between them and the targets read. Each level replaces more values of the frontier by their makers, the latest
        first.
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
    """Return nodes with the branch that is taken in place of each If with a constant condition."""
    unfolded_nodes = list[onnx.NodeProto]()
    for node in nodes:
        condition = constants.get(node.input[0]) if node.op_type == "If" and node.input else None
        if condition is None:
            unfolded_nodes.append(node)
            continue
        body = attribute_of(node, "then_branch" if condition.reshape(-1)[0] else "else_branch")
        prefix = f"{node.output[0]}__branch__"
        names = {name: prefix + name for inner in body.node for name in inner.output if name}
        names |= {tensor.name: prefix + tensor.name for tensor in body.initializer}
        for tensor in body.initializer:
            value = helper.make_attribute("value", tensor)
            unfolded_nodes.append(onnx.NodeProto(op_type="Constant", output=[names[tensor.name]], attribute=[value]))
        for inner in body.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(inner)
            rename(copy, names)
            unfolded_nodes.append(copy)
        unfolded_nodes += [
            helper.make_node("Identity", [names.get(value.name, value.name)], [name])
            for value, name in zip(body.output, node.output, strict=True) if name
        ]  # fmt: skip
    return unfolded_nodes
