"""Errors of estimates that repeated measurements do not show.

A composed latency differs from the model's by the parts that the composition leaves out. The size of this error is
known for the ways to compose that were compared with whole models. Likewise, two processes of one run say little about
the scatter of processes; other runs show it. Both are data (``calibration.json``, ``scatter.json``), each row with its
source. ``benchmarks/calibrate.py`` writes them. A user's own fits are stored as runs (``Calibration.of_runs``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from ...db.values import Measurement, Run, Stack, Subject

NORMAL = 1.959964
"""97.5 % quantile of the normal distribution."""

CALIBRATION = "calibration"
"""Name under which a run of ``system --calibrate`` stores its fits, among the run's options."""

_HELD = 0.95
"""Share of the fitted intervals that contain the measured latency."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """Scatter of latencies beyond the scatter between the time blocks of one process.

    Attributes:
        process_sd: Relative standard deviation between processes of one run, common to all items of a process
            (placement in memory, clock).
        run_sd: Relative standard deviation between runs, of undisturbed latencies.
        known: True if both were calibrated for this backend, device and number of threads. Otherwise the widest known
            value is used, of the same number of threads if there is one.
    """

    process_sd: float
    run_sd: float
    known: bool


def scatter_of(stack: Stack | None, threads: int, subject: Subject) -> Scatter:
    """Return the scatter of processes and runs, from the data in docs/results.

    Args:
        stack: The stack; None if unknown.
        threads: Threads of the runtime.
        subject: Whole models, or bricks; every other subject counts as bricks.
    """
    runtime = (stack.backend, stack.device) if stack is not None else None
    return _scatter(runtime, threads, "model" if subject is Subject.MODEL else "bricks")


def scatters(stacks: Mapping[str, Stack], measurement: Measurement) -> Scatter:
    """Return the scatter for a measurement, given the stacks by key."""
    return scatter_of(stacks.get(measurement.stack), measurement.conditions.threads, measurement.subject)


@cache
def _scatter(runtime: tuple[str, str] | None, threads: int, of: str) -> Scatter:
    rows = _data("scatter.json")
    alike = [row for row in rows if row["of"] == of and row["threads"] == threads]
    same_runtime = [row for row in alike if (row["backend"], row["device"]) == runtime]
    deviations = [
        _widest(same_runtime, kind) or _widest(alike, kind) or _widest(rows, kind) for kind in ("processes", "runs")
    ]
    process_sd, run_sd = (sd or 0.0 for sd in deviations)
    return Scatter(process_sd, run_sd, known=all(_widest(same_runtime, kind) for kind in ("processes", "runs")))


def _widest(rows: list[dict[str, Any]], kind: str) -> float | None:
    return max((row[kind]["sd"] for row in rows if row[kind] is not None), default=None)


OPENED = "opened"
"""Such a session allocates activations in each execution; where they lie is known less well (docs/results, tokens)."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way to compose an estimate, as far as the error depends on it.

    Attributes:
        backend: Name of the backend.
        device: Its device.
        graph: Graph that the bricks come from: ``source``, ``fused`` or ``runtime``; ``OPENED`` for a session that
            leaves lengths open, as a decoder's loop does.
        granularity: Most layers of a brick; 0 for overlapping sequences and connected windows.
        cache: Cache state; ``model`` for bricks of each model's footprint class.
        threads: Threads of the runtime.
        batch: Batch size of the model.
        dtype: Precision.
    """

    backend: str
    device: str
    graph: str
    granularity: int
    cache: str
    threads: int
    batch: int
    dtype: str


@dataclass(frozen=True, slots=True)
class MethodError:
    """Error of an estimate from exactly measured bricks.

    Attributes:
        method: The way to compose the estimate.
        sd: Relative standard deviation.
        known: True if it was fitted for this method, CPU model and number of threads, and held on other data or was
            fitted by the user. Otherwise ``sd`` is the widest that is known there, or of similar methods.
    """

    method: Method
    sd: float
    known: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fitted error of one method on one CPU model.

    Attributes:
        method: The method.
        cpu: The CPU model.
        sd: Relative standard deviation that was fitted.
        widest: Largest deviation that a fit to any run or family of this method gives; of this CPU model if ``judged``.
        holds: True if intervals with ``sd`` contain the measured latency often enough, in data that ``sd`` was not
            fitted to.
        judged: True if there are such data of this CPU model.
    """

    method: Method
    cpu: str
    sd: float
    widest: float
    holds: bool
    judged: bool = False

    @classmethod
    def of_runs(cls, runs: Iterable[Run], system: str, cpu: str) -> tuple[Calibration, ...]:
        """Return the fits that runs on a system stored, the latest first.

        Args:
            runs: Oldest first.
            system: Key of the system.
            cpu: Its CPU model.
        """
        rows = (run.options.get(CALIBRATION) for run in runs if run.system == system)
        fits = [_read(row, cpu) for several in rows if isinstance(several, list) for row in several]
        return tuple(fit for fit in reversed(fits) if fit is not None)

    def record(self) -> dict[str, Any]:
        """Return the fit as a run stores it."""
        return {"method": asdict(self.method), "sd": self.sd}


def _read(row: object, cpu: str) -> Calibration | None:
    """Return a stored fit; None for other contents, since a database may come from elsewhere."""
    if not isinstance(row, Mapping) or not isinstance(row.get("method"), Mapping):
        return None
    method, sd = row["method"], row.get("sd")
    if {*method} != {field.name for field in fields(Method)} or not isinstance(sd, float) or not 0 <= sd < math.inf:
        return None
    return Calibration(Method(**method), cpu, sd, widest=sd, holds=True)


_ALIKE = (("backend", "device", "graph", "threads"), ("backend", "device", "graph"), ("device",), ())
"""Fields that similar methods have in common, the most similar first."""


def method_error(method: Method, cpu: str, own_fits: Sequence[Calibration] = ()) -> MethodError:
    """Return the error of a method on a CPU model, or the widest that is known of it there, or of similar methods.

    Args:
        method: The method.
        cpu: The CPU model.
        own_fits: The user's own fits, the latest first.
    """
    fits = [*own_fits, *_shipped()]
    here = [fit for fit in fits if fit.method == method and fit.cpu == cpu]
    for fit in here:
        if fit.holds:
            return MethodError(method, fit.sd, known=True)
    similar = (
        [fit for fit in fits if all(getattr(fit.method, name) == getattr(method, name) for name in names)]
        for names in _ALIKE
    )
    alike = [fit for fit in here if fit.judged] or next(found for found in similar if found)
    return MethodError(method, max(fit.widest for fit in alike), known=False)


def fitted_sd(errors: Sequence[float], halves: Sequence[float]) -> float:
    """Return the least standard deviation with which 95 % of the intervals contain the measured latency.

    Args:
        errors: Logarithm of estimate over measured latency, by model.
        halves: Half of its 95 % interval without the error of the method.
    """
    return least_sd(np.sqrt(np.maximum(0, np.square(errors) - np.square(halves))) / NORMAL)


def least_sd(lacking: Sequence[float]) -> float:
    """Return the 95 % quantile of the deviations that single intervals lack."""
    ordered = sorted(lacking)
    return float(ordered[math.ceil(_HELD * len(ordered)) - 1])


def share_held(errors: Sequence[float], halves: Sequence[float], sd: float) -> float:
    """Return the share of intervals, widened by a deviation, that contain the measured latency."""
    return float(np.mean(np.abs(errors) <= np.hypot(halves, NORMAL * sd)))


@cache
def _shipped() -> tuple[Calibration, ...]:
    rows = _data("calibration.json")
    return tuple(
        Calibration(Method(**row["method"]), *(row[name] for name in ("cpu", "sd", "widest", "holds", "judged")))
        for row in rows
    )


def _data(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(files(__package__).joinpath(name).read_text("utf-8"))
    return rows
