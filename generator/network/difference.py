"""How far two arrays of numbers are apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["relative_difference"]


def relative_difference(own: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Largest difference over the largest finite value of ``other``; infinite where one is finite and the other not.

    Args:
        own: Numbers, of any type that becomes float64.
        other: Likewise, of the same shape.
    """
    one, two = own.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(two)
    if not np.array_equal(one[~finite], two[~finite], equal_nan=True) or not np.isfinite(one[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    largest = float(np.abs(two[finite]).max())
    apart = float(np.abs(one[finite] - two[finite]).max())
    return apart / largest if largest else apart
