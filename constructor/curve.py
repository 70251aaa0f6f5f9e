"""Latency as a function of length: interpolation between measured lengths, and its error.

The work of a layer is constant, linear or quadratic in the length of a sequence (reading weights; products with
weights; products of queries and keys). A model's latency is too, except for effects of kernels at particular lengths:

    f(n) = a + b n + c n^2,  a, b, c >= 0 (least squares of relative residuals)

Between two measured lengths the latency is f times the ratio of measured latency to f, interpolated along the logarithm
of the length. At measured lengths it equals the measurement. The error comes from leaving each inner length out and
predicting it from the others, with a gap twice as wide. As that of any interpolation it is largest in the middle of a
gap and vanishes at its ends: with the square of the distances. A longer sequence takes no less work, so that an
interval does not exceed those of the lengths around it. There is no extrapolation beyond the measured lengths.
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

_MEASURED = 0.5
"""Share of the error in the middle; nearer to an end, what a length that is left out differs by is measurement."""


@dataclass(frozen=True, slots=True)
class Point:
    """A latency at one length.

    Attributes:
        length: In tokens, at least 1.
        ms: Latency.
        ci95_ms: Its interval; None if unknown, as for interpolation between fewer than three lengths.
        interpolated: True if it is interpolated between measured lengths.
    """

    length: int
    ms: float
    ci95_ms: Interval | None = None
    interpolated: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A measured length predicted from the others."""

    length: int
    ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        """Relative error of the prediction; positive if too large."""
        return self.predicted_ms / self.ms - 1.0


@dataclass(frozen=True, slots=True)
class Interpolation:
    """The interpolated bricks of an estimate.

    Attributes:
        dimension: The varied dimension.
        between: The nearest measured sizes below and above.
        measured: All measured sizes on the curves.
        bricks: Number of interpolated bricks; all others were measured.
        share: Their share of the estimate's sum, 0 to 1.
        error: Relative half-width of their common error; None with too few sizes to leave one out.
        left_out: For each inner measured size: the sum of the interpolated bricks, measured and predicted from the
            other sizes.
    """

    dimension: str
    between: tuple[int, int]
    measured: tuple[int, ...]
    bricks: int
    share: float
    error: float | None
    left_out: tuple[LeftOut, ...]


def error_of(errors: Sequence[float]) -> float | None:
    """Return the relative half-width of the interpolation error; None without omitted lengths.

    It is Student's t times the root mean square of the errors of the omitted lengths, so few lengths make it wide.
    """
    if not errors:
        return None
    return student(len(errors)) * math.sqrt(math.fsum(error**2 for error in errors) / len(errors))


@dataclass(frozen=True)
class Curve:
    """Latencies at measured lengths.

    Example:
        >>> curve = Curve.through([Point(32, 42.0), Point(64, 74.0), Point(128, 138.0)])
        >>> round(curve.at(96).ms, 3), curve.at(96).interpolated, curve.at(256)
        (106.0, True, None)
    """

    points: tuple[Point, ...]

    @classmethod
    def through(cls, points: Iterable[Point]) -> Curve:
        """Return the curve through some points; the last of several at one length counts."""
        return cls(tuple(sorted({point.length: point for point in points}.values(), key=lambda point: point.length)))

    def at(self, length: int) -> Point | None:
        """Return the measured or interpolated latency at a length; None beyond the measured lengths."""
        index = bisect_left(self.points, length, key=lambda point: point.length)
        if index < len(self.points) and self.points[index].length == length:
            return self.points[index]
        if index in {0, len(self.points)}:
            return None
        ms = _between(self.points, self._shape, index, length)
        return Point(length, ms, self._interval(ms, index, length), interpolated=True)

    @cached_property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Every inner length, predicted from the others."""
        omitted = []
        for index, point in enumerate(self.points[1:-1], start=1):
            others = self.points[:index] + self.points[index + 1 :]
            omitted.append(LeftOut(point.length, point.ms, _between(others, _fitted(others), index, point.length)))
        return tuple(omitted)

    @cached_property
    def error(self) -> float | None:
        """Relative half-width in the middle between two lengths; None with fewer than three lengths."""
        inner = zip(self.left_out, self.points, self.points[2:], strict=False)
        shares = [(omitted.error, max(_MEASURED, _middling(low, omitted.length, high))) for omitted, low, high in inner]
        return error_of([error / share for error, share in shares])

    @cached_property
    def _shape(self) -> tuple[float, ...]:
        return _fitted(self.points)

    def _interval(self, ms: float, index: int, length: int) -> Interval | None:
        """Return the interval from the neighbours' intervals and the interpolation error, taken as independent."""
        if self.error is None:
            return None
        low, high = self.points[index - 1 : index + 1]
        halves = [(point.ci95_ms[1] - point.ci95_ms[0]) / 2 / point.ms for point in (low, high) if point.ci95_ms]
        half = ms * math.hypot(self.error * _middling(low, length, high), max(halves, default=0.0))
        ends = [bound for point in (low, high) for bound in point.ci95_ms or (0.0, math.inf)]
        return max(0.0, min(ends), ms - half), min(max(ends), ms + half)


def _share(low: Point, length: int, high: Point) -> float:
    """Return how far a length is from one point to the next, along the logarithm."""
    return math.log(length / low.length) / math.log(high.length / low.length)


def _middling(low: Point, length: int, high: Point) -> float:
    """Return the error of an interpolation as a share of that in the middle."""
    share = _share(low, length, high)
    return 4 * share * (1 - share)


def _fitted(points: Sequence[Point]) -> tuple[float, ...]:
    """Return the coefficients of f, with at most one term per point."""
    from scipy.optimize import nnls

    terms = np.arange(min(_TERMS, len(points)))
    longest = points[-1].length  # lengths as shares of it, so that no column is tiny
    columns = np.array([(point.length / longest) ** terms / point.ms for point in points])
    coefficients, _ = nnls(columns, np.ones(len(points)))
    return tuple(float(coefficient) / longest**term for term, coefficient in enumerate(coefficients))


def _value(shape: Sequence[float], length: int) -> float:
    return sum(coefficient * float(length) ** term for term, coefficient in enumerate(shape))


def _between(points: Sequence[Point], shape: Sequence[float], index: int, length: int) -> float:
    """Return the latency at a length between the points ``index - 1`` and ``index``."""
    low, high = points[index - 1], points[index]
    share = _share(low, length, high)
    ratios = [point.ms / _value(shape, point.length) for point in (low, high)]
    return _value(shape, length) * (ratios[0] * (1.0 - share) + ratios[1] * share)
