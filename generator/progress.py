"""Progress as values: what a long command reports between two requests; drawing it is the caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Progress", "ProgressCallback", "Stage"]


class Stage(StrEnum):
    """What is being done."""

    GENERATE = "generate"
    """Models are decomposed; ``done`` of ``total`` are."""
    PREPARE = "prepare"
    """Networks are loaded in the worker."""
    SAMPLE = "sample"
    """Networks are timed; ``done`` and ``total`` count visits."""
    CHECK = "check"
    """What a brick computes is compared; ``done`` of ``total`` bricks are."""
    PLAN = "plan"
    """A library is asked for its plans; ``done`` of ``total`` bricks are."""
    RETRY = "retry"
    """An item that ended its worker is tried alone once more."""
    PROFILE = "profile"
    """The kernels of items are recorded, after everything is timed."""
    FINISH = "finish"
    """Statistics are computed and stored."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One step done.

    Attributes:
        stage: What is being done.
        done: Steps done in the whole command.
        total: Steps known in the whole command; may shrink when items converge early.
        label: What the step was about: a brick key or a model name.
        elapsed_s: Since the command began.
        remaining_s: Forecast; None before anything is known.
    """

    stage: Stage
    done: int
    total: int
    label: str
    elapsed_s: float
    remaining_s: float | None = None


ProgressCallback = Callable[[Progress], None]
"""Called between requests only: nothing is drawn while a sample is timed."""
