"""When samples were taken, how quiet the machine was, and by which protocol."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, LargeBinary

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns; what is stored already is of the first protocol."""
    op.add_column("measurement", Column("protocol", Integer(), nullable=False, server_default="1"))
    op.add_column("measurement", Column("footprint_bytes", BigInteger()))
    op.add_column("measurement", Column("undisturbed_ns", Double()))
    op.add_column("measurement", Column("quiet", Double()))
    op.add_column("block", Column("visits", LargeBinary()))
