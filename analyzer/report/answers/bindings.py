"""What dynamic dimensions were bound to, as lines below a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["bound_lines", "values_of"]

_NAMED = 4
"""Models that a line names, before it counts them."""

_LINES = 5
"""Different bindings that a summary lists."""


def values_of(bound: Mapping[str, int]) -> str:
    """Dimensions and their values: ``batch=1 past_sequence_length=127``."""
    return " ".join(f"{name}={size}" for name, size in bound.items())


def bound_lines(models: Iterable[tuple[str, Mapping[str, int]]]) -> list[str]:
    """One line per binding, with the models that it is of; none for models whose shapes are static."""
    alike: dict[str, list[str]] = {}
    for name, bound in models:
        if bound:
            alike.setdefault(values_of(bound), []).append(name)
    lines = []
    for values, names in list(alike.items())[:_LINES]:
        rest = len(names) - _NAMED
        listed = ", ".join([*names[:_NAMED], *([f"and {rest} more"] if rest > 0 else [])])
        lines.append(f"bound: {values} ({listed})")
    if len(alike) > _LINES:
        lines.append(f"and {len(alike) - _LINES} more bindings (--json lists all)")
    return lines
