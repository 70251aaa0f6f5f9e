"""Operators that the runtime put in: reorders into and out of a layout of its own, transpositions, conversions.

They serve the kernels around them, so that their time is the most that another layout could save, and no finding until
it was tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..analysis import Analysis, Idea
from ..finding import Remedy
from ..subject import Subject

__all__ = ["ANALYSIS"]

_WORTH = 0.01


def _ideas(subject: Subject) -> Iterable[Idea]:
    nodes = [node for node in subject.nodes if not node.origins]
    spent, latency = subject.spent(nodes), subject.latency_ms
    if spent is None or not latency or spent.ms / latency < _WORTH or subject.choice is None:
        return
    level = dict(subject.choice.stack.options).get("optimization")
    if subject.layouts.changes.isdisjoint(node.layer.kind for node in nodes) or level != "all":
        return
    counts = ", ".join(f"{count} x {name}" for name, count in Counter(node.layer.op_type for node in nodes).items())
    yield Idea(
        "inserted_operators",
        "the runtime changes layouts on the way",
        Remedy(
            "session_option",
            "Keep images in the model's own layout.",
            {"optimization": "extended"},
            "options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED",
        ),
        (f"it put in {counts}, which take {spent.ms:.3g} ms",),
    )


ANALYSIS = Analysis("inserted_operators", ideas=_ideas)
