"""The graph that a runtime executes for a model, and which of the model's layers each of its layers is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..layer import Layer
from .graph import ModelGraph

__all__ = ["ExecutedModel", "Layouts"]


@dataclass(frozen=True, slots=True)
class Layouts:
    """Which layers of an executed graph work in a layout of the runtime's own, and which change the layout.

    Attributes:
        changes: Operators that bring a value into such a layout, or out of it.
        domains: Domains whose operators all work in one.
        prefixes: How the names of other operators that work in one begin.
        flags: Attributes that mark any operator as working in one, where they are not 0.
    """

    changes: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()

    def is_change(self, layer: Layer, origin: frozenset[int]) -> bool:
        """Whether a layer changes the layout of what it reads; so does any transposition that the runtime put in."""
        return layer.kind in self.changes or (layer.op_type == "Transpose" and not origin)

    def is_own(self, layer: Layer) -> bool:
        """Whether a layer works in a layout of the runtime's own."""
        flagged = any(attribute.name in self.flags and attribute.i for attribute in layer.node.attribute)
        return layer.domain in self.domains or flagged or layer.op_type.startswith(self.prefixes)


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
        layouts: How the runtime's own layouts show in ``graph``.
    """

    name: str
    source: ModelGraph
    graph: ModelGraph
    origins: tuple[frozenset[int], ...]
    eliminated: frozenset[int]
    duplicated: Mapping[int, int]
    layouts: Layouts
