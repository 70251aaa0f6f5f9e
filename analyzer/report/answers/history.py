"""The answer of ``history``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....tabular import Field
from ...history.changes import MEAN, UNDISTURBED
from ..tables import FORM, MOST, Answer, form_cells, table_lines, unlisted
from ..units import counted, milliseconds

if TYPE_CHECKING:
    from ...comparison.difference import Levels
    from ...history.result import BrickChange, Change, History, ModelHistory

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
    summary: list[str] = []
    for row in report.rows:
        lines = _remarks(row, report, most)
        if runs and row.points:
            lines += [*([""] if lines else []), *_by_run(row, report, most)]
        summary += [*([""] if summary and lines else []), *lines]
    if kinds := {row.basis for row in report.rows if row.basis}:
        of_quiet = "latencies on a quiet machine (undisturbed)"
        of_means = "latencies are means: not every run has a latency on a quiet machine"
        summary += [of_quiet if kinds == {UNDISTURBED} else of_means if kinds == {MEAN} else "basis: --json says which"]
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


def _remarks(row: ModelHistory, report: History, most: int | None) -> list[str]:
    where = _named(row, report)
    if row.error is not None:
        return [f"{row.name}: {row.error}"]
    lines = [f"{where}: {row.reason}"] if row.reason else []
    loud = sum(point.quiet == 0 for point in row.points) if row.basis == UNDISTURBED else 0
    if loud:
        lines.append(
            f"{where}: the machine was never quiet in {loud} of {counted(row.runs, 'run')}, which scatter more"
        )
    for change in row.changes:
        lines.append(
            f"{where}, {_moment(change.first.started)}: {change.verdict}, {_moved(change.levels)}; "
            f"{counted(change.runs_before, 'run')} before, {change.runs_after} after"
        )
        lines.append(f"  {change.cause}: {change.reason}")
        lines += [f"  {line}" for line in _confirmation(change, most)]
        lines += [f"  {line}" for line in _to_blame(change, most)]
    return lines


def _confirmation(change: Change, most: int | None) -> list[str]:
    """Return the result of the repeated measurement in both environments."""
    made = change.confirmation
    if made is None:
        return []
    if made.levels is None:
        return [f"{made.standing}: {made.reason}"]
    names = sorted({*(made.old or {}), *(made.new or {})})
    versions = ", ".join(f"{name} {(made.old or {}).get(name)} → {(made.new or {}).get(name)}" for name in names)
    lines = [f"{made.standing}: {made.reason}", f"{_moved(made.levels)} ({versions})"]
    if made.bricks:
        lines += _table_of(made.bricks, made.levels.after_ms - made.levels.before_ms, most, "by themselves, hot, ")
    return lines


def _to_blame(change: Change, most: int | None) -> list[str]:
    """Yield the bricks with the largest changes, and the share that they explain."""
    if not change.bricks:
        return ["no brick is measured on both sides"]
    total = change.levels.after_ms - change.levels.before_ms
    shown = 0 if change.cause == "machine" and most is not None else most
    return _table_of(change.bricks, total, shown, "", change.bricks_missing)


def _table_of(bricks: Sequence[BrickChange], total: float, most: int | None, how: str, missing: int = 0) -> list[str]:
    """Write the part of a change that bricks explain, together and for each; together only if ``most`` is 0."""
    shown = bricks if most is None else bricks[:_TO_BLAME]
    whole = sum(brick.contribution_ms for brick in bricks)
    unknown = f"; {counted(missing, 'brick')} not on both sides" if missing else ""
    together = f"{how}bricks together {milliseconds(whole)} of {milliseconds(total)} ms{unknown}"
    if most == 0:
        return [together]
    rows = [
        {
            "contribution_ms": change.contribution_ms,
            "share": change.contribution_ms / total,
            "occurrences": change.brick.occurrences,
            "before_ms": change.before_ms,
            "after_ms": change.after_ms,
            **form_cells(change.brick.operators, change.brick.names, change.brick.form),
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


def _by_run(row: ModelHistory, report: History, most: int | None) -> list[str]:
    """Return the runs, the newest last, with the differences between successive runs."""
    marks = {change.first.run: _mark(change) for change in row.changes}
    before = [None, *row.points[:-1]]
    rows = [
        {
            "started": _moment(point.started),
            "latency_ms": point.latency_ms,
            "ci95_ms": point.ci95_ms,
            "quiet": point.quiet,
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
        Field("change"),
    ]
    newest = rows if most is None else rows[-most:]
    return [f"{_named(row, report)}: every run", *table_lines(newest, columns), *unlisted(rows, most)]


def _named(row: ModelHistory, report: History) -> str:
    several = sum(other.name == row.name for other in report.rows) > 1
    return f"{row.name}, {report.place_of(row)}" if several else row.name


def _moment(started: str) -> str:
    return started[:_MOMENT].replace("T", " ")


def _moved(levels: Levels) -> str:
    ratio, (low, high) = levels.difference.ratio, levels.difference.ci95
    latencies = f"{milliseconds(levels.before_ms)} to {milliseconds(levels.after_ms)} ms"
    return f"{latencies}, ratio {ratio:.3f} [{low:.3f}, {high:.3f}]"
