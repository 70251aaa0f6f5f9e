"""Pools of seeded random values, tiled into inputs of any size at the speed of a copy.

Drawing a normal deviate costs about 10 ns, so that the inputs of one brick could cost more than timing it. A
latency does not depend on which random value stands where, so a pool is drawn once per process and tiled.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["POOL", "SMALLEST", "fill", "integers", "normal", "positive", "uniform"]

POOL = 65_537
"""Elements of a pool: prime, so that rows of common lengths do not repeat each other."""

SMALLEST = 2.0**-6
"""Smallest magnitude of a float: normal in every float type down to float8e4m3fn, so that no input is a denormal."""

Array = npt.NDArray[Any]


@lru_cache(maxsize=8)
def _deviates(seed: int) -> npt.NDArray[np.float32]:
    values = np.random.default_rng([seed, 1]).standard_normal(POOL, dtype=np.float32)
    near_zero = np.abs(values) < SMALLEST
    values[near_zero] = np.copysign(np.float32(SMALLEST), values[near_zero])
    values.flags.writeable = False
    return values


@lru_cache(maxsize=8)
def _fractions(seed: int) -> npt.NDArray[np.float64]:
    values = np.random.default_rng([seed, 2]).random(POOL)
    values.flags.writeable = False
    return values


def normal(seed: int) -> npt.NDArray[np.float32]:
    """N(0, 1), rounded away from zero to at least ``SMALLEST``."""
    return _deviates(seed)


def positive(seed: int) -> npt.NDArray[np.float32]:
    """|N(0, 1)| + 1/2: a legal denominator, logarithm, root and variance."""
    return np.abs(_deviates(seed)) + np.float32(0.5)


def uniform(seed: int, low: float, high: float) -> npt.NDArray[np.float64]:
    """Uniform in [low, high)."""
    return low + _fractions(seed) * (high - low)


def integers(seed: int, low: int, high: int) -> npt.NDArray[np.int64]:
    """Uniform integers in [low, high); ``low`` alone where the range is empty."""
    return low + np.floor(_fractions(seed) * max(high - low, 1)).astype(np.int64)


def fill(shape: tuple[int, ...], pool: Array, *, offset: int) -> Array:
    """Repeat a pool into a new C-contiguous array of a shape, beginning at an offset."""
    size = math.prod(shape)
    out = np.empty(size, dtype=pool.dtype)
    start = offset % len(pool)
    head, tail = pool[start : start + size], pool[: min(start, max(0, size - (len(pool) - start)))]
    done = len(head) + len(tail)
    out[: len(head)], out[len(head) : done] = head, tail
    while done < size:
        count = min(size - done, done)
        out[done : done + count] = out[:count]
        done += count
    return out.reshape(shape)
