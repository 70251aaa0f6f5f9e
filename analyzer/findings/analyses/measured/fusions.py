"""A fusion that costs more than it saves: an addition and a layer normalisation in one operator.

Saving: what the fused operators take, less the normalisation at the rate in bytes that this model's normalisations
reach that are not fused (the median, weighted by work), and less reading two values and writing one at the rate at
which this model's operators move data. The interval is twice the scatter of these rates, and a factor of two where
there is one alone. Where there is none to compare with, it is tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .....generator.rewriting.rewrite import matches
from ...analysis import Analysis, Idea, finding, spent_by
from ...finding import Finding
from ...subject import Node, Spent, Subject, weighted_median
from ..rewritable import remedy_of

__all__ = ["ANALYSIS"]

_FUSED = "SkipLayerNormalization"
_REWRITE = "sums"
_WORTH = 0.02
"""Share of the model that the fused operators take at least for it to be tried."""

_TEXT = "Add by Sum, which the runtime does not fuse with the normalisation behind it."


def _run(subject: Subject) -> Iterable[Finding]:
    nodes, layers = _places(subject)
    current, known = subject.spent(nodes), _unfused_rate(subject)
    if current is None or known is None or subject.bytes_per_ms is None:
        return
    rate, apart = known
    sizes = [kind.nbytes for node in nodes if (kind := node.layer.output_types[0]) is not None]
    normalised = 2 * sum(sizes) / rate
    left = normalised + 3 * sum(sizes) / subject.bytes_per_ms
    yield finding(
        subject,
        "slow_fusion",
        _title(nodes),
        layers=layers,
        current=current,
        saving=Spent(current.ms - left, math.hypot(current.half_ms, normalised * math.expm1(apart)), ()),
        evidence=[
            spent_by(sorted(nodes, key=lambda node: -(node.ms or 0.0))[:3]),
            f"by themselves, at the rate of the model's other normalisations and additions, they take {left:.3g} ms",
        ],
        remedy=remedy_of(subject, _REWRITE, _TEXT, len(nodes)),
    )


def _ideas(subject: Subject) -> Iterable[Idea]:
    nodes, layers = _places(subject)
    spent = math.fsum(node.ms or 0.0 for node in nodes)
    if nodes and subject.latency_ms and spent >= _WORTH * subject.latency_ms:
        remedy = remedy_of(subject, _REWRITE, _TEXT, len(nodes))
        yield Idea("slow_fusion", _title(nodes), remedy, (spent_by(nodes[:3]),), subject.names(layers))


def _title(nodes: list[Node]) -> str:
    return f"{len(nodes)} normalisations are fused with the addition before them, in a slower kernel"


def _places(subject: Subject) -> tuple[list[Node], list[int]]:
    """The executed operators that are fused so, and the layers that the remedy would keep apart."""
    found, layers = dict[int, Node](), list[int]()
    for match in matches(_REWRITE, subject.graph, subject.source):
        for node in subject.touching(match.layers):
            if node.layer.op_type == _FUSED and node.origins >= set(match.layers):
                found[id(node)] = node
                layers += match.layers
    return list(found.values()), layers


def _unfused_rate(subject: Subject) -> tuple[float, float] | None:
    """Bytes in a ms of the normalisations that are not fused, and by which factor they differ, as a logarithm."""
    rates = [
        (node.layer.cost.activation_bytes / node.ms, node.layer.cost.activation_bytes)
        for node in subject.nodes
        if node.ms and node.layer.op_type == "LayerNormalization" and node.layer.cost is not None
    ]
    middle = weighted_median(rates)
    if middle is None or len({rate for rate, _ in rates}) == 1:
        return None if middle is None else (middle, math.log(2))
    total = sum(weight for _, weight in rates)
    return middle, 2 * math.sqrt(sum(weight * math.log(rate / middle) ** 2 for rate, weight in rates) / total)


ANALYSIS = Analysis("slow_fusion", run=_run, ideas=_ideas)
