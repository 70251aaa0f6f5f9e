"""Origins: the operators of a graph that each operator of the optimised graph came from.

Optimisers keep the names of values: a fused operator writes the last value of the operators that it fused. Its origins
are therefore found in the graph before, by walking back from the values that it writes to the values that it reads.
If an optimiser renamed a value (blocked layouts, reshapes around a fused product), the value that it *represents*
follows from the operators around it: from operators that kept their name, and from layout changes, which write the
value that they read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...bricks.operators import DEQUANTIZE, ELEMENTWISE, QUANTIZE, VIEWS, Trait, having
from ...models.time_limit import in_time
from ..backends.base import OptimiserTraits

FORMS = VIEWS | having(Trait.CASTS) | {"Transpose"}
"""Operators of ONNX that change the form of a value and compute nothing."""

_PASSING = (VIEWS & ELEMENTWISE) | having(Trait.UNMOVED)
"""Operators of a source that vanish at inference."""

_CONVERSIONS = frozenset({DEQUANTIZE, QUANTIZE})
"""Conversions between real and quantised values: an operator that absorbs them reads and writes quantised ones."""

_TRANSPOSING = frozenset({"Gemm"})
"""Operators of ONNX that absorb a transposition before or after them."""


@dataclass(frozen=True, slots=True)
class GraphOperator:
    """The properties of an operator that matching needs.

    Attributes:
        name: Equal names in two graphs are one operator; empty: unnamed.
        kind: The operator, after its domain and a dot if the domain is not ONNX's own.
        inputs: Values by slot; empty for a slot without activation; captured values last.
        outputs: Values by slot; empty for an omitted output.
        detail: Attributes and constants: operators of one kind with equal inputs and details compute the same. Empty:
            unknown.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    detail: str = ""


def match(
    before: Sequence[GraphOperator],
    after: Sequence[GraphOperator],
    traits: OptimiserTraits,
    *,
    idle: Collection[int] = (),
) -> list[frozenset[int]]:
    """Find for every operator of an optimised graph the operators that it came from.

    Args:
        before: Operators in topological order.
        after: Operators that an optimiser made of them, in topological order.
        traits: The names and operators that this optimiser leaves in a graph.
        idle: Operators of ``before`` that return their input unchanged. They vanish, and are an origin only of an
            operator of the same kind, never of a computation.

    Returns:
        Indices in ``before`` for each of ``after``; empty for an operator that was inserted. One of ``before`` may be
        an origin of several: it was duplicated, or its work is shared.
    """
    return _Matching(before, after, traits, idle).origins()


class _Matching:
    """Maps the values of an optimised graph to the values of the graph before."""

    def __init__(
        self,
        before: Sequence[GraphOperator],
        after: Sequence[GraphOperator],
        traits: OptimiserTraits,
        idle: Collection[int],
    ) -> None:
        self._after = after
        self._traits = traits
        self._forms = FORMS | traits.layouts.changes
        self._transposing = _TRANSPOSING | traits.transposing | traits.layouts.changes
        self._idle = frozenset(idle) | {i for i, op in enumerate(before) if op.kind in _PASSING}
        self._before, self._merged = _without_repetitions(before, after, self._idle)
        self._maker = {value: index for index, op in enumerate(before) for value in op.outputs if value}
        self._names_after = {op.name for op in after}
        self._maker_after = {value: index for index, op in enumerate(after) for value in op.outputs if value}
        self._readers, self._readers_after = _readers(self._before), _readers(after)
        values = {value for op in before for value in (*op.inputs, *op.outputs) if value}
        self._stands_for = {
            value: value for op in after for value in (*op.inputs, *op.outputs) if value and value in values
        }
        self._by_name = {op.name: index for index, op in enumerate(self._before) if op.name}
        self._twin = self._find_twins()
        for op in self._after:
            self._take_in_conversions(op)
        self._settle()

    def origins(self) -> list[frozenset[int]]:
        """Return for each operator the operators before that it came from."""
        survivors = set(self._stands_for.values())
        pairs = list(zip(self._all_written(), self._all_read(), strict=True))
        step = "matching the executed graph"
        return [self._origin(index, *pair, survivors) for index, pair in enumerate(in_time(pairs, step))]

    # ------------------------------------------------------------------ values that values represent

    def _find_twins(self) -> dict[int, int]:
        """Return operators that kept their name, or were named after the value that they represent."""
        by_name, family = self._by_name, self._traits.family
        twins = {}
        for index, op in enumerate(self._after):
            same = self._named(op)
            if op.name in by_name and self._before[by_name[op.name]].kind == op.kind:
                twins[index] = by_name[op.name]
            elif same is not None and family(self._before[same].kind) == family(op.kind):
                twins[index] = same
            elif values := self._traits.stands_for(op.name):
                maker = next((self._maker[value] for value in values if value in self._maker), None)
                if maker is not None:
                    twins[index] = maker
        return twins

    def _named(self, op: GraphOperator) -> int | None:
        """Return the operator of the graph before with the present or former name of an operator."""
        return self._by_name.get(op.name, self._by_name.get(self._traits.plain(op.name)))

    def _take_in_conversions(self, op: GraphOperator) -> None:
        """Map the values of an operator that absorbed the conversions around it.

        It keeps its name, and the quantised values that it writes may have new ones.
        """
        index = self._named(op)
        if index is None or op.kind in _CONVERSIONS:
            return
        maker_names = {self._traits.plain(self._after[self._maker_after[value]].name)
                for value in op.inputs if value in self._maker_after}  # fmt: skip
        reads, taken = [], False
        for value in filter(None, self._before[index].inputs):
            maker = self._maker.get(value)
            if maker is None or self._before[maker].kind != DEQUANTIZE or self._before[maker].name in maker_names:
                reads.append(value)
            else:
                taken = True
                reads += filter(None, self._before[maker].inputs[:1])
        if taken:
            self._learn([value for value in op.inputs if value], reads)
            self._learn(op.outputs, [self._quantised(value) for value in self._before[index].outputs])

    def _quantised(self, value: str) -> str:
        """Return the quantised form of a value that nothing else reads; else the value."""
        quantised = value
        while len(readers := self._readers.get(quantised, [])) == 1:
            reader = self._before[readers[0]]
            if reader.name in self._names_after or reader.kind not in having(Trait.CLAMPS) | {QUANTIZE}:
                break
            quantised = reader.outputs[0]
            if reader.kind == QUANTIZE:
                return quantised
        return value

    def _settle(self) -> None:
        """Spread known values over the operators until nothing is new; guess only then, first operator first."""
        renamed = (index for index, op in enumerate(self._after) if self._traits.stands_for(op.name))
        guesses = iter([index for index in renamed if index in self._twin])
        while True:
            while self._spread():
                pass
            guess = next((i for i in guesses if self._after[i].outputs[0] not in self._stands_for), None)
            if guess is None:
                return
            self._stands_for[self._after[guess].outputs[0]] = self._fused_output(guess)

    def _spread(self) -> bool:
        """Pass over the operators once; return true if a value was mapped."""
        size = len(self._stands_for)
        for index, op in enumerate(self._after):
            twin = self._twin.get(index)
            if twin is not None:
                self._learn(op.inputs, self._before[twin].inputs)
                if self._before[twin].name in {op.name, self._traits.plain(op.name)}:
                    self._learn(op.outputs, self._before[twin].outputs)
            elif op.kind in self._forms:
                self._learn(op.outputs[:1], [self._stands_for.get(op.inputs[0], "")])
                self._learn(op.inputs[:1], [self._stands_for.get(op.outputs[0], "")])
        return len(self._stands_for) > size

    def _learn(self, values: Iterable[str], meanings: Iterable[str]) -> None:
        for value, meaning in zip(values, meanings, strict=False):
            if value and meaning:
                self._stands_for.setdefault(value, meaning)

    def _fused_output(self, index: int) -> str:
        """Return the value that an operator in blocked layout writes: its own, or the sum that it was fused with.

        Only reached if no reader shows it: the other summand is an input of the operator, an activation follows the
        sum.
        """
        op = self._after[index]
        twin = self._before[self._twin[index]]
        value = next(name for name in twin.outputs if name)
        added = [self._stands_for.get(name, "") for name in op.inputs[self._traits.summands :] if name]
        for follower in self._before:
            if added and follower.kind in {"Add", "Sum"} and {value, *added} == set(follower.inputs):
                value = follower.outputs[0]
                break
        return value

    # ------------------------------------------------------------------ origins of operators

    def _origin(self, index: int, written: set[str], read: set[str], survivors: set[str]) -> frozenset[int]:
        if not written:
            return frozenset({self._twin[index]}) if index in self._twin else frozenset()
        way = self._walk_back(written, read)
        if way is None:  # it reads less than its origins do: stop at any value that is left
            way = self._walk_back(written, survivors - written)
        origin = self._own(self._after[index], way or frozenset())
        return origin.union(*(self._merged.get(index, ()) for index in origin))

    def _all_written(self) -> list[set[str]]:
        """Return for each operator the values that its outputs represent; if unknown, its readers' output values."""
        all_written: list[set[str]] = [set() for _ in self._after]
        for index in reversed(range(len(self._after))):
            outputs = [value for value in self._after[index].outputs if value]
            all_written[index] = {self._stands_for[value] for value in outputs if value in self._stands_for}
            if not all_written[index]:
                all_written[index].update(
                    *(all_written[reader] for value in outputs for reader in self._readers_after.get(value, ()))
                )
        return all_written

    def _all_read(self) -> list[set[str]]:
        """Return for each operator the values that its inputs represent; if unknown, their makers' input values."""
        all_read: list[set[str]] = []
        for op in self._after:
            read = {self._stands_for[value] for value in op.inputs if value in self._stands_for}
            makers = [self._maker_after.get(value) for value in op.inputs if value not in self._stands_for]
            all_read.append(read.union(*(all_read[maker] for maker in makers if maker is not None)))
        return all_read

    def _walk_back(self, values: set[str], ends: set[str]) -> frozenset[int] | None:
        """Return the operators between values and the ends; None if the way leads to another input of the graph."""
        way: set[int] = set()
        pending = [value for value in values if value not in ends]
        while pending:
            maker = self._maker.get(pending.pop())
            if maker is None:
                return None  # an input of the graph that the operator does not read
            if maker not in way:
                way.add(maker)
                pending += [value for value in self._before[maker].inputs if value and value not in ends]
        return frozenset(way)

    def _own(self, op: GraphOperator, way: frozenset[int]) -> frozenset[int]:
        """Return the operators on the way that this one does the work of."""
        family = self._traits.family
        same = {index for index in way if family(self._before[index].kind) == family(op.kind)}
        if op.kind in self._forms:
            converted = {index for index in way if self._before[index].kind in _CONVERSIONS}
            return frozenset(same | converted) if same else way
        if (
            op.kind not in self._transposing
            and same
            and all(index in same or index in self._idle or self._before[index].kind in self._forms for index in way)
        ):
            return frozenset(same)  # the layout changes around it are gone
        return way - self._idle


def _readers(operators: Sequence[GraphOperator]) -> dict[str, list[int]]:
    """Return for each value the operators that read it."""
    readers: dict[str, list[int]] = {}
    for index, op in enumerate(operators):
        for value in dict.fromkeys(filter(None, op.inputs)):
            readers.setdefault(value, []).append(index)
    return readers


def _without_repetitions(
    before: Sequence[GraphOperator], after: Sequence[GraphOperator], idle: Collection[int]
) -> tuple[list[GraphOperator], Mapping[int, list[int]]]:
    """Replace operators that compute the same by the one that is left after optimisation.

    What idle operators return is the value that they read.

    Returns:
        The operators; and for each operator that replaces others the indices of these.
    """
    alike: dict[tuple[str, tuple[str, ...], str], list[int]] = {}
    first: dict[str, str] = {}
    for index, op in enumerate(before):
        if index in idle and all(values and values[0] for values in (op.inputs, op.outputs)):
            first[op.outputs[0]] = first.get(op.inputs[0], op.inputs[0])
            continue
        key = (op.kind, tuple(first.get(value, value) for value in op.inputs), op.detail or str(index))
        same = alike.setdefault(key, [])
        same.append(index)
        first.update((value, twin) for value, twin in zip(op.outputs, before[same[0]].outputs, strict=False) if value)
    values_after = {value for op in after for value in op.outputs}
    renamed: dict[str, str] = {}
    merged: dict[int, list[int]] = {}
    for same in alike.values():
        stays = [index for index in same if values_after.issuperset(filter(None, before[index].outputs))]
        gone = [index for index in same if values_after.isdisjoint(before[index].outputs)]
        if stays and gone:
            merged[stays[0]] = gone
            for index in gone:
                pairs = zip(before[index].outputs, before[stays[0]].outputs, strict=False)
                renamed.update((value, twin) for value, twin in pairs if value)
    return [replace(op, inputs=tuple(renamed.get(value, value) for value in op.inputs)) for op in before], merged


def composed(first: Sequence[frozenset[int]], second: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Return the origins over two steps of optimisation.

    Args:
        first: Origins of the graph in between, in the graph before.
        second: Origins of the graph after, in the graph in between.
    """
    return [frozenset[int]().union(*(first[index] for index in origin)) for origin in second]


def sharing(origins: Sequence[frozenset[int]]) -> Mapping[int, int]:
    """Return the operators that are an origin of several, with the number of these."""
    counts: dict[int, int] = {}
    for origin in origins:
        for index in origin:
            counts[index] = counts.get(index, 0) + 1
    return {index: count for index, count in sorted(counts.items()) if count > 1}
