"""Why a model takes less than the lower bound that is built from its bricks.

A bound of measured bricks is one of what runs them one by one. A runtime that is given the whole model can do better:
it fuses across the edges of bricks, leaves out calls and changes of layout, runs branches at once. The Benanza ratio
(lower bound / measured) is then above 1, and is not cut off there.
"""

from __future__ import annotations

from ..result import SIGNS, Estimate

__all__ = ["benanza_note"]

_CAUSES = {
    "fusion": "operators that are fused or removed across the edges of bricks",
    "layout": "changes of memory layout at the edges of bricks",
    "overhead": "calls of the runtime that only bricks take",
    "cache": "caches that are warmer in the model than they were for the bricks",
    "data": "values in the model that cost less than those of bricks",
}
"""What makes a model faster than its bricks, by the terms of the attribution."""


def benanza_note(estimate: Estimate, *, parallel: bool) -> str | None:
    """Why a model is faster than its lower bound, from what is known of the distance between bricks and model.

    Args:
        estimate: With its ratios and its attribution.
        parallel: Whether independent branches run at once.

    Returns:
        None where neither Benanza ratio is above 1.
    """
    ratios = (estimate.benanza_ratio_sequential, estimate.benanza_ratio_critical_path)
    if all(ratio is None or ratio <= 1 for ratio in ratios):
        return None
    bound, measured = estimate.lower_bound_sequential_ms, estimate.measured_ms
    if bound is None or measured is None:
        return None
    less = f"the model takes {bound - measured:.3g} ms less than the cheapest bricks that make it up"
    if estimate.measured_ci95_ms is not None and bound <= estimate.measured_ci95_ms[1]:
        return f"{less}, within the interval of its own measurement"
    reasons = []
    if parallel and not (ratios[1] is not None and ratios[1] > 1):
        reasons.append("independent branches run at once")
    gains = {
        name: -SIGNS[name] * term.ms
        for name, term in (estimate.attribution or {}).items()
        if name in _CAUSES and term.ms is not None and -SIGNS[name] * term.ms > 0
    }
    ordered = sorted(gains.items(), key=lambda gain: -gain[1])
    reasons += [f"{_CAUSES[name]} ({gain:.3g} ms)" for name, gain in ordered]
    if reasons:
        return f"{less}: {', '.join(reasons)}"
    return f"{less}; why is unknown: {_unknown(estimate)}"


def _unknown(estimate: Estimate) -> str:
    """What would have to be known."""
    if not estimate.attribution:
        return "not every brick of the sequences that were asked for is measured"
    reasons = [
        f"{name}: {term.reason}"
        for name, term in estimate.attribution.items()
        if name in _CAUSES and term.ms is None and term.reason
    ]
    return "; ".join(reasons) or "no cause that is known makes the model faster than its bricks"
