"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...generator.measurement.alone import Alone

_SHORT_KEY = 12

BUSY = "on a busy machine: the time that other programs took is not counted, so that a stopwatch shows more"
"""What a latency measured beside other programs means."""

INTERRUPTED = "Interrupted: this is what is known so far; the same command goes on from here."
"""The last line of an answer of what an interrupted command knew."""


def duration(seconds: float) -> str:
    """Write a time span: ``0.4 s``, ``48 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(count: int, noun: str) -> str:
    """Write a number of things: ``1 sequence``, ``2 sequences``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def milliseconds(value: float) -> str:
    """Write a latency in ms with three significant digits: ``0.0234``, ``3.17``, ``401``, ``1,234``."""
    return f"{value:,.{_decimals(value)}f}" if math.isfinite(value) else f"{value:.0f}"


def megabytes(nbytes: float) -> str:
    """Write a memory in 10^6 bytes with three significant digits."""
    return f"{milliseconds(nbytes / 1e6)} MB"


def memory_of(alone: Alone) -> Iterator[str]:
    """Yield the resident memory of a model that ran alone, in words."""
    record = alone.record()
    yield f"{megabytes(1e6 * (record['memory_steady_mb'] or 0))} after many executions"
    yield f"its weights {megabytes(alone.weight_bytes)}"
    if (bare := record["memory_steady_without_arena_mb"]) is not None:
        yield f"without the arena {megabytes(1e6 * bare)}"


def inferences(count: float) -> str:
    """Write a time as a number of inferences: ``4.2 inferences``, ``26 inferences``."""
    return f"{count:.1f} inferences" if count < 9.95 else f"{count:,.0f} inferences"


def margin(half: float, value: float | None = None) -> str:
    """Write half of an interval with the decimals of its value; with one significant digit if it would be 0.

    Args:
        half: Half of the interval.
        value: The value in the interval; None: two significant digits.
    """
    if not 0 < half < math.inf:
        return f"{half:.0f}"
    decimals = max(0, 1 - math.floor(math.log10(half)))
    if value is not None:
        decimals = max(_decimals(value), -math.floor(math.log10(half)))
    return f"{half:,.{decimals}f}"


def within(value: float, half: float | None) -> str:
    """Write a latency in ms with half of its interval: ``401 ± 35``, ``3.17 ± 0.02``."""
    return milliseconds(value) if half is None else f"{milliseconds(value)} ± {margin(half, value)}"


def _decimals(value: float) -> int:
    """Return the decimals that give three significant digits; two for zero."""
    rounded = float(f"{value:.2e}")
    return max(0, 2 - math.floor(math.log10(abs(rounded)))) if rounded else 2


def half_of(value: float, bounds: Sequence[float]) -> float:
    """How far a value may be off: the longer side of its interval, which may be cut off at 0."""
    low, high = bounds
    return max(high - value, value - low)


def quantity(value: float) -> str:
    """Write a count or a rate with a decimal prefix: ``4.09 G``, ``0.327``."""
    return _scaled(value, 1000.0, ("", "k", "M", "G", "T"))


def size(value: float) -> str:
    """Bytes with a binary prefix: ``97.5 MiB``."""
    return _scaled(value, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB"))


def percent(value: float) -> str:
    """Write a share: ``46%``."""
    return f"{value:.0%}"


def share_margin(half: float) -> str:
    """Write half of the interval of a share: ``5%``, or ``0.4%`` if it would be 0."""
    return percent(half) if half >= 0.0095 or half <= 0 else f"{100 * half:.1g}%"


def ratio(value: float) -> str:
    """Write a ratio with two decimals."""
    return f"{value:.2f}"


def ratio_within(value: float, bounds: Sequence[float] | None) -> str:
    """Write a ratio with its interval: ``0.98 [0.95, 1.02]``."""
    return ratio(value) if bounds is None else f"{ratio(value)} [{', '.join(map(_bound, bounds))}]"


def _bound(value: float) -> str:
    """Write an end of an interval, which may be far away."""
    return ratio(value) if value < 99.995 else f"{value:.0e}"


def short(key: str) -> str:
    """Return the beginning of a key; commands accept any unique beginning."""
    return key[:_SHORT_KEY]


def listed(words: Sequence[str], most: int) -> str:
    """Write the first words and the number of the others: ``a, b, and 3 more``."""
    rest = len(words) - most
    return ", ".join([*words[:most], *([f"and {rest} more"] if rest > 0 else [])])


def cut(text: str, most: int) -> str:
    """Cut the end of a text that is too long."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shortened(text: str, most: int) -> str:
    """Shorten a name in the middle: its beginning and its end tell it from others."""
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def said_of_batch(row: Mapping[str, Any]) -> str:
    """Write the best batch of a sweep; empty if it is unknown."""
    best, more = row["best_batch"], row["doubling_gains"]
    gains = "every doubling gains more than 5%" if more is None else f"twice as many gain {percent(more)}"
    return "" if best is None else f"best batch: {best} ({gains})"


def how_of(point: Mapping[str, Any]) -> str:
    """Write the interpolated part of a point of a sweep; empty for a measured point."""
    return f"{percent(point['share'])} interpolated" if point["interpolated"] else ""


def _scaled(value: float, step: float, units: Sequence[str]) -> str:
    index = 0
    # 999.6 would round to 1000 of a unit: it is 1 of the next.
    while abs(value) >= step - 0.5 and index < len(units) - 1:
        value /= step
        index += 1
    number = f"{value:.0f}" if value == int(value) or abs(value) >= 99.95 else f"{value:.3g}"
    return f"{number} {units[index]}".strip()
