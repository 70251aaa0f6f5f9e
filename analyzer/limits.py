"""Absolute limits on figures, as teams gate on them: ``latency>10ms``, ``size>50MB``, ``difference>1e-3``.

A limit inside the interval of its figure is undecided: neither kept nor crossed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from ..generator.measurement.alone import Alone

_UNITS: Mapping[str, Mapping[str, float]] = {
    "ms": {"us": 1e-3, "ms": 1.0, "s": 1e3},
    "MB": {"kB": 1e-3, "MB": 1.0, "GB": 1e3},
    "": {"": 1.0},
}
"""Units of a figure by its canonical one, each with its factor."""

_BYTES_PER_MB = 1e6

_FORM = re.compile(r"([a-z][a-z0-9-]*(?:/s)?)([<>])([0-9.]+(?:e[+-]?[0-9]+)?)([A-Za-z]*)")


class Standing(StrEnum):
    """A figure in relation to its limit."""

    KEPT = "kept"
    CROSSED = "crossed"
    UNDECIDED = "cannot tell"
    """The limit is inside the interval, or the figure was not measured."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that a limit may name.

    Attributes:
        value: Its value in the canonical unit; None if it was not measured.
        interval: Its 95 % interval; None if the value is exact.
        why: Reason for a missing value.
        narrower: Advice on how to narrow the interval.
    """

    value: float | None
    interval: tuple[float, float] | None = None
    why: str = "it was not measured"
    narrower: str = "more visits narrow it (--budget)"

    @classmethod
    def scattering(cls, value: float | None, interval: tuple[float, float] | None) -> Figure:
        """Return a figure that differs from one measurement to the next: without an interval it may have any value."""
        return cls(value, interval or (0.0, math.inf))

    @classmethod
    def of_bytes(cls, count: int | None) -> Figure:
        """Return a figure in MB."""
        return cls(None if count is None else count / _BYTES_PER_MB)

    @classmethod
    def percentile(cls, alone: Alone | None, share: float) -> Figure:
        """Return a percentile in ms of the single executions of a model that ran alone."""
        if alone is None:
            return cls(None)
        value, interval = alone.quantile_ms(share), alone.quantile_ci95_ms(share)
        return cls(value, interval, alone.too_few, "a quieter machine may narrow it")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on a figure.

    Attributes:
        figure: Name of the figure.
        above: True if a larger value crosses it.
        value: The limit in the figure's canonical unit.
        text: As it was written.
    """

    figure: str
    above: bool
    value: float
    text: str

    def judge(self, figure: Figure) -> Standing:
        """Return the relation of a figure to the limit; only an interval entirely on one side decides it."""
        if figure.value is None:
            return Standing.UNDECIDED
        low, high = figure.interval or (figure.value, figure.value)
        if not self.above:
            low, high = -high, -low
        limit = self.value if self.above else -self.value
        return Standing.CROSSED if low > limit else Standing.KEPT if high <= limit else Standing.UNDECIDED


@dataclass(frozen=True, slots=True)
class Judgement:
    """A limit and the result that it was held against.

    Attributes:
        name: The model.
        limit: The limit.
        figure: The figure.
        standing: The relation of the figure to the limit.
    """

    name: str
    limit: Limit
    figure: Figure
    standing: Standing

    @property
    def line(self) -> str:
        """The judgement in one line, with a reason or advice if it is undecided."""
        value, interval = self.figure.value, self.figure.interval
        if value is None:
            return f"{self.name}: {self.limit.text}: cannot tell, since {self.figure.why}"
        within = "" if interval is None else f" ({interval[0]:.4g} to {interval[1]:.4g})"
        if interval is not None and math.isinf(interval[1]):
            within = ", of unknown interval"
        told = f"{self.name}: {self.limit.text}: {self.standing}: it is {value:.4g}{within}"
        return f"{told}; {self.figure.narrower}" if self.standing is Standing.UNDECIDED else told


def parse_limit(text: str, units: Mapping[str, str]) -> Limit:
    """Return the limit that a text says.

    Args:
        text: ``FIGURE>NUMBER UNIT`` or ``FIGURE<NUMBER UNIT``.
        units: Canonical unit of each figure that the command has.

    Raises:
        UsageError: The figure is unknown, or its unit is missing or another one.
    """
    parts = _FORM.fullmatch(text.replace(" ", ""))
    known = ", ".join(units)
    if parts is None or parts[1] not in units:
        raise UsageError(f"{text!r} is not a limit of this command", remedy=f"write FIGURE>VALUE, of {known}")
    name, sign, number, unit = parts.groups()
    factors = _UNITS[units[name]]
    if unit not in factors:
        example = f"{name}{sign}{number}{units[name]}"
        expected = " or ".join(factors) if "" not in factors else "no unit"
        raise UsageError(
            f"{text!r} has {f'the unit {unit!r}' if unit else 'no unit'}: {name} has {expected}",
            remedy=f"write {example!r}",
        )
    try:
        value = float(number)
    except ValueError as error:
        raise UsageError(f"{number!r} in {text!r} is not a number", remedy="write 10 or 1e-3") from error
    return Limit(name, sign == ">", value * factors[unit], text)


def judged_limits(limits: Sequence[Limit], figures: Mapping[str, Mapping[str, Figure]]) -> list[Judgement]:
    """Hold every limit against each result.

    Args:
        limits: The limits.
        figures: Figures by name, by model.
    """
    return [
        Judgement(name, limit, own[limit.figure], limit.judge(own[limit.figure]))
        for name, own in figures.items()
        for limit in limits
    ]
