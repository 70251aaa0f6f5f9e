"""Variants of bricks with large inputs or outputs in memory that is as cold as weights.

A layer usually reads values that the previous layer just wrote, and writes to memory that another layer used. A model's
inputs were written before the inference, and its outputs stay in memory, so neither is in the caches. An example is the
cache of keys and values that a decoder reads and extends in every step. The same holds for activations inside a model
that were written long ago, or to memory that was used long ago (``activations``). Examples are values that a Concat
joins after many layers. A brick with these values is measured as a separate variant.

A session with open lengths allocates its outputs in each execution, like activations, in memory that was just freed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ..layer import LayerSequence, LayerState, Role, TensorType
from ..operators import VIEWS
from ..work import weights_read
from .activations import LARGE_BYTES, SIZES, ColdMemory, cold_memory
from .footprint import MODEL_LEVELS, class_of
from .model_graph import ExecutedModel, ModelGraph

GIVEN = "given"
"""The variant of a brick with large inputs that nothing has just written."""

KEPT = "kept"
"""The variant of a brick with large outputs in memory that nothing has just used."""

BOTH = "given-kept"
"""The variant of a brick with both."""

HALF = "half-given"
"""The variant of a brick with about half of its large inputs like that: a skip connection and the value added to it."""

FRESH, FRESH_KEPT = "fresh", "fresh-kept"
"""The variants of a brick with large inputs that were written just before to cold memory: with warm and with cold large
outputs."""

BOUNDARY = (GIVEN, KEPT, BOTH, HALF, FRESH, FRESH_KEPT)

_NOTICED_BYTES = 1 << 20
"""Below this total of large inputs and outputs of a model, a core's caches hold most of them."""

_NS_PER_MAC, _NS_PER_BYTE, _MORE_NS_PER_FAR_BYTE = 0.025, 0.05, 0.1
"""Assumed rates of one core: they decide only which variants are measured, and enter no estimate."""


class Caches(NamedTuple):
    """How many bytes ago memory may have been touched to be still in caches.

    Attributes:
        core: In a core's private caches.
        last: In the last level.
        passing: In the last level, if it was used several times, and the memory touched since was used once: more than
            ``last`` if a cache distinguishes them. 0: nobody measured it.
    """

    core: int
    last: int
    passing: int = 0


USUAL = Caches(2 << 20, 64 << 20)
"""Caches of a machine on which nobody measured them."""

TYPICAL = (USUAL, Caches(1 << 20, 24 << 20, 64 << 20))
"""Caches of machines that a suite may travel to: for a whole socket, and for a few cores."""


def nearest(sizes: Iterable[int], last_bytes: int) -> int:
    """Return the size of a last-level cache that is nearest to another, as their ratio; one of nothing counts as 1."""
    return min(sizes, key=lambda size: abs(math.log(max(1, size) / max(1, last_bytes))))


def typical(last_bytes: int) -> Caches:
    """Return the typical caches with the last level that is nearest in size."""
    by_size = {caches.last: caches for caches in TYPICAL}
    return by_size[nearest(by_size, last_bytes)]


_NO_COLD_MEMORY = ColdMemory({}, ())

Place: TypeAlias = tuple[str, tuple[int, ...]]
"""Key and layers of a sequence."""

WORTH, _WORTH_AT_ENDS = 0.1, 0.02
"""Least share of a brick's time that far memory may add, for a variant inside a model and at its inputs and outputs."""


def boundary_variants(graph: ModelGraph, parts: Iterable[LayerSequence], caches: Caches = USUAL) -> Mapping[Place, str]:
    """Return the variants of ``BOUNDARY`` of sequences, by key and layers; missing sequences are warm at both ends.

    More than half of the bytes of a sequence's large inputs, or outputs, decide. If some inputs hold about half of the
    bytes (``half_of``), one half may be cold. A model's own inputs and outputs do not count if they are small, since a
    core's caches hold them; neither does a model that these caches hold whole. If moving inputs and outputs takes next
    to nothing of a sequence's time, they do not count either: the scores of a decoder's head are small compared with
    its weights.

    Args:
        graph: The model's executed graph.
        parts: Its sequences.
        caches: Of the machine (``generator.machine.cache_reach``).
    """
    outside = {*graph.inputs, *graph.outputs}
    total = sum(size for size in (_size(graph, value) for value in outside) if size >= LARGE_BYTES)
    noticed = outside if total >= _NOTICED_BYTES else set[str]()
    level = class_of(graph)
    cold = _NO_COLD_MEMORY
    if level in MODEL_LEVELS:
        passing = caches.passing if level > caches.passing else 0
        cold = cold_memory(graph, _near(level, caches), caches.core, passing)
    if not noticed and not cold.far and not cold.fresh:
        return {}
    first = _first_readers(graph, noticed.intersection(graph.inputs))
    kept = set[str]() if graph.opened else noticed.intersection(graph.outputs)
    found = ((part, _variant(graph, part, first, kept, cold)) for part in parts)
    return {(part.key, part.layers): variant for part, variant in found if variant}


def variants_along_fusions(
    executed: ExecutedModel, parts: Sequence[LayerSequence], caches: Caches = USUAL
) -> Mapping[Place, str]:
    """Return the variants of sequences of a model that was cut along its fusions, as ``boundary_variants``.

    Memory is planned for the graph that the runtime executes: the layers that it executes for a sequence decide.
    """
    graph = executed.graph
    several = {index for part in parts for index in part.copies}
    homes: defaultdict[int, set[int]] = defaultdict(set)
    for number, part in enumerate(parts):
        for index in set(part.layers) - several:
            homes[index].add(number)
    executed_for: defaultdict[int, list[int]] = defaultdict(list)
    for layer, origin in zip(graph.layers, executed.origins, strict=True):
        holders = [homes[index] for index in sorted(origin) if index in homes]
        for number in sorted(set.intersection(*holders)) if holders else ():
            executed_for[number].append(layer.index)
    stand_ins = {number: _standing_in(graph, parts[number], layers) for number, layers in executed_for.items()}
    found = boundary_variants(graph, stand_ins.values(), caches)
    places = {(part.key, part.layers): parts[number] for number, part in stand_ins.items()}
    return {(places[place].key, places[place].layers): variant for place, variant in found.items()}


def _standing_in(graph: ModelGraph, part: LayerSequence, layers: Sequence[int]) -> LayerSequence:
    """Return the sequence of the layers that are executed for a sequence of the model."""
    inside = set(layers)
    made = dict.fromkeys(value for index in layers for value in graph.layers[index].outputs if value)
    read = dict.fromkeys(
        operand.value
        for index in layers
        for operand in graph.layers[index].operands
        if operand.role is Role.ACTIVATION and operand.value not in made
    )
    outputs = (value for value in made if value in graph.outputs or not inside.issuperset(graph.consumers(value)))
    return LayerSequence(tuple(layers), part.key, tuple(read), (), tuple(outputs))


def _near(level: int, caches: Caches) -> int:
    """Return how many bytes ago memory must have been touched to be more like a pack's warm memory than its cold one.

    Memory that a pack touched a whole pass ago is as cold as its footprint class. The last-level cache loses memory
    gradually, from about half of its capacity to one and a half. On an AMD EPYC with 24 MiB, adding a block took 24 us
    per MiB if the block was touched about 10 MiB ago, 29 at 23 MiB, and 34 at 36 MiB. Half of the memory that the class
    loses is lost halfway from that beginning to the class. A pack of a smaller class loses nothing, and the size of a
    core's private caches decides.
    """
    begin, end = caches.last // 2, caches.last * 3 // 2
    return max(caches.core, (begin + min(level, end)) // 2) if level > begin else caches.core


def _variant(
    graph: ModelGraph,
    part: LayerSequence,
    first: Mapping[str, int],
    kept: Collection[str],
    memory: ColdMemory,
) -> str:
    """Return the variant of a sequence.

    Args:
        graph: The model's executed graph.
        part: The sequence.
        first: The first layer that reads each of the model's own inputs that count.
        kept: The model's own outputs that count.
        memory: The cold memory that the graph's layers find.
    """
    given = {value for value in part.inputs if first.get(value, -1) in part.layers}
    inputs, outputs = (
        {value: size for value in values if (size := _size(graph, value)) >= LARGE_BYTES}
        for values in (part.inputs, part.outputs)
    )
    traffic = sum(inputs.values()) + sum(outputs.values())
    at_ends = sum(inputs[value] for value in inputs if value in given)
    at_ends += sum(outputs[value] for value in outputs if value in kept)
    if at_ends and _far_share(graph, part, at_ends, traffic) < _WORTH_AT_ENDS:
        inputs = {value: size for value, size in inputs.items() if value not in given}
        outputs = {value: size for value, size in outputs.items() if value not in kept}
    far_inputs = {value: _far(part, value, memory.far) for value in inputs if value not in given}
    far_outputs = {value: _far(part, value, memory.far) for value in outputs if value not in kept}
    fresh = sum(size for value, size in inputs.items() if any((index, value) in memory.fresh for index in part.layers))
    moved = sum(far_inputs.values()) + sum(far_outputs.values()) + fresh
    is_view = all(graph.layers[index].op_type in VIEWS for index in part.layers)  # it would copy an input of a network
    if is_view or _far_share(graph, part, moved, traffic) < WORTH:
        far_inputs, far_outputs, fresh = dict.fromkeys(far_inputs, 0), dict.fromkeys(far_outputs, 0), 0
    cold, size = sum((inputs | far_inputs).values()), sum(inputs.values())
    cold_out = 2 * sum((outputs | far_outputs).values()) > sum(outputs.values())
    if not cold_out and half_of(inputs) and 4 * cold >= size and 4 * cold <= 3 * size:
        return HALF
    if 2 * cold > size:
        return BOTH if cold_out else GIVEN
    if 2 * fresh > size:
        return FRESH_KEPT if cold_out else FRESH
    return KEPT if cold_out else ""


def _first_readers(graph: ModelGraph, values: Collection[str]) -> dict[str, int]:
    """Return the layer that reads each value first, which leaves it in the caches for those after it."""
    found: dict[str, int] = {}
    for layer in (layer for layer in graph.layers if layer.state is LayerState.LIVE and layer.op_type not in SIZES):
        for operand in layer.operands:
            if operand.value in values:
                found.setdefault(operand.value, layer.index)
    return found


def half_of(sizes: Mapping[str, int]) -> frozenset[str]:
    """Return inputs that hold a quarter to half of the bytes of all; empty if no whole inputs do.

    Args:
        sizes: Bytes of each input.
    """
    chosen, left = set[str](), sum(sizes.values()) // 2
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if sizes[name] <= left:
            chosen.add(name)
            left -= sizes[name]
    held = sum(sizes[name] for name in chosen)
    return frozenset(chosen if 4 * held >= sum(sizes.values()) else ())


def _far(part: LayerSequence, value: str, far: Mapping[tuple[int, str], int]) -> int:
    """Return the far bytes of an activation for the first layer of a sequence that reads or writes it."""
    return next((far[index, value] for index in part.layers if (index, value) in far), 0)


def _far_share(graph: ModelGraph, part: LayerSequence, far_bytes: int, traffic: int) -> float:
    """Return the time that far memory may add to a sequence, as a share of the time without it.

    Args:
        graph: The model's executed graph.
        part: The sequence.
        far_bytes: Bytes of its inputs and outputs that are far.
        traffic: Bytes of all its large inputs and outputs.
    """
    layers = [graph.layers[index] for index in part.layers]
    macs = sum(layer.cost.macs for layer in layers if layer.cost is not None)
    return far_share(macs, traffic + weights_read(layers), far_bytes)


def far_share(macs: int, size: int, far_bytes: int) -> float:
    """Return the time that far memory may add, as a share of the time without it.

    Args:
        macs: Multiply-accumulates.
        size: Bytes of weights, inputs and outputs.
        far_bytes: Bytes of inputs and outputs that are far.
    """
    time_ns = assumed_ns(macs, size)
    return far_bytes * _MORE_NS_PER_FAR_BYTE / time_ns if time_ns else 0.0


def assumed_ns(macs: int, size: int) -> float:
    """Return a rough time in ns of so many multiply-accumulates on so many bytes, for decisions only."""
    return macs * _NS_PER_MAC + size * _NS_PER_BYTE


def _size(graph: ModelGraph, value: str) -> int:
    kind: TensorType | None = graph.types.get(value) or graph.inputs.get(value)
    return 0 if kind is None else kind.nbytes
