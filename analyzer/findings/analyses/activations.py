"""An activation function that runs operator by operator: GELU in its exact and tanh forms, and its sigmoid form.

Saving: what all its executed operators take but the longest, which holds the function itself (erf, tanh): one fused
operator reads and writes as much as that one. Fusion as in Benanza (IPDPS 2020), section III.D, Q5: the fused operator
in place of the operators of its pattern.
"""

from __future__ import annotations

from ....generator.rewriting.pattern import Match
from ..subject import Node, Subject
from .rewritable import of_rewrite

__all__ = ["ANALYSIS", "FUSED", "gone", "why_unfused"]

FUSED = ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")


def gone(_subject: Subject, _match: Match, nodes: list[Node]) -> list[Node]:
    """All executed operators but the longest."""
    return sorted(nodes, key=lambda node: node.ms or 0.0)[:-1]


def why_unfused(_match: Match) -> str:
    """Why the runtime does not fuse a pattern by itself."""
    return "nothing else reads its interior values: the runtime does not fuse this order of its factors, or this form"


ANALYSIS = of_rewrite(
    "unfused_activation",
    "activations",
    title="{} activation functions (GELU) run operator by operator",
    text="Write the function as one operator (Gelu), which runs in one pass over the data.",
    priced=gone,
    fused=FUSED,
    why=why_unfused,
)
