"""Which bricks of a model changed when the model did."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...constructor.choice import COLD
from ...constructor.decomposition import Decomposition
from ...constructor.form import Form, form_of
from ...db import Measurement, Stack, Store, Subject
from ..comparison.difference import Difference
from .changes import moved
from .series import Track, basis_of, value_ns

__all__ = ["BrickChange", "BrickRuns", "blamed", "brick_runs"]

_HOT = "hot"
_NS_PER_MS = 1e6

BrickRuns = Mapping[str, Mapping[str, Measurement]]
"""Key of a brick to what each run measured of it."""


@dataclass(frozen=True, slots=True)
class BrickChange:
    """What a brick contributes to the change of its model.

    Attributes:
        key: Key of the brick.
        operators: Its operators.
        names: Names of the layers of its first occurrence.
        occurrences: How often the model holds it.
        before_ms: Its latency over the runs before the change.
        after_ms: Over those after it.
        ratio: ``after_ms / before_ms``; None where either is 0.
        ratio_ci95: Its interval; None where either side is a single run.
        contribution_ms: Occurrences times the difference: what the model gained or lost by it.
        form: What its first occurrence looks like.
    """

    key: str
    operators: tuple[str, ...]
    names: tuple[str, ...]
    occurrences: int
    before_ms: float
    after_ms: float
    ratio: float | None
    ratio_ci95: tuple[float, float] | None
    contribution_ms: float
    form: Form


def brick_runs(store: Store, track: Track, model: Decomposition, stacks: Mapping[str, Stack]) -> BrickRuns:
    """What runs measured of a model's bricks, where a series was made; in the one cache state that most have.

    Args:
        store: The database.
        track: Where the series was made.
        model: The model.
        stacks: By key.
    """
    found: defaultdict[str, defaultdict[str, dict[str, Measurement]]] = defaultdict(lambda: defaultdict(dict))
    states = (COLD,) if track.cold else (model.level, _HOT)
    for state in states:
        for one in store.measurements(
            subject=Subject.BRICK, keys={part.key for part in model.sequences}, system=track.system,
            threads=track.threads, dtype=track.dtype, backend=track.backend, device=track.device, cache=state,
            latest=False,
        ):  # fmt: skip
            if stacks[one.stack].options == track.options:
                found[state][one.key][one.run] = one
    return max((found[state] for state in states), key=lambda bricks: sum(map(len, bricks.values())))


def blamed(
    model: Decomposition, bricks: BrickRuns, before: Sequence[str], after: Sequence[str], *, slower: bool
) -> tuple[tuple[BrickChange, ...], int]:
    """The bricks that some runs before and after a change measured, those first that moved the model most.

    Args:
        model: The model.
        bricks: What was measured of them.
        before: Ids of the runs before the change.
        after: Of those after it.
        slower: Which way the model moved.

    Returns:
        The bricks, and the number of unique ones that are not known on both sides.
    """
    first = {part.key: part for part in reversed(model.sequences)}
    changes = []
    counts = Counter(part.key for part in model.sequences)
    for key, count in counts.items():
        runs = bricks.get(key, {})
        basis = basis_of(runs.values())
        old, new = ([value_ns(runs[run], basis) for run in side if run in runs] for side in (before, after))
        if not old or not new:
            continue
        layers = [model.graph.layers[index] for index in first[key].layers]
        one, two = fmean(old) / _NS_PER_MS, fmean(new) / _NS_PER_MS
        seen = _difference(old, new)
        changes.append(
            BrickChange(
                key=key,
                operators=tuple(layer.op_type for layer in layers),
                names=tuple(layer.name for layer in layers),
                occurrences=count,
                before_ms=one,
                after_ms=two,
                ratio=two / one if one and two else None,
                ratio_ci95=None if seen is None else seen.ci95,
                contribution_ms=count * (two - one),
                form=form_of(model, first[key]),
            )
        )
    sign = -1 if slower else 1
    return tuple(sorted(changes, key=lambda one: sign * one.contribution_ms)), len(counts) - len(changes)


def _difference(old: Sequence[float], new: Sequence[float]) -> Difference | None:
    """How far both sides differ; None where a logarithm has no sense, or there are too few."""
    return moved(old, new) if min(*old, *new) > 0 else None
