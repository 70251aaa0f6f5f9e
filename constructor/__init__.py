"""dlbricks.constructor."""
