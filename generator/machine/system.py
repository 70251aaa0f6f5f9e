"""This machine: the hardware that determines a latency, and its state."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from ...db.values import System
from .cores import CPUS, all_cores, allowed, caches, huge_pages, last_level_bytes, physical_cores, ranges, siblings
from .free_memory import small_pieces
from .nvml import cuda_gpu, gpu_state

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
_IDLE_SHARE = 0.2
"""Share of an idle core that other programs may use."""
_TESTED_BYTES = 480 << 20
"""Largest last-level cache of the machines in docs/results."""
_SCATTERED_BYTES = 256 << 20
"""Free memory in small pieces that a model would notice."""
_WARM_C = 85.0


@cache
def probe_system() -> System:
    """Return the hardware of this machine: no host name, and nothing that a reboot changes."""
    info = _cpuinfo()
    return System(
        cpu=info.get("model name") or info.get("cpu model") or platform.processor() or _arm_name(info),
        architecture=platform.machine(),
        physical_cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        logical_cores=os.cpu_count() or 1,
        cache_bytes=tuple(caches().items()),
        memory_gib=round(psutil.virtual_memory().total / 2**30),
        isa=tuple(sorted(_ISA.intersection((info.get("flags") or info.get("Features") or "").split()))),
        gpus=_gpus(),
    )


def machine_state() -> dict[str, object]:
    """Return the state that may differ between runs and explain a difference; None for each unreported value.

    Returns:
        ``kernel``, ``microcode``, ``governor``, ``frequency_mhz``, ``min_frequency_mhz``, ``max_frequency_mhz``,
        ``turbo``, ``load_1m``, ``load_5m``, ``cpus_allowed``, ``affinity`` (which they are), ``cpu_quota``,
        ``huge_pages`` (mode of large pages), ``temperature_c``, ``memory_available_gib``, ``virtual`` (runs under a
        hypervisor), ``smt`` (several threads share a core), and ``gpu`` (``gpu_state``) if one reports it.
    """
    load = os.getloadavg()
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    return {
        "kernel": platform.release(),
        "microcode": _cpuinfo().get("microcode"),
        "governor": _text(CPUS / "cpu0/cpufreq/scaling_governor") or None,
        "frequency_mhz": round(frequency.current) if frequency and frequency.current else None,
        "min_frequency_mhz": round(frequency.min) if frequency and frequency.min else None,
        "max_frequency_mhz": round(frequency.max) if frequency and frequency.max else None,
        "turbo": _turbo(),
        "load_1m": round(load[0], 2),
        "load_5m": round(load[1], 2),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "affinity": ranges(sorted(os.sched_getaffinity(0))),
        "cpu_quota": _quota(),
        "huge_pages": huge_pages(),
        "temperature_c": _temperature(),
        "memory_available_gib": round(psutil.virtual_memory().available / 2**30, 1),
        "virtual": "hypervisor" in (_cpuinfo().get("flags") or "").split(),
        "smt": _text(CPUS / "smt/active") == "1",
        **({"gpu": gpu} if (gpu := gpu_state()) else {}),
    }


@dataclass(frozen=True, slots=True)
class Quietness:
    """The causes of noise on a machine, and facts about it.

    Attributes:
        reasons: Causes of noise that can be removed; empty on a quiet machine.
        notes: Facts that this program cannot see or change.
        busy: Share of the allowed processors that was in use during the watch.
    """

    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    busy: float

    @property
    def quiet(self) -> bool:
        """True without a removable cause of noise."""
        return not self.reasons


def quietness(*, watch_s: float = 0.5) -> Quietness:
    """Watch the machine for a moment and judge it."""
    used, steal = _watch(watch_s)
    busy = statistics.fmean(used.values())
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
    if (scattered := small_pieces().total) >= _SCATTERED_BYTES:
        notes.append(
            f"{scattered / 2**30:.1f} GiB of the free memory are in small pieces, which measured networks are kept from"
        )
    if state["virtual"]:
        notes.append("a hypervisor may run other guests on the same cores and caches")
    return Quietness(tuple(reasons), (*notes, *topology_notes()), busy)


def topology_notes(root: Path = CPUS) -> list[str]:
    """Return facts about cores and caches that differ from the tested machines."""
    notes, used, whole = [], physical_cores(root), all_cores(root)
    if len(used) < len(whole):
        notes.append(
            f"the cores are of several kinds or sockets: threads run on {len(used)} of {len(whole)}, the fastest of "
            f"one socket ({ranges(used)})"
        )
    if not caches(root):
        notes.append("the system does not report its caches: 1 MiB is assumed, so 'cold' and packs may be too warm")
    elif last_level_bytes(root) > _TESTED_BYTES:
        notes.append(
            f"the last-level cache has {last_level_bytes(root) >> 20} MiB: estimates were tested with caches of up to "
            f"{_TESTED_BYTES >> 20} MiB, and bricks of larger models may be measured too warm"
        )
    return notes


def free_cores(*, watch_s: float = 0.3) -> int:
    """Return the number of physical cores that this process may use and that are idle."""
    used, _ = _watch(watch_s)
    return sum(all(used.get(cpu, 0.0) <= _IDLE_SHARE for cpu in siblings(core)) for core in physical_cores())


def _watch(seconds: float) -> tuple[dict[int, float], float]:
    """Return the share of time in use by processor, and the share that was stolen, over the allowed processors."""
    begun = psutil.cpu_times(percpu=True)
    time.sleep(seconds)
    watched: dict[int, dict[str, float]] = {}
    for cpu, (before, after) in enumerate(zip(begun, psutil.cpu_times(percpu=True), strict=True)):
        spent = {name: getattr(after, name) - getattr(before, name) for name in after._fields if "guest" not in name}
        total = sum(spent.values())  # psutil's shares of less than a second have another base
        watched[cpu] = {name: part / total if total > 0 else float(name == "idle") for name, part in spent.items()}
    watched = {cpu: watched[cpu] for cpu in sorted(allowed()) if cpu in watched} or watched
    steal = {cpu: shares.get("steal", 0.0) for cpu, shares in watched.items()}
    idle = {cpu: shares["idle"] + shares.get("iowait", 0.0) for cpu, shares in watched.items()}
    used = {cpu: max(0.0, 1.0 - idle[cpu] - steal[cpu]) for cpu in watched}
    return used, statistics.fmean(steal.values())


@cache
def _cpuinfo() -> Mapping[str, str]:
    """Return the first block of /proc/cpuinfo."""
    block = _text(Path("/proc/cpuinfo")).split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _arm_name(info: Mapping[str, str]) -> str:
    """Return implementer and part of an Arm processor, which reports no name."""
    parts = (info.get(f"CPU {entry}") for entry in ("implementer", "architecture", "variant", "part", "revision"))
    return " ".join(part for part in parts if part) or "unknown"


def _gpus() -> tuple[str, ...]:
    """Return the names of the GPUs, the one that CUDA uses first, with any unusual power limit."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = "--query-gpu=pci.bus_id,name,power.limit,power.default_limit"
    try:
        answer = subprocess.run(
            [tool, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()  # a driver that does not answer has no usable GPU
    used, gpus = cuda_gpu(), []
    for line in answer.stdout.splitlines():
        bus, name, limit, usual = (cell.strip() for cell in line.split(","))
        is_used = used is not None and bus.lstrip("0").lower() == used.bus.lstrip("0").lower()
        text = used.name if used is not None and is_used else name
        is_limited = limit != usual and limit[:1].isdigit() and usual[:1].isdigit()
        gpus.append((not is_used, f"{text}, {limit} W" if is_limited else text))
    return tuple(text for _, text in sorted(gpus, key=lambda gpu: gpu[0]))


def _turbo() -> bool | None:
    if text := _text(CPUS / "intel_pstate/no_turbo"):
        return text == "0"
    if text := _text(CPUS / "cpufreq/boost"):
        return text == "1"
    return None


def _temperature() -> float | None:
    """Return the temperature of the hottest CPU sensor."""
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    sensor_names = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal")
    return max((float(entry.current) for name in sensor_names for entry in sensors.get(name, ())), default=None)


def _quota() -> float | None:
    """Return the number of CPUs that the control group allows per period; None without a limit."""
    group = next((line.split("::", 1)[1] for line in _text(Path("/proc/self/cgroup")).splitlines() if "::" in line), "")
    for folder in (Path(f"/sys/fs/cgroup{group}"), Path("/sys/fs/cgroup")):
        limit, _, period = _text(folder / "cpu.max").partition(" ")
        if limit and limit != "max":
            return int(limit) / int(period)
    limit, period = (_text(Path("/sys/fs/cgroup/cpu") / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    return int(limit) / int(period) if limit and period and int(limit) > 0 else None


def _text(path: Path) -> str:
    """Return a small system file, stripped; empty if it does not exist or may not be read."""
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
