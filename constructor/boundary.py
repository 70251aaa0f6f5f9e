"""What is stored of bricks as one model holds them: those at its own inputs and outputs as they were measured there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..bricks.graph.boundary import boundary_of, boundary_variants
from ..bricks.graph.graph import ModelGraph
from ..bricks.sequence import LayerSequence
from .stored import Stored

__all__ = ["at_boundary"]


def at_boundary(stored: Stored, graph: ModelGraph | None, parts: Sequence[LayerSequence], state: str) -> Stored:
    """What is known of a model's bricks, with those at its edges as they are measured there, where they are.

    A brick that a model holds at its edge and inside of it as well is taken as inside, and so are all bricks of a model
    that reads and gives little: what is stored of them may have been measured for another model.

    Args:
        stored: What is known of bricks.
        graph: The graph that was cut; None where it is not known.
        parts: Its sequences.
        state: The cache state that its bricks are looked up in.
    """
    bricks = stored.bricks_in(state)
    if graph is None or not any(bricks.boundary.values()):
        return stored
    wanted = boundary_variants(graph, parts)
    inside = {part.key for part in parts if not boundary_of(graph, part)}
    latest = dict(bricks.latest)
    for key, variants in wanted.items():
        (variant, *others) = variants
        if others or key in inside:
            continue
        if (found := bricks.boundary.get(variant, {}).get(key)) is not None:
            latest[key] = found
    return replace(stored, bricks={**stored.bricks, state: replace(bricks, latest=latest)})
