"""How far estimates are off for reasons that no repetition of a measurement shows.

A composed latency differs from the model's by what the composition leaves out. By how much depends on how it was
composed and where: it is known for the ways that were held against whole models, from data that stand in docs/results,
and for no other. And what processes of one run have in common is seen only as often as there are processes, two as a
rule: how far they differ on other runs tells what two cannot.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["PROCESS_SD", "RUN_SD", "Method", "method_error_sd"]

PROCESS_SD = 0.01
"""Relative standard deviation between processes of what all bricks of a process share (placement in memory, clock)."""

RUN_SD = 0.02
"""Relative standard deviation between runs of undisturbed latencies (docs/results/README.md)."""


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
    rows: list[dict[str, Any]] = json.loads(files(__package__).joinpath("calibration.json").read_text("utf-8"))
    return {Method(**row["method"]): row["sd"] for row in rows}
