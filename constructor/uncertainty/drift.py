"""Whether two sums of measurements saw the same machine, by the reference network that was timed beside them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["LIMIT", "reference_of", "why_not_comparable"]

LIMIT = 0.03
"""Largest relative difference of the reference latencies at which a ratio is still given."""


def reference_of(parts: Iterable[tuple[float, float | None]]) -> float | None:
    """The reference latency of a sum: that of its parts, weighted with their share of the sum.

    What drifts a sum is what drifts its large parts; a brick of a microsecond may have seen another machine.

    Args:
        parts: (latency, median of the reference network beside it), in any one unit.

    Returns:
        None where a part has no reference, or there are no parts.
    """
    total = weighted = 0.0
    for latency, reference in parts:
        if reference is None:
            return None
        total += latency
        weighted += latency * reference
    return weighted / total if total > 0 else None


def why_not_comparable(bricks_ns: float | None, model_ns: float | None) -> str | None:
    """Why a latency composed from bricks and one measured of the model cannot be compared; None where they can.

    Args:
        bricks_ns: Reference latency of the bricks.
        model_ns: Reference latency of the model.
    """
    remedy = "measure them together: `dlbricks run SUITE --with MODEL`"
    if bricks_ns is None or model_ns is None:
        return f"no reference network was timed beside {'the bricks' if bricks_ns is None else 'the model'}; {remedy}"
    difference = abs(bricks_ns - model_ns) / model_ns
    if difference > LIMIT:
        return (
            f"the machine changed by {difference:.1%} between bricks ({bricks_ns / 1e3:.1f} us for the reference "
            f"network) and model ({model_ns / 1e3:.1f} us); {remedy}"
        )
    return None
