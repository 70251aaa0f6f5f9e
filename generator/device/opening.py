"""The device of a name."""

from __future__ import annotations

from ...errors import UsageError
from .device import Device

__all__ = ["open_device"]


def open_device(name: str, cores: tuple[int, ...] = ()) -> Device:
    """The device of a name, for this process.

    Args:
        name: ``cpu`` or ``cuda``.
        cores: Processors whose private caches ``evict`` of the CPU sweeps; empty: only where the thread runs.

    Raises:
        UsageError: There is no such device.
        BackendUnavailable: CuPy is not installed, or finds no GPU.
    """
    if name == "cpu":
        from .host import HostDevice

        return HostDevice(cores)
    if name == "cuda":
        from .cuda import cuda_device

        return cuda_device()
    raise UsageError(f"there is no device {name!r}", remedy="use cpu or cuda")
