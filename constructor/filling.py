"""Predicted latencies for the missing bricks of a model.

They replace measurements within one estimate only. They enter no database, bound, comparison or training set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..bricks.decomposition import Decomposition
from ..db import Measurement, Subject
from ..db.values import Identity, Stop, Summary, Verdict
from .choice import Choice
from .evidence import Evidence
from .interventions import state_of
from .predictor import Predicted


def filled(
    model: Decomposition,
    evidence: Evidence,
    latencies_ns: Mapping[tuple[str, str], float],
    predicted: Predicted | str,
) -> Evidence:
    """Return the evidence with predictions of a model's missing bricks.

    Args:
        model: The model.
        evidence: Its measurements under a combination.
        latencies_ns: Predictions of missing bricks by key and variant.
        predicted: Description of the predictions; or the reason for an unknown latency.
    """
    key, choice = model.own.key, evidence.choice
    evidence = replace(evidence, predicted={**evidence.predicted, key: predicted})
    if choice is None or isinstance(predicted, str):
        return evidence
    state = state_of(model, choice)
    bricks = evidence.bricks_in(key, state)
    added = {brick: _placeholder(*brick, ns, choice, state) for brick, ns in latencies_ns.items()}
    at_places = {place: (place[0], variant) for place, variant in bricks.variants.items()}
    placed = {place: added[brick] for place, brick in at_places.items() if brick in added}
    plain = {key: one for (key, variant), one in added.items() if not variant}
    completed = replace(
        bricks,
        latest={key: one for (key, _), one in added.items()} | dict(bricks.latest) | plain,
        placed={**bricks.placed, **placed},
        read=bricks.read | {key for key, _ in added},
    )
    uncertainty = evidence.uncertainty.beside(added.values())
    return replace(evidence, bricks={**evidence.bricks, (key, state): completed}, uncertainty=uncertainty)


def _placeholder(key: str, variant: str, ns: float, choice: Choice, state: str) -> Measurement:
    """Return a placeholder measurement without samples and interval."""
    conditions = replace(choice.conditions, cache=state)
    return Measurement(
        id=f"predicted {key} {variant} {state}",
        run="",
        identity=Identity(Subject.BRICK, key, choice.system_key, choice.stack_key, conditions, variant),
        unroll=1,
        summary=Summary(ns, ns, ns, ns, ns, ns, (ns, ns), 0, (), Verdict.UNSTABLE),
        stop=Stop.VISITS,
        undisturbed_ns=ns,
    )
