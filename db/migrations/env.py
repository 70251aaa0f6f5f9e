"""Alembic's environment: runs scripts over the connection that ``db.upgrading`` hands it.

Alembic executes this file by its path, outside any package (hence no import of our own: what it needs comes in
``config.attributes``). Imported by anything else it does nothing.
"""

from __future__ import annotations

from alembic import context

if hasattr(context, "config"):  # only while alembic runs an environment
    _given = context.config.attributes
    context.configure(
        connection=_given["connection"],
        target_metadata=_given["metadata"],
        version_table=_given["version_table"],
        render_as_batch=True,  # SQLite alters a table by copying it
        compare_type=True,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()
