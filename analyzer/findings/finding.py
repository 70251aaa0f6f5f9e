"""One missed optimisation: where, how much, why we think so, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .subject import AnalysedModel, Node, Spent


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would help.

    Attributes:
        action: What is done, by a name that ``proof`` knows how to apply (``session_option``, ``threads``, ``rewrite``,
            ``precision``, ``backend``); ``manual`` where a person has to.
        text: One sentence for people.
        settings: What the action needs: names and values of options, a number of threads, a backend, a precision.
        code: Lines that a user would paste: a command, or Python; empty where there are none.
    """

    action: str
    text: str
    settings: Mapping[str, str] = field(default_factory=dict)
    code: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the remedy did when it was tried, original and changed model visited in turn in one run.

    Attributes:
        before_ms: Mean of the original in that run.
        after_ms: Mean of the changed model in that run.
        saving_ms: Their paired difference.
        ci95_ms: Its interval.
        largest_error: Largest difference of an output from the original's, relative to that output's largest value.
        artefact: The improved file, where one was written.
        together: Share of the model that all rewrites of this improved file save together, with its interval; None for
            what is no rewrite.
    """

    before_ms: float
    after_ms: float
    saving_ms: float
    ci95_ms: tuple[float, float]
    largest_error: float
    artefact: str | None = None
    together: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A missed optimisation of one model.

    Attributes:
        kind: Name of the analysis.
        title: What is missed, in one line.
        layers: Names of the source layers concerned, in the model's order.
        current_ms: What they take now.
        achievable_ms: What they would take.
        saving_ms: The difference.
        ci95_ms: Its interval; None where only one value is known.
        share: ``saving_ms`` of the model's latency, 0 to 1.
        evidence: What this rests on, each a sentence with its numbers.
        keys: Keys of the bricks in the database that the numbers come from.
        remedy: What to do.
        proof: What came of trying it; None where it was not tried.
        unproven: Why it was not tried, or why trying it failed; None where it was.
        at_most: Whether the saving is the most that there could be, where nobody knows how much of it can be had; not
            where trying it saved something.
    """

    kind: str
    title: str
    layers: tuple[str, ...]
    current_ms: float
    achievable_ms: float
    saving_ms: float
    ci95_ms: tuple[float, float] | None
    share: float
    evidence: tuple[str, ...]
    keys: tuple[str, ...]
    remedy: Remedy
    proof: Proof | None = None
    unproven: str | None = None
    at_most: bool = False

    @property
    def proven_share(self) -> float | None:
        """The share of the model that trying it saved; None where it was not tried. Below 0 where it cost."""
        return None if self.proof is None else self.proof.saving_ms / self.proof.before_ms

    @property
    def proven_ms(self) -> float | None:
        """The same of the latency that ``saving_ms`` is of: the machine may have been slower when it was tried."""
        if self.proof is None or self.proven_share is None:
            return None
        latency_ms = self.saving_ms / self.share if self.share else self.proof.before_ms
        return self.proven_share * latency_ms

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self) | {"proven_ms": self.proven_ms, "proven_share": self.proven_share}


# What an analysis is: a question about a model, what must be known to answer it, and how it is answered.


BRICKS = "bricks"
"""What the model's executed operators take."""

LATENCY = "latency"
"""What the model takes."""


@dataclass(frozen=True, slots=True)
class Idea:
    """A remedy that may save time. A finding adds the predicted saving; without a prediction, only a trial shows it.

    Attributes:
        kind: Name of the analysis.
        title: The missed opportunity, in one line.
        remedy: The remedy.
        evidence: Reasons, as sentences.
        layers: Names of the layers concerned; empty for the whole model.
    """

    kind: str
    title: str
    remedy: Remedy
    evidence: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


def _nothing(_subject: AnalysedModel) -> Iterable[Idea]:
    return ()


def _none(_subject: AnalysedModel) -> Iterable[Finding]:
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
    run: Callable[[AnalysedModel], Iterable[Finding]] = field(default=_none)
    ideas: Callable[[AnalysedModel], Iterable[Idea]] = field(default=_nothing)


def finding_of(subject: AnalysedModel, idea: Idea, current: Spent, saving: Spent) -> Finding:
    """Return the finding of an idea whose saving is predicted.

    Args:
        subject: The model, whose latency is known.
        idea: The idea.
        current: The latency of the layers concerned.
        saving: The part of it that the remedy would save.
    """
    assert subject.latency_ms is not None  # noqa: S101  # analyses require it
    low, high = saving.ms - saving.half_ms, saving.ms + saving.half_ms
    return Finding(
        kind=idea.kind,
        title=idea.title,
        layers=idea.layers,
        current_ms=current.ms,
        achievable_ms=current.ms - saving.ms,
        saving_ms=saving.ms,
        ci95_ms=(low, high),
        share=saving.ms / subject.latency_ms,
        evidence=idea.evidence,
        keys=current.keys,
        remedy=idea.remedy,
    )


def spent_by(nodes: Iterable[Node]) -> str:
    """Executed operators with what they take, for an evidence."""
    return ", ".join(f"{node.layer.op_type} {node.ms:.3g} ms" for node in nodes if node.ms is not None)


# What all proven findings of a model give together.


@dataclass(frozen=True, slots=True)
class Joint:
    """What proven findings give together.

    Attributes:
        saving_ms: All rewrites in one model as that was measured, or the largest setting where that saves more.
        ci95_ms: Its interval.
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
    """Return what proven findings save together; None without any.

    Rewrites were measured together in one model. What another number of threads or another precision would leave of
    their saving is not known, so that a setting counts alone. What is only predicted does not count.

    Args:
        findings: Of one model.
        latency_ms: The one latency that their savings are of.
    """
    if not latency_ms:
        return None
    options = list[Joint]()
    for number, found in enumerate(findings):
        proof = found.proof
        if proof is None or found.unproven is not None:
            continue
        if proof.together is None:
            members: tuple[int, ...] = (number,)
            share, low, high = (saved / proof.before_ms for saved in (proof.saving_ms, *proof.ci95_ms))
        else:
            members = tuple(place for place, other in enumerate(findings) if _is_rewrite(other))
            share, low, high = proof.together
        options.append(Joint(share * latency_ms, (low * latency_ms, high * latency_ms), share, members))
    return max(options, key=lambda joint: joint.share, default=None)


def _is_rewrite(found: Finding) -> bool:
    return found.proof is not None and found.unproven is None and found.proof.together is not None
