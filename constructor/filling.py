"""Bricks of a model that were not measured, filled in with what is predicted of them.

What is filled in stands for a measurement within one estimate and nowhere else: it is in no database, no bound and no
comparison, and what it was learned from are measurements alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..bricks.decomposition import Decomposition
from ..db import Measurement, Subject
from ..db.values import Identity, Stop, Summary, Verdict
from .choice import Choice
from .decomposition import state_of
from .evidence import Evidence
from .predictor import Predicted


def filled(
    model: Decomposition, evidence: Evidence, latencies_ns: Mapping[str, float], found: Predicted | str
) -> Evidence:
    """The evidence with predictions of a model's bricks.

    Args:
        model: The model.
        evidence: What is known of it; of a combination.
        latencies_ns: What is predicted, by key; of bricks that are not measured.
        found: How that came about; or why the model's latency is not known.
    """
    key, choice = model.own.key, evidence.choice
    evidence = replace(evidence, predicted={**evidence.predicted, key: found})
    if choice is None or isinstance(found, str):
        return evidence
    state = state_of(model, choice)
    bricks = evidence.bricks_in(key, state)
    added = {brick: _standing(brick, ns, choice, state) for brick, ns in latencies_ns.items()}
    made = replace(bricks, latest={**bricks.latest, **added}, read=bricks.read | added.keys())
    uncertainty = evidence.uncertainty.beside(added.values())
    return replace(evidence, bricks={**evidence.bricks, (key, state): made}, uncertainty=uncertainty)


def _standing(key: str, ns: float, choice: Choice, state: str) -> Measurement:
    """What stands for the measurement of a brick: without samples, and without an interval of its own."""
    conditions = replace(choice.conditions, cache=state)
    return Measurement(
        id=f"predicted {key} {state}",
        run="",
        identity=Identity(Subject.BRICK, key, choice.system_key, choice.stack_key, conditions, ""),
        unroll=1,
        summary=Summary(ns, ns, ns, ns, ns, ns, (ns, ns), 0, (), Verdict.UNSTABLE),
        stop=Stop.VISITS,
        undisturbed_ns=ns,
    )
