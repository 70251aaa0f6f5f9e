"""Copy what one database holds into another; merge and export are two uses of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Table, bindparam, exists, insert, or_, select, update

from . import contents
from .identity import CHUNK, Identity, item_ids, put_stack_row, put_system_row
from .kernel_views import put_view
from .rows import stack_row, system_row
from .schema import BlockRow, CombinationRow, FailureRow, ItemRow, KernelViewRow, MeasurementRow, RunRow, table_of
from .values import Conditions, Subject

__all__ = ["Policy", "Transferred", "transfer"]

_combination, _item, _measurement, _block, _failure, _run = map(
    table_of, (CombinationRow, ItemRow, MeasurementRow, BlockRow, FailureRow, RunRow)
)
_view = table_of(KernelViewRow)
_Row = dict[str, Any]


class Policy:
    """What is copied; this one copies everything that is finished, as it is."""

    subjects: tuple[Subject, ...] = tuple(Subject)

    def run(self, row: _Row) -> _Row:
        """The run as it is to be stored."""
        return row

    def failure(self, row: _Row) -> _Row:
        """The failure as it is to be stored."""
        return row

    def view(self, row: _Row) -> _Row:
        """The kernel view as it is to be stored."""
        return row


@dataclass(frozen=True, slots=True)
class Transferred:
    """Rows that were new to the target.

    Attributes:
        systems: Systems.
        stacks: Stacks.
        runs: Runs.
        measurements: Finished measurements.
        blocks: Their blocks of raw samples.
        failures: Failures.
        kernel_views: Kernel views, those included that took the place of an older one.
    """

    systems: int = 0
    stacks: int = 0
    runs: int = 0
    measurements: int = 0
    blocks: int = 0
    failures: int = 0
    kernel_views: int = 0


def transfer(source: Connection, target: Connection, policy: Policy | None = None) -> Transferred:
    """Copy finished measurements, failures and all that they refer to, leaving out what the target has.

    Systems and stacks are the same where their content is (their keys are recomputed, so that an edited file cannot
    pass one machine off as another), runs, measurements and failures where their UUID is. What the target holds is
    never changed, but for a run that had not ended there and has ended here, and a kernel view that is older than the
    one here. Open items stay behind: only the machine that began one can continue it.

    Args:
        source: Connection to read from.
        target: Connection inside a writing transaction.
        policy: What to copy, and what to strip.
    """
    policy = policy or Policy()
    done = Transferred(systems=_systems(source, target), stacks=_stacks(source, target))
    done = replace(done, runs=_runs(source, target, policy))
    for rows in _new_rows(source, target, _measurement, policy.subjects):
        ids = [row["id"] for row in rows]
        blocks = [
            dict(row) for row in source.execute(select(_block).where(_block.c.measurement_id.in_(ids))).mappings()
        ]
        _insert(target, _measurement, rows)
        _insert(target, _block, blocks)
        done = replace(done, measurements=done.measurements + len(rows), blocks=done.blocks + len(blocks))
    for rows in _new_rows(source, target, _failure, policy.subjects):
        _insert(target, _failure, [policy.failure(row) for row in rows])
        done = replace(done, failures=done.failures + len(rows))
    return replace(done, kernel_views=_views(source, target, policy))


def _systems(source: Connection, target: Connection) -> int:
    known = contents.systems(target)
    new = [system for key, system in contents.systems(source).items() if key not in known]
    for system in new:
        put_system_row(target, system_row(system))
    return len(new)


def _stacks(source: Connection, target: Connection) -> int:
    known = contents.stacks(target)
    new = [stack for key, stack in contents.stacks(source).items() if key not in known]
    for stack in new:
        put_stack_row(target, stack_row(stack))
    return len(new)


def _runs(source: Connection, target: Connection, policy: Policy) -> int:
    known = dict(target.execute(select(_run.c.id, _run.c.finished)).all())
    subjects = [str(subject) for subject in policy.subjects]
    used = [
        exists().where(table.c.run_id == _run.c.id, table.c.item_id == _item.c.id, _item.c.subject.in_(subjects))
        for table in (_measurement, _failure)
    ]
    query = select(_run) if set(policy.subjects) == set(Subject) else select(_run).where(or_(*used))
    rows = [policy.run(dict(row)) for row in source.execute(query).mappings()]
    _insert(target, _run, new := [row for row in rows if row["id"] not in known])
    end = update(_run).where(_run.c.id == bindparam("known")).values(after=bindparam("a"), finished=bindparam("f"))
    for row in rows:
        if row["finished"] is not None and known.get(row["id"], "") is None:
            target.execute(end, {"known": row["id"], "a": row["after"], "f": row["finished"]})
    return len(new)


def _new_rows(
    source: Connection, target: Connection, table: Table, subjects: Collection[Subject]
) -> Iterator[list[_Row]]:
    """Rows of a table that hangs on items and that the target lacks, with the target's ``item_id``, chunk by chunk."""
    places = {id_: place for id_, *place in source.execute(select(_combination))}
    columns = [column for column in table.c if column.name != "item_id"]
    names = [column.name for column in columns]
    query = (
        select(_item.c.combination_id, _item.c.subject, _item.c.key.label("item_key"), _item.c.variant, *columns)
        .join(table, table.c.item_id == _item.c.id)
        .where(_item.c.subject.in_([str(subject) for subject in subjects]))
        .order_by(table.c.id)
    )
    if table is _measurement:
        query = query.where(_measurement.c.finished_us.is_not(None))
    for chunk in source.execution_options(yield_per=CHUNK).execute(query).mappings().partitions(CHUNK):
        ids = [row["id"] for row in chunk]
        known = set(target.scalars(select(table.c.id).where(table.c.id.in_(ids))))
        new = [dict(row) for row in chunk if row["id"] not in known]
        identities = [_identity(row, places) for row in new]
        items = item_ids(target, identities)
        if new:
            yield [
                {name: row[name] for name in names} | {"item_id": items[identity]}
                for row, identity in zip(new, identities, strict=True)
            ]


def _views(source: Connection, target: Connection, policy: Policy) -> int:
    """Kernel views; of two of one item the later one stays, by the clocks of the machines that took them."""
    places = {id_: place for id_, *place in source.execute(select(_combination))}
    columns = [column for column in _view.c if column.name != "item_id"]
    query = (
        select(_item.c.combination_id, _item.c.subject, _item.c.key.label("item_key"), _item.c.variant, *columns)
        .join(_view, _view.c.item_id == _item.c.id)
        .where(_item.c.subject.in_([str(subject) for subject in policy.subjects]))
    )
    rows = source.execution_options(yield_per=CHUNK).execute(query).mappings()
    return sum(
        put_view(target, _identity(row, places), policy.view({column.name: row[column.name] for column in columns}))
        for row in map(dict, rows)
    )


def _identity(row: Mapping[str, Any], places: Mapping[int, list[Any]]) -> Identity:
    system, stack, threads, cache, dtype = places[row["combination_id"]]
    conditions = Conditions(threads=threads, cache=cache, dtype=dtype)
    return Identity(Subject(row["subject"]), row["item_key"], system, stack, conditions, row["variant"])


def _insert(target: Connection, table: Table, rows: list[_Row]) -> None:
    if rows:
        target.execute(insert(table), rows)
