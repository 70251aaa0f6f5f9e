"""What ``predict`` answers."""

from __future__ import annotations

from collections.abc import Sequence

from ...predicting import Predictions
from ..tables import Answer, Column
from ..units import duration, milliseconds, percent
from .estimates import predicted_lines

_COLUMNS: Sequence[Column] = (
    Column("name", "model"),
    Column("predicted_ms", "latency ms \u00b195%", milliseconds, "ci95_ms"),
    Column("half", "\u00b1", percent),
    Column("shares.measured", "measured", percent),
    Column("shares.stored", "stored", percent),
    Column("shares.predicted", "predicted", percent),
    Column("unique", "bricks", spare=True),
)


def predictions_answer(found: Predictions) -> Answer:
    """The answer of ``predict``: one row per model."""
    summary = []
    for entry in found.rows:
        if entry.error is not None:
            summary.append(f"{entry.name}: {entry.error}")
        elif entry.parts.predicted is not None:
            summary += predicted_lines(entry, entry.parts.predicted)
        elif entry.latency.ms is None:
            summary.append(
                f"{entry.name}: not known, since {entry.parts.prediction_reason or 'a layer cannot be a brick'}"
            )
    summary.append(f"{len(found.measured)} bricks measured in {duration(found.wall_s)}.")
    return Answer.of(found.records(), columns=_COLUMNS, summary=summary)
