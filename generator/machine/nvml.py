"""The GPU that CUDA uses, its driver, clocks, power and temperature, and reasons for held clocks."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# The search for NVIDIA's driver, without loading a runtime. A driver does not prove that a GPU can be used, but without
# a driver none can.

_SIGNS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
DRIVER_LIBRARY = "libcuda.so.1"
"""What programs link against; it does nothing when it is loaded. A CUDA toolkit has a stub of it."""


def has_driver(signs: Iterable[Path] = _SIGNS, library: str = DRIVER_LIBRARY) -> bool:
    """Return True if NVIDIA's driver is found, and on systems other than Linux, which this module cannot examine.

    Args:
        signs: Files; each shows the kernel's part of the driver.
        library: The other part, which is alone under WSL and on Tegra.
    """
    return sys.platform != "linux" or any(sign.exists() for sign in signs) or can_load(library)


def lacks_of_gpu(install: str = "") -> list[str]:
    """Return the missing parts of GPU support as texts: CuPy, whose stream all libraries share, and the driver.

    Args:
        install: Command that installs CuPy, for the text; empty: not named.
    """
    lacks = []
    if importlib.util.find_spec("cupy") is None:
        lacks.append("CuPy is not installed" + (f": {install}" if install else ""))
    if not has_driver():
        lacks.append("no NVIDIA driver is found")
    return lacks


def can_load(library: str) -> bool:
    """Return True if a shared library is found and can be loaded."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


class CudaGpu(NamedTuple):
    """A GPU, or a slice of one (MIG), as CUDA reports it.

    Attributes:
        name: Name of the product; for a slice also its size.
        bus: Address on the PCI bus.
    """

    name: str
    bus: str


@cache
def cuda_gpu() -> CudaGpu | None:
    """Return the first GPU that CUDA gives to this process; None without one.

    The driver is asked, without a context on the GPU. CUDA sorts GPUs by speed unless its variables say otherwise, the
    management library by their place on the bus.
    """
    try:
        driver = ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return None
    device, name, bus = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
    calls: tuple[tuple[Any, ...], ...] = (
        (driver.cuInit, 0),
        (driver.cuDeviceGet, ctypes.byref(device), 0),
        (driver.cuDeviceGetName, name, len(name), device),
        (driver.cuDeviceGetPCIBusId, bus, len(bus), device),
    )
    if any(function(*arguments) for function, *arguments in calls):
        return None
    return CudaGpu(name.value.decode(), bus.value.decode())


def driver_version(path: Path = _SIGNS[0]) -> str:
    """Return the version of NVIDIA's kernel module; empty if it is unknown."""
    with suppress(OSError):
        match = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", path.read_text())
        return match.group() if match else ""
    return ""


_REASONS = {
    0x1: "idle", 0x2: "applications clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "thermal, software", 0x40: "thermal, hardware", 0x80: "power brake", 0x100: "display clock",
}  # fmt: skip
"""``nvmlClocksEventReason*`` of nvml.h."""

_HELD = frozenset({"power cap", "hardware slowdown", "thermal, software", "thermal, hardware", "power brake"})

_COUNTERS = ("power_held_ns", "thermal_held_ns")

_SHARE = 0.01
"""Part of a time for which clocks may be held back: a mean over it moves by less. Under load a GPU goes to its limit,
and is held back there for moments (https://github.com/NVIDIA/DCGM/issues/285)."""


def gpu_state() -> Mapping[str, Any]:
    """Return the present state of the first GPU that this process may use, as far as the driver reports it.

    Without nvidia-ml-py or a GPU it is empty. For a slice it is the state of the whole GPU.

    Returns:
        ``driver``, ``sm_mhz``, ``memory_mhz``, ``most_sm_mhz``, ``temperature_c``, ``power_w``, ``power_limit_w``,
        ``memory_free_bytes``, ``held_back`` (reasons at this moment), ``power_held_ns`` and ``thermal_held_ns`` (for
        how long so far, since the driver was loaded).
    """
    try:
        import pynvml
    except ImportError:
        return {}
    used = cuda_gpu()
    if used is None:
        return {}
    state: dict[str, Any] = {}
    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByPciBusId(used.bus)
    except pynvml.NVMLError:
        return {}
    asked: dict[str, Callable[[], Any]] = {
        "driver": lambda: str(pynvml.nvmlSystemGetDriverVersion()),
        "sm_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
        "most_sm_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
        "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
        "power_limit_w": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
        "memory_free_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu).free,
        "held_back": lambda: _reasons(pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)),
        "power_held_ns": lambda: pynvml.nvmlDeviceGetViolationStatus(gpu, pynvml.NVML_PERF_POLICY_POWER).violationTime,
        "thermal_held_ns": lambda: (
            pynvml.nvmlDeviceGetViolationStatus(gpu, pynvml.NVML_PERF_POLICY_THERMAL).violationTime
        ),
    }
    for name, ask in asked.items():
        with suppress(pynvml.NVMLError):  # what this GPU does not report is not there
            state[name] = ask()
    return state


def throttled(before: Mapping[str, Any], after: Mapping[str, Any], elapsed_s: float) -> bool:
    """Return True if clocks were held back at one of two moments, or for long between them.

    Between the moments only power and temperature are known, on GPUs that count their time.
    """
    if any(not _HELD.isdisjoint(state.get("held_back", ())) for state in (before, after)):
        return True
    counted = [name for name in _COUNTERS if name in before and name in after]
    return any(after[name] - before[name] > _SHARE * elapsed_s * 1e9 for name in counted)


def _reasons(bits: int) -> list[str]:
    return [name for bit, name in _REASONS.items() if bits & bit]
