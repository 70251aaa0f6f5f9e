"""Parts that compute in float64 between parts that do not.

Saving: conversions go, and of all else half: float64 moves twice the bytes, and a vector register holds half the
numbers. That is a prediction from the sizes of types; what a runtime has no float32 kernel for is seen by trying.
"""

from __future__ import annotations

from ....generator.rewriting.pattern import Match
from ..subject import Node, Spent, Subject
from .rewritable import of_rewrite

__all__ = ["ANALYSIS"]


def _gone(subject: Subject, _match: Match, nodes: list[Node]) -> Spent | None:
    casts = [node for node in nodes if node.layer.op_type == "Cast"]
    rest = [node for node in nodes if node.layer.op_type != "Cast"]
    whole, half = subject.spent(casts), subject.spent(rest)
    if (casts and whole is None) or (rest and half is None):
        return None
    found = [(1.0, one) for one in (whole,) if one] + [(0.5, one) for one in (half,) if one]
    return Spent(sum(share * one.ms for share, one in found), sum(share * one.half_ms for share, one in found), ())


ANALYSIS = of_rewrite(
    "float64",
    "islands",
    title="{} parts of the model compute in float64",
    text="Compute in float32, where float64 is not needed for the result.",
    priced=_gone,
)
