"""What a model's own values do to the latency of its layers: each is timed with them, and beside it as a brick.

A layer's latency depends on its values where they are subnormal (the processor then takes a slow path for each), or
so far from zero that a kernel leaves its usual range. Which operators and kernels mind which values is not asked:
every layer is timed with both, so that whatever there is, is found. The two take turns within milliseconds, thus
the difference is free of drift.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import repeat
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from ...backends.base import Backend, Executable, Settings
from ...network.network import Network
from ..replies import LayerEffect
from .timing import undisturbed
from .walk import walk

__all__ = ["layer_effects", "subnormal_share"]

_SAMPLE_NS = 200_000
"""Shortest sample: two thousand times what reading the clock costs. There are two per pair and layer."""

_PAIRS = 2
"""Pairs of samples per round, in the order a b b a: each follows itself as often as the other. The shortest of each
kind is taken: what values cost is in every execution, and disturbances, which only ever lengthen, are not."""


def layer_effects(
    network: Network, backend: Backend, settings: Settings, *, rounds: int, seed: int = 0
) -> Iterator[LayerEffect]:
    """Time every layer of a graph with the model's own values and with synthetic ones.

    Args:
        network: A graph that is executed as it stands, with its weights and inputs.
        backend: The runtime.
        settings: How it is set up.
        rounds: Differences per layer.
        seed: Of the synthetic values.

    Raises:
        UnsupportedBrick: A layer cannot be executed by itself.
        BackendError: The runtime failed.
        MemoryError: There was not enough memory.
    """
    for step in walk(network, backend, settings):
        synthetic = backend.prepare(step.synthetic(seed), settings)
        try:
            own_ns, synthetic_ns, differences = _pairs(step.own, synthetic, rounds)
        finally:
            synthetic.close()
        yield LayerEffect(
            index=step.index,
            op_type=step.node.op_type,
            subnormal_in=subnormal_share(step.inputs.values()),
            subnormal_out=subnormal_share(step.outputs.values()),
            own_ns=own_ns,
            synthetic_ns=synthetic_ns,
            differences_ns=differences,
        )


def subnormal_share(arrays: Iterable[npt.NDArray[Any]]) -> float:
    """Share of subnormal numbers (not zero, but below the least normal number of their type) among floating ones."""
    found = total = 0
    for array in arrays:
        if array.dtype.kind == "f":
            size = np.abs(array)
            found += int(np.count_nonzero((size > 0) & (size < np.finfo(array.dtype).tiny)))
            total += array.size
    return found / total if total else 0.0


def _pairs(own: Executable, synthetic: Executable, rounds: int) -> tuple[float, float, tuple[float, ...]]:
    """Median latency of each, and per round the difference of the shortest."""
    both = (own, synthetic)
    taken: tuple[list[float], list[float]] = ([], [])
    with undisturbed():
        loops = 1
        for executable in both:
            _latency_ns(executable, 1)
            loops = max(loops, int(_SAMPLE_NS / max(1.0, _latency_ns(executable, 1))))
        for number in range(rounds * _PAIRS):
            for which in (0, 1) if number % _PAIRS else (1, 0):
                _latency_ns(both[which], 1)  # brings back into the caches what the other one took out
                taken[which].append(_latency_ns(both[which], loops))
    begins = range(0, rounds * _PAIRS, _PAIRS)
    shortest = [[min(times[begin : begin + _PAIRS]) for begin in begins] for times in taken]
    return median(taken[0]), median(taken[1]), tuple(mine - other for mine, other in zip(*shortest, strict=True))


def _latency_ns(executable: Executable, loops: int) -> float:
    times = repeat(None, loops)
    start = time.perf_counter_ns()
    for _ in times:
        executable.run()
    executable.synchronize()
    return (time.perf_counter_ns() - start) / loops
