"""What is asked of a backend before it is used, and the errors where it lacks something."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ...errors import UsageError
from .algorithms import Algorithm, AlgorithmBackend
from .base import (
    Backend,
    DeviceDtypesBackend,
    EagerBackend,
    OptimisingBackend,
    PackingBackend,
    ProfilingBackend,
    Settings,
    TracingBackend,
)

__all__ = [
    "dtypes_on",
    "in_turn",
    "require_algorithms",
    "require_dtype",
    "require_in_turn",
    "require_profiling",
    "require_tracing",
    "require_walking",
    "walks",
    "with_algorithm",
]


def in_turn(backend: Backend, options: Mapping[str, str]) -> bool:
    """Whether a backend can measure in the cache mode ``model`` with these effective options."""
    return isinstance(backend, OptimisingBackend) and backend.in_turn(options)


def require_in_turn(backend: Backend, options: Mapping[str, str]) -> OptimisingBackend:
    """The backend, if it can measure in the cache mode ``model`` with these effective options.

    Raises:
        UsageError: It cannot.
    """
    if not isinstance(backend, OptimisingBackend):
        raise UsageError(
            f"backend {backend.name} cannot measure in cache mode 'model'", remedy="use --cache hot or --cache cold"
        )
    if not backend.in_turn(options):
        raise UsageError(
            f"backend {backend.name} cannot measure in cache mode 'model' with these options: it would run bricks at "
            "once, compile each for seconds whenever it is loaded, or look for branches, which only whole models have",
            remedy="use --cache hot or --cache cold, or measure whole models alone",
        )
    return backend


def walks(backend: Backend, options: Mapping[str, str]) -> bool:
    """Whether a backend can run the very layers that it executes for a model one by one, with these effective options.

    It hands out an optimised network, or optimises nothing.
    """
    eager = isinstance(backend, EagerBackend) and backend.eager(options)
    return in_turn(backend, options) and (eager or isinstance(backend, PackingBackend))


def require_walking(backend: Backend, device: str, options: Mapping[str, str]) -> None:
    """Make sure that a backend can time layer by layer what a model's own values cost, with these effective options.

    Raises:
        UsageError: It cannot, or not on this device.
    """
    if not walks(backend, options):
        raise UsageError(
            f"backend {backend.name} cannot execute a model layer by layer, or not with these options",
            remedy="leave out --data",
        )
    if device != "cpu":
        raise UsageError(
            f"what a model's own values cost is measured on the CPU alone, not on device {device!r}",
            remedy="leave out --data",
        )


def require_dtype(backend: Backend, dtype: str, device: str = "") -> None:
    """Make sure that a backend can compute in a precision.

    Args:
        backend: The runtime.
        dtype: The precision.
        device: Where; empty: on any device.

    Raises:
        UsageError: It cannot; the message lists what it can.
    """
    if dtype not in backend.dtypes:
        raise UsageError(
            f"backend {backend.name} does not compute in {dtype!r}", remedy=f"it has {', '.join(backend.dtypes)}"
        )
    known = dtypes_on(backend, device) if device else backend.dtypes
    if dtype not in known:
        raise UsageError(
            f"backend {backend.name} does not compute in {dtype!r} on device {device!r}",
            remedy=f"it has {', '.join(known)} there",
        )


def dtypes_on(backend: Backend, device: str) -> tuple[str, ...]:
    """The precisions that a backend has on a device."""
    return backend.dtypes_on(device) if isinstance(backend, DeviceDtypesBackend) else backend.dtypes


def require_profiling(backend: Backend) -> ProfilingBackend:
    """The backend, if it reports the kernels that it executes.

    Raises:
        UsageError: It cannot.
    """
    if not isinstance(backend, ProfilingBackend):
        raise UsageError(
            f"backend {backend.name} does not report the kernels that it executes", remedy="leave out --kernels"
        )
    return backend


def require_tracing(backend: Backend) -> TracingBackend:
    """The backend, if it reports how often it executes each operator.

    Raises:
        UsageError: It cannot.
    """
    if not isinstance(backend, TracingBackend):
        raise UsageError(
            f"backend {backend.name} does not report which operators it executes", remedy="use backend onnxruntime"
        )
    return backend


def require_algorithms(
    backend: Backend, device: str, options: Mapping[str, str], dtype: str, names: Collection[str] = ()
) -> tuple[Algorithm, ...]:
    """The algorithms of a backend beside the one that it chooses with these effective options.

    Args:
        backend: The backend.
        device: Its device.
        options: Effective ones.
        dtype: Precision.
        names: Of those that are wanted; empty: all.

    Raises:
        UsageError: It offers no choice, or has none of such a name.
    """
    if not isinstance(backend, AlgorithmBackend):
        raise UsageError(
            f"backend {backend.name} offers no choice of algorithms",
            remedy="leave out --algorithms; its options, if it has any, are stacks of their own (--option)",
        )
    found = backend.algorithms(device, options, dtype)
    if not found:
        raise UsageError(
            f"backend {backend.name} offers no choice of algorithms in {dtype} with these options",
            remedy="leave out --algorithms",
        )
    unknown = sorted({*names} - {algorithm.name for algorithm in found})
    if unknown:
        raise UsageError(
            f"backend {backend.name} has no algorithm {unknown[0]!r} here",
            remedy=f"it has {', '.join(algorithm.name for algorithm in found)}",
        )
    return tuple(algorithm for algorithm in found if not names or algorithm.name in names)


def with_algorithm(backend: Backend, settings: Settings, name: str) -> Settings:
    """The settings with one of the backend's algorithms.

    Raises:
        UsageError: It has none of that name with these settings.
    """
    known: tuple[Algorithm, ...] = ()
    if isinstance(backend, AlgorithmBackend):
        known = backend.algorithms(settings.device, settings.options, settings.dtype)
    chosen = next((algorithm for algorithm in known if algorithm.name == name), None)
    if chosen is None:
        names = ", ".join(algorithm.name for algorithm in known) or "none"
        raise UsageError(f"backend {backend.name} has no algorithm {name!r} here", remedy=f"it has {names}")
    return replace(settings, options={**settings.options, **chosen.options}, channels=chosen.channels)
