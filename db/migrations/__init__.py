"""The schema's history: one alembic script per revision, run by ``db.upgrade`` and never by hand."""
