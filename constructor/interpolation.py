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
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..bricks.graph.executed import ExecutedModel
from ..bricks.graph.graph import ModelGraph
from ..bricks.sequence import LayerSequence
from ..db import Measurement
from ..db.values import Summary
from .curve import Curve, LeftOut, Point, error_of
from .decomposition import Decomposition, Interventions, state_of
from .family import families
from .result import Interpolation
from .stored import BrickMeasurements, Stored

__all__ = ["Sized", "read_between"]

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


def read_between(wanted: Sized, others: Sequence[Sized], dimension: str, stored: Stored) -> Stored | str:
    """What is stored of a model, with those bricks that are not read between other sizes of it.

    Args:
        wanted: The model.
        others: The same at other sizes.
        dimension: What the sizes are of.
        stored: What is known of all of them.

    Returns:
        That, for this model alone; or why a brick cannot be read.
    """
    asked, executed = _sums(wanted, stored)
    theirs = {one.size: _sums(one, stored) for one in others if one.size > 0}  # an empty one is work of another kind
    known = {size: one for size, (one, _) in theirs.items()}
    reads, lacking = _read(asked, known, wanted.size)
    if lacking:
        return _why_not(asked, known, reads, lacking, f"{dimension}={wanted.size}", wanted.size)
    every = reads
    stored, whole = _filled(stored, asked, reads, known, wanted.size)
    if executed is not None:  # the nearest to the model that there is: where all of it is known, it is the basis
        known = {size: one for size, (_, one) in theirs.items() if one is not None}
        inside, lacking = _read(executed, known, wanted.size)
        if not lacking:
            stored, whole = _filled(stored, executed, inside, known, wanted.size)
            every, reads = [*reads, *inside], inside
    sizes = {size for read in every for size in read.keys}
    left_out = _left_out(reads)
    return replace(
        stored,
        interpolated=Interpolation(
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
        ),
    )


def _sums(one: Sized, stored: Stored) -> tuple[_Sum, _Sum | None]:
    """What was asked to be added up, and the bricks of the executed graph where these are others."""
    model, executed, state = one.model, one.executed, state_of(one.model, stored.choice)
    stored = stored.at_boundary(executed.graph, executed.parts, executed.level)
    stored = stored.at_boundary(model.graph, model.sequences, state)

    def summed(graph: ModelGraph, parts: tuple[LayerSequence, ...], place: str) -> _Sum:
        made = next((found for found in (model.executed, executed.executed) if found and found.graph is graph), None)
        return _Sum(graph, parts, made, place, stored.bricks_in(place))

    asked = summed(model.graph, model.sequences, state)
    if executed.graph is None or (executed.graph is model.graph and executed.level == state):
        return asked, None
    parts = model.sequences if executed.graph is model.graph else executed.parts
    return asked, summed(executed.graph, parts, executed.level)


def _read(own: _Sum, others: Mapping[int, _Sum], size: int) -> tuple[list[_Read], list[_Lacking]]:
    """The sequences that are not measured: those that can be read, and those that cannot."""
    if all(part.key in own.bricks.latest for part in own.parts):
        return [], []
    members = {at: _members(one) for at, one in others.items()}
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


def _members(one: _Sum) -> dict[Hashable, str]:
    """The brick of each family."""
    return dict(zip(families(one.graph, one.parts, one.executed), (part.key for part in one.parts), strict=True))


@lru_cache(maxsize=4096)
def _curve(points: tuple[tuple[int, float], ...]) -> Curve:
    """The curve of a family: layers that repeat have the same."""
    return Curve.through(Point(size, max(_LEAST_NS, latency_ns) / 1e6) for size, latency_ns in points)


def _filled(
    stored: Stored, own: _Sum, reads: Sequence[_Read], others: Mapping[int, _Sum], size: int
) -> tuple[Stored, float]:
    """What is stored with what was read, and the sum of all of it in ms."""
    tables: dict[str, Table] = {
        "latest": lambda bricks: bricks.latest,
        "inner": lambda bricks: bricks.inner,
        "host": lambda bricks: bricks.host,
    }
    bricks = stored.bricks_in(own.state)
    added = {name: _table(reads, others, table, size, own.state) for name, table in tables.items()}
    made = replace(
        bricks,
        latest={**bricks.latest, **added["latest"]},
        inner={**bricks.inner, **added["inner"]},
        host={**bricks.host, **added["host"]},
        read=bricks.read | added["latest"].keys(),
    )
    latest = {**own.bricks.latest, **added["latest"]}
    uncertainty = stored.uncertainty.beside(one for table in added.values() for one in table.values())
    whole = math.fsum(latest[part.key].latency_ns for part in own.parts) / 1e6
    return replace(stored, bricks={**stored.bricks, own.state: made}, uncertainty=uncertainty), whole


def _table(
    reads: Sequence[_Read], others: Mapping[int, _Sum], table: Table, size: int, state: str
) -> dict[str, Measurement]:
    """One kind of latency of each brick that was read, where its family has that on both sides.

    A brick that is of several families, since their extents meet at this size, takes what they take on average.
    """
    found: defaultdict[str, list[Measurement]] = defaultdict(list)
    for read in reads:
        points = {at: one for at, key in read.keys.items() if (one := table(others[at].bricks).get(key)) is not None}
        low = max((at for at in read.keys if at < size), default=0)
        high = min((at for at in read.keys if at > size), default=0)
        if low in points and high in points:
            found[read.key].append(_measurement(read.key, points, (low, high), size, state))
    return {key: some[0] if len(some) == 1 else _mean(some) for key, some in found.items()}


def _mean(some: Sequence[Measurement]) -> Measurement:
    """What several families take on average."""
    quiet = [one.undisturbed_ns for one in some if one.undisturbed_ns is not None]
    return replace(
        some[0],
        summary=replace(some[0].summary, mean_ns=math.fsum(one.latency_ns for one in some) / len(some)),
        undisturbed_ns=math.fsum(quiet) / len(quiet) if len(quiet) == len(some) else None,
    )


def _measurement(
    key: str, points: Mapping[int, Measurement], between: tuple[int, int], size: int, state: str
) -> Measurement:
    """What stands for the measurement of a brick: as uncertain as the less certain of its neighbours, without samples.

    Its own uncertainty is none of the error of reading it, which the model's interval has from leaving sizes out.
    """
    neighbours = [points[at] for at in between]
    nearer = min(zip(between, neighbours, strict=True), key=lambda one: abs(math.log(one[0] / size)))[1]
    mean_ns = _at(size, {at: one.latency_ns for at, one in points.items()})
    assert mean_ns is not None  # noqa: S101  # it is known on both sides
    share = max(one.half_ns / max(_LEAST_NS, abs(one.latency_ns)) for one in neighbours)
    return replace(
        nearer,
        id=f"read {key} {state} {nearer.variant} {size}",
        key=key,
        conditions=replace(nearer.conditions, cache=state),
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
        undisturbed_ns=_at(size, {at: one.undisturbed_ns for at, one in points.items()}),
        quiet=None,
    )


def _at(size: int, known: Mapping[int, float | None]) -> float | None:
    """A latency at a size in ns; None where it is not known on both sides."""
    point = _curve(tuple(sorted((at, one) for at, one in known.items() if one is not None))).at(size)
    return None if point is None else point.ms * 1e6


def _left_out(reads: Sequence[_Read]) -> tuple[LeftOut, ...]:
    """Of each measured size: what was read, as measured there, and as the other sizes have it."""
    sums: defaultdict[int, list[tuple[_Read, LeftOut]]] = defaultdict(list)
    for read in reads:
        for one in read.curve.left_out:
            sums[one.length].append((read, one))
    least = _MOST * math.fsum(read.ms for read in reads)
    return tuple(
        LeftOut(size, math.fsum(one.ms for _, one in some), math.fsum(one.predicted_ms for _, one in some))
        for size, some in sorted(sums.items())
        if math.fsum(read.ms for read, _ in some) >= least
    )


def _why_not(  # noqa: PLR0917  (what ``read_between`` has at hand)
    own: _Sum,
    others: Mapping[int, _Sum],
    reads: Sequence[_Read],
    lacking: Sequence[_Lacking],
    place: str,
    size: int,
) -> str:
    """Why bricks cannot be read, in a line."""
    sizes = sorted(at for at, one in others.items() if any(one.bricks.measured(part.key) for part in one.parts))
    if not sizes:
        return f"no other size of {place.partition('=')[0]} is measured, of those that were looked at"
    if not sizes[0] < size < sizes[-1]:
        return f"{place} does not lie between sizes that are measured ({', '.join(map(str, sizes))})"
    worst = min(lacking, key=lambda one: (len(one.alike), len(one.measured)))
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
