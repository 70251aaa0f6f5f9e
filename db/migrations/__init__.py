"""dlbricks.db.migrations."""
