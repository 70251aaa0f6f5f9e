"""The first schema.

Alembic executes this file by its path. Every table is spelled out, so that it stays as it is when ``db.schema``
moves on.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
    text,
)

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "stack",
        Column("key", String(length=64), nullable=False),
        Column("backend", Text(), nullable=False),
        Column("device", Text(), nullable=False),
        Column("versions", JSON(), nullable=False),
        Column("options", JSON(), nullable=False),
        PrimaryKeyConstraint("key", name=op.f("pk_stack")),
    )
    op.create_table(
        "system",
        Column("key", String(length=64), nullable=False),
        Column("cpu", Text(), nullable=False),
        Column("architecture", Text(), nullable=False),
        Column("physical_cores", Integer(), nullable=False),
        Column("logical_cores", Integer(), nullable=False),
        Column("cache_bytes", JSON(), nullable=False),
        Column("memory_gib", Integer(), nullable=False),
        Column("isa", JSON(), nullable=False),
        Column("gpus", JSON(), nullable=False),
        PrimaryKeyConstraint("key", name=op.f("pk_system")),
    )
    op.create_table(
        "combination",
        Column("id", Integer(), nullable=False),
        Column("system", String(length=64), nullable=False),
        Column("stack", String(length=64), nullable=False),
        Column("threads", Integer(), nullable=False),
        Column("cache", String(length=32), nullable=False),
        Column("dtype", String(length=32), nullable=False),
        ForeignKeyConstraint(["stack"], ["stack.key"], name=op.f("fk_combination_stack_stack")),
        ForeignKeyConstraint(["system"], ["system.key"], name=op.f("fk_combination_system_system")),
        PrimaryKeyConstraint("id", name=op.f("pk_combination")),
        UniqueConstraint(
            "system", "stack", "threads", "cache", "dtype", name=op.f("uq_combination_system_stack_threads_cache_dtype")
        ),
    )
    op.create_table(
        "run",
        Column("id", String(length=36), nullable=False),
        Column("started", String(length=40), nullable=False),
        Column("tool", Text(), nullable=False),
        Column("command", Text(), nullable=False),
        Column("suite", Text(), nullable=True),
        Column("system", String(length=64), nullable=False),
        Column("stack", String(length=64), nullable=False),
        Column("options", JSON(), nullable=False),
        Column("before", JSON(), nullable=False),
        Column("after", JSON(none_as_null=True), nullable=True),
        Column("finished", String(length=40), nullable=True),
        ForeignKeyConstraint(["stack"], ["stack.key"], name=op.f("fk_run_stack_stack")),
        ForeignKeyConstraint(["system"], ["system.key"], name=op.f("fk_run_system_system")),
        PrimaryKeyConstraint("id", name=op.f("pk_run")),
    )
    op.create_table(
        "item",
        Column("id", Integer(), nullable=False),
        Column("combination_id", Integer(), nullable=False),
        Column("subject", String(length=16), nullable=False),
        Column("key", String(length=64), nullable=False),
        Column("variant", String(length=128), nullable=False),
        ForeignKeyConstraint(["combination_id"], ["combination.id"], name=op.f("fk_item_combination_id_combination")),
        PrimaryKeyConstraint("id", name=op.f("pk_item")),
        UniqueConstraint(
            "combination_id", "subject", "key", "variant", name=op.f("uq_item_combination_id_subject_key_variant")
        ),
    )
    op.create_table(
        "failure",
        Column("id", String(length=36), nullable=False),
        Column("item_id", Integer(), nullable=False),
        Column("run_id", String(length=36), nullable=False),
        Column("failed_us", BigInteger(), nullable=False),
        Column("kind", String(length=16), nullable=False),
        Column("reason", Text(), nullable=False),
        ForeignKeyConstraint(["item_id"], ["item.id"], name=op.f("fk_failure_item_id_item")),
        ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_failure_run_id_run")),
        PrimaryKeyConstraint("id", name=op.f("pk_failure")),
    )
    op.create_index("ix_failure_item_id", "failure", ["item_id"])

    op.create_table(
        "measurement",
        Column("id", String(length=36), nullable=False),
        Column("item_id", Integer(), nullable=False),
        Column("run_id", String(length=36), nullable=False),
        Column("finished_us", BigInteger(), nullable=True),
        Column("unroll", Integer(), nullable=False),
        Column("median_ns", Double(), nullable=True),
        Column("mean_ns", Double(), nullable=True),
        Column("trimmed_mean_ns", Double(), nullable=True),
        Column("min_ns", Double(), nullable=True),
        Column("p90_ns", Double(), nullable=True),
        Column("p99_ns", Double(), nullable=True),
        Column("ci95_low_ns", Double(), nullable=True),
        Column("ci95_high_ns", Double(), nullable=True),
        Column("samples", Integer(), nullable=True),
        Column("block_medians_ns", LargeBinary(), nullable=True),
        Column("verdict", String(length=16), nullable=True),
        Column("stop", String(length=16), nullable=True),
        Column("load_ns", BigInteger(), nullable=True),
        Column("first_run_ns", BigInteger(), nullable=True),
        Column("reference_ns", Double(), nullable=True),
        CheckConstraint(
            "finished_us IS NULL OR (median_ns IS NOT NULL AND samples IS NOT NULL AND verdict IS NOT NULL)",
            name=op.f("ck_measurement_finished_has_statistics"),
        ),
        ForeignKeyConstraint(["item_id"], ["item.id"], name=op.f("fk_measurement_item_id_item")),
        ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_measurement_run_id_run")),
        PrimaryKeyConstraint("id", name=op.f("pk_measurement")),
    )
    op.create_index("ix_measurement_latest", "measurement", ["item_id", "finished_us", "id"])
    op.create_index("ix_measurement_run_id", "measurement", ["run_id"])
    op.create_index(
        "uq_measurement_open",
        "measurement",
        ["item_id"],
        unique=True,
        sqlite_where=text("finished_us IS NULL"),
        postgresql_where=text("finished_us IS NULL"),
    )

    op.create_table(
        "block",
        Column("measurement_id", String(length=36), nullable=False),
        Column("process", Integer(), nullable=False),
        Column("round", Integer(), nullable=False),
        Column("warmups", Integer(), nullable=False),
        Column("samples", Integer(), nullable=False),
        Column("data", LargeBinary(), nullable=False),
        ForeignKeyConstraint(["measurement_id"], ["measurement.id"], name=op.f("fk_block_measurement_id_measurement")),
        PrimaryKeyConstraint("measurement_id", "process", "round", name=op.f("pk_block")),
    )
