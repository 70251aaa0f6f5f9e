"""Bricks of a model at a size that were not measured, read between sizes that were.

Each brick that is missing is read from the curve of its family (``family``, ``curve``) through the sizes at which that
is measured; bricks that are measured are taken as they are. With what was read in place of what was not measured, a
model is then composed as always. Beyond the sizes at which a family is measured nothing is said.

How good it is, leaving sizes out tells: at each of them but the ends, what was read together is read from the others,
and held against what was measured there. Errors are those of the whole sum, since what a machine did while one size was
measured is in all bricks of that size: errors of single bricks would average out on paper only.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..bricks.decomposition import Decomposition
from ..bricks.graph.graph import ExecutedModel, ModelGraph
from ..bricks.layer import Layer, LayerSequence, Operand, Role, TensorType
from ..db import Measurement
from ..db.values import Summary
from .curve import Curve, Interpolation, LeftOut, Point, error_of
from .decomposition import Interventions, state_of
from .evidence import Evidence
from .measurements import BrickMeasurements

# Families of bricks: what one part of a model is at several sizes of a dimension of it.
#
# Two sequences of a model at two sizes are of one family where they stand for the same layers of the model's own
# graph, and have the same structure: operators, wiring, roles, element types and ranks, in short all but extents.
# What they read and write then differs by the size alone, and so does their attributes' meaning: it is the same layer
# of the same file. Of what a runtime put in by itself (layout changes) the layers count that stand before and behind
# it. Where a runtime executes something else at another size, fuses other layers or leaves a change of layout out, no
# sequence there is alike: the family has no member at that size, and nothing stands in for it.
#
# Where a model has several sequences alike, they are told apart by their order, and are of a family with those of sizes
# at which there are as many.


_LAST = "channels_last"
"""An attribute by which runtimes mark the layout that an operator works in."""


def families(
    graph: ModelGraph, parts: Sequence[LayerSequence], executed: ExecutedModel | None = None
) -> tuple[Hashable, ...]:
    """The family of each sequence; no two of a model are of one.

    Args:
        graph: The graph that was cut.
        parts: Its sequences.
        executed: What the graph was made from, where it is one that a runtime executes.
    """
    found = [(_layers_of(graph, part, executed), _structure(graph, part)) for part in parts]
    counts, seen = Counter(found), Counter[Hashable]()
    numbered = []
    for family in found:
        numbered.append((*family, seen[family], counts[family]))
        seen[family] += 1
    return tuple(numbered)


def _layers_of(graph: ModelGraph, part: LayerSequence, executed: ExecutedModel | None) -> Hashable:
    """Names of the model's own layers that a sequence stands for, or stands between."""
    if executed is None:
        return tuple(graph.layers[index].name for index in part.layers)
    own = _origins(executed, part.layers)
    if own:
        return own
    before = {index for value in part.inputs if (index := graph.producer(value)) is not None}
    behind = {index for value in part.outputs for index in graph.consumers(value)}
    return _origins(executed, before), part.inputs if not before else (), _origins(executed, behind)


def _origins(executed: ExecutedModel, layers: Sequence[int] | set[int]) -> tuple[str, ...]:
    indices = frozenset[int]().union(*(executed.origins[index] for index in layers))
    return tuple(executed.source.layers[index].name for index in sorted(indices))


def _structure(graph: ModelGraph, part: LayerSequence) -> Hashable:
    """A sequence without extents."""
    numbers: dict[str, int] = {}
    described = []
    for index in part.layers:
        layer = graph.layers[index]
        reads = tuple(_fed(operand, numbers) for operand in layer.operands)
        writes = tuple(
            (numbers.setdefault(value, len(numbers)), value in part.outputs, _ranked(kind)) if value else None
            for value, kind in zip(layer.outputs, layer.output_types, strict=True)
        )
        described.append((_operator(layer), reads, writes))
    return tuple(described)


def _operator(layer: Layer) -> Hashable:
    """An operator without extents: domain, name, layout, kernel and strides."""
    known = {attribute.name: attribute for attribute in layer.node.attribute}
    kernel, strides = (tuple(known[name].ints) if name in known else () for name in ("kernel_shape", "strides"))
    return layer.domain, layer.op_type, _LAST in known and bool(known[_LAST].i), kernel, strides


def _fed(operand: Operand, numbers: dict[str, int]) -> Hashable:
    """An input slot. How many values a constant has decides whether they are kept, and so is no difference."""
    if operand.role is Role.ABSENT:
        return None
    number = numbers.setdefault(operand.value, len(numbers)) if operand.role is Role.ACTIVATION else None
    return number, _ranked(operand.type)


def _ranked(kind: TensorType | None) -> tuple[str, int] | None:
    return None if kind is None else (kind.dtype, len(kind.shape))


_LEAST_NS = 1.0
"""What a brick counts as at least: one that takes nothing has no relative error."""

_MOST = 0.5
"""Share of what is read that must be measured at a size for its errors to stand for all of it."""

Table = Callable[[BrickMeasurements], Mapping[str, Measurement]]


@dataclass(frozen=True, slots=True)
class Sized:
    """A model at one size of a dimension.

    Attributes:
        size: The size.
        model: As decomposed.
        executed: What the runtime executes for it.
    """

    size: int
    model: Decomposition
    executed: Interventions


@dataclass(frozen=True, slots=True)
class _Sum:
    """Sequences that are added up, in one cache state, with what is known of their bricks."""

    graph: ModelGraph
    parts: tuple[LayerSequence, ...]
    executed: ExecutedModel | None
    state: str
    bricks: BrickMeasurements


@dataclass(frozen=True, slots=True)
class _Read:
    """A sequence that was read: its brick, and those of its family by size, all of them measured."""

    key: str
    keys: Mapping[int, str]
    curve: Curve
    ms: float


@dataclass(frozen=True, slots=True)
class _Lacking:
    """A sequence that could not be: those of its family by size, measured or not, and the sizes that are."""

    part: LayerSequence
    alike: Mapping[int, str]
    measured: tuple[int, ...]


def read_between(wanted: Sized, others: Sequence[Sized], dimension: str, evidence: Evidence) -> Evidence:
    """What is stored of a model, with those bricks that are not read between other sizes of it.

    Args:
        wanted: The model.
        others: The same at other sizes.
        dimension: What the sizes are of.
        evidence: What is known of all of them.

    Returns:
        The evidence with these bricks of the model; or with the reason why one cannot be read.
    """
    asked, executed = _sums(wanted, evidence)
    # A size of 0 is work of another kind.
    theirs = {sized.size: _sums(sized, evidence) for sized in others if sized.size > 0}
    known = {size: total for size, (total, _) in theirs.items()}
    reads, lacking = _read(asked, known, wanted.size)
    if lacking:
        reason = _outside(known, dimension, wanted.size) or _why_not(asked, reads, lacking)
        return replace(evidence, interpolated={**evidence.interpolated, wanted.model.own.key: reason})
    every = reads
    evidence, whole = _filled(evidence, wanted, asked, reads, known)
    if executed is not None:  # the nearest to the model that there is: where all of it is known, it is the basis
        known = {size: total for size, (_, total) in theirs.items() if total is not None}
        inside, lacking = _read(executed, known, wanted.size)
        if not lacking:
            evidence, whole = _filled(evidence, wanted, executed, inside, known)
            every, reads = [*reads, *inside], inside
    sizes = {size for read in every for size in read.keys}
    left_out = _left_out(reads)
    found = Interpolation(
        dimension=dimension,
        between=(
            max((size for size in sizes if size < wanted.size), default=wanted.size),
            min((size for size in sizes if size > wanted.size), default=wanted.size),
        ),
        measured=tuple(sorted(sizes)),
        bricks=len({read.key for read in every}),
        share=math.fsum(read.ms for read in reads) / whole if whole else 0.0,
        error=error_of(left_out) if reads else 0.0,
        left_out=left_out,
    )
    return replace(evidence, interpolated={**evidence.interpolated, wanted.model.own.key: found})


def _sums(sized: Sized, evidence: Evidence) -> tuple[_Sum, _Sum | None]:
    """What was asked to be added up, and the bricks of the executed graph where these are others."""
    model, executed, state = sized.model, sized.executed, state_of(sized.model, evidence.choice)

    def summed(graph: ModelGraph, parts: tuple[LayerSequence, ...], place: str) -> _Sum:
        made = next((found for found in (model.executed, executed.executed) if found and found.graph is graph), None)
        return _Sum(graph, parts, made, place, evidence.bricks_in(model.own.key, place))

    asked = summed(model.graph, model.sequences, state)
    if executed.graph is None or (executed.graph is model.graph and executed.level == state):
        return asked, None
    parts = model.sequences if executed.graph is model.graph else executed.parts
    return asked, summed(executed.graph, parts, executed.level)


def _read(own: _Sum, others: Mapping[int, _Sum], size: int) -> tuple[list[_Read], list[_Lacking]]:
    """The sequences that are not measured: those that can be read, and those that cannot."""
    if all(part.key in own.bricks.latest for part in own.parts):
        return [], []
    members = {at: _members(total) for at, total in others.items()}
    reads, lacking = [], []
    for family, part in zip(_members(own), own.parts, strict=True):
        if part.key in own.bricks.latest:
            continue
        alike = {at: keys[family] for at, keys in members.items() if family in keys}
        measured = {at: key for at, key in alike.items() if others[at].bricks.measured(key)}
        curve = _curve(tuple((at, others[at].bricks.latest[key].latency_ns) for at, key in sorted(measured.items())))
        point = curve.at(size)
        if point is None:
            lacking.append(_Lacking(part, alike, tuple(sorted(measured))))
        else:
            reads.append(_Read(part.key, measured, curve, point.ms))
    return reads, lacking


def _members(total: _Sum) -> dict[Hashable, str]:
    """The brick of each family."""
    return dict(
        zip(families(total.graph, total.parts, total.executed), (part.key for part in total.parts), strict=True)
    )


@lru_cache(maxsize=4096)
def _curve(points: tuple[tuple[int, float], ...]) -> Curve:
    """The curve of a family: layers that repeat have the same."""
    return Curve.through(Point(size, max(_LEAST_NS, latency_ns) / 1e6) for size, latency_ns in points)


def _filled(
    evidence: Evidence, wanted: Sized, own: _Sum, reads: Sequence[_Read], others: Mapping[int, _Sum]
) -> tuple[Evidence, float]:
    """What is stored with what was read, and the sum of all of it in ms."""
    tables: dict[str, Table] = {
        "latest": lambda bricks: bricks.latest,
        "inner": lambda bricks: bricks.inner,
        "host": lambda bricks: bricks.host,
    }
    added = {name: _table(reads, others, table, wanted.size, own.state) for name, table in tables.items()}
    model = wanted.model.own.key
    bricks = evidence.bricks_in(model, own.state)
    made = replace(
        bricks,
        latest={**bricks.latest, **added["latest"]},
        inner={**bricks.inner, **added["inner"]},
        host={**bricks.host, **added["host"]},
        read=bricks.read | added["latest"].keys(),
    )
    uncertainty = evidence.uncertainty.beside(measurement for table in added.values() for measurement in table.values())
    whole = math.fsum(made.latest[part.key].latency_ns for part in own.parts) / 1e6
    return replace(evidence, bricks={**evidence.bricks, (model, own.state): made}, uncertainty=uncertainty), whole


def _table(
    reads: Sequence[_Read], others: Mapping[int, _Sum], table: Table, size: int, state: str
) -> dict[str, Measurement]:
    """One kind of latency of each brick that was read, where its family has that on both sides.

    A brick that is of several families, since their extents meet at this size, takes what they take on average.
    """
    found: defaultdict[str, list[Measurement]] = defaultdict(list)
    for read in reads:
        points = {
            at: measurement
            for at, key in read.keys.items()
            if (measurement := table(others[at].bricks).get(key)) is not None
        }
        low = max((at for at in read.keys if at < size), default=0)
        high = min((at for at in read.keys if at > size), default=0)
        if low in points and high in points:
            found[read.key].append(_measurement(read.key, points, (low, high), size, state))
    return {key: some[0] if len(some) == 1 else _mean(some) for key, some in found.items()}


def _mean(some: Sequence[Measurement]) -> Measurement:
    """What several families take on average."""
    quiet = [measurement.undisturbed_ns for measurement in some if measurement.undisturbed_ns is not None]
    return replace(
        some[0],
        summary=replace(some[0].summary, mean_ns=math.fsum(measurement.latency_ns for measurement in some) / len(some)),
        undisturbed_ns=math.fsum(quiet) / len(quiet) if len(quiet) == len(some) else None,
    )


def _measurement(
    key: str, points: Mapping[int, Measurement], between: tuple[int, int], size: int, state: str
) -> Measurement:
    """What stands for the measurement of a brick: as uncertain as the less certain of its neighbours, without samples.

    Its own uncertainty is none of the error of reading it, which the model's interval has from leaving sizes out.
    """
    neighbours = [points[at] for at in between]
    nearer = min(zip(between, neighbours, strict=True), key=lambda pair: abs(math.log(pair[0] / size)))[1]
    mean_ns = _at(size, {at: measurement.latency_ns for at, measurement in points.items()})
    assert mean_ns is not None  # noqa: S101  # it is known on both sides
    share = max(neighbour.half_ns / max(_LEAST_NS, abs(neighbour.latency_ns)) for neighbour in neighbours)
    return replace(
        nearer,
        id=f"read {key} {state} {nearer.variant} {size}",
        identity=replace(nearer.identity, key=key, conditions=replace(nearer.conditions, cache=state)),
        summary=Summary(
            mean_ns=mean_ns,
            median_ns=mean_ns,
            trimmed_mean_ns=mean_ns,
            min_ns=mean_ns,
            p90_ns=mean_ns,
            p99_ns=mean_ns,
            ci95_ns=(mean_ns * (1 - share), mean_ns * (1 + share)),
            samples=0,
            block_medians_ns=(),
            verdict=nearer.summary.verdict,
        ),
        load_ns=None,
        first_run_ns=None,
        undisturbed_ns=_at(size, {at: measurement.undisturbed_ns for at, measurement in points.items()}),
        quiet=None,
    )


def _at(size: int, known: Mapping[int, float | None]) -> float | None:
    """A latency at a size in ns; None where it is not known on both sides."""
    point = _curve(tuple(sorted((at, ns) for at, ns in known.items() if ns is not None))).at(size)
    return None if point is None else point.ms * 1e6


def _left_out(reads: Sequence[_Read]) -> tuple[LeftOut, ...]:
    """Of each measured size: what was read, as measured there, and as the other sizes have it."""
    sums: defaultdict[int, list[tuple[_Read, LeftOut]]] = defaultdict(list)
    for read in reads:
        for point in read.curve.left_out:
            sums[point.length].append((read, point))
    least = _MOST * math.fsum(read.ms for read in reads)
    return tuple(
        LeftOut(size, math.fsum(point.ms for _, point in some), math.fsum(point.predicted_ms for _, point in some))
        for size, some in sorted(sums.items())
        if math.fsum(read.ms for read, _ in some) >= least
    )


def _outside(others: Mapping[int, _Sum], dimension: str, size: int) -> str | None:
    """Return why a size does not lie between measured sizes; None if it does."""
    sizes = sorted(at for at, total in others.items() if any(total.bricks.measured(part.key) for part in total.parts))
    if not sizes:
        return f"no other size of {dimension} is measured, of those that were looked at"
    if not sizes[0] < size < sizes[-1]:
        return f"{dimension}={size} does not lie between sizes that are measured ({', '.join(map(str, sizes))})"
    return None


def _why_not(own: _Sum, reads: Sequence[_Read], lacking: Sequence[_Lacking]) -> str:
    """Return why the most isolated of the bricks that cannot be read cannot be."""
    worst = min(lacking, key=lambda sequence: (len(sequence.alike), len(sequence.measured)))
    layers = [own.graph.layers[index] for index in worst.part.layers]
    text = (
        f"{len(lacking)} of {len(lacking) + len(reads)} sequences that are not measured cannot be read, such as "
        f"{'+'.join(layer.op_type for layer in layers)} ({layers[0].name})"
    )
    if not worst.alike:
        return f"{text}: the model has none like it at any other size, since what is executed changes"
    measured = ", ".join(map(str, worst.measured)) or "none of these"
    alike = ", ".join(map(str, sorted(worst.alike)))
    return f"{text}: the model has one like it at {alike}, and it is measured at {measured}"
