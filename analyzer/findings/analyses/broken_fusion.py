"""Fusions that a runtime does not make, since something else reads a value in the midst of them.

* A batch normalisation with constant statistics is folded into the weights of the convolution before it, which then
  applies what follows too (Jacob et al., CVPR 2018, section 3.2). Where another layer reads the convolution, or the
  model hands it out, the normalisation runs by itself. Saving: what it takes, with what it is fused with and the
  activation behind it.
* A GELU or layer normalisation in whose midst a value is read. Saving: as ``activations`` and ``normalisations`` say.

No rewrite is tried: what is read elsewhere would still have to be made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from ....generator.rewriting.pattern import View
from ..analysis import Analysis, finding, spent_by
from ..finding import Finding, Remedy
from ..subject import Node, Subject
from . import activations, normalisations
from .rewritable import executed

__all__ = ["ANALYSIS"]

_APPLIED = ("Clip", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh")
"""Activations that a convolution applies to what it makes."""
_PATTERNS = (("activations", activations), ("normalisations", normalisations))
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Place:
    """A fusion that is not made.

    Attributes:
        layers: The layers concerned.
        nodes: What is executed of them.
        gone: What of that would go.
        readers: What reads a value in the midst, by name.
    """

    layers: tuple[int, ...]
    nodes: list[Node]
    gone: list[Node]
    readers: tuple[str, ...]


def _run(subject: Subject) -> Iterable[Finding]:
    places = [one for one in (*_unfolded(subject), *_unfused(subject)) if one.gone]
    current = subject.spent(list(chain.from_iterable(one.nodes for one in places)))
    saving = subject.spent(list(chain.from_iterable(one.gone for one in places)))
    if current is None or saving is None:
        return
    evidence = [f"{', '.join(one.readers[:3])} breaks the fusion of {spent_by(one.nodes)}" for one in places[:_SHOWN]]
    evidence += [f"and {len(places) - _SHOWN} places more like these"] if len(places) > _SHOWN else []
    yield finding(
        subject,
        "broken_fusion",
        f"{len(places)} fusions are not made, since a value in their midst is read elsewhere",
        layers=[index for one in places for index in one.layers],
        current=current,
        saving=saving,
        evidence=evidence,
        remedy=Remedy(
            "manual",
            "Do not hand out the value, and compute what is read of it elsewhere from what goes in or comes out: of a "
            "normalised value, scale and shift of each channel can be undone.",
        ),
    )


def _unfolded(subject: Subject) -> Iterator[_Place]:
    """Batch normalisations behind a convolution that something else reads."""
    view = View(subject.graph)
    for normalisation in view.live("BatchNormalization"):
        convolution = view.maker(normalisation.node.input[0], "Conv")
        if convolution is None or any(view.weight(normalisation, slot) is None for slot in (1, 2, 3, 4)):
            continue
        made = normalisation.outputs[0]
        readers = view.broken_by({convolution.index, normalisation.index}, made)
        nodes = [node for node in subject.touching([normalisation.index]) if convolution.index not in node.origins]
        if not readers or not nodes:
            continue
        behind = view.readers(made)
        alone = len(behind) == 1 and behind[0].op_type in _APPLIED and not view.is_output(made)
        layers = (normalisation.index, *((behind[0].index,) if alone else ()))
        nodes += [node for node in subject.of(layers[1:]) if node not in nodes]
        yield _Place(layers, nodes, nodes, readers)


def _unfused(subject: Subject) -> Iterator[_Place]:
    """Activations and layer normalisations in whose midst a value is read."""
    for rewrite, analysis in _PATTERNS:
        for match, nodes in executed(subject, rewrite, analysis.FUSED):
            if match.broken_by:
                yield _Place(match.layers, nodes, analysis.gone(subject, match, nodes), match.broken_by)


ANALYSIS = Analysis("broken_fusion", run=_run)
