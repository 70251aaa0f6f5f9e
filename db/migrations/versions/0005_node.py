"""On which node, and in which campaign, a run measured."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, String, text

revision = "0005"
down_revision = "0004"

_OPEN = text("finished_us IS NULL")
_UNNAMED = text("''")


def upgrade() -> None:
    """Add the columns, and let each node have an open measurement of an item; what is stored is of no named node."""
    op.add_column("run", Column("node", String(length=64), nullable=False, server_default=_UNNAMED))
    op.add_column("run", Column("campaign", String(length=64), nullable=False, server_default=_UNNAMED))
    op.add_column("measurement", Column("node", String(length=64), nullable=False, server_default=_UNNAMED))
    op.drop_index("uq_measurement_open", "measurement")
    op.create_index(
        "uq_measurement_open",
        "measurement",
        ["item_id", "node"],
        unique=True,
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )
