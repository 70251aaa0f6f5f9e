"""An estimate beside the ground truth: the ratios where they mean something, and why not where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..bricks.sequence import Sequence as Part
from ..db import Measurement
from ..db.queries import Fastest
from .bound import LowerBound
from .drift import reference_of, why_not_comparable
from .result import Estimate
from .stored import Stored

__all__ = ["beside_truth"]


def beside_truth(
    key: str, parts: Sequence[Part], stored: Stored, estimate: Estimate, bound: LowerBound | None
) -> dict[str, Any]:
    """What was measured of the model itself, and the ratios.

    Args:
        key: Of the whole model.
        parts: The sequences that it is composed of.
        stored: What is known of them and of the model.
        estimate: So far.
        bound: The lower bound; None where there is none.

    Returns:
        Fields of ``Estimate``.
    """
    truth = stored.truths.get(key)
    if truth is None:
        failure = stored.failures.get(key)
        reason = "the model itself is not measured under these conditions; run `dlbricks measure MODEL`"
        if failure is not None:
            reason = f"the model itself could not be measured: {failure.kind}: {failure.reason}"
        return {"ratio_reason": reason, "benanza_ratio_reason": reason}
    measured = truth.median_ns / 1e6
    low, high = truth.ci95_ns
    incomplete = "not every brick is measured" if parts else "no layer of the model is executed"
    said: dict[str, Any] = {
        "measured_ms": measured,
        "measured_ci95_ms": (low / 1e6, high / 1e6),
        "ratio_reason": incomplete,
        "benanza_ratio_reason": incomplete,
    }
    if parts and estimate.estimate_ms is not None:
        said["ratio_reason"] = _why_not([stored.bricks[part.key] for part in parts], truth)
        if said["ratio_reason"] is None:
            said["ratio"] = estimate.estimate_ms / measured
    if parts and bound is not None:
        covers = (bound.sequential_keys, bound.critical_path_keys)
        reasons = [_why_not([stored.fastest[key] for key in keys], truth) for keys in covers]
        said["benanza_ratio_reason"] = next((reason for reason in reasons if reason is not None), None)
        if said["benanza_ratio_reason"] is None:
            for name in ("sequential", "critical_path"):
                said[f"benanza_ratio_{name}"] = getattr(estimate, f"lower_bound_{name}_ms") / measured
    return said


def _why_not(taken: Sequence[Measurement] | Sequence[Fastest], truth: Measurement) -> str | None:
    """Why a sum of measurements cannot be compared with that of the model; None where it can."""
    return why_not_comparable(reference_of((one.median_ns, one.reference_ns) for one in taken), truth.reference_ns)
