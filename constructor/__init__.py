"""From brick latencies to model latencies: composition, intervals, lower bounds."""

from .estimate import Coverage, Estimate, Missing, SequenceLatency, estimate

__all__ = ["Coverage", "Estimate", "Missing", "SequenceLatency", "estimate"]
