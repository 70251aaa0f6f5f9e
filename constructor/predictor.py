"""Prediction of unmeasured bricks from measured ones.

    log latency = log physics + forest(features) + correction by measured bricks of the same system

*Physics* is a roofline with the rates of the system. The *forest* (extremely randomised trees on features of brick and
system) predicts the logarithm of the ratio of latency to physics. A Gaussian process (``Belief``) models the remaining
errors. They are correlated between bricks of one operator, more so between similar bricks. All bricks of a run share a
factor: a machine is faster on one day than on another. A measured brick therefore corrects all others and narrows their
intervals.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..bricks.features import Features
from ..bricks.graph.boundary import BOTH, BOUNDARY, FRESH, FRESH_KEPT, GIVEN, HALF, KEPT
from ..db import System
from .uncertainty.calibration import NORMAL

Floats = NDArray[np.float64]
Weighted = Mapping[int, float]
"""Occurrences of bricks in a model."""

_TREES = 100
_NODE_NS, _KERNEL_NS = 500.0, 1500.0
"""Latency in ns of a minimal node on a CPU, and of a minimal kernel on a GPU."""

_FORK_NS = 4000.0
"""Time to hand work to the other threads of a pool and to wait for them."""

_LEAST_NS = 100.0
"""Least latency in ns, for finite logarithms."""

_EQUAL = 0.1
"""Distance of features, in logarithms, up to which bricks count as equal but for wiring and footprint class."""

_USUAL = math.log(1e5)
"""Logarithm of the latency in ns at which the errors between systems are stated; smaller bricks have larger ones."""

NEARLY = 1.1
"""Width of an interval relative to its floor at which further bricks would narrow it by almost nothing."""

_MIB = 1 << 20


_COLD = {
    "": (0.0, 0.0, 0.0),
    GIVEN: (1.0, 0.0, 0.0),
    HALF: (0.5, 0.0, 0.0),
    FRESH: (0.0, 1.0, 0.0),
    KEPT: (0.0, 0.0, 1.0),
    BOTH: (1.0, 0.0, 1.0),
    FRESH_KEPT: (0.0, 1.0, 1.0),
}
"""Shares of the inputs that are cold, of the inputs that were just written to cold memory, and of cold outputs."""


@dataclass(frozen=True, slots=True)
class PlacedBrick:
    """A brick with what its place in a model decides.

    Attributes:
        features: Its features.
        level: Footprint class in bytes; 0 in other cache states.
        variant: Which of its inputs and outputs are cold (``bricks.graph.boundary``); empty: none.
    """

    features: Features
    level: int = 0
    variant: str = ""

    @property
    def cold_bytes(self) -> tuple[float, float, float]:
        """Bytes of cold inputs, of inputs that were just written to cold memory, and of cold outputs."""
        inputs, fresh, outputs = _COLD[self.variant]
        read, written = self.features.read_bytes, self.features.written_bytes
        return inputs * read, fresh * read, outputs * written


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of a system for the roofline.

    Attributes:
        compute: FLOPs per nanosecond.
        near: Bytes per nanosecond from caches.
        far: Bytes per nanosecond from memory.
        threads: Threads of the runtime.
        node_ns: Latency of a minimal node.
    """

    compute: float
    near: float
    far: float
    threads: int
    node_ns: float = _NODE_NS

    @classmethod
    def of(cls, system: System, device: str, threads: int) -> Self:
        """Return the rates of the instruction sets at 2.5 GHz, with usual bandwidths; the forest learns the rest.

        Measured ceilings vary between equal systems, and predictions would vary with them.
        """
        if device != "cpu":
            return cls(*_GPU, 1, _KERNEL_NS)
        wide = next((flops for name, flops in _FLOPS if any(isa.startswith(name) for isa in system.isa)), 16.0)
        return cls(2.5 * wide * threads, 20.0 * threads, 10.0 * math.sqrt(threads), threads)

    def floor_ns(self, brick: PlacedBrick) -> float:
        """Return the latency by physics in ns: the longer of arithmetic and memory, plus a node."""
        features, cold = brick.features, sum(brick.cold_bytes)
        moved = (features.read_bytes + features.written_bytes - cold) / self.near + cold / self.far
        weights = features.weight_bytes / (self.far if brick.level > 8 * _MIB else self.near)
        split = max((features.flops or 0) / self.compute, moved, weights)
        # Work is split only if that pays: the pool then forks and joins.
        return min(split * self.threads, split + _FORK_NS * (self.threads > 1)) + self.node_ns


_GPU = 3e4, 4e3, 2e3
"""FLOPs and bytes per ns of a GPU: half of an H100's rates; the forest learns the rest."""

_FLOPS = (("amx", 64.0), ("avx512", 64.0), ("avx2", 32.0), ("asimd", 16.0), ("neon", 16.0))
"""FLOPs of one core in one cycle by the widest instructions."""


@dataclass(frozen=True, slots=True)
class Origin:
    """System, runtime and conditions of a measured brick."""

    system: str
    backend: str
    device: str
    threads: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Example:
    """A measured brick.

    Attributes:
        brick: The brick at its place.
        machine: Rates of its system.
        latency_ns: Latency on a quiet machine.
        origin: Its system, runtime and conditions.
        run: The run that measured it; empty for shipped ones.
    """

    brick: PlacedBrick
    machine: Machine
    latency_ns: float
    origin: Origin
    run: str = ""


VARIANTS = ("", *BOUNDARY)
"""Variants of bricks that are learned and predicted; shipped bricks have their places here."""


@cache
def _shipped() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        lzma.decompress(files("dlbricks.constructor").joinpath("prior.json.xz").read_bytes())
    )
    return data


def prior_systems() -> list[System]:
    """Return the systems whose bricks ship with the package, one for each number of threads."""
    records = [{name: _frozen(value) for name, value in origin["system"].items()} for origin in _shipped()["origins"]]
    return [System(**fields) for fields in records]


@cache
def prior() -> tuple[Example, ...]:
    """Return the bricks that ship with the package: the zoo on several systems (docs/explanation/prediction.md)."""
    record, combinations = _shipped(), []
    for entry, system in zip(record["origins"], prior_systems(), strict=True):
        origin = Origin(system.key, entry["backend"], entry["device"], entry["threads"], entry["dtype"])
        combinations.append((origin, Machine.of(system, origin.device, origin.threads)))
    examples = []
    for number, level, variant, latency_ns, operator, flops, weights, read, written, *extents in record["rows"]:
        origin, machine = combinations[number]
        features = Features(record["operators"][operator], flops, weights, read, written, tuple(extents))
        examples.append(Example(PlacedBrick(features, level, VARIANTS[variant]), machine, latency_ns, origin))
    return tuple(examples)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


_OF_PLACE = 6
"""Trailing numbers of a brick that do not count in distances: those of its place, the threads and the operator."""


def _numbers(brick: PlacedBrick, machine: Machine, operator: int) -> list[float]:
    """Return the numbers for the trees; logarithms, because latencies are products of extents."""
    features = brick.features
    flops, moved = features.flops or 0, features.bytes
    sizes = (flops, features.weight_bytes, features.read_bytes, features.written_bytes, *features.extents)
    logarithms = [math.log1p(abs(size)) for size in sizes]
    place = [math.log1p(size) for size in (*brick.cold_bytes, brick.level)]
    return [*logarithms, math.log((1 + flops) / (1 + moved)), *place, math.log(machine.threads), operator]


@dataclass(frozen=True, slots=True)
class Forest:
    """Regression trees as arrays; reading and using them does not need scikit-learn.

    Attributes:
        roots: Index of the first node of each tree.
        left: Next node if the feature is at most the threshold; a leaf has its own index.
        right: Next node otherwise.
        feature: Index of the deciding feature.
        threshold: Its threshold.
        value: Prediction of a leaf.
        operators: Learned operators; their position is the last feature.
    """

    roots: NDArray[np.int32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    feature: NDArray[np.int16]
    threshold: Floats
    value: NDArray[np.float32]
    operators: tuple[str, ...]

    @classmethod
    def fitted(cls, examples: Sequence[Example]) -> Self:
        """Fit a forest to measured bricks, at least one, independent of their order; thousands take some seconds."""
        from sklearn.ensemble import ExtraTreesRegressor

        operators = tuple(sorted({example.brick.features.operator for example in examples}))
        positions = {operator: index for index, operator in enumerate(operators)}
        rows = []
        for example in examples:
            brick, machine, latency_ns = example.brick, example.machine, max(example.latency_ns, _LEAST_NS)
            ratio = math.log(latency_ns / machine.floor_ns(brick))
            rows.append((*_numbers(brick, machine, positions[brick.features.operator]), ratio, latency_ns))
        table = np.array(sorted(rows))
        trees = ExtraTreesRegressor(_TREES, random_state=0, n_jobs=-1)
        trees.fit(table[:, :-2].astype(np.float32), table[:, -2], sample_weight=np.sqrt(table[:, -1]))
        fitted = [tree.tree_ for tree in trees.estimators_]
        counts = [tree.node_count for tree in fitted]
        roots = np.cumsum([0, *counts[:-1]])
        indices = [np.arange(count) for count in counts]

        def joined(name: str) -> NDArray[np.int32]:
            children = [getattr(tree, name) for tree in fitted]
            nodes = [np.where(child < 0, mine, child) for child, mine in zip(children, indices, strict=True)]
            return np.concatenate([next_ + root for next_, root in zip(nodes, roots, strict=True)]).astype(np.int32)

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
        """Write the forest to a file."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__ if name != "operators"}
        np.savez(path, operators=np.array(self.operators, dtype=np.str_), **arrays)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a forest; raises ``OSError``, ``ValueError`` or ``KeyError`` for a damaged file."""
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in cls.__slots__ if name != "operators"}
            return cls(**arrays, operators=tuple(map(str, archive["operators"])))

    def each(self, table: NDArray[np.float32]) -> Floats:
        """Return the prediction of each tree (trees x bricks)."""
        nodes = np.repeat(self.roots[:, None], len(table), axis=1)
        rows = np.arange(len(table))[None, :]
        while True:
            low = table[rows, self.feature[nodes]] <= self.threshold[nodes]
            further = np.where(low, self.left[nodes], self.right[nodes])
            if np.array_equal(further, nodes):
                return self.value[nodes].astype(np.float64)
            nodes = further

    def guess(self, bricks: Sequence[PlacedBrick], machine: Machine) -> Guess:
        """Predict unmeasured bricks."""
        if not bricks:
            return Guess((), np.zeros(0), np.zeros(0), np.zeros((0, 0), dtype=np.float32), np.zeros(0, dtype=bool))
        positions = {operator: index for index, operator in enumerate(self.operators)}
        operators = tuple(brick.features.operator for brick in bricks)
        table = np.array(
            [_numbers(brick, machine, positions.get(brick.features.operator, -1)) for brick in bricks], np.float32
        )
        floors = np.log([machine.floor_ns(brick) for brick in bricks])
        each = self.each(table)
        seen = np.array([operator in positions for operator in operators])
        return Guess(operators, floors + each.mean(axis=0), each.std(axis=0), table[:, :-_OF_PLACE], seen)


@dataclass(frozen=True, slots=True)
class Guess:
    """Predictions of a forest for some bricks.

    Attributes:
        operators: Their operators.
        log_ns: Logarithms of their latencies in nanoseconds.
        spread: Standard deviation over the trees.
        numbers: Their features; similar bricks have a small distance.
        seen: True for operators in the learned bricks.
    """

    operators: tuple[str, ...]
    log_ns: Floats
    spread: Floats
    numbers: NDArray[np.float32]
    seen: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PredictorErrors:
    """Errors of predictions, fitted with families of models left out (``benchmarks/prediction.py``).

    Attributes:
        slope: Slope of the logarithm of a brick's error in the logarithm of ``spread + 0.02``.
        size: Slope in the logarithm of its predicted latency in nanoseconds.
        offset: Offset of the logarithm.
        operators: Factor of the error by operator.
        unseen: Error of an operator that was not learned from.
        alike: Share of the variance common to all bricks of an operator.
        near: Share common to similar bricks; the rest is common only to bricks with equal features.
        reach: Distance of features, in logarithms, at which ``near`` has fallen to 0.61.
        measured: Relative error of a measured brick.
        day: Error common to all bricks of a run: difference between two runs on systems of one kind.
        system: Error common to all bricks of a system that was not learned from.
        shift: Error of such a system common to an operator.
        local: Error of such a system common to similar bricks.
        single: Error of such a system for bricks with equal features.
        least: Error of a total with all bricks measured.
        quantiles: Half-width of the 95 % interval, in standard deviations of the total's own error, by how many bricks
            of the model are measured at least. The more are, the less does one surprising brick matter.
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
    day: float
    system: float
    shift: float
    local: float
    single: float
    least: float
    quantiles: Sequence[tuple[int, float]]

    def quantile(self, measured: int) -> float:
        """Return the half-width in standard deviations if so many bricks of the model are measured."""
        return next(value for least, value in reversed(self.quantiles) if least <= measured)


@cache
def calibration() -> PredictorErrors:
    """Return the shipped calibration."""
    text = files("dlbricks.constructor").joinpath("prediction.json").read_text("utf-8")
    return PredictorErrors(**json.loads(text)["calibration"])


NOW = "now"
"""The run whose latencies are predicted."""


class Belief:
    """Means and covariances of the logarithms of bricks' latencies.

    The logarithm is the sum of an error of the brick, correlated within its operator, and of common factors, times
    sensitivities. Given the factors, a measurement touches one operator only.

    Attributes:
        apart: Covariances of the bricks' own errors.
        sensitivities: Of each brick to each factor.
        doubts: Covariances of the factors.

    Args:
        guess: Predictions of the forest.
        how: Their errors.
        familiar: True if bricks of the same system and runtime were learned from.
        runs: Run of each brick; default: all ``NOW``.
    """

    def __init__(self, guess: Guess, how: PredictorErrors, *, familiar: bool, runs: Sequence[str] = ()) -> None:
        self._how = how
        factors = np.array([how.operators.get(operator, 1.0) for operator in guess.operators])
        usual = np.exp(how.offset + how.slope * np.log(guess.spread + 0.02) + how.size * guess.log_ns) * factors
        sd = np.where(guess.seen, usual, np.maximum(usual, how.unseen))
        scale = np.exp(how.size * (guess.log_ns - _USUAL))
        self._apart_ns = guess.log_ns.copy()  # with all factors zero
        self.apart: Floats = np.zeros((len(sd), len(sd)))
        # Half of the variance between two runs is of the learned run, common to all others.
        day = how.day / math.sqrt(2)
        labels = np.array(runs or [NOW] * len(sd))
        run_columns = [day * (labels == run) for run in dict.fromkeys([NOW, *runs])]
        # Common factors have the normal quantile; how far another system is off has that of the bricks' own errors.
        learned = np.full(len(sd), day) if familiar else how.system * scale * how.quantile(0) / NORMAL
        self.sensitivities: Floats = np.column_stack([learned, *run_columns])
        self._factors: Floats = np.zeros(1 + len(run_columns))
        self.doubts: Floats = np.eye(1 + len(run_columns))
        operators = np.array(guess.operators)
        for operator in dict.fromkeys(guess.operators):
            members = np.flatnonzero(operators == operator)
            numbers = guess.numbers[members].astype(np.float64)
            squares = (numbers**2).sum(axis=1)
            distances = np.maximum(squares[:, None] + squares[None, :] - 2 * numbers @ numbers.T, 0.0)
            near, equal = (np.exp(-distances / (2 * reach**2)) for reach in (how.reach, _EQUAL))
            shared = how.alike + how.near * near + (1.0 - how.alike - how.near) * equal
            block = shared * np.outer(sd[members], sd[members])
            if not familiar:
                local = how.shift**2 + how.local**2 * near + how.single**2 * equal
                block += local * np.outer(scale[members], scale[members])
            self.apart[np.ix_(members, members)] = block

    @property
    def log_ns(self) -> Floats:
        """Expected logarithms of latencies in ns."""
        expected: Floats = self._apart_ns + self.sensitivities @ self._factors
        return expected

    @property
    def latencies_ns(self) -> Floats:
        """Expected latencies in ns."""
        return np.exp(self.log_ns)

    @property
    def variances(self) -> Floats:
        """Variances of the logarithms."""
        common = ((self.sensitivities @ self.doubts) * self.sensitivities).sum(axis=1)
        variances: Floats = self.apart.diagonal() + common
        return variances

    def learn(self, index: int, latency_ns: float) -> None:
        """Add a measurement: it corrects and narrows the common factors, and bricks of its operator."""
        measured = math.log(max(latency_ns, _LEAST_NS))
        touched = np.flatnonzero(self.apart[:, index])
        shared, brick_variance = self.apart[touched, index], self.apart[index, index] + self._how.measured**2
        sensitivities, apart_ns = self.sensitivities[index].copy(), self._apart_ns[index]
        reached = self.doubts @ sensitivities
        variance = brick_variance + sensitivities @ reached
        self._factors += reached / variance * (measured - apart_ns - sensitivities @ self._factors)
        self.doubts -= np.outer(reached, reached) / variance
        gain = shared / brick_variance
        self._apart_ns[touched] += gain * (measured - apart_ns)
        self.sensitivities[touched] -= np.outer(gain, sensitivities)
        self.apart[np.ix_(touched, touched)] -= np.outer(gain, shared)

    def total(self, gap: Gap) -> PredictedTotal:
        """Return the latency of a model."""
        places, counts = list(gap.counts), np.array([*gap.counts.values()], dtype=np.float64)
        parts = counts * np.exp(self.log_ns[places])
        total_ns = float(parts.sum()) + gap.known_ns
        shares = parts / total_ns if total_ns > 0 else np.zeros(len(parts))
        weights = shares * self._widened()[places]
        sensitivities = weights @ self.sensitivities[places]
        own = max(0.0, float(weights @ self.apart[np.ix_(places, places)] @ weights)) + self._how.least**2
        common = max(0.0, float(sensitivities @ self.doubts @ sensitivities))
        half = math.sqrt(self._how.quantile(gap.measured) ** 2 * own + NORMAL**2 * common)
        return PredictedTotal(total_ns, half, own + common, dict(zip(places, shares.tolist(), strict=True)))

    def _widened(self) -> Floats:
        """Return the relative error of each latency divided by the error of its logarithm."""
        variances = np.maximum(self.variances, 1e-12)
        widened: Floats = np.sqrt(np.expm1(variances) * np.exp(variances) / variances)
        return widened

    def gains(self, totals: Sequence[PredictedTotal]) -> Floats:
        """Return by how much measuring each brick would reduce the sum of the totals' variances."""
        shares = np.zeros((len(totals), len(self.log_ns)))
        for row, total in zip(shares, totals, strict=True):
            row[list(total.shares)] = [*total.shares.values()]
        weights = shares * self._widened()
        covariances = weights @ self.apart + weights @ self.sensitivities @ self.doubts @ self.sensitivities.T
        gains: Floats = (covariances**2).sum(axis=0) / (self.variances + self._how.measured**2)
        return gains

    def choose(self, gaps: Sequence[Gap], costs_s: Floats, target: float, left_s: float) -> list[int]:
        """Choose bricks that narrow the totals most per second, until all are narrow or the time is used.

        A total is narrow if its whole interval has the wanted width, or if the bricks that are left widen it by less
        than a tenth. The expected values do not change what is chosen next, so that one call plans a whole run.

        Args:
            gaps: The unmeasured bricks of each model.
            costs_s: Seconds to measure each brick.
            target: Wanted half-width of the logarithm.
            left_s: Available seconds.
        """
        imagined = deepcopy(self)
        shares = np.zeros((len(gaps), len(self.log_ns)))
        for row, gap in zip(shares, gaps, strict=True):
            total = self.total(gap)
            row[list(total.shares)] = [*total.shares.values()]
        weights = shares * self._widened()
        apart = weights @ self.apart
        costs_s, chosen, error = costs_s.copy(), list[int](), self._how.measured
        fixed, scatters = np.array([gap.method for gap in gaps]), np.array([gap.scatter for gap in gaps])
        measured = np.array([gap.measured for gap in gaps])
        while True:
            sensitivities = weights @ imagined.sensitivities
            common = sensitivities @ imagined.doubts
            quantiles = np.array([self._how.quantile(count) for count in measured])
            variances = quantiles**2 * (apart * weights).sum(axis=1) + NORMAL**2 * (common * sensitivities).sum(axis=1)
            halves = np.sqrt(np.maximum(0.0, variances))
            known_shares = 1.0 - shares.sum(axis=1)
            floors = np.hypot(np.hypot(fixed, quantiles * self._how.least), scatters * known_shares)
            wide = np.hypot(halves, floors) > np.maximum(target, NEARLY * floors)
            costs_s[costs_s > left_s] = np.inf
            shared = apart[wide] + common[wide] @ imagined.sensitivities.T
            rates = (shared**2).sum(axis=0) / (imagined.variances + error**2) / costs_s
            if not rates.any():
                return chosen
            index = int(rates.argmax())
            chosen.append(index)
            left_s -= float(costs_s[index])
            costs_s[index] = np.inf
            block = imagined.apart[index]
            apart -= np.outer(apart[:, index], block) / (block[index] + error**2)
            imagined.learn(index, float(imagined.latencies_ns[index]))
            apart -= np.outer(weights[:, index], imagined.apart[index])
            fixed = np.hypot(fixed, NORMAL * error * shares[:, index])
            measured += shares[:, index] > 0
            weights[:, index] = shares[:, index] = 0.0


@dataclass(frozen=True, slots=True)
class Gap:
    """The unmeasured bricks of a model, and the errors of its total that none of them narrows.

    Attributes:
        counts: Occurrences of each, by position among all predicted bricks.
        known_ns: Sum of its other bricks.
        measured: How many other bricks it has.
        method: Half of the 95 % interval of the error of composing, relative.
        scatter: The same of the scatter between processes, which applies to the measured part.
    """

    counts: Weighted
    known_ns: float = 0.0
    measured: int = 0
    method: float = 0.0
    scatter: float = 0.0


@dataclass(frozen=True, slots=True)
class PredictedTotal:
    """The latency of a model with predicted bricks.

    Attributes:
        ns: The latency.
        half: Half-width of the 95 % interval of its logarithm.
        variance: Variance of its logarithm.
        shares: Share of each predicted brick in the latency.
    """

    ns: float
    half: float
    variance: float
    shares: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A predicted brick as a candidate for measurement.

    Attributes:
        key: Key of the brick.
        operator: Its main operator in its variant.
        count: Occurrences in the model.
        share: Its share of the latency.
        gain: Share of the variance of the model's latency that measuring it would remove.
    """

    key: str
    operator: str
    count: int
    share: float
    gain: float


@dataclass(frozen=True, slots=True)
class Predicted:
    """The predicted part of an estimate and its error.

    Attributes:
        bricks: Number of different predicted bricks.
        share: Their share of the latency.
        half: Half-width of the 95 % interval from these predictions alone, as a logarithm.
        familiar: True if bricks of the same system and runtime were learned from.
        unseen: Operators without learned bricks, with their share of the latency.
        narrowing: Best bricks to measure, best first.
    """

    bricks: int
    share: float
    half: float
    familiar: bool
    unseen: tuple[tuple[str, float], ...] = ()
    narrowing: tuple[Candidate, ...] = ()
