"""What the values in a model do to its latency: found by timing its layers with them and with synthetic ones.

Bricks are filled with values that no kernel minds. A model may hold others: the mask of a shifted window (-100) makes
Softmax write subnormal numbers, and the matrix products after it read them, at twenty times the cost; that of a causal
decoder sends Softmax's exponential down its slow path. The effect of a model is the sum, over every layer that its
runtime executes and every one of its occurrences, of latency with the model's own values minus latency with those of
a brick. The model's own latency has no part in it.

All layers are examined, not only suspects: which values a kernel minds is not known beforehand, and a sum over those
that look slow would be biased by the looking. Where values do nothing, the sum is small beside its interval.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ....db.store import Store
from ....db.values import DATA, Conditions, Measurement, Stack, Subject
from ....errors import BackendError, UsageError, WorkerError
from ....models import ModelSource
from ...backends.base import Backend
from ...backends.registry import get, require_available
from ...backends.requirements import require_dtype, require_walking
from ...decomposition.oracle import WorkerOracle
from ...machine.lock import machine_lock
from ...machine.system import probe_system
from ...progress import Progress, ProgressCallback, Stage
from ...worker.replies import LayerEffect
from ...worker.requests import Examine
from ...worker.standby import MODEL_MEMORY_BYTES
from ..item import Item
from ..launch import begin_run, end_run, launch
from ..settings import MeasurementSettings
from ..subjects import model_items
from .model_effect import DataRow, data_row, effect_of

__all__ = ["DataReport", "measure_data", "stored_data_effects"]

_CACHE = "hot"
"""Each layer repeats while it is timed. The effect is one of arithmetic; cold weights are as cold with either."""


@dataclass(frozen=True, slots=True)
class DataReport:
    """The data effects of several models.

    Attributes:
        rows: One per model, in the order given.
        run: UUID of the run.
        system: Key of this system.
        stack: Key of the stack.
        wall_s: The whole call.
    """

    rows: tuple[DataRow, ...]
    run: str
    system: str
    stack: str
    wall_s: float


@dataclass(slots=True)
class _Examination:
    """What was found of one model so far: per process its layers."""

    item: Item
    processes: list[tuple[LayerEffect, ...]]
    error: str | None = None


def measure_data(
    models: Sequence[ModelSource],
    *,
    store: Store,
    backend: str = "onnxruntime",
    device: str = "cpu",
    options: Mapping[str, str] | None = None,
    threads: int = 1,
    dtype: str = "float32",
    processes: int = 3,
    rounds: int = 2,
    model_timeout_s: float = 900.0,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> DataReport:
    """Measure what the values in models do to their latency, and store it.

    It is stored as a measurement of the model in the variant ``DATA`` (``stored_data_effects`` finds it): one sample
    per process and round, each the sum over all executed layers; it may be negative.

    Args:
        models: What to examine.
        store: Open database.
        backend: Name of the runtime.
        device: ``cpu``.
        options: The backend's own options.
        threads: Threads of the runtime; 0: all physical cores.
        dtype: Precision to compute in, one of the backend's; ``float32``: that of each network itself.
        processes: Worker processes per model, one after the other.
        rounds: Differences per layer and process. A process takes about 15 times the model's latency per round.
        model_timeout_s: Hard limit of one model in one process.
        seed: Of weights and inputs, as elsewhere.
        progress: Called between requests.

    Raises:
        UsageError: An option has a wrong value, or the backend cannot execute a model layer by layer on the device.
        BackendUnavailable: The runtime cannot be used here.
        MachineBusy: Another process is measuring.
        WorkerError: No worker can be started.
        StoreError: The database cannot be written.
    """
    settings = MeasurementSettings(
        backend=backend,
        device=device,
        options=dict(options or {}),
        threads=threads,
        cache=_CACHE,
        dtype=dtype,
        processes=processes,
        seed=seed,
    )
    settings.check()
    if rounds < 1:
        raise UsageError(f"rounds cannot be {rounds}", remedy="use 1 or more")
    with ExitStack() as resources:
        resources.enter_context(machine_lock())
        begun = time.monotonic()
        runtime = get(backend)
        stack, system = runtime.stack(device, settings.options), probe_system()
        require_walking(runtime, device, dict(stack.options))
        require_available(runtime, backend, device)
        require_dtype(runtime, dtype, device)
        folder = Path(resources.enter_context(TemporaryDirectory(prefix="dlbricks-models-")))
        oracle = resources.enter_context(WorkerOracle())
        sources = model_items(models, folder, oracle=oracle)
        run = begin_run(store, settings, command="measure", system=system, stack=stack, more={DATA: True})
        found = {item.key: _Examination(item, []) for item in sources.items}
        steps = len(found) * processes
        for number in range(steps):
            # All models of one process, then those of the next: what drifts is seen by all.
            one = found[sources.items[number % len(found)].key]
            if progress is not None:
                elapsed_s = time.monotonic() - begun
                left_s = elapsed_s / number * (steps - number) if number else None
                progress(Progress(Stage.SAMPLE, number, steps, one.item.label, elapsed_s, left_s))
            if one.error is None:
                _examine(one, settings, runtime, stack, rounds=rounds, timeout_s=model_timeout_s)
        rows = {}
        for key, one in found.items():
            if one.error is not None:
                rows[key] = DataRow(one.item.label, key, error=one.error)
            else:
                measurement, blocks = effect_of(one.processes, key, run, settings.conditions)
                store.add([(measurement, blocks)])
                rows[key] = data_row(one.processes, measurement, one.item.label)
        end_run(store, run)
    return DataReport(
        rows=tuple(
            DataRow(name, None, error=sources.problems[name]) if key is None else _named(rows[key], name)
            for name, key in sources.names
        ),
        run=run.id,
        system=run.system,
        stack=run.stack,
        wall_s=time.monotonic() - begun,
    )


def stored_data_effects(
    store: Store, keys: Collection[str], *, system: str, stack: str, threads: int, dtype: str = "float32"
) -> dict[str, Measurement]:
    """The latest data effect of each model that was examined.

    Args:
        store: Open database.
        keys: Keys of source models (``ModelGraph.key``).
        system: Key of the system.
        stack: Key of the stack that the models run on.
        threads: Threads of the runtime.
        dtype: Precision.

    Returns:
        By key. ``latency_ns`` is what the model's own values cost per inference, over all executed layers; it may be
        negative. Where ``ci95_ns`` includes 0, the model was examined and nothing was found.
    """
    conditions = Conditions(threads=threads, cache=_CACHE, dtype=dtype)
    found = store.measurements(
        subject=Subject.MODEL, keys=keys, system=system, stack=stack, conditions=conditions, variant=DATA
    )
    return {measurement.key: measurement for measurement in found}


def _examine(
    one: _Examination, settings: MeasurementSettings, backend: Backend, stack: Stack, *, rounds: int, timeout_s: float
) -> None:
    """Examine a model in a worker of its own: other models' memory would be in its way."""
    item = one.item
    request = Examine(
        path=str(item.path),
        synthetic=item.synthetic,
        rounds=rounds,
        overrides=item.overrides,
        inputs=item.inputs,
        seed=settings.seed,
    )
    with launch(settings, backend, stack, memory_bytes=MODEL_MEMORY_BYTES, together=True) as worker:
        try:
            layers = worker.examine(request, timeout_s=timeout_s).layers
        except (WorkerError, BackendError) as error:
            one.error = str(error)
            return
    if not layers or {len(layer.differences_ns) for layer in layers} != {rounds}:
        one.error = f"the worker examined {len(layers)} layers, not all of them {rounds} times"
        return
    one.processes.append(layers)


def _named(row: DataRow, name: str) -> DataRow:
    """Of two names of one model, this one."""
    return replace(row, name=name)
