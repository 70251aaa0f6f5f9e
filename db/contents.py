"""What a database holds in all: its systems and stacks, and how many rows of each kind."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Table, func, select

from .queries import Filter, measured_keys
from .rows import to_stack, to_system
from .schema import (
    BlockRow,
    FailureRow,
    KernelViewRow,
    MeasurementRow,
    RunRow,
    StackRow,
    SystemRow,
    table_of,
)
from .values import Stack, Subject, System

__all__ = ["counts", "stacks", "systems"]

_system, _stack, _run = map(table_of, (SystemRow, StackRow, RunRow))
_measurement, _block, _failure, _view = map(table_of, (MeasurementRow, BlockRow, FailureRow, KernelViewRow))
_finished = _measurement.c.finished_us.is_not(None)


def systems(connection: Connection) -> dict[str, System]:
    """Every system by its key."""
    return {row["key"]: to_system(dict(row)) for row in connection.execute(select(_system)).mappings()}


def stacks(connection: Connection) -> dict[str, Stack]:
    """Every stack by its key."""
    return {row["key"]: to_stack(dict(row)) for row in connection.execute(select(_stack)).mappings()}


def counts(connection: Connection) -> dict[str, int]:
    """Numbers of everything stored."""

    def count(table: Table, *where: ColumnElement[bool]) -> int:
        return int(connection.scalar(select(func.count()).select_from(table).where(*where)) or 0)

    def measured(subject: Subject) -> int:
        return len(measured_keys(connection, Filter(subject=subject, variant=None, protocol=None)))

    return {
        "systems": count(_system),
        "stacks": count(_stack),
        "runs": count(_run),
        "bricks": measured(Subject.BRICK),
        "models": measured(Subject.MODEL),
        "measurements": count(_measurement, _finished),
        "open": count(_measurement, ~_finished),
        "blocks": count(_block),
        "failures": count(_failure),
        "kernel_views": count(_view),
    }
