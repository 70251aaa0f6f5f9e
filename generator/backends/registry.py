"""Backends by name: the folders of this room, and the entry points of the group ``dlbricks.backends``.

The folders are found even in a checkout that was never installed, as in another environment or on a borrowed machine.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from ...errors import BackendUnavailable, UsageError
from .base import Availability, Backend, OptimiserTraits

GROUP = "dlbricks.backends"
_BASE = f"{Backend.__module__}.{Backend.__qualname__}"


def names() -> list[str]:
    """Names of all backends, sorted; none of them is loaded."""
    return sorted(_points())


def get(name: str) -> Backend:
    """Return the backend of a name.

    Raises:
        UsageError: No backend has this name.
        BackendUnavailable: The plug-in that has it cannot be loaded.
    """
    point = _points().get(name)
    if point is None:
        raise UsageError(f"there is no backend {name!r}", remedy=f"known are {', '.join(names())}")
    try:
        backend = _class_of(point.load())()
    except Exception as error:  # a plug-in is foreign code: whatever it raises is why it cannot be used
        raise BackendUnavailable(f"backend {name} ({point.value}) cannot be loaded: {error!r}") from error
    if not isinstance(backend, Backend):
        raise BackendUnavailable(f"backend {name} ({point.value}) is no backend: it does not derive from {_BASE}")
    return backend


def optimiser_of(name: str) -> OptimiserTraits:
    """Return the traces that a backend's optimiser leaves in executed graphs.

    Raises:
        UsageError: No backend has this name, or it does not report its executed graph.
        BackendUnavailable: As ``get``.
    """
    backend = get(name)
    if backend.graph == "source":
        backend.require(Backend.executed_graph)
    return backend.optimiser


def require_available(backend: Backend, name: str, device: str) -> None:
    """Make sure that a backend can run on a device here, as far as that is known without loading its runtime.

    Raises:
        BackendUnavailable: It cannot; the message says why.
    """
    availability = backend.probe()
    if not availability.ok:
        raise BackendUnavailable(f"backend {name} cannot run here: {availability.reason}")
    lack = availability.why_not(device)
    if lack:
        usable = next((other for other in backend.devices if not availability.why_not(other)), "")
        raise BackendUnavailable(
            f"backend {name} cannot run on device {device!r} here: {lack}",
            remedy=f"use --device {usable}" if usable else "",
        )


def backends() -> dict[str, Availability]:
    """Return every backend with its availability here; never raise."""
    availabilities: dict[str, Availability] = {}
    for name in names():
        try:
            availabilities[name] = get(name).probe()
        except BackendUnavailable as error:
            availabilities[name] = Availability(ok=False, reason=str(error))
    return availabilities


def _class_of(loaded: Any) -> Any:
    """Return the backend that a module of this room defines; what a plug-in names stays as it is."""
    if not inspect.ismodule(loaded):
        return loaded
    return next(
        member for member in vars(loaded).values()
        if inspect.isclass(member) and issubclass(member, Backend) and member.__module__ == loaded.__name__
    )  # fmt: skip


@cache
def _points() -> dict[str, EntryPoint]:
    modules = Path(__file__).parent.glob("*/backend.py")
    folder_points = [
        EntryPoint(path.parent.name, f"{__package__}.{path.parent.name}.backend", GROUP) for path in modules
    ]
    return {point.name: point for point in (*folder_points, *entry_points(group=GROUP))}
