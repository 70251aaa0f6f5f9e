"""Construction of one model's estimate from its decomposition and its evidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..bricks.decomposition import Decomposition, Failed
from ..bricks.graph.control import ControlFlow
from ..bricks.graph.expansion import BARE, FRAMING
from ..bricks.layer import Cutting, LayerSequence
from ..db import Measurement, Subject
from ..db.values import NATIVE
from ..errors import InvalidSequence
from .bounds import benanza_bounds, bounds_of
from .choice import COLD, MODEL, Choice, Query, in_parallel
from .composition import Cover, CriticalPath, Quotient, Window, cheapest_cover, critical_path, sequential
from .correction import Asked, Corrected, benanza_note, correct, host_of, unexplained
from .coverage import cannot_be_bricks, coverage_of, missing_of, rows_of
from .curve import Interpolation
from .evidence import EstimateRequest, Evidence
from .interventions import quotient_of, state_of
from .measurements import BrickMeasurements
from .predictor import Predicted
from .remedies import Task
from .result import (
    Estimate,
    EstimatedModel,
    Framing,
    GroundTruth,
    Latency,
    Parts,
    RooflineBound,
    SequenceLatency,
    Sums,
    Term,
)
from .roofline import INTEGERS, roofline
from .uncertainty.calibration import NORMAL, Method, method_error, scatters
from .uncertainty.interval import with_method
from .uncertainty.pairing import FUSION, Paired, paired


def truth_of(
    model: Decomposition,
    parts: Sequence[LayerSequence],
    evidence: Evidence,
    corrected: Corrected | None,
    latency: Latency,
) -> tuple[GroundTruth, Paired | None]:
    """Return the measured latency of the whole model, compared with its estimate.

    Args:
        model: The decomposed model.
        parts: The sequences of the estimate.
        evidence: All measurements.
        corrected: The composed estimate; None if it is incomplete or empty.
        latency: The estimate with its interval.

    Returns:
        The ground truth, and the means over alternating visits of bricks and model, if any.
    """
    key = model.own.key
    measured = evidence.truths.get(key)
    if measured is None:
        failure = evidence.model_failures.get(key)
        if failure is not None:
            reason = f"the model itself could not be measured: {failure.kind}: {failure.reason}"
            return GroundTruth(reason=reason), None
        reason = "the model itself is not measured under these conditions"
        return GroundTruth(reason=reason, remedy=evidence.request.remedies.truth(model.source)), None
    both: Paired | None = None
    ratio: float | None = None
    ratio_ci95: tuple[float, float] | None = None
    if corrected is not None and latency.ms is not None and parts and measured.latency_ns > 0:
        weights = evidence.in_run(corrected.weights, measured.run)
        both = paired(weights, measured, evidence.members(weights), evidence.uncertainty)
        if both is not None:
            ratio = both.estimate_ns / both.measured_ns
            ratio_ci95 = _around(ratio, with_method(both.half, corrected.method))
        else:
            ratio = latency.ms / measured.latency_ms
            ratio_ci95 = _apart(ratio, measured, latency, evidence, corrected)
    incomplete = "not every brick is measured" if parts else "no layer of the model is executed"
    measured_ns = measured.latency_ns if both is None else both.measured_ns
    quiet_ns, half_ns = measured.undisturbed_ns or None, evidence.uncertainty.half_ns({measured.id: 1.0})
    truth = GroundTruth(
        ms=measured_ns / 1e6,
        ci95_ms=(max(0.0, measured_ns - half_ns) / 1e6, (measured_ns + half_ns) / 1e6),
        undisturbed_ms=None if quiet_ns is None else quiet_ns / 1e6,
        ratio=ratio,
        ratio_ci95=ratio_ci95,
        paired=None if ratio is None else both is not None,
        disturbance=None if quiet_ns is None else measured_ns / quiet_ns - 1,
        reason=incomplete if ratio is None else None,
        measurement=measured,
    )
    return truth, both


def quietness(evidence: Evidence, corrected: Corrected) -> tuple[float | None, float | None, float | None]:
    """Return the estimate for a quiet machine in ms, the share of quiet visits, and the slowdown of all visits."""
    quiet_ns = evidence.uncertainty.undisturbed_ns(corrected.weights)
    measurements = evidence.members(corrected.weights)
    shares = [
        (measurements[id_].quiet, measurements[id_].latency_ns * weight) for id_, weight in corrected.weights.items()
    ]
    rated = [(quiet, weight) for quiet, weight in shares if quiet is not None and weight > 0]
    total = math.fsum(weight for _, weight in rated)
    share = math.fsum(quiet * weight for quiet, weight in rated) / total if total > 0 else None
    if quiet_ns is None or quiet_ns <= 0:
        return None, share, None
    return quiet_ns / 1e6, share, corrected.ms * 1e6 / quiet_ns - 1


def _run_sd(evidence: Evidence, ours: Iterable[Measurement], truth: Measurement) -> float:
    """Return the relative scatter between bricks and a model from different runs."""
    stacks = evidence.uncertainty.stacks
    bricks = (measurement for measurement in ours if measurement.subject is Subject.BRICK)
    of_bricks = max((scatters(stacks, brick).run_sd for brick in bricks), default=0.0)
    return math.hypot(of_bricks, scatters(stacks, truth).run_sd)


def _apart(
    ratio: float, truth: Measurement, latency: Latency, evidence: Evidence, corrected: Corrected
) -> tuple[float, float] | None:
    """Return the interval of a ratio of different sessions; disturbance widens it."""
    if latency.ms is None or latency.ci95_ms is None:  # interpolated between two sizes: the error is unknown
        return None
    run_sd = _run_sd(evidence, evidence.members(corrected.weights).values(), truth)
    theirs = truth.latency_ns / truth.undisturbed_ns - 1 if truth.undisturbed_ns else 0.0
    runs = math.hypot(run_sd, max(0.0, latency.disturbance or 0.0) / 2, max(0.0, theirs) / 2)
    truth_half = evidence.uncertainty.half_ns({truth.id: 1.0}) / truth.latency_ns
    half = math.hypot(latency.ci95_ms[1] / latency.ms - 1, truth_half, NORMAL * runs)
    return _around(ratio, half)


def _around(ratio: float, half: float) -> tuple[float, float]:
    """Return the interval of a ratio from the half-width of its logarithm."""
    reach = min(half, 50.0)  # a single time block shows nothing: the interval then says so, and stays a number
    return ratio * math.exp(-reach), ratio * math.exp(reach)


# Latency of control flow beyond the bodies: the operators, and the slices and stacks around the bodies.


def framing_of(control: Iterable[ControlFlow], rows: Sequence[SequenceLatency]) -> tuple[Framing, ...]:
    """Return one entry per control-flow operator, in the order given.

    Args:
        control: The model's control flow. Operators with equal names have empty entries: their layers cannot be told
            apart.
        rows: The sequences of the estimate. Sequences with other layers are not counted.
    """
    flows = tuple(control)
    names = Counter(flow.name for flow in flows)
    return tuple(_framing(flow, rows) if names[flow.name] == 1 else Framing() for flow in flows)


def _framing(flow: ControlFlow, rows: Sequence[SequenceLatency]) -> Framing:
    bare = [row for row in rows if _sources(row) == {f"{flow.name}{BARE}"}]
    slices = [row for row in rows if _sources(row) and all(_frames(flow, name) for name in _sources(row))]
    return Framing(_total_ms(bare), _total_ms(slices) if flow.op_type != "If" else None)


def _sources(row: SequenceLatency) -> set[str]:
    """Return the source layers of a sequence, for every kind of graph."""
    return {*(row.names if row.form is None else row.form.source_layers)}


def _frames(flow: ControlFlow, name: str) -> bool:
    return name.startswith(f"{flow.name}/") and name.removeprefix(f"{flow.name}/").partition("/")[0] in FRAMING


def _total_ms(rows: Sequence[SequenceLatency]) -> float | None:
    """Return the sum; None without rows, or if one is not measured."""
    latencies_ms = [row.latency_ms for row in rows if row.latency_ms is not None and not row.predicted]
    return sequential(latencies_ms) if rows and len(latencies_ms) == len(rows) else None


def construct(model: Decomposition | Failed, evidence: Evidence) -> Estimate:
    """Estimate a model from its bricks. Fields that cannot be computed are None."""
    request = evidence.request
    cutting, remedies = request.cutting, request.remedies
    if isinstance(model, Failed):
        return failed(model, request)
    key, state = model.own.key, state_of(model, evidence.choice)
    bricks = evidence.bricks_in(key, state)
    parts = _cover(model, bricks) if cutting.overlap else model.sequences
    try:
        quotient = quotient_of(model.graph, parts)
    except InvalidSequence as error:
        return failed(Failed(model.source, str(error)), request)
    missing = tuple(missing_of(model, parts, bricks, remedies))
    path: CriticalPath | None = None
    corrected: Corrected | None = None
    guessed = evidence.predicted.get(key)
    if all(brick.key in bricks.latest for brick in missing):
        corrected = _corrected(model, parts, quotient, evidence)
        if guessed is None:  # predictions enter the latency only, no other sum
            path = critical_path(quotient, [bricks.latency_ns(part) for part in parts])
    unpredicted = corrected if guessed is None else None
    bounds = bounds_of(model, Cover(quotient, tuple(part.key for part in parts)), bricks, evidence.uncertainty, path)
    latency = _latency(corrected, evidence, key)
    truth, both = truth_of(model, parts, evidence, unpredicted, latency)
    latency = latency if both is None else _paired(latency, both)
    lower = benanza_bounds(model, bounds, truth, evidence)
    attribution = None if unpredicted is None else _attribution(unpredicted, truth)
    note = benanza_note(lower, truth, attribution, parallel=_at_once(evidence.choice))
    rows = rows_of(model, parts, bricks, evidence, path)
    sums = _sums(parts, bricks, path)
    read = evidence.interpolated.get(key)
    return Estimate(
        EstimatedModel(model.source, cutting, model),
        request.place if evidence.choice is None else place_of(evidence.choice),
        Parts(
            sequences=rows,
            path=tuple(rows[index] for index in path.members) if path is not None else (),
            missing=missing,
            unique=len({part.key for part in parts}),
            coverage=coverage_of(model.graph, parts, bricks),
            framing=framing_of(model.own.control, rows),
            interpolated=read if isinstance(read, Interpolation) and corrected is not None else None,
            interpolation_reason=read if isinstance(read, str) else None,
            predicted=guessed if isinstance(guessed, Predicted) and corrected is not None else None,
            prediction_reason=guessed if isinstance(guessed, str) else None,
        ),
        latency,
        sums,
        replace(lower, note=note),
        truth,
        attribution,
        _below(_roofline(model, parts, quotient, evidence, sums), truth, latency),
        evidence,
    )


def failed(model: Failed, request: EstimateRequest) -> Estimate:
    """Return the estimate of a model that cannot be decomposed: the reason and the request."""
    return Estimate(EstimatedModel(model.source, request.cutting, error=model.reason), request.place)


def place_of(choice: Choice) -> Query:
    """Return a combination as a place."""
    conditions, stack = choice.conditions, choice.stack
    return Query(
        choice.system_key, choice.stack_key, stack.backend, stack.device,
        conditions.threads, conditions.cache, conditions.dtype,
    )  # fmt: skip


def _corrected(
    model: Decomposition, parts: tuple[LayerSequence, ...], quotient: Quotient, evidence: Evidence
) -> Corrected:
    """Compose the estimate of a model with all bricks measured."""
    cutting, remedies = evidence.request.cutting, evidence.request.remedies
    key, state = model.own.key, state_of(model, evidence.choice)
    executed = evidence.executed[key]
    if model.graph is executed.graph:
        executed = replace(executed, parts=parts)

    def remedy(kind: str, cache: str) -> Task | None:
        if kind == "fusion":
            return remedies.measure(model.source, graph="fused", cache=cache, algorithms=FUSION)
        return remedies.measure(model.source, graph=kind, cache=cache)

    asked = Asked(
        model=key,
        graph=model.graph,
        kind=cutting.graph,
        parts=parts,
        quotient=quotient,
        state=state,
        level=state if state == COLD else executed.level or model.level,
        method=_method(model, cutting, evidence.choice, state),
        parallel=_at_once(evidence.choice),
    )
    return correct(asked, evidence, executed, remedy)


def _latency(corrected: Corrected | None, evidence: Evidence, key: str) -> Latency:
    """Return the best estimate with its interval."""
    if corrected is None:
        return Latency()
    read, guessed = evidence.interpolated.get(key), evidence.predicted.get(key)
    half_ms = _with_reading(corrected, read if isinstance(read, Interpolation) else None)
    low_ms = None if half_ms is None else max(0.0, corrected.ms - half_ms)
    high_ms = None if half_ms is None else corrected.ms + half_ms
    if isinstance(guessed, Predicted):
        reach = math.hypot(guessed.half, (half_ms or 0.0) / corrected.ms if corrected.ms > 0 else 0.0)
        low_ms, high_ms = corrected.ms * math.exp(-reach), corrected.ms * math.exp(reach)
    undisturbed_ms, quiet, disturbance = quietness(evidence, corrected)
    return Latency(
        ms=corrected.ms,
        ci95_ms=None if low_ms is None or high_ms is None else (low_ms, high_ms),
        method=corrected.method,
        scatter_calibrated=evidence.scatter_known,
        undisturbed_ms=undisturbed_ms,
        quiet=quiet,
        disturbance=disturbance,
    )


def _paired(latency: Latency, both: Paired) -> Latency:
    """Replace the centre by the mean over alternating visits of bricks and model; keep the interval's width."""
    assert latency.ci95_ms is not None  # noqa: S101  # interpolated bricks have no visits
    assert latency.ms is not None  # noqa: S101  # it is known with its interval
    ms, half_ms = _ms(both.estimate_ns), latency.ci95_ms[1] - latency.ms  # the lower end may be cut off at 0
    return replace(latency, ms=ms, ci95_ms=(max(0.0, ms - half_ms), ms + half_ms))


def _sums(parts: Sequence[LayerSequence], bricks: BrickMeasurements, path: CriticalPath | None) -> Sums:
    """Return raw sums over sequences; sums over all sequences need a critical path."""
    measured = [part for part in parts if bricks.measured(part.key, part.reuse)]
    known_ms = _ms(sequential(map(bricks.latency_ns, measured)))
    if path is None:
        return Sums(known_ms=known_ms)
    host = host_of(tuple(parts), bricks)
    return Sums(
        sequential_ms=_ms(sequential(map(bricks.latency_ns, parts))),
        critical_path_ms=_ms(path.latency),
        host_ms=None if host is None else _ms(sequential(measurement.latency_ns for measurement in host)),
        known_ms=known_ms,
    )


def _cover(model: Decomposition, bricks: BrickMeasurements) -> tuple[LayerSequence, ...]:
    """Return the cheapest cover by overlapping sequences, in the order of the model."""
    position = {layer: index for index, unit in enumerate(model.units) for layer in unit}
    windows = [
        Window(
            begin=min(position[layer] for layer in part.own),
            end=max(position[layer] for layer in part.own) + 1,
            latency=bricks.latency_ns(part) if bricks.of(part) else None,
        )
        for part in model.sequences
    ]
    return tuple(model.sequences[index] for index in cheapest_cover(windows, len(model.units)))


def _attribution(corrected: Corrected, truth: GroundTruth) -> Mapping[str, Term]:
    """Return the causes of the difference to the measured latency."""
    measured = None if truth.ms is None or truth.ci95_ms is None else (truth.ms, truth.ci95_ms[1] - truth.ms)
    return {**corrected.terms, "unexplained": unexplained(corrected, measured, truth.reason)}


def _with_reading(corrected: Corrected, interpolation: Interpolation | None) -> float | None:
    """Return the half-width with the error of interpolation; None if this error is unknown."""
    if interpolation is None:
        return corrected.half_ms
    return (
        None
        if interpolation.error is None
        else math.hypot(corrected.half_ms, interpolation.error * interpolation.share * corrected.ms)
    )


def _method(model: Decomposition, cutting: Cutting, choice: Choice | None, state: str) -> Method | None:
    """Return the way in which the sum is composed."""
    if choice is None:
        return None
    return Method(
        backend=choice.stack.backend,
        device=choice.stack.device,
        graph=cutting.graph,
        granularity=0 if cutting.overlap or cutting.connected else cutting.granularity,
        cache=MODEL if state == model.level else state,
        threads=choice.conditions.threads,
        batch=model.source.batch or 1,
        dtype=choice.conditions.dtype,
    )


def method_sd(model: Decomposition, evidence: Evidence) -> float:
    """Return the relative error of composing a model from all bricks that were asked for; 0 if nothing is stored."""
    cutting, choice = evidence.request.cutting, evidence.choice
    method = _method(model, cutting, choice, state_of(model, choice))
    return (
        0.0 if method is None or choice is None else method_error(method, choice.system.cpu, evidence.calibrations).sd
    )


def _roofline(
    model: Decomposition, parts: Sequence[LayerSequence], quotient: Quotient, evidence: Evidence, sums: Sums
) -> RooflineBound:
    """Return the model's least latency under the ceilings, and its headroom."""
    choice, state = evidence.choice, state_of(model, evidence.choice)
    if choice is None:
        return RooflineBound(reason="nothing is stored, and so nothing of the machine is known")
    bricks = evidence.bricks_in(model.own.key, state)
    if model.own.key in evidence.predicted:
        bricks = replace(
            bricks, latest={key: measurement for key, measurement in bricks.latest.items() if key not in bricks.read}
        )
    roof = roofline(model.graph, parts, bricks, evidence.ceilings, state=state, system=choice.system)
    bounds, ceilings = roof.bounds_ms(parts), evidence.ceilings
    if bounds is None and any(row.note == INTEGERS for row in roof.layers):
        return RooflineBound(reason=INTEGERS, bricks=roof)
    if bounds is None:
        single = ceilings.known  # then the missing ceiling is the one of float32
        missing = "the bandwidth" if ceilings.compute is not None and not single else "the rate of arithmetic"
        dtype = NATIVE if single else ceilings.dtype
        reason = f"{missing} of this system is not measured with these threads in {dtype}"
        return RooflineBound(reason=reason, remedy=evidence.request.remedies.ceilings(), bricks=roof)
    if cannot_be_bricks(model.graph):
        return RooflineBound(reason="a layer cannot be a brick, and its work is not known", bricks=roof)
    whole = sequential(bounds)
    return RooflineBound(
        ms=whole,
        critical_path_ms=critical_path(quotient, bounds).latency,
        headroom=sums.sequential_ms / whole if sums.sequential_ms is not None and whole else None,
        bricks=roof,
    )


def _below(bound: RooflineBound, truth: GroundTruth, latency: Latency) -> RooflineBound:
    """Return a roofline without its total if that is above the measured latency or the estimate: it bounds neither."""
    known = [ms for ms in (truth.ms, latency.ms) if ms is not None]
    if bound.ms is None or not known or bound.ms <= min(known):
        return bound
    reason = (
        "the sum of the bounds is above the latency: its kernels do less work, or move fewer bytes, than is counted"
    )
    return RooflineBound(reason=reason, bricks=bound.bricks)


def _at_once(choice: Choice | None) -> bool:
    """Return True if independent branches run in parallel."""
    return choice is not None and in_parallel(choice.stack)


def _ms(nanoseconds: float) -> float:
    return nanoseconds / 1e6
