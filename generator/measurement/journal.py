"""What a run writes: every block as it comes, every result and every failure, each in one commit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

from ...db.queries import LeftOpen
from ...db.store import Store
from ...db.values import Block, Conditions, Failure, Measurement, Run, Stop, Subject
from ...errors import BackendError, DlbricksError, UnsupportedBrick, WorkerOutOfMemory, WorkerTimeout
from ..network.reference import REFERENCE
from .costs import RunCosts
from .item import Item
from .sampling.statistics import MIN_SAMPLES, block_values, summarise

__all__ = ["Journal"]

_SAME_MOMENT = timedelta(hours=1)
"""Machines drift: samples of a run that began longer ago are not pooled with new ones."""


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
        self._reference: dict[tuple[int, int], float] = {}

    def take_up(self, reference: Item, items: Sequence[Item]) -> int:
        """Take up what interrupted runs left under these conditions.

        What a run left that began more than an hour ago is no part of today's measurements: where it has enough
        samples it becomes a measurement of its own, of that run, and the item is begun anew. The reference network
        goes on as long as an open item may want its first blocks.

        Returns:
            The largest process number in use, by items of whatever suite, so that a number and a round mean one
            moment; -1 where nothing is open.
        """
        known = {(item.subject, item.key, self._of(item).cache, item.variant): item for item in (reference, *items)}
        left: list[tuple[LeftOpen, str]] = []
        with self._costs.spend("store_s"):
            for cache in sorted({cache for _, _, cache, _ in known}):
                conditions = replace(self._conditions, cache=cache)
                found = self._store.left_open(self._run.system, self._run.stack, conditions)
                left += [(entry, cache) for entry in found]
        # The reference comes first: what is closed wants its times.
        left.sort(key=lambda entry: known.get(_identity(*entry)) is not reference)
        wanted = False
        for entry, cache in left:
            item = known.get(_identity(entry, cache))
            if item is None:
                item = Item(
                    entry.subject,
                    entry.key,
                    label=entry.key,
                    path=Path(entry.key),
                    variant=entry.variant,
                    cache=cache,
                )
            self.resume(item)
            enough = sum(len(block.samples) for block in item.blocks) >= MIN_SAMPLES
            if item is not reference and enough and self._stale(entry):
                self._close(item, entry.run)
            wanted |= item.subject is not Subject.REFERENCE and bool(item.blocks)
        for entry, cache in left:
            item = known.get(_identity(entry, cache))
            if item is not None and item.subject is Subject.REFERENCE and (self._stale(entry) or not wanted):
                self._close(item, entry.run)
        return max((entry.process for entry, _ in left if entry.process is not None), default=-1)

    def _of(self, item: Item) -> Conditions:
        """The conditions that an item is measured under."""
        return self._conditions if item.cache is None else replace(self._conditions, cache=item.cache)

    def _stale(self, entry: LeftOpen) -> bool:
        age = datetime.fromisoformat(self._run.started) - datetime.fromisoformat(entry.started)
        return age > _SAME_MOMENT

    def resume(self, item: Item) -> None:
        """Take up the blocks that an interrupted run left of an item, if any."""
        with self._costs.spend("store_s"):
            found = self._store.open_item(
                item.subject, item.key, self._run.system, self._run.stack, self._of(item), item.variant
            )
        if found is not None:
            item.measurement, item.unroll, item.blocks = found
            if item.label == REFERENCE:
                for block in item.blocks:
                    self._note_reference(block, item.unroll)

    def _close(self, item: Item, run: str) -> None:
        """End what an interrupted run left of an item, and begin it anew: its samples stay, as a measurement."""
        if item.measurement is None:
            return
        if item.blocks:
            self.finish(item, Stop.BUDGET, run=run)
        else:
            with self._costs.spend("store_s"):
                self._store.discard(item.measurement)
        item.measurement, item.blocks, item.result = None, [], None

    def commit(self, item: Item, block: Block) -> None:
        """Store a block before anything else is asked of the worker; opens the item with its first block."""
        with self._costs.spend("store_s"):
            if item.measurement is None:
                identity = str(uuid.uuid4())
                self._store.begin(
                    identity,
                    self._run.id,
                    item.subject,
                    item.key,
                    self._run.system,
                    self._run.stack,
                    self._of(item),
                    item.unroll,
                    item.variant,
                )
                item.measurement = identity
            self._store.add_block(item.measurement, block)
        item.blocks.append(block)
        if item.label == REFERENCE:  # not just its subject: the overhead network has the same
            self._note_reference(block, item.unroll)

    def finish(self, item: Item, stop: Stop, *, run: str | None = None) -> None:
        """Compute the statistics of an item and close it, as a measurement of this run unless told otherwise."""
        assert item.measurement is not None  # noqa: S101  # it has blocks
        with self._costs.spend("statistics_s"):
            summary = summarise(item.blocks, item.unroll)
            item.result = Measurement(
                id=item.measurement,
                run=run or self._run.id,
                subject=item.subject,
                key=item.key,
                system=self._run.system,
                stack=self._run.stack,
                conditions=self._of(item),
                unroll=item.unroll,
                median_ns=summary.median_ns,
                mean_ns=summary.mean_ns,
                trimmed_mean_ns=summary.trimmed_mean_ns,
                min_ns=summary.min_ns,
                p90_ns=summary.p90_ns,
                p99_ns=summary.p99_ns,
                ci95_ns=summary.ci95_ns,
                samples=summary.samples,
                block_medians_ns=summary.block_medians_ns,
                verdict=summary.verdict,
                stop=stop,
                load_ns=item.load_ns,
                first_run_ns=item.first_run_ns,
                reference_ns=self._reference_of(item),
                variant=item.variant,
            )
        with self._costs.spend("store_s"):
            self._store.finish(item.result)

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

    def _note_reference(self, block: Block, unroll: int) -> None:
        self._reference[block.process, block.round] = float(median(block_values([block], unroll)[0]))

    def _reference_of(self, item: Item) -> float | None:
        """Median of the reference network over the processes and rounds of an item."""
        moments = {(block.process, block.round) for block in item.blocks}
        values = [self._reference[moment] for moment in moments if moment in self._reference]
        return median(values) if values else None


def _identity(entry: LeftOpen, cache: str) -> tuple[Subject, str, str, str]:
    return entry.subject, entry.key, cache, entry.variant


def _kind(error: DlbricksError) -> str:
    """The stored kind of a failure."""
    kinds: tuple[tuple[type[DlbricksError], str], ...] = (
        (UnsupportedBrick, "unsupported"),
        (BackendError, "error"),
        (WorkerTimeout, "timeout"),
        (WorkerOutOfMemory, "memory"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), "crashed")
