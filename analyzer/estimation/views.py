"""Bricks that an eager runtime answers with a view: nothing is moved, and whoever reads the result pays."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ends_in_view"]

_REARRANGING = frozenset({"Expand", "Slice", "Split", "Transpose"})
"""Operators whose result may be a view with steps of its own."""

_IN_PLACE = frozenset({"Dropout", "Identity", "Squeeze", "Unsqueeze"})
"""Operators that hand such a view on."""


def ends_in_view(operators: Sequence[str]) -> bool:
    """Whether what a brick computes last is the same values in another order, or a part of them.

    Args:
        operators: Its operators, in order.
    """
    last = next((name for name in reversed(operators) if name not in _IN_PLACE), "")
    return last in _REARRANGING
