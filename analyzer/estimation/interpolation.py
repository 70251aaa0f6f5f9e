"""Estimates at sizes that were not measured, read between sizes that were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from ...constructor.result import Estimate
from ...constructor.sweep import BATCH, interpolated, sizes_of, stem_of
from ...db import Store
from ...generator.decomposition.cutter import Cut
from ...models import ModelSource
from .estimate import explained
from .query import Query, QueryFields, asked

__all__ = ["estimate_between"]

_OCTAVES = 3
"""How far powers of two on both sides of a size are looked at, in doublings."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A model that bricks are missing for, the dimension to vary, and the same model at other sizes of it."""

    place: int
    dimension: str
    others: tuple[ModelSource, ...]


def estimate_between(
    models: Sequence[ModelSource],
    *,
    store: Store,
    query: Query | None = None,
    granularity: int = 1,
    overlap: bool = False,
    connected: bool = False,
    graph: str = "source",
    **fields: Unpack[QueryFields],
) -> list[Estimate]:
    """Estimates, those that bricks are missing for read between other sizes of the same model.

    The sizes are those of the same model among ``models``, and powers of two up to eight times as small and as large.
    The dimension is the one whose size was given, or of several the one that varies among ``models``.

    Args:
        models: As for ``estimate``, like all else here; and it raises the same.
        store: Where brick latencies are.
        query: Which of the stored measurements.
        granularity: Most layers in a sequence.
        overlap: Sequences begin at every layer.
        connected: Sequences may be weakly connected windows.
        graph: Which graph is decomposed.
        **fields: Fields of a ``Query``, in place of those of ``query``.
    """
    cut, query = Cut(granularity, overlap, connected, graph), asked(query, fields)
    found = [one for one, _ in explained(models, store=store, query=query, cut=cut)]
    wanted = [one for place in range(len(models)) if (one := _wanted(place, models, found)) is not None]
    if not wanted:
        return found
    added = {other.name: other for one in wanted for other in one.others}
    same = _same_combination(query, found)
    looked = [one for one, _ in explained([*models, *added.values()], store=store, query=same or query, cut=cut)]
    for one in wanted:
        entry = (found if same else looked)[one.place]  # where nothing is stored of them, of others something may be
        names = {other.name for other in one.others}
        others = {
            sizes_of(other)[one.dimension]: other
            for other in looked
            if other.name in names or (_varies(other, entry) == {one.dimension} and stem_of(other) == stem_of(entry))
        }
        found[one.place] = interpolated(entry, one.dimension, others)
    return found


def _same_combination(query: Query, found: Sequence[Estimate]) -> Query | None:
    """The query that only the combination matches which estimates are made from; None where there is none."""
    known = next((one for one in found if one.system is not None), None)
    if known is None:
        return None
    threads, cache, dtype = known.threads, known.cache, known.dtype
    return replace(query, system=known.system, stack=known.stack, threads=threads, cache=cache, dtype=dtype)


def _wanted(place: int, models: Sequence[ModelSource], found: Sequence[Estimate]) -> _Wanted | None:
    """None where an estimate is known, or could not be, or no size was given."""
    source, entry = models[place], found[place]
    if entry.error is not None or not entry.missing or all(one.key is None for one in entry.missing):
        return None
    varied: set[str] = set().union(
        *(_varies(other, entry) for other in found if stem_of(other) == stem_of(entry) and other.error is None)
    )
    names = varied if len(varied) == 1 else {*sizes_of(entry)}
    if len(names) != 1:
        return None
    (name,) = names
    size = sizes_of(entry)[name]
    given = {sizes_of(other).get(name) for other in found if stem_of(other) == stem_of(entry)}
    powers = [1 << power for power in range(size.bit_length() + _OCTAVES + 1)]
    near = [power for power in powers if size <= power << _OCTAVES and power <= size << _OCTAVES]
    return _Wanted(place, name, tuple(_resized(source, name, power) for power in near if power not in given))


def _varies(one: Estimate, other: Estimate) -> set[str]:
    """The dimensions whose sizes differ."""
    ours, theirs = sizes_of(one), sizes_of(other)
    return {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}


def _resized(source: ModelSource, dimension: str, size: int) -> ModelSource:
    """A model at another size, under a name that no other has."""
    name = f"{source.name}, {dimension}={size}"
    if dimension == BATCH:
        return replace(source, name=name, batch=size)
    return replace(source, name=name, dims=tuple((one, size if one == dimension else old) for one, old in source.dims))
