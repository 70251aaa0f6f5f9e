"""Constants that are computed at every inference.

Saving: what is executed of layers that read nothing but constants, and the batch normalisations behind convolutions
whose filters are among them: a runtime folds a normalisation only into a filter that it knows. Runtimes compute
constants when they load a model, but for those that they do not know to be constant, or may not fold. A filter that is
not known is not laid out ahead either; what that costs is seen by trying.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain

from ....generator.rewriting.pattern import View
from ..analysis import Analysis, finding, spent_by
from ..finding import Finding, Remedy
from ..subject import Node, Subject
from .rewritable import of_rewrite

__all__ = ["ANALYSIS"]

_TITLE = "constants are computed at every inference, at {} places"
_TEXT = "Store what is computed as an initializer (constant folding when the model is exported)."


def _run(subject: Subject) -> Iterable[Finding]:
    view = View(subject.graph)
    folded = {layer.index for layer in subject.graph.layers if view.is_constant(layer)}
    nodes = [node for node in subject.of(folded) if node.ms is not None]
    behind = _unfoldable(subject, set(chain.from_iterable(node.origins for node in nodes)))
    spent = subject.spent([*nodes, *behind])
    if spent is None:
        return
    nodes.sort(key=lambda node: -(node.ms or 0.0))
    evidence = [f"all that they read is constant: {spent_by(nodes[:5])}"]
    if behind:
        evidence.append(f"normalisations of convolutions whose filters they make: {spent_by(behind[:5])}")
    (idea,) = [*_REWRITTEN.ideas(subject), None][:1]
    yield finding(
        subject,
        "unfolded_constants",
        f"{len(nodes)} operators compute constants at every inference",
        layers=[index for node in nodes for index in node.origins],
        current=spent,
        saving=spent,
        evidence=evidence,
        remedy=Remedy("manual", _TEXT) if idea is None else idea.remedy,
    )


def _unfoldable(subject: Subject, computed: Collection[int]) -> list[Node]:
    """Executed normalisations behind convolutions with a filter that some layers compute."""
    view, found = View(subject.graph), list[Node]()
    for normalisation in view.live("BatchNormalization"):
        convolution = view.maker(normalisation.node.input[0], "Conv")
        if convolution is not None and subject.graph.producer(convolution.node.input[1]) in computed:
            touching = subject.touching([normalisation.index])
            found += [node for node in touching if convolution.index not in node.origins]
    return found


_REWRITTEN = of_rewrite("unfolded_constants", "constants", title=_TITLE, text=_TEXT, priced=lambda *found: found[-1])
ANALYSIS = Analysis("unfolded_constants", run=_run, ideas=_REWRITTEN.ideas)
