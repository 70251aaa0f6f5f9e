"""Bring a database of an older dlbricks up to date."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from ..errors import StoreError
from .faults import guarded
from .place import WRITING, Place, engine
from .revision import NEW, alone, check, identify, mark
from .schema import REVISION_TABLE, REVISIONS, Base

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["Upgrade", "migration_config", "upgrade"]

_SCRIPTS = Path(__file__).parent / "migrations"


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What ``upgrade`` did.

    Attributes:
        before: Revision found; empty for a database that was never stamped.
        after: Revision now.
    """

    before: str
    after: str


def upgrade(url: str | os.PathLike[str]) -> Upgrade:
    """Run the migrations that a database lacks, all in one transaction: it is either upgraded or as it was.

    Raises:
        StoreError: Its kinds as for ``Store.open``; also where a migration leaves rows that refer to nothing.
    """
    place = Place.of(url)
    if not place.inspect():
        raise StoreError(f"there is no database at {place}", remedy="nothing needs an upgrade")
    # SQLite copies tables to alter them; with foreign keys enforced, dropping the original would fail or cascade.
    made = engine(place, foreign_keys=False)
    try:
        with guarded(str(place)), made.connect().execution_options(**{WRITING: True}) as connection, connection.begin():
            alone(connection)
            before = identify(connection, place)
            if before == NEW:
                raise StoreError(f"database {place} is empty", remedy="nothing needs an upgrade")
            if before not in ("", *REVISIONS):
                check(before, place)
            if before != REVISIONS[-1]:
                _migrate(connection, place)
            return Upgrade(before=before, after=REVISIONS[-1])
    finally:
        made.dispose()


def _migrate(connection: Connection, place: Place) -> None:
    from alembic import command

    command.upgrade(migration_config(connection), "head")
    mark(connection, place)
    if place.sqlite and (lost := connection.exec_driver_sql("PRAGMA foreign_key_check").first()):
        raise StoreError(f"the upgrade of database {place} would leave rows of {lost[0]} that refer to nothing")


def migration_config(connection: Connection) -> Config:
    """Alembic's configuration for our scripts over an open connection (also for ``alembic.command.check``)."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, metadata=Base.metadata, version_table=REVISION_TABLE.name)
    return config
