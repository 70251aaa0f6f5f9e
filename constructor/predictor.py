"""Latencies of bricks that were never measured, predicted from those of other bricks.

    log latency = log physics + forest(features) + what measured bricks of the same system say

*Physics* is a roofline with the rates of the system. The *forest*, extremely randomised trees on features of brick and
system, has learned the logarithm of the ratio of latency to physics. What both leave is treated as correlated between
bricks of one operator, the more so the more alike these are (a Gaussian process, ``Belief``): a measured brick corrects
the others and narrows what is known of them, and says which brick is worth measuring next.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..bricks.features import Features
from ..db import System

Floats = NDArray[np.float64]
Weighted = Mapping[int, float]
"""How often each of some bricks occurs in a model."""

_TREES = 100
_NODE_NS = 500.0
"""What a node takes that does next to nothing: where physics ends."""

_LEAST_NS = 100.0
"""What a latency counts as at least: one that takes nothing has no logarithm."""

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """What physics knows of a system.

    Attributes:
        compute: FLOPs per nanosecond.
        near: Bytes per nanosecond that come from caches.
        far: The same from memory.
        threads: Threads of the runtime.
    """

    compute: float
    near: float
    far: float
    threads: int

    @classmethod
    def of(cls, system: System, threads: int) -> Self:
        """What the instruction sets of a system allow at 2.5 GHz, with usual bandwidths: the forest learns the rest.

        Measured ceilings would differ between systems of one kind by what a run found, and predictions with them.
        """
        wide = next((flops for name, flops in _FLOPS if any(isa.startswith(name) for isa in system.isa)), 16.0)
        return cls(2.5 * wide * threads, 20.0 * threads, 10.0 * math.sqrt(threads), threads)

    def floor_ns(self, features: Features, level: int) -> float:
        """The latency by physics: the longer of arithmetic and memory, and a node.

        Args:
            features: Of the brick.
            level: Its footprint class in bytes; 0: its weights lie in caches.
        """
        near = (features.read_bytes + features.written_bytes) / self.near
        weights = features.weight_bytes / (self.far if level > 8 * _MIB else self.near)
        return max((features.flops or 0) / self.compute, near, weights) + _NODE_NS


_FLOPS = (("amx", 64.0), ("avx512", 64.0), ("avx2", 32.0), ("asimd", 16.0), ("neon", 16.0))
"""FLOPs of one core in one cycle by the widest instructions."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a brick was measured: what of it may differ between what is learned from and what is predicted.

    Attributes:
        system: Key of the system.
        backend: The runtime.
        device: Its device.
        threads: Threads.
        dtype: Precision.
    """

    system: str
    backend: str
    device: str
    threads: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Example:
    """A measured brick.

    Attributes:
        features: Of the brick.
        level: Footprint class in bytes; 0 where it was measured otherwise.
        machine: The system.
        latency_ns: On a quiet machine.
        origin: Where it was measured.
    """

    features: Features
    level: int
    machine: Machine
    latency_ns: float
    origin: Origin


@cache
def prior() -> tuple[Example, ...]:
    """What ships with the package: bricks of the zoo on systems that were measured (docs/prediction.md)."""
    record = json.loads(lzma.decompress(files("dlbricks.constructor").joinpath("prior.json.xz").read_bytes()))
    places = []
    for place in record["origins"]:
        fields: dict[str, Any] = {name: _frozen(value) for name, value in place["system"].items()}
        system = System(**fields)
        origin = Origin(system.key, place["backend"], place["device"], place["threads"], place["dtype"])
        places.append((origin, Machine.of(system, origin.threads)))
    examples = []
    for number, level, latency_ns, operator, flops, weights, read, written, *extents in record["rows"]:
        origin, machine = places[number]
        features = Features(record["operators"][operator], flops, weights, read, written, tuple(extents))
        examples.append(Example(features, level, machine, latency_ns, origin))
    return tuple(examples)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _numbers(features: Features, level: int, machine: Machine, operator: int) -> list[float]:
    """What trees decide by: logarithms, since latencies are products of extents."""
    flops, moved = features.flops or 0, features.bytes
    sizes = (flops, features.weight_bytes, features.read_bytes, features.written_bytes, *features.extents)
    logarithms = [math.log1p(abs(size)) for size in sizes]
    return [*logarithms, math.log((1 + flops) / (1 + moved)), math.log1p(level), math.log(machine.threads), operator]


@dataclass(frozen=True, slots=True)
class Forest:
    """Regression trees as arrays, so that neither reading nor using them needs what they were fitted with.

    Attributes:
        roots: Number of the first node of each tree.
        left: Of each node, the one that is next where its feature is at most its threshold; its own number in a leaf.
        right: The one that is next otherwise.
        feature: Which feature decides.
        threshold: And at what value.
        value: What a leaf predicts.
        operators: The operators that were learned from; their place is the last feature.
    """

    roots: NDArray[np.int32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    feature: NDArray[np.int16]
    threshold: Floats
    value: NDArray[np.float32]
    operators: tuple[str, ...]

    @classmethod
    def fitted(cls, examples: Sequence[Example], seed: int = 0) -> Self:
        """Learn from measured bricks, in whichever order: some seconds for thousands.

        Args:
            examples: The bricks; at least one.
            seed: Of the trees.
        """
        from sklearn.ensemble import ExtraTreesRegressor

        operators = tuple(sorted({example.features.operator for example in examples}))
        places = {operator: place for place, operator in enumerate(operators)}
        rows = []
        for example in examples:
            features, level, machine = example.features, example.level, example.machine
            latency_ns, floor_ns = max(example.latency_ns, _LEAST_NS), machine.floor_ns(features, level)
            ratio = math.log(latency_ns / floor_ns)
            rows.append((*_numbers(features, level, machine, places[features.operator]), ratio, latency_ns))
        table = np.array(sorted(rows))
        trees = ExtraTreesRegressor(_TREES, random_state=seed, n_jobs=-1)
        trees.fit(table[:, :-2].astype(np.float32), table[:, -2], sample_weight=np.sqrt(table[:, -1]))
        fitted = [tree.tree_ for tree in trees.estimators_]
        counts = [tree.node_count for tree in fitted]
        roots = np.cumsum([0, *counts[:-1]])
        own = [np.arange(count) for count in counts]

        def joined(name: str) -> NDArray[np.int32]:
            children = [getattr(tree, name) for tree in fitted]
            found = [np.where(child < 0, mine, child) for child, mine in zip(children, own, strict=True)]
            return np.concatenate([next_ + root for next_, root in zip(found, roots, strict=True)]).astype(np.int32)

        return cls(
            roots=roots.astype(np.int32),
            left=joined("children_left"),
            right=joined("children_right"),
            feature=np.concatenate([np.maximum(tree.feature, 0) for tree in fitted]).astype(np.int16),
            threshold=np.concatenate([tree.threshold for tree in fitted]),
            value=np.concatenate([tree.value.reshape(-1) for tree in fitted]).astype(np.float32),
            operators=operators,
        )

    def save(self, path: Path) -> None:
        """Write it to a file."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__ if name != "operators"}
        np.savez(path, operators=np.array(self.operators, dtype=np.str_), **arrays)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read it; raises ``OSError``, ``ValueError`` or ``KeyError`` for a file that is damaged."""
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in cls.__slots__ if name != "operators"}
            return cls(**arrays, operators=tuple(map(str, found["operators"])))

    def each(self, table: NDArray[np.float32]) -> Floats:
        """What each tree predicts (trees x bricks)."""
        nodes = np.repeat(self.roots[:, None], len(table), axis=1)
        rows = np.arange(len(table))[None, :]
        while True:
            low = table[rows, self.feature[nodes]] <= self.threshold[nodes]
            further = np.where(low, self.left[nodes], self.right[nodes])
            if np.array_equal(further, nodes):
                return self.value[nodes].astype(np.float64)
            nodes = further

    def guess(self, bricks: Sequence[tuple[Features, int]], machine: Machine) -> Guess:
        """Predict bricks of which nothing was measured.

        Args:
            bricks: Features and footprint class of each.
            machine: The system.
        """
        places = {operator: place for place, operator in enumerate(self.operators)}
        operators = tuple(features.operator for features, _ in bricks)
        table = np.array(
            [_numbers(features, level, machine, places.get(features.operator, -1)) for features, level in bricks],
            dtype=np.float32,
        ).reshape(len(bricks), -1)
        floors = np.log([machine.floor_ns(features, level) for features, level in bricks])
        if not len(bricks):
            return Guess(operators, np.zeros(0), np.zeros(0), table, np.zeros(0, dtype=bool))
        each = self.each(table)
        seen = np.array([operator in places for operator in operators])
        return Guess(operators, floors + each.mean(axis=0), each.std(axis=0), table[:, :-3], seen)


@dataclass(frozen=True, slots=True)
class Guess:
    """What the forest says of some bricks.

    Attributes:
        operators: Their operators.
        log_ns: Logarithms of their latencies in nanoseconds.
        spread: What the trees differ by.
        numbers: Their features: what is alike is near.
        seen: Whether their operators were learned from.
    """

    operators: tuple[str, ...]
    log_ns: Floats
    spread: Floats
    numbers: NDArray[np.float32]
    seen: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What predictions of families that were left out are off by (``benchmarks/prediction.py``).

    Attributes:
        slope: Change of the logarithm of a brick's error with that of what trees differ by (plus 0.02).
        size: Change with the logarithm of its predicted latency in nanoseconds.
        offset: What is added to both.
        operators: Factor of the error by operator.
        unseen: Error of an operator that was never learned from.
        alike: Share of the variance that all bricks of an operator have in common.
        near: Share that bricks have in common whose features are alike.
        reach: Distance of features, in logarithms, over which that falls off.
        measured: Relative error of a measured brick.
        system: Error that all bricks of a system have in common which was not learned from.
        shift: The same of all bricks of one operator.
        local: The same of bricks of one operator whose features are alike.
        single: The same of each brick.
        least: Error of a total that remains when all is measured.
        quantile: Half of the 95 % interval, in standard deviations of the total.
    """

    slope: float
    size: float
    offset: float
    operators: Mapping[str, float]
    unseen: float
    alike: float
    near: float
    reach: float
    measured: float
    system: float
    shift: float
    local: float
    single: float
    least: float
    quantile: float


@cache
def calibration() -> Calibration:
    """The one that is shipped."""
    text = files("dlbricks.constructor").joinpath("prediction.json").read_text("utf-8")
    return Calibration(**json.loads(text)["calibration"])


class Belief:
    """What is believed of the latencies of some bricks: means and covariances of their logarithms.

    Args:
        guess: What the forest says.
        how: What that is off by.
        familiar: Whether bricks of the same system and runtime were learned from.
    """

    def __init__(self, guess: Guess, how: Calibration, *, familiar: bool) -> None:
        self._how = how
        self.log_ns = guess.log_ns.copy()
        operators = np.unique(guess.operators, return_inverse=True)[1] if guess.operators else np.zeros(0)
        factors = np.array([how.operators.get(operator, 1.0) for operator in guess.operators])
        usual = np.exp(how.offset + how.slope * np.log(guess.spread + 0.02) + how.size * guess.log_ns) * factors
        sd = np.where(guess.seen, usual, np.maximum(usual, how.unseen))
        same = operators[:, None] == operators[None, :]
        numbers = guess.numbers.astype(np.float64)
        squares = (numbers**2).sum(axis=1)
        distances = np.maximum(squares[:, None] + squares[None, :] - 2 * numbers @ numbers.T, 0.0)
        near = same * np.exp(-distances / (2 * how.reach**2))
        shared = how.alike * same + how.near * near
        np.fill_diagonal(shared, 1.0)
        self.covariance: Floats = shared * sd[:, None] * sd[None, :]
        if not familiar:
            self.covariance += how.system**2 + same * how.shift**2 + near * how.local**2
            self.covariance += np.diag(np.full(len(sd), how.single**2))

    @property
    def latencies_ns(self) -> Floats:
        """The centre of what is believed."""
        return np.exp(self.log_ns)

    def learn(self, place: int, latency_ns: float) -> None:
        """Take in a measurement: it corrects other bricks, and narrows them, as far as they have to do with it."""
        shared = self.covariance[:, place]
        gain = shared / (shared[place] + self._how.measured**2)
        self.log_ns = self.log_ns + gain * (math.log(max(latency_ns, _LEAST_NS)) - self.log_ns[place])
        self.covariance = self.covariance - np.outer(gain, shared)

    def total(self, bricks: Weighted, known_ns: float = 0.0) -> Total:
        """The latency of a model.

        Args:
            bricks: How often each brick occurs whose latency is believed.
            known_ns: The sum of all others.
        """
        places, counts = list(bricks), np.array([*bricks.values()], dtype=np.float64)
        parts = counts * np.exp(self.log_ns[places])
        total_ns = float(parts.sum()) + known_ns
        shares = parts / total_ns if total_ns > 0 else np.zeros(len(parts))
        weights = shares * self._widened()[places]
        variance = float(weights @ self.covariance[np.ix_(places, places)] @ weights)
        sd = math.sqrt(max(0.0, variance) + self._how.least**2)
        return Total(total_ns, self._how.quantile * sd, dict(zip(places, shares.tolist(), strict=True)))

    def _widened(self) -> Floats:
        """How many times as wide a latency is as its logarithm: where that is off by a factor, it may be large."""
        variances = np.maximum(self.covariance.diagonal(), 1e-12)
        widened: Floats = np.sqrt(np.expm1(variances) * np.exp(variances) / variances)
        return widened

    def gains(self, totals: Sequence[Total]) -> Floats:
        """By how much the variance of some models' totals falls, all together, with each brick that is measured."""
        shares = np.zeros((len(totals), len(self.log_ns)))
        for row, total in zip(shares, totals, strict=True):
            row[list(total.shares)] = [*total.shares.values()]
        variances = self.covariance.diagonal() + self._how.measured**2
        gains: Floats = ((shares * self._widened() @ self.covariance) ** 2).sum(axis=0) / variances
        return gains

    def choose(
        self, models: Sequence[tuple[Weighted, float]], costs_s: Floats, target: float, left_s: float
    ) -> list[int]:
        """Choose what to measure next: what narrows the totals most per second, until all are narrow or time is up.

        Args:
            models: Bricks of each model that are believed, by how often they occur, and the sum of all others.
            costs_s: What it takes to measure each brick.
            target: Half of the interval that is wanted, of a logarithm.
            left_s: Time.
        """
        imagined = copy(self)  # to learn makes new arrays
        chosen: list[int] = []
        while True:
            totals = [imagined.total(bricks, known_ns) for bricks, known_ns in models]
            wide = [total for total in totals if total.half > target]
            if not wide:
                return chosen
            rates = imagined.gains(wide) / costs_s
            rates[chosen] = 0.0
            rates[costs_s > left_s] = 0.0
            place = int(rates.argmax())
            if rates[place] <= 0:
                return chosen
            chosen.append(place)
            left_s -= float(costs_s[place])
            imagined.learn(place, float(np.exp(imagined.log_ns[place])))


@dataclass(frozen=True, slots=True)
class Total:
    """The latency of a model of which bricks are predicted.

    Attributes:
        ns: The latency.
        half: Half of the 95 % interval of its logarithm.
        shares: Of each brick that is believed, the share of the latency.
    """

    ns: float
    half: float
    shares: Mapping[int, float]

    @property
    def ci95_ns(self) -> tuple[float, float]:
        """The interval."""
        return self.ns * math.exp(-self.half), self.ns * math.exp(self.half)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A brick that was predicted, as something to measure.

    Attributes:
        key: Key of the brick.
        operator: Its main operator, in its variant.
        count: How often it occurs in the model.
        share: Its share of the latency.
        gain: By what part of its variance the model's latency would be known better.
    """

    key: str
    operator: str
    count: int
    share: float
    gain: float


@dataclass(frozen=True, slots=True)
class Predicted:
    """Which part of an estimate was predicted, and how far that can be trusted.

    Attributes:
        bricks: Different bricks that were predicted.
        share: Their share of the latency.
        half: Half of the 95 % interval of the model's latency by these predictions alone, as a logarithm.
        familiar: Whether they were learned from bricks of the same system and runtime.
        unseen: Operators that no brick was learned from, with their share of the latency.
        narrowing: Bricks whose measurement would narrow it most, the first first.
    """

    bricks: int
    share: float
    half: float
    familiar: bool
    unseen: tuple[tuple[str, float], ...] = ()
    narrowing: tuple[Candidate, ...] = ()
