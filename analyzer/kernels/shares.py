"""The kernels of one or several views together, each with its share of the time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from ...constructor.form import Form
from ...db import Kernel, KernelView
from .units import Units, Use, units_of

__all__ = ["KernelLayer", "KernelShare", "device_of", "matrix_share", "shares_of", "use_shares"]

_NS_PER_MS = 1e6

_DEVICES = {"tensorrt": "cuda", "nvtensorrtrtx": "cuda"}
"""Execution providers that run on a device which is called otherwise."""


@dataclass(frozen=True, slots=True)
class KernelLayer:
    """A brick of a model that a kernel ran for.

    Attributes:
        key: Key of the brick.
        count: How often the model holds it.
        names: Names of the layers of its first occurrence.
        op_types: Their operators.
        form: What they look like.
    """

    key: str
    count: int
    names: tuple[str, ...]
    op_types: tuple[str, ...]
    form: Form


@dataclass(frozen=True, slots=True)
class KernelShare:
    """One kernel, with its part of a model or brick.

    Attributes:
        name: As the runtime prints it.
        operator: The framework's operator that launched it; empty where that is not known.
        place: Where it ran, as the runtime prints it.
        calls: How often, in one execution.
        time_ms: Of all calls together, under a profiler: no latency. None where it is not known.
        share: Of the time of all kernels; None where that is not known.
        units: What it computes with, by its name.
        elsewhere: Whether it ran on another device than its stack is about.
        layers: The bricks that it ran for, the longest time in it first; empty where that is not known, as of a whole
            model.
    """

    name: str
    operator: str
    place: str
    calls: int
    time_ms: float | None
    share: float | None
    units: Units
    elsewhere: bool
    layers: tuple[KernelLayer, ...] = ()

    def record(self) -> dict[str, object]:
        """As a JSON object."""
        return {
            "name": self.name,
            "operator": self.operator or None,
            "place": self.place,
            "calls": self.calls,
            "time_ms": self.time_ms,
            "share": self.share,
            "matrix": str(self.units.matrix),
            "units": self.units.name or None,
            "elsewhere": self.elsewhere,
            "layers": [asdict(layer) for layer in self.layers],
        }


def shares_of(views: Iterable[tuple[KernelView, int]], device: str) -> tuple[tuple[KernelShare, ...], float | None]:
    """The kernels of several views together, and their time in ms.

    Args:
        views: Each with how often it counts.
        device: Of the stack.

    Returns:
        The kernels, the longest first, and the time of all; None where that of one is not known.
    """
    summed: dict[tuple[str, str, str], Kernel] = {}
    for view, count in views:
        for one in view.kernels:
            key = (one.name, one.operator, one.place)
            known = summed.get(key, Kernel(*key, calls=0, time_ns=0))
            both = None if known.time_ns is None or one.time_ns is None else known.time_ns + count * one.time_ns
            summed[key] = replace(known, calls=known.calls + count * one.calls, time_ns=both)
    times = [one.time_ns for one in summed.values()]
    known_ns = [time for time in times if time is not None]
    total_ns = sum(known_ns) if len(known_ns) == len(times) else None
    rows = [
        KernelShare(
            name=one.name,
            operator=one.operator,
            place=one.place,
            calls=one.calls,
            time_ms=None if one.time_ns is None else one.time_ns / _NS_PER_MS,
            share=None if not total_ns or one.time_ns is None else one.time_ns / total_ns,
            units=units_of(one.name, one.operator),
            elsewhere=device_of(one.place) != device,
        )
        for one in summed.values()
    ]
    rows.sort(key=lambda row: -1.0 if row.time_ms is None else row.time_ms, reverse=True)
    return tuple(rows), None if total_ns is None else total_ns / _NS_PER_MS


def device_of(place: str) -> str:
    """The device behind a place that a runtime prints: ``CPUExecutionProvider`` is ``cpu``."""
    name = place.lower().removesuffix("executionprovider")
    return _DEVICES.get(name, name)


def matrix_share(kernels: Iterable[KernelShare], use: Use) -> float | None:
    """The share of time in kernels that use matrix units, that do not, or whose names do not say.

    Args:
        kernels: All of a model or brick.
        use: Which of them.

    Returns:
        None where there are none, or the time of one is not known.
    """
    shares = [(one.share, one.units.matrix) for one in kernels]
    known = [(share, matrix) for share, matrix in shares if share is not None]
    if not known or len(known) != len(shares):
        return None
    return sum(share for share, matrix in known if matrix is use)


def use_shares(kernels: Iterable[KernelShare]) -> dict[str, float | None]:
    """The same for each of these uses, by name."""
    found = list(kernels)
    return {str(use): matrix_share(found, use) for use in Use}
