"""How far estimates are off for reasons that no repetition of a measurement shows.

A composed latency differs from the model's by what the composition leaves out. By how much depends on how it was
composed and where: it is known for the ways that were held against whole models, from data that stand in docs/results,
and for no other. And what processes of one run have in common is seen only as often as there are processes, two as a
rule: how far they differed in other runs shows what two cannot. Both are data (``calibration.json``, ``scatter.json``),
each row with its source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ...db.values import Measurement, Stack, Subject


@dataclass(frozen=True, slots=True)
class Scatter:
    """What latencies differ by beyond what the time blocks of one process show.

    Attributes:
        process_sd: Relative standard deviation between processes of one run, of what all items of a process share
            (placement in memory, clock).
        run_sd: Relative standard deviation between runs, of undisturbed latencies.
        known: Whether both were calibrated for such a backend, device and threads. Where not, the widest that is known
            of others stands in, of as many threads if there are any: a guess, and to be called one.
    """

    process_sd: float
    run_sd: float
    known: bool


def scatter_of(stack: Stack | None, threads: int, subject: Subject) -> Scatter:
    """What processes and runs differ by, by ``benchmarks/calibrate.py`` from the data in docs/results.

    Args:
        stack: The stack; None where it is not known.
        threads: Of the runtime; all above 1 are one class.
        subject: Whole models, or bricks; all that is no model counts as bricks.
    """
    place = (stack.backend, stack.device) if stack is not None else None
    return _scatter(place, min(threads, 2), "model" if subject is Subject.MODEL else "bricks")


def scatters(stacks: Mapping[str, Stack], measurement: Measurement) -> Scatter:
    """The same of a measurement, its stack by key."""
    return scatter_of(stacks.get(measurement.stack), measurement.conditions.threads, measurement.subject)


@cache
def _scatter(place: tuple[str, str] | None, threads: int, of: str) -> Scatter:
    rows = _data("scatter.json")
    alike = [row for row in rows if row["of"] == of and row["threads"] == threads]
    own = [row for row in alike if (row["backend"], row["device"]) == place]
    found = [_widest(own, kind) or _widest(alike, kind) or _widest(rows, kind) for kind in ("processes", "runs")]
    process_sd, run_sd = (sd or 0.0 for sd in found)
    return Scatter(process_sd, run_sd, known=all(_widest(own, kind) for kind in ("processes", "runs")))


def _widest(rows: list[dict[str, Any]], kind: str) -> float | None:
    return max((row[kind]["sd"] for row in rows if row[kind] is not None), default=None)


@dataclass(frozen=True, slots=True)
class Method:
    """How an estimate was composed, as far as its error depends on that.

    Attributes:
        backend: Name of the backend.
        device: Its device.
        graph: Which graph it is composed from: ``source``, ``fused`` or ``runtime``.
        granularity: Most layers of a brick; 2 stands for all above 1, and all that may overlap or be connected windows.
        cache: Cache state; ``model`` where each model has bricks of its own footprint class.
        threads: Of the runtime; 2 stands for all above 1.
        batch: Of the model; 2 stands for all above 1.
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

    def __post_init__(self) -> None:
        for name in ("granularity", "threads", "batch"):
            object.__setattr__(self, name, min(getattr(self, name), 2))


def method_error_sd(method: Method) -> float | None:
    """Relative standard deviation of the error of an estimate that measures itself exactly.

    By ``benchmarks/calibrate.py`` from the accuracies in docs/results: the least with which the intervals of 95 % of
    the models' ratios hold 1. None where a way to compose was held against no models: nothing is known of its error
    then, and that of another way would say nothing.
    """
    return _known().get(method)


@cache
def _known() -> dict[Method, float]:
    return {Method(**row["method"]): row["sd"] for row in _data("calibration.json")}


def _data(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(files(__package__).joinpath(name).read_text("utf-8"))
    return found
