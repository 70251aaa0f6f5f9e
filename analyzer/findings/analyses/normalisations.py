"""A normalisation of layers or of single channels that runs operator by operator.

Saving: what all its executed operators take but two, the longest that reduces and the longest that does not: one fused
operator passes over the data twice, once for the moments and once to normalise. Fusion as in Benanza, Q5.
"""

from __future__ import annotations

from ....generator.rewriting.moments import REDUCING
from ....generator.rewriting.pattern import Match
from ..subject import Node, Subject
from .activations import why_unfused
from .rewritable import of_rewrite

__all__ = ["ANALYSIS", "FUSED", "gone"]

FUSED = (
    "LayerNormalization",
    "SkipLayerNormalization",
    "EmbedLayerNormalization",
    "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "InstanceNormalization",
)


def gone(_subject: Subject, _match: Match, nodes: list[Node]) -> list[Node]:
    """All executed operators but the longest that reduces and the longest that does not."""
    ordered = sorted(nodes, key=lambda node: -(node.ms or 0.0))
    reducing = [node for node in ordered if node.layer.op_type in REDUCING]
    others = [node for node in ordered if node.layer.op_type not in REDUCING]
    return [*reducing[1:], *others[1:]]


ANALYSIS = of_rewrite(
    "unfused_normalisation",
    "normalisations",
    title="{} normalisations run operator by operator",
    text="Write it as one LayerNormalization (InstanceNormalization for rows and columns of each channel).",
    priced=gone,
    fused=FUSED,
    why=why_unfused,
)
