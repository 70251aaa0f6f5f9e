"""Interpolation of a model's missing bricks between other sizes of the model.

A missing brick is interpolated on the curve of its family (``curve``) through the family's measured sizes. Measured
bricks keep their measurements. The model is then composed as usual. There is no extrapolation beyond the measured
sizes.

The error comes from leaving sizes out: at each inner size, the sum of the interpolated bricks is predicted from the
other sizes and compared with the measured sum. Sums are compared because disturbances of one size affect all its
bricks: errors of single bricks would average out wrongly.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..bricks.decomposition import Decomposition
from ..bricks.graph.model_graph import ExecutedModel, ModelGraph
from ..bricks.layer import Layer, LayerSequence, Operand, Role, TensorType
from ..db import Measurement
from ..db.values import Summary
from .curve import Curve, Interpolation, LeftOut, Point, error_of
from .evidence import Evidence
from .interventions import Interventions, state_of
from .measurements import BrickMeasurements

# Families of bricks: one part of a model at several sizes of a dimension.
#
# Two sequences at two sizes are a family if they have the same source layers and the same structure: operators, wiring,
# roles, element types and ranks, everything but extents. Nodes that the runtime inserted (layout changes) are
# identified by their neighbour layers. If the runtime executes another graph at another size, the family has no member
# there.
#
# Several equal sequences of a model are distinguished by their order, among sizes with equally many.


_LAST = "channels_last"
"""Attribute of runtimes for the layout of an operator."""


def families(
    graph: ModelGraph, parts: Sequence[LayerSequence], executed: ExecutedModel | None = None
) -> tuple[Hashable, ...]:
    """Return the family of each sequence; all families of a model are different.

    Args:
        graph: The decomposed graph.
        parts: Its sequences.
        executed: The executed model of this graph, if it is an executed graph.
    """
    unnumbered = [(_layers_of(graph, part, executed), _structure(graph, part)) for part in parts]
    counts, seen = Counter(unnumbered), Counter[Hashable]()
    numbered = []
    for family in unnumbered:
        numbered.append((*family, seen[family], counts[family]))
        seen[family] += 1
    return tuple(numbered)


def _layers_of(graph: ModelGraph, part: LayerSequence, executed: ExecutedModel | None) -> Hashable:
    """Return the names of a sequence's source layers, or of the layers around it."""
    if executed is None:
        return tuple(graph.layers[index].name for index in part.layers)
    origins = _origins(executed, part.layers)
    if origins:
        return origins
    before = {index for value in part.inputs if (index := graph.producer(value)) is not None}
    behind = {index for value in part.outputs for index in graph.consumers(value)}
    return _origins(executed, before), part.inputs if not before else (), _origins(executed, behind)


def _origins(executed: ExecutedModel, layers: Sequence[int] | set[int]) -> tuple[str, ...]:
    indices = frozenset[int]().union(*(executed.origins[index] for index in layers))
    return tuple(executed.source.layers[index].name for index in sorted(indices))


def _structure(graph: ModelGraph, part: LayerSequence) -> Hashable:
    """Return the structure of a sequence without extents."""
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
    """Return an operator without extents: domain, name, layout, kernel and strides."""
    attributes = {attribute.name: attribute for attribute in layer.node.attribute}
    kernel, strides = (
        tuple(attributes[name].ints) if name in attributes else () for name in ("kernel_shape", "strides")
    )
    return layer.domain, layer.op_type, _LAST in attributes and bool(attributes[_LAST].i), kernel, strides


def _fed(operand: Operand, numbers: dict[str, int]) -> Hashable:
    """Return an input slot: number of the value, element type and rank."""
    if operand.role is Role.ABSENT:
        return None
    number = numbers.setdefault(operand.value, len(numbers)) if operand.role is Role.ACTIVATION else None
    return number, _ranked(operand.type)


def _ranked(kind: TensorType | None) -> tuple[str, int] | None:
    return None if kind is None else (kind.dtype, len(kind.shape))


_LEAST_NS = 1.0
"""Least latency of a brick in ns, for finite relative errors."""

_MOST = 0.5
"""Least measured share of the interpolated bricks at a size that is left out."""

Table = Callable[[BrickMeasurements], Mapping[str, Measurement]]


@dataclass(frozen=True, slots=True)
class Sized:
    """A model at one size of a dimension."""

    size: int
    model: Decomposition
    executed: Interventions


@dataclass(frozen=True, slots=True)
class _Sum:
    """Sequences of a sum in one cache state, with their measurements."""

    graph: ModelGraph
    parts: tuple[LayerSequence, ...]
    executed: ExecutedModel | None
    state: str
    bricks: BrickMeasurements


@dataclass(frozen=True, slots=True)
class _Read:
    """An interpolated sequence: its brick, and the measured bricks of its family by size."""

    key: str
    keys: Mapping[int, str]
    curve: Curve
    ms: float


@dataclass(frozen=True, slots=True)
class _Lacking:
    """A sequence that could not be interpolated: bricks of its family by size, and the measured sizes."""

    part: LayerSequence
    alike: Mapping[int, str]
    measured: tuple[int, ...]


def read_between(target: Sized, others: Sequence[Sized], dimension: str, evidence: Evidence) -> Evidence:
    """Add interpolated latencies of a model's missing bricks to the evidence.

    Returns:
        The evidence with these bricks, or with the reason why one cannot be interpolated.
    """
    asked, executed = _sums(target, evidence)
    # A size of 0 is different work.
    theirs = {sized.size: _sums(sized, evidence) for sized in others if sized.size > 0}
    sums = {size: total for size, (total, _) in theirs.items()}
    reads, lacking = _read(asked, sums, target.size)
    if lacking:
        reason = _outside(sums, dimension, target.size) or _why_not(asked, reads, lacking)
        return replace(evidence, interpolated={**evidence.interpolated, target.model.own.key: reason})
    every = reads
    evidence, whole = _filled(evidence, target, asked, reads, sums)
    if executed is not None:  # if complete, the executed graph is the basis of the estimate
        sums = {size: total for size, (_, total) in theirs.items() if total is not None}
        inside, lacking = _read(executed, sums, target.size)
        if not lacking:
            evidence, whole = _filled(evidence, target, executed, inside, sums)
            every, reads = [*reads, *inside], inside
    sizes = {size for read in every for size in read.keys}
    left_out = _left_out(reads)
    interpolation = Interpolation(
        dimension=dimension,
        between=(
            max((size for size in sizes if size < target.size), default=target.size),
            min((size for size in sizes if size > target.size), default=target.size),
        ),
        measured=tuple(sorted(sizes)),
        bricks=len({read.key for read in every}),
        share=math.fsum(read.ms for read in reads) / whole if whole else 0.0,
        error=error_of([size.error for size in left_out]) if reads else 0.0,
        left_out=left_out,
    )
    return replace(evidence, interpolated={**evidence.interpolated, target.model.own.key: interpolation})


def _sums(sized: Sized, evidence: Evidence) -> tuple[_Sum, _Sum | None]:
    """Return the requested sum, and the sum of the executed graph if it differs."""
    model, executed, state = sized.model, sized.executed, state_of(sized.model, evidence.choice)

    def summed(graph: ModelGraph, parts: tuple[LayerSequence, ...], cache: str) -> _Sum:
        executed_model = next(
            (candidate for candidate in (model.executed, executed.executed) if candidate and candidate.graph is graph),
            None,
        )
        return _Sum(graph, parts, executed_model, cache, evidence.bricks_in(model.own.key, cache))

    asked = summed(model.graph, model.sequences, state)
    if executed.graph is None or (executed.graph is model.graph and executed.level == state):
        return asked, None
    parts = model.sequences if executed.graph is model.graph else executed.parts
    return asked, summed(executed.graph, parts, executed.level)


def _read(summands: _Sum, others: Mapping[int, _Sum], size: int) -> tuple[list[_Read], list[_Lacking]]:
    """Interpolate the unmeasured sequences; return the interpolated and the failed ones."""
    if all(part.key in summands.bricks.latest for part in summands.parts):
        return [], []
    members = {at: _members(total) for at, total in others.items()}
    reads, lacking = [], []
    for family, part in zip(_members(summands), summands.parts, strict=True):
        if part.key in summands.bricks.latest:
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
    """Return the brick of each family."""
    return dict(
        zip(families(total.graph, total.parts, total.executed), (part.key for part in total.parts), strict=True)
    )


@lru_cache(maxsize=4096)
def _curve(points: tuple[tuple[int, float], ...]) -> Curve:
    """Return the curve of a family; repeated layers share it."""
    return Curve.through(Point(size, max(_LEAST_NS, latency_ns) / 1e6) for size, latency_ns in points)


def _filled(
    evidence: Evidence, target: Sized, summands: _Sum, reads: Sequence[_Read], others: Mapping[int, _Sum]
) -> tuple[Evidence, float]:
    """Return the evidence with the interpolated bricks, and the sum of all bricks in ms."""
    tables: dict[str, Table] = {
        "latest": lambda bricks: bricks.latest,
        "inner": lambda bricks: bricks.inner,
        "host": lambda bricks: bricks.host,
    }
    added = {name: _table(reads, others, table, target.size, summands.state) for name, table in tables.items()}
    model = target.model.own.key
    bricks = evidence.bricks_in(model, summands.state)
    completed = replace(
        bricks,
        latest={**bricks.latest, **added["latest"]},
        inner={**bricks.inner, **added["inner"]},
        host={**bricks.host, **added["host"]},
        read=bricks.read | added["latest"].keys(),
    )
    uncertainty = evidence.uncertainty.beside(measurement for table in added.values() for measurement in table.values())
    whole = math.fsum(completed.latest[part.key].latency_ns for part in summands.parts) / 1e6
    return replace(
        evidence, bricks={**evidence.bricks, (model, summands.state): completed}, uncertainty=uncertainty
    ), whole


def _table(
    reads: Sequence[_Read], others: Mapping[int, _Sum], table: Table, size: int, state: str
) -> dict[str, Measurement]:
    """Return one kind of latency of each interpolated brick, if its family has it on both sides.

    A brick of several families, whose extents coincide at this size, has their mean.
    """
    by_key: defaultdict[str, list[Measurement]] = defaultdict(list)
    for read in reads:
        points = {
            at: measurement
            for at, key in read.keys.items()
            if (measurement := table(others[at].bricks).get(key)) is not None
        }
        low = max((at for at in read.keys if at < size), default=0)
        high = min((at for at in read.keys if at > size), default=0)
        if low in points and high in points:
            by_key[read.key].append(_measurement(read.key, points, (low, high), size, state))
    return {key: some[0] if len(some) == 1 else _mean(some) for key, some in by_key.items()}


def _mean(some: Sequence[Measurement]) -> Measurement:
    """Return the mean of several families."""
    quiet = [measurement.undisturbed_ns for measurement in some if measurement.undisturbed_ns is not None]
    return replace(
        some[0],
        summary=replace(some[0].summary, mean_ns=math.fsum(measurement.latency_ns for measurement in some) / len(some)),
        undisturbed_ns=math.fsum(quiet) / len(quiet) if len(quiet) == len(some) else None,
    )


def _measurement(
    key: str, points: Mapping[int, Measurement], between: tuple[int, int], size: int, state: str
) -> Measurement:
    """Return a placeholder measurement without samples, with the wider relative interval of its neighbours.

    The interpolation error is added to the model's interval.
    """
    neighbours = [points[at] for at in between]
    nearer = min(zip(between, neighbours, strict=True), key=lambda pair: abs(math.log(pair[0] / size)))[1]
    mean_ns = _at(size, {at: measurement.latency_ns for at, measurement in points.items()})
    assert mean_ns is not None  # noqa: S101  # both sides are known
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


def _at(size: int, latencies_ns: Mapping[int, float | None]) -> float | None:
    """Return a latency at a size in ns; None unless both sides are known."""
    point = _curve(tuple(sorted((at, ns) for at, ns in latencies_ns.items() if ns is not None))).at(size)
    return None if point is None else point.ms * 1e6


def _left_out(reads: Sequence[_Read]) -> tuple[LeftOut, ...]:
    """Return the sum of the interpolated bricks at each inner size: measured, and predicted from the other sizes."""
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
    """Return why a size is not between measured sizes; None if it is."""
    sizes = sorted(at for at, total in others.items() if any(total.bricks.measured(part.key) for part in total.parts))
    if not sizes:
        return f"no other size of {dimension} is measured, of those that were looked at"
    if not sizes[0] < size < sizes[-1]:
        return f"{dimension}={size} does not lie between sizes that are measured ({', '.join(map(str, sizes))})"
    return None


def _why_not(summands: _Sum, reads: Sequence[_Read], lacking: Sequence[_Lacking]) -> str:
    """Return why the most isolated failed brick cannot be interpolated."""
    worst = min(lacking, key=lambda sequence: (len(sequence.alike), len(sequence.measured)))
    layers = [summands.graph.layers[index] for index in worst.part.layers]
    text = (
        f"{len(lacking)} of {len(lacking) + len(reads)} sequences that are not measured cannot be read, such as "
        f"{'+'.join(layer.op_type for layer in layers)} ({layers[0].name})"
    )
    if not worst.alike:
        return f"{text}: the model has none like it at any other size, since what is executed changes"
    measured = ", ".join(map(str, worst.measured)) or "none of these"
    alike = ", ".join(map(str, sorted(worst.alike)))
    return f"{text}: the model has one like it at {alike}, and it is measured at {measured}"
