"""The data effect of a model as a value: its measurement, and the layers that it comes from."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from ....db.samples.statistics import student
from ....db.values import DATA, Block, Conditions, Measurement, Run, Stop, Subject, Summary, Verdict
from ...worker.replies import LayerEffect

__all__ = ["DataLayer", "DataRow", "data_row", "effect_of"]

_NS_PER_MS = 1e6
_NOTABLE_FACTOR = 0.1
_NOTABLE_SHARE = 0.001
"""A layer is named where its values change its latency by a tenth, and the model's by a thousandth."""

_OUTLIER = 3 * 1.4826
"""Median absolute deviations beyond which a difference is a disturbance: three standard deviations of a normal one."""

_STABLE, _NOISY = 0.02, 0.10
"""As of any measurement, but relative to the model: the effect itself may be nothing."""


@dataclass(frozen=True, slots=True)
class DataLayer:
    """An executed layer whose latency depends on the values in the model.

    Attributes:
        layer: Index in the executed graph's order.
        op_type: Its operator.
        effect_ms: What its own values cost.
        factor: Latency with its own values, relative to synthetic ones.
        subnormal_in: Share of subnormal numbers among the floating ones that it reads.
        subnormal_out: Among those that it writes.
    """

    layer: int
    op_type: str
    effect_ms: float
    factor: float
    subnormal_in: float
    subnormal_out: float


@dataclass(frozen=True, slots=True)
class DataRow:
    """The data effect of one model; every number is None where ``error`` says why.

    Attributes:
        name: The model.
        key: Its content key.
        effect_ms: Latency with its own values minus latency with synthetic ones, summed over all executed layers.
        ci95_ms: 95 % interval of it; where it includes 0, no effect was found.
        examined: Number of executed layers that were timed with both.
        layers: Those whose latency depends on their values, the largest effect first.
        error: Why it could not be examined.
    """

    name: str
    key: str | None
    effect_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    examined: int | None = None
    layers: tuple[DataLayer, ...] = ()
    error: str | None = None


def effect_of(
    processes: Sequence[Sequence[LayerEffect]], key: str, run: Run, conditions: Conditions
) -> tuple[Measurement, list[Block]]:
    """The data effect of a model as a measurement: per process and round one sample, the sum over its layers.

    Its interval is that of a difference: around the mean, as wide as its samples leave in doubt, and on both sides of
    zero where values do nothing. The verdict rates the interval's width relative to the model.

    Args:
        processes: Per process, every executed layer.
        key: Of the source model.
        run: That it was examined in.
        conditions: That it was examined under.
    """
    import numpy as np

    moments = [(process, round_) for process, layers in enumerate(processes) for round_ in _rounds(layers)]
    cleaned = [_cleaned(layer) for layer in zip(*processes, strict=True)]
    sums = dict(zip(moments, (sum(found) for found in zip(*cleaned, strict=True)), strict=True))
    values = sorted(sums.values())
    centre, half = fmean(values), math.inf
    if len(values) > 1:
        half = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    model_ns = median(sum(layer.own_ns for layer in layers) for layers in processes)
    relative = half / model_ns
    summary = Summary(
        median_ns=median(values),
        mean_ns=centre,
        trimmed_mean_ns=centre,
        min_ns=values[0],
        p90_ns=float(np.quantile(values, 0.9)),
        p99_ns=float(np.quantile(values, 0.99)),
        ci95_ns=(centre - half, centre + half),
        samples=len(values),
        block_medians_ns=tuple(sums.values()),
        verdict=Verdict.STABLE if relative <= _STABLE else Verdict.NOISY if relative <= _NOISY else Verdict.UNSTABLE,
    )
    measurement = Measurement(
        id=str(uuid.uuid4()),
        run=run.id,
        subject=Subject.MODEL,
        key=key,
        system=run.system,
        stack=run.stack,
        conditions=conditions,
        unroll=1,
        summary=summary,
        stop=Stop.BUDGET,
        variant=DATA,
    )
    return measurement, [Block(*moment, ((round(value), 1),)) for moment, value in sums.items()]


def _rounds(layers: Sequence[LayerEffect]) -> range:
    return range(len(layers[0].differences_ns))


def _cleaned(seen: Sequence[LayerEffect]) -> list[float]:
    """The differences of one layer over all processes and rounds, without disturbances (Hampel's identifier).

    A model has hundreds of layers, and one of them at a time meets another process on its core: for milliseconds, as
    long as the whole effect. Such a difference is drawn in to where the others of its layer end.
    """
    differences = [difference for layer in seen for difference in layer.differences_ns]
    centre = median(differences)
    reach = _OUTLIER * median(abs(difference - centre) for difference in differences)
    return [min(max(difference, centre - reach), centre + reach) for difference in differences]


def data_row(processes: Sequence[Sequence[LayerEffect]], measurement: Measurement, name: str) -> DataRow:
    """The row of a model that was examined."""
    return DataRow(
        name=name,
        key=measurement.key,
        effect_ms=measurement.latency_ms,
        ci95_ms=measurement.ci95_ms,
        examined=len(processes[0]),
        layers=_notable(processes),
    )


def _notable(processes: Sequence[Sequence[LayerEffect]]) -> tuple[DataLayer, ...]:
    """The layers whose values change their latency in every process and round alike, and enough to matter."""
    model_ns = median(sum(layer.synthetic_ns for layer in layers) for layers in processes)
    found = []
    for seen in zip(*processes, strict=True):
        differences = [difference for layer in seen for difference in layer.differences_ns]
        effect_ns, synthetic_ns = median(differences), median(layer.synthetic_ns for layer in seen)
        agree = min(differences) > 0 or max(differences) < 0
        if agree and abs(effect_ns) >= max(_NOTABLE_FACTOR * synthetic_ns, _NOTABLE_SHARE * model_ns):
            first = seen[0]
            found.append(
                DataLayer(
                    layer=first.index,
                    op_type=first.op_type,
                    effect_ms=effect_ns / _NS_PER_MS,
                    factor=1 + effect_ns / synthetic_ns,
                    subnormal_in=first.subnormal_in,
                    subnormal_out=first.subnormal_out,
                )
            )
    return tuple(sorted(found, key=lambda layer: -abs(layer.effect_ms)))
