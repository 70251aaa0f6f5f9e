"""What models were decomposed into."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, LargeBinary, PrimaryKeyConstraint, String, Text

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the tables of model files and decompositions."""
    op.create_table(
        "model_file",
        Column("place", String(64), nullable=False),
        Column("size", BigInteger(), nullable=False),
        Column("mtime_ns", BigInteger(), nullable=False),
        Column("sha256", String(64), nullable=False),
        Column("external", Text(), nullable=False),
        PrimaryKeyConstraint("place", name=op.f("pk_model_file")),
    )
    op.create_table(
        "decomposition",
        Column("model", String(64), nullable=False),
        Column("part", String(64), nullable=False),
        Column("maker", Text(), nullable=False),
        Column("data", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("model", "part", name=op.f("pk_decomposition")),
    )
