"""dlbricks.analyzer."""
