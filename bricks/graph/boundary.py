"""Large inputs and outputs of a model: memory that no earlier layer of the model has touched.

A layer usually reads values that the previous layer just wrote, and writes to memory that another layer used. A model's
inputs were written before the inference, and its outputs stay in memory, so neither is in the caches. An example is the
cache of keys and values that a decoder reads and extends in every step. A brick with these values is measured as a
separate variant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from ..layer import LayerSequence, TensorType
from .model_graph import ModelGraph

GIVEN = "given"
"""The variant of a brick with large inputs that are all inputs of the model."""

KEPT = "kept"
"""The variant of a brick with large outputs that are all outputs of the model."""

BOTH = "given-kept"
"""The variant of a brick with both."""

BOUNDARY = (GIVEN, KEPT, BOTH)

LARGE_BYTES = 64 << 10
"""Smaller values are read from memory within a few microseconds."""

_NOTICED_BYTES = 1 << 20
"""Below this total of large inputs and outputs a core's caches hold most of them."""


def boundary_of(graph: ModelGraph, part: LayerSequence) -> str:
    """Return the variant of ``BOUNDARY`` that a sequence is, judged by all its large inputs and outputs; else empty."""
    inputs_given = _all_outside(graph, part.inputs, graph.inputs)
    outputs_kept = _all_outside(graph, part.outputs, graph.outputs)
    return (BOTH if inputs_given else KEPT) if outputs_kept else GIVEN if inputs_given else ""


def boundary_variants(graph: ModelGraph, parts: Iterable[LayerSequence]) -> Mapping[str, Collection[str]]:
    """Return the boundary variants of a model's bricks, by key.

    Empty for models with small inputs and outputs, which stay in the caches of a core.
    """
    outside = {*graph.inputs, *graph.outputs}
    sizes = (_size(graph, value) for value in outside)
    if sum(size for size in sizes if size >= LARGE_BYTES) < _NOTICED_BYTES:
        return {}
    variants_by_key: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        if variant := boundary_of(graph, part):
            variants_by_key[part.key].add(variant)
    return variants_by_key


def _all_outside(graph: ModelGraph, values: Iterable[str], outside: Collection[str]) -> bool:
    large = [value for value in values if _size(graph, value) >= LARGE_BYTES]
    return bool(large) and all(value in outside for value in large)


def _size(graph: ModelGraph, value: str) -> int:
    kind: TensorType | None = graph.types.get(value) or graph.inputs.get(value)
    return 0 if kind is None else kind.nbytes
