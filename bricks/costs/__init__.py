"""dlbricks.bricks.costs."""
