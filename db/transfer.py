"""Copying from one database into another, for merge and export."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, bindparam, exists, or_, select, update

from . import schema
from .identity import CHUNK, insert_new, item_ids, put_latest, stored_stacks, stored_systems
from .revision import has_proofs
from .rows import Row, checked, keyed_row, to_block, to_proofs, to_view
from .values import Conditions, Identity, Stack, Subject, System

_combination, _item, _measurement = schema.COMBINATION, schema.ITEM, schema.MEASUREMENT
_block, _failure, _run = schema.BLOCK, schema.FAILURE, schema.RUN
_view, _proof = schema.KERNEL_VIEW, schema.PROOF


class Policy:
    """The selection and conversion of copied rows; this class copies all finished results unchanged.

    A selection contains only its own systems and stacks. Kernel views and proofs belong to no run, and are left out.

    Args:
        node: Copy only measurements of this node; None for all.
        run: Copy only measurements of the run with this id; None for all.
    """

    subjects: tuple[Subject, ...] = tuple(Subject)

    def __init__(self, node: str | None = None, run: str | None = None) -> None:
        conditions = ((_run.c.node, node), (_run.c.id, run))
        self.conditions = [column == value for column, value in conditions if value is not None]

    def run(self, row: Row) -> Row:
        """Return a run as it is stored in the target."""
        return row

    def measurement(self, row: Row) -> Row:
        """Return a measurement as it is stored in the target."""
        return row

    def failure(self, row: Row) -> Row:
        """Return a failure as it is stored in the target."""
        return row

    def view(self, row: Row) -> Row:
        """Return a kernel view as it is stored in the target."""
        return row


@dataclass(frozen=True, slots=True)
class Transferred:
    """Numbers of rows that were new to the target.

    Attributes:
        systems: Systems.
        stacks: Stacks.
        runs: Runs.
        measurements: Finished measurements.
        blocks: Their blocks of raw samples.
        failures: Failures.
        kernel_views: Kernel views, including those that replaced an older one.
        proofs: Models with proofs, including those that replaced older ones.
    """

    systems: int = 0
    stacks: int = 0
    runs: int = 0
    measurements: int = 0
    blocks: int = 0
    failures: int = 0
    kernel_views: int = 0
    proofs: int = 0


def transfer(source: Connection, target: Connection, policy: Policy | None = None) -> Transferred:
    """Copy finished measurements, failures and everything that they refer to, unless the target has them.

    Systems and stacks are identified by content (their keys are recomputed, so that an edited file cannot present one
    machine as another), runs, measurements and failures by UUID. Rows of the target are changed in two cases only: a
    run that has ended since, and kernel views and proofs that are older than the source's. Open items are not copied:
    only the machine that began one can continue it.

    Args:
        source: Connection to read from.
        target: Connection inside a writing transaction.
        policy: The rows to copy, and their conversion.
    """
    policy = policy or Policy()
    subjects = [str(subject) for subject in policy.subjects]
    selected = _runs(source, policy, subjects)
    systems, stacks = (
        _add_keyed(target, table, stored, {row[table.name] for row in selected} if policy.conditions else stored)
        for table, stored in ((schema.SYSTEM, stored_systems(source)), (schema.STACK, stored_stacks(source)))
    )
    new_runs = _add_runs(target, [policy.run(row) for row in selected])
    runs = {row["id"] for row in selected}
    identities = _identities(source, policy, subjects)
    target_ids = item_ids(target, identities.values())
    items = {id_: target_ids[identity] for id_, identity in identities.items()}
    measurements = blocks = failures = 0
    whole = not policy.conditions and set(policy.subjects) == set(Subject)
    for rows in _new_rows(source, target, _measurement, items, runs, whole=whole):
        taken = _blocks(source, [row["id"] for row in rows])
        measurements += insert_new(target, _measurement, [policy.measurement(row) for row in rows])
        blocks += insert_new(target, _block, taken)
    for rows in _new_rows(source, target, _failure, items, runs, whole=whole):
        failures += insert_new(target, _failure, [policy.failure(row) for row in rows])
    views, proofs = 0, 0
    if not policy.conditions:
        views = sum(put_latest(target, _view, *view) for view in _views(source, policy, identities))
        proofs = sum(put_latest(target, _proof, *row) for row in _proofs(source, identities))
    return Transferred(systems, stacks, new_runs, measurements, blocks, failures, views, proofs)


def _add_keyed(
    target: Connection, table: Table, stored: Mapping[str, System | Stack], selected: Collection[str]
) -> int:
    rows = [keyed_row(value) for key, value in sorted(stored.items()) if key in selected]
    return insert_new(target, table, rows)


def _runs(source: Connection, policy: Policy, subjects: Collection[str]) -> list[Row]:
    """Return the selected runs."""
    used = [
        exists().where(table.c.run_id == _run.c.id, table.c.item_id == _item.c.id, _item.c.subject.in_(subjects))
        for table in (_measurement, _failure)
    ]
    query = select(_run).where(*policy.conditions)
    query = query if set(policy.subjects) == set(Subject) else query.where(or_(*used))
    return [checked(_run, row) for row in source.execute(query.order_by(_run.c.id)).mappings()]


def _add_runs(target: Connection, rows: Sequence[Row]) -> int:
    """Add runs, and end those that have ended since; return the number of new ones."""
    new = insert_new(target, _run, rows)
    going_on = set(target.scalars(select(_run.c.id).where(_run.c.finished.is_(None))))
    ended = [
        {"known": row["id"], "a": row["after"], "f": row["finished"]}
        for row in rows
        if row["finished"] is not None and row["id"] in going_on
    ]
    if ended:
        which = (_run.c.id == bindparam("known"), _run.c.finished.is_(None))
        target.execute(update(_run).where(*which).values(after=bindparam("a"), finished=bindparam("f")), ended)
    return new


def _identities(source: Connection, policy: Policy, subjects: Collection[str]) -> dict[int, Identity]:
    """Return the identities of all copied items, by the source's local key."""
    rows = [checked(_combination, row) for row in source.execute(select(_combination)).mappings()]
    places = {row.pop("id"): list(row.values()) for row in rows}
    finished = exists().where(_measurement.c.item_id == _item.c.id, _measurement.c.finished_us.is_not(None))
    tables = [_failure, _view, *([_proof] if has_proofs(source) else [])]
    failed, *others = (exists().where(table.c.item_id == _item.c.id) for table in tables)
    results = [finished, failed, *others]
    if policy.conditions:
        runs = select(_run.c.id).where(*policy.conditions)
        results = [finished.where(_measurement.c.run_id.in_(runs)), failed.where(_failure.c.run_id.in_(runs))]
    query = select(_item).where(_item.c.subject.in_(subjects), or_(*results))
    items = [checked(_item, row) for row in source.execute(query).mappings()]
    return {row["id"]: _identity(row, places) for row in items}


def _new_rows(
    source: Connection,
    target: Connection,
    table: Table,
    items: Mapping[int, int],
    runs: Collection[str],
    *,
    whole: bool,
) -> Iterator[list[Row]]:
    """Yield rows of a table with items that the target lacks, with the target's ``item_id``, in chunks.

    Raises:
        ValueError: The whole database is copied, and a row belongs to nothing in it.
    """
    query = select(table).order_by(table.c.id)
    if table is _measurement:
        query = query.where(_measurement.c.finished_us.is_not(None))
    for chunk in source.execution_options(yield_per=CHUNK).execute(query).mappings().partitions(CHUNK):
        stored_ids = set(target.scalars(select(table.c.id).where(table.c.id.in_([row["id"] for row in chunk]))))
        if orphan := next(
            (row for row in chunk if whole and not (row["item_id"] in items and row["run_id"] in runs)), None
        ):
            raise ValueError(f"{table.name} {orphan['id']!r:.40} belongs to no item or run")
        new = [
            checked(table, row) | {"item_id": items[row["item_id"]]}
            for row in chunk
            if row["id"] not in stored_ids and row["item_id"] in items and row["run_id"] in runs
        ]
        if new:
            yield new


def _blocks(source: Connection, measurements: Collection[str]) -> list[Row]:
    query = select(_block).where(_block.c.measurement_id.in_(measurements))
    ordered = query.order_by(_block.c.measurement_id, _block.c.process, _block.c.round)
    rows = [checked(_block, row) for row in source.execute(ordered).mappings()]
    for row in rows:
        to_block([row[name] for name in ("process", "round", "warmups", "samples", "data", "visits")])
    return rows


def _views(source: Connection, policy: Policy, identities: Mapping[int, Identity]) -> Iterator[tuple[Identity, Row]]:
    """Yield kernel views; of two views of an item the later one stays, by the clocks of the measuring machines."""
    for identity, row in _of_items(source, _view, identities):
        to_view(row)
        yield identity, policy.view(row)


def _proofs(source: Connection, identities: Mapping[int, Identity]) -> Iterator[tuple[Identity, Row]]:
    """Yield proofs; of two rows of an item the later one stays likewise."""
    for identity, row in _of_items(source, _proof, identities) if has_proofs(source) else ():
        to_proofs(row)
        yield identity, row


def _of_items(source: Connection, table: Table, identities: Mapping[int, Identity]) -> Iterator[tuple[Identity, Row]]:
    """Yield the row of each item in a table, without ``item_id``."""
    for row in source.execution_options(yield_per=CHUNK).execute(select(table).order_by(table.c.item_id)).mappings():
        if row["item_id"] in identities:
            columns = checked(table, row)
            yield identities[columns.pop("item_id")], columns


def _identity(row: Mapping[str, Any], places: Mapping[int, list[Any]]) -> Identity:
    system, stack, threads, cache, dtype = places[row["combination_id"]]
    conditions = Conditions(threads, cache, dtype)
    return Identity(Subject(row["subject"]), row["key"], system, stack, conditions, row["variant"])
