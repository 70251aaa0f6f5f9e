"""The input of analyses: a model's graph, its executed graph, and the latency of each executed operator."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from ...bricks.graph.model_graph import Layouts, ModelGraph
from ...bricks.layer import Cost, Layer
from ...bricks.operators import UNMOVED
from ...constructor.choice import COLD, Choice
from ...constructor.result import Estimate, SequenceLatency
from ...db import Measurement, Store
from ...errors import UsageError
from ...models import ModelSource
from ...models.denormals import denormal_weights
from ...tabular import Row

_HALF = 0.5
_THIRD = 1 / 3


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator that the runtime executes.

    Attributes:
        layer: The operator.
        origins: Layers of the model that it came from; empty for inserted operators.
        row: Result of its brick; None without a brick.
        scale: Its latency in the model as a share of the brick's.
    """

    layer: Layer
    origins: frozenset[int]
    row: SequenceLatency | None
    scale: float = 1.0

    @property
    def ms(self) -> float | None:
        """Its part of the model's latency in ms; None if it is not measured."""
        return None if self.row is None or self.row.latency_ms is None else self.scale * self.row.latency_ms

    @property
    def half_ms(self) -> float:
        """Half of its 95 % interval."""
        if self.row is None or self.row.ci95_ms is None:
            return math.inf
        low, high = self.row.ci95_ms
        return self.scale * (high - low) / 2


@dataclass(frozen=True, slots=True)
class Spent:
    """The total latency of some executed operators.

    Attributes:
        ms: Their sum.
        half_ms: Half of its 95 % interval: equal bricks have equal errors, others independent ones.
        keys: Keys of their bricks.
    """

    ms: float
    half_ms: float
    keys: tuple[str, ...]


Rates = dict[str, float | None]
"""Rates of a model's own operators per ms, weighted by their work, so that slow operators do not weigh more. A rate is
None without a measured operator of its kind.

* ``bytes``: bytes of activations, for operators without multiply-accumulates, divisions and exponentials;
* ``macs``: multiply-accumulates, without depthwise convolutions;
* ``depthwise``: multiply-accumulates of depthwise convolutions;
* ``special``: divisions and exponentials."""


def latency_of(estimate: Estimate) -> float | None:
    """Return the latency that all savings refer to: measured, else estimated."""
    return estimate.latency.ms if estimate.truth.ms is None else estimate.truth.ms


class AnalysedModel:
    """One model for analyses.

    Args:
        estimate: Its latency, with the model decomposed along the executed graph.
        store: The database, for other ways to run the model.

    Raises:
        UsageError: The model could not be decomposed.
    """

    def __init__(self, estimate: Estimate, store: Store) -> None:
        if estimate.model.decomposition is None:
            raise UsageError(f"{estimate.name} is not decomposed: {estimate.error}", remedy="leave it out")
        self.model = estimate.model.decomposition
        self.estimate = estimate
        self.choice: Choice | None = None if estimate.evidence is None else estimate.evidence.choice
        self.store = store
        self._modest: dict[str, Rates] = {}

    @property
    def source(self) -> ModelSource:
        """Source of the model."""
        return self.model.source

    @property
    def graph(self) -> ModelGraph:
        """The model's own graph."""
        return self.model.own

    @cached_property
    def denormal_layers(self) -> dict[int, int]:
        """Layers of the model with weights that are denormal numbers, and how many, the most first."""
        counts = denormal_weights(self.source)
        numbers = {
            layer.index: sum(counts.get(value, 0) for value in dict.fromkeys(one.value for one in layer.operands))
            for layer in self.graph.layers
        }
        return dict(sorted(((index, n) for index, n in numbers.items() if n), key=lambda pair: -pair[1]))

    @property
    def latency_ms(self) -> float | None:
        """The latency that all savings refer to: measured, else estimated."""
        return latency_of(self.estimate)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Executed operators in order; their sum never exceeds the model's latency."""
        graph, executed = self.model.graph, self.model.executed
        rows = {row.layers[0]: row for row in self.estimate.parts.sequences if len(row.layers) == 1}
        origins = None if executed is None else executed.origins
        return tuple(
            Node(
                graph.layers[index],
                frozenset({index}) if origins is None else origins[index],
                rows.get(index),
                self._scale,
            )
            for index in graph.live
        )

    @cached_property
    def _scale(self) -> float:
        """Return the model's latency over the sum of its bricks, if the sum is larger.

        If it is smaller, the rest belongs to calls, gaps and the cost of values instead of an operator.
        """
        total = math.fsum(row.latency_ms for row in self.estimate.parts.sequences if row.latency_ms is not None)
        return min(1.0, self.latency_ms / total) if self.latency_ms and total else 1.0

    @property
    def layouts(self) -> Layouts:
        """Traces of the runtime's layouts in the executed graph."""
        return Layouts() if self.model.executed is None else self.model.executed.layouts

    def of(self, layers: Collection[int], *operators: str) -> list[Node]:
        """Return the executed operators that came from some layers of the model and from no others.

        Args:
            layers: Their indices.
            operators: Only these.
        """
        indices = set(layers)
        return [
            node
            for node in self.nodes
            if node.origins and node.origins <= indices and (not operators or node.layer.op_type in operators)
        ]

    def spent(self, nodes: Sequence[Node]) -> Spent | None:
        """Return their total latency; None if one is not measured, or without operators."""
        if not nodes or any(node.ms is None or node.row is None for node in nodes):
            return None
        halves = {node.row.key: node.half_ms for node in nodes if node.row is not None}
        counts = Counter(node.row.key for node in nodes if node.row is not None)
        half = math.hypot(*(counts[key] * half for key, half in halves.items()))
        return Spent(math.fsum(node.ms or 0.0 for node in nodes), half, tuple(counts))

    def names(self, layers: Iterable[int]) -> tuple[str, ...]:
        """Names of layers of the model, in its order."""
        return tuple(self.graph.layers[index].name for index in sorted(set(layers)))

    @cached_property
    def usual(self) -> Rates:
        """The rates that half of the work of its operators reaches."""
        return self._rates(_HALF)

    def modest(self, operator: str) -> Rates:
        """Return the rates that two thirds of the work of all other operators reach; far slower operators are slow.

        Args:
            operator: Kind of the excluded operator; it counts if no other operator does this work.
        """
        if operator not in self._modest:
            others, all_rates = self._rates(_THIRD, without=operator), self._rates(_THIRD)
            self._modest[operator] = {kind: rate or all_rates[kind] for kind, rate in others.items()}
        return self._modest[operator]

    def _rates(self, share: float, without: str = "") -> Rates:
        def rate(work: Callable[[Layer, Cost], int]) -> float | None:
            nodes = [node for node in self.nodes if node.layer.op_type != without]
            layers = [(node.layer, node.layer.cost, node.ms) for node in nodes]
            amounts = [(work(layer, cost), ms) for layer, cost, ms in layers if cost is not None]
            return weighted_quantile([(amount / ms, amount) for amount, ms in amounts if amount and ms], share)

        def moved(layer: Layer, cost: Cost) -> int:
            computes = cost.macs or cost.divisions or cost.exponentials or layer.op_type in UNMOVED
            return 0 if computes else cost.activation_bytes

        return {
            "bytes": rate(moved),
            "macs": rate(lambda layer, cost: 0 if is_depthwise(layer) else cost.macs),
            "depthwise": rate(lambda layer, cost: cost.macs if is_depthwise(layer) else 0),
            "special": rate(lambda _, cost: 0 if cost.macs else cost.divisions + cost.exponentials),
        }


def is_depthwise(layer: Layer) -> bool:
    """Return True for a depthwise convolution of any domain and layout: each filter reads one of several channels."""
    slot = 3 if layer.op_type == "QLinearConv" else 1
    if "Conv" not in layer.op_type or "ConvTranspose" in layer.op_type or len(layer.operands) <= slot:
        return False
    groups = next((attribute.i for attribute in layer.node.attribute if attribute.name == "group"), 1)
    filters = layer.operands[slot].type
    if filters is None or len(filters.shape) < 2:
        return False
    return groups > 1 and filters.shape[-1 if layer.op_type.startswith("Nhwc") else 1] == 1


def weighted_quantile(values: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return the weighted quantile; None without values."""
    total, passed = sum(weight for _, weight in values), 0.0
    for value, weight in sorted(values):
        passed += weight
        if passed >= share * total:
            return value
    return None


# Cold start: loading a model and its first run, compared with a run of the steady state.
#
# TrIMS (Dakkak et al., IEEE CLOUD 2019) asks this for one model in one process: if a model is loaded for every request,
# loading is most of the latency. It is not a finding, since it saves nothing of a latency. Both times are stored with
# the measurement of a whole model: one sample each, of the first process that loaded it. That process has imported the
# runtime, and the file may have been read before, so that the first start of all takes longer. Memory that is touched
# for the first time is not told apart from the work that kernels prepare.


_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Loading a model and running it once.

    Attributes:
        load_ms: Until the runtime could run it.
        first_run_ms: The first run after that.
        latency_ms: A run of the steady state.
    """

    load_ms: float
    first_run_ms: float
    latency_ms: float

    @property
    def runs(self) -> float:
        """How many runs of the steady state take as long as loading and the first run."""
        return (self.load_ms + self.first_run_ms) / self.latency_ms

    def record(self) -> Row:
        """As a JSON object."""
        return asdict(self) | {"runs": self.runs}


def cold_start_of(measured: Measurement | None) -> ColdStart | None:
    """Return the cold start of a whole model; None if it was not timed."""
    if measured is None or measured.load_ns is None or measured.first_run_ns is None or measured.latency_ns <= 0:
        return None
    return ColdStart(*(ns / _NS_PER_MS for ns in (measured.load_ns, measured.first_run_ns, measured.latency_ns)))


def cold_start_in(subject: AnalysedModel) -> ColdStart | None:
    """Return the cold start in the latest measurement of a model; None if it was not timed."""
    evidence = subject.estimate.evidence
    stored = () if evidence is None else evidence.models.get(subject.graph.key, ())
    warm = (measured for measured in stored if measured.conditions.cache != COLD)
    starts = [start for measured in warm if (start := cold_start_of(measured)) is not None]
    return starts[-1] if starts else None
