"""Work that is done twice: layers that compute the same of the same.

Saving: what the executed operators of every repetition take. Common subexpressions, by value numbering (Alpern, Wegman
and Zadeck 1988); large weights are compared by what they hold, which runtimes do not.
"""

from __future__ import annotations

from ....generator.rewriting.pattern import Match
from ..subject import Node, Subject
from .rewritable import of_rewrite

__all__ = ["ANALYSIS"]


def _gone(_subject: Subject, _match: Match, nodes: list[Node]) -> list[Node]:
    return nodes


ANALYSIS = of_rewrite(
    "duplicates",
    "duplicates",
    title="{} layers repeat what another one has computed",
    text="Compute it once, and let all readers read that.",
    priced=_gone,
)
