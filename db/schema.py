"""The tables, as SQLAlchemy declarative models.

::

    system ─┐                       run ──┬── measurement ──< block
            ├─< combination ─< item ──────┤
    stack ──┘                    │        └── failure
                                 └── kernel_view

A *combination* is a system, a stack and conditions. An *item* is one brick or model under one combination: the identity
of measurements. A *measurement* is open until ``finished_us`` is set; an item has at most one open one on each node.
Systems and stacks are identified by content, runs, measurements and failures by UUID; integer keys are local to a file.
An item has at most one kernel view, the latest.
"""

from __future__ import annotations

from typing import Any, ClassVar

import sqlalchemy as sql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

APPLICATION_ID = 0x444C4252
"""``PRAGMA application_id`` of dlbricks' SQLite files: "DLBR" in ASCII."""

REVISION = "0006"
"""Schema revision that this version reads and writes."""

EARLIER = ("", "0001", "0002", "0003", "0004", "0005")
"""Revisions of versions that were never released; nothing reads them."""

REVISION_TABLE = sql.Table(
    # The layout of Alembic, which runs migrations; the name marks the database as one of dlbricks.
    "dlbricks_revision",
    sql.MetaData(),
    sql.Column("version_num", sql.String(32), nullable=False),
    sql.PrimaryKeyConstraint("version_num", name="dlbricks_revision_pkc"),
)

_KEY = sql.String(64)
_UUID = sql.String(36)
_NAME = sql.String(64)
_UNNAMED = sql.text("''")
_OPEN = sql.text("finished_us IS NULL")


class Base(DeclarativeBase):
    """Root of the declarative models."""

    # Named constraints: SQLite alters tables by copying them, and migrations find constraints by name.
    metadata = sql.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: sql.JSON,
        list[Any]: sql.JSON,
        bytes: sql.LargeBinary,
        float: sql.Double,
    }


class SystemRow(Base):
    """Hardware (``values.System``)."""

    __tablename__ = "system"

    key: Mapped[str] = mapped_column(_KEY, primary_key=True)
    cpu: Mapped[str] = mapped_column(sql.Text)
    architecture: Mapped[str] = mapped_column(sql.Text)
    physical_cores: Mapped[int]
    logical_cores: Mapped[int]
    cache_bytes: Mapped[list[Any]]
    memory_gib: Mapped[int]
    isa: Mapped[list[Any]]
    gpus: Mapped[list[Any]]


class StackRow(Base):
    """Backend, device, versions and options (``values.Stack``)."""

    __tablename__ = "stack"

    key: Mapped[str] = mapped_column(_KEY, primary_key=True)
    backend: Mapped[str] = mapped_column(sql.Text)
    device: Mapped[str] = mapped_column(sql.Text)
    versions: Mapped[list[Any]]
    options: Mapped[list[Any]]


class RunRow(Base):
    """Provenance of one run (``values.Run``)."""

    __tablename__ = "run"

    id: Mapped[str] = mapped_column(_UUID, primary_key=True)
    started: Mapped[str] = mapped_column(sql.String(40))
    tool: Mapped[str] = mapped_column(sql.Text)
    command: Mapped[str] = mapped_column(sql.Text)
    suite: Mapped[str | None] = mapped_column(sql.Text)
    system: Mapped[str] = mapped_column(sql.ForeignKey("system.key"))
    stack: Mapped[str] = mapped_column(sql.ForeignKey("stack.key"))
    options: Mapped[dict[str, Any]]
    before: Mapped[dict[str, Any]]
    after: Mapped[dict[str, Any] | None] = mapped_column(sql.JSON(none_as_null=True))
    finished: Mapped[str | None] = mapped_column(sql.String(40))
    node: Mapped[str] = mapped_column(_NAME, server_default=_UNNAMED)
    campaign: Mapped[str] = mapped_column(_NAME, server_default=_UNNAMED)


class CombinationRow(Base):
    """A system, a stack and conditions."""

    __tablename__ = "combination"
    __table_args__ = (sql.UniqueConstraint("system", "stack", "threads", "cache", "dtype"),)

    id: Mapped[int] = mapped_column(sql.Integer, primary_key=True)
    system: Mapped[str] = mapped_column(sql.ForeignKey("system.key"))
    stack: Mapped[str] = mapped_column(sql.ForeignKey("stack.key"))
    threads: Mapped[int]
    cache: Mapped[str] = mapped_column(sql.String(32))
    dtype: Mapped[str] = mapped_column(sql.String(32))


class ItemRow(Base):
    """The identity of measurements: a subject under a combination."""

    __tablename__ = "item"
    # In this order the constraint's index serves every query of the store: of one combination (all keys, or given
    # ones), and of several combinations for given keys.
    __table_args__ = (sql.UniqueConstraint("combination_id", "subject", "key", "variant"),)

    id: Mapped[int] = mapped_column(sql.Integer, primary_key=True)
    combination_id: Mapped[int] = mapped_column(sql.ForeignKey("combination.id"))
    subject: Mapped[str] = mapped_column(sql.String(16))
    key: Mapped[str] = mapped_column(_KEY)
    variant: Mapped[str] = mapped_column(sql.String(128))


class MeasurementRow(Base):
    """One measurement (``values.Measurement``); statistics are NULL while it is open."""

    __tablename__ = "measurement"
    __table_args__ = (
        sql.CheckConstraint(
            "finished_us IS NULL OR (median_ns IS NOT NULL AND samples IS NOT NULL AND verdict IS NOT NULL)",
            name="finished_has_statistics",
        ),
        sql.Index("ix_measurement_latest", "item_id", "finished_us", "id"),
        sql.Index("uq_measurement_open", "item_id", "node", unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN),
        sql.Index("ix_measurement_run_id", "run_id"),
    )

    id: Mapped[str] = mapped_column(_UUID, primary_key=True)
    item_id: Mapped[int] = mapped_column(sql.ForeignKey("item.id"))
    run_id: Mapped[str] = mapped_column(sql.ForeignKey("run.id"))
    finished_us: Mapped[int | None] = mapped_column(sql.BigInteger)
    """Microseconds since 1970, UTC: decides which measurement of an item is the latest."""
    unroll: Mapped[int]
    median_ns: Mapped[float | None]
    mean_ns: Mapped[float | None]
    trimmed_mean_ns: Mapped[float | None]
    min_ns: Mapped[float | None]
    p90_ns: Mapped[float | None]
    p99_ns: Mapped[float | None]
    ci95_low_ns: Mapped[float | None]
    ci95_high_ns: Mapped[float | None]
    samples: Mapped[int | None]
    block_medians_ns: Mapped[bytes | None]
    """Packed little-endian float64."""
    verdict: Mapped[str | None] = mapped_column(sql.String(16))
    stop: Mapped[str | None] = mapped_column(sql.String(16))
    load_ns: Mapped[int | None] = mapped_column(sql.BigInteger)
    first_run_ns: Mapped[int | None] = mapped_column(sql.BigInteger)
    protocol: Mapped[int]
    """``values.PROTOCOL``."""
    footprint_bytes: Mapped[int | None] = mapped_column(sql.BigInteger)
    undisturbed_ns: Mapped[float | None]
    quiet: Mapped[float | None]
    node: Mapped[str] = mapped_column(_NAME, server_default=_UNNAMED)
    """The run's node, here too to distinguish open measurements."""


class BlockRow(Base):
    """Raw samples of one session; the primary key prevents duplicate blocks."""

    __tablename__ = "block"

    measurement_id: Mapped[str] = mapped_column(sql.ForeignKey("measurement.id"), primary_key=True)
    process: Mapped[int] = mapped_column(primary_key=True)
    round: Mapped[int] = mapped_column(primary_key=True)
    warmups: Mapped[int]
    samples: Mapped[int]
    """Number of samples; ``data`` is deflated if it is shorter than 16 bytes per sample."""
    data: Mapped[bytes]
    visits: Mapped[bytes | None]
    """Time and quietness of each sample (``values.Visit``), deflated if this is shorter."""


class FailureRow(Base):
    """A brick or model that could not be measured (``values.Failure``)."""

    __tablename__ = "failure"
    __table_args__ = (sql.Index("ix_failure_item_id", "item_id"),)

    id: Mapped[str] = mapped_column(_UUID, primary_key=True)
    item_id: Mapped[int] = mapped_column(sql.ForeignKey("item.id"))
    run_id: Mapped[str] = mapped_column(sql.ForeignKey("run.id"))
    failed_us: Mapped[int] = mapped_column(sql.BigInteger)
    kind: Mapped[str] = mapped_column(sql.String(16))
    reason: Mapped[str] = mapped_column(sql.Text)


class KernelViewRow(Base):
    """The kernels that ran for an item (``values.KernelView``), in the latest profile."""

    __tablename__ = "kernel_view"

    item_id: Mapped[int] = mapped_column(sql.ForeignKey("item.id"), primary_key=True, autoincrement=False)
    taken_us: Mapped[int] = mapped_column(sql.BigInteger)
    """Microseconds since 1970, UTC; the later of two views of an item stays."""
    source: Mapped[str] = mapped_column(sql.Text)
    executions: Mapped[int]
    wall_ns: Mapped[int] = mapped_column(sql.BigInteger)
    kernels: Mapped[list[Any]]
    """Name, operator, place, calls and time of each."""


def table_of(row: type[Base]) -> sql.Table:
    """Return the table of a declarative model, for Core statements."""
    table = row.__table__
    assert isinstance(table, sql.Table)  # noqa: S101  (declarative allows joins here, we declare none)
    return table
