"""What dynamic dimensions were bound to, and which course control flow takes, as lines below a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..units import counted, milliseconds

if TYPE_CHECKING:
    from ....bricks.graph.control import ControlFlow
    from ....constructor.result import Framing

__all__ = ["bound_lines", "control_lines", "values_of"]

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


def control_lines(
    models: Iterable[tuple[str, Sequence[ControlFlow]]], framing: Iterable[Sequence[Framing]] = ()
) -> list[str]:
    """One line per operator of control flow: its course, where that is known from, and what it became.

    Args:
        models: Name and control flow of each.
        framing: What each of these operators takes beyond its body, model by model; nothing where that is not known.
    """
    known = iter(framing)
    lines = []
    for name, control in models:
        own = next(known, ()) or (None,) * len(control)
        lines += [f"{name}: {_told(flow)}{_taking(one)}" for flow, one in zip(control, own, strict=True)]
    rest = len(lines) - _LINES
    return [*lines[:_LINES], *([f"and {rest} more of control flow (--json lists all)"] if rest > 0 else [])]


def _taking(own: Framing | None) -> str:
    """What control flow takes by itself, as far as that is measured apart."""
    if own is None or (own.own_ms is None and own.moved_ms is None):
        return ""
    parts = (("beyond its body", own.own_ms), ("slices and stacks", own.moved_ms))
    return "".join(f"; {words} {milliseconds(ms)} ms" for words, ms in parts if ms is not None)


def _told(flow: ControlFlow) -> str:
    course = flow.course if flow.op_type == "If" else counted(int(flow.course), "iteration") if flow.course else ""
    words = [f"{flow.op_type} {flow.name}", *([course] if course else []), str(flow.how)]
    times = f" {flow.times} times" if flow.times > 1 else ""
    became = f", written out as {counted(flow.layers, 'layer')}" if flow.layers else ", one layer"
    return f"{' '.join(words)}{times}{became}{f': {flow.reason}' if flow.reason else ''}"
