"""Tools of a visit: a clock, probes of how quiet the machine is, and enough copies of short networks."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np

from ...backends.base import Executable
from ...machine.cores import private_cache_bytes
from ...network.network import Network


@contextmanager
def undisturbed() -> Iterator[None]:
    """Collect garbage now, then not until the end of the context."""
    enabled = gc.isenabled()
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_TASKS = "/proc/self/task"
_LINE_BYTES = 128

_ELEMENTS = 16_384
"""64 KiB of numbers: arithmetic in a core's own cache, some 20 microseconds."""

_READ_BYTES = 256 << 10
_BUFFER_BYTES = 32 << 20
"""Each probe reads the next 256 KiB of these 32 MiB, which no other code touches: some 30 microseconds."""

_REPEATS = 2
"""Runs of the arithmetic; only the last counts, since the first finds other data in the caches."""


class Probe:
    """Two short computations that show how quiet the machine is: one calculates and one reads memory.

    They show disturbances that the kernel does not report: a neighbour on the same physical core or in the shared
    cache. Their clock is the CPU time of this thread, which stops while another program has the core. The probes
    classify visits; no time is ever divided by them.
    """

    def __init__(self) -> None:
        self._numbers = np.linspace(0.1, 1.0, _ELEMENTS, dtype=np.float32)
        self._result = np.empty_like(self._numbers)
        self._memory = np.ones(_BUFFER_BYTES // 8, dtype=np.int64)
        self._place = 0

    def __call__(self) -> tuple[int, int]:
        """Return the nanoseconds of arithmetic and of reading memory, now."""
        compute_ns = 0
        for _ in range(_REPEATS):
            begin = time.thread_time_ns()
            np.sqrt(self._numbers, out=self._result)
            np.divide(self._numbers, self._result, out=self._result)
            compute_ns = time.thread_time_ns() - begin
        count = _READ_BYTES // 8
        begin = time.thread_time_ns()
        int(self._memory[self._place : self._place + count].max())
        memory_ns = time.thread_time_ns() - begin
        self._place = (self._place + count) % self._memory.size
        return compute_ns, memory_ns


_MOST_STOLEN = 0.75

_SETTLING = 4
"""Most executions that ``settle`` makes."""

_CROWDED = 0.02
"""Share of wall time, lost to other programs, above which threads may have met on one core. Some program or other runs
for microseconds in nearly every visit of all cores: that alone says nothing."""


def switches() -> int:
    """Return how often the kernel has taken a core away from threads of this process, to run another program."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@dataclass(frozen=True, slots=True)
class Interruptions:
    """What the kernel says of a stretch of time.

    Attributes:
        wall_ns: Its duration.
        cpu_ns: CPU time of this process.
        switches: How often the kernel took a core away from the process, to run another program.
        waits_ns: Time that each thread of the process waited for a core; None if the system does not tell.
    """

    wall_ns: int
    cpu_ns: int
    switches: int
    waits_ns: tuple[int, ...] | None

    @property
    def waited_ns(self) -> int | None:
        """Time that all threads together waited for a core; None if the system does not tell."""
        return None if self.waits_ns is None else sum(self.waits_ns)

    def stolen_ns(self, computing: int) -> int:
        """Return the time that other programs had.

        With one computing thread it is wall time less CPU time, as far as the kernel says that a thread waited for a
        core: a runtime may also sleep. It is 0 if the kernel switched to no other program: the rest is then the
        inaccuracy of the clocks.

        With several, each operator ends when the last of its threads does: a thread that waits stops the others, which
        spin meanwhile. It is the longest wait of a thread, since several may wait at once. It is never more than most
        of the wall time, since a thread that has nothing to do waits as well.

        Args:
            computing: Number of threads that compute; 0 if none of the processor does.
        """
        if not computing or not self.waits_ns:
            return 0
        if computing == 1:
            waited_ns = sum(self.waits_ns) if self.switches else 0
            return max(0, min(self.wall_ns - self.cpu_ns, waited_ns))
        return min(max(self.waits_ns), round(_MOST_STOLEN * self.wall_ns))

    def left_ns(self, elapsed_ns: int, computing: int) -> int:
        """Return what a stretch inside this one took without other programs, which may have run beside it as well.

        Args:
            elapsed_ns: The duration of the stretch inside.
            computing: As for ``stolen_ns``.
        """
        return min(elapsed_ns, self.wall_ns - self.stolen_ns(computing))

    def crowded(self, computing: int) -> bool:
        """Return True if several threads compute, and lost more than a small share of the time to other programs."""
        return computing != 1 and self.stolen_ns(computing) > _CROWDED * self.wall_ns


class _ThreadFiles:
    """What the kernel counts for each thread of this process, in files that stay open.

    Opening them takes 50 microseconds, and the kernel's code for it would evict that of a short network.
    """

    def __init__(self) -> None:
        self._files: dict[str, int] = {}

    def waits_ns(self) -> dict[str, int]:
        """Return the nanoseconds that each thread waited for a core; empty if the system does not tell."""
        try:
            tasks = os.listdir(_TASKS)  # noqa: PTH208  # paths as objects take six times as long
        except OSError:  # not Linux
            return {}
        waits = {}
        for task in tasks:
            try:
                if task not in self._files:
                    self._files[task] = os.open(f"{_TASKS}/{task}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                waits[task] = int(os.pread(self._files[task], _LINE_BYTES, 0).split()[1])
            except (OSError, IndexError, ValueError):  # the thread has ended, or the kernel does not count this
                self._close(task)
        for task in self._files.keys() - waits.keys():
            self._close(task)
        return waits

    def _close(self, task: str) -> None:
        file = self._files.pop(task, None)
        if file is not None:
            os.close(file)


@cache
def _thread_files(process: int) -> _ThreadFiles:  # noqa: ARG001  # a process that was forked has other threads
    return _ThreadFiles()


class KernelClock:
    """Reads the kernel's counters, from its beginning until ``read``."""

    def __init__(self) -> None:
        self._threads = _thread_files(os.getpid())
        self._waits_ns, self._switches = self._threads.waits_ns(), switches()
        self._cpu_ns, self._wall_ns = time.process_time_ns(), time.perf_counter_ns()

    def read(self) -> Interruptions:
        """Return what happened since the beginning."""
        wall_ns, cpu_ns = time.perf_counter_ns() - self._wall_ns, time.process_time_ns() - self._cpu_ns
        switched, waits = switches() - self._switches, self._threads.waits_ns()
        since = tuple(max(0, waited - self._waits_ns.get(task, 0)) for task, waited in waits.items())
        return Interruptions(wall_ns, cpu_ns, switched, since if waits and self._waits_ns else None)


def settle(warm_up: Callable[[], None], synchronize: Callable[[], None], computing: int) -> None:
    """Execute until threads hardly wait for a core any more, a few times at most.

    Threads that slept wake up on cores that others use, two of them perhaps on one core. The kernel needs some
    executions to spread them.
    """
    for _ in range(_SETTLING):
        clock = KernelClock()
        warm_up()
        synchronize()
        if not clock.read().crowded(computing):
            return


_SHORT_NS = 100_000
"""A network with a shorter run is unrolled, so that the cost of a call is spread over many copies..."""

_LONG_NS = 4 * _SHORT_NS
"""A network with a run this long is timed only once."""

_UNROLLED_NS = 400_000
"""...until one run takes about 200 to 400 microseconds."""

MOST_COPIES = 64
"""With more copies, loading a network would take longer than timing it."""

_CACHE_SHARE = 4
"""Copies may fill a quarter of L2: more would leave the hot state of a single copy."""

_PROBES = 5
"""Runs of a short network, after its first run, that show how long it takes."""


def choose_unroll(executable: Executable, network: Network) -> int:
    """Return the number of copies, a power of two, that makes a short network's run 200 to 400 microseconds long.

    All copies together stay within a quarter of L2, weights included: runtimes repack weights per node.
    """
    elapsed = executable.timed_ns()
    if elapsed >= _LONG_NS:
        return 1
    elapsed = min(elapsed, *(executable.timed_ns() for _ in range(_PROBES - 1)))
    if elapsed >= _SHORT_NS:
        return 1
    size_bytes = network.weight_bytes + network.feed_bytes + executable.output_bytes()
    room = private_cache_bytes() // _CACHE_SHARE // max(size_bytes, 1)
    copies = min(_UNROLLED_NS // max(elapsed, 1), room, MOST_COPIES)
    return 1 << (int(copies).bit_length() - 1) if copies > 1 else 1
