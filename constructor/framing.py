"""What of an estimate is control flow itself: its operators beyond their bodies, slices and stacks around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..bricks.graph.control import BARE, FRAMING, ControlFlow
from .composition.composition import sequential
from .result import Framing, SequenceLatency

__all__ = ["framing_of"]


def framing_of(control: Iterable[ControlFlow], rows: Sequence[SequenceLatency]) -> tuple[Framing, ...]:
    """One entry per operator of control flow, in the order given.

    Args:
        control: The model's control flow. Of operators with one name nothing is said: their layers have one, too.
        rows: The sequences that the estimate is composed of. Those that hold other layers as well say nothing.
    """
    flows = tuple(control)
    names = Counter(flow.name for flow in flows)
    return tuple(_framing(flow, rows) if names[flow.name] == 1 else Framing() for flow in flows)


def _framing(flow: ControlFlow, rows: Sequence[SequenceLatency]) -> Framing:
    own = [row for row in rows if _sources(row) == {f"{flow.name}{BARE}"}]
    slices = [row for row in rows if _sources(row) and all(_frames(flow, name) for name in _sources(row))]
    return Framing(_total_ms(own), _total_ms(slices) if flow.op_type != "If" else None)


def _sources(row: SequenceLatency) -> set[str]:
    """The layers of the model's own graph that a sequence stands for, whichever graph was cut."""
    return {*(row.names if row.form is None else row.form.source_layers)}


def _frames(flow: ControlFlow, name: str) -> bool:
    return name.startswith(f"{flow.name}/") and name.removeprefix(f"{flow.name}/").partition("/")[0] in FRAMING


def _total_ms(rows: Sequence[SequenceLatency]) -> float | None:
    """The sum; None where there are none, or one is not measured."""
    known = [row.latency_ms for row in rows if row.latency_ms is not None]
    return sequential(known) if rows and len(known) == len(rows) else None
