"""The tables, for statements of SQLAlchemy Core: importing its ORM would take a tenth of a second in each command.

::

    system ─┐                       run ──┬── measurement ──< block
            ├─< combination ─< item ──────┤
    stack ──┘                    │        └── failure
                                 ├── kernel_view
                                 └── proof

A *combination* is a system, a stack and conditions. An *item* is one brick or model under one combination: the identity
of measurements. A *measurement* is open until ``finished_us`` is set; an item has at most one open one on each node.
Systems and stacks are identified by content, runs, measurements and failures by UUID; integer keys are local to a file.
An item has at most one kernel view and one row of proofs, the latest.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeEngine

APPLICATION_ID = 0x444C4252
"""``PRAGMA application_id`` of dlbricks' SQLite files: "DLBR" in ASCII."""

REVISION = "0007"
"""Schema revision that this version writes."""

EXTENDABLE = ("0006",)
"""Revisions that only lack tables: they are read as they are, and get the tables when opened for writing."""

EARLIER = ("", "0001", "0002", "0003", "0004", "0005")
"""Revisions of versions that were never released; nothing reads them."""

REVISION_TABLE = Table(
    # The layout of Alembic, which runs migrations; the name marks the database as one of dlbricks.
    "dlbricks_revision",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="dlbricks_revision_pkc"),
)

_KEY = String(64)
_UUID = String(36)
_NAME = String(64)
_Type = TypeEngine[Any] | type[TypeEngine[Any]]
_UNNAMED = text("''")
_OPEN = text("finished_us IS NULL")


# Named constraints: SQLite alters tables by copying them, and migrations find constraints by name.
METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _required(name: str, kind: _Type, *constraints: ForeignKey) -> Column[Any]:
    return Column(name, kind, *constraints, nullable=False)


def _node() -> Column[Any]:
    return Column("node", _NAME, nullable=False, server_default=_UNNAMED)


SYSTEM = Table(  # hardware (``values.System``)
    "system",
    METADATA,
    Column("key", _KEY, primary_key=True),
    _required("cpu", Text),
    _required("architecture", Text),
    _required("physical_cores", Integer),
    _required("logical_cores", Integer),
    _required("cache_bytes", JSON),
    _required("memory_gib", Integer),
    _required("isa", JSON),
    _required("gpus", JSON),
)

STACK = Table(  # backend, device, versions and options (``values.Stack``)
    "stack",
    METADATA,
    Column("key", _KEY, primary_key=True),
    _required("backend", Text),
    _required("device", Text),
    _required("versions", JSON),
    _required("options", JSON),
)

RUN = Table(  # provenance of one run (``values.Run``)
    "run",
    METADATA,
    Column("id", _UUID, primary_key=True),
    _required("started", String(40)),
    _required("tool", Text),
    _required("command", Text),
    Column("suite", Text),
    _required("system", _KEY, ForeignKey("system.key")),
    _required("stack", _KEY, ForeignKey("stack.key")),
    _required("options", JSON),
    _required("before", JSON),
    Column("after", JSON(none_as_null=True)),
    Column("finished", String(40)),
    _node(),
    Column("campaign", _NAME, nullable=False, server_default=_UNNAMED),
)

COMBINATION = Table(  # a system, a stack and conditions
    "combination",
    METADATA,
    Column("id", Integer, primary_key=True),
    _required("system", _KEY, ForeignKey("system.key")),
    _required("stack", _KEY, ForeignKey("stack.key")),
    _required("threads", Integer),
    _required("cache", String(32)),
    _required("dtype", String(32)),
    UniqueConstraint("system", "stack", "threads", "cache", "dtype"),
)

ITEM = Table(  # the identity of measurements: a subject under a combination
    "item",
    METADATA,
    Column("id", Integer, primary_key=True),
    _required("combination_id", Integer, ForeignKey("combination.id")),
    _required("subject", String(16)),
    _required("key", _KEY),
    _required("variant", String(128)),
    # In this order the constraint's index serves every query of the store: of one combination (all keys, or given
    # ones), and of several combinations for given keys.
    UniqueConstraint("combination_id", "subject", "key", "variant"),
)

MEASUREMENT = Table(  # one measurement (``values.Measurement``); statistics are NULL while it is open
    "measurement",
    METADATA,
    Column("id", _UUID, primary_key=True),
    _required("item_id", Integer, ForeignKey("item.id")),
    _required("run_id", _UUID, ForeignKey("run.id")),
    Column("finished_us", BigInteger),  # since 1970, UTC: decides which measurement of an item is the latest
    _required("unroll", Integer),
    Column("median_ns", Double),
    Column("mean_ns", Double),
    Column("trimmed_mean_ns", Double),
    Column("min_ns", Double),
    Column("p90_ns", Double),
    Column("p99_ns", Double),
    Column("ci95_low_ns", Double),
    Column("ci95_high_ns", Double),
    Column("samples", Integer),
    Column("block_medians_ns", LargeBinary),  # packed little-endian float64
    Column("verdict", String(16)),
    Column("stop", String(16)),
    Column("load_ns", BigInteger),
    Column("first_run_ns", BigInteger),
    _required("protocol", Integer),  # ``values.PROTOCOL``
    Column("footprint_bytes", BigInteger),
    Column("undisturbed_ns", Double),
    Column("quiet", Double),
    _node(),  # the run's node, here too to distinguish open measurements
    CheckConstraint(
        "finished_us IS NULL OR (median_ns IS NOT NULL AND samples IS NOT NULL AND verdict IS NOT NULL)",
        name="finished_has_statistics",
    ),
    Index("ix_measurement_latest", "item_id", "finished_us", "id"),
    Index("uq_measurement_open", "item_id", "node", unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index("ix_measurement_run_id", "run_id"),
)

BLOCK = Table(  # raw samples of one session; the primary key prevents duplicate blocks
    "block",
    METADATA,
    Column("measurement_id", _UUID, ForeignKey("measurement.id"), primary_key=True),
    Column("process", Integer, primary_key=True),
    Column("round", Integer, primary_key=True),
    _required("warmups", Integer),
    _required("samples", Integer),  # their number; ``data`` is deflated if it is shorter than 16 bytes per sample
    _required("data", LargeBinary),
    Column("visits", LargeBinary),  # time and quietness of each sample (``values.Visit``), deflated if shorter
)

FAILURE = Table(  # a brick or model that could not be measured (``values.Failure``)
    "failure",
    METADATA,
    Column("id", _UUID, primary_key=True),
    _required("item_id", Integer, ForeignKey("item.id")),
    _required("run_id", _UUID, ForeignKey("run.id")),
    _required("failed_us", BigInteger),
    _required("kind", String(16)),
    _required("reason", Text),
    Index("ix_failure_item_id", "item_id"),
)

KERNEL_VIEW = Table(  # the kernels that ran for an item (``values.KernelView``), in the latest profile
    "kernel_view",
    METADATA,
    Column("item_id", Integer, ForeignKey("item.id"), primary_key=True, autoincrement=False),
    _required("taken_us", BigInteger),  # since 1970, UTC; the later of two views of an item stays
    _required("source", Text),
    _required("executions", Integer),
    _required("wall_ns", BigInteger),
    _required("kernels", JSON),  # name, operator, place, calls and time of each
)

PROOF = Table(  # results of trials of remedies for a model (``values.Proofs``), all in one row
    "proof",
    METADATA,
    Column("item_id", Integer, ForeignKey("item.id"), primary_key=True, autoincrement=False),
    _required("taken_us", BigInteger),  # since 1970, UTC; the later of two rows of an item stays
    _required("contents", _KEY),
    _required("form", Integer),
    _required("findings", JSON),
    _required("untried", JSON),
)
