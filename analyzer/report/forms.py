"""What a brick is called and looks like, in the same words in every table of layers.

A layer has the name that it has in the model's own graph. The node that a runtime executes for it stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from .tables import Column

if TYPE_CHECKING:
    from ...constructor.form import Form

__all__ = ["FORM", "form_cells", "form_columns", "kernel_of", "shapes_of"]

FORM = Column("form", "operators, shapes, first layer")
"""All cells as one, which wraps: for tables of many figures."""

_NAMED = 3
"""Layers that a cell names, before it counts them."""

_LONGEST = 40
"""Characters of a kernel's name; those of CUDA are a page long."""

_INPUTS = 2
"""Different shapes that a cell gives, likewise."""


def form_cells(op_types: Sequence[str], names: Sequence[str], form: Form | None) -> dict[str, object]:
    """Cells of a brick.

    Args:
        op_types: Its operators.
        names: Names of its layers in the graph that was cut.
        form: Their names in the model's own graph, and shapes; None where these are not known.
    """
    layers = tuple(names) if form is None else form.source_layers
    cells = {
        "operators": " + ".join(op_types),
        "kernel": "" if form is None else kernel_of(form.kernel, form.strides),
        "shapes": "" if form is None else shapes_of(form.inputs, form.outputs),
        "layer": _listed(layers),
        "node": "" if tuple(names) == layers else _listed(names),
        "ran": "" if form is None else _listed([_cut(name) for name in form.kernels if name not in op_types], 1),
    }
    node = f"({cells['node']})" if cells["node"] else ""
    ran = f"by {cells['ran']}" if cells["ran"] else ""
    words = [cells["operators"], cells["kernel"], cells["shapes"] and f"{cells['shapes']};", cells["layer"], node, ran]
    shown: dict[str, object] = {name: text or None for name, text in cells.items()}
    return shown | {"form": " ".join(filter(None, words))}


def form_columns(rows: Iterable[Mapping[str, object]]) -> list[Column]:
    """Columns of these cells, but for those that are empty in every one of these rows."""
    known = {name for row in rows for name, value in row.items() if value is not None}
    titles = {"node": "runtime's node", "ran": "ran by"}
    names = ("operators", "kernel", "shapes", "layer", "node", "ran")
    return [Column(name, titles.get(name, name)) for name in names if name in known]


def kernel_of(kernel: str, strides: str) -> str:
    """Kernels and strides: ``3x3/2``, and ``3x3`` where the stride is 1; of several operators with a plus."""
    pairs = zip(kernel.split(), [_stride(steps) for steps in strides.split()], strict=False)
    return "+".join(f"{sizes}/{steps}" if steps != "1" else sizes for sizes, steps in pairs)


def shapes_of(inputs: str, outputs: str) -> str:
    """What a brick reads and writes: ``1x24x56x56 → 1x61x56x56``; float where nothing else is said."""
    return " → ".join(_listed([_shape(word) for word in side.split()] or ["-"], _INPUTS) for side in (inputs, outputs))


def _stride(steps: str) -> str:
    """One number where all are the same."""
    different = set(steps.split("x"))
    return different.pop() if len(different) == 1 else steps


def _shape(word: str) -> str:
    """``float[1,2]`` as ``1x2``."""
    dtype, _, sizes = word.rstrip("]").partition("[")
    shape = sizes.replace(",", "x") or "scalar"
    return shape if dtype == "float" else f"{dtype} {shape}"


def _listed(words: Sequence[str], most: int = _NAMED) -> str:
    rest = len(words) - most
    return ", ".join([*words[:most], *([f"and {rest} more"] if rest > 0 else [])])


def _cut(name: str) -> str:
    name = name.removeprefix("com.microsoft.")
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
