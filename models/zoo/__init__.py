"""dlbricks.models.zoo."""
