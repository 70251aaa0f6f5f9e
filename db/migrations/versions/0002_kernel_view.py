"""The kernels that ran for an item."""

from __future__ import annotations

from alembic import op
from sqlalchemy import JSON, BigInteger, Column, ForeignKeyConstraint, Integer, PrimaryKeyConstraint, Text

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table of kernel views."""
    op.create_table(
        "kernel_view",
        Column("item_id", Integer(), autoincrement=False, nullable=False),
        Column("taken_us", BigInteger(), nullable=False),
        Column("source", Text(), nullable=False),
        Column("executions", Integer(), nullable=False),
        Column("wall_ns", BigInteger(), nullable=False),
        Column("kernels", JSON(), nullable=False),
        ForeignKeyConstraint(["item_id"], ["item.id"], name=op.f("fk_kernel_view_item_id_item")),
        PrimaryKeyConstraint("item_id", name=op.f("pk_kernel_view")),
    )
