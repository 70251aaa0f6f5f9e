"""dlbricks.generator.backends."""
