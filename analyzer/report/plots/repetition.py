"""How much models repeat themselves and each other: unique-layer share and similarity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .figure import BLUE, name_rows, new_figure, plain_axes, row_height, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ModelShare", "similarity_grid", "unique_share"]

_WRITTEN_CELLS = 16
"""Up to this many models each cell of the grid has its number written into it."""


@dataclass(frozen=True, slots=True)
class ModelShare:
    """How many of a model's sequences are unique within it."""

    name: str
    sequences: int
    unique: int


def unique_share(models: Sequence[ModelShare], *, title: str) -> Figure:
    """Sequences per model, and how many of them are unique; one row per model."""
    figure = new_figure(9, row_height(len(models)), title=title)
    axes = figure.subplots()
    plain_axes(axes, grid="x")
    rows = list(range(len(models)))
    axes.barh(rows, [model.sequences for model in models], color="#CFD8DC", height=0.72, label="sequences")
    axes.barh(rows, [model.unique for model in models], color=BLUE, height=0.72, label="unique")
    longest = max((model.sequences for model in models), default=0) or 1
    for row, model in enumerate(models):
        if model.sequences:
            text = f"{model.unique} of {model.sequences}  ({100 * model.unique / model.sequences:.0f} %)"
            axes.text(model.sequences + longest * 0.01, row, text, va="center", fontsize=8, color="#37474F")
    name_rows(axes, [model.name for model in models])
    axes.set_xlim(0, longest * 1.25)
    axes.set_xlabel("sequences")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, fontsize=9, frameon=False, borderaxespad=0.2)
    return figure


def similarity_grid(names: Sequence[str], matrix: Sequence[Sequence[float]], *, title: str) -> Figure:
    """Jaccard similarity of every two models' sets of bricks (DLBricks, Fig. 7).

    Args:
        names: Names of the models.
        matrix: Similarities from 0 to 1, in the order of the names.
        title: What is compared.
    """
    count = len(names)
    side = max(4.5, 2.6 + (0.42 if count <= _WRITTEN_CELLS else 0.24) * count)
    figure = new_figure(side + 1.0, side, title=title)
    axes = figure.subplots()
    image = axes.imshow([list(row) for row in matrix], cmap="Blues", vmin=0, vmax=1)
    labels = [shorten(name, 24) for name in names]
    axes.set_xticks(range(count), labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(range(count), labels, fontsize=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if count <= _WRITTEN_CELLS:
        for row, values in enumerate(matrix):
            for column, value in enumerate(values):
                colour = "white" if value > 0.6 else "#37474F"
                number = "1" if value >= 0.995 else f"{value:.2f}".lstrip("0")
                axes.text(column, row, number, ha="center", va="center", fontsize=8, color=colour)
    figure.colorbar(image, ax=axes, shrink=0.7, label="shared bricks / all bricks of both")
    return figure
