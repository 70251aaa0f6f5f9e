"""Measure how a model's values affect its latency: time its layers with these values and with synthetic ones.

Bricks are filled with values that do not affect the speed of any kernel. The values of a model may affect it. The mask
of a shifted window (-100) makes Softmax write subnormal numbers; the matrix products after it read them, at twenty
times the cost. The mask of a causal decoder sends Softmax's exponential down its slow path. A layer's effect is its
latency with the model's own values minus its latency with the values of a brick. The effect of a model is the sum over
all executed layers and all their occurrences. The model's own latency is not used.

All layers are examined: it is not known beforehand which values slow a kernel down, and a sum over seemingly slow
layers only would be biased by this selection. If the values change nothing, the sum is small relative to its interval.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory
from typing import Unpack

from ...db import values
from ...db.samples.statistics import student
from ...db.store import Store
from ...errors import BackendError, UsageError, WorkerError
from ...models.runnable import Runnable
from ..backends.registry import get, require_available
from ..decomposition.cut import Cut
from ..decomposition.decompose import Model, decompose
from ..machine.lock import machine_lock
from ..machine.system import probe_system
from ..progress import Progress, ProgressCallback, Stage
from ..worker.client import MODEL_MEMORY_BYTES, Worker, Workers, file_of
from ..worker.messages import LayerEffect, Place
from .selection import Sources, model_members
from .settings import MeasurementFields, MeasurementSettings, Order, settings_from
from .start import begin_run, end_run, stack_of, start_checked

DATA_PROCESSES = 3
"""Worker processes per model, by default."""

_NS_PER_MS = 1e6
_NOTABLE_FACTOR = 0.1
_NOTABLE_SHARE = 0.001
"""A report names a layer if its values change its latency by a tenth, and the model's by a thousandth."""

_OUTLIER = 3 * 1.4826
"""Median absolute deviations beyond which a difference is a disturbance: three standard deviations if normal."""

_STABLE, _NOISY = 0.02, 0.10
"""Limits as of any measurement, but relative to the model's latency: the effect itself may be zero."""


_Layers = tuple[LayerEffect, ...]
"""The layers of a model, examined in one process."""


@dataclass(frozen=True, slots=True)
class DataLayer:
    """An executed layer with a latency that depends on the values in the model.

    Attributes:
        layer: Index in the executed graph's order.
        op_type: Its operator.
        effect_ms: Latency with its own values minus latency with synthetic ones.
        factor: Latency with its own values divided by latency with synthetic ones.
        subnormal_in: Share of subnormal numbers among the floating-point numbers that it reads.
        subnormal_out: Share among the numbers that it writes.
    """

    layer: int
    op_type: str
    effect_ms: float
    factor: float
    subnormal_in: float
    subnormal_out: float


@dataclass(frozen=True, slots=True)
class DataRow:
    """The data effect of one model; if ``error`` is set, every number is None.

    Attributes:
        name: The model.
        key: Its content key.
        effect_ms: Latency with its own values minus latency with synthetic ones, summed over all executed layers.
        ci95_ms: 95 % interval of it; if it includes 0, no effect was found.
        examined: Number of executed layers timed with both kinds of values.
        layers: Layers with a latency that depends on their values, the largest effect first.
        error: Why the model could not be examined.
    """

    name: str
    key: str | None
    effect_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    examined: int | None = None
    layers: tuple[DataLayer, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DataReport:
    """The data effects of several models.

    Attributes:
        rows: One per model, in the order given.
        run: UUID of the run.
        system: Key of this system.
        stack: Key of the stack.
        wall_s: Duration of the whole call.
    """

    rows: tuple[DataRow, ...]
    run: str
    system: str
    stack: str
    wall_s: float


def measure_data(
    models: Sequence[Model],
    *,
    store: Store,
    settings: MeasurementSettings | None = None,
    rounds: int = 2,
    model_timeout_s: float = 900.0,
    progress: ProgressCallback | None = None,
    **fields: Unpack[MeasurementFields],
) -> DataReport:
    """Measure how the values in models affect their latency, and store these data effects.

    An effect is stored as a measurement of the model in the variant ``DATA``. It has one sample per process and round,
    each the sum over all executed layers; a sample may be negative.

    Args:
        models: Models to examine.
        store: Open database.
        settings: Runtime, threads, precision, seed, and worker processes per model, one after the other.
        rounds: Differences per layer and process. A process takes about 15 times the model's latency per round.
        model_timeout_s: Hard limit of one model in one process.
        progress: Called between requests.
        **fields: Fields of ``MeasurementSettings``, instead of ``settings``; 3 processes by default.

    Raises:
        UsageError: An option has a wrong value, or the backend cannot execute a model layer by layer on the device.
        BackendUnavailable: The runtime cannot be used here.
        MachineBusy: Another process is measuring.
        WorkerError: No worker can be started.
        StoreError: The database cannot be written.
    """
    asked = settings_from(settings, {"processes": DATA_PROCESSES, **fields} if settings is None else fields)
    how = replace(asked, conditions=replace(asked.conditions, cache=values.DATA_CACHE))
    how.check()
    if rounds < 1:
        raise UsageError(f"rounds cannot be {rounds}", remedy="use 1 or more")
    runtime, conditions = how.runtime, how.conditions
    with ExitStack() as resources:
        resources.enter_context(machine_lock())
        begun = time.monotonic()
        backend, stack, system = get(runtime.backend), stack_of(runtime), probe_system()
        backend.require_walking(runtime.device, dict(stack.options))
        require_available(backend, runtime.backend, runtime.device)
        backend.require_dtype(conditions.dtype, runtime.device)
        folder = Path(resources.enter_context(TemporaryDirectory(prefix="dlbricks-models-")))
        sources = Sources.of(decompose(models, Cut(1)))
        where = values.Circumstances(system.key, stack.key, conditions)
        members, problems = model_members(
            sources, [where.identity(values.Subject.MODEL, key) for key in sources.keys], folder
        )
        sources = sources.without(problems)
        run = begin_run(store, how, Order("measure"), system, stack, {values.DATA: True})
        processes: dict[values.Identity, list[_Layers]] = {identity: [] for identity in members}
        errors: dict[values.Identity, str] = {}
        place = Place(runtime, conditions.threads, conditions.dtype, together=True)
        start = partial(start_checked, stack=stack, memory_bytes=MODEL_MEMORY_BYTES)
        steps = len(members) * how.processes
        with Workers(start) as workers:
            for number, (identity, member) in enumerate([*members.items()] * how.processes):
                if progress is not None:
                    elapsed_s = time.monotonic() - begun
                    left_s = elapsed_s / number * (steps - number) if number else None
                    progress(Progress(Stage.SAMPLE, number, steps, member.label, elapsed_s, left_s))
                if identity in errors:
                    continue
                workers.close()  # free the memory of the previous model
                try:
                    layers = _examined(workers.at(place), member.network, how, rounds, model_timeout_s)
                    processes[identity].append(layers)
                except (WorkerError, BackendError) as error:
                    errors[identity] = str(error)
        rows = {}
        for identity, member in members.items():
            if identity in errors:
                rows[member.key] = DataRow(member.label, member.key, error=errors[identity])
            else:
                measurement, blocks = effect_of(processes[identity], member.key, run, conditions)
                store.add([(measurement, blocks)])
                rows[member.key] = data_row(processes[identity], measurement, member.label)
        end_run(store, run)
    return DataReport(
        rows=tuple(
            DataRow(name, None, error=sources.problems[name]) if key is None else replace(rows[key], name=name)
            for name, key in sources.names
        ),
        run=run.id,
        system=run.system,
        stack=run.stack,
        wall_s=time.monotonic() - begun,
    )


def _examined(worker: Worker, network: Runnable, how: MeasurementSettings, rounds: int, timeout_s: float) -> _Layers:
    """Examine the layers of one model in one process; raises ``WorkerError`` or ``BackendError``."""
    layers = worker.examine(file_of(network, seed=how.seed), rounds, timeout_s=timeout_s)
    if not layers or {len(layer.differences_ns) for layer in layers} != {rounds}:
        raise WorkerError(f"the worker examined {len(layers)} layers, not all of them {rounds} times")
    return layers


def effect_of(
    processes: Sequence[Sequence[LayerEffect]], key: str, run: values.Run, conditions: values.Conditions
) -> tuple[values.Measurement, list[values.Block]]:
    """Return the data effect of a model as a measurement: one sample per process and round, the sum over its layers.

    The interval is Student's interval of the mean, as for any difference; it includes zero if the values change
    nothing. The verdict rates its width relative to the model's latency.

    Args:
        processes: Per process, every executed layer.
        key: Key of the source model.
        run: Run of the examination.
        conditions: Conditions of the examination.
    """
    import numpy as np  # only this command needs it

    moments = [(process, round_) for process, layers in enumerate(processes) for round_ in _rounds(layers)]
    cleaned = [_cleaned(layer) for layer in zip(*processes, strict=True)]
    sums = dict(zip(moments, (sum(found) for found in zip(*cleaned, strict=True)), strict=True))
    effects = sorted(sums.values())
    centre, half = fmean(effects), math.inf
    if len(effects) > 1:
        half = student(len(effects) - 1) * stdev(effects) / math.sqrt(len(effects))
    model_ns = median(sum(layer.own_ns for layer in layers) for layers in processes)
    relative = half / model_ns
    summary = values.Summary(
        median_ns=median(effects),
        mean_ns=centre,
        trimmed_mean_ns=centre,
        min_ns=effects[0],
        p90_ns=float(np.quantile(effects, 0.9)),
        p99_ns=float(np.quantile(effects, 0.99)),
        ci95_ns=(centre - half, centre + half),
        samples=len(effects),
        block_medians_ns=tuple(sums.values()),
        verdict=values.Verdict.STABLE
        if relative <= _STABLE
        else values.Verdict.NOISY
        if relative <= _NOISY
        else values.Verdict.UNSTABLE,
    )
    identity = values.Identity(values.Subject.MODEL, key, run.system, run.stack, conditions, values.DATA)
    measurement = values.Measurement(str(uuid.uuid4()), run.id, identity, 1, summary, values.Stop.BUDGET)
    return measurement, [values.Block(*moment, ((round(value), 1),)) for moment, value in sums.items()]


def _rounds(layers: Sequence[LayerEffect]) -> range:
    return range(len(layers[0].differences_ns))


def _cleaned(seen: Sequence[LayerEffect]) -> list[float]:
    """Return a layer's differences over all processes and rounds, without disturbances (Hampel's identifier).

    A model has hundreds of layers. Another process may disturb one of them for milliseconds, as long as the whole
    effect. A disturbed difference is moved to ``_OUTLIER`` deviations from the median of its layer.
    """
    differences = [difference for layer in seen for difference in layer.differences_ns]
    centre = median(differences)
    reach = _OUTLIER * median(abs(difference - centre) for difference in differences)
    return [min(max(difference, centre - reach), centre + reach) for difference in differences]


def data_row(processes: Sequence[Sequence[LayerEffect]], measurement: values.Measurement, name: str) -> DataRow:
    """Return one model's row, with its notable layers."""
    effect_ms, ci95_ms = measurement.latency_ms, measurement.ci95_ms
    return DataRow(name, measurement.key, effect_ms, ci95_ms, len(processes[0]), _notable(processes))


def _notable(processes: Sequence[Sequence[LayerEffect]]) -> tuple[DataLayer, ...]:
    """Return the layers with values that change their latency in every process and round alike, and notably."""
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
