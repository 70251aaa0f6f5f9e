"""Operators that are far slower than the other operators of the same model.

Expected latency: the longest of three times (bytes with weights; multiply-accumulates; divisions with exponentials),
each at the rate that two thirds of the work of all other operators in the model reach, and at least the shortest
operator's latency. An operator is slow if it takes more than four times as long, by all of its interval, and at least
0.2 % of the model. Saving = latency - expected latency. This is a roofline (Williams, Waterman and Patterson 2009) with
the ceilings that this runtime reaches in this model instead of the machine's.

Depthwise convolutions use every number only a few times, and no kernel is as fast for them; they are compared with each
other alone. Recurrent layers read their recurrence weights in every step, because steps are sequential. Normalisations
read their input twice: for mean and variance, then to normalise. Normalisations fused with an addition have a separate
analysis.

The evidence names another stored runtime or algorithm that runs the same brick faster. If there is none, and no other
form of the operator with a faster kernel is known, the saving is a limit and no prediction.
"""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ....bricks.layer import Cost, Layer
from ....bricks.operators import RECURRENT, Kind, Trait, having, named
from ...shell import model_words
from ..analysed_model import AnalysedModel, Node, Spent, is_depthwise
from ..finding import Analysis, Finding, Remedy, finding_of, spent_by

_SLOW = 4.0
_WORTH = 0.002
"""Smallest share of the model for a slow operator: shorter operators spend their time in the call."""
_SEVERAL = 4
_ELSEWHERE = frozenset({"Cast", "Expand", "LRN", "OneHot", "SkipLayerNormalization"})
"""Operators with a separate analysis."""
_RECURRENCE = 2
"""The input that holds the recurrence weights."""
_FASTER_UNTIL = {"AveragePool": 18}
"""The last opset of an operator with the faster kernel of ONNX Runtime on CPUs. In 1.31, AveragePool of 3 by 3 over 100
channels of 56 by 56 takes 0.26 ms in opset 18 and 2.6 ms in 19; if channels fill blocks, both are equal."""


def slow(subject: AnalysedModel) -> dict[str, list[tuple[Node, float]]]:
    """Return the slow operators by kind, each with its expected latency in ms."""
    latency = subject.latency_ms
    if subject.usual["bytes"] is None or latency is None:
        return {}
    shortest = min((node.ms for node in subject.nodes if node.ms), default=0.0)
    slow_nodes: defaultdict[str, list[tuple[Node, float]]] = defaultdict(list)
    for node in subject.nodes:
        expected = _expected(subject, node)
        if expected is None or not node.ms or node.layer.op_type in _ELSEWHERE:
            continue
        expected = max(expected, shortest)
        if node.ms - node.half_ms > max(_SLOW * expected, _WORTH * latency):
            slow_nodes[node.layer.op_type].append((node, expected))
    return slow_nodes


def _run(subject: AnalysedModel) -> Iterable[Finding]:
    for operator, slow_nodes in slow(subject).items():
        nodes = [node for node, _ in slow_nodes]
        current = subject.spent(nodes)
        if current is None:
            continue
        expected_ms = sum(expected for _, expected in slow_nodes)
        nodes.sort(key=lambda node: -(node.ms or 0.0))
        least = (
            f"at the rates of this model's other operators its bytes and arithmetic take {expected_ms:.3g} ms at least"
        )
        elsewhere = [line for node in nodes[:1] if (line := _elsewhere(subject, node))]
        evidence, remedy = [least, spent_by(nodes[:3]), *elsewhere], _remedy(subject, nodes)
        idea = Finding(
            "slow_kernel",
            f"{len(nodes)} x {operator} runs {current.ms / expected_ms:.0f} times as long as expected",
            remedy,
            tuple(evidence),
            subject.names(index for node in nodes for index in node.origins),
        )
        finding = finding_of(subject, idea, current, Spent(current.ms - expected_ms, current.half_ms, ()))
        # Without a known way to run it faster, the saving is what a better kernel could give at most.
        yield replace(finding, at_most=not elsewhere and not remedy.settings)


def _remedy(subject: AnalysedModel, nodes: Sequence[Node]) -> Remedy:
    operator, choice = nodes[0].layer.op_type, subject.choice
    until = _FASTER_UNTIL.get(operator)
    if until is None or choice is None or (choice.stack.backend, choice.stack.device) != ("onnxruntime", "cpu"):
        return _slow(subject, operator)
    if any(dict(node.layer.opsets).get("", 0) <= until for node in nodes):
        return _slow(subject, operator)
    text = f"Write the model for opset {until}, if it can be: the runtime has a faster kernel for its {operator}."
    return Remedy("manual", text, {"opset": str(until)})


def _slow(subject: AnalysedModel, operator: str) -> Remedy:
    """Return the remedy for a slow kernel without a known faster form: other runtimes, or an edit of the file."""
    model = model_words(subject.source)
    threads = [] if subject.choice is None else ["--threads", str(subject.choice.conditions.threads)]
    commands = [["dlbricks", "compare", *model, "edited.onnx", *threads]]
    text = f"Write {operator} with other operators in the file, and compare both."
    if subject.choice is not None and subject.choice.stack.device == "cpu":
        commands.insert(0, ["dlbricks", "measure", *model, "--backend", "openvino", *threads])
        text = f"Time the model in another runtime; or w{text[1:]}"
    return Remedy("manual", text, code="\n".join(map(shlex.join, commands)))


def _expected(subject: AnalysedModel, node: Node) -> float | None:
    cost, rates = node.layer.cost, subject.modest(node.layer.op_type)
    if cost is None or not node.origins:
        return None
    work = [("bytes", cost.activation_bytes + cost.weight_bytes + _read_again(node.layer))]
    if cost.macs:
        work.append(("depthwise" if is_depthwise(node.layer) else "macs", cost.macs))
    if cost.exponentials or (cost.divisions and not _is_mean(cost)):
        work.append(("special", cost.divisions + cost.exponentials))
    times_ms = [amount / rate for kind, amount in work if (rate := rates[kind]) is not None]
    return max(times_ms) if len(times_ms) == len(work) else None


def _read_again(layer: Layer) -> int:
    """Return the bytes that a layer reads again: a recurrence's weights, and a normalisation's input."""
    if layer.op_type in named(Kind.NORMALISATION) - having(Trait.AFFINE):
        return 0 if layer.operands[0].type is None else layer.operands[0].type.nbytes
    if layer.op_type not in RECURRENT or len(layer.operands) <= _RECURRENCE:
        return 0
    sequence, recurrence = layer.operands[0].type, layer.operands[_RECURRENCE].type
    if sequence is None or recurrence is None:
        return 0
    batch_first = next((attribute.i for attribute in layer.node.attribute if attribute.name == "layout"), 0)
    return (sequence.shape[1 if batch_first else 0] - 1) * recurrence.nbytes


def _is_mean(cost: Cost) -> bool:
    """Return True if it divides only sums of several numbers, like pools: the division is little work."""
    return not cost.multiplications and cost.additions >= _SEVERAL * cost.divisions


def _elsewhere(subject: AnalysedModel, node: Node) -> str:
    row = node.row
    if row is None or row.lower_bound_ms is None or not row.latency_ms or row.lower_bound_ms > 0.8 * row.latency_ms:
        return ""
    ratio = row.lower_bound_ms / row.latency_ms
    stack = subject.store.stacks().get(row.fastest_stack or "")
    where = row.fastest_variant or ("another runtime" if stack is None else stack.backend)
    return f"the same brick takes {ratio:.0%} of that with {where}"


SLOW_KERNELS = Analysis("slow_kernel", run=_run)


# Operators that are far from what this machine allows: from its rate of arithmetic and from its bandwidth alike.
#
# Far: they take more than four times as long as their arithmetic takes at the machine's highest measured rate, and as
# their bytes take at its bandwidth, whichever is longer (Williams, Waterman and Patterson 2009;
# ``constructor.roofline``). What takes no longer than a call and a node that do nothing is left out. Saving at most:
# what they take less that bound. It says where a better kernel would have room, and nothing of whether there is one:
# it is no prediction, and joins no sum.
#
# Where an operator is slow beside the others of its own model, ``slow_kernels`` reports it, and it is not reported
# again.


_FAR = 4.0
_SHOWN = 4


def _roofline_run(subject: AnalysedModel) -> Iterable[Finding]:
    far = [*_far(subject)]
    current = subject.spent([node for node, _, _ in far])
    if current is None or not subject.latency_ms:
        return
    bound = math.fsum(least for _, least, _ in far)
    share = current.ms / subject.latency_ms
    idea = Finding(
        "roofline",
        f"{len(far)} operators, {share:.0%} of the model, reach less than a quarter of what this machine allows",
        Remedy("manual", "Look for a better kernel: other shapes, another precision or another runtime."),
        (
            f"at the machine's rate of arithmetic and its bandwidth they take {bound:.3g} ms at least",
            *_by_operator(far),
        ),
        subject.names(index for node, _, _ in far for index in node.origins),
    )
    finding = finding_of(subject, idea, current, Spent(current.ms - bound, current.half_ms, ()))
    yield replace(finding, at_most=True)


def _far(subject: AnalysedModel) -> Iterator[tuple[Node, float, str]]:
    """Return operators far from their bound, each with the bound and its ceiling."""
    bounds = (
        {}
        if subject.estimate.roofline.bricks is None
        else {row.key: row for row in subject.estimate.roofline.bricks.layers}
    )
    reported = {id(node) for slow_nodes in slow(subject).values() for node, _ in slow_nodes}
    for node in subject.nodes:
        row = None if node.row is None else bounds.get(node.row.key)
        if row is None or row.bound_ms is None or row.bound_by is None or not node.ms or not node.origins:
            continue
        if row.bound_by != "overhead" and node.ms > _FAR * row.bound_ms > 0 and id(node) not in reported:
            yield node, row.bound_ms, row.bound_by


def _by_operator(far: Iterable[tuple[Node, float, str]]) -> Iterator[str]:
    groups: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for node, least, bound_by in far:
        groups[node.layer.op_type, bound_by].append((node.ms or 0.0, least))
    sums = {kind: [math.fsum(column) for column in zip(*some, strict=True)] for kind, some in groups.items()}
    for kind in sorted(sums, key=lambda kind: -sums[kind][0])[:_SHOWN]:
        (operator, bound_by), (ms, least) = kind, sums[kind]
        yield f"{len(groups[kind])} x {operator} {ms:.3g} ms, {ms / least:.0f} times its bound by {bound_by}"


ROOFLINE = Analysis("roofline", run=_roofline_run)
