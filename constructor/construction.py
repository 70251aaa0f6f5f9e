"""The estimate of one model: its decomposition and what is stored of it, put together."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..bricks.layer import LayerState
from ..bricks.sequence import LayerSequence
from ..bricks.suite.signature import Signature
from ..errors import InvalidSequence
from .bounds import Bound, Bounds, bounds_of
from .choice import COLD, Choice, in_parallel
from .composition.composition import CriticalPath, critical_path, sequential
from .composition.cover import Window, cheapest_cover
from .coverage import coverage_of, missing_of, row_of
from .decomposition import Decomposition, Failed, Interventions, quotient_of, state_of
from .framing import framing_of
from .headroom import beside_roofline
from .prediction.excess import benanza_note
from .prediction.prediction import Asked, Prediction, predict, unexplained
from .prediction.terms import host_of
from .remedies import Remedies
from .result import Estimate, Interpolation
from .reuse import repeated_windows, with_repeated
from .stored import BrickMeasurements, Stored
from .truth import beside_truth
from .uncertainty.calibration import Method
from .uncertainty.pairing import FUSION

__all__ = ["construct", "without"]


def construct(
    model: Decomposition,
    stored: Stored,
    executed: Interventions,
    remedies: Remedies,
    blank: Estimate,
) -> Estimate:
    """Construct a model's estimate; what it cannot say stays None.

    Args:
        model: As decomposed.
        stored: What is known of its bricks, and of itself.
        executed: What the runtime executes for it.
        remedies: What would measure what is missing.
        blank: How the model was decomposed.
    """
    graph, state = model.graph, state_of(model, stored.choice)
    stored = stored.at_boundary(executed.graph, executed.parts, executed.level)
    stored = stored.at_boundary(graph, model.sequences, state)
    stored = with_repeated(stored, executed.parts, executed.level)
    stored = with_repeated(stored, model.sequences, state, repeated_windows(model))
    bricks = stored.bricks_in(state)
    parts = _cover(model, bricks) if blank.overlap else model.sequences
    try:
        quotient = quotient_of(graph, parts)
    except InvalidSequence as error:
        return without(Failed(model.source, str(error)), blank)
    measured = [part for part in parts if bricks.measured(part.key, part.reuse)]
    missing = tuple(missing_of(model, parts, bricks, remedies))
    estimate = replace(
        blank,
        **_identity(model, stored.choice),
        unique=len({part.key for part in parts}),
        coverage=coverage_of(graph, parts, measured),
        known_ms=_ms(sequential(map(bricks.latency_ns, measured))),
        missing=missing,
    )
    path: CriticalPath | None = None
    prediction: Prediction | None = None
    if all(one.key in bricks.latest for one in missing):
        path = critical_path(quotient, [bricks.latency_ns(part) for part in parts])
        if graph is executed.graph:
            executed = replace(executed, parts=parts)
        parallel = _at_once(stored.choice)
        own = state if state == COLD else executed.level or model.level
        prediction = predict(
            Asked(
                model.own.key,
                graph,
                blank.graph,
                parts,
                quotient,
                state,
                own,
                method=_method(model, blank, stored.choice, state),
                parallel=parallel,
            ),
            stored,
            executed,
            lambda kind, cache: (
                remedies.examine(model.source)
                if kind == "data"
                else remedies.measure(model.source, graph="fused", cache=cache, algorithms=FUSION)
                if kind == "fusion"
                else remedies.measure(model.source, graph=kind, cache=cache)
            ),
        )
        host = host_of(parts, bricks)
        half_ms = _with_reading(prediction, stored.interpolated)
        estimate = replace(
            estimate,
            interpolated=stored.interpolated,
            estimate_ms=prediction.ms,
            ci95_ms=None if half_ms is None else (max(0.0, prediction.ms - half_ms), prediction.ms + half_ms),
            calibrated=prediction.method_sd is not None,
            scatter_calibrated=stored.scatter_known,
            sequential_ms=_ms(sequential(map(bricks.latency_ns, parts))),
            critical_path_ms=_ms(path.latency),
            host_ms=None if host is None else _ms(sequential(one.latency_ns for one in host)),
        )
    bounds = bounds_of(model, parts, quotient, bricks, stored.uncertainty, path)
    estimate = replace(estimate, **_bounded(bounds))
    known = {} if prediction is None else stored.members(prediction.weights)
    estimate = replace(
        estimate,
        **beside_truth(
            model.own.key,
            stored,
            estimate,
            prediction=prediction,
            known=known,
            bounds=bounds,
            state=state,
            own_states={model.level, executed.level},
            remedy=remedies.truth(model.source),
        ),
    )
    if prediction is not None:
        estimate = replace(estimate, **_attributed(prediction, estimate))
    estimate = replace(estimate, benanza_note=benanza_note(estimate, parallel=_at_once(stored.choice)))
    members = path.members if path is not None else ()
    on_path = frozenset(members)
    signatures: dict[str, Signature] = {}
    rows = tuple(
        row_of(index, part, model, bricks, kernels=stored.kernels, known=signatures, on_path=index in on_path)
        for index, part in enumerate(parts)
    )
    estimate = replace(estimate, framing=framing_of(model.own.control, rows))
    estimate = replace(estimate, sequences=rows, path=tuple(rows[index] for index in members))
    return beside_roofline(estimate, model, parts, quotient, stored, remedies)


def _cover(model: Decomposition, bricks: BrickMeasurements) -> tuple[LayerSequence, ...]:
    """Of overlapping sequences, those to compose the model from, in its order."""
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


def _identity(model: Decomposition, choice: Choice | None) -> dict[str, Any]:
    graph = model.graph
    of_model = {
        "name": model.source.name,
        "batch": model.source.batch,
        "dims": dict(model.source.dims),
        "bound": dict(graph.bound),
        "level": model.level,
        "control": model.own.control,
        "layers": len(graph.layers),
        "folded": sum(layer.state is LayerState.FOLDED for layer in graph.layers),
    }
    if choice is None:
        return of_model
    return of_model | {
        "system": choice.system_key,
        "stack": choice.stack_key,
        "backend": choice.stack.backend,
        "device": choice.stack.device,
        "threads": choice.conditions.threads,
        "cache": choice.conditions.cache,
        "dtype": choice.conditions.dtype,
    }


def _bounded(bounds: Bounds | None) -> dict[str, Any]:
    if bounds is None:
        return {}
    said: dict[str, Any] = {}
    for name in ("sequential", "critical_path"):
        bound: Bound = getattr(bounds, name)
        low, high = bound.ci95_ns
        said[f"lower_bound_{name}_ms"] = _ms(bound.latency_ns)
        said[f"lower_bound_{name}_ci95_ms"] = (_ms(low), _ms(high))
    return said


def _attributed(prediction: Prediction, estimate: Estimate) -> dict[str, Any]:
    """The distance to the measured latency by its causes."""
    measured = None
    if estimate.measured_ms is not None and estimate.measured_ci95_ms is not None:
        low, high = estimate.measured_ci95_ms
        measured = (estimate.measured_ms, (high - low) / 2)
    terms = {**prediction.terms, "unexplained": unexplained(prediction, measured, estimate.ratio_reason)}
    sizes = [abs(term.ms) for name, term in terms.items() if term.ms is not None and term.counted and name != "bricks"]
    return {"attribution": terms, "attribution_absolute_ms": sequential(sizes)}


def _with_reading(prediction: Prediction, found: Interpolation | None) -> float | None:
    """Half of the interval with the error of what was read between other sizes; None where nothing shows that."""
    if found is None:
        return prediction.half_ms
    return None if found.error is None else math.hypot(prediction.half_ms, found.error * found.share * prediction.ms)


def _method(model: Decomposition, blank: Estimate, choice: Choice | None, state: str) -> Method | None:
    """How the sum of the bricks is composed."""
    if choice is None:
        return None
    return Method(
        backend=choice.stack.backend,
        device=choice.stack.device,
        graph=blank.graph,
        granularity=2 if blank.overlap or blank.connected else blank.granularity,
        cache=state,
        threads=choice.conditions.threads,
        batch=model.source.batch or 1,
        dtype=choice.conditions.dtype,
    )


def _at_once(choice: Choice | None) -> bool:
    """Whether independent branches run at once."""
    return choice is not None and in_parallel(choice.stack)


def _ms(nanoseconds: float) -> float:
    return nanoseconds / 1e6


def without(model: Failed, blank: Estimate) -> Estimate:
    """What to say of a model that cannot be estimated at all.

    Args:
        model: The model, and why.
        blank: How it was to be decomposed.
    """
    source = model.source
    return replace(blank, name=source.name, batch=source.batch, dims=dict(source.dims), error=model.reason)
