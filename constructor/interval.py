"""The uncertainty of a composed latency: a bootstrap over the blocks of its measurements.

A block is what one process took in one round. Rounds are interleaved over all bricks of a run, so that in one block all
of them saw the same machine: fast together or slow together. Blocks are therefore resampled *jointly*: one draw picks
(process, round) pairs with replacement, the same for every brick of the run, and each brick's latency is the median of
its block medians over that pick. Independent draws per brick would let the machine's drift average out over hundreds of
bricks, and promise far too narrow an interval.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..db.values import Measurement

__all__ = ["DRAWS", "Draws", "draw"]

DRAWS = 1000
"""Resamples; the 2.5 % quantile then rests on 25 of them."""

_Z95 = 1.959963984540054
_CHUNK = 256
"""Bricks at a time: 256 bricks of 6 blocks take 12 MB."""


class Draws:
    """Resampled latencies of bricks.

    Attributes:
        rows: Key to row in ``values``.
        values: (bricks, draws), nanoseconds.
    """

    def __init__(self, rows: Mapping[str, int], values: NDArray[np.float64]) -> None:
        self.rows = rows
        self.values = values

    def interval_ns(self, occurrences: Mapping[str, int]) -> tuple[float, float]:
        """95 % percentile interval of a sum of bricks.

        Args:
            occurrences: Key to how often the sum holds it: all occurrences of a brick share its draw.
        """
        if not occurrences:
            return (0.0, 0.0)
        counts = np.array([*occurrences.values()], dtype=np.float64)
        totals = counts @ self.values[[self.rows[key] for key in occurrences]]
        low, high = np.percentile(totals, [2.5, 97.5])
        return float(low), float(high)


def draw(measurements: Sequence[Measurement], *, draws: int = DRAWS, seed: int = 0) -> Draws:
    """Resample measurements of different bricks.

    Draws are centred on the measured median, which is the median of all samples and may differ a little from that of
    the block medians. A measurement of a single block cannot be resampled; its own interval then stands for a normal
    distribution.

    Args:
        measurements: One per key.
        draws: Number of resamples.
        seed: Makes the result repeatable; the result for one brick does not depend on the others.
    """
    values = np.empty((len(measurements), draws))
    groups: dict[tuple[str, int], list[int]] = {}
    for row, measurement in enumerate(measurements):
        groups.setdefault((measurement.run, len(measurement.block_medians_ns)), []).append(row)
    for (run, blocks), rows in groups.items():
        if blocks < 2:
            for row in rows:
                values[row] = _normal(measurements[row], draws, seed)
            continue
        pick = _generator(seed, run, str(blocks)).integers(0, blocks, size=(draws, blocks))
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            medians = np.array([measurements[row].block_medians_ns for row in chunk])
            centre = np.array([measurements[row].median_ns for row in chunk])
            values[chunk] = _medians(medians[:, pick]) + (centre - _medians(medians))[:, np.newaxis]
    return Draws({measurement.key: row for row, measurement in enumerate(measurements)}, values)


def _medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median along the last axis; for short rows a sort is several times faster than ``numpy.median``."""
    size = values.shape[-1]
    ranked = np.sort(values, axis=-1)
    middle: NDArray[np.float64] = (ranked[..., (size - 1) // 2] + ranked[..., size // 2]) / 2
    return middle


def _normal(measurement: Measurement, draws: int, seed: int) -> NDArray[np.float64]:
    low, high = measurement.ci95_ns
    spread = max(high - low, 0.0) / (2 * _Z95)
    return _generator(seed, measurement.id).normal(measurement.median_ns, spread, size=draws)


def _generator(seed: int, *names: str) -> np.random.Generator:
    digest = hashlib.sha256("\0".join(names).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])
