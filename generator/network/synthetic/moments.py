"""The first two moments of a tensor's elements, and what pooling does to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

__all__ = ["UNKNOWN", "Moments"]

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of a value's elements; the elements count as normally distributed.

    Attributes:
        rms: Root mean square ("magnitude").
        mean: Mean; 0 where nothing shifts the value.
    """

    rms: float
    mean: float = 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation."""
        return math.sqrt(max(0.0, self.rms * self.rms - self.mean * self.mean))

    def scaled(self, factor: float) -> Moments:
        """Moments of the value times a positive factor."""
        return Moments(self.rms * factor, self.mean * factor)

    def largest_of(self, count: int) -> Moments:
        """Moments of the largest of ``count`` independent elements.

        The mean is Blom's approximation of the normal order statistic; the variance is taken as 0.4, which lies
        between those of 4 (0.49) and 9 (0.36) elements, the windows of real pooling layers.
        """
        if count <= 1:
            return self
        mean = self.mean + self.deviation * _NORMAL.inv_cdf((count - 0.375) / (count + 0.25))
        return Moments(math.hypot(mean, self.deviation * math.sqrt(0.4)), mean)


UNKNOWN = Moments(math.sqrt(0.5))
"""What counts for a value of which nothing is known: the magnitude of a rectified normal, hence plain He."""
