"""The schema's history: one alembic script per revision, run by ``db.upgrading`` and never by hand."""
