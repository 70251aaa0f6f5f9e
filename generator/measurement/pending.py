"""What of the items must be measured, what is stored already, and what failed before."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ...db.filter import Filter
from ...db.store import Store
from ...db.values import Conditions, Failure, Measurement, Verdict
from ...errors import UsageError
from .item import Item

__all__ = ["AGAIN", "Selection", "check_again", "finished", "select"]

AGAIN = ("noisy", "failed", "all")
"""What can be asked to be measured again."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Items by what is to be done with them.

    Attributes:
        pending: To be measured.
        reused: Finished measurements that serve, by item.
        failed: Stored failures that are not tried again.
        broken: How many were to be measured, and cannot be read.
    """

    pending: tuple[Item, ...]
    reused: tuple[Measurement, ...]
    failed: tuple[Failure, ...]
    broken: int = 0

    def without(self, keys: Collection[str]) -> Selection:
        """The same where some cannot be read."""
        kept = tuple(item for item in self.pending if item.key not in keys)
        return replace(self, pending=kept, broken=len(self.pending) - len(kept))

    def among(self, items: Collection[Item]) -> Selection:
        """The same where only these are still to be measured."""
        return replace(self, pending=tuple(item for item in self.pending if item in items))


def check_again(again: Collection[str], since: datetime | None = None) -> None:
    """Raise ``UsageError`` for anything but the names in ``AGAIN``, and for a time that bounds nothing."""
    unknown = sorted(set(again) - set(AGAIN))
    if unknown:
        raise UsageError(f"cannot measure {', '.join(unknown)} again", remedy=f"use {', '.join(AGAIN)}")
    if since is not None and not again:
        raise UsageError(
            "since bounds what is measured again, and nothing is to be", remedy=f"add again: {', '.join(AGAIN)}"
        )
    if since is not None and since.astimezone(UTC) > datetime.now(UTC):
        raise UsageError(
            f"nothing was measured since {since.isoformat()}: that is yet to come", remedy="name a past one"
        )


def select(
    items: Sequence[Item],
    *,
    store: Store,
    system: str,
    stack: str,
    conditions: Conditions,
    again: Collection[str] = (),
    since: datetime | None = None,
) -> Selection:
    """Split items (all of one subject) by what the store holds about them, each in its own cache state and variant.

    Args:
        items: Bricks, or models.
        store: The database.
        system: Key of this system.
        stack: Key of the stack.
        conditions: Threads, cache state, precision.
        again: ``noisy`` measures again what is not stable, ``failed`` what failed, ``all`` everything.
        since: Of these only what was measured, or failed, before that time.
    """
    check_again(again, since)
    if not items or ("all" in again and since is None):
        return Selection(tuple(items), (), ())
    parts = [
        _select(members, store=store, system=system, stack=stack, conditions=here, again=again, since=since)
        for here, members in _alike(items, conditions)
    ]
    return Selection(
        pending=tuple(item for part in parts for item in part.pending),
        reused=tuple(found for part in parts for found in part.reused),
        failed=tuple(failure for part in parts for failure in part.failed),
    )


def finished(items: Sequence[Item], *, store: Store, system: str, stack: str, conditions: Conditions) -> list[Item]:
    """Items (all of one subject) of which the store holds a finished measurement, also where they are begun again.

    Args:
        items: Bricks, or models; each in its own cache state and variant.
        store: The database.
        system: Key of this system.
        stack: Key of the stack.
        conditions: Threads, cache state, precision.
    """
    found: list[Item] = []
    for here, members in _alike(items, conditions):
        where = _of(members, system, stack, here)
        keys = {entry.key for entry in store.measurements(where)}
        found += [item for item in members if item.key in keys]
    return found


def _of(items: Sequence[Item], system: str, stack: str, conditions: Conditions) -> Filter:
    """What is stored of items of one subject and variant."""
    return Filter(items[0].subject, [item.key for item in items], system, stack, conditions, variant=items[0].variant)


def _alike(items: Sequence[Item], conditions: Conditions) -> Iterator[tuple[Conditions, list[Item]]]:
    """Items by cache state and variant, with the conditions that they are measured under."""
    for cache, variant in sorted({(item.cache or conditions.cache, item.variant) for item in items}):
        members = [item for item in items if (item.cache or conditions.cache, item.variant) == (cache, variant)]
        yield replace(conditions, cache=cache), members


def _select(
    items: Sequence[Item],
    *,
    store: Store,
    system: str,
    stack: str,
    conditions: Conditions,
    again: Collection[str],
    since: datetime | None,
) -> Selection:
    """The same for items of one cache state and variant."""
    keys = [item.key for item in items]
    where = _of(items, system, stack, conditions)
    found = [] if "all" in again else store.measurements(where)
    good = {entry.key: entry for entry in found if "noisy" not in again or entry.summary.verdict is Verdict.STABLE}
    stood = [] if {"failed", "all"} & set(again) else store.failures(where)
    if since is not None:
        since_us = round(since.timestamp() * 1e6)
        good |= {entry.key: entry for entry in store.measurements(where, since_us=since_us)}
        stood += store.failures(where, since_us=since_us)
    failures = {entry.key: entry for entry in stood}
    return Selection(
        pending=tuple(item for item in items if item.key not in good and item.key not in failures),
        reused=tuple(good[key] for key in keys if key in good and key not in failures),
        failed=tuple(failures[key] for key in keys if key in failures),
    )
