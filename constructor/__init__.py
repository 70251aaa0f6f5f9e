"""From brick latencies to model latencies: composition, intervals, lower bounds.

All of it is arithmetic: decompositions and what is stored of them come in as values, and values go out (``construct``).
Nothing here starts a worker, opens a model or asks a database; ``analyzer.estimation`` does.
"""

from .construction import construct
from .result import Coverage, Estimate, Missing, SequenceLatency, Term

__all__ = ["Coverage", "Estimate", "Missing", "SequenceLatency", "Term", "construct"]
