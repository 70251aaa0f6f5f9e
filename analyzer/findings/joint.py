"""What all findings of a model would give together, without counting a saving twice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import networkx as nx

from .finding import Finding

__all__ = ["Joint", "joint_of"]

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Joint:
    """What findings give together that do not overlap.

    Attributes:
        saving_ms: The sum: of what was proven, where it was, else of what is predicted.
        ci95_ms: Both ends of their intervals, added up: findings of one machine may err together.
        share: ``saving_ms`` of the model's latency.
        findings: Which of the findings these are, by their number in the order given.
    """

    saving_ms: float
    ci95_ms: tuple[float, float]
    share: float
    findings: tuple[int, ...]

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def joint_of(findings: Sequence[Finding], latency_ms: float | None) -> Joint | None:
    """The largest sum of savings of findings that concern different layers; None where there are no findings.

    Of findings that have a layer in common only one counts. One that names no layer is about the whole model, and
    excludes all others: what another number of threads or another precision would leave of their savings is not
    known. A maximum-weight clique of the findings that go together (``networkx``). What is only the most that could
    be saved (``Finding.at_most``) does not count.

    Args:
        findings: Of one model.
        latency_ms: The one latency that their savings are of.
    """
    if not latency_ms:
        return None
    together: nx.Graph[int] = nx.Graph()
    for number, found in enumerate(findings):
        saving = _saving(found)[0]
        if saving > 0 and not found.at_most:
            together.add_node(number, ns=max(1, round(saving * _NS_PER_MS)))
    for one in together:
        for other in together:
            if one < other and _apart(findings[one], findings[other]):
                together.add_edge(one, other)
    chosen, _ = nx.max_weight_clique(together, weight="ns")
    if not chosen:
        return None
    savings = [_saving(findings[number]) for number in chosen]
    total, low, high = (math.fsum(column) for column in zip(*savings, strict=True))
    return Joint(total, (low, high), total / latency_ms, tuple(sorted(chosen)))


def _apart(one: Finding, other: Finding) -> bool:
    return bool(one.layers) and bool(other.layers) and not set(one.layers) & set(other.layers)


def _saving(found: Finding) -> tuple[float, float, float]:
    """What a finding saves, with both ends of its interval, of the model's one latency."""
    proof = found.proof
    if proof is None or found.proven_ms is None:
        low, high = found.ci95_ms or (found.saving_ms, found.saving_ms)
        return found.saving_ms, low, high
    low, high = proof.ci95_ms
    if not proof.saving_ms:
        return 0.0, low, high
    scale = found.proven_ms / proof.saving_ms
    return found.proven_ms, scale * low, scale * high
