"""dlbricks.bricks.canonical."""
