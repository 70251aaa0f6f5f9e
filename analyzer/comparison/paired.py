"""The difference of two sides that were visited in turn, visit by visit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...constructor.uncertainty.pairing import ratio_spread, without_stalls
from ...db.samples.statistics import student, time_blocks
from .difference import Difference, two_sided

__all__ = ["Paired", "paired"]

_NS_PER_MS = 1e6
_FAR = 50.0
"""Logarithm of a ratio beyond which an interval is as good as without end."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Paired:
    """Two sides of the same visits.

    Attributes:
        before_ms: Mean of the first.
        after_ms: Of the second.
        difference: Of the second to the first.
    """

    before_ms: float
    after_ms: float
    difference: Difference


def paired(before_ns: Sequence[Array], after_ns: Sequence[Array]) -> Paired:
    """The means of both and their ratio, visits in which the machine stood still left out.

    A machine that slows down slows both by one factor, so that the interval is that of their ratio: a bootstrap over
    time blocks, in which both are drawn together (``constructor.uncertainty.pairing``).

    Args:
        before_ns: Latencies of the first, by process; visits of one position belong together.
        after_ns: Of the second.
    """
    before, after = without_stalls(before_ns, after_ns)
    ours, theirs = (float(np.concatenate(side).mean()) / _NS_PER_MS for side in (before, after))
    blocks = time_blocks(before)
    degrees = max(1, blocks.size - 1)
    error = ratio_spread(time_blocks(after), blocks)
    ratio, reach = theirs / ours, math.exp(min(student(degrees) * error, _FAR))
    p = two_sided(abs(math.log(ratio)) / error, degrees) if error > 0 else float(ratio == 1)
    return Paired(ours, theirs, Difference(ratio, (ratio / reach, ratio * reach), p))
