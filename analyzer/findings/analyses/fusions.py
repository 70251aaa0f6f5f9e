"""Fusions and layouts that the runtime has, and that this model does not get."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ....generator.rewriting.padding_old import channel_masks_of
from ....generator.rewriting.pattern import View
from ....generator.rewriting.rewrite import matches
from ..finding import Analysis, Finding, Idea, Remedy, finding_of, spent_by
from ..subject import AnalysedModel, Node, Spent, is_depthwise, weighted_median
from .rewrites import remedy_of

# A fusion that costs more than it saves: an addition and a layer normalisation in one operator.
#
# Saving: what the fused operators take, less the normalisation at the rate in bytes that this model's normalisations
# reach that are not fused (the median, weighted by work), and less reading two values and writing one at the rate at
# which this model's operators move data. The interval is twice the scatter of these rates, and a factor of two where
# there is one alone. Where there is none to compare with, it is tried.


_FUSED = "SkipLayerNormalization"
_REWRITE = "sums"
_WORTH = 0.02
"""Share of the model that the fused operators take at least for it to be tried."""

_TEXT = "Add by Sum, which the runtime does not fuse with the normalisation behind it."


def _run(subject: AnalysedModel) -> Iterable[Finding]:
    nodes, layers = _places(subject)
    current, known = subject.spent(nodes), _unfused_rate(subject)
    if current is None or known is None or subject.bytes_per_ms is None:
        return
    rate, apart = known
    sizes = [kind.nbytes for node in nodes if (kind := node.layer.output_types[0]) is not None]
    normalised = 2 * sum(sizes) / rate
    left = normalised + 3 * sum(sizes) / subject.bytes_per_ms
    idea = Idea(
        "slow_fusion",
        _fusions_title(nodes),
        remedy_of(subject, _REWRITE, _TEXT, len(nodes)),
        (
            spent_by(sorted(nodes, key=lambda node: -(node.ms or 0.0))[:3]),
            f"by themselves, at the rate of the model's other normalisations and additions, they take {left:.3g} ms",
        ),
        subject.names(layers),
    )
    yield finding_of(
        subject,
        idea,
        current,
        Spent(current.ms - left, math.hypot(current.half_ms, normalised * math.expm1(apart)), ()),
    )


def _ideas(subject: AnalysedModel) -> Iterable[Idea]:
    nodes, layers = _places(subject)
    spent = math.fsum(node.ms or 0.0 for node in nodes)
    if nodes and subject.latency_ms and spent >= _WORTH * subject.latency_ms:
        remedy = remedy_of(subject, _REWRITE, _TEXT, len(nodes))
        yield Idea("slow_fusion", _fusions_title(nodes), remedy, (spent_by(nodes[:3]),), subject.names(layers))


def _fusions_title(nodes: list[Node]) -> str:
    return f"{len(nodes)} normalisations are fused with the addition before them, in a slower kernel"


def _places(subject: AnalysedModel) -> tuple[list[Node], list[int]]:
    """The executed operators that are fused so, and the layers that the remedy would keep apart."""
    found, layers = dict[int, Node](), list[int]()
    for match in matches(_REWRITE, subject.graph, subject.source):
        for node in subject.touching(match.layers):
            if node.layer.op_type == _FUSED and node.origins >= set(match.layers):
                found[id(node)] = node
                layers += match.layers
    return list(found.values()), layers


def _unfused_rate(subject: AnalysedModel) -> tuple[float, float] | None:
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


# Convolutions that the runtime cannot lay out in blocks of channels, since their channels do not fill such blocks.
#
# ONNX Runtime runs convolutions on CPUs on blocks of 8 or 16 channels (as many as a vector register holds), and
# leaves those that it cannot cut into blocks as they are; the graph that it executes shows which. Saving: what these
# take, less their multiply-accumulates with as many channels as the rewrite gives them, at the rate (the median,
# weighted by work) that this model's own blocked convolutions reach, those with filters of one element by those that
# have such, where there are any, and depthwise ones by depthwise ones alone; and the reorders of channels that are no
# multiple, which go. The interval is from the scatter of these rates. Where no blocked convolution of the model reads
# whole blocks, the rate lies between that of its fastest convolution, which a blocked one reaches as a rule, and the
# machine's highest measured rate of arithmetic: the geometric mean of both. Where the latter is not measured, and for
# depthwise convolutions, which come nowhere near it, it is the former, so that the saving is a lower bound.
#
# What pools, sums and the like save or pay for padded channels is not in it.


_CONVOLUTIONS = frozenset({"Conv", "FusedConv"})
_ALONE = math.log(1.5)
"""What a single rate may be off by, as a logarithm: there is no scatter to show it."""


def block_of(subject: AnalysedModel) -> int:
    """How many channels a vector register of the system holds."""
    return 16 if subject.choice is not None and "avx512f" in subject.choice.system.isa else 8


def padding_remedy(subject: AnalysedModel, multiple: int) -> Remedy:
    """What pads channels: the rewrite, or a person where it applies nowhere."""
    text = f"Pad channels, and the weights that read and make them, with zeros to multiples of {multiple}."
    if not matches(f"padding_{multiple}", subject.graph, subject.source):
        return Remedy("manual", text, {"multiple": str(multiple)})
    return remedy_of(subject, f"padding_{multiple}", text, 1)


def unblocked(subject: AnalysedModel) -> Finding | None:
    """What blocks would save; None where every convolution has them that could, or it saves nothing."""
    multiple = block_of(subject)
    grown = _unblocked(subject, multiple)
    nodes = list(grown)
    current = subject.spent(nodes)
    if current is None:
        return None
    left, off, rated_by = 0.0, 0.0, dict[str, None]()
    for node, growth in grown.items():
        rated = _rate(subject, node, multiple)
        if rated is None or node.layer.cost is None:
            return None
        rate, apart, how = rated
        expected = growth * node.layer.cost.macs / rate
        left, off = left + expected, off + expected * math.expm1(apart)
        rated_by[how] = None
    reorders = [node for node in subject.nodes if _reorders(subject, node, multiple)]
    around = subject.spent(reorders)
    saving = current.ms - left + (0.0 if around is None else around.ms)
    if saving <= 0:
        return None
    longest = sorted(nodes, key=lambda node: -(node.ms or 0.0))[:3]
    how = " and ".join(rated_by)
    evidence = [
        f"the runtime does not lay them out in blocks: {spent_by(longest)}",
        f"padded and in blocks all of them take {left:.3g} ms at {how}",
    ]
    if around is not None:
        evidence.append(
            f"layouts that are changed beside them ({len(reorders)}) take {around.ms:.3g} ms, and are not needed then"
        )
    idea = Idea(
        "padding",
        _blocks_title(nodes, multiple),
        padding_remedy(subject, multiple),
        tuple(evidence),
        subject.names(index for node in nodes for index in node.origins),
    )
    return finding_of(subject, idea, current, Spent(saving, math.hypot(current.half_ms, off), ()))


def unblocked_idea(subject: AnalysedModel) -> Iterable[Idea]:
    """Padding as something to try, where it might have more convolutions run on blocks."""
    multiple = block_of(subject)
    nodes = list(_unblocked(subject, multiple))
    if nodes:
        layers = subject.names(index for node in nodes for index in node.origins)
        yield Idea("padding", _blocks_title(nodes, multiple), padding_remedy(subject, multiple), layers=layers)


def _blocks_title(nodes: Sequence[Node], multiple: int) -> str:
    return f"{len(nodes)} convolutions run on slower kernels, since their channels do not fill blocks of {multiple}"


def _unblocked(subject: AnalysedModel, multiple: int) -> dict[Node, float]:
    """The executed convolutions without blocks that would read whole ones of a padded model, and how their work grows.

    Those that read what the rewrite does not pad, such as an input of the model, are none.
    """
    choice = subject.choice
    if choice is None or (choice.stack.backend, choice.stack.device) != ("onnxruntime", "cpu"):
        return {}
    if dict(choice.stack.options).get("optimization") not in {None, "all"}:
        return {}  # nothing is laid out in blocks then
    growth = _growth(subject, multiple)
    return {
        node: growth[index]
        for node in subject.nodes
        if _is_convolution(node) and not subject.layouts.is_own(node.layer) and _input_channels(node) % multiple
        for index in node.origins & growth.keys()
    }


def _growth(subject: AnalysedModel, multiple: int) -> dict[int, float]:
    """Work of the convolutions of a padded model that read whole blocks, by layer, over what it is."""
    lanes, _ = channel_masks_of(View(subject.graph), multiple)
    found = {}
    for index in subject.graph.live:
        layer = subject.graph.layers[index]
        read = lanes.get(layer.node.input[0]) if layer.op_type == "Conv" else None
        if read is None or read.size % multiple:
            continue
        made = lanes.get(layer.outputs[0], np.ones(1))
        alone = is_depthwise(layer)  # its filters go on to read one channel each
        found[index] = float((1.0 if alone else 1 / read.mean()) / made.mean())
    return found


def _rate(subject: AnalysedModel, node: Node, multiple: int) -> tuple[float, float, str] | None:
    """Multiply-accumulates in a ms that a convolution would reach in blocks, how far off that may be, and what of.

    None where no convolution of its kind shows one.
    """
    alone = is_depthwise(node.layer)
    known = [
        other
        for other in subject.nodes
        if _is_convolution(other) and is_depthwise(other.layer) == alone
        and other.ms and other.layer.cost is not None and other.layer.cost.macs
    ]  # fmt: skip
    if not known:
        return None
    blocked = [
        other
        for other in known
        if subject.layouts.is_own(other.layer) and (alone or _input_channels(other) >= multiple)
    ]
    alike = [other for other in blocked if (_area(other) == 1) == (_area(node) == 1)]
    if not blocked:
        return _bounded(subject, max(rate for rate, _ in _rates(known)), alone=alone)
    rates = _rates(alike or blocked)
    middle = weighted_median(rates)
    assert middle is not None  # noqa: S101  # there are rates
    total = sum(weight for _, weight in rates)
    apart = math.sqrt(sum(weight * math.log(rate / middle) ** 2 for rate, weight in rates) / total)
    named = f"the rate of {len(alike or blocked)} convolutions of the model that are"
    return middle, 2 * apart if len(rates) > 1 else _ALONE, named


def _bounded(subject: AnalysedModel, least: float, *, alone: bool) -> tuple[float, float, str]:
    """Likewise where no convolution reads whole blocks: between the fastest one and what the machine allows."""
    roofline = subject.estimate.roofline.bricks
    compute = None if roofline is None else roofline.ceilings.compute
    most = 0.0 if compute is None else compute.rate.best / 2 / 1000  # a multiply-accumulate is two operations
    if alone or most <= least:
        return least, 0.0, "the rate of the model's fastest convolution, or less"
    return (
        math.sqrt(least * most),
        math.log(most / least) / 2,
        "a rate between that of the model's fastest convolution and the machine's highest",
    )


def _is_convolution(node: Node) -> bool:
    return node.layer.op_type in _CONVOLUTIONS


def _rates(nodes: Sequence[Node]) -> list[tuple[float, float]]:
    """The rate of each brick, weighted by all of its work."""
    found: dict[str, tuple[float, float]] = {}
    for node in nodes:
        assert node.layer.cost is not None and node.ms and node.row is not None  # noqa: S101, PT018  # the caller looked
        macs = node.layer.cost.macs
        found[node.row.key] = macs / node.ms, found.get(node.row.key, (0.0, 0.0))[1] + macs
    return list(found.values())


def _input_channels(node: Node) -> int:
    """Channels that each filter reads; 0 where that is not known."""
    return _weights(node)[1]


def _area(node: Node) -> int:
    return math.prod(_weights(node)[2:])


def _weights(node: Node) -> tuple[int, ...]:
    kind = node.layer.operands[1].type if len(node.layer.operands) > 1 else None
    return kind.shape if kind is not None and len(kind.shape) > 1 else (0, 0)


def _reorders(subject: AnalysedModel, node: Node, multiple: int) -> bool:
    """Whether the runtime put it in to lay out in blocks what does not fill them, or the reverse."""
    kinds = (node.layer.operands[0].type, node.layer.output_types[0]) if node.layer.operands else ()
    shapes = [kind.shape for kind in kinds if kind is not None and len(kind.shape) > 1]
    put_in = not node.origins and node.layer.kind in subject.layouts.changes
    return put_in and any(shape[1] % multiple for shape in shapes)
