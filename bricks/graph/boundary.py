"""What a model reads from outside and what it gives away: memory that nothing inside of the model has touched before.

A layer reads what the layer before it wrote a moment ago, and writes where another wrote. What a model's own inputs
hold was written before the whole of it, and what it returns stays, so that neither is in the caches: the cache of keys
and values that a decoder reads and extends in every step comes from memory and goes there. A brick at such a place is
measured for it, as a variant of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from ..layer import LayerSequence, TensorType
from .graph import ModelGraph

GIVEN = "given"
"""The variant of a brick whose large inputs are the model's own."""

KEPT = "kept"
"""The variant of a brick whose large outputs are the model's own."""

BOTH = "given-kept"
"""The variant of a brick of which both are."""

BOUNDARY = (GIVEN, KEPT, BOTH)

LARGE_BYTES = 64 << 10
"""Less than that is read from memory within a few microseconds."""

_NOTICED_BYTES = 1 << 20
"""A model whose large inputs and outputs together are less finds most of them in the caches of a core."""


def boundary_of(graph: ModelGraph, part: LayerSequence) -> str:
    """Which of ``BOUNDARY`` a sequence is, by all of its inputs and outputs that are large; empty where it is none."""
    given = _all_outside(graph, part.inputs, graph.inputs)
    kept = _all_outside(graph, part.outputs, graph.outputs)
    return (BOTH if given else KEPT) if kept else GIVEN if given else ""


def boundary_variants(graph: ModelGraph, parts: Iterable[LayerSequence]) -> Mapping[str, Collection[str]]:
    """The variants that the bricks of a model are wanted in, by key.

    Empty for models that read and give little, all of which stays in the caches of a core.
    """
    outside = {*graph.inputs, *graph.outputs}
    sizes = (_size(graph, value) for value in outside)
    if sum(size for size in sizes if size >= LARGE_BYTES) < _NOTICED_BYTES:
        return {}
    found: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        if variant := boundary_of(graph, part):
            found[part.key].add(variant)
    return found


def _all_outside(graph: ModelGraph, values: Iterable[str], outside: Collection[str]) -> bool:
    large = [value for value in values if _size(graph, value) >= LARGE_BYTES]
    return bool(large) and all(value in outside for value in large)


def _size(graph: ModelGraph, value: str) -> int:
    kind: TensorType | None = graph.types.get(value) or graph.inputs.get(value)
    return 0 if kind is None else kind.nbytes
