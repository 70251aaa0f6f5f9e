"""Training data of predictions (stored and shipped bricks), the fitted forest, and the gaps that it fills."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from ...bricks.decomposition import Decomposition
from ...bricks.features import keep_features, kept_features
from ...bricks.graph.footprint import MODEL_LEVELS, REUSE_LEVELS, parse_level
from ...constructor.choice import Choice
from ...constructor.construction import method_sd
from ...constructor.evidence import Evidence
from ...constructor.filling import filled
from ...constructor.interventions import state_of
from ...constructor.predictor import (
    NOW,
    VARIANTS,
    Belief,
    Candidate,
    Example,
    Forest,
    Gap,
    Machine,
    Origin,
    PlacedBrick,
    Predicted,
    PredictedTotal,
    calibration,
    prior,
)
from ...constructor.uncertainty.calibration import NORMAL, scatter_of
from ...db import Store, Subject
from ...models.cache import keep, kept
from .query import runs_in_packs

_ENOUGH = 300
"""Least number of bricks to learn from. With fewer, bricks of other systems are used and corrected by the own ones."""

_OWN = 600
"""Least number of bricks of the combination itself to learn from them alone. With fewer, a forest of other systems that
the own bricks correct is better: 9.5 % in place of 11.3 % at 430 bricks, but 12.2 % in place of 6.8 % at 850."""

_NAMED = 5
"""Number of named candidates for measurement."""

FLOOR = math.log(2)
"""Half-width of the logarithm above which a latency counts as unknown: a factor of two."""

_LOAD_S = 0.015
"""Seconds to load a brick, with its share of a pack's overhead, on a quiet machine."""

_KEPT, _FILE, _FORESTS = "forests", "forest.npz", 4


@dataclass(frozen=True, slots=True)
class Learned:
    """A forest for one combination.

    Attributes:
        forest: The forest.
        origin: The combination.
        machine: Rates of its system.
        familiar: True if the forest was fitted to bricks of the combination itself.
        own: Bricks of the combination outside the training data.
        scatter: Relative standard deviation of bricks between processes.
    """

    forest: Forest
    origin: Origin
    machine: Machine
    familiar: bool
    own: tuple[Example, ...]
    scatter: float


def learn(store: Store, choice: Choice) -> Learned | None:
    """Fit a forest to stored and shipped bricks of the combination, or of the most similar combinations.

    Args:
        store: The database.
        choice: The combination.

    Returns:
        None if too few bricks of this device are known.
    """
    threads, stack = choice.conditions.threads, choice.stack
    origin = Origin(choice.system_key, stack.backend, stack.device, threads, choice.conditions.dtype)
    machine = Machine.of(choice.system, stack.device, threads)
    shipped, stored = prior(), _stored(store, stack.device)
    for same in _TIERS:
        ours, theirs = _alike(shipped, origin, same), _alike(stored, origin, same)
        kept_to = len(theirs) - len(theirs) % _ENOUGH  # a few more bricks do not require another fit
        if len(ours) + kept_to >= (_OWN if same is _TIERS[0] else _ENOUGH):
            taken = [*ours, *theirs[:kept_to]]
            familiar = len(_alike(taken, origin, _TIERS[0])) >= _ENOUGH
            unfitted = _alike(theirs[kept_to:] if familiar else stored, origin, _TIERS[0])
            scatter = scatter_of(stack, threads, Subject.BRICK).process_sd
            return Learned(_forest(taken), origin, machine, familiar, tuple(unfitted[-_ENOUGH:]), scatter)
    return None


def _stored(store: Store, device: str) -> list[Example]:
    """Return the stored bricks with known features, earlier runs first."""
    forms, systems, stacks = kept_features(), store.systems(), store.stacks()
    started = {run.id: run.started for run in store.runs()}
    measured = store.measurements(subject=Subject.BRICK, device=device, variant=frozenset(VARIANTS))
    measured.sort(key=lambda brick: (started.get(brick.run, ""), brick.id))
    return [
        Example(
            PlacedBrick(forms[brick.key], parse_level(brick.conditions.cache) or 0, brick.variant),
            Machine.of(systems[brick.system], device, brick.conditions.threads),
            brick.latency_ns if brick.undisturbed_ns is None else brick.undisturbed_ns,
            Origin(brick.system, stacks[brick.stack].backend, device, brick.conditions.threads, brick.conditions.dtype),
            brick.run,
        )
        for brick in measured
        if brick.key in forms
    ]


_TIERS = (
    ("system", "backend", "device", "threads", "dtype"),
    ("backend", "device", "threads", "dtype"),
    ("backend", "device", "dtype"),
    ("device", "dtype"),
    ("device",),
)
"""Common properties of training bricks and the combination; the first line with enough bricks is used."""


def _alike(examples: Iterable[Example], origin: Origin, same: Sequence[str]) -> list[Example]:
    return [example for example in examples if all(getattr(example.origin, at) == getattr(origin, at) for at in same)]


def _forest(examples: Sequence[Example]) -> Forest:
    """Return the forest of some examples, kept in the user's cache folder under the digest of its data."""
    name = hashlib.sha256("\n".join(sorted(map(repr, examples))).encode()).hexdigest()
    folder = kept(_KEPT, name)
    if folder is not None:
        try:
            return Forest.load(folder / _FILE)
        except (OSError, ValueError, KeyError):
            pass  # damaged: fit again
    forest = Forest.fitted(examples)
    keep(_KEPT, name, lambda path: forest.save(path / _FILE), most=_FORESTS)
    return forest


def cost_s(brick: PlacedBrick, visits: int, latency_ns: float) -> float:
    """Return the seconds to load and measure a brick, with one execution before the first visit.

    Before each visit, what caches may hold is executed once more.

    Args:
        brick: The brick.
        visits: Number of visits.
        latency_ns: Expected latency.
    """
    executions = visits * (1 if brick.level >= max(REUSE_LEVELS) else 2) + 1
    return _LOAD_S + 6e-9 * brick.features.weight_bytes + 1e-9 * executions * latency_ns


class Gaps:
    """The unmeasured bricks of some models and their predictions.

    Args:
        models: The models.
        evidence: Their measurements under a combination.
        learned: The forest, if any.
        taken: Keys of recently measured bricks; they correct the predictions.
    """

    def __init__(
        self,
        models: Sequence[Decomposition],
        evidence: Evidence,
        learned: Learned | None,
        taken: AbstractSet[str] = frozenset(),
    ) -> None:
        self._learned, self._models = learned, models
        choice = evidence.choice
        scatter = (
            0.0 if choice is None else scatter_of(choice.stack, choice.conditions.threads, Subject.BRICK).process_sd
        )
        packed = choice is not None and runs_in_packs(choice.stack)
        places: dict[tuple[str, str, str], int] = {}
        seen: dict[tuple[str, int, str], tuple[PlacedBrick, float]] = {}
        forms: list[PlacedBrick] = []
        self.open: dict[str, Gap] = {}
        for model in models:
            state = state_of(model, choice)
            apart = packed and parse_level(state) in MODEL_LEVELS
            bricks, features = evidence.bricks_in(model.own.key, state), keep_features(model)
            counts: Counter[int] = Counter()
            known_ns: list[float] = []
            known: set[str] = set()
            for part in model.sequences:
                measured, variant = bricks.of(part), bricks.variant(part) if apart else ""
                if measured is not None and (measured.variant or not variant):
                    ns = measured.latency_ns if measured.undisturbed_ns is None else measured.undisturbed_ns
                    known_ns.append(ns)
                    known.add(part.key)
                    if part.key in taken:
                        level = parse_level(measured.conditions.cache) or 0
                        brick = PlacedBrick(features[part.key], level, measured.variant)
                        seen[part.key, level, measured.variant] = (brick, ns)
                    continue
                if (part.key, variant, state) not in places:
                    places[part.key, variant, state] = len(forms)
                    forms.append(PlacedBrick(features[part.key], parse_level(state) or 0, variant))
                counts[places[part.key, variant, state]] += 1
            if counts:
                self.open[model.own.key] = Gap(
                    {index: float(count) for index, count in counts.items()}, sum(known_ns), len(known),
                    NORMAL * method_sd(model, evidence), NORMAL * scatter,
                )  # fmt: skip
        self._keys = tuple(places)
        self._bricks = tuple(forms)
        self._belief: Belief | None = None
        if learned is not None:
            examples = [(example.brick, example.latency_ns) for example in learned.own]
            runs = [NOW] * len(forms) + [example.run for example in learned.own] + [NOW] * len(seen)
            examples += seen.values()
            guess = learned.forest.guess([*forms, *(brick for brick, _ in examples)], learned.machine)
            self._seen = guess.seen
            self._belief = Belief(guess, calibration(), familiar=learned.familiar, runs=runs)
            for number, (_, ns) in enumerate(examples, len(forms)):
                self._belief.learn(number, ns)

    def choose(self, target: float, visits: int, left_s: float) -> set[str]:
        """Return the keys of the next bricks to measure.

        Args:
            target: Wanted half-width of the logarithm.
            visits: Visits of each brick.
            left_s: Available seconds.
        """
        if self._belief is None or not self.open:
            return set()
        latencies_ns = self._belief.latencies_ns
        costs_s = np.full(len(latencies_ns), np.inf)  # measured bricks are not chosen again
        for index, brick in enumerate(self._bricks):
            costs_s[index] = cost_s(brick, visits, latencies_ns[index])
        chosen = self._belief.choose([*self.open.values()], costs_s, target, left_s)
        return {self._keys[index][0] for index in chosen}

    def filled(self, evidence: Evidence) -> Evidence:
        """Return the evidence with predictions of the unmeasured bricks."""
        if self._belief is None or self._learned is None:
            return replace(evidence, predicted=dict.fromkeys(self.open, _NOTHING))
        latencies_ns = self._belief.latencies_ns
        for model in self._models:
            gap = self.open.get(model.own.key)
            if gap is None:
                continue
            total = self._belief.total(gap)
            unseen: defaultdict[str, float] = defaultdict(float)
            for index, share in total.shares.items():
                if not self._seen[index]:
                    unseen[self._bricks[index].features.operator] += share
            predicted: Predicted | str = Predicted(
                bricks=len({self._keys[index][0] for index in gap.counts}),
                share=sum(total.shares.values()),
                half=total.half,
                familiar=self._learned.familiar,
                unseen=tuple(sorted(unseen.items(), key=lambda item: -item[1])),
                narrowing=self._narrowing(self._belief, gap, total),
            )
            if total.half > FLOOR:
                predicted = _unknown(unseen, total)
            values = {self._keys[index][:2]: float(latencies_ns[index]) for index in gap.counts}
            evidence = filled(model, evidence, values, predicted)
        return evidence

    def _narrowing(self, belief: Belief, gap: Gap, total: PredictedTotal) -> tuple[Candidate, ...]:
        gains = belief.gains([total])
        order = sorted(gap.counts, key=lambda index: -gains[index])[:_NAMED]
        return tuple(
            Candidate(
                key=self._keys[index][0],
                operator=self._bricks[index].features.operator,
                count=int(gap.counts[index]),
                share=total.shares[index],
                gain=min(1.0, float(gains[index]) / total.variance),
            )
            for index in order
        )


_NOTHING = "nothing is known of bricks on such a device: measure some models with 'dlbricks report MODEL...'"


_WIDEST = 100
"""Largest factor either way that is told: beyond it the ends of an interval mean nothing."""


def _unknown(unseen: Mapping[str, float], total: PredictedTotal) -> str:
    """Return the range of a latency whose interval is too wide for a prediction, and the reason."""
    text = f"it is not known within a factor of {_WIDEST}"
    if total.half < math.log(_WIDEST):
        middle_ms, factor = total.ns / 1e6, math.exp(total.half)
        ends = f"{middle_ms / factor:.2g} and {middle_ms * factor:.2g} ms"
        text = f"it is between {ends}, a factor of {factor:.2g} either way"
    if unseen:
        named = ", ".join(f"{operator} ({share:.0%} of the model)" for operator, share in list(unseen.items())[:3])
        return f"{text}: nothing like {named} was measured"
    return text
