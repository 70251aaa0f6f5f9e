"""Answers of ``compare``, ``advise`` and ``history``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ....models.source import file_bytes
from ....tabular import Field, columns_of, fields, record_of
from ...comparison.changed_layers import FIELDS as LAYER_FIELDS
from ...comparison.gate import FIELDS
from ...history.changes import FEWEST, MEAN, UNDISTURBED
from ...limits import Figure
from ...shell import shell_command
from ..tables import FORM, MOST, Answer, Line, at_most, form_cells, indented, table_lines, unlisted
from ..units import counted, listed, milliseconds, ratio_within
from .side_table import models_by_sides

if TYPE_CHECKING:
    from ....generator.measurement.alone import Alone
    from ....generator.measurement.trial import SharedValue
    from ....models import ModelSource
    from ....tabular import Row
    from ...advice import Advice, ModelAdvice
    from ...comparison.changed_layers import LayerChanges
    from ...comparison.compare import Comparison, ModelComparison
    from ...comparison.difference import Levels
    from ...comparison.gate import Gate
    from ...comparison.results import ModelBrick
    from ...history.history import BrickChange, Change, History, ModelHistory


_APART = (
    "measured in different runs, between which the machine may have changed, which widens intervals; "
    "measure the base once more after the other side"
)

_UNDISTURBED = "different runs: latencies and ratios on a quiet machine (--json has the means)"


_FAR_APART = 0.1
"""Difference of outputs that neither rounding nor usual quantisation explains."""

_REASONS = 5
"""Different reasons why bricks are missing that are listed per pair."""


def comparison_answer(comparison: Comparison, *, layers: bool = False, most: int | None = MOST) -> Answer:
    """Return the answer of ``compare``: one row per model and other side.

    Args:
        comparison: The comparison.
        layers: List bricks below the table; JSON always has them.
        most: Number of listed bricks; None: all.
    """
    base = comparison.base
    summary: list[Line] = []
    if len(comparison.sides) > 1:
        effect = f"SAME is within {comparison.minimum_effect:.3g} of it, either way"
        summary.append(f"base: {base or 'the fastest side of each model'}; {effect}")
    for row in comparison.rows:
        summary += _remarks(row)
    if any(row.pair.base.undisturbed is not None for row in comparison.rows):
        summary.append(_UNDISTURBED)
    if any(row.pair.apart for row in comparison.rows):
        summary.append(_APART)
    summary += models_by_sides(comparison)
    if layers:
        for row in comparison.rows:
            if row.layers:
                summary += ["", *_by_layer(row, most)]
    other_bases = {row.pair.basis for row in comparison.rows} - {"measured", None}
    return Answer.of(
        comparison.records(),
        columns=[
            Field("name", "model"),
            *([] if base else [Field("base")]),
            Field("other", "other side"),
            *([Field("basis", "of")] if other_bases else []),
            Field("base_ms", "base ms ±95%", "ms", interval="base_ci95_ms"),
            Field("other_ms", "other ms ±95%", "ms", interval="other_ci95_ms"),
            Field("ratio", "ratio ±95%", "ratio", interval="ratio_ci95"),
            Field("verdict"),
            Field("gain_ms", "bricks gain ms", "ms"),
        ],
        summary=summary,
    )


def _outputs_apart(comparison: Gate) -> str:
    """Return how far the outputs of two files differ."""
    error, interface = comparison.largest_error, comparison.interface
    if error is None:
        if interface.unfed:
            lacks = f"{comparison.old} has no input like {listed(interface.unfed, _VALUES)} of {comparison.new}"
            return f"outputs are not compared: {lacks}"
        return "outputs are not compared: none is in both files, in one shape"
    outputs = "the outputs that both have" if interface.outputs else "their outputs"
    told = f"{outputs} differ by at most {error:.1e} of the largest value"
    return f"{told}: perhaps they are two different models" if error > _FAR_APART else told


_VALUES = 5
"""Inputs or outputs that a line names."""


def _interface(comparison: Gate) -> str:
    """Return the inputs and outputs that differ, in one line."""
    old, new = comparison.old, comparison.new

    def told(value: SharedValue) -> str:
        if value.before is None or value.after is None:
            return f"{value.name} {value.before or value.after} only in {new if value.before is None else old}"
        return f"{value.name} {value.before} is {value.after} in {new}"

    parts = []
    for kind, values in (("input", comparison.interface.inputs), ("output", comparison.interface.outputs)):
        parts += [f"{kind} {told(value)}" for value in values[:_VALUES]]
        parts += [f"{len(values) - _VALUES} more {kind}s"] if len(values) > _VALUES else []
    return f"the files differ in what they read and make: {'; '.join(parts)}"


def _memories(old: Alone, new: Alone) -> str:
    """Return the memory of both models, each in a process of its own."""
    before, after = old.record(), new.record()
    peak, steady = (
        f"{what} {before[name]:.0f} MB becomes {after[name]:.0f} MB"
        for what, name in (("peak", "memory_peak_mb"), ("steady", "memory_steady_mb"))
    )
    return f"resident memory, the runtime included: {peak}, {steady}"


def gate_figures(comparison: Gate, new: ModelSource) -> dict[str, Figure]:
    """Return the figures of a new file that limits can name."""
    return {
        "latency": Figure.scattering(comparison.levels.after_ms, comparison.levels.after_ci95_ms),
        "difference": Figure(math.inf if comparison.interface.incomplete else comparison.largest_error),
        "p95": Figure.percentile(None if comparison.alone is None else comparison.alone[1], 0.95),
        "memory": Figure.of_bytes(None if comparison.alone is None else comparison.alone[1].peak_bytes),
        "size": Figure.of_bytes(file_bytes(new)),
    }


def gate_answer(comparison: Gate, *, most: int | None = MOST) -> Answer:
    """Return the answer of ``compare`` with two files.

    Args:
        comparison: The comparison.
        most: Number of listed changes of layers; None: all.
    """
    power = f"a difference of {comparison.detectable:.1%} would be SLOWER with 80% probability"
    effort = (
        f"{comparison.processes} processes, {counted(comparison.visits, 'visit')} of each model, "
        f"{comparison.wall_s:.0f} s"
    )
    summary: list[Line] = [
        comparison.reason,
        *([_interface(comparison)] if comparison.interface else []),
        _outputs_apart(comparison),
        f"{effort}; {power}" if comparison.complete else effort,
    ]
    if comparison.alone is not None:
        summary.insert(-1, _memories(*comparison.alone))
    if comparison.layers is not None:
        summary += ["", *_changes(comparison.layers, comparison.levels, most)]
    return Answer.of(
        comparison.records(),
        columns=columns_of(FIELDS, "new", "old", "old_ms", "new_ms", "ratio", "verdict"),
        summary=summary,
    )


def _changes(changes: LayerChanges, levels: Levels, most: int | None) -> list[Line]:
    """Return the layers that differ between two files."""
    same = f"{counted(changes.same, 'sequence')} of the executed graphs are equal in both files"
    if not changes.rows:
        return [f"{same}, and none differs"]
    unknown = sum(row.effect_ms is None for row in changes.rows)
    total = (
        ""
        if changes.effect_ms is None
        else (f"; together {changes.effect_ms:+.3g} ms of {levels.after_ms - levels.before_ms:+.3g} ms measured")
    )
    lines = [f"{same}; what differs{total}:", *table_lines([row.record() for row in changes.rows[:most]], LAYER_FIELDS)]
    lines += unlisted(changes.rows, most)
    return [*lines, f"{counted(unknown, 'change')} not measured: give a larger --budget"] if unknown else lines


def advice_answer(advice: Advice, *, layers: bool = False, most: int | None = MOST) -> Answer:
    """Return the answer of ``advise``: that of ``compare``, with advice for each model.

    Args:
        advice: The comparison with the fastest side of each model.
        layers: List bricks below the table; JSON always has them.
        most: Number of listed bricks; None: all.
    """
    answer = comparison_answer(advice, layers=layers, most=most)
    return replace(
        answer, summary=[*(line for model_advice in advice.advice for line in _advised(model_advice)), *answer.summary]
    )


def _advised(model_advice: ModelAdvice) -> list[str]:
    lines = [
        f"{model_advice.name}: another runtime is measured by: {shell_command(task)}" for task in model_advice.remedies
    ]
    pair = model_advice.rows[0].pair
    latency = pair.compared[0]
    if model_advice.best is None or latency is None:
        return lines
    alike = f"; not distinguishable from it: {', '.join(model_advice.ties)}" if model_advice.ties else ""
    lines.insert(
        0, f"{model_advice.name}: best is {model_advice.best}, {milliseconds(latency.ms)} ms ({pair.base.basis}){alike}"
    )
    if model_advice.measured_by is not None:
        lines.insert(1, f"  measured by: {shell_command(model_advice.measured_by)}")
    if model_advice.mixing_ms:
        gain = f"{milliseconds(model_advice.mixing_ms)} ms of bricks, changes between them not counted"
        lines.insert(1, f"  a framework for every layer could save {gain}")
    return lines


def _remarks(row: ModelComparison) -> list[str]:
    where = row.name if row.other is None else f"{row.name}, {row.other}"
    if row.error is not None:
        return [f"{row.name}: {row.error}"]
    lines = [f"{where}: {row.verdict or 'no verdict'}, since {row.reason}"] if row.reason else []
    if row.missing and not row.layers:
        lines.append(f"{where}: no brick is measured on both")
    elif row.missing:
        count = sum(absent.occurrences for absent in row.missing)
        lines.append(f"{where}: {counted(count, 'sequence')} cannot be compared")
        reasons = dict.fromkeys(f"{' and '.join(absent.sides)}: {absent.reason}" for absent in row.missing)
        lines += at_most([f"  {reason}" for reason in reasons], _REASONS, of=" reasons")
    return lines


def _by_layer(row: ModelComparison, most: int | None) -> list[Line]:
    """Every brick, the largest difference first."""
    what = f"by brick, and what {row.base} would gain if it ran the brick as fast (below zero: it is faster already)"
    rows = [
        {
            **record_of(layer, fields("gain_ms base_ms other_ms verdict")),
            **brick_cells(layer.brick),
            "within": None if layer.ratio is None else ratio_within(layer.ratio, layer.ratio_ci95),
        }
        for layer in sorted(row.layers, key=lambda layer: -abs(layer.gain_ms))[:most]
    ]
    columns = [Field("gain_ms", "gain ms", "ms"), *ON_TWO_SIDES]
    lines: list[Line] = [f"{row.name}, {row.other}: {what}", *table_lines(rows, columns), *unlisted(row.layers, most)]
    lines += [
        f"  not compared: {absent.occurrences} x {'+'.join(absent.operators)} "
        f"({' and '.join(absent.sides)}: {absent.reason})"
        for absent in row.missing
    ]
    return lines


ON_TWO_SIDES = (
    Field("occurrences", "x"),
    Field("base_ms", "base ms", "ms"),
    Field("other_ms", "other ms", "ms"),
    Field("within", "ratio"),
    Field("verdict"),
    FORM,
)
"""Columns of a brick on two sides, after what its difference means for the model."""


def brick_cells(brick: ModelBrick) -> Row:
    """Return the cells that say which brick it is, and how often the model has it."""
    return {"occurrences": brick.occurrences, **form_cells(brick.operators, brick.names, brick.form)}


# The answer of ``history``.


_TO_BLAME = 3
"""Bricks that are named for a change where not all are asked for."""

_MOMENT = 16
"""Characters of a time that are shown: to the minute."""


def history_answer(report: History, *, runs: bool = False, most: int | None = MOST) -> Answer:
    """Return the answer of ``history``: one row per model and place.

    Args:
        report: The history.
        runs: List every run below the table; JSON and CSV always have them.
        most: Listed runs (the newest) and bricks (the largest changes); None: all.
    """
    records = report.records()
    places = {row.name: sum(other.name == row.name for other in report.rows) for row in report.rows}
    several = any(count > 1 for count in places.values())
    table = [
        {**record, "place": report.place_of(row), "last": _last(row.changes), "count": len(row.changes)}
        for row, record in zip(report.rows, records.results, strict=True)
    ]
    summary: list[Line] = []
    for row in report.rows:
        lines: list[Line] = _history_remarks(row, report, most)
        if runs and row.points:
            lines += [*([""] if lines else []), *_by_run(row, report, most)]
        summary += [*([""] if summary and lines else []), *lines]
    if kinds := {row.basis for row in report.rows if row.basis}:
        of_quiet = "latencies on a quiet machine (undisturbed)"
        of_means = "latencies are means: not every run has a latency on a quiet machine"
        summary += [of_quiet if kinds == {UNDISTURBED} else of_means if kinds == {MEAN} else "basis: --json says which"]
    if any(row.scatter is not None for row in report.rows):
        summary.append("scatter: standard deviation of runs around their level")
    return Answer.of(
        records,
        columns=[
            Field("name", "model"),
            *([Field("place", "measured")] if several else []),
            Field("runs"),
            Field("latest_ms", "latest ms", "ms"),
            Field("scatter", "scatter", "{:.1%}".format),
            Field("count", "changes"),
            Field("last", "last change"),
        ],
        summary=summary,
        table=table,
    )


def _last(changes: Sequence[Change]) -> str | None:
    if not changes:
        return None
    last = changes[-1]
    return f"{_mark(last)}, {_moment(last.first.started)} ({last.cause})"


def _mark(change: Change) -> str:
    return f"{change.verdict} x {change.levels.difference.ratio:.3f}"


def _history_remarks(row: ModelHistory, report: History, most: int | None) -> list[Line]:
    where = _named(row, report)
    if row.error is not None:
        return [f"{row.name}: {row.error}"]
    lines: list[Line] = [f"{where}: {row.reason}"] if row.reason else []
    lines += [f"{where}: left out: {counted(other.runs, 'run')} {other.difference}" for other in row.left_out]
    loud = sum(point.quiet == 0 for point in row.points) if row.basis == UNDISTURBED else 0
    if loud:
        lines.append(
            f"{where}: the machine was never quiet in {loud} of {counted(row.runs, 'run')}, which scatter more"
        )
    if row.soon is not None and row.later is not None and row.runs >= FEWEST:
        lines.append(f"{where}: a change of {row.soon:.1%} is found within 3 runs, of {row.later:.1%} within 6")
    for change in row.changes:
        at = f" ({change.first.label})" if change.first.label else ""
        lines.append(
            f"{where}, {_moment(change.first.started)}{at}: {change.verdict}, {_moved(change.levels)}; "
            f"{counted(change.runs_before, 'run')} before, {change.runs_after} after"
        )
        lines.append(f"  {change.cause}: {change.reason}")
        lines += indented([*_confirmation(change), *_to_blame(change, most)])
    return lines


def _confirmation(change: Change) -> list[Line]:
    """Return the result of the repeated measurement in both environments."""
    confirmation = change.confirmation
    if confirmation is None:
        return []
    if confirmation.levels is None:
        return [f"{confirmation.standing}: {confirmation.reason}"]
    names = sorted({*(confirmation.old or {}), *(confirmation.new or {})})
    versions = ", ".join(
        f"{name} {(confirmation.old or {}).get(name)} → {(confirmation.new or {}).get(name)}" for name in names
    )
    return [f"{confirmation.standing}: {confirmation.reason}", f"{_moved(confirmation.levels)} ({versions})"]


def _to_blame(change: Change, most: int | None) -> list[Line]:
    """Yield the bricks with the largest changes, and the share that they explain."""
    if not change.bricks:
        return ["no brick is measured on both sides"]
    total = change.levels.after_ms - change.levels.before_ms
    shown = 0 if change.cause == "machine" and most is not None else most
    return _table_of(change.bricks, total, shown, change.bricks_missing)


def _table_of(bricks: Sequence[BrickChange], total: float, most: int | None, missing: int) -> list[Line]:
    """Write the part of a change that bricks explain, together and for each; together only if ``most`` is 0."""
    shown = bricks if most is None else bricks[:_TO_BLAME]
    whole = sum(brick.contribution_ms for brick in bricks)
    unknown = f"; {counted(missing, 'brick')} not on both sides" if missing else ""
    together = f"bricks together {milliseconds(whole)} of {milliseconds(total)} ms{unknown}"
    if most == 0:
        return [together]
    rows = [
        {
            **record_of(change, fields("contribution_ms before_ms after_ms")),
            "share": change.contribution_ms / total,
            **brick_cells(change.brick),
        }
        for change in shown
    ]
    columns = [
        Field("contribution_ms", "adds ms", "ms"),
        Field("share", "of the change", "{:.0%}".format),
        Field("occurrences", "x"),
        Field("before_ms", "before ms", "ms"),
        Field("after_ms", "after ms", "ms"),
        FORM,
    ]
    return [f"{together}; to blame:", *table_lines(rows, columns)]


def _by_run(row: ModelHistory, report: History, most: int | None) -> list[Line]:
    """Return the runs, the newest last, with the differences between successive runs."""
    marks = {change.first.run: _mark(change) for change in row.changes}
    before = [None, *row.points[:-1]]
    rows = [
        {
            "started": _moment(point.started),
            **record_of(point, fields("latency_ms ci95_ms quiet label")),
            "versions": " ".join(
                f"{name} {version}"
                for name, version in point.versions.items()
                if old is None or old.versions.get(name) != version
            )
            or None,
            "change": marks.get(point.run),
        }
        for old, point in zip(before, row.points, strict=True)
    ]
    columns = [
        Field("started", "run (UTC)"),
        Field("latency_ms", "ms ±95%", "ms", interval="ci95_ms"),
        Field("quiet", "quiet", "{:.1%}".format),
        Field("versions", "new version"),
        *([Field("label")] if any(point.label for point in row.points) else []),
        Field("change"),
    ]
    newest = rows if most is None else rows[-most:]
    return [
        f"{_named(row, report)}: every run, \u00b195% of the run by itself",
        *table_lines(newest, columns),
        *unlisted(rows, most),
    ]


def _named(row: ModelHistory, report: History) -> str:
    several = sum(other.name == row.name for other in report.rows) > 1
    return f"{row.name}, {report.place_of(row)}" if several else row.name


def _moment(started: str) -> str:
    return started[:_MOMENT].replace("T", " ")


def _moved(levels: Levels) -> str:
    ratio, (low, high) = levels.difference.ratio, levels.difference.ci95
    latencies = f"{milliseconds(levels.before_ms)} to {milliseconds(levels.after_ms)} ms"
    return f"{latencies}, ratio {ratio:.3f} [{low:.3f}, {high:.3f}]"
