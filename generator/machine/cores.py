"""Where a worker runs: physical cores, pinning, the size of their private cache."""

from __future__ import annotations

import contextlib
import os
import resource
from functools import cache
from pathlib import Path

# The private memory of this process, a limit on it, and the pages that the system gives.


_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_pages() -> str | None:
    """When memory is taken in large pages: ``always``, ``madvise`` or ``never``; None where the kernel does not say."""
    with contextlib.suppress(OSError):
        return _HUGE_PAGES.read_text().partition("[")[2].partition("]")[0] or None
    return None


def limit_memory(allowance: int | None) -> None:
    """Let the process have so many bytes of private memory beyond what it has now.

    RLIMIT_DATA, not RLIMIT_AS: runtimes reserve address space that they never touch (arenas, thread stacks,
    mapped files), and a limit on that would refuse networks that fit.
    """
    if allowance is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = private_bytes() + allowance
    resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def private_bytes() -> int:
    """What RLIMIT_DATA counts; the resident size where the system does not report it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_CPUS = Path("/sys/devices/system/cpu")
_FALLBACK_L2 = 1 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def physical_cores(root: Path = _CPUS) -> tuple[int, ...]:
    """One logical processor of each physical core that this process may use, ascending."""
    cores: dict[str, int] = {}
    for cpu in sorted(allowed()):
        siblings = _read(root / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        cores.setdefault(siblings, cpu)
    return tuple(cores.values())


def private_cache_bytes(root: Path = _CPUS) -> int:
    """Bytes of one core's L2; 1 MiB where the system does not report it."""
    return _caches(root).get(2, _FALLBACK_L2)


def last_level_bytes(root: Path = _CPUS) -> int:
    """Bytes of the last-level cache that the first core uses."""
    caches = _caches(root)
    return caches[max(caches)] if caches else _FALLBACK_L2


def pin(cores: tuple[int, ...]) -> bool:
    """Bind the calling thread to some cores; False where the system does not allow it (or has no affinities)."""
    try:
        os.sched_setaffinity(0, cores)
    except (AttributeError, OSError):
        return False
    return True


def allowed() -> set[int]:
    """Logical processors that the calling thread may run on."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # systems without affinities
        return set(range(os.cpu_count() or 1))


@cache
def _caches(root: Path) -> dict[int, int]:
    """Level to bytes of the data and unified caches."""
    found: dict[int, int] = {}
    for index in sorted(root.glob("cpu0/cache/index*")):
        size, level = _read(index / "size"), _read(index / "level")
        if size and level and _read(index / "type") != "Instruction":
            found[int(level)] = int(size.rstrip("KMG")) * _UNITS.get(size[-1], 1)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
