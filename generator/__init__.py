"""dlbricks.generator."""
