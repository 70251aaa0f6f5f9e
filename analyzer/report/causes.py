"""Causes of the difference between the sum of the bricks and the latency of the model, as rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...constructor.result import SIGNS
from ..shell import shell_command, shell_steps, with_command
from .units import short

if TYPE_CHECKING:
    from ...constructor.remedies import Task
    from ...constructor.result import Estimate


# Where what an estimate advises is to be run: its latencies may be of another machine than this one.


def advised_for(entry: Estimate, task: Task) -> str:
    """Return the command of a task; for an estimate of another system, the steps on both machines.

    The same command here would store a second system, and the estimate would become ambiguous.
    """
    from ...generator.machine.system import probe_system

    if entry.place.system is None or entry.place.system == probe_system().key:
        return shell_command(task)
    *here, there = shell_steps(task, database=False)
    steps = [f"here, {step}" for step in here]
    steps.append(f"on system {short(entry.place.system)}, {there}")
    return "; ".join([*steps, "then export and merge the database"])


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One row: a total, or a cause with its sign.

    Attributes:
        label: Name of the total or cause.
        ms: The total, or the contribution of the cause (negative: it saves); None if unknown.
        half_ms: Half of the 95 % interval; None if unknown.
        total: True for a total.
        reason: Why the row is unknown or not counted.
        remedy: The task that measures it.
        counted: True if the sums contain it.
    """

    label: str
    ms: float | None
    half_ms: float | None
    total: bool = False
    reason: str | None = None
    remedy: Task | None = None
    counted: bool = True

    @property
    def step(self) -> float | None:
        """The total or contribution; None if it is unknown or not counted."""
        return self.ms if self.counted else None


class CauseBar(NamedTuple):
    """A row of a waterfall with begin and end of its bar in ms; both are equal if the row is unknown or not counted."""

    cause: CauseRow
    begin: float
    end: float


def placed(causes: Iterable[CauseRow]) -> Iterator[CauseBar]:
    """Yield the bars between the running sums: each begins at the end of the previous row, or at zero for a total."""
    at = 0.0
    for cause in causes:
        begin = 0.0 if cause.total else at
        end = begin + (cause.step or 0.0)
        at = at if cause.step is None else end
        yield CauseBar(cause, begin, end)


def rows_of(entry: Estimate) -> Iterator[CauseRow]:
    """Yield the rows from the sum of bricks to the estimate and the measured latency, if causes are known."""
    for name, sign in SIGNS.items():
        term = (entry.attribution or {}).get(name)
        if term is None:
            continue
        if name == "unexplained":
            yield _explained(entry, term.ms)
        ms = None if term.ms is None else sign * term.ms
        reason = with_command(term.reason, entry) if term.counted else "not counted: its interval includes zero"
        yield CauseRow(name, ms, _half(term.ci95_ms), name == "bricks", reason, term.remedy, term.counted)
    if entry.attribution:
        yield CauseRow("measured", entry.truth.ms, _half(entry.truth.ci95_ms), total=True, reason="not measured")


def _explained(entry: Estimate, left_ms: float | None) -> CauseRow:
    """Return the row of bricks and causes together: the estimate, or ``explained`` if the two differ."""
    estimate_ms = entry.latency.ms
    explained_ms = None if left_ms is None or entry.truth.ms is None else entry.truth.ms - left_ms
    if explained_ms is None or (estimate_ms is not None and math.isclose(estimate_ms, explained_ms, rel_tol=1e-3)):
        return CauseRow("estimate", estimate_ms, _half(entry.latency.ci95_ms), total=True)
    return CauseRow("explained", explained_ms, None, total=True)


def written(entry: Estimate) -> list[str]:
    """Return the rows as lines of text, and the commands that measure the unknown ones."""
    rows = list(rows_of(entry))
    if not rows:
        return []
    where = f"{entry.model.cutting.graph} graph, cache {entry.place.cache}"
    level = f" (level {entry.model.level})" if entry.place.cache == "model" and entry.model.level else ""
    lines = [f"{entry.name}: from bricks to model, {where}{level}"]
    digits = _digits(rows)
    lines += [_line(row, digits) for row in rows]
    if entry.attribution_absolute_ms is not None:
        lines.append(f"  {'sizes of all causes':<20}{entry.attribution_absolute_ms:>12,.{digits}f} ms")
    unknown: dict[Task, list[str]] = {}
    for row in rows:
        if row.ms is None and row.remedy is not None:
            unknown.setdefault(row.remedy, []).append(row.label)
    lines += [
        f"  {' and '.join(names)} would be known after: {advised_for(entry, task)}" for task, names in unknown.items()
    ]
    return lines


def _digits(rows: list[CauseRow]) -> int:
    """Return the decimals that give the largest number four significant digits; all numbers use them."""
    largest = max((abs(row.ms) for row in rows if row.ms), default=1.0)
    return max(2, 3 - math.floor(math.log10(largest)))


def _line(row: CauseRow, digits: int) -> str:
    mark = "=" if row.total else "+" if (row.ms or 0.0) >= 0 else "-"
    mark = mark if row.counted else " "
    if row.ms is None:
        return f"  {' ' if not row.total else mark} {row.label:<18}{'-':>12}     {row.reason or ''}".rstrip()
    half = f"  ± {row.half_ms:,.{digits}f}" if row.half_ms else ""
    note = "" if row.counted else f"  {row.reason}"
    return f"  {mark} {row.label:<18}{abs(row.ms):>12,.{digits}f} ms{half}{note}"


def _half(bounds: tuple[float, float] | None) -> float | None:
    return None if bounds is None else (bounds[1] - bounds[0]) / 2
