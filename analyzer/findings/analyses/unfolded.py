"""Constants that are computed at every inference.

Saving: what is executed of layers that read nothing but constants. Runtimes compute these when they load a model, but
for those that they do not know to be constant, or may not fold.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....bricks.layer import LayerState
from ..analysis import Analysis, finding, told
from ..finding import Finding, Remedy
from ..subject import Subject

__all__ = ["ANALYSIS"]


def _run(subject: Subject) -> Iterable[Finding]:
    folded = {layer.index for layer in subject.graph.layers if layer.state is LayerState.FOLDED}
    nodes = [node for node in subject.of(folded) if node.ms is not None]
    spent = subject.spent(nodes)
    if spent is None:
        return
    nodes.sort(key=lambda node: -(node.ms or 0.0))
    yield finding(
        subject,
        "unfolded_constants",
        f"{len(nodes)} operators compute constants at every inference",
        layers=[index for node in nodes for index in node.origins],
        current=spent,
        saving=spent,
        evidence=[f"all that they read is constant: {told(nodes[:5])}"],
        remedy=Remedy(
            "manual", "Store what they compute as an initializer (constant folding when the model is exported)."
        ),
    )


ANALYSIS = Analysis("unfolded_constants", run=_run)
