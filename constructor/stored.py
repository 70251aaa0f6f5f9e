"""What the database says about the bricks of some models, asked in a handful of queries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ..db import Failure, Measurement, Store, Subject
from ..db.queries import Fastest, moments
from .interval import Uncertainty
from .selection import Choice, Query, choose

__all__ = ["Stored", "look_up"]


@dataclass(frozen=True, slots=True)
class Stored:
    """What is known under one combination; every mapping is by key.

    Attributes:
        choice: The combination; None where nothing that matches is stored.
        bricks: Latest measurement of each brick.
        failures: Why a brick or a whole model could not be measured.
        fastest: Lowest latency of each brick over all stacks and variants of the same system, device and conditions.
        truths: Latest measurement of each whole model.
        uncertainty: Intervals of sums of the bricks.
    """

    choice: Choice | None = None
    bricks: Mapping[str, Measurement] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    fastest: Mapping[str, Fastest] = field(default_factory=dict)
    truths: Mapping[str, Measurement] = field(default_factory=dict)
    uncertainty: Uncertainty = field(default_factory=lambda: Uncertainty([], {}))


def look_up(
    store: Store, query: Query, *, bricks: Collection[str], models: Collection[str], competing: Collection[str] = ()
) -> Stored:
    """Choose the combination, and read what is stored under it.

    Args:
        store: The database.
        query: What the caller asked for.
        bricks: Keys of bricks.
        models: Keys of whole models.
        competing: Keys of further bricks, of which only the lowest latency is wanted.

    Raises:
        AmbiguousQuery: Several combinations match.
        UsageError: A system or stack that is not stored.
    """
    choice = choose(store, bricks, query)
    if choice is None:
        # Nothing was measured, but it may have been tried.
        failed = store.failures(
            keys=[*bricks, *models], backend=query.backend, device=query.device, cache=query.cache, dtype=query.dtype,
        )  # fmt: skip
        return Stored(failures={failure.key: failure for failure in failed})
    system, stack, conditions = choice.system_key, choice.stack_key, choice.conditions
    measured = store.measurements(subject=Subject.BRICK, keys=bricks, system=system, stack=stack, conditions=conditions)
    truths = store.measurements(subject=Subject.MODEL, keys=models, system=system, stack=stack, conditions=conditions)
    failed = store.failures(keys=[*bricks, *models], system=system, stack=stack, conditions=conditions)
    rivals = {*bricks, *competing} if competing else bricks
    with store.reading() as connection:
        taken = moments(connection, [measurement.id for measurement in measured])
    return Stored(
        choice=choice,
        bricks={measurement.key: measurement for measurement in measured},
        failures={failure.key: failure for failure in failed},
        fastest=store.fastest(Subject.BRICK, rivals, system=system, device=choice.stack.device, conditions=conditions),
        truths={measurement.key: measurement for measurement in truths},
        uncertainty=Uncertainty(measured, taken),
    )
