"""What is stored of bricks as one model holds them: those at its own inputs and outputs as they were measured there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from ..bricks.graph.boundary import boundary_of
from ..bricks.graph.graph import ModelGraph
from ..bricks.sequence import LayerSequence
from .stored import Stored

__all__ = ["at_boundary"]


def at_boundary(stored: Stored, graph: ModelGraph | None, parts: Iterable[LayerSequence], state: str) -> Stored:
    """What is known of a model's bricks, with those at its edges as they are measured there, where they are.

    A brick that a model holds at its edge and inside of it as well is taken as inside.

    Args:
        stored: What is known of bricks.
        graph: The graph that was cut; None where it is not known.
        parts: Its sequences.
        state: The cache state that its bricks are looked up in.
    """
    bricks = stored.bricks_in(state)
    if graph is None or not any(bricks.boundary.values()):
        return stored
    places: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        places[part.key].add(boundary_of(graph, part))
    latest = dict(bricks.latest)
    for key, variants in places.items():
        variant = next(iter(variants))
        if len(variants) == 1 and (found := bricks.boundary.get(variant, {}).get(key)) is not None:
            latest[key] = found
    return replace(stored, bricks={**stored.bricks, state: replace(bricks, latest=latest)})
