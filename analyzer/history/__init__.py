"""Latencies over time: series of runs, where they changed, and whether the runtime or the machine did."""
