"""Origins by name: which layers became which node, where a runtime states for each node what it was made of.

A runtime that rewrites a model keeps the names of some layers in each node, and forgets others: a convolution that a
normalisation was folded into has the name of the normalisation alone. A layer whose name is nowhere is then what stands
between two that are known: all that reads it went into the same node, and so did it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx

from ...bricks.graph.graph import ModelGraph
from ..backends.base import MADE_OF

__all__ = ["named_origins", "taken_names"]


def taken_names(executed: onnx.ModelProto) -> list[frozenset[str]] | None:
    """For each node of an executed graph the values that it was made of, which are no part of it any longer.

    None where the runtime does not state them (``base.GraphBackend``).
    """
    stated = [next((one for one in node.attribute if one.name == MADE_OF), None) for node in executed.graph.node]
    if all(one is None for one in stated):
        return None
    for node, attribute in zip(executed.graph.node, stated, strict=True):
        if attribute is not None:
            node.attribute.remove(attribute)
    return [frozenset(name.decode() for name in one.strings) if one is not None else frozenset() for one in stated]


def named_origins(source: ModelGraph, names: Sequence[Collection[str]]) -> list[frozenset[int]]:
    """For each node of an executed graph the layers that it came from.

    Args:
        source: The model.
        names: Values of it that each node was made of; other names are passed over.

    Returns:
        Indices of layers; of those that are folded only where a node bears their name. Empty for a node that was put
        in.
    """
    homes: dict[int, set[int]] = {}
    for number, values in enumerate(names):
        for value in values:
            if (maker := source.producer(value)) is not None:
                homes.setdefault(maker, set()).add(number)
    for index in reversed(source.live):
        if index not in homes and (home := _home_of_readers(source, index, homes)):
            homes[index] = home
    origins: list[set[int]] = [set() for _ in names]
    for index, found in homes.items():
        for number in found:
            origins[number].add(index)
    return [frozenset(origin) for origin in origins]


def _home_of_readers(source: ModelGraph, index: int, homes: dict[int, set[int]]) -> set[int]:
    """The nodes that all readers of a layer became; none where these differ, or somebody else reads it too."""
    values = [value for value in source.layers[index].outputs if value]
    readers = {reader for value in values for reader in source.consumers(value)}
    found = {frozenset(homes.get(reader, ())) for reader in readers}
    if len(found) != 1 or not {*source.outputs}.isdisjoint(values):
        return set()
    return set(found.pop())
