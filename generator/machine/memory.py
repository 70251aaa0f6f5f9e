"""The private memory of this process, a limit on it, and the pages that the system gives."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

__all__ = ["huge_pages", "limit_memory", "private_bytes"]

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
