"""Local response normalisation, whose power is computed element by element.

Saving: what it takes, less what stands in its place: a convolution of 1 x 1 over all channels, at the rate at which
this model's own operators multiply and accumulate, and squares, roots and a quotient that read and write its data 12
times, at the rate at which they move data.
"""

from __future__ import annotations

from ....generator.rewriting.pattern import Match
from ..subject import Node, Spent, Subject
from .rewritable import of_rewrite

__all__ = ["ANALYSIS"]

_PASSES = 12


def _gone(subject: Subject, match: Match, nodes: list[Node]) -> Spent | None:
    current, made = subject.spent(nodes), subject.graph.types.get(match.value)
    if current is None or made is None or subject.bytes_per_ms is None or subject.macs_per_ms is None:
        return None
    left = _PASSES * made.nbytes / subject.bytes_per_ms + made.elements * made.shape[1] / subject.macs_per_ms
    return Spent(max(0.0, current.ms - left), current.half_ms, ())


ANALYSIS = of_rewrite(
    "local_response",
    "local_response",
    title="{} local response normalisations compute a power for every element",
    text="Write it as squares, a convolution of 1 x 1 that sums over channels, and square roots.",
    priced=_gone,
)
