"""A zoo on several sides as one table: models by sides, with totals and geometric means."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ....tabular import Field
from ..tables import Line, table_lines
from ..units import counted

if TYPE_CHECKING:
    from ...comparison.compare import Comparison

_FEWEST = 3
"""Sides from which one table says more than pairs."""


def models_by_sides(comparison: Comparison) -> list[Line]:
    """Return a table of latencies, one row per model and one column per side; nothing for two sides.

    Latencies are those on a quiet machine if all pairs of a model compare these. The last rows are the total and the
    geometric mean of the models that are known on every side.
    """
    if len(comparison.sides) < _FEWEST:
        return []
    disturbed = {row.name for row in comparison.rows if not (row.pair.base.undisturbed and row.pair.other.undisturbed)}
    latencies: dict[str, dict[str, float]] = {}
    for row in comparison.rows:
        of_model = latencies.setdefault(row.name, {})
        for side, figure in ((row.base, row.pair.base), (row.other, row.pair.other)):
            known = figure.best if row.name in disturbed else figure.undisturbed
            if side is not None and known is not None:
                of_model.setdefault(side, known.ms)
    names = [side.name for side in comparison.sides]
    columns = [Field("name", "ms"), *(Field(f"side{number}", name, "ms") for number, name in enumerate(names))]

    def cells(name: str, values: list[float | None]) -> dict[str, object]:
        return {"name": name, **{f"side{number}": value for number, value in enumerate(values)}}

    rows = [cells(name, [of_model.get(side) for side in names]) for name, of_model in latencies.items()]
    whole = [of_model for of_model in latencies.values() if all(of_model.get(side, 0.0) > 0 for side in names)]
    if len(whole) > 1:
        rest = "" if len(whole) == len(latencies) else f" of {counted(len(whole), 'model')} known on every side"
        totals: list[float | None] = [math.fsum(of_model[side] for of_model in whole) for side in names]
        means: list[float | None] = [
            math.exp(math.fsum(math.log(of_model[side]) for of_model in whole) / len(whole)) for side in names
        ]
        rows += [cells(f"total{rest}", totals), cells(f"geometric mean{rest}", means)]
    return ["", *table_lines(rows, columns)]
