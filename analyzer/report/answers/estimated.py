"""The answer of ``estimate``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....constructor.coverage import skipped_layers
from ....constructor.sweep import BATCH, swept
from ....tabular import Field, Row, columns_of
from ...estimation.estimates import FIELDS
from ...shell import proof_command, with_command
from ..causes import advised_for, written
from ..roofs import roofline_lines
from ..shares import operator_times, overstated, profile_of
from ..tables import (
    MOST,
    Answer,
    Line,
    at_most,
    control_lines,
    dimension_lines,
    form_cells,
    form_columns,
    invented_lines,
    table_lines,
    unlisted,
    values_of,
)
from ..units import BUSY, counted, how_of, listed, milliseconds, percent, ratio_within, said_of_batch, short

if TYPE_CHECKING:
    from ....constructor.curve import Interpolation
    from ....constructor.predictor import Predicted
    from ....constructor.result import Estimate, Missing, SequenceLatency
    from ...estimation.estimates import Estimates


# How estimates stand beside ground truth: the ratio as a table shows it, and what to say of a disturbed machine.


_NAMED = 4
"""Models that a line names, before it counts them."""

_MATTERS = 0.02
"""Share of a sum from which it is told that it depends on values."""


def table_row(entry: Estimate, row: Row) -> Row:
    """Return the row of an estimate for a table."""
    within = None if entry.truth.ratio is None else ratio_within(entry.truth.ratio, entry.truth.ratio_ci95)
    return {**row, "ratio_within": within, "lower_bound_sequential_ms": entry.lower_bound_ms}


def above_estimate(entry: Estimate) -> bool:
    """Return true if the sum of the fastest bricks is above the estimate by more than the interval: no lower bound."""
    bound, interval = entry.bounds.sequential, entry.latency.ci95_ms
    if bound.ms is None or entry.lower_bound_ms is not None:
        return False
    return interval is None or (bound.ms if bound.ci95_ms is None else bound.ci95_ms[0]) > interval[1]


def disturbance_of(entry: Estimate) -> str:
    """By how much a disturbed machine slowed a model: ``+42%``."""
    return f"+{percent(entry.disturbance or 0.0)}"


def caveats(estimates: Sequence[Estimate]) -> list[str]:
    """Return at most one line each about disturbed, unpaired and uncalibrated estimates."""
    lines = []
    disturbed = sorted((entry for entry in estimates if entry.disturbed), key=lambda entry: -(entry.disturbance or 0.0))
    if disturbed:
        names = _listed([f"{entry.name} {disturbance_of(entry)}" for entry in disturbed])
        counts = f"{len(disturbed)} of {counted(len(estimates), 'model')}" if len(estimates) > 1 else "the model"
        ratios_hold = "ratios of alternating visits hold; " if any(entry.truth.paired for entry in disturbed) else ""
        lines.append(
            f"disturbed: the machine slowed {counts} ({names}); {ratios_hold}"
            "to compare runs or machines, use undisturbed_ms of estimates and measured_undisturbed_ms of models"
        )
    busy = [entry.name for entry in estimates if entry.truth.measurement is not None and entry.truth.measurement.busy]
    lines += [f"measured_ms ({_listed(busy)}): {BUSY}"] if busy else []
    shaky = [entry for entry in estimates if entry.doubtful and not entry.disturbed]
    if shaky:
        shares = [f"{entry.name} {percent(entry.unstable_share or 0.0)}" for entry in shaky]
        lines.append(
            f"unstable: most of the time comes from latencies that are known to no better than 10% "
            f"({_listed(shares)}); measure them again: dlbricks run SUITE --again noisy"
        )
    valued = [entry for entry in estimates if entry.valued_share > _MATTERS]
    if valued:
        shares = [f"{entry.name} {percent(entry.valued_share)}" for entry in valued]
        lines.append(
            f"values: bricks run on generated values, and the time of some depends on them ({_listed(shares)}); "
            "intervals take such a time as known to a factor of two"
        )
    lines += [_far(entry) for entry in estimates if entry.far]
    apart = [entry.name for entry in estimates if entry.truth.paired is False]
    if apart:
        lines.append(
            f"not paired: bricks and model come from different sessions ({_listed(apart)}); the ratio's "
            "interval includes their scatter; to alternate them: dlbricks run SUITE --with MODEL --again all"
        )
    loose = [entry.name for entry in estimates if entry.latency.calibrated is False]
    if loose:
        widest = max(method.sd for entry in estimates if (method := entry.latency.method) and not method.known)
        lines.append(
            f"not calibrated for this CPU, number of threads and graph ({_listed(loose)}): intervals contain the "
            f"widest known error of similar estimates, {percent(widest)} (sd); to calibrate, measure ten models with "
            "their bricks (dlbricks run SUITE --with MODEL...), then dlbricks system --calibrate MODEL..."
        )
    guessed = [entry.name for entry in estimates if entry.latency.scatter_calibrated is False]
    if guessed:
        lines.append(
            f"scatter not calibrated: the scatter between processes and runs of such a backend is unknown "
            f"({_listed(guessed)}); intervals use other backends"
        )
    return lines


def _far(entry: Estimate) -> str:
    """Say that bricks do not explain the latency of a model, and what to try."""
    figures = f"{entry.name}: measured {milliseconds(entry.truth.ms or 0.0)} ms, estimate"
    figures += f" {milliseconds(entry.latency.ms or 0.0)} ms: the bricks do not explain this model"
    if overstated(entry):
        return f"{figures}; do not rely on its shares by layer"
    denormals = (entry.attribution or {}).get("denormals")
    if denormals is not None and denormals.counted and denormals.ms is not None:
        return f"{figures}; a trial shows that {milliseconds(denormals.ms)} ms of it are due to denormal numbers"
    return (
        f"{figures}. They run on generated weights and inputs; its own may be slow, for example by denormal numbers. "
        f"To try that: {proof_command(entry)}"
    )


def _listed(names: Sequence[str]) -> str:
    return listed(names, _NAMED)


_SAME_SHAPES = 0.5
"""Share of sequences that are measured: below it, the suite may have been generated in other shapes."""

_REASONS = 5
"""Different reasons why bricks are missing that the table lists per model."""

_OPERATORS = 12
"""Operators that ``--explain`` lists per model, the most expensive first."""


def estimates_answer(
    estimates: Estimates, *, explain: bool = False, layers: bool = False, most: int | None = MOST
) -> Answer:
    """Return the answer of ``estimate``: one row per model.

    Args:
        estimates: The estimates.
        explain: As for ``Estimates.records``; the summary explains each model.
        layers: As for ``Estimates.records``; the summary lists the bricks of each model.
        most: Number of listed layers; None: all.
    """
    records = estimates.records(explain=explain, layers=layers)
    summary: list[Line] = [*(line for entry in estimates for line in _remarks(entry)), *caveats(estimates.rows)]
    summary += dimension_lines((entry.name, entry.model.bound) for entry in estimates)
    summary += invented_lines((entry.name, entry.model.invented) for entry in estimates)
    summary += sweep_lines(estimates.rows)
    summary += control_lines(
        ((entry.name, entry.model.control) for entry in estimates), [entry.parts.framing for entry in estimates]
    )
    if explain:
        for entry in estimates:
            if entry.parts.sequences:
                summary += [*([""] if summary else []), *_explained(entry, most)]
    if layers:
        for entry in estimates:
            summary += [*([""] if summary else []), *roofline_lines(entry, most=most)]
    return Answer.of(
        records,
        columns=columns_of(
            FIELDS,
            "name", "layers", "sequences", "unique", "estimate_ms", "sequential_ms", "critical_path_ms",
            "lower_bound_sequential_ms", "undisturbed_ms", "measured_ms", "ratio", "coverage",
        ),
        summary=summary,
        table=[table_row(entry, row) for entry, row in zip(estimates, records.results, strict=True)],
    )  # fmt: skip


def _remarks(entry: Estimate) -> list[str]:
    if entry.error is not None:
        return [f"{entry.name}: {entry.error}"]
    lines = []
    model, parts, known_ms = entry.model, entry.parts, entry.sums.known_ms
    if parts.interpolated is not None:
        lines.append(_read_between(entry, parts.interpolated))
    elif parts.predicted is not None:
        lines += predicted_lines(entry, parts.predicted)
    elif parts.missing:
        lines += _not_filled(entry)
        count = sum(missing.count for missing in parts.missing)
        some_measured = any(part.latency_ms is not None for part in parts.sequences)
        rest = f"; the rest takes {milliseconds(known_ms)} ms" if some_measured and known_ms is not None else ""
        lines.append(f"{entry.name}: {counted(count, 'sequence')} not measured{rest}")
        causes, followers = _first_causes(entry)
        reasons = dict.fromkeys((missing.reason, missing.remedy) for missing in causes)
        for reason, remedy in list(reasons)[:_REASONS]:
            lines.append(f"  {reason}" + (f": {advised_for(entry, remedy)}" if remedy else ""))
        if len(reasons) > _REASONS:
            lines.append(f"  and {len(reasons) - _REASONS} more reasons (--json lists all)")
        if followers:
            lines.append(f"  and {counted(followers, 'layer')} that cannot be bricks because of these")
        measurable = any(missing.remedy for missing in causes)
        if measurable and (model.dims or model.source.batch) and parts.interpolation_reason is None:
            lines.append("  or read it between sizes that are measured: --interpolate")
        some_shapes = parts.coverage is not None and parts.coverage.sequences < _SAME_SHAPES
        if measurable and model.bound and some_shapes:
            lines.append(
                f"  or the suite has other dimensions than {values_of(model.bound)}: give its --batch and --dim"
            )
    elif entry.truth.ms is not None and entry.truth.ratio is None:
        lines.append(f"{entry.name}: no ratio, since {with_command(entry.truth.reason, entry)}")
    if entry.bounds.note is not None:
        lines.append(f"{entry.name}: {entry.bounds.note}")
    elif above_estimate(entry):
        fastest = f"the sum of its fastest known bricks is {milliseconds(entry.bounds.sequential.ms or 0.0)} ms"
        lines.append(f"{entry.name}: {fastest}, above the estimate (fusion saves more)")
    return lines


def _first_causes(entry: Estimate) -> tuple[list[Missing], int]:
    """Return the missing parts without layers that only follow others, and the number of these layers.

    A layer that cannot be a brick leaves its outputs without a static type, and so do all layers that read them.
    """
    missing = list(entry.parts.missing)
    skipped = [] if entry.model.decomposition is None else skipped_layers(entry.model.decomposition.graph)
    unknown = {value for layer in skipped for value in layer.outputs}
    followers = {layer.name for layer in skipped if not unknown.isdisjoint(layer.node.input)}
    causes = [part for part in missing if part.key is not None or part.layers[0] not in followers]
    return causes, len(missing) - len(causes)


def _not_filled(entry: Estimate) -> list[str]:
    """Return the reasons for missing bricks without a prediction or interpolation, if one was requested."""
    between, guessed = entry.parts.interpolation_reason, entry.parts.prediction_reason
    lines = [] if guessed is None else [f"{entry.name}: not known, since {guessed}"]
    if between is not None:
        lines.append(f"{entry.name}: not interpolated, since {between}; nothing is extrapolated")
    return lines


def predicted_lines(entry: Estimate, prediction: Predicted) -> list[str]:
    """Return lines about the predicted part of an estimate: share, unknown operators, the most useful measurement."""
    text = f"{entry.name}: {percent(prediction.share)} of it is predicted, {counted(prediction.bricks, 'brick')}"
    learned = "" if prediction.familiar else ", learned from other systems or threads"
    lines = [f"{text}{learned}; \u00b1 {math.expm1(prediction.half):.1%} by that"]
    lines += [f"  no {operator} was measured: {percent(share)} of the model" for operator, share in prediction.unseen]
    if prediction.narrowing:
        most = prediction.narrowing[0]
        lines.append(f"  measuring {most.operator} ({most.key[:8]}, {percent(most.share)}) would narrow it most")
    return lines


def _read_between(entry: Estimate, interpolation: Interpolation) -> str:
    """How an interpolated estimate came about, and how far it can be trusted."""
    low, high = interpolation.between
    text = (
        f"{entry.name}: {percent(interpolation.share)} of it is interpolated between "
        f"{interpolation.dimension}={low} and {high}, "
        f"{interpolation.bricks} of {counted(entry.parts.unique or 0, 'brick')}"
    )
    if interpolation.error is None:
        return f"{text}; nothing says how good that is, which takes at least three sizes"
    if not interpolation.left_out:
        return text
    worst = max(abs(size.error) for size in interpolation.left_out)
    return (
        f"{text}, on curves through {counted(len(interpolation.measured), 'size')}; their sum at a size "
        f"that is left out is read from the others within {worst:.1%}, hence ± {interpolation.error:.1%} of that part"
    )


def _explained(entry: Estimate, most: int | None) -> list[Line]:
    """Return causes, time by operator, and critical path of an estimate as lines."""
    times = operator_times(entry)
    listed_times = [*times[:_OPERATORS], *(time for time in times[_OPERATORS:] if not time.measured)]
    lines: list[Line] = [*written(entry), *_rivals(entry)]
    if times:
        source = "" if profile_of(entry) is None else ", by the model's own profile, since bricks do not explain it"
        lines.append(f"{entry.name}: time by operator{source}")
        lines += [
            f"  {'-' if time.ms is None else milliseconds(time.ms):>12} ms  "
            f"{'-' if time.share is None else percent(time.share):>4}  {time.name}"
            for time in listed_times
        ]
    if entry.parts.missing:
        lines += [f"{entry.name}: time not known", *_unknown(entry)]
    path = entry.parts.path
    if path:
        lines.append(
            f"{entry.name}: critical path, {len(path)} of {counted(len(entry.parts.sequences), 'sequence')}, "
            "most time first"
        )
        costly = sorted(path, key=lambda part: -(part.latency_ms or 0.0))
        lines += [*_path(costly[:most]), *unlisted(costly, most)]
    return lines


def _rivals(entry: Estimate) -> list[str]:
    """Return the faster stacks and algorithms, with their savings."""
    won: dict[tuple[str, str], list[float]] = {}
    for part in entry.parts.sequences:
        if part.lower_bound_ms is None or part.fastest_stack is None:
            continue
        rival = part.fastest_stack, part.fastest_variant or ""
        if rival != (entry.place.stack, ""):
            gain = (part.latency_ms - part.lower_bound_ms) if part.latency_ms is not None else 0.0
            won.setdefault(rival, []).append(gain)
    if not won:
        return []
    lines = [f"{entry.name}: faster than this stack, of the fastest known bricks"]
    for (stack, variant), gains in sorted(won.items(), key=lambda item: -sum(item[1])):
        where = "this stack" if stack == entry.place.stack else f"stack {short(stack)}"
        how = f", algorithm {variant}" if variant else ""
        lines.append(f"  {milliseconds(sum(gains)):>12} ms less in {counted(len(gains), 'sequence')}: {where}{how}")
    return lines


def _unknown(entry: Estimate) -> list[str]:
    """Return the missing bricks of an estimate by operator and reason."""
    counts: dict[tuple[str, str], int] = {}
    causes, followers = _first_causes(entry)
    for missing in causes:
        name = "+".join(missing.op_types), missing.reason
        counts[name] = counts.get(name, 0) + missing.count
    lines = [f"  {count:>4} x {name}: {reason}" for (name, reason), count in counts.items()]
    rest = [f"  and {counted(followers, 'layer')} that cannot be bricks because of these"] if followers else []
    return [*at_most(lines, _OPERATORS), *rest]


def _path(parts: Sequence[SequenceLatency]) -> list[Line]:
    """Sequences, one per row."""
    rows = [
        {"latency_ms": part.latency_ms, "ci95_ms": part.ci95_ms, **form_cells(part.op_types, part.names, part.form)}
        for part in parts
    ]
    columns = [Field("latency_ms", "ms ±95%", "ms", interval="ci95_ms"), *form_columns(rows)]
    return table_lines(rows, columns)


# One model at several sizes.


def sweep_lines(estimates: Sequence[Estimate]) -> list[Line]:
    """Return a table of latency, throughput and lower bound for each sweep, and the best batch."""
    lines: list[Line] = []
    for row in (model_sweep.record() for model_sweep in swept(estimates)):
        unit = "inputs/s" if row["dimension"] == BATCH else "executions/s"
        columns = [
            Field("size", str(row["dimension"])),
            Field("latency_ms", "ms ±95%", "ms", interval="ci95_ms"),
            Field("per_s", unit, lambda value: f"{value:.4g}"),
            Field("lower_bound_ms", "fastest bricks ms", "ms"),
        ]
        if any(point["interpolated"] for point in row["points"]):
            columns.append(Field("how", ""))
        points = [{**point, "how": how_of(point)} for point in row["points"]]
        lines += ["", f"{row['name']} against {row['dimension']}", *table_lines(points, columns)]
        lines += [said] if (said := said_of_batch(row)) else []
    return lines
