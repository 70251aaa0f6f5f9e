"""What a profiler saw, execution by execution, summed up to a kernel view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_high

from ...db.values import Kernel, KernelView
from ...errors import BackendError

__all__ = ["Launch", "kernel_view"]

_Named = tuple[str, str, str]
"""Name, operator and place of a kernel."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of a kernel.

    Attributes:
        name: As the runtime prints it.
        operator: The framework's operator that launched it; empty where that is not known.
        place: Where it ran.
        time_ns: How long; None where the profiler does not report it.
    """

    name: str
    operator: str
    place: str
    time_ns: int | None


def kernel_view(executions: Sequence[Sequence[Launch]], walls_ns: Sequence[int], source: str) -> KernelView:
    """The kernels of several executions of one network.

    Args:
        executions: The calls of each execution, in the order in which they started.
        walls_ns: How long each execution took.
        source: Which profiler.

    Returns:
        Per kernel its calls and time in one execution, each the median: an execution that was interrupted does not
        count. A kernel that not every execution called, as one behind an ``If``, is listed if most of them did.

    Raises:
        BackendError: No execution was seen, or not all that took time.
    """
    if not executions or len(executions) != len(walls_ns):
        raise BackendError(f"{source} recorded {len(executions)} of {len(walls_ns)} executions")
    order: dict[_Named, None] = {}
    summed = [_summed(launches) for launches in executions]
    for launches in executions:
        order.update(dict.fromkeys((one.name, one.operator, one.place) for one in launches))
    kernels = []
    for named in order:
        calls = median_high(len(found.get(named, ())) for found in summed)
        times = [_total(found.get(named, ())) for found in summed]
        known = [time for time in times if time is not None]
        if calls:
            time_ns = round(median(known)) if len(known) == len(times) else None
            kernels.append(Kernel(*named, calls=calls, time_ns=time_ns))
    return KernelView(tuple(kernels), round(median(walls_ns)), len(executions), source)


def _summed(launches: Sequence[Launch]) -> dict[_Named, list[int | None]]:
    found: dict[_Named, list[int | None]] = {}
    for one in launches:
        found.setdefault((one.name, one.operator, one.place), []).append(one.time_ns)
    return found


def _total(times: Sequence[int | None]) -> int | None:
    """The sum of times, unless one is not known."""
    known = [time for time in times if time is not None]
    return sum(known) if len(known) == len(times) else None
