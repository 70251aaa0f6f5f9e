"""dlbricks.db.migrations.versions."""
