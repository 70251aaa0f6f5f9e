"""Operators that are far from what this machine allows: from its rate of arithmetic and from its bandwidth alike.

Far: they take more than four times as long as their arithmetic takes at the machine's highest measured rate, and as
their bytes take at its bandwidth, whichever is longer (Williams, Waterman and Patterson 2009;
``constructor.roofline``). What takes no longer than a call and a node that do nothing is left out. Saving at most: what
they take less that bound. It says where a better kernel would have room, and nothing of whether there is one: it is no
prediction, and joins no sum.

Where an operator is slow beside the others of its own model, ``slow_kernels`` reports it, and it is not reported again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...analysis import Analysis, finding
from ...finding import Finding, Remedy
from ...subject import Node, Spent, Subject
from ..slow_kernels import slow

__all__ = ["ANALYSIS"]

_FAR = 4.0
_SHOWN = 4


def _run(subject: Subject) -> Iterable[Finding]:
    far = [*_far(subject)]
    current = subject.spent([node for node, _, _ in far])
    if current is None or not subject.latency_ms:
        return
    bound = math.fsum(least for _, least, _ in far)
    share = current.ms / subject.latency_ms
    found = finding(
        subject,
        "roofline",
        f"{len(far)} operators, {share:.0%} of the model, reach less than a quarter of what this machine allows",
        layers=[index for node, _, _ in far for index in node.origins],
        current=current,
        saving=Spent(current.ms - bound, current.half_ms, ()),
        evidence=[
            f"at the machine's rate of arithmetic and its bandwidth they take {bound:.3g} ms at least",
            *_by_operator(far),
        ],
        remedy=Remedy("manual", "Look for a better kernel: other shapes, another precision or another runtime."),
    )
    yield replace(found, at_most=True)


def _far(subject: Subject) -> Iterator[tuple[Node, float, str]]:
    """Operators far from their bound, each with that and what it is of."""
    known = {} if subject.estimate.roofline is None else {row.key: row for row in subject.estimate.roofline.layers}
    reported = {id(node) for found in slow(subject).values() for node, _ in found}
    for node in subject.nodes:
        row = None if node.row is None else known.get(node.row.key)
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


ANALYSIS = Analysis("roofline", run=_run)
