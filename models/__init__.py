"""dlbricks.models."""
