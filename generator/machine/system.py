"""This machine: the hardware that decides a latency, and the state it is in."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from ...db.values import System
from .cores import huge_pages, physical_cores
from .nvml import gpu_state

_CPUS = Path("/sys/devices/system/cpu")
_ISA = frozenset({
    "sse4_1", "sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx512_vbmi", "avx512_vbmi2", "amx_tile", "amx_bf16", "amx_int8",
    "amx_fp16", "neon", "asimd", "asimddp", "asimdhp", "fphp", "sve", "sve2", "i8mm", "bf16", "svei8mm", "svebf16",
    "sme", "vsx", "rvv",
})  # fmt: skip
"""Instruction sets that runtimes dispatch on; other flags would make systems of microcode updates."""
_BUSY_SHARE = 0.05
"""Share of the allowed CPUs that others may use on a quiet machine."""
_STEAL_SHARE = 0.01
_WARM_C = 85.0


@cache
def probe_system() -> System:
    """The hardware of this machine; no host name, and nothing that a reboot changes."""
    info = _cpuinfo()
    return System(
        cpu=info.get("model name") or info.get("cpu model") or platform.processor() or _arm_name(info),
        architecture=platform.machine(),
        physical_cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        logical_cores=os.cpu_count() or 1,
        cache_bytes=_caches(),
        memory_gib=round(psutil.virtual_memory().total / 2**30),
        isa=tuple(sorted(_ISA.intersection((info.get("flags") or info.get("Features") or "").split()))),
        gpus=_gpus(),
    )


def machine_state() -> dict[str, object]:
    """What may differ from run to run and explain a difference; None where the machine does not report it.

    Returns:
        ``kernel``, ``microcode``, ``governor``, ``frequency_mhz``, ``min_frequency_mhz``, ``max_frequency_mhz``,
        ``turbo``, ``load_1m``, ``load_5m``, ``cpus_allowed``, ``affinity`` (which they are), ``cpu_quota``,
        ``huge_pages`` (when memory is taken in large pages), ``temperature_c``, ``memory_available_gib``, ``virtual``
        (a hypervisor is below us), ``smt`` (several threads share a core), and ``gpu`` (``gpu_state``) where there is
        one that reports it.
    """
    load = os.getloadavg()
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    return {
        "kernel": platform.release(),
        "microcode": _cpuinfo().get("microcode"),
        "governor": _text(_CPUS / "cpu0/cpufreq/scaling_governor") or None,
        "frequency_mhz": round(frequency.current) if frequency and frequency.current else None,
        "min_frequency_mhz": round(frequency.min) if frequency and frequency.min else None,
        "max_frequency_mhz": round(frequency.max) if frequency and frequency.max else None,
        "turbo": _turbo(),
        "load_1m": round(load[0], 2),
        "load_5m": round(load[1], 2),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "affinity": _ranges(sorted(os.sched_getaffinity(0))),
        "cpu_quota": _quota(),
        "huge_pages": huge_pages(),
        "temperature_c": _temperature(),
        "memory_available_gib": round(psutil.virtual_memory().available / 2**30, 1),
        "virtual": "hypervisor" in (_cpuinfo().get("flags") or "").split(),
        "smt": _text(_CPUS / "smt/active") == "1",
        **({"gpu": gpu} if (gpu := gpu_state()) else {}),
    }


@dataclass(frozen=True, slots=True)
class Quietness:
    """Whether the machine is quiet enough to measure.

    Attributes:
        reasons: What will make measurements noisy and can be changed; empty on a quiet machine.
        notes: What cannot be seen or changed from here.
        busy: Share of the allowed CPUs that was in use while we watched.
    """

    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    busy: float

    @property
    def quiet(self) -> bool:
        """Whether nothing speaks against measuring."""
        return not self.reasons


def quietness(*, watch_s: float = 0.5) -> Quietness:
    """Watch the machine for a moment and judge it.

    Args:
        watch_s: How long to watch the CPUs.
    """
    busy, steal = _watch(watch_s)
    state = machine_state()
    reasons, notes = [], []
    if busy > _BUSY_SHARE:
        reasons.append(f"other processes use {busy:.0%} of the CPUs")
    if steal > _STEAL_SHARE:
        reasons.append(f"the hypervisor takes {steal:.0%} of the CPU time")
    if state["governor"] not in {None, "performance"}:
        reasons.append(f"the frequency governor is {state['governor']}, not performance")
    if isinstance(temperature := state["temperature_c"], float) and temperature >= _WARM_C:
        reasons.append(f"the CPU is at {temperature:.0f} °C and may throttle")
    if isinstance(quota := state["cpu_quota"], float) and quota < len(physical_cores()):
        reasons.append(f"a cgroup limits this process to {quota:g} CPUs and stops it when they are used up")
    if state["turbo"]:
        notes.append("turbo is on: the frequency depends on load and temperature")
    if state["smt"]:
        notes.append("several threads share a core")
    if state["governor"] is None:
        notes.append("frequency and governor cannot be seen from here")
    if state["virtual"]:
        notes.append("a hypervisor may run other guests on the same cores and caches")
    return Quietness(tuple(reasons), tuple(notes), busy)


def _watch(seconds: float) -> tuple[float, float]:
    """Share of CPU time in use and stolen, over the CPUs that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    times = psutil.cpu_times_percent(interval=seconds, percpu=True)
    watched = [times[cpu] for cpu in allowed if cpu < len(times)] or times
    steal = sum(getattr(entry, "steal", 0.0) for entry in watched) / len(watched) / 100
    idle = sum(entry.idle + getattr(entry, "iowait", 0.0) for entry in watched) / len(watched) / 100
    return max(0.0, 1.0 - idle - steal), steal


@cache
def _cpuinfo() -> Mapping[str, str]:
    """First block of /proc/cpuinfo."""
    block = _text(Path("/proc/cpuinfo")).split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _arm_name(info: Mapping[str, str]) -> str:
    """Arm reports an implementer and a part instead of a name."""
    parts = (info.get(f"CPU {entry}") for entry in ("implementer", "architecture", "variant", "part", "revision"))
    return " ".join(part for part in parts if part) or "unknown"


def _caches() -> tuple[tuple[str, int], ...]:
    """Data and unified caches of the first CPU that this process may use, per instance."""
    found = {}
    for index in sorted((_CPUS / "cpu0/cache").glob("index*")):
        kind, size = _text(index / "type"), _text(index / "size")
        if kind and kind != "Instruction" and size:
            name = f"L{_text(index / 'level')}" + ("d" if kind == "Data" else "")
            found[name] = _size_bytes(size)
    return tuple(sorted(found.items()))


def _size_bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _gpus() -> tuple[str, ...]:
    """Names of the GPUs, as their driver reports them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        answer = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()  # a driver that does not answer has no usable GPU
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())


def _turbo() -> bool | None:
    if text := _text(_CPUS / "intel_pstate/no_turbo"):
        return text == "0"
    if text := _text(_CPUS / "cpufreq/boost"):
        return text == "1"
    return None


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in order as the kernel writes them, such as ``0-3,8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _temperature() -> float | None:
    """Hottest CPU sensor."""
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    known = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal")
    return max((float(entry.current) for name in known for entry in sensors.get(name, ())), default=None)


def _quota() -> float | None:
    """CPUs that the control group allows per period; None without a limit."""
    group = next((line.split("::", 1)[1] for line in _text(Path("/proc/self/cgroup")).splitlines() if "::" in line), "")
    for folder in (Path(f"/sys/fs/cgroup{group}"), Path("/sys/fs/cgroup")):
        limit, _, period = _text(folder / "cpu.max").partition(" ")
        if limit and limit != "max":
            return int(limit) / int(period)
    limit, period = (_text(Path("/sys/fs/cgroup/cpu") / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    return int(limit) / int(period) if limit and period and int(limit) > 0 else None


def _text(path: Path) -> str:
    """A small system file, stripped; empty where it does not exist or may not be read."""
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
