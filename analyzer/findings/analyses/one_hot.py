"""A product with one-hot rows, computed or constant, which picks rows, columns or channels.

Saving: what the executed operators take, less the rows that must be read and written in any case, at the rate at which
this model's own operators move data.
"""

from __future__ import annotations

from ....generator.rewriting.pattern import Match
from ..subject import Node, Spent, Subject
from .rewritable import of_rewrite

__all__ = ["ANALYSIS"]


def _gone(subject: Subject, match: Match, nodes: list[Node]) -> Spent | None:
    current, made = subject.spent(nodes), subject.graph.types.get(match.value)
    if current is None or made is None or subject.bytes_per_ms is None:
        return None
    left = min(current.ms, 2 * made.nbytes / subject.bytes_per_ms)
    return Spent(current.ms - left, current.half_ms, ())


ANALYSIS = of_rewrite(
    "one_hot",
    "one_hot",
    title="{} products with one-hot rows, where Gather would pick rows",
    text="Write the lookup as Gather; an index out of range is then an error, and not a row of zeros.",
    priced=_gone,
)
