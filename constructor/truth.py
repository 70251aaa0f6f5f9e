"""An estimate beside the ground truth: the ratios where they mean something, and why not where they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..db import Measurement
from ..db.queries import Fastest
from .composition.bound import LowerBound
from .result import Estimate
from .stored import Stored
from .uncertainty.drift import reference_of, why_not_comparable

__all__ = ["beside_truth"]


def beside_truth(
    key: str,
    stored: Stored,
    estimate: Estimate,
    *,
    basis: Sequence[tuple[float, float | None]],
    bound: LowerBound | None,
    fastest: Mapping[str, Fastest],
) -> dict[str, Any]:
    """What was measured of the model itself, and the ratios.

    Args:
        key: Of the whole model.
        basis: (latency, reference latency beside it) of the bricks that the estimate is composed of; empty where it
            is not complete, or there is nothing to compose.
        stored: What is known of the model.
        estimate: So far.
        bound: The lower bound; None where there is none.
        fastest: Lowest latency of each brick that competed for it.

    Returns:
        Fields of ``Estimate``.
    """
    truth = stored.truths.get(key)
    if truth is None:
        failure = stored.model_failures.get(key)
        reason = "the model itself is not measured under these conditions; run `dlbricks measure MODEL`"
        if failure is not None:
            reason = f"the model itself could not be measured: {failure.kind}: {failure.reason}"
        return {"ratio_reason": reason, "benanza_ratio_reason": reason}
    measured = truth.median_ns / 1e6
    low, high = truth.ci95_ns
    executed = bool(estimate.unique)
    incomplete = "not every brick is measured" if executed else "no layer of the model is executed"
    said: dict[str, Any] = {
        "measured_ms": measured,
        "measured_ci95_ms": (low / 1e6, high / 1e6),
        "ratio_reason": incomplete,
        "benanza_ratio_reason": incomplete,
    }
    if basis and estimate.estimate_ms is not None:
        said["ratio_reason"] = why_not_comparable(reference_of(basis), truth.reference_ns)
        if said["ratio_reason"] is None:
            said["ratio"] = estimate.estimate_ms / measured
    if executed and bound is not None:
        covers = (bound.sequential_keys, bound.critical_path_keys)
        reasons = [_why_not([fastest[key] for key in keys], truth) for keys in covers]
        said["benanza_ratio_reason"] = next((reason for reason in reasons if reason is not None), None)
        if said["benanza_ratio_reason"] is None:
            for name in ("sequential", "critical_path"):
                said[f"benanza_ratio_{name}"] = getattr(estimate, f"lower_bound_{name}_ms") / measured
    return said


def _why_not(taken: Sequence[Fastest], truth: Measurement) -> str | None:
    """Why a sum of lowest latencies cannot be compared with that of the model; None where it can.

    The reference network of another stack is another computation: only that of the model's own tells what changed.
    """
    own = [(one.median_ns, one.reference_ns) for one in taken if one.stack == truth.stack]
    return why_not_comparable(reference_of(own), truth.reference_ns) if own else None
