"""How estimates stand beside ground truth: the ratio as a table shows it, and what to say of a disturbed machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....tabular import Row
from ..tables import Column
from ..units import counted, milliseconds, percent, ratio_within

if TYPE_CHECKING:
    from ....constructor.result import Estimate

__all__ = ["COLUMNS", "above_estimate", "caveats", "disturbance_of", "table_row"]

_NAMED = 4
"""Models that a line names, before it counts them."""

_RATIO = "ratio_within"
"""Key of the cell that holds a ratio with its interval, in the rows of tables only."""

COLUMNS = (
    Column("undisturbed_ms", "undisturbed ms", milliseconds, spare=True),
    Column("measured_ms", "measured ms ±95%", milliseconds, bounds="measured_ci95_ms"),
    Column(_RATIO, "ratio"),
)
"""What of that the tables of estimates show."""


def table_row(entry: Estimate, row: Row) -> Row:
    """The row of an estimate as tables show it."""
    within = None if entry.ratio is None else ratio_within(entry.ratio, entry.ratio_ci95)
    return {**row, _RATIO: within, "lower_bound_sequential_ms": entry.lower_bound_ms}


def above_estimate(entry: Estimate) -> bool:
    """Whether the cheapest bricks take longer than the model is estimated to: that is no bound of it."""
    return entry.lower_bound_sequential_ms is not None and entry.lower_bound_ms is None


def disturbance_of(entry: Estimate) -> str:
    """By how much a disturbed machine slowed a model: ``+42%``."""
    return f"+{percent(entry.disturbance or 0.0)}"


def caveats(estimates: Sequence[Estimate]) -> list[str]:
    """What to say of models that met a disturbed machine, were measured apart from their bricks, or are not calibrated.

    At most one line each, whatever the number of models; nothing where there is nothing to say.
    """
    lines = []
    disturbed = sorted((one for one in estimates if one.disturbed), key=lambda one: -(one.disturbance or 0.0))
    if disturbed:
        names = _listed([f"{one.name} {disturbance_of(one)}" for one in disturbed])
        counts = f"{len(disturbed)} of {counted(len(estimates), 'model')}" if len(estimates) > 1 else "the model"
        kept = "ratios of visits in turn hold; " if any(one.paired for one in disturbed) else ""
        lines.append(
            f"disturbed: the machine slowed {counts} ({names}); {kept}to compare runs or machines, use undisturbed_ms"
        )
    apart = [one.name for one in estimates if one.paired is False]
    if apart:
        lines.append(
            f"not paired: bricks and model come from different sessions ({_listed(apart)}), whose scatter the ratio's "
            "interval holds; visit them in turn: dlbricks run SUITE --with MODEL --again all"
        )
    loose = [one.name for one in estimates if one.calibrated is False]
    if loose:
        lines.append(
            f"not calibrated: how far such estimates are off is not known ({_listed(loose)}); intervals hold only what "
            "the measurements differ by"
        )
    guessed = [one.name for one in estimates if one.scatter_calibrated is False]
    if guessed:
        lines.append(
            f"scatter not calibrated: what processes and runs of such a backend differ by is not known "
            f"({_listed(guessed)}); intervals hold that of others"
        )
    return lines


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join([*names[:_NAMED], *([f"and {rest} more"] if rest > 0 else [])])
