"""Data that is moved there and back, by transpositions or whatever else moves it, or twice where once would do.

Saving: what the executed moves of a chain take, all of it where they cancel, the shorter of both where one is left. As
in Ivanov et al. 2021, "Data movement is all you need" (MLSys), which counts what moves data and computes nothing. ONNX
Runtime removes most pairs by itself; those are not executed, and are no findings.
"""

from __future__ import annotations

from ....generator.rewriting.movement import MOVING
from ....generator.rewriting.pattern import Match
from ..subject import Node, Subject
from .rewritable import of_rewrite

__all__ = ["ANALYSIS"]


def _gone(_subject: Subject, match: Match, nodes: list[Node]) -> list[Node] | None:
    moved = sorted((node for node in nodes if node.layer.op_type in MOVING), key=lambda node: node.ms or 0.0)
    return moved if match.form == "cancel" else moved[: len(moved) - 1]


ANALYSIS = of_rewrite(
    "transposes",
    "transposes",
    title="data is moved there and back, or twice where once would do, at {} places",
    text="Leave out what moves the data (Transpose, Reshape and the like), and work on it as it lies.",
    priced=_gone,
)
