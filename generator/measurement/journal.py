"""What a run writes: every session's blocks as they come, every result and every failure, each in one commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from ...db.identity import Identity
from ...db.queries import LeftOpen
from ...db.samples.statistics import MIN_SAMPLES, Baseline, summarise, undisturbed
from ...db.store import Opened, Store
from ...db.values import PROTOCOL, Block, Conditions, Failure, Measurement, Run, Stop, Visit
from ...errors import BackendError, DlbricksError, UnsupportedBrick, WorkerOutOfMemory, WorkerTimeout
from .costs import RunCosts
from .item import Item

__all__ = ["Journal"]

_SAME_MOMENT = timedelta(hours=1)
"""Machines change: visits of a run that began longer ago are not pooled with new ones."""


class Journal:
    """The store side of a session.

    Args:
        store: Open for writing.
        run: Provenance; begun already.
        conditions: Threads, cache state, precision; an item may have a cache state of its own.
        costs: Where the time of commits and statistics is booked.
    """

    def __init__(self, store: Store, run: Run, conditions: Conditions, costs: RunCosts) -> None:
        self._store = store
        self._run = run
        self._conditions = conditions
        self._costs = costs
        self._earlier = [
            known
            for one in store.runs()
            if (one.system, one.stack) == (run.system, run.stack) and (known := Baseline.of_run(one)) is not None
        ]
        self._visits: list[Visit] = []

    @property
    def baseline(self) -> Baseline | None:
        """What the probes take when it is quiet, as far as this run and earlier ones show."""
        return Baseline.of(self._visits, self._earlier)

    def resume(self, items: Sequence[Item]) -> int:
        """Resume what interrupted runs of this node left of these items, under these conditions.

        What a run left that began more than an hour ago, or that another protocol took, is no part of today's
        measurements: where it has enough samples it becomes a measurement of its own, of that run, and the item is
        begun anew.

        Returns:
            The largest process number in use, by items of whatever suite, so that a number means one moment; -1 where
            nothing is open.
        """
        known = {(item.subject, item.key, self._of(item).cache, item.variant): item for item in items}
        left: list[tuple[LeftOpen, str]] = []
        with self._costs.spend("store_s"):
            for cache in sorted({self._conditions.cache, *(cache for _, _, cache, _ in known)}):
                conditions = replace(self._conditions, cache=cache)
                found = self._store.left_open(self._run.system, self._run.stack, conditions, node=self._run.node)
                left += [(entry, cache) for entry in found]
        for entry, cache in left:
            item = known.get((entry.subject, entry.key, cache, entry.variant))
            stale = entry.protocol != PROTOCOL or self._stale(entry)
            if item is None and not stale:
                continue  # of another suite: its own run goes on with it
            if item is None:
                place = Path(entry.key)
                item = Item(entry.subject, entry.key, entry.key, place, variant=entry.variant, cache=cache)
            self._resume(item)
            if stale:
                self._close(item, entry)
        return max((entry.process for entry, _ in left if entry.process is not None), default=-1)

    def _of(self, item: Item) -> Conditions:
        """The conditions that an item is measured under."""
        return self._conditions if item.cache is None else replace(self._conditions, cache=item.cache)

    def _identity(self, item: Item) -> Identity:
        return Identity(item.subject, item.key, self._run.system, self._run.stack, self._of(item), item.variant)

    def _stale(self, entry: LeftOpen) -> bool:
        age = datetime.fromisoformat(self._run.started) - datetime.fromisoformat(entry.started)
        return age > _SAME_MOMENT

    def _resume(self, item: Item) -> None:
        with self._costs.spend("store_s"):
            found = self._store.open_item(
                *(item.subject, item.key, self._run.system, self._run.stack, self._of(item), item.variant),
                node=self._run.node,
            )
        if found is not None:
            item.measurement, item.unroll, item.blocks = found
            self._visits += [visit for block in item.blocks for visit in block.visits]

    def _close(self, item: Item, entry: LeftOpen) -> None:
        """End what an interrupted run left of an item, and begin it anew: its samples stay, as a measurement."""
        if item.measurement is None:
            return
        if item.visits >= MIN_SAMPLES:
            self.finish([item], Stop.BUDGET, run=entry.run, protocol=entry.protocol)
            item.measurement = None  # it is closed: nothing of it is to be dropped
        self.drop(item)
        item.result = None

    def commit(self, taken: Iterable[tuple[Item, Block]]) -> None:
        """Store what one session took, all or nothing, before the next one begins; opens items with their first."""
        opened: list[Opened] = []
        blocks: list[tuple[str, Block]] = []
        pairs = list(taken)
        for item, block in pairs:
            if item.measurement is None:
                item.measurement = str(uuid.uuid4())
                opened.append(Opened(item.measurement, self._run.id, self._identity(item), max(1, item.unroll)))
            blocks.append((item.measurement, block))
        try:
            with self._costs.spend("store_s"):
                self._store.add_session(opened, blocks)
        except BaseException:
            begun = {one.id for one in opened}
            for item, _ in pairs:
                if item.measurement in begun:
                    item.measurement = None
            raise
        seen: set[tuple[Visit, ...]] = set()
        for item, block in pairs:
            item.blocks.append(block)
            if block.visits not in seen:
                seen.add(block.visits)
                self._visits += block.visits

    def finish(self, items: Sequence[Item], stop: Stop, *, run: str | None = None, protocol: int = PROTOCOL) -> None:
        """Compute the statistics of items and close them, as measurements of this run unless another is given."""
        baseline = self.baseline
        with self._costs.spend("statistics_s"):
            for item in items:
                assert item.measurement is not None  # noqa: S101  # it has blocks
                unroll = max(1, item.unroll)
                quiet_ns, quiet = undisturbed(item.blocks, unroll, baseline)
                item.result = Measurement(
                    id=item.measurement,
                    run=run or self._run.id,
                    subject=item.subject,
                    key=item.key,
                    system=self._run.system,
                    stack=self._run.stack,
                    conditions=self._of(item),
                    unroll=unroll,
                    summary=summarise(item.blocks, unroll),
                    stop=stop,
                    load_ns=item.load_ns,
                    first_run_ns=item.first_run_ns,
                    variant=item.variant,
                    protocol=protocol,
                    footprint_bytes=item.footprint_bytes,
                    undisturbed_ns=quiet_ns if protocol == PROTOCOL else None,
                    quiet=quiet if protocol == PROTOCOL else None,
                )
        with self._costs.spend("store_s"):
            self._store.finish(*(item.result for item in items if item.result is not None))

    def drop(self, item: Item) -> None:
        """Drop what is open of an item."""
        if item.measurement is not None:
            with self._costs.spend("store_s"):
                self._store.discard(item.measurement)
        item.measurement, item.blocks = None, []

    def fail(self, item: Item, error: DlbricksError) -> None:
        """Store why an item cannot be measured; blocks that it has are dropped, since they are no measurement."""
        item.failure = Failure(
            id=str(uuid.uuid4()),
            run=self._run.id,
            subject=item.subject,
            key=item.key,
            system=self._run.system,
            stack=self._run.stack,
            conditions=self._of(item),
            kind=_kind(error),
            reason=str(error),
            variant=item.variant,
        )
        with self._costs.spend("store_s"):
            self._store.add_failure(item.failure, instead_of=item.measurement)
        item.measurement = None


def _kind(error: DlbricksError) -> str:
    """The stored kind of a failure."""
    kinds: tuple[tuple[type[DlbricksError], str], ...] = (
        (UnsupportedBrick, "unsupported"),
        (BackendError, "error"),
        (WorkerTimeout, "timeout"),
        (WorkerOutOfMemory, "memory"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), "crashed")
