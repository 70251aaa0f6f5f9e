"""A model in a process of its own: its memory, and its single executions.

Latencies come from runs in which many networks take turns in one process, and short ones are repeated within a visit.
Neither shows the memory of one model, nor the slowest of its single executions.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from ...bricks.graph.control import write_out
from ...db.values import Runtime
from ...errors import BackendError, DlbricksError
from ...models import ModelSource
from ..backends.registry import get
from ..decomposition.observation import run_as_given
from ..machine.lock import machine_lock
from ..worker.client import Timeouts, file_of, start_worker
from ..worker.messages import Occupied, Occupy, Place
from .settings import MeasurementSettings

_MOST, _MOST_S = 1000, 3.0
"""Executions of a model, and the seconds for them."""

_ARENA = "arena"
"""The option of a backend that keeps freed memory for the next allocation."""

_MB = 1e6

_NORMAL = NormalDist().inv_cdf(0.975)

_BEYOND = 10
"""Executions that must be slower than a quantile, so that it is more than the slowest few."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A model in a process of its own.

    Attributes:
        runtime_bytes: Resident memory of a process that has only imported NumPy and the runtime.
        seen: Memory and executions, with the options that were asked for; the process also has the worker's code.
        weight_bytes: Bytes of its weights.
        without_arena: The same without the runtime's arena; None if the backend has none, or it is off anyway.
    """

    runtime_bytes: int
    seen: Occupied
    weight_bytes: int
    without_arena: Occupied | None = None

    def quantile_ms(self, share: float) -> float | None:
        """Return a quantile of the single executions in ms; None if too few are beyond it.

        Args:
            share: For example 0.95.
        """
        executions = self.seen.executions_ns
        if len(executions) * (1 - share) < _BEYOND:
            return None
        return float(np.quantile(executions, share)) / 1e6

    @property
    def too_few(self) -> str:
        """Why a quantile has no value."""
        return f"of {len(self.seen.executions_ns)} executions too few are beyond it"

    def quantile_ci95_ms(self, share: float) -> tuple[float, float] | None:
        """Return the 95 % interval of a quantile, between two of the sorted executions; None as ``quantile_ms``.

        Conover, Practical Nonparametric Statistics, 3.2: it holds for any distribution of independent executions.
        """
        if self.quantile_ms(share) is None:
            return None
        executions = np.sort(self.seen.executions_ns)
        half = _NORMAL * math.sqrt(len(executions) * share * (1 - share))
        places = np.array([math.floor(len(executions) * share - half), math.ceil(len(executions) * share + half)])
        low, high = executions[np.clip(places, 0, len(executions) - 1)] / 1e6
        return float(low), float(high)

    @property
    def peak_bytes(self) -> int:
        """The most resident memory of a process with nothing but the runtime and the model."""
        return self.runtime_bytes + self.seen.peak_bytes - self.seen.empty_bytes

    def record(self) -> dict[str, float | int | None]:
        """Return the resident memory of the runtime and the model in 10^6 bytes, and the number of executions."""
        seen, bare = self.seen, self.without_arena
        return {
            "memory_runtime_mb": self.runtime_bytes / _MB,
            "memory_loaded_mb": self._mb(seen, seen.loaded_bytes),
            "memory_first_mb": self._mb(seen, seen.first_bytes),
            "memory_steady_mb": self._mb(seen, seen.steady_bytes),
            "memory_peak_mb": self._mb(seen, seen.peak_bytes),
            "memory_weights_mb": self.weight_bytes / _MB,
            "memory_steady_without_arena_mb": None if bare is None else self._mb(bare, bare.steady_bytes),
            "memory_peak_without_arena_mb": None if bare is None else self._mb(bare, bare.peak_bytes),
            "executions_alone": len(seen.executions_ns),
        }

    def _mb(self, process: Occupied, nbytes: int) -> float:
        """Return a memory of a process in 10^6 bytes, with the bare runtime in place of all that was there before."""
        return (self.runtime_bytes + nbytes - process.empty_bytes) / _MB


def run_alone(sources: Sequence[ModelSource], settings: MeasurementSettings) -> list[Alone | DlbricksError]:
    """Load and execute each model in a fresh process, with the runtime's arena and without it.

    Args:
        sources: The models.
        settings: Runtime, threads and precision.

    Returns:
        What each model took, or why it could not be run, in the order given.

    Raises:
        MachineBusy: Another process is measuring on this machine.
    """
    answers: list[Alone | DlbricksError] = []
    with machine_lock(), tempfile.TemporaryDirectory(prefix="dlbricks-alone-") as folder:
        for number, source in enumerate(sources):
            subfolder = Path(folder) / str(number)
            subfolder.mkdir()
            try:
                answers.append(_alone(source, settings, subfolder))
            except DlbricksError as error:
                answers.append(error)
    return answers


def _alone(source: ModelSource, settings: MeasurementSettings, folder: Path) -> Alone:
    skeleton = source.skeleton()
    file = file_of(run_as_given(source, folder, write_out(skeleton).control), seed=settings.seed)
    where, runtime = settings.conditions, settings.runtime
    place = Place(runtime, where.threads, where.dtype, priority=settings.priority)
    timeout_s = Timeouts.loading(skeleton.weight_bytes) + 10 * _MOST_S
    request = Occupy(file, _MOST, _MOST_S)
    seen = _occupied(place, request, timeout_s)
    options, backend = dict(runtime.options), get(runtime.backend)
    switchable = any(option.name == _ARENA for option in backend.declared(runtime.device))
    if not switchable or options.get(_ARENA) == "off":
        return Alone(_runtime_bytes(backend.command()[0], backend.name), seen, skeleton.weight_bytes)
    bare = Runtime.of(runtime.backend, runtime.device, {**options, _ARENA: "off"})
    without = _occupied(replace(place, runtime=bare), request, timeout_s)
    return Alone(_runtime_bytes(backend.command()[0], backend.name), seen, skeleton.weight_bytes, without)


@cache
def _runtime_bytes(python: str, module: str) -> int:
    """Return the resident memory of a process that has only imported NumPy and the runtime."""
    code = f"import numpy, {module}; print(open('/proc/self/status').read())"
    done = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, check=False)
    sizes = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("VmRSS:")]
    if done.returncode or not sizes:
        said = done.stderr.strip().splitlines()
        raise BackendError(f"the memory of {module} alone is not known: {said[-1] if said else 'no answer'}")
    return int(sizes[0]) * 1024


def _occupied(place: Place, request: Occupy, timeout_s: float) -> Occupied:
    with start_worker(place) as worker:
        return worker.occupy(request, timeout_s=timeout_s)
