"""Answer of ``compare --versions``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....generator.backends.registry import get
from ....tabular import Field, columns_of
from ...comparison.runtime_versions import FIELDS
from ..tables import MOST, Answer, Line, at_most, table_lines, unlisted
from ..units import counted, milliseconds, percent, ratio_within
from .comparison import ON_TWO_SIDES, brick_cells

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from ...comparison.runtime_versions import BrickVersions, ModelVersions, StartVersions, VersionComparison

_REASONS = 5
"""Different reasons why bricks are missing that are listed per model."""

_COLUMNS = (Field("effect_ms", "adds ms", "ms"), *ON_TWO_SIDES[:-1], Field("in_model", "in a model"), ON_TWO_SIDES[-1])


def versions_answer(
    comparison: VersionComparison, written: Sequence[Path] = (), *, layers: bool = False, most: int | None = MOST
) -> Answer:
    """Return the answer of ``compare --versions``: one row per model, and below it the bricks that differ.

    Args:
        comparison: The comparison.
        written: Folders to reproduce slower bricks.
        layers: List all bricks, not only those that differ.
        most: Number of listed bricks per model; None: all.
    """
    effect = f"SAME is within {comparison.minimum_effect:.3g} of it, either way"
    summary: list[Line] = [f"base: {comparison.base.name}; other: {comparison.other.name}; {effect}"]
    layouts = get(comparison.base.backend).optimiser.layouts.changes | {"Transpose"}
    changes = frozenset(name.rpartition(".")[2] for name in layouts)
    for row in comparison.rows:
        summary += ["", *_of_model(row, changes, layers=layers, most=most)]
    if comparison.call is not None:
        base, other = comparison.call.before_ms * 1e3, comparison.call.after_ms * 1e3
        summary += ["", f"a call takes {base:.3g} and {other:.3g} µs; bricks are compared without this difference"]
    summary += ["", *(f"wrote {folder}" for folder in written), f"{comparison.wall_s:.0f} s"]
    return Answer.of(
        comparison.records(),
        columns=columns_of(FIELDS, "name", "base_ms", "other_ms", "ratio", "verdict", "explained"),
        summary=summary,
    )


def _of_model(row: ModelVersions, layouts: AbstractSet[str], *, layers: bool, most: int | None) -> list[Line]:
    if row.error is not None and not row.bricks:
        return [f"{row.name}: {row.error}"]
    lines: list[Line] = [] if row.error is None else [f"{row.name}: {row.error}"]
    told = [brick for brick in row.bricks if brick.told]
    lines.append(f"{row.name}: {_counted(row, told)}{_explains(row)}")
    listed = row.bricks if layers else told
    if listed:
        lines += table_lines([_cells(brick) for brick in listed[:most]], _COLUMNS)
        lines += unlisted(listed, most)
    lines += _left(row, layouts)
    if row.load is not None and row.first_run is not None:
        lines.append(f"  {_start('load', row.load)}; {_start('first run', row.first_run)}")
    suspects = sum(brick.suspect for brick in row.bricks)
    if suspects:
        what = counted(suspects, "brick")
        lines.append(f"  {what} may differ, but the time was up before fresh processes decided: give a larger --budget")
    reasons: dict[str, int] = {}
    for reason in (row.missing or {}).values():
        reasons[reason] = reasons.get(reason, 0) + 1
    lines += at_most(
        [f"  {count} not compared: {reason}" for reason, count in reasons.items()],
        _REASONS,
        of=" reasons",
    )
    return lines


def _counted(row: ModelVersions, told: Sequence[BrickVersions]) -> str:
    slower = sum(str(brick.verdict) == "SLOWER" for brick in told)
    undecided = sum(str(brick.verdict) == "UNCLEAR" for brick in row.bricks)
    of = counted(len(row.bricks), "unique brick")
    rest = f", {undecided} not decided" if undecided else ""
    if not told and not undecided:
        return f"none of {of} is slower or faster"
    return f"of {of}, {slower} slower and {len(told) - slower} faster{rest}"


def _explains(row: ModelVersions) -> str:
    if row.explained is None or row.difference_ms is None:
        return ""
    return f"; all bricks explain {percent(row.explained)} of the model's {_signed(row.difference_ms)}"


def _left(row: ModelVersions, layouts: AbstractSet[str]) -> list[Line]:
    """Name what bricks leave of a model's difference: nodes that only one version executes."""
    if row.executed is None:
        return []
    changes: dict[str, list[str]] = {"fusions": [], "layout changes": []}
    for name, (base, other) in row.executed.items():
        changes["layout changes" if name in layouts else "fusions"].append(f"{name} {base} → {other}")
    named = "; ".join(f"{kind}: {', '.join(nodes)}" for kind, nodes in changes.items() if nodes)
    left = "" if row.left_ms is None else f"{_signed(row.left_ms)} are left; "
    return [f"  {left}" + (f"executed nodes differ: {named}" if named else "both versions execute the same operators")]


def _start(name: str, start: StartVersions) -> str:
    before, after = milliseconds(start.levels.before_ms), milliseconds(start.levels.after_ms)
    return f"{name} {before} → {after} ms ({start.verdict})"


def _signed(ms: float) -> str:
    return f"{'+' if ms > 0 else ''}{milliseconds(ms)} ms"


def _cells(brick: BrickVersions) -> dict[str, object]:
    seen, known = brick.levels.difference, brick.in_model
    return {
        "effect_ms": brick.effect_ms,
        "base_ms": brick.levels.before_ms,
        "other_ms": brick.levels.after_ms,
        "within": ratio_within(seen.ratio, seen.ci95),
        "verdict": str(brick.verdict),
        "in_model": "-" if known is None else ratio_within(known.difference.ratio, known.difference.ci95),
        **brick_cells(brick.brick),
    }
