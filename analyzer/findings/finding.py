"""One missed optimisation: where, how much, why we think so, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Finding", "Proof", "Remedy"]


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
    """

    before_ms: float
    after_ms: float
    saving_ms: float
    ci95_ms: tuple[float, float]
    largest_error: float
    artefact: str | None = None


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
