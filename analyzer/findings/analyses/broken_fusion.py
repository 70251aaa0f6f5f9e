"""Batch normalisations that run by themselves, since something else reads the convolution before them.

A runtime folds a normalisation with constant statistics into the weights of the convolution before it, and lets the
convolution apply what follows (Jacob et al., CVPR 2018, section 3.2). Where another layer reads the convolution, or the
model hands it out, it can do neither. Saving: what the executed normalisation takes, with what it is fused with, and
the activation behind it. What is read elsewhere can be had of the normalised value, which is a multiple of it and a
constant, channel by channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ....generator.rewriting.pattern import View
from ..analysis import Analysis, finding, told
from ..finding import Finding, Remedy
from ..subject import Subject

__all__ = ["ANALYSIS"]

_APPLIED = ("Clip", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh")
"""Activations that a convolution applies to what it makes."""
_SHOWN = 3


def _run(subject: Subject) -> Iterable[Finding]:
    places = []
    for normalisation, convolution, activation, broken in _broken(View(subject.graph)):
        nodes = [node for node in subject.touching([normalisation]) if convolution not in node.origins]
        if nodes:
            nodes += [node for node in subject.of(activation) if node not in nodes]
            places.append(((normalisation, *activation), nodes, broken))
    spent = subject.spent([node for _, nodes, _ in places for node in nodes])
    if spent is None:
        return
    evidence = [f"{told(nodes)}: {', '.join(by[:3])} reads the convolution too" for _, nodes, by in places]
    more = [f"and {len(places) - _SHOWN} places more like these"] if len(places) > _SHOWN else []
    yield finding(
        subject,
        "broken_fusion",
        f"{len(places)} batch normalisations are not folded into the convolution before them",
        layers=[index for layers, *_ in places for index in layers],
        current=spent,
        saving=spent,
        evidence=[*evidence[:_SHOWN], *more],
        remedy=Remedy(
            "manual",
            "Do not hand out what the convolution makes, and take what else is read of it from the normalised value "
            "(scale and shift of each channel undone): then the runtime folds the normalisation into the convolution.",
        ),
    )


def _broken(view: View) -> Iterator[tuple[int, int, tuple[int, ...], tuple[str, ...]]]:
    """Normalisations behind a convolution that something else reads: both, the activation behind, and what reads."""
    for normalisation in view.live("BatchNormalization"):
        convolution = view.maker(normalisation.node.input[0], "Conv")
        if convolution is None or any(view.weight(normalisation, slot) is None for slot in (1, 2, 3, 4)):
            continue
        made = normalisation.outputs[0]
        broken = view.broken_by({convolution.index, normalisation.index}, made)
        behind = view.readers(made)
        alone = len(behind) == 1 and behind[0].op_type in _APPLIED and not view.is_output(made)
        if broken:
            yield normalisation.index, convolution.index, (behind[0].index,) if alone else (), broken


ANALYSIS = Analysis("broken_fusion", run=_run)
