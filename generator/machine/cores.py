"""Cores and caches of this machine, their pinning, and the memory of this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

# Private memory of this process, its limit, and the size of its pages.

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_pages() -> str | None:
    """Return the kernel's mode of large pages: ``always``, ``madvise`` or ``never``; None if it does not report one."""
    with contextlib.suppress(OSError):
        return _HUGE_PAGES.read_text().partition("[")[2].partition("]")[0] or None
    return None


def limit_memory(allowance: int | None) -> None:
    """Limit the private memory of this process to its present size plus some bytes.

    The limit is RLIMIT_DATA, not RLIMIT_AS: runtimes reserve address space that they never touch (arenas, thread
    stacks, mapped files), and a limit on address space would refuse networks that fit.

    Args:
        allowance: Further bytes; None: no limit.
    """
    if allowance is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = private_bytes() + allowance
    resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def private_bytes() -> int:
    """Return the bytes that RLIMIT_DATA counts; the largest resident size if the system does not report them."""
    return _memory_bytes("VmData")


def resident_bytes() -> int:
    """Return the bytes of this process in memory; the largest of all moments if the system does not report them."""
    return _memory_bytes("VmRSS")


def return_memory() -> None:
    """Give freed memory back to the system, and forget the peak so far, where the system and its C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # man proc_pid_clear_refs: resets the peak resident set size


def peak_bytes() -> int:
    """Return the most bytes that this program had in memory, since it began or since ``return_memory``.

    ``ru_maxrss`` is only used if the system reports nothing else: it survives exec, so that a small program has the
    size of the large one that started it.
    """
    return _memory_bytes("VmHWM")


def _memory_bytes(name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


CPUS = Path("/sys/devices/system/cpu")
"""The kernel's description of the processors."""

_FALLBACK_L2 = 1 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def physical_cores(root: Path = CPUS) -> tuple[int, ...]:
    """Return one logical processor of each physical core that threads are placed on, ascending.

    Threads of one measurement run on cores of the same kind and the same socket, because others differ in speed and in
    their distance to memory. These are the allowed cores that are like the fastest one, on its NUMA node.
    """
    locations = {cpu: (-_speed(cpu, root), node_of(cpu, root)) for cpu in all_cores(root)}
    first = min(locations, key=lambda cpu: (locations[cpu][0], cpu))
    return tuple(cpu for cpu, location in locations.items() if location == locations[first])


def all_cores(root: Path = CPUS) -> tuple[int, ...]:
    """Return one logical processor of each physical core that this process may use, ascending."""
    lowest = {siblings(cpu, root)[0]: cpu for cpu in sorted(allowed(), reverse=True)}
    return tuple(sorted(lowest.values()))


def siblings(cpu: int, root: Path = CPUS) -> tuple[int, ...]:
    """Return the logical processors that share the physical core of one, itself included, ascending."""
    return _numbers(_read(root / f"cpu{cpu}/topology/thread_siblings_list")) or (cpu,)


def _speed(cpu: int, root: Path) -> int:
    """Return the relative speed of a processor: the kernel's capacity (Arm), or 0 for an efficiency core (Intel)."""
    capacity = _read(root / f"cpu{cpu}/cpu_capacity")
    if capacity.isdecimal():
        return int(capacity)
    return 0 if cpu in _numbers(_read(root.parents[1] / "cpu_atom/cpus")) else 1


def node_of(cpu: int, root: Path = CPUS) -> str:
    """Return the name of a processor's NUMA node; empty on a machine without nodes."""
    return min((path.name for path in root.glob(f"cpu{cpu}/node*")), default="")


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list in the kernel's notation (``0-3,8``)."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        numbers += range(int(low), int(high or low) + 1)
    return tuple(numbers)


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers in the kernel's notation (``0-3,8``)."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def private_cache_bytes(root: Path = CPUS) -> int:
    """Return the bytes of one core's L2; 1 MiB if the system does not report it."""
    return caches(root).get("L2", _FALLBACK_L2)


def last_level_bytes(root: Path = CPUS) -> int:
    """Return the bytes of the last-level cache of one core; 1 MiB if the system does not report it."""
    return max(caches(root).items(), default=("", _FALLBACK_L2))[1]


def pin(cores: tuple[int, ...]) -> bool:
    """Bind the calling thread to some cores; return False if the system refuses or knows no affinities."""
    try:
        os.sched_setaffinity(0, cores)
    except (AttributeError, OSError):
        return False
    return True


def allowed() -> set[int]:
    """Return the logical processors that the calling thread may run on."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # systems without affinities
        return set(range(os.cpu_count() or 1))


@cache
def caches(root: Path = CPUS) -> Mapping[str, int]:
    """Return the bytes of the data and unified caches of the fastest core, by name: ``L1d``, ``L2``, ``L3``."""
    cpus = (int(path.name[3:]) for path in root.glob("cpu[0-9]*"))
    first = min(cpus, key=lambda cpu: (-_speed(cpu, root), cpu), default=0)
    sizes: dict[str, int] = {}
    for index in root.glob(f"cpu{first}/cache/index*"):
        size, level, kind = (_read(index / name) for name in ("size", "level", "type"))
        if size and level and kind and kind != "Instruction":
            sizes[f"L{level}" + ("d" if kind == "Data" else "")] = int(size.rstrip("KMG")) * _UNITS.get(size[-1], 1)
    return dict(sorted(sizes.items()))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
