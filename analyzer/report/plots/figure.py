"""The canvas that every plot is drawn on: size, colours, labels that fit, saving.

Figures are made without pyplot, so that nothing global is touched: no current figure, no rcParams, no window.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: distinct with any kind of colour vision, and in grey.
BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
RED = "#D55E00"
GREY = "#9AA0A6"


def new_figure(width: float, height: float, *, title: str = "") -> Figure:
    """Return an empty figure of the given size in inches; text neither overlaps nor is cut."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        line = int(width * 9)
        figure.suptitle("\n".join(textwrap.wrap(shorten(title, 2 * line - 20), line)), fontsize=12, x=0.01, ha="left")
    return figure


def plain_axes(axes: Axes, *, grid: str) -> None:
    """Remove the frame, and all grid lines except along ``grid`` (``x`` or ``y``)."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="x" if grid == "x" else "y", color="#E3E6E8", linewidth=0.8)


def shorten(text: str, width: int) -> str:
    """Cut the middle of a text to at most ``width`` characters, since names differ at their ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def save(figure: Figure, path: Path | str) -> Path:
    """Write a figure as PNG, SVG or another format of matplotlib; equal figures give equal bytes.

    Raises:
        OSError: The file cannot be written.
        ValueError: The suffix is not a format of matplotlib.
    """
    from matplotlib import rc_context

    path = Path(path)
    # SVG identifiers are random and a date is written unless both are set.
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    with rc_context({"svg.hashsalt": "dlbricks"}):
        figure.savefig(path, dpi=150, metadata=metadata)
    return path


def row_height(rows: int) -> float:
    """Height in inches of a plot with one row per model, axes and title included."""
    return max(2.0, 1.5 + 0.3 * rows)


def name_rows(axes: Axes, names: Sequence[str], *, width: int = 34) -> None:
    """One row per name, the first on top."""
    axes.set_yticks(range(len(names)), [shorten(name, width) for name in names], fontsize=9)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
