"""Local response normalisation, whose power is computed element by element.

Saving: what it takes, less eight passes over its data (squares, average, scale, shift, roots, quotient) at the rate at
which this model's own operators move data.
"""

from __future__ import annotations

from ....generator.rewriting.pattern import Match
from ..subject import Node, Spent, Subject
from .rewritable import of_rewrite

__all__ = ["ANALYSIS"]

_PASSES = 8


def _gone(subject: Subject, match: Match, nodes: list[Node]) -> Spent | None:
    current, made = subject.spent(nodes), subject.graph.types.get(match.value)
    if current is None or made is None or subject.bytes_per_ms is None:
        return None
    left = _PASSES * 2 * made.nbytes / subject.bytes_per_ms
    return Spent(max(0.0, current.ms - left), current.half_ms, ())


ANALYSIS = of_rewrite(
    "local_response",
    "local_response",
    title="{} local response normalisations compute a power for every element",
    text="Write it as squares, an average over channels, and square roots.",
    priced=_gone,
)
