"""The graph that a runtime executes for a model, and which of the model's layers each of its layers is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .graph import ModelGraph

__all__ = ["ExecutedModel"]


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedModel:
    """What a runtime executes for a model.

    Attributes:
        name: The model.
        source: Its own graph.
        graph: The graph that is executed, fused and laid out; its salt binds its keys to a stack and instruction set.
        origins: For each layer of ``graph`` the layers of ``source`` that it came from, by index; empty for what the
            runtime put in (layout changes). They may name folded layers that the runtime does execute.
        eliminated: Live layers of ``source`` that no layer of ``graph`` came from: the runtime has nothing to do for
            them.
        duplicated: Layers of ``source`` that several layers of ``graph`` came from, with the number of these.
    """

    name: str
    source: ModelGraph
    graph: ModelGraph
    origins: tuple[frozenset[int], ...]
    eliminated: frozenset[int]
    duplicated: Mapping[int, int]
