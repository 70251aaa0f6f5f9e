"""What other stored measurements say: other runtimes and options, other batches, padded channels."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ....bricks.cutting.sequences import sequences
from ....bricks.graph.graph import ModelGraph, build_graph
from ....bricks.layer import GLOBAL_POOLS, POINTWISE, POOLS, PRODUCTS, Layer, LayerSequence, Role
from ....constructor.choice import narrows
from ....constructor.sweep import optimal_batch
from ....constructor.uncertainty.interval import NORMAL
from ....db import Measurement, Stack, Store, Subject
from ....errors import DlbricksError
from ....generator.backends.base import TF32
from ....generator.decomposition.decompose import WorkerOracle
from ....models import ModelSource
from ...comparison.sides import Timeline, visited_in_turn
from ...estimation.query import stored_under
from ..finding import BRICKS, LATENCY, Analysis, Finding, Idea, Remedy, finding_of, spent_by
from ..subject import AnalysedModel as Model
from ..subject import Node, Spent
from .fusions import padding_remedy, unblocked, unblocked_idea

# Two stored measurements beside each other, with what the machine may have done in between.


@dataclass(frozen=True, slots=True)
class Ratio:
    """One latency over another.

    Attributes:
        value: The other's latency over that of the base.
        own: Half of the 95 % interval of its logarithm, by what both measurements leave in doubt.
        apart: The same by what the machine may have done in between, which other ratios of these runs have in common.
        in_turn: Whether both were visited in turn.
    """

    value: float
    own: float
    apart: float
    in_turn: bool

    @property
    def half(self) -> float:
        """Half of the 95 % interval of its logarithm."""
        return math.hypot(self.own, self.apart)

    def between(self, factor: float = 1.0) -> tuple[float, float]:
        """The interval of so many times the ratio."""
        return factor * self.value * math.exp(-self.half), factor * self.value * math.exp(self.half)


class Beside:
    """Compares stored measurements of one kind, as docs/comparing.md does.

    Args:
        store: The database.
        measurements: All that are compared.
    """

    def __init__(self, store: Store, measurements: Sequence[Measurement]) -> None:
        self._timeline = Timeline(store)
        self._blocks = store.blocks_of([measurement.id for measurement in measurements])

    def ratio(self, base: Measurement, other: Measurement) -> Ratio:
        """The latency of another measurement over that of a base; both above 0."""
        ours, theirs = (self._blocks.get(measurement.id, ()) for measurement in (base, other))
        in_turn = visited_in_turn(base, other, ours, theirs)
        stand = self._timeline.between(base, other, (ours, theirs), in_turn=in_turn)
        own = math.hypot(*(measurement.half_ns / measurement.latency_ns for measurement in (base, other)))
        return Ratio(stand.other_ns / stand.base_ns, own, NORMAL * stand.apart, in_turn)


# Other stored ways to run the model that take less: more threads, another precision, another runtime, other options.
#
# Saving: measured latency here less measured latency there, of the same model on the same system, each way by itself
# and the fastest of its kind. Measurements of different runs have in their interval what the machine may have done in
# between (docs/comparing.md).


def _alternatives_run(model: Model) -> Iterable[Finding]:
    choice = model.choice
    if choice is None or model.latency_ms is None:
        return
    stored = model.store.measurements(
        subject=Subject.MODEL, keys=[model.graph.key], system=choice.system_key, variant=""
    )
    stored = [
        measurement for measurement in stored if measurement.conditions.cache != "cold" and measurement.latency_ns > 0
    ]
    here = [measurement for measurement in stored if measurement.stack == choice.stack_key]
    own = [
        measurement
        for measurement in here
        if (measurement.conditions.threads, measurement.conditions.dtype)
        == (choice.conditions.threads, choice.conditions.dtype)
    ]
    if not own:
        return
    base, stacks, found = own[-1], model.store.stacks(), dict[tuple[str, str], Finding]()
    beside = Beside(model.store, stored)
    for other in stored:
        difference = _difference(base, other, stacks)
        if difference is None:
            continue
        kind, remedy = difference
        ratio = beside.ratio(base, other)
        least, most = ratio.between()
        saving = model.latency_ms * (1 - ratio.value)
        way = (kind, remedy.action)
        if way not in found or saving > found[way].saving_ms:
            found[way] = Finding(
                kind=kind,
                title=remedy.text,
                layers=(),
                current_ms=model.latency_ms,
                achievable_ms=model.latency_ms - saving,
                saving_ms=saving,
                ci95_ms=(model.latency_ms * (1 - most), model.latency_ms * (1 - least)),
                share=saving / model.latency_ms,
                evidence=(_measured(base, other, together=ratio.in_turn),),
                keys=(),
                remedy=remedy,
            )
    yield from found.values()


def _measured(base: Measurement, other: Measurement, *, together: bool) -> str:
    latencies = f"{other.latency_ms:.4g} ms there, {base.latency_ms:.4g} ms here"
    return f"measured: {latencies}, {'in turn' if together else 'in different runs'}"


def _difference(base: Measurement, other: Measurement, stacks: Mapping[str, Stack]) -> tuple[str, Remedy] | None:
    """What kind of other way it is, where it differs from the base in one thing alone."""
    ours, theirs = stacks[base.stack], stacks[other.stack]
    threads, dtype = other.conditions.threads, other.conditions.dtype
    changed = _changed(dict(ours.options), dict(theirs.options))
    differs = {
        "threads": threads != base.conditions.threads,
        "precision": dtype != base.conditions.dtype or narrows(ours) != narrows(theirs),
        "framework": ours.backend != theirs.backend,
        "options": ours.backend == theirs.backend and bool(changed.keys() - {TF32.name}),
        "": ours.device != theirs.device or (ours.backend == theirs.backend and ours.versions != theirs.versions),
    }
    kinds = [kind for kind, changes in differs.items() if changes]
    match kinds:
        case ["threads"]:
            remedy = Remedy("threads", f"Run with {threads} threads.", {"threads": str(threads)})
        case ["precision"] if dtype == base.conditions.dtype:
            how = "in TF32, where the accuracy allows it" if narrows(theirs) else "exactly"
            remedy = Remedy("session_option", f"Compute products and convolutions of float32 {how}.", changed)
        case ["precision"]:
            remedy = Remedy("precision", f"Compute in {dtype}, where the accuracy allows it.", {"dtype": dtype})
        case ["framework"]:
            versions = " ".join(f"{name} {version}" for name, version in theirs.versions)
            remedy = Remedy("backend", f"Run with {versions or theirs.backend}.", {"backend": theirs.backend})
        case ["options"]:
            words = ", ".join(f"{name}={value}" for name, value in changed.items())
            remedy = Remedy("session_option", f"Run with {words}.", changed)
        case _:
            return None
    return kinds[0], remedy


def _changed(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Options that have another value there."""
    return {name: value for name, value in theirs.items() if ours.get(name) != value}


ALTERNATIVES = Analysis("alternatives", frozenset({LATENCY}), _alternatives_run)


# Inputs that are run in another batch than the one that suits the machine.
#
# The optimal batch is the first whose doubling gains at most 5 % of throughput, n / latency(n) (XSP: Li et al., IPDPS
# 2020, section IV), among the measured batches that double up to the model's own and from there on. Saving: what the
# model's own batch takes, less what so many samples take in the optimal batch. Nothing is measured for it: ``measure
# MODEL --batch 1,2,4`` visits batches in turn. Each sample then waits for the others of its batch.


_NS_PER_S = 1e9


def _batch_run(model: Model) -> Iterable[Finding]:
    own, stored = _batch_of(model), _batch_stored(model)
    if own is None or model.latency_ms is None or model.graph.key not in stored or len(stored) < 2:
        return
    known = _by_batch(model, own, stored)
    best = optimal_batch({batch: measurement.latency_ns for batch, measurement in known.items()})
    if best == own:
        return
    base, other = known[own], known[best]
    ratio = Beside(model.store, [base, other]).ratio(base, other)
    low, high = ratio.between(own / best)
    left = ratio.value * own / best
    takes = other.latency_ms
    yield Finding(
        kind="batch",
        title=f"run in batches of {best} in place of {own}, a sample takes {left:.0%} of the time",
        layers=(),
        current_ms=model.latency_ms,
        achievable_ms=model.latency_ms * left,
        saving_ms=model.latency_ms * (1 - left),
        ci95_ms=(model.latency_ms * (1 - high), model.latency_ms * (1 - low)),
        share=1 - left,
        evidence=tuple(_batch_evidence(known, best, in_turn=ratio.in_turn)),
        keys=(),
        remedy=Remedy(
            "manual", f"Run {best} samples at once: they take {takes:.3g} ms together.", {"batch": str(best)}
        ),
    )


def _batch_evidence(known: Mapping[int, Measurement], best: int, *, in_turn: bool) -> Iterator[str]:
    rates = {batch: batch * _NS_PER_S / measurement.latency_ns for batch, measurement in sorted(known.items())}
    rates_text = ", ".join(f"{rate:.4g} in batches of {batch}" for batch, rate in rates.items())
    yield f"samples per second, measured {'in turn' if in_turn else 'in different runs'}: {rates_text}"
    if 2 * best in rates:
        yield f"twice as many at once gain {rates[2 * best] / rates[best] - 1:.0%}"
    else:
        yield f"batches of {2 * best} are not measured"


def _batch_of(model: Model) -> int | None:
    """The model's own batch: the first dimension of its first input that has one."""
    if model.source.batch is not None:
        return model.source.batch
    shapes = (kind.shape for kind in model.graph.inputs.values() if kind is not None and kind.shape)
    return next((shape[0] for shape in shapes if shape[0] > 0), None)


def _batch_stored(model: Model) -> dict[str, Measurement]:
    """All whole models that are measured with this system, stack, threads and precision, by key."""
    choice = model.choice
    if choice is None:
        return {}
    found = model.store.measurements(stored_under(choice), subject=Subject.MODEL)
    return {
        measurement.key: measurement
        for measurement in found
        if measurement.conditions.cache != "cold" and measurement.latency_ns > 0
    }


def _by_batch(model: Model, own: int, stored: Mapping[str, Measurement]) -> dict[int, Measurement]:
    """What is measured of the batches that double up to the model's own, and from there on."""
    known = {own: stored[model.graph.key]}
    with WorkerOracle() as oracle:
        batch = own
        while batch % 2 == 0 and (found := stored.get(_key(model.source, batch // 2, oracle))) is not None:
            batch //= 2
            known[batch] = found
        batch = own
        while (found := stored.get(_key(model.source, 2 * batch, oracle))) is not None:
            batch *= 2
            known[batch] = found
    return known


def _key(source: ModelSource, batch: int, oracle: WorkerOracle) -> str:
    """Key of the model in another batch; empty where it cannot be had in that."""
    with suppress(DlbricksError):  # a batch that is fixed: nothing can be measured of others either
        return build_graph(replace(source, batch=batch).skeleton(), oracle=oracle).key
    return ""


BATCH = Analysis("batch", frozenset({LATENCY}), _batch_run)


# Channels that are no multiple of what the runtime's kernels are made for: blocks of a vector, tiles of a matrix unit.
#
# Saving: of each convolution and product with constant weights, what it takes in the model times the share that its
# brick gains when its channels are padded with zeros to a multiple of 8 or 16. Both latencies are stored: ``run
# --algorithms`` measures bricks of the model's own layers so (``generator.network.padding``). Layers that padding
# makes slower count too, since channels are padded for all layers that share them; where a multiple of 16 is not
# stored, it is the same as one of 8. What layers between them pay for channels that mean nothing is not in it.
#
# Only channels that stay within the model: of its inputs and outputs, and of what is computed across channels, such
# as a softmax, none can be added.
#
# Where no padded bricks are stored, ``blocks`` estimates what convolutions take that a runtime cannot lay out in
# blocks.


_MULTIPLES = (8, 16)
_WEIGHTED = PRODUCTS | {"Conv"}
_PASSING = POINTWISE | POOLS | GLOBAL_POOLS | {"BatchNormalization", "Concat", "Flatten"}
"""Operators that hand on channels one by one."""

_KERNELS = ("Conv", "Gemm", "MatMul")
"""In the names of the operators that are executed for these layers."""


def _padding_run(model: Model) -> Iterable[Finding]:
    parts = sequences(model.graph, 1)
    stored = _padding_stored(model, {part.key for part in parts})
    found = [padded for multiple in _MULTIPLES if (padded := _padded(model, multiple, parts, stored)) is not None]
    if not found and (wider := unblocked(model)) is not None:
        found = [wider]
    yield from sorted(found, key=lambda finding: -finding.saving_ms)[:1]


def _padding_stored(model: Model, keys: Collection[str]) -> dict[str, dict[tuple[str, str], Measurement]]:
    """Measurements of the bricks of the model's own layers by algorithm, each by key and cache state."""
    choice = model.choice
    if choice is None:
        return {}
    found = {}
    for variant in ("", *(_variant(multiple) for multiple in _MULTIPLES)):
        measured = model.store.measurements(stored_under(choice), subject=Subject.BRICK, keys=keys, variant=variant)
        found[variant] = {
            (measurement.key, measurement.conditions.cache): measurement
            for measurement in measured
            if measurement.latency_ns > 0
        }
    return found


def _variant(multiple: int) -> str:
    return f"padded-{multiple}"


def _padded(
    model: Model,
    multiple: int,
    parts: Sequence[LayerSequence],
    stored: Mapping[str, Mapping[tuple[str, str], Measurement]],
) -> Finding | None:
    """What padding all channels to a multiple saves."""
    plain = stored.get("", {})
    wide = {
        place: measurement
        for size in _MULTIPLES
        if size <= multiple
        for place, measurement in stored[_variant(size)].items()
    }
    pairs = {
        key: (plain[key, state], measurement) for (key, state), measurement in wide.items() if (key, state) in plain
    }
    beside = Beside(model.store, [measurement for pair in pairs.values() for measurement in pair])
    places: list[tuple[int, Node, Ratio]] = []
    for part in parts if pairs else ():
        layer = model.graph.layers[part.layers[0]]
        nodes = [
            node for node in model.touching(part.layers) if any(kernel in node.layer.op_type for kernel in _KERNELS)
        ]
        if part.key in pairs and len(nodes) == 1 and _can_be_wider(model.graph, layer, multiple):
            places.append((layer.index, nodes[0], beside.ratio(*pairs[part.key])))
    current = model.spent([node for _, node, _ in places])
    if current is None:
        return None
    saved = [(node.ms or 0.0) * (1 - ratio.value) for _, node, ratio in places]
    doubt = _doubt(model, places, math.fsum(saved) / current.ms * current.half_ms)
    idea = Idea(
        "padding",
        f"the channels of {len(places)} layers are no multiples of {multiple}",
        padding_remedy(model, multiple),
        tuple(_padding_evidence(places, saved, multiple)),
        model.names(index for index, *_ in places),
    )
    return finding_of(model, idea, current, Spent(math.fsum(saved), doubt, ()))


def _doubt(model: Model, places: Sequence[tuple[int, Node, Ratio]], current_ms: float) -> float:
    """Half of the interval of a saving in ms.

    Layers of one brick err together, those of others independently; all of them in what the machine did between runs.
    """
    bricks: defaultdict[str, float] = defaultdict(float)
    runs = []
    for index, node, ratio in places:
        left = (node.ms or 0.0) * ratio.value
        bricks[model.graph.layers[index].key] += left * math.expm1(ratio.own)
        runs.append(left * math.expm1(ratio.apart))
    return math.hypot(*bricks.values(), math.fsum(runs), current_ms)


def _padding_evidence(places: list[tuple[int, Node, Ratio]], saved: list[float], multiple: int) -> Iterator[str]:
    order = sorted(range(len(places)), key=lambda number: -abs(saved[number]))
    for number in order[:3]:
        _, node, ratio = places[number]
        yield f"{spent_by([node])}; its brick takes {ratio.value:.0%} of that with channels in multiples of {multiple}"
    slower = sum(saving_ms < 0 for saving_ms in saved)
    if slower:
        yield f"{slower} of the {len(places)} layers take longer so, which is counted"


def _can_be_wider(graph: ModelGraph, layer: Layer, multiple: int) -> bool:
    """Whether the channels that a layer reads and writes are multiples already, or can be padded to such."""
    axis = 1 if layer.op_type == "Conv" else -1
    for value in (layer.operands[0].value, layer.outputs[0]):
        kind = graph.types.get(value)
        if kind is None or (kind.shape[axis] % multiple and not _within(graph, value)):
            return False
    return True


def _within(graph: ModelGraph, value: str) -> bool:
    """Whether all that makes or reads a value's channels has weights for each, or treats each by itself."""
    waiting, seen = [value], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        producer = graph.producer(name)
        if producer is None or name in graph.outputs:
            return False
        for index in (producer, *graph.consumers(name)):
            layer = graph.layers[index]
            if layer.domain or not (layer.op_type in _PASSING or _weighted(layer)):
                return False
            if layer.op_type in _PASSING:
                waiting += [operand.value for operand in layer.operands if operand.role is Role.ACTIVATION]
                waiting += layer.outputs
    return True


def _weighted(layer: Layer) -> bool:
    """Whether it is a convolution or product with constant weights."""
    constant = len(layer.operands) > 1 and layer.operands[1].role in {Role.CONSTANT, Role.WEIGHT}
    return layer.op_type in _WEIGHTED and constant


PADDING = Analysis("padding", frozenset({BRICKS, LATENCY}), _padding_run, unblocked_idea)
