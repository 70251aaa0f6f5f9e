"""What is stored of bricks as iterations of a loop hold them: with weights that the iteration before has read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ..bricks.graph.footprint import is_level, level_name
from ..bricks.sequence import LayerSequence
from ..db import Measurement
from .decomposition import Decomposition
from .stored import Stored

__all__ = ["repeated_windows", "with_repeated"]


def repeated_windows(model: Decomposition) -> set[tuple[int, str]]:
    """Footprint class and key of the windows that may compete with sequences of iterations in the lower bound."""
    live = model.graph.live
    found: set[tuple[int, str]] = set()
    classes = {index: part.reuse for part in model.sequences if part.reuse for index in part.layers}
    for window in model.windows if classes else ():
        found |= {(classes[index], window.key) for index in live[window.begin : window.end] if index in classes}
    return found


def with_repeated(
    stored: Stored, parts: Sequence[LayerSequence], state: str, windows: Collection[tuple[int, str]] = ()
) -> Stored:
    """What is known of a model's bricks, with those of iterations as they are measured for these, where they are.

    In a lower bound the warmer of both competes for every occurrence: lower than the model can be by what the first
    iteration takes longer.

    Args:
        stored: What is known of bricks.
        parts: Sequences of the model.
        state: The cache state that its bricks are looked up in; iterations are as warm in no other than a footprint
            class.
        windows: ``repeated_windows``.
    """
    wanted = {(part.reuse, part.key) for part in parts if part.reuse} | {*windows}
    if not wanted or not is_level(state):
        return stored
    bricks = stored.bricks_in(state)
    repeated: dict[int, dict[str, Measurement]] = {level: {**known} for level, known in bricks.repeated.items()}
    rivals = {**bricks.rivals}
    for level, key in sorted(wanted):
        warm = stored.bricks_in(level_name(level))
        if key in warm.latest:
            repeated.setdefault(level, {})[key] = warm.latest[key]
        both = [some for some in (rivals.get(key), warm.rivals.get(key)) if some]
        if both:
            rivals[key] = min(both, key=lambda some: some[0].latency_ns)
    return replace(stored, bricks={**stored.bricks, state: replace(bricks, repeated=repeated, rivals=rivals)})
