"""An estimate beside the ground truth: the ratios, how sure they are, and how disturbed the machine was."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..db import Measurement, Subject
from .bounds import Bounds, benanza_ratio, not_of_one_state
from .prediction.prediction import Prediction
from .remedies import Task
from .result import Estimate
from .stored import Stored
from .uncertainty.calibration import scatters
from .uncertainty.interval import NORMAL, with_method
from .uncertainty.pairing import Paired, paired

__all__ = ["beside_truth"]

_NS_PER_MS = 1e6
_DISTURBED = 0.1
"""A machine counts as disturbed where visits were slower than quiet ones by more than that."""


def beside_truth(
    key: str,
    stored: Stored,
    estimate: Estimate,
    *,
    prediction: Prediction | None,
    known: Mapping[str, Measurement],
    bounds: Bounds | None,
    state: str,
    own_states: Collection[str],
    remedy: Task | None,
) -> dict[str, Any]:
    """What was measured of the model itself, the ratios, and how disturbed both were.

    Args:
        key: Of the whole model.
        stored: What is known of the model.
        estimate: So far.
        prediction: What the estimate is composed of; None where it is not complete, or there is nothing to compose.
        known: The measurements that it is composed of, by id.
        bounds: The lower bounds; None where there are none.
        state: Cache state of the bricks that they are of.
        own_states: Footprint classes of the model.
        remedy: What would measure the model itself.

    Returns:
        Fields of ``Estimate``.
    """
    said = _quietness(stored, estimate, prediction, known)
    truth = stored.truths.get(key)
    if truth is None:
        failure = stored.model_failures.get(key)
        reason = "the model itself is not measured under these conditions"
        if failure is not None:
            reason, remedy = f"the model itself could not be measured: {failure.kind}: {failure.reason}", None
        return said | {"ratio_reason": reason, "ratio_remedy": remedy, "benanza_ratio_reason": reason}
    measured_ns = truth.latency_ns
    executed = bool(estimate.unique)
    incomplete = "not every brick is measured" if executed else "no layer of the model is executed"
    said |= {"ratio_reason": incomplete, "benanza_ratio_reason": incomplete}
    if prediction is not None and estimate.estimate_ms is not None and executed and measured_ns > 0:
        weights = stored.in_run(prediction.weights, truth.run)
        both = paired(weights, truth, stored.members(weights), stored.uncertainty)
        if both is not None:
            said |= _paired(both, estimate, prediction)
            measured_ns = both.measured_ns
        else:
            said |= _apart(truth, estimate, said, _run_sd(stored, known.values(), truth))
    said |= _disturbance(truth, measured_ns)
    said |= {"measured_ms": measured_ns / _NS_PER_MS, "measured_ci95_ms": truth.ci95_ms}
    if executed and bounds is not None and measured_ns > 0:
        said["benanza_ratio_reason"] = apart = not_of_one_state(state, own_states, truth)
        for name in ("sequential", "critical_path") if apart is None else ():
            found = benanza_ratio(getattr(bounds, name), truth, measured_ns, stored)
            said |= {f"benanza_ratio_{name}": found["ratio"], f"benanza_ratio_{name}_ci95": found["ci95"]}
    return said


def _quietness(
    stored: Stored, estimate: Estimate, prediction: Prediction | None, known: Mapping[str, Measurement]
) -> dict[str, Any]:
    """The estimate on a quiet machine, and how quiet it was."""
    if prediction is None or estimate.estimate_ms is None:
        return {}
    quiet_ns = stored.uncertainty.undisturbed_ns(prediction.weights)
    shares = [(known[id_].quiet, known[id_].latency_ns * weight) for id_, weight in prediction.weights.items()]
    rated = [(quiet, weight) for quiet, weight in shares if quiet is not None and weight > 0]
    total = math.fsum(weight for _, weight in rated)
    said: dict[str, Any] = {}
    if total > 0:
        said["quiet"] = math.fsum(quiet * weight for quiet, weight in rated) / total
    if quiet_ns is not None and quiet_ns > 0:
        said["undisturbed_ms"] = quiet_ns / _NS_PER_MS
        said |= _how_much(estimate.estimate_ms * _NS_PER_MS / quiet_ns - 1)
    return said


def _disturbance(truth: Measurement, measured_ns: float) -> dict[str, Any]:
    if not truth.undisturbed_ns:
        return {}
    return {"measured_undisturbed_ms": truth.undisturbed_ns / _NS_PER_MS} | _how_much(
        measured_ns / truth.undisturbed_ns - 1
    )


def _how_much(disturbance: float) -> dict[str, Any]:
    return {"disturbance": disturbance, "disturbed": disturbance > _DISTURBED}


def _paired(both: Paired, estimate: Estimate, prediction: Prediction) -> dict[str, Any]:
    """Means of the visits that bricks and model had in turn."""
    ratio = both.estimate_ns / both.measured_ns
    estimate_ms = both.estimate_ns / _NS_PER_MS
    assert estimate.ci95_ms is not None  # noqa: S101  # it is given with the estimate
    half_ms = (estimate.ci95_ms[1] - estimate.ci95_ms[0]) / 2
    return {
        "estimate_ms": estimate_ms,
        "ci95_ms": (max(0.0, estimate_ms - half_ms), estimate_ms + half_ms),
        "ratio": ratio,
        "ratio_ci95": _around(ratio, with_method(both.half, prediction.method_sd)),
        "paired": True,
        "ratio_reason": None,
    }


def _run_sd(stored: Stored, ours: Iterable[Measurement], truth: Measurement) -> float:
    """What an estimate from bricks and a model differ by where they come from different runs, relative."""
    stacks = stored.uncertainty.stacks
    of_bricks = max((scatters(stacks, one).run_sd for one in ours if one.subject is Subject.BRICK), default=0.0)
    return math.hypot(of_bricks, scatters(stacks, truth).run_sd)


def _apart(truth: Measurement, estimate: Estimate, said: Mapping[str, Any], run_sd: float) -> dict[str, Any]:
    """Means of different sessions, with what these may differ by: the less quiet they were, the more."""
    assert estimate.estimate_ms is not None  # noqa: S101  # the caller saw to it
    ratio = estimate.estimate_ms / truth.latency_ms
    if estimate.ci95_ms is None:  # read between two sizes: nothing shows how good that is
        return {"ratio": ratio, "paired": False, "ratio_reason": None}
    ours = said.get("disturbance") or 0.0
    theirs = truth.latency_ns / truth.undisturbed_ns - 1 if truth.undisturbed_ns else 0.0
    runs = math.hypot(run_sd, max(0.0, ours) / 2, max(0.0, theirs) / 2)
    half = math.hypot(
        (estimate.ci95_ms[1] - estimate.ci95_ms[0]) / 2 / estimate.estimate_ms,
        truth.half_ns / truth.latency_ns,
        NORMAL * runs,
    )
    return {"ratio": ratio, "ratio_ci95": _around(ratio, half), "paired": False, "ratio_reason": None}


def _around(ratio: float, half: float) -> tuple[float, float]:
    """The interval of a ratio from half of that of its logarithm."""
    reach = min(half, 50.0)  # a single time block shows nothing: the interval then says so, and stays a number
    return ratio * math.exp(-reach), ratio * math.exp(reach)
