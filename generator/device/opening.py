"""The device of a name, and its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import UsageError
from ..machine.nvml import gpu_state
from .device import Device

__all__ = ["open_device", "state_of"]


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


def state_of(name: str) -> Mapping[str, Any]:
    """Clocks, power, temperature and why clocks are held back, without opening the device; empty where none are known.

    Args:
        name: ``cpu`` or ``cuda``.
    """
    return gpu_state() if name == "cuda" else {}
