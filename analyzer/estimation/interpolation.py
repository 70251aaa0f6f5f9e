"""Estimates at sizes of which bricks were not measured: these are read between sizes of which they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from ...constructor.result import Estimate
from ...constructor.sweep import BATCH, sizes_of, stem_of
from ...db import Store
from ...generator.decomposition.cutter import Cut
from ...models import ModelSource
from .estimate import Explained, Relatives, explained
from .estimates import Estimates
from .query import Query, QueryFields, asked

__all__ = ["estimate_between", "explained_between"]

_OCTAVES = 3
"""How far powers of two on both sides of a size are looked at, in doublings."""

_ENOUGH = 3
"""Measured sizes among those that were asked for, around one that is not: with these no others are looked at, each of
which has to be decomposed."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A model that bricks are missing for, and the same at sizes beside those that were asked for."""

    relatives: Relatives
    added: tuple[ModelSource, ...]


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
) -> Estimates:
    """Estimates, bricks that are missing read between other sizes of the same model (``constructor.interpolation``).

    The sizes are those of the same model among ``models``, and, where fewer than three of these are measured around
    one that is not, powers of two up to eight times as small and as large.
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
    cut = Cut(granularity, overlap, connected, graph)
    found = explained_between(models, store=store, query=asked(query, fields), cut=cut)
    return Estimates(tuple(one for one, _ in found))


def explained_between(models: Sequence[ModelSource], *, store: Store, query: Query, cut: Cut) -> list[Explained]:
    """The same, each estimate with what the model was decomposed into; None where it cannot be.

    Args:
        models: As for ``estimate``, like all else here; and it raises the same.
        store: Where brick latencies are.
        query: Which of the stored measurements.
        cut: Which graph is decomposed, and how wide sequences are.
    """
    found = explained(models, store=store, query=query, cut=cut)
    entries = [one for one, _ in found]
    wanted = {
        source: one
        for source, entry in zip(models, entries, strict=True)
        if (one := _wanted(source, entry, models, entries)) is not None
    }
    if not wanted:
        return found
    # Of other sizes only what was measured under the combination that the first estimates are made from.
    query = _same_combination(query, entries) or query
    added = dict.fromkeys(source for one in wanted.values() for source in one.added)
    relatives = {source: one.relatives for source, one in wanted.items()}
    return explained([*models, *added], store=store, query=query, cut=cut, relatives=relatives)[: len(models)]


def _same_combination(query: Query, found: Sequence[Estimate]) -> Query | None:
    """The query that only the combination matches which estimates are made from; None where there is none."""
    known = next((one for one in found if one.system is not None), None)
    if known is None:
        return None
    threads, cache, dtype = known.threads, known.cache, known.dtype
    return replace(query, system=known.system, stack=known.stack, threads=threads, cache=cache, dtype=dtype)


def _wanted(
    source: ModelSource, entry: Estimate, models: Sequence[ModelSource], found: Sequence[Estimate]
) -> _Wanted | None:
    """None where an estimate is known, or could not be, or no size was given that varies."""
    if entry.error is not None or not entry.missing or all(one.key is None for one in entry.missing):
        return None
    alike = [
        (model, other)
        for model, other in zip(models, found, strict=True)
        if stem_of(other) == stem_of(entry) and other.error is None
    ]
    varied = set[str]().union(*(_varies(other, entry) for _, other in alike))
    names = varied if len(varied) == 1 else {*sizes_of(entry)}
    if len(names) != 1:
        return None
    (name,) = names
    size = sizes_of(entry)[name]
    others = {sizes_of(other)[name]: model for model, other in alike if _varies(other, entry) == {name}}
    added: dict[int, ModelSource] = {}
    measured = [sizes_of(other)[name] for _, other in alike if other.complete and _varies(other, entry) == {name}]
    if len(measured) < _ENOUGH or not min(measured) < size < max(measured):
        powers = [1 << power for power in range(size.bit_length() + _OCTAVES + 1)]
        near = [power for power in powers if size <= power << _OCTAVES and power <= size << _OCTAVES and power != size]
        added = {power: _resized(source, name, power) for power in near if power not in others}
    return _Wanted(Relatives(name, size, others | added), tuple(added.values()))


def _varies(one: Estimate, other: Estimate) -> set[str]:
    """The dimensions whose sizes differ."""
    ours, theirs = sizes_of(one), sizes_of(other)
    return {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}


def _resized(source: ModelSource, dimension: str, size: int) -> ModelSource:
    """A model at another size, under a name that no other has."""
    stem = replace(source, name=f"{source.name}, {dimension}={size}")
    if dimension == BATCH:
        return replace(stem, batch=size)
    return replace(stem, dims=tuple((one, size if one == dimension else old) for one, old in source.dims))
