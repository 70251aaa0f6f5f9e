"""Values that are written out again and again for operators that broadcast anyway.

Saving: what the executed Expand takes. Its readers must all broadcast, and come to the same shape without it.
"""

from __future__ import annotations

from ....generator.rewriting.pattern import Match
from ..subject import Node, Subject
from .rewritable import of_rewrite

__all__ = ["ANALYSIS"]


def _gone(_subject: Subject, _match: Match, nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if node.layer.op_type == "Expand"]


ANALYSIS = of_rewrite(
    "needless_expansions",
    "expansions",
    title="{} values are repeated for operators that broadcast",
    text="Leave Expand out: its readers broadcast by themselves.",
    priced=_gone,
)
