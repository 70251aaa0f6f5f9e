"""Latencies over time: series of runs, changes of level, and their causes."""
