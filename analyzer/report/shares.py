"""Time by operator as shares of the whole model."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from ...constructor.result import Estimate
from ...db.values import KernelView

UNMEASURED, BEYOND = "not measured", "not in the bricks"
"""Names of the rows of the layers without a latency, and of a large difference between bricks and model; no operator
is called so."""

_NS_PER_MS = 1e6

_LONGER = 1.25
"""Profiled execution over a plain one, above which the profiler's own time decides the shares."""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """The time of one operator in a model, or of all that is in no measured layer.

    Attributes:
        name: The operator, ``not measured`` or ``not in the bricks``.
        count: Number of its layers; 0 for ``not in the bricks``.
        ms: Time of these layers; None if unknown.
        share: Share of the whole model, 0 to 1; None if the latency of the model is unknown.
    """

    name: str
    count: int
    ms: float | None
    share: float | None

    @property
    def measured(self) -> bool:
        """True for an operator."""
        return self.name not in {UNMEASURED, BEYOND}


def unmeasured_count(entry: Estimate) -> int:
    """Return the number of sequences without a latency, and of layers that cannot be bricks."""
    lacking = sum(part.latency_ms is None for part in entry.parts.sequences)
    return lacking + sum(missing.count for missing in entry.parts.missing if missing.key is None)


def whole_ms(entry: Estimate) -> float | None:
    """Return the time in ms that shares of layers refer to; None if it is unknown.

    It is the sum of all layers. If a layer is not measured, or if the sum is far below the measured latency, it is the
    measured latency. If the sum is far above it, no share of a layer is known.
    """
    known_ms = math.fsum(max(0.0, part.latency_ms or 0.0) for part in entry.parts.sequences)
    if overstated(entry):
        return None
    if not unmeasured_count(entry) and not entry.far:
        return known_ms
    return None if entry.truth.ms is None else max(known_ms, entry.truth.ms)


def overstated(entry: Estimate) -> bool:
    """Return True if the bricks of a model take far longer than the model, so that they tell no shares of it."""
    return entry.far and (entry.truth.ratio or 0.0) > 1


def profile_of(entry: Estimate) -> KernelView | None:
    """Return the profile of a model that differs from its estimate; None if there is none, or if it is of no use.

    A profiler adds its own time to each kernel: a profiled execution that is much longer tells nothing of shares.
    Neither does one of kernels that are all shorter than a step of its clock.
    """
    view, measured_ms = stored_profile(entry), entry.truth.ms
    if view is None or measured_ms is None or not entry.differs or view.wall_ns / _NS_PER_MS > _LONGER * measured_ms:
        return None
    times = [kernel.time_ns for kernel in view.kernels]
    return view if any(times) and None not in times else None


def stored_profile(entry: Estimate) -> KernelView | None:
    """Return the profile of a model, of use or not; None if there is none."""
    model, evidence = entry.model.decomposition, entry.evidence
    return None if model is None or evidence is None else evidence.views.get(model.own.key)


def operator_times(entry: Estimate) -> list[OperatorTime]:
    """Return the time by operator, the most first; the last row is the time in no measured layer, if any.

    Of a model that differs from its estimate it is the measured latency, by the shares of the model's own profile.
    """
    view = profile_of(entry)
    if view is not None and entry.truth.ms is not None:
        return _by_profile(view, entry.truth.ms)
    times: dict[str, list[float]] = {}
    for part in entry.parts.sequences:
        if part.latency_ms is not None:
            times.setdefault("+".join(part.op_types), []).append(part.latency_ms)
    sums = {name: math.fsum(values) for name, values in times.items()}
    whole, lacking = whole_ms(entry), unmeasured_count(entry)

    def row(name: str, count: int, ms: float | None) -> OperatorTime:
        return OperatorTime(name, count, ms, ms / whole if whole and ms is not None else None)

    rows = [row(name, len(times[name]), ms) for name, ms in sums.items()]
    rows.sort(key=lambda operator: -(operator.ms or 0.0))
    rest_ms = None if whole is None else max(0.0, whole - math.fsum(sums.values()))
    if lacking:
        rows.append(row(UNMEASURED, lacking, rest_ms))
    elif entry.far and rest_ms:
        rows.append(row(BEYOND, 0, rest_ms))
    return rows


def _by_profile(view: KernelView, whole: float) -> list[OperatorTime]:
    counts, sums = Counter[str](), Counter[str]()
    for kernel in view.kernels:
        name = kernel.operator or kernel.name
        counts[name] += kernel.calls
        sums[name] += kernel.time_ns or 0
    total = sums.total()
    return [OperatorTime(name, counts[name], whole * ns / total, ns / total) for name, ns in sums.most_common()]
