"""Stored combinations as ways to run a model: what each takes, and what measures it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..constructor.decomposition import Decomposition
from ..constructor.remedies import Task
from ..db import Store
from ..generator.backends.registry import backends
from ..generator.decomposition.cutter import Cut
from .comparison.difference import Relation
from .comparison.results import Pair, Results
from .comparison.sides import Side
from .estimation.query import Query
from .estimation.tasks import Tasks, default_options
from .shell import spelled

__all__ = ["Candidate", "candidate_of", "default_of", "ranked", "remedies_of"]

_DEFAULT_BACKEND = "onnxruntime"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored combination, as one way to run a model.

    Attributes:
        name: What distinguishes it from the others.
        stack: Key of its stack.
        backend: Its backend.
        device: Its device.
        options: Options of the backend.
        threads: Threads.
        dtype: Precision.
        latency_ms: What the model takes; None where that is not known.
        ci95_ms: Its interval.
        basis: ``measured`` or ``estimate``.
        ratio: ``latency_ms`` / that of the best.
        ratio_ci95: Its interval.
        verdict: What it is beside the best; None for the best itself, and where nothing is known.
        reason: Why the verdict is UNCLEAR, or why nothing is known.
        measured_by: Measures the model so; None where nothing here does.
    """

    name: str
    stack: str
    backend: str
    device: str
    options: dict[str, str]
    threads: int
    dtype: str
    latency_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    basis: str | None = None
    ratio: float | None = None
    ratio_ci95: tuple[float, float] | None = None
    verdict: Relation | None = None
    reason: str | None = None
    measured_by: Task | None = None

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return spelled({name: getattr(self, name) for name in self.__slots__}, measured_by="command")


def candidate_of(results: Results, model: Decomposition, side: Side, store: Store, query: Query) -> Candidate:
    """A side as a way to run a model."""
    place = side.choice
    figure = results.measured(model, side)
    if figure.best_ms is None:
        figure = results.figure(model, side)
    return Candidate(
        name=side.name,
        stack=place.stack_key,
        backend=place.stack.backend,
        device=place.stack.device,
        options=dict(place.stack.options),
        threads=place.conditions.threads,
        dtype=place.conditions.dtype,
        latency_ms=figure.best_ms,
        ci95_ms=figure.best_ci95_ms,
        basis=figure.basis,
        reason=None if figure.best_ms is not None else results.why_unknown(model, side),
        measured_by=Tasks(store, place, query, Cut(1)).truth(model.source),
    )


def ranked(candidate: Candidate, pair: Pair, verdict: tuple[Relation, str | None]) -> Candidate:
    """The candidate beside the best."""
    return replace(
        candidate,
        ratio=None if pair.difference is None else pair.difference.ratio,
        ratio_ci95=None if pair.difference is None else pair.difference.ci95,
        verdict=verdict[0],
        reason=verdict[1],
    )


def default_of(known: Sequence[Side], best: Side) -> Side | None:
    """The side that stands for what one gets without choosing; under the conditions of the best where it can."""

    def chosen(side: Side) -> int:
        """Options that are not as they come; one that another version does not know is none."""
        stack = side.choice.stack
        defaults = default_options(stack.backend, stack.device)
        return sum(defaults.get(name, value) != value for name, value in stack.options)

    found = [side for side in known if side.choice.stack.backend == _DEFAULT_BACKEND]
    found.sort(key=lambda side: (chosen(side), side.choice.conditions != best.choice.conditions))
    return found[0] if found else None


def remedies_of(model: Decomposition, sides: Sequence[Side], store: Store, query: Query) -> tuple[Task, ...]:
    """Tasks that measure the model on runtimes that can run here and that nothing is stored of."""
    known = {side.choice.stack.backend for side in sides}
    if sides:  # under the same conditions
        like = sides[0].choice.conditions
        query = replace(query, threads=like.threads, cache=like.cache, dtype=like.dtype)
    tasks = [
        Tasks(store, None, replace(query, system=None, backend=name, stack=None), Cut(1)).truth(model.source)
        for name, availability in backends().items()
        if availability.ok and name not in known
    ]
    return tuple(task for task in tasks if task is not None)
