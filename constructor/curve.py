"""A latency against a length: what lies between measured lengths, and how far that can be trusted.

The work of a layer is a constant, linear or quadratic in the length of a sequence (weights that are read; products with
weights; products of queries and keys). So is a model's latency, but for what kernels make of one length or another:

    f(n) = a + b n + c n^2,  a, b, c >= 0 (least squares of relative residuals)

Between two measured lengths the latency is f times the ratio of measured latency to f, which is interpolated along the
logarithm of the length: at measured lengths that is what was measured. How good it is, leaving points out shows: each
length but the ends is left out once and predicted from the others, whose gap there is twice as wide as any that is
bridged otherwise. Beyond the measured lengths nothing is said.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..db.samples.statistics import student

Interval = tuple[float, float]

_TERMS = 3
"""Constant, linear, quadratic."""


@dataclass(frozen=True, slots=True)
class Point:
    """A latency at one length.

    Attributes:
        length: In tokens, at least 1.
        ms: Latency.
        ci95_ms: Its interval; None where it is not known: of an interpolated one, where too few lengths are measured
            to leave one out.
        interpolated: Whether it is read between measured lengths.
    """

    length: int
    ms: float
    ci95_ms: Interval | None = None
    interpolated: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the other lengths say of a measured one.

    Attributes:
        length: The length that was left out.
        ms: What was measured there.
        predicted_ms: What lies between the others.
    """

    length: int
    ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        """Relative error of that; above zero where it is too much."""
        return self.predicted_ms / self.ms - 1.0


@dataclass(frozen=True, slots=True)
class Interpolation:
    """Which bricks of an estimate were not measured, but read between other sizes of the model.

    Attributes:
        dimension: What the sizes are of.
        between: The measured sizes below and above it that they were read between.
        measured: All sizes that their curves go through.
        bricks: How many bricks were read; all others of the model were measured.
        share: Their share of the sum that the estimate is made from, 0 to 1.
        error: Relative half-width of what they may be off by together; None where there are too few sizes to leave one
            out.
        left_out: Of measured sizes but the ends: the sum of the bricks that were read, as measured there, and as the
            other sizes have it.
    """

    dimension: str
    between: tuple[int, int]
    measured: tuple[int, ...]
    bricks: int
    share: float
    error: float | None
    left_out: tuple[LeftOut, ...]


def error_of(left_out: Sequence[LeftOut]) -> float | None:
    """Relative half-width of what reading between lengths may be off by; None where none was left out.

    Student's t times the root mean square of the errors of the lengths that were left out: few of them make it wide.
    """
    if not left_out:
        return None
    return student(len(left_out)) * math.sqrt(math.fsum(size.error**2 for size in left_out) / len(left_out))


@dataclass(frozen=True)
class Curve:
    """Latencies at measured lengths.

    Attributes:
        points: One per length, in their order.

    Example:
        >>> curve = Curve.through([Point(32, 42.0), Point(64, 74.0), Point(128, 138.0)])
        >>> round(curve.at(96).ms, 3), curve.at(96).interpolated, curve.at(256)
        (106.0, True, None)
    """

    points: tuple[Point, ...]

    @classmethod
    def through(cls, points: Iterable[Point]) -> Curve:
        """The curve through some points; of several at one length the last counts."""
        return cls(tuple(sorted({point.length: point for point in points}.values(), key=lambda point: point.length)))

    def at(self, length: int) -> Point | None:
        """The latency at a length, measured or interpolated; None beyond the lengths that are measured."""
        place = bisect_left(self.points, length, key=lambda point: point.length)
        if place < len(self.points) and self.points[place].length == length:
            return self.points[place]
        if place in {0, len(self.points)}:
            return None
        ms = _between(self.points, self._shape, place, length)
        return Point(length, ms, self._interval(ms, self.points[place - 1 : place + 1]), interpolated=True)

    @cached_property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Every length but the ends, predicted from the others."""
        found = []
        for place, point in enumerate(self.points[1:-1], start=1):
            others = self.points[:place] + self.points[place + 1 :]
            found.append(LeftOut(point.length, point.ms, _between(others, _fitted(others), place, point.length)))
        return tuple(found)

    @cached_property
    def error(self) -> float | None:
        """Relative half-width of the interval of what is interpolated; None where no length can be left out."""
        return error_of(self.left_out)

    @cached_property
    def _shape(self) -> tuple[float, ...]:
        return _fitted(self.points)

    def _interval(self, ms: float, neighbours: Sequence[Point]) -> Interval | None:
        """What the neighbours are uncertain by, and the error of reading between them, as independent of each other."""
        if self.error is None:
            return None
        own = [(high - low) / 2 / point.ms for point in neighbours if point.ci95_ms for low, high in (point.ci95_ms,)]
        half = ms * math.hypot(self.error, max(own, default=0.0))
        return max(0.0, ms - half), ms + half


def _fitted(points: Sequence[Point]) -> tuple[float, ...]:
    """The coefficients of f, of as many terms as there are points for."""
    from scipy.optimize import nnls

    terms = np.arange(min(_TERMS, len(points)))
    longest = points[-1].length  # lengths as shares of it, so that no column is tiny
    columns = np.array([(point.length / longest) ** terms / point.ms for point in points])
    found, _ = nnls(columns, np.ones(len(points)))
    return tuple(float(coefficient) / longest**term for term, coefficient in enumerate(found))


def _value(shape: Sequence[float], length: int) -> float:
    return sum(coefficient * float(length) ** term for term, coefficient in enumerate(shape))


def _between(points: Sequence[Point], shape: Sequence[float], place: int, length: int) -> float:
    """The latency at a length between the points before ``place`` and at it."""
    low, high = points[place - 1], points[place]
    share = math.log(length / low.length) / math.log(high.length / low.length)
    ratios = [point.ms / _value(shape, point.length) for point in (low, high)]
    return _value(shape, length) * (ratios[0] * (1.0 - share) + ratios[1] * share)
