"""Conversions of element types there and back, without any loss on the way.

Saving: what the executed conversions take. Only pairs whose middle type holds every value count: all others change
numbers, and may be meant (``roundings``).
"""

from __future__ import annotations

from ....generator.rewriting.pattern import Match
from ..subject import Node, Subject
from .rewritable import of_rewrite

__all__ = ["ANALYSIS", "gone"]


def gone(_subject: Subject, _match: Match, nodes: list[Node]) -> list[Node]:
    """The executed conversions."""
    return [node for node in nodes if node.layer.op_type == "Cast"]


ANALYSIS = of_rewrite(
    "conversions",
    "casts",
    title="{} pairs of conversions that undo each other",
    text="Leave both conversions out.",
    priced=gone,
)
