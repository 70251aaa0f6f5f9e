"""Inputs that are run in another batch than the one that suits the machine.

The optimal batch is the first whose doubling gains at most 5 % of throughput, n / latency(n) (XSP: Li et al., IPDPS
2020, section IV), among the measured batches that double up to the model's own and from there on. Saving: what the
model's own batch takes, less what so many samples take in the optimal batch. Nothing is measured for it: ``measure
MODEL --batch 1,2,4`` visits batches in turn. Each sample then waits for the others of its batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from .....bricks.graph.graph import build_graph
from .....constructor.sweep import optimal_batch
from .....db import Measurement, Subject
from .....errors import DlbricksError
from .....generator.decomposition.oracle import WorkerOracle
from .....models import ModelSource
from ....estimation.query import stored_under
from ...analysis import LATENCY, Analysis
from ...finding import Finding, Remedy
from ...subject import Subject as Model
from .beside import Beside

__all__ = ["ANALYSIS"]

_NS_PER_S = 1e9


def _run(model: Model) -> Iterable[Finding]:
    own, stored = _batch_of(model), _stored(model)
    if own is None or model.latency_ms is None or model.graph.key not in stored or len(stored) < 2:
        return
    known = _by_batch(model, own, stored)
    best = optimal_batch({batch: one.latency_ns for batch, one in known.items()})
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
        evidence=tuple(_evidence(known, best, in_turn=ratio.in_turn)),
        keys=(),
        remedy=Remedy(
            "manual", f"Run {best} samples at once: they take {takes:.3g} ms together.", {"batch": str(best)}
        ),
    )


def _evidence(known: Mapping[int, Measurement], best: int, *, in_turn: bool) -> Iterator[str]:
    rates = {batch: batch * _NS_PER_S / one.latency_ns for batch, one in sorted(known.items())}
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


def _stored(model: Model) -> dict[str, Measurement]:
    """All whole models that are measured with this system, stack, threads and precision, by key."""
    choice = model.choice
    if choice is None:
        return {}
    found = model.store.measurements(stored_under(choice), subject=Subject.MODEL)
    return {one.key: one for one in found if one.conditions.cache != "cold" and one.latency_ns > 0}


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


ANALYSIS = Analysis("batch", frozenset({LATENCY}), _run)
