"""How far measured latencies can be trusted, as a line below a table."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["verdict_lines"]

_WORST_FIRST = {
    "timed-out": "of too few visits",
    "unstable": "unstable (their mean is known to no better than 10 %)",
    "noisy": "noisy (2 to 10 %)",
}


def verdict_lines(verdicts: Mapping[str, int], remedy: str) -> list[str]:
    """Count the latencies that are not stable, and say what makes them so; nothing where all are.

    Args:
        verdicts: Number of measurements by verdict.
        remedy: What measures them better.
    """
    doubtful = [f"{verdicts[name]} {text}" for name, text in _WORST_FIRST.items() if verdicts.get(name)]
    if not doubtful:
        return []
    return [f"of {sum(verdicts.values())} latencies {', '.join(doubtful)}: {remedy}"]
