"""How many copies of a short brick one network holds."""

from __future__ import annotations

from ...backends.base import Executable
from ...machine.cores import private_cache_bytes
from ...network.network import Network
from .timing import time_once

__all__ = ["MOST_COPIES", "choose_unroll"]

_SHORT_NS = 100_000
"""A network that runs shorter than this is unrolled, so that the cost of a call is spread over many copies..."""

_LONG_NS = 4 * _SHORT_NS
"""A run this long needs no second look."""

_UNROLLED_NS = 400_000
"""...until one run takes about 200 to 400 microseconds."""

MOST_COPIES = 64
"""More would make loading a network longer than timing it."""

_CACHE_SHARE = 4
"""Copies may fill a quarter of L2: more would leave the hot state that a single copy runs in."""

_PROBES = 5
"""Runs that show how long a network takes, after its first one."""


def choose_unroll(executable: Executable, network: Network) -> int:
    """Copies, a power of two, that make a short network's run 200 to 400 microseconds long.

    All copies together stay within a quarter of L2, weights included: runtimes repack weights per node.
    """
    elapsed = time_once(executable.run, executable.synchronize)
    if elapsed >= _LONG_NS:
        return 1
    elapsed = min(elapsed, *(time_once(executable.run, executable.synchronize) for _ in range(_PROBES - 1)))
    if elapsed >= _SHORT_NS:
        return 1
    size_bytes = network.weight_bytes + network.feed_bytes + executable.output_bytes()
    room = private_cache_bytes() // _CACHE_SHARE // max(size_bytes, 1)
    copies = min(_UNROLLED_NS // max(elapsed, 1), room, MOST_COPIES)
    return 1 << (int(copies).bit_length() - 1) if copies > 1 else 1
