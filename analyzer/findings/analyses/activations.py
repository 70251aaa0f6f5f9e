"""An activation function that runs operator by operator: GELU in its exact and tanh forms, and its sigmoid form.

Saving: what all its executed operators take but the longest, which holds the function itself (erf, tanh): one fused
operator reads and writes as much as that one. Fusion as in Benanza (IPDPS 2020), section III.D, Q5: the fused operator
in place of the operators of its pattern. Where these are reached and left through changes of the layout alone, the
changes go as well: the fused operator runs in the runtime's own layout.
"""

from __future__ import annotations

from ....bricks.layer import Role
from ....generator.rewriting.pattern import Match
from ..subject import Node, Subject
from .rewritable import of_rewrite

__all__ = ["ANALYSIS", "FUSED", "gone", "why_unfused"]

FUSED = ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")


def gone(subject: Subject, _match: Match, nodes: list[Node]) -> list[Node]:
    """All executed operators but the longest, and the changes of layout around them."""
    return [*sorted(nodes, key=lambda node: node.ms or 0.0)[:-1], *_layout_changes(subject, nodes)]


def _layout_changes(subject: Subject, nodes: list[Node]) -> list[Node]:
    """The changes of layout before and behind some operators; none where there is another way in or out."""
    graph = subject.model.graph
    places = dict(zip(graph.live, subject.nodes, strict=True))
    inside = {node.layer.index for node in nodes}
    read = {one.value for node in nodes for one in node.layer.operands if one.role is Role.ACTIVATION}
    given = {value for node in nodes for value in node.layer.outputs if value}
    before = {value: graph.producer(value) for value in read - given}
    behind = {reader for value in given for reader in graph.consumers(value)} - inside
    shared = [reader for value in before for reader in graph.consumers(value) if reader not in inside]
    wanted = {*given, *before, *(value for index in behind for value in graph.layers[index].outputs)}
    around = [*before.values(), *behind]
    if not before or not behind or shared or not wanted.isdisjoint(graph.outputs):
        return []
    changes = [places[index] for index in around if index is not None and index in places]
    only = len(changes) == len(around) and all(subject.layouts.is_change(one.layer, one.origins) for one in changes)
    return changes if only else []


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
