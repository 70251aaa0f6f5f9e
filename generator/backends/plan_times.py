"""Timing what a library offers for one brick, plan by plan.

Not a measurement as a campaign takes it: a few executions with caches hot, between events in the stream, as one CUDA
graph. It ranks plans; the option ``plan`` executes one of them in a campaign.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from ...errors import BackendError
from ..device.device import Device, Run
from ..network.difference import relative_difference
from .algorithms import PlanTime
from .memory import Loaded, Memory

__all__ = ["Candidate", "measured"]

Array = npt.NDArray[Any]

_SAMPLES = 5
_SAMPLE_NS = 5e5
"""About as long as one sample shall be: many times the resolution of events, which is half a microsecond."""
_MOST_COPIES = 32
_GONE = "not tried: the GPU failed in a plan before"


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A plan that may be executed.

    Attributes:
        row: What is known of it; one with a reason is not tried, one without a place gets the next one if it is built.
        start: Builds it; gives what enqueues one execution, and its workspace in bytes.
    """

    row: PlanTime
    start: Callable[[], tuple[Run, int]]


def measured(
    candidates: Iterable[Candidate],
    loaded: Loaded,
    memory: Memory,
    device: Device,
    reason_of: Callable[[Exception], str],
    *,
    most: int,
) -> tuple[PlanTime, ...]:
    """Build, execute and time each plan.

    Args:
        candidates: In the library's order.
        loaded: The brick in memory; its ``run`` is not used.
        memory: Of the brick.
        device: Where.
        reason_of: One line of an exception of the library.
        most: Plans that are executed at most; there are no rows of those behind.
    """
    rows: list[PlanTime] = []
    first: list[Array] = []
    place = 0
    gone = ""
    for candidate in candidates:
        if place == most:
            break
        row = candidate.row
        if row.reason or gone:
            rows.append(replace(row, reason=row.reason or gone))
            continue
        try:
            run, workspace = candidate.start()
            row = replace(row, place=place if row.place is None else row.place, workspace_bytes=workspace)
            place += 1
            for buffer in loaded.outputs:
                memory.erase(buffer)
            run()
            device.synchronize()
            found = loaded.read()
            first = first or found
            error = max(map(relative_difference, found, first), default=0.0)
            rows.append(replace(row, ns=_time_ns(run, device), error=error))
        except Exception as error:  # noqa: BLE001  # the exceptions of libraries share no base class; a row has the reason
            rows.append(replace(row, reason=reason_of(error)))
            gone = _GONE if _is_gone(device) else ""
    return tuple(rows)


def _time_ns(run: Run, device: Device) -> float:
    """Nanoseconds of one execution."""
    run()
    device.synchronize()
    once = device.timed_ns(run, device.synchronize)
    copies = int(min(max(_SAMPLE_NS / max(once, 1.0), 1), _MOST_COPIES))
    launch = _captured(run, copies, device)
    launch()
    device.synchronize()
    samples: Sequence[float] = [device.timed_ns(launch, device.synchronize) for _ in range(_SAMPLES)]
    return statistics.median(samples) / copies


def _captured(run: Run, copies: int, device: Device) -> Run:
    """Several executions as one launch; a plan that cannot be captured has no time beside those that can."""

    def repeat() -> None:
        for _ in range(copies):
            run()

    return device.capture(repeat)


def _is_gone(device: Device) -> bool:
    """Whether nothing works on the device any more: an illegal address in a kernel ends the context."""
    try:
        device.synchronize()
    except BackendError:
        return True
    return False
