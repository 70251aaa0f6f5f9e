"""dlbricks.db."""
