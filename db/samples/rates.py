"""What the networks that measure a machine's ceilings compute and move, and which rates their latencies mean.

The working sets are fixed sizes, so that what is stored of one machine can be looked up for it on any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...bricks.reference import CHAIN_NODES, COPY, GEMM, STREAM
from ..values import NATIVE, Measurement, System

GEMM_SIZES = (512, 1024, 2048)
"""Sides of the squares: which of them suits a kernel and its caches best is for the measurement to say."""

GPU_GEMM_SIZES = (2048, 4096, 8192)
"""The same on a GPU: smaller ones do not fill it."""

_GPU_STREAMS = (1 << 20, 512 << 20)
"""The smallest and the largest working set there: from a part of its L2 to ten times as much."""

STREAM_SIZES = tuple((32 << 10) << power for power in range(19))
"""Working sets of the streams in bytes: powers of two from 32 KiB to 8 GiB, of which each machine has its share."""

_BEYOND = 4
"""The largest working set is so many times the last-level cache..."""
_ENOUGH = 256 << 20
"""...and at least so large..."""
_MEMORY_SHARE = 16
"""...but at most this part of the memory. All sizes together are loaded at once, and take about four times that."""

_HIDDEN = 0.25
"""A stream that takes less than this part of a call is hidden by it: there is no rate."""

_OVERLAPPED = 4.0
"""On a GPU, which works while the next call is on its way: one that takes less than so many calls."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate per second.

    Attributes:
        best: Of the fastest sample, as STREAM reports it (McCalpin): what disturbs a machine never makes it faster.
        usual: Of the median.
        ci95: 95 % interval of ``usual``.
    """

    best: float
    usual: float
    ci95: tuple[float, float]


def gemm_sizes_on(device: str) -> tuple[int, ...]:
    """Sides of the squares on a device."""
    return GEMM_SIZES if device == "cpu" else GPU_GEMM_SIZES


def stream_sizes(system: System, device: str = "cpu") -> tuple[int, ...]:
    """Working sets that show a system's bandwidths: from 32 KiB to well beyond the last-level cache.

    A virtual machine may report the last-level cache of a whole socket, of which it has a share only; four times that
    is beyond it all the same, where there is enough memory.
    """
    if device != "cpu":
        return tuple(size for size in STREAM_SIZES if _GPU_STREAMS[0] <= size <= _GPU_STREAMS[1])
    wanted = max(_BEYOND * max((size for _, size in system.cache_bytes), default=0), _ENOUGH)
    most = min(wanted, (system.memory_gib << 30) // _MEMORY_SHARE)
    return tuple(size for size in STREAM_SIZES if size <= max(most, STREAM_SIZES[0]))


def ceiling_names(sizes: Sequence[int], *, dtype: str = NATIVE, gemm_sizes: Sequence[int] = GEMM_SIZES) -> list[str]:
    """The networks to measure in a precision: a stream of bytes is one in all of them."""
    products = [f"{GEMM}{size}" for size in gemm_sizes]
    if dtype != NATIVE:
        return products
    return [*products, *(f"{kind}{size}" for size in sizes for kind in (STREAM, COPY))]


def ceiling_work(name: str) -> tuple[int, int]:
    """FLOPs and bytes, read and written, of one execution of such a network; 0 FLOPs of a stream."""
    if name.startswith(GEMM):
        side = int(name.removeprefix(GEMM))
        return 2 * side**3, 3 * 4 * side**2
    if name.startswith(STREAM):
        return 0, max(1, int(name.removeprefix(STREAM)) // 12) * 12
    return 0, max(1, int(name.removeprefix(COPY)) // 16) * 16


def rate_of(name: str, measured: Measurement, call: Measurement | None, device: str = "cpu") -> Rate | None:
    """The rate that a measurement of such a network means.

    Args:
        name: The network.
        measured: Its measurement.
        call: That of a call that does nothing, in the same runtime; a product does without.
        device: Where.

    Returns:
        FLOP/s of a product; of a stream bytes/s, less the call, or None where the call is not known or hides it. A GPU
        works while it is called: there nothing is taken off.
    """
    flops, moved = ceiling_work(name)
    offset, offset_min, offset_half = 0.0, 0.0, 0.0
    if not flops:
        if call is None or (device != "cpu" and measured.summary.min_ns < _OVERLAPPED * call.summary.min_ns):
            return None
        if device == "cpu":
            offset, offset_min, offset_half = call.latency_ns, call.summary.min_ns, call.half_ns
    least, net = measured.summary.min_ns - offset_min, measured.latency_ns - offset
    if least <= _HIDDEN * offset_min or net <= 0:
        return None
    half, work = math.hypot(measured.half_ns, offset_half), (flops or moved) * 1e9
    best = work / least
    # On a disturbed machine the interval of the mean may reach below the fastest sample, where nothing was seen.
    usual = min(work / net, best)
    return Rate(best, usual, (work / (net + half), max(usual, min(best, work / max(net - half, least)))))


def node_ns(chain: Measurement | None, call: Measurement | None) -> float | None:
    """Time of a node that has next to nothing to do, from a chain of them; None where it is not known."""
    if chain is None or call is None:
        return None
    return max(0.0, (chain.latency_ns - call.latency_ns) / (CHAIN_NODES - 1))


def level_of_cache(working_set: int, system: System, threads: int, device: str = "cpu") -> str:
    """The smallest cache that holds a working set, those of all cores that compute together; else ``memory``.

    Args:
        working_set: Bytes.
        system: Caches as the system reports them; the last level is shared.
        threads: Cores that compute.
        device: Of a GPU the system does not report the caches: its working sets are distinguished by their size.
    """
    if device != "cpu":
        return f"{max(1, round(working_set / (1 << 20)))} MiB"  # a stream is some bytes less than its name says
    caches = sorted(system.cache_bytes, key=lambda entry: entry[1])
    for position, (name, size) in enumerate(caches):
        shared = position == len(caches) - 1
        if working_set <= size * (1 if shared else threads):
            return name
    return "memory"
