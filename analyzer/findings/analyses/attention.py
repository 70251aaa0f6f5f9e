"""Attention that runs operator by operator, where ONNX Runtime has it as one.

Saving: what its executed operators take that only scale and mask the scores, which the fused operator does on the way.
Both products, the softmax and the transpositions stay, as it has its own. Fusion as in Benanza (IPDPS 2020), section
III.D, Q5. Where the runtime has put scale and mask into other operators, nothing is predicted, and it is only tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ....generator.rewriting.pattern import Match
from ..analysis import Idea
from ..finding import Finding
from ..subject import Node, Subject
from .rewritable import of_rewrite

__all__ = ["ANALYSIS"]

_FUSED = ("Attention", "DecoderMaskedMultiHeadAttention", "GroupQueryAttention", "MultiHeadAttention")
_SCALING = frozenset({"Add", "Div", "Mul"})


def _gone(_subject: Subject, _match: Match, nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if node.layer.op_type in _SCALING]


_EVERYWHERE = of_rewrite(
    "unfused_attention",
    "attention",
    title="{} attentions run operator by operator",
    text="Write it as one MultiHeadAttention of ONNX Runtime.",
    priced=_gone,
    fused=_FUSED,
)


def _applies(subject: Subject) -> bool:
    return subject.choice is None or subject.choice.stack.backend == "onnxruntime"


def _run(subject: Subject) -> Iterable[Finding]:
    return _EVERYWHERE.run(subject) if _applies(subject) else ()


def _ideas(subject: Subject) -> Iterable[Idea]:
    return _EVERYWHERE.ideas(subject) if _applies(subject) else ()


ANALYSIS = replace(_EVERYWHERE, run=_run, ideas=_ideas)
