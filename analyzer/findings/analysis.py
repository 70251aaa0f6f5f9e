"""What an analysis is: a question about a model, what must be known to answer it, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .finding import Finding, Remedy
from .subject import Node, Spent, Subject

__all__ = ["BRICKS", "LATENCY", "Analysis", "Idea", "finding"]

BRICKS = "bricks"
"""What the model's executed operators take."""

LATENCY = "latency"
"""What the model takes."""


@dataclass(frozen=True, slots=True)
class Idea:
    """What might help, and only trying can show.

    Attributes:
        kind: Name of the analysis.
        title: What is missed, in one line.
        remedy: What to do.
        evidence: Why it is worth trying.
        layers: Names of the layers concerned; empty for the whole model.
    """

    kind: str
    title: str
    remedy: Remedy
    evidence: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


def _nothing(_subject: Subject) -> Iterable[Idea]:
    return ()


def _none(_subject: Subject) -> Iterable[Finding]:
    return ()


@dataclass(frozen=True, slots=True)
class Analysis:
    """One analysis.

    Attributes:
        name: What its findings are called.
        requires: What must be stored: ``BRICKS``, ``LATENCY``.
        run: What it finds.
        ideas: What it would have tried.
    """

    name: str
    requires: frozenset[str] = frozenset({BRICKS, LATENCY})
    run: Callable[[Subject], Iterable[Finding]] = field(default=_none)
    ideas: Callable[[Subject], Iterable[Idea]] = field(default=_nothing)


def finding(
    subject: Subject,
    kind: str,
    title: str,
    *,
    layers: Iterable[int],
    current: Spent,
    saving: Spent,
    evidence: Iterable[str],
    remedy: Remedy,
) -> Finding:
    """A finding from what executed operators take.

    Args:
        subject: The model, whose latency is known.
        kind: Name of the analysis.
        title: What is missed.
        layers: Layers of the model concerned.
        current: What they take.
        saving: What of it would go.
        evidence: Sentences.
        remedy: What to do.
    """
    assert subject.latency_ms is not None  # noqa: S101  # analyses require it
    low, high = saving.ms - saving.half_ms, saving.ms + saving.half_ms
    return Finding(
        kind=kind,
        title=title,
        layers=subject.names(layers),
        current_ms=current.ms,
        achievable_ms=current.ms - saving.ms,
        saving_ms=saving.ms,
        ci95_ms=(low, high),
        share=saving.ms / subject.latency_ms,
        evidence=tuple(evidence),
        keys=current.keys,
        remedy=remedy,
    )


def spent_by(nodes: Iterable[Node]) -> str:
    """Executed operators with what they take, for an evidence."""
    return ", ".join(f"{node.layer.op_type} {node.ms:.3g} ms" for node in nodes if node.ms is not None)
