"""Progress of a long command as values; the caller draws it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Stage(StrEnum):
    """Stages of a command."""

    GENERATE = "generate"
    """Models are decomposed; ``done`` of ``total`` are."""
    PREPARE = "prepare"
    """Networks are loaded in the worker."""
    SAMPLE = "sample"
    """Networks are timed; ``done`` and ``total`` count visits."""
    CHECK = "check"
    """Comparing the outputs of bricks; ``done`` of ``total`` bricks."""
    PLAN = "plan"
    """A library is asked for its plans; ``done`` of ``total`` bricks are."""
    RETRY = "retry"
    """An item that ended its worker is tried alone once more."""
    ANALYSE = "analyse"
    """Searching for missed optimisations; ``done`` of ``total`` analyses."""
    PROFILE = "profile"
    """The kernels of items are recorded, after everything is timed."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One step done.

    Attributes:
        stage: Current stage.
        done: Steps done in the whole command.
        total: Steps known in the whole command; may shrink when items converge early.
        label: Subject of the step: a brick key or a model name.
        elapsed_s: Seconds since the command began.
        remaining_s: Forecast in seconds; None if unknown.
    """

    stage: Stage
    done: int
    total: int
    label: str
    elapsed_s: float
    remaining_s: float | None = None


ProgressCallback = Callable[[Progress], None]
"""Called between requests only: nothing is drawn while a sample is timed."""


class Whole:
    """Progress of several consecutive measurements as one.

    Args:
        progress: Called with the progress of the whole; None: never.
        forecasts_s: Expected seconds of each measurement.
    """

    def __init__(self, progress: ProgressCallback | None, forecasts_s: Sequence[float]) -> None:
        self._progress = progress
        self._forecasts_s = tuple(forecasts_s)
        self._begun_s = time.monotonic()

    def part(self, number: int) -> ProgressCallback | None:
        """Return the callback of one measurement: its counts and position, and the times of the whole."""
        progress = self._progress
        if progress is None:
            return None
        later_s, place = sum(self._forecasts_s[number + 1 :]), f"{number + 1}/{len(self._forecasts_s)}"

        def report(step: Progress) -> None:
            remaining_s = None if step.remaining_s is None else step.remaining_s + later_s
            progress(
                replace(
                    step,
                    done=step.done + number * step.total,
                    total=len(self._forecasts_s) * step.total,
                    label=f"{place} {step.label}",
                    elapsed_s=time.monotonic() - self._begun_s,
                    remaining_s=remaining_s,
                )
            )

        return report
