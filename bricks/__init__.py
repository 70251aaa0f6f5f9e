"""dlbricks.bricks."""
