"""Cutting a model along a runtime's fusions: bricks of its own layers that no fusion of the runtime reaches beyond.

A brick of a layer alone hides what a runtime does across layers: it fuses Conv, Add and Relu of a model into one
operator, but finds each of them alone in a brick. The bricks made here hold what the runtime fuses whole, and are
plain ONNX with the keys of source bricks, to be measured anywhere. What is learnt from the runtime is only where to
cut.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...models.subgraphs import captures
from ..graph.flow import common_opsets, flow_of, flow_over, is_empty
from ..graph.footprint import with_reuse
from ..graph.graph import ExecutedModel, ModelGraph
from ..layer import DEQUANTIZE, Layer, LayerSequence, LayerState, Role
from .sequences import make_sequence, spans

if TYPE_CHECKING:
    import networkx as nx


# Units: groups of layers that stay together when a model is cut, such as those that a runtime fuses.
#
# Groups that were wished for are joined where they share a layer. A unit must be a network that a brick can be made of:
# an opset must exist that all of its layers can be written for, and no unit may wait for its own result, neither by a
# way through single layers nor by one through other units. A unit that would is cut, as few of them as possible.


_OPSETS = "no opset has all of these operators as they are written"
_WAITING = "a brick of them would wait for its own result, by way of other layers"


@dataclass(frozen=True, slots=True)
class UnitGroups:
    """The live layers of a model in groups.

    Attributes:
        groups: Layer indices, ascending in each; every live layer in exactly one group. No group reads what a later
            one makes; otherwise they are in the order of their first layers.
        reasons: Groups that were wished for but cannot be bricks, and were cut, each with why.
    """

    groups: tuple[tuple[int, ...], ...]
    reasons: Mapping[tuple[int, ...], str]

    @property
    def cut(self) -> tuple[tuple[int, ...], ...]:
        """The groups that were cut."""
        return tuple(sorted(self.reasons))


def units_of(graph: ModelGraph, wishes: Iterable[Collection[int]], *, copied: Collection[int] = ()) -> UnitGroups:
    """Group the live layers of a model.

    Args:
        graph: The model.
        wishes: Layers that should stay together; those that are not live are passed over.
        copied: Layers of which each reader has one for itself: it waits for what they read, not for them.

    Returns:
        The groups; layers that no wish names are alone.
    """
    edges = _without_copied(_edges(graph), copied)
    groups: list[tuple[int, ...]] = []
    reasons: dict[tuple[int, ...], str] = {}
    links = _joined(graph, wishes)
    for group in links:
        parts = _by_opset(graph, group)
        groups += parts
        reasons |= {group: _OPSETS} if len(parts) > 1 else {}
    while tangled := _tangles(edges, groups):
        # One that many wishes share a layer of ties up everything between them: it goes before smaller ones.
        for group in sorted(tangled, key=lambda group: (-links.get(group, 0), len(group), group)):
            parts = _untangled(edges, groups, group)
            if len(parts) > 1:
                groups.remove(group)
                groups += parts
                reasons[group] = _WAITING
                break
    return UnitGroups(_ordered(edges, groups), reasons)


def _joined(graph: ModelGraph, wishes: Iterable[Collection[int]]) -> dict[tuple[int, ...], int]:
    """Groups of live layers, those that share a layer joined, with the number of wishes in each."""
    leader = {index: index for index in graph.live}

    def find(index: int) -> int:
        while leader[index] != index:
            leader[index] = index = leader[leader[index]]
        return index

    links = dict.fromkeys(graph.live, 0)
    for wish in wishes:
        members = sorted(index for index in wish if index in leader)
        for other in members:
            leader[find(other)] = find(members[0])
        if members:
            links[members[0]] += 1
    groups: dict[int, list[int]] = {}
    for index in graph.live:
        groups.setdefault(find(index), []).append(index)
    return {tuple(group): sum(links[index] for index in group) for group in groups.values()}


def _by_opset(graph: ModelGraph, group: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The group, or its layers one by one where no opset is good for all."""
    common = common_opsets(graph.layers[index].valid_opsets for index in group)
    return [(index,) for index in group] if is_empty(common) else [group]


def _edges(graph: ModelGraph) -> list[tuple[int, int]]:
    """Producer and consumer of every value that is computed at run time, skipped layers included."""
    makers = {
        value: layer.index
        for layer in graph.layers
        if layer.state is not LayerState.FOLDED
        for value in layer.outputs
        if value
    }
    edges = []
    for layer in graph.layers:
        if layer.state is LayerState.FOLDED:
            continue
        reads = {operand.value for operand in layer.operands if operand.role is Role.ACTIVATION}
        if layer.state is LayerState.SKIPPED:
            reads.update((*layer.node.input, *captures(layer.node)))
        edges += [(makers[value], layer.index) for value in sorted(reads) if value in makers]
    return edges


def _without_copied(edges: list[tuple[int, int]], copied: Collection[int]) -> list[tuple[int, int]]:
    """The dataflow where every reader of a copied layer reads what that reads."""
    if not copied:
        return edges
    readers: dict[int, list[int]] = {}
    for maker, reader in edges:
        if maker in copied:
            readers.setdefault(maker, []).append(reader)
    found = []
    for maker, reader in edges:
        if maker not in copied:
            found += [(maker, reader), *((maker, further) for further in readers.get(reader, ()))]
    return found


def _contracted(edges: Iterable[tuple[int, int]], groups: Iterable[tuple[int, ...]]) -> nx.DiGraph[int]:
    """The dataflow with every group drawn together into its first layer; layers of no group are nodes themselves."""
    import networkx as nx  # 150 ms that only units cost

    place = {index: group[0] for group in groups for index in group}
    flow: nx.DiGraph[int] = nx.DiGraph()
    flow.add_nodes_from(place.values())
    pairs = ((place.get(maker, maker), place.get(reader, reader)) for maker, reader in edges)
    flow.add_edges_from((maker, reader) for maker, reader in pairs if maker != reader)
    return flow


def _tangles(edges: list[tuple[int, int]], groups: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The groups that wait for each other, or for themselves by way of what is in no group."""
    import networkx as nx

    tangled = {
        index
        for component in nx.strongly_connected_components(_contracted(edges, groups))
        if len(component) > 1
        for index in component
    }
    return [group for group in groups if group[0] in tangled and len(group) > 1]


def _untangled(
    edges: list[tuple[int, int]], groups: list[tuple[int, ...]], group: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Cut a group so that nothing outside stands between layers of one part; one part where nothing does."""
    import networkx as nx

    flow = _contracted(edges, [other for other in groups if other != group])
    flow.add_nodes_from(group)
    members = set(group)
    outside = flow.subgraph(set(flow) - members)
    later: dict[int, set[int]] = {}  # layer to those that wait for it by a way outside
    for index in group:
        reached: set[int] = set()
        for reader in flow.successors(index):
            if reader not in members:
                reached |= {reader, *nx.descendants(outside, reader)}
        later[index] = {member for member in members if not reached.isdisjoint(flow.predecessors(member))}
    parts: list[list[int]] = [[]]
    for index in group:
        if any(index in later[earlier] or earlier in later[index] for earlier in parts[-1]):
            parts.append([])
        parts[-1].append(index)
    return [tuple(part) for part in parts]


def _ordered(edges: list[tuple[int, int]], groups: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Groups in an order in which each reads of earlier ones only, nearest to that of their first layers."""
    flow = _contracted(edges, groups)
    by_first = {group[0]: group for group in groups}
    waiting = dict(flow.in_degree())
    ready = [node for node, degree in waiting.items() if not degree]
    heapq.heapify(ready)
    ordered = []
    while ready:
        node = heapq.heappop(ready)
        if node in by_first:
            ordered.append(by_first[node])
        for reader in flow.successors(node):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return tuple(ordered)


def fused_units(executed: ExecutedModel) -> UnitGroups:
    """The layers of a model in groups that no operator of the executed graph reaches beyond.

    Layers that share an executed operator, directly or through others, are one unit. A layer that the runtime has
    nothing to do for joins its neighbour: the one that reads its result where that is one, else the one that makes
    what it reads.

    Args:
        executed: What the runtime executes for the model.
    """
    copied = copied_layers(executed)
    wishes = [set(origin) - copied for origin in executed.origins]
    homes = [{index, _readers(executed.source, index)[0]} for index in sorted(copied)]
    return units_of(executed.source, [*wishes, *homes, *_companions(executed)], copied=copied)


def copied_layers(executed: ExecutedModel) -> frozenset[int]:
    """Conversions of quantised values that several layers read, and that the runtime has once for each of them.

    It folds each into the operator that reads it, or executes each: every reader's brick has one of its own.
    """
    source = executed.source
    return frozenset(
        index
        for index in executed.duplicated
        if source.layers[index].op_type == DEQUANTIZE
        and source.layers[index].state is LayerState.LIVE
        and len(_readers(source, index)) > 1
        and {*source.outputs}.isdisjoint(source.layers[index].outputs)
        and all(source.layers[reader].state is LayerState.LIVE for reader in _readers(source, index))
    )


def _readers(graph: ModelGraph, index: int) -> list[int]:
    return sorted({reader for value in graph.layers[index].outputs if value for reader in graph.consumers(value)})


def fused_sequences(
    executed: ExecutedModel, granularity: int, *, overlap: bool = False, connected: bool = False
) -> list[LayerSequence]:
    """Cut a model as ``split`` does, with units in place of layers.

    Args:
        executed: What the runtime executes for the model.
        granularity: G, the most units in a sequence.
        overlap: Begin a sequence at every unit, and add every unit alone.
        connected: Accept weakly connected windows of units, not only paths.

    Returns:
        Sequences of ``executed.source``, in the order of their units. Without ``overlap`` every live layer is in
        exactly one, but for copies of those that are in several (``copied_layers``).

    Raises:
        UsageError: ``granularity`` is less than 1.
    """
    graph = executed.source
    units = fused_units(executed).groups
    windows = spans(flow_over(graph, units), granularity, overlap=overlap, connected=connected)
    copied = copied_layers(executed)
    found = []
    for begin, end in windows:
        own = {index for unit in units[begin:end] for index in unit}
        copies = tuple(index for index in sorted(copied - own) if own.intersection(_readers(graph, index)))
        found.append(make_sequence(graph, tuple(sorted({*own, *copies})), copies=copies, copied=copied))
    return with_reuse(graph, found)


def _companions(executed: ExecutedModel) -> Iterator[set[int]]:
    """Each eliminated layer with the neighbour that it is to stay with."""
    graph = executed.source
    for index in sorted(executed.eliminated):
        neighbour = _neighbour(graph, index)
        if neighbour is not None:
            yield {index, neighbour}


def _neighbour(graph: ModelGraph, index: int) -> int | None:
    """The only live reader of a layer's results; else a live layer that makes what it reads, else any reader."""
    flow = flow_of(graph)
    layer = graph.layers[index]
    results = [value for value in layer.outputs if value]
    readers = sorted({graph.live[position] for value in results for position in flow.readers.get(value, ())})
    if len(readers) == 1 and not flow.leaving.intersection(results):
        return readers[0]
    makers = [graph.producer(operand.value) for operand in layer.operands if operand.value]
    live = [maker for maker in makers if maker is not None and maker in flow.position]
    return next(iter((*live, *readers)), None)


def edge_layouts(executed: ExecutedModel, sequences: Sequence[LayerSequence]) -> list[float]:
    """Of the layout changes at the edges of each brick, the part that the model itself has at the same edges.

    A runtime that runs a brick in a layout of its own changes the layout of everything that the brick reads and
    writes. A model does so where its own edges of that layout are, and nowhere between two operators of it. With
    ``full`` the latency of a brick, ``inner`` that of the same brick without the changes at its edges (measurement
    variant ``inner``) and ``share`` what is returned, the model spends on the sequence::

        full - (1 - share) * (full - inner)

    so that these sums hold the model's own layout changes at edges; those inside a sequence are in ``inner`` as well.
    A sum with a value from outside is fused in ``inner``, as in the model, and not in ``full``: with the edge that the
    value crosses goes what that costs. A brick without an ``inner`` measurement has no layout changes at its edges:
    its ``inner`` is ``full``.

    An edge counts with the bytes that cross it. A value of the model that is brought into the layout once, for
    several sequences, counts in each of them for its part; one that is brought out of it counts where it is made.

    Args:
        executed: What the runtime executes for the model.
        sequences: Of ``executed.source``, without overlap: as ``fused_sequences`` makes them, or ``bricks.sequences``.

    Returns:
        For each sequence a number from 0 to 1; 0 where the model runs none of its operators in another layout (its
        brick may all the same).
    """
    several = {index for sequence in sequences for index in sequence.copies}
    home = {
        index: number for number, sequence in enumerate(sequences) for index in sequence.layers if index not in several
    }
    homes = [frozenset(home[index] for index in origin if index in home) for origin in executed.origins]
    edges = _CrossedEdges(executed, homes)
    shares = []
    for number in range(len(sequences)):
        pairs = [*edges.entering(number), *edges.leaving(number)]
        total = sum(size for size, _ in pairs)
        shares.append(sum(size * part for size, part in pairs) / total if total else 0.0)
    return shares


class _CrossedEdges:
    """Where values cross between sequences in the executed graph, and in which layout."""

    def __init__(self, executed: ExecutedModel, homes: Sequence[frozenset[int]]) -> None:
        self._graph = executed.graph
        self._is_own = executed.layouts.is_own
        self._homes = homes
        self._changes = {
            layer.index
            for layer, origin in zip(executed.graph.layers, executed.origins, strict=True)
            if executed.layouts.is_change(layer, origin)
        }
        self._members: defaultdict[int, list[Layer]] = defaultdict(list)
        for layer, places in zip(executed.graph.layers, homes, strict=True):
            for place in places if layer.index not in self._changes and self._is_own(layer) else ():
                self._members[place].append(layer)

    def entering(self, number: int) -> Iterator[tuple[int, float]]:
        """(bytes, part that the model changes the layout of) of what a sequence reads in a layout of its own."""
        read = {value: None for layer in self._members[number] for value in _activations(layer)}
        for value in read:
            maker = self._graph.producer(value)
            if maker is None or (number in self._homes[maker] and maker not in self._changes):
                continue
            if maker in self._changes:
                origin = next(iter(_activations(self._graph.layers[maker])), "")
                behind = self._graph.producer(origin)
                if behind is None or number not in self._homes[behind]:
                    sharers = self._readers_of([value])
                    yield self._bytes(value), 1.0 / max(1, len(sharers))
            elif self._is_own(self._graph.layers[maker]):
                yield self._bytes(value), 0.0

    def leaving(self, number: int) -> Iterator[tuple[int, float]]:
        """The same of what it writes."""
        for value in (value for layer in self._members[number] for value in layer.outputs if value):
            readers = self._graph.consumers(value)
            changed = [
                result
                for reader in readers
                if reader in self._changes
                for result in self._graph.layers[reader].outputs
                if result
            ]
            if not self._leaves([value, *changed], number):
                continue
            yield self._bytes(value), 1.0 if self._leaves(changed, number) else 0.0

    def _leaves(self, values: Sequence[str], number: int) -> bool:
        """Whether another sequence or the caller reads one of the values, which layout changes do not count as."""
        outputs = not {*self._graph.outputs}.isdisjoint(values)
        return outputs or bool(self._readers_of(values) - {number})

    def _readers_of(self, values: Iterable[str]) -> set[int]:
        readers = {reader for value in values for reader in self._graph.consumers(value)} - self._changes
        return {place for reader in readers for place in self._homes[reader]}

    def _bytes(self, value: str) -> int:
        known = self._graph.types.get(value)
        return known.nbytes if known is not None else 0


def _activations(layer: Layer) -> Iterator[str]:
    return (operand.value for operand in layer.operands if operand.role is Role.ACTIVATION)
