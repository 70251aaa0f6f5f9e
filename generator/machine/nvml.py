"""What NVIDIA's management library tells of a GPU: clocks, power, temperature, and why clocks are held back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

__all__ = ["gpu_state", "throttled"]

_REASONS = {
    0x1: "idle", 0x2: "applications clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "thermal, software", 0x40: "thermal, hardware", 0x80: "power brake", 0x100: "display clock",
}  # fmt: skip
"""``nvmlClocksEventReason*`` of nvml.h."""

_HELD = frozenset({"power cap", "hardware slowdown", "thermal, software", "thermal, hardware", "power brake"})


def gpu_state() -> Mapping[str, Any]:
    """The state of the first GPU that this process may use, now; without what the driver does not tell.

    Empty where nvidia-ml-py is not installed.

    Returns:
        ``sm_mhz``, ``memory_mhz``, ``most_sm_mhz``, ``temperature_c``, ``power_w``, ``power_limit_w``,
        ``memory_free_bytes``, ``held_back``.
    """
    try:
        import pynvml
    except ImportError:
        return {}
    found: dict[str, Any] = {}
    try:
        pynvml.nvmlInit()
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
        gpu = (
            pynvml.nvmlDeviceGetHandleByUUID(first)
            if first.startswith(("GPU-", "MIG-"))
            else pynvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)
        )
    except pynvml.NVMLError:
        return {}
    asked: dict[str, Callable[[], Any]] = {
        "sm_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
        "most_sm_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
        "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
        "power_limit_w": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
        "memory_free_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu).free,
        "held_back": lambda: _reasons(pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)),
    }
    for name, ask in asked.items():
        with suppress(pynvml.NVMLError):  # what this GPU does not tell is not there
            found[name] = ask()
    return found


def throttled(state: Mapping[str, Any]) -> bool:
    """Whether clocks are held back by power or temperature."""
    return not _HELD.isdisjoint(state.get("held_back", ()))


def _reasons(bits: int) -> list[str]:
    return [name for bit, name in _REASONS.items() if bits & bit]
