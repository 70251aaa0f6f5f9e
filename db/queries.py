"""What the store can be asked: Core statements that read no more than they must."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Select, and_, func, select, true, tuple_

from .filter import Filter
from .identity import chunks
from .rows import STATISTICS, to_block, to_measurement
from .schema import (
    BlockRow,
    CombinationRow,
    FailureRow,
    ItemRow,
    MeasurementRow,
    RunRow,
    StackRow,
    table_of,
)
from .values import PROTOCOL, Block, Combination, Conditions, Failure, Measurement, Subject

__all__ = [
    "Fastest",
    "LeftOpen",
    "blocks",
    "combinations",
    "contenders",
    "failures",
    "left_open",
    "matching_items",
    "measured_keys",
    "measurements",
    "outdated_keys",
]

_stack = table_of(StackRow)
_combination = table_of(CombinationRow)
_item = table_of(ItemRow)
_measurement = table_of(MeasurementRow)
_block = table_of(BlockRow)
_run = table_of(RunRow)
_failure = table_of(FailureRow)


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """An item that an interrupted run left.

    Attributes:
        subject: What it is.
        key: Its key.
        run: The run that opened it.
        started: When that run began.
        process: Its largest process number; None where it has no block.
        variant: Name of its variant.
        protocol: How it was taken.
    """

    subject: Subject
    key: str
    run: str
    started: str
    process: int | None
    variant: str = ""
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True)
class Fastest:
    """The lowest stored latency of a brick.

    Attributes:
        key: Key of the brick.
        stack: Key of the stack that reached it.
        variant: Name of the variant.
        latency_ns: Its latency.
    """

    key: str
    stack: str
    variant: str
    latency_ns: float


@dataclass(frozen=True, slots=True)
class _Place:
    """A combination as stored."""

    id: int
    system: str
    stack: str
    conditions: Conditions


def _places(connection: Connection, wanted: Filter) -> dict[int, _Place]:
    """The stored combinations that match; there are few of them, whatever the number of measurements."""
    c = _combination.c
    query = select(c.id, c.system, c.stack, c.threads, c.cache, c.dtype)
    conditions = wanted.conditions
    equal: list[tuple[ColumnElement[Any], object]] = [
        (c.system, wanted.system), (c.stack, wanted.stack), (c.threads, wanted.threads), (c.cache, wanted.cache),
        (c.dtype, wanted.dtype),
    ]  # fmt: skip
    if conditions is not None:
        equal += [(c.threads, conditions.threads), (c.cache, conditions.cache), (c.dtype, conditions.dtype)]
    if wanted.backend is not None or wanted.device is not None:
        query = query.join(_stack, _stack.c.key == c.stack)
        equal += [(_stack.c.backend, wanted.backend), (_stack.c.device, wanted.device)]
    query = query.where(*(column == value for column, value in equal if value is not None)).order_by(c.id)
    return {
        id_: _Place(id_, system, stack, Conditions(threads=threads, cache=cache, dtype=dtype))
        for id_, system, stack, threads, cache, dtype in connection.execute(query)
    }


def _chunks(connection: Connection, keys: Collection[str] | None) -> Iterator[list[str] | None]:
    if keys is None:
        yield None
    else:
        yield from chunks(connection, keys)


def _select_items(query: Select[Any], wanted: Filter, places: Collection[int], chunk: list[str] | None) -> Select[Any]:
    query = query.where(_item.c.combination_id.in_(places))
    if wanted.subject is None:
        # Every subject by name: then the index (combination, subject, key, variant) serves here as well.
        query = query.where(_item.c.subject.in_([str(subject) for subject in Subject]))
    else:
        query = query.where(_item.c.subject == str(wanted.subject))
    if chunk is not None:
        query = query.where(_item.c.key.in_(chunk))
    if wanted.variant is not None:
        query = query.where(_item.c.variant == wanted.variant)
    return query


def matching_items(connection: Connection, wanted: Filter) -> list[int]:
    """Local keys of the items that match."""
    places = _places(connection, wanted)
    return [
        id_
        for chunk in _chunks(connection, wanted.keys)
        for id_ in connection.scalars(_select_items(select(_item.c.id), wanted, list(places), chunk))
    ]


def left_open(connection: Connection, wanted: Filter) -> list[LeftOpen]:
    """Open measurements that match, with their age and place."""
    places = _places(connection, wanted)
    query = (
        select(
            *(_item.c.subject, _item.c.key, _run.c.id, _run.c.started, func.max(_block.c.process)),
            *(_item.c.variant, _measurement.c.protocol),
        )
        .select_from(_measurement)
        .join(_item, _item.c.id == _measurement.c.item_id)
        .join(_run, _run.c.id == _measurement.c.run_id)
        .join(_block, _block.c.measurement_id == _measurement.c.id, isouter=True)
        .where(_measurement.c.finished_us.is_(None), _item.c.combination_id.in_(list(places)))
        .group_by(_measurement.c.id, _item.c.subject, _item.c.key, _item.c.variant, _run.c.id, _run.c.started)
    )
    if wanted.variant is not None:
        query = query.where(_item.c.variant == wanted.variant)
    if wanted.node is not None:
        query = query.where(_measurement.c.node == wanted.node)
    return [LeftOpen(Subject(row[0]), *row[1:]) for row in connection.execute(query)]


def _finished(table: FromClause, wanted: Filter) -> ColumnElement[bool]:
    """That a measurement is finished, and was taken by the protocol, in the time and on the node that are wanted."""
    c = table.c
    return and_(
        c.finished_us.is_not(None) if wanted.since_us is None else c.finished_us >= wanted.since_us,
        *([] if wanted.protocol is None else [c.protocol == wanted.protocol]),
        *([] if wanted.node is None else [c.node == wanted.node]),
    )


def _taken(connection: Connection, wanted: Filter, *, latest: bool) -> tuple[FromClause, ColumnElement[bool]]:
    """What to join with an item for its wanted measurements, and on what.

    The newest is the first of its item in the index ``ix_measurement_latest``. PostgreSQL takes the row from there
    where it is told to (``LATERAL``); where it is asked for the row of that id, it reads the whole table.

    Args:
        connection: To what.
        wanted: Which.
        latest: Only the newest of them.
    """
    if not latest:
        return _measurement, and_(_measurement.c.item_id == _item.c.id, _finished(_measurement, wanted))
    newer = _measurement.alias("newer")
    newest = select(newer).where(newer.c.item_id == _item.c.id, _finished(newer, wanted))
    newest = newest.order_by(newer.c.finished_us.desc(), newer.c.id.desc()).limit(1)
    if connection.dialect.name == "postgresql":
        return newest.lateral("latest"), true()
    first = newest.with_only_columns(newer.c.id).scalar_subquery()
    return _measurement, and_(_measurement.c.item_id == _item.c.id, _measurement.c.id == first)


def measurements(connection: Connection, wanted: Filter, *, latest: bool) -> list[Measurement]:
    """Finished measurements, by key, combination and time; without raw samples.

    Args:
        connection: An open connection.
        wanted: Which.
        latest: Only the newest of each item.
    """
    places = _places(connection, wanted)
    if not places:
        return []
    item, (taken, on) = _item.c, _taken(connection, wanted, latest=latest)
    said = [taken.c[column.name] for column in STATISTICS]
    query = select(item.combination_id, item.subject, item.key, item.variant, *said).select_from(_item).join(taken, on)
    query = query.order_by(item.key, item.combination_id, item.variant, taken.c.finished_us, taken.c.id)
    found: list[Measurement] = []
    for chunk in _chunks(connection, wanted.keys):
        for row in connection.execute(_select_items(query, wanted, list(places), chunk)):
            place = places[row[0]]
            found.append(
                to_measurement(
                    row[4:], subject=Subject(row[1]), key=row[2], system=place.system, stack=place.stack,
                    conditions=place.conditions, variant=row[3],
                )
            )  # fmt: skip
    return found


def blocks(connection: Connection, measurements: Collection[str]) -> dict[str, list[Block]]:
    """Raw samples of measurements by their ids, each in (process, round) order; those without are absent."""
    c = _block.c
    query = select(c.measurement_id, c.process, c.round, c.warmups, c.samples, c.data, c.visits)
    query = query.order_by(c.measurement_id, c.process, c.round)
    found: dict[str, list[Block]] = {}
    for chunk in chunks(connection, measurements):
        for id_, *row in connection.execute(query.where(c.measurement_id.in_(chunk))):
            found.setdefault(id_, []).append(to_block(row))
    return found


def contenders(
    connection: Connection, wanted: Filter, *, without: Collection[str] = (), parts: Collection[str] = (),
    reach: float = 1.0, most: int | None = None,
) -> dict[str, list[Fastest]]:  # fmt: skip
    """Per key the latest measurements of up to ``reach`` times the lowest latency, the lowest first; ``most`` at most.

    Over everything that ``wanted`` leaves open. Neither stacks whose keys are in ``without`` nor variants in ``parts``
    count.
    """
    places = {id_: place for id_, place in _places(connection, wanted).items() if place.stack not in without}
    newest, on = _taken(connection, wanted, latest=True)
    mean_ns = newest.c.mean_ns
    place = func.row_number().over(partition_by=_item.c.key, order_by=(mean_ns, _item.c.id)).label("place")
    ranked = (
        select(_item.c.key, _item.c.combination_id, _item.c.variant, mean_ns, place)
        .select_from(_item)
        .join(newest, on)
        .where(_item.c.variant.not_in(parts))
    )
    found: dict[str, list[Fastest]] = {}
    for chunk in _chunks(connection, wanted.keys):
        c = _select_items(ranked, wanted, list(places), chunk).subquery().c
        query = select(c.key, c.combination_id, c.variant, c.mean_ns).order_by(c.key, c.place)
        # Of many that compete few are wanted: what is left out here is not sent.
        query = query if most is None else query.where(c.place <= most)
        for key, where, variant, latency_ns in connection.execute(query):
            known = found.setdefault(key, [])
            if not known or latency_ns <= reach * known[0].latency_ns:
                known.append(Fastest(key, places[where].stack, variant, latency_ns))
    return found


def _by(run: ColumnElement[str], wanted: Filter) -> list[ColumnElement[bool]]:
    """That a run is one of the node that was asked for; nothing where none was."""
    return [] if wanted.node is None else [run.in_(select(_run.c.id).where(_run.c.node == wanted.node))]


def failures(connection: Connection, wanted: Filter) -> list[Failure]:
    """The newest failure of each item, unless a measurement was finished after it; of one node where that is asked."""
    places = _places(connection, wanted)
    item, failure = _item.c, _failure.c
    later, newer = _failure.alias("later"), _measurement.alias("newer")
    columns = (item.combination_id, item.subject, item.key, item.variant, failure.id, failure.run_id)
    query = (
        select(*columns, failure.kind, failure.reason)
        .join(_failure, failure.item_id == item.id)
        .where(
            ~select(later.c.id)
            .where(
                later.c.item_id == item.id,
                *_by(later.c.run_id, wanted),
                tuple_(later.c.failed_us, later.c.id) > tuple_(failure.failed_us, failure.id),
            )
            .exists(),
            ~select(newer.c.id)
            .where(newer.c.item_id == item.id, newer.c.finished_us > failure.failed_us, *_by(newer.c.run_id, wanted))
            .exists(),
            *_by(failure.run_id, wanted),
            *([] if wanted.since_us is None else [failure.failed_us >= wanted.since_us]),
        )
        .order_by(item.key, item.combination_id, item.variant)
    )
    found: list[Failure] = []
    for chunk in _chunks(connection, wanted.keys):
        for place_id, subject, key, variant, id_, run, kind, reason in connection.execute(
            _select_items(query, wanted, list(places), chunk)
        ):
            place = places[place_id]
            found.append(
                Failure(
                    id=id_, run=run, subject=Subject(subject), key=key, system=place.system, stack=place.stack,
                    conditions=place.conditions, kind=kind, reason=reason, variant=variant,
                )
            )  # fmt: skip
    return found


def combinations(connection: Connection, wanted: Filter) -> list[Combination]:
    """Under what something is stored, with the number of measured items; those without any are left out."""
    places = _places(connection, wanted)
    # An item is counted once, however often it was measured.
    query = select(_item.c.combination_id, func.count()).where(_measured(_finished(_measurement, wanted)))
    query = query.group_by(_item.c.combination_id)
    counts: dict[int, int] = {}
    for chunk in _chunks(connection, wanted.keys):
        for place, count in connection.execute(_select_items(query, wanted, list(places), chunk)):
            counts[place] = counts.get(place, 0) + count
    return [
        Combination(system=place.system, stack=place.stack, conditions=place.conditions, count=counts[id_])
        for id_, place in places.items()
        if id_ in counts
    ]


def measured_keys(connection: Connection, wanted: Filter) -> set[str]:
    """Keys that have a finished measurement."""
    return _keys(connection, wanted, _finished(_measurement, wanted))


def outdated_keys(connection: Connection, wanted: Filter) -> set[str]:
    """Keys that have a finished measurement of an earlier protocol."""
    c = _measurement.c
    return _keys(connection, wanted, and_(c.finished_us.is_not(None), c.protocol < PROTOCOL))


def _measured(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """That an item has a measurement of which something holds."""
    return select(_measurement.c.id).where(_measurement.c.item_id == _item.c.id, condition).exists()


def _keys(connection: Connection, wanted: Filter, condition: ColumnElement[bool]) -> set[str]:
    query = select(_item.c.key).distinct().where(_measured(condition))
    places = list(_places(connection, wanted))
    return {
        key
        for chunk in _chunks(connection, wanted.keys)
        for key in connection.scalars(_select_items(query, wanted, places, chunk))
    }
