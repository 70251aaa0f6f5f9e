"""Work of the networks that measure a machine's ceilings, and the rates that follow from their latencies.

The working sets are fixed sizes, so that results of one machine can be looked up for any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...bricks.reference import CHAIN_NODES, COPY, GEMM, STREAM
from ..values import NATIVE, Measurement, System

GEMM_SIZES = (512, 1024, 2048)
"""Sizes N of the products; the fastest size depends on kernel and caches."""

GPU_GEMM_SIZES = (2048, 4096, 8192)
"""The same for a GPU, which smaller products do not fill."""

_GPU_STREAMS = (1 << 20, 512 << 20)
"""Smallest and largest working set on a GPU: from a part of its L2 to ten times its L2."""

STREAM_SIZES = tuple((32 << 10) << power for power in range(19))
"""Working sets of the streams in bytes: powers of two from 32 KiB to 8 GiB; a machine uses some of them."""

_BEYOND = 4
"""The largest working set is this multiple of the last-level cache..."""
_ENOUGH = 256 << 20
"""...and at least this many bytes..."""
_MEMORY_SHARE = 16
"""...but at most this fraction of the memory. All sizes are loaded at once and need about four times as much."""

_HIDDEN = 0.25
"""A stream below this fraction of a call's time is hidden by the call and does not give a rate."""

_OVERLAPPED = 4.0
"""On a GPU, which works during the next call, a stream below this multiple of a call's time does not give a rate."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate per second.

    Attributes:
        best: Rate of the fastest sample, as in STREAM (McCalpin): disturbances never make a machine faster.
        usual: Rate of the median.
        ci95: 95 % interval of ``usual``.
    """

    best: float
    usual: float
    ci95: tuple[float, float]


def gemm_sizes_on(device: str) -> tuple[int, ...]:
    """Return the sizes of the products on a device."""
    return GEMM_SIZES if device == "cpu" else GPU_GEMM_SIZES


def stream_sizes(system: System, device: str = "cpu") -> tuple[int, ...]:
    """Return working sets that show a system's bandwidths: from 32 KiB to well beyond the last-level cache.

    A virtual machine may report the last-level cache of a whole socket but use only a share; four times the reported
    size is beyond it in any case, if the memory suffices.
    """
    if device != "cpu":
        return tuple(size for size in STREAM_SIZES if _GPU_STREAMS[0] <= size <= _GPU_STREAMS[1])
    enough_bytes = max(_BEYOND * max((size for _, size in system.cache_bytes), default=0), _ENOUGH)
    most = min(enough_bytes, (system.memory_gib << 30) // _MEMORY_SHARE)
    return tuple(size for size in STREAM_SIZES if size <= max(most, STREAM_SIZES[0]))


def ceiling_names(sizes: Sequence[int], *, dtype: str = NATIVE, gemm_sizes: Sequence[int] = GEMM_SIZES) -> list[str]:
    """Return the networks to measure in a precision; streams of bytes are the same in all precisions."""
    products = [f"{GEMM}{size}" for size in gemm_sizes]
    if dtype != NATIVE:
        return products
    return [*products, *(f"{kind}{size}" for size in sizes for kind in (STREAM, COPY))]


def ceiling_work(name: str) -> tuple[int, int]:
    """Return FLOPs and bytes (read and written) of one execution of a ceiling network; 0 FLOPs for a stream."""
    if name.startswith(GEMM):
        side = int(name.removeprefix(GEMM))
        return 2 * side**3, 3 * 4 * side**2
    if name.startswith(STREAM):
        return 0, max(1, int(name.removeprefix(STREAM)) // 12) * 12
    return 0, max(1, int(name.removeprefix(COPY)) // 16) * 16


def rate_of(name: str, measured: Measurement, call: Measurement | None, device: str = "cpu") -> Rate | None:
    """Return the rate that a measurement of a ceiling network shows.

    Args:
        name: The network.
        measured: Its measurement.
        call: Measurement of an empty call in the same runtime; not needed for a product.
        device: The device.

    Returns:
        FLOP/s of a product. Bytes/s of a stream, without the time of the call; None if the call is unknown or hides it.
        A GPU works during the call, so its time is not subtracted.
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
    # On a disturbed machine the interval of the mean may reach below the fastest sample.
    usual = min(work / net, best)
    return Rate(best, usual, (work / (net + half), max(usual, min(best, work / max(net - half, least)))))


def node_ns(chain: Measurement | None, call: Measurement | None) -> float | None:
    """Return the time of a node with minimal work, from a chain of them; None if unknown."""
    if chain is None or call is None:
        return None
    return max(0.0, (chain.latency_ns - call.latency_ns) / (CHAIN_NODES - 1))


def level_of_cache(working_set: int, system: System, threads: int, device: str = "cpu") -> str:
    """Return the smallest cache that contains a working set, counting the caches of all used cores; else ``memory``.

    Args:
        working_set: Bytes.
        system: Caches as the system reports them; the last level is shared.
        threads: Number of used cores.
        device: The device. Systems do not report a GPU's caches: its working sets are named by size.
    """
    if device != "cpu":
        return f"{max(1, round(working_set / (1 << 20)))} MiB"  # streams are slightly smaller than their names say
    caches = sorted(system.cache_bytes, key=lambda entry: entry[1])
    for position, (name, size) in enumerate(caches):
        shared = position == len(caches) - 1
        if working_set <= size * (1 if shared else threads):
            return name
    return "memory"
