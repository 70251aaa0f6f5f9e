"""Savings by other stored measurements: other runtimes and options, other batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ....bricks.graph.model_graph import build_graph
from ....constructor.choice import narrows
from ....constructor.sweep import optimal_batch
from ....constructor.uncertainty.calibration import NORMAL
from ....db import Measurement, Stack, Store, Subject
from ....errors import DlbricksError
from ....generator.backends.base import TF32
from ....generator.decomposition.decomposer import WorkerOracle
from ....models import ModelSource
from ...comparison.sides import Timeline, latency_ns, visited_in_turn
from ...estimation.query import stored_under
from ..analysed_model import AnalysedModel as Model
from ..finding import LATENCY, Analysis, Finding, Remedy, saving_of

# Two stored measurements beside each other, with what the machine may have done in between.


class Beside:
    """Compares stored measurements of one kind, as docs/how-to/comparing.md does.

    Args:
        store: The database.
        measurements: All that are compared.
    """

    def __init__(self, store: Store, measurements: Sequence[Measurement]) -> None:
        self._timeline = Timeline(store)
        self._blocks = store.blocks_of([measurement.id for measurement in measurements])

    def ratio(self, base: Measurement, other: Measurement) -> tuple[float, float, bool]:
        """Return the ratio of a measurement's latency to the base's; both are above 0.

        Returns:
            The ratio; half of the 95 % interval of its logarithm, from both measurements and from the machine's drift
            between their runs; and whether both alternated in one run.
        """
        ours, theirs = (self._blocks.get(measurement.id, ()) for measurement in (base, other))
        in_turn = visited_in_turn(base, other, ours, theirs)
        apart, undisturbed = self._timeline.between(base, other, (ours, theirs), in_turn=in_turn)
        base_ns, other_ns = (latency_ns(side, undisturbed=undisturbed) for side in (base, other))
        measured_half = math.hypot(*(measurement.half_ns / measurement.latency_ns for measurement in (base, other)))
        return other_ns / base_ns, math.hypot(measured_half, NORMAL * apart), in_turn


def _saving(model: Model, idea: Finding, share: float, half: float) -> Finding:
    """Return an idea that leaves a share of the latency, with half of the interval of the share's logarithm."""
    latency = model.latency_ms or 0.0
    ends = latency * (1 - share * math.exp(half)), latency * (1 - share * math.exp(-half))
    return saving_of(model, idea, latency * (1 - share), ends)


# Other stored ways to run the model that take less: more threads, another precision, another runtime, other options.
#
# Saving: measured latency here less measured latency there, of the same model on the same system, each way by itself
# and the fastest of its kind. Measurements of different runs have in their interval what the machine may have done in
# between (docs/how-to/comparing.md).


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
    bases = [
        measurement
        for measurement in here
        if (measurement.conditions.threads, measurement.conditions.dtype)
        == (choice.conditions.threads, choice.conditions.dtype)
    ]
    if not bases:
        return
    base, stacks, largest = bases[-1], model.store.stacks(), dict[tuple[str, str], Finding]()
    beside = Beside(model.store, stored)
    for other in stored:
        difference = _difference(base, other, stacks)
        if difference is None:
            continue
        kind, remedy = difference
        ratio, half, together = beside.ratio(base, other)
        latencies = f"{other.latency_ms:.4g} ms there, {base.latency_ms:.4g} ms here"
        text = f"measured: {latencies}, {'in turn' if together else 'in different runs'}"
        finding, way = _saving(model, Finding(kind, remedy.text, remedy, (text,)), ratio, half), (kind, remedy.action)
        if way not in largest or finding.saving_ms > largest[way].saving_ms:
            largest[way] = finding
    yield from largest.values()


def _difference(base: Measurement, other: Measurement, stacks: Mapping[str, Stack]) -> tuple[str, Remedy] | None:
    """Return the kind of difference from the base, if there is exactly one."""
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
    own_batch, stored = _batch_of(model), _batch_stored(model)
    if own_batch is None or model.latency_ms is None or model.graph.key not in stored or len(stored) < 2:
        return
    by_batch = _by_batch(model, own_batch, stored)
    best = optimal_batch({batch: measurement.latency_ns for batch, measurement in by_batch.items()})
    if best == own_batch:
        return
    base, other = by_batch[own_batch], by_batch[best]
    ratio, half, in_turn = Beside(model.store, [base, other]).ratio(base, other)
    share = ratio * own_batch / best
    title = f"run in batches of {best} in place of {own_batch}, a sample takes {share:.0%} of the time"
    text = f"Run {best} samples at once: they take {other.latency_ms:.3g} ms together."
    evidence = tuple(_batch_evidence(by_batch, best, in_turn=in_turn))
    yield _saving(model, Finding("batch", title, Remedy("manual", text, {"batch": str(best)}), evidence), share, half)


def _batch_evidence(by_batch: Mapping[int, Measurement], best: int, *, in_turn: bool) -> Iterator[str]:
    rates = {batch: batch * _NS_PER_S / measurement.latency_ns for batch, measurement in sorted(by_batch.items())}
    rates_text = ", ".join(f"{rate:.4g} in batches of {batch}" for batch, rate in rates.items())
    yield f"samples per second, measured {'in turn' if in_turn else 'in different runs'}: {rates_text}"
    if 2 * best in rates:
        yield f"twice as many at once gain {rates[2 * best] / rates[best] - 1:.0%}"
    else:
        yield f"batches of {2 * best} are not measured"


def _batch_of(model: Model) -> int | None:
    """Return the model's batch: the first dimension of its first input with dimensions."""
    if model.source.batch is not None:
        return model.source.batch
    shapes = (kind.shape for kind in model.graph.inputs.values() if kind is not None and kind.shape)
    return next((shape[0] for shape in shapes if shape[0] > 0), None)


def _batch_stored(model: Model) -> dict[str, Measurement]:
    """All whole models that are measured with this system, stack, threads and precision, by key."""
    choice = model.choice
    if choice is None:
        return {}
    measurements = model.store.measurements(stored_under(choice), subject=Subject.MODEL)
    return {
        measurement.key: measurement
        for measurement in measurements
        if measurement.conditions.cache != "cold" and measurement.latency_ns > 0
    }


def _by_batch(model: Model, own_batch: int, stored: Mapping[str, Measurement]) -> dict[int, Measurement]:
    """Return the measured batches that double up to the model's own, and beyond."""
    by_batch = {own_batch: stored[model.graph.key]}
    with WorkerOracle() as oracle:
        batch = own_batch
        while batch % 2 == 0 and (measured := stored.get(_key(model.source, batch // 2, oracle))) is not None:
            batch //= 2
            by_batch[batch] = measured
        batch = own_batch
        while (measured := stored.get(_key(model.source, 2 * batch, oracle))) is not None:
            batch *= 2
            by_batch[batch] = measured
    return by_batch


def _key(source: ModelSource, batch: int, oracle: WorkerOracle) -> str:
    """Return the key of the model in another batch; empty if that batch is impossible."""
    with suppress(DlbricksError):  # a batch that is fixed: nothing can be measured of others either
        return build_graph(replace(source, batch=batch).skeleton(), oracle=oracle).key
    return ""


BATCH = Analysis("batch", frozenset({LATENCY}), _batch_run)
