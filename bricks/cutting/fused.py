"""Cutting a model along a runtime's fusions: bricks of its own layers that contain each fusion whole.

A runtime fuses Conv, Add and Relu of a model into one operator, but executes them separately in bricks of one layer.
The bricks made here contain whole fusions. They are plain ONNX with the keys of source bricks and can be measured
anywhere. Only the places to cut depend on the runtime.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...models.subgraphs import captures
from ...models.time_limit import in_time
from ..graph.flow import common_opsets, flow_of, flow_over, is_empty
from ..graph.footprint import with_reuse
from ..graph.model_graph import ExecutedModel, ModelGraph
from ..layer import Layer, LayerSequence, LayerState, Role
from ..operators import DEQUANTIZE, VIEWS, Trait, having
from .sequences import make_sequence, spans

if TYPE_CHECKING:
    import networkx as nx


# Units: groups of layers that stay together when a model is cut, such as fused layers.
#
# Requested groups that share a layer are joined. A unit must be a valid brick: one opset must suit all of its layers,
# and no unit may wait for its own result, through single layers or through other units. As few units as possible are
# cut for this.


_AS_VIEWS = VIEWS | having(Trait.STRIDED)

_OPSETS = "no opset has all of these operators as they are written"
_WAITING = "a brick of them would wait for its own result through other layers"


@dataclass(frozen=True, slots=True)
class UnitGroups:
    """The live layers of a model in groups.

    Attributes:
        groups: Layer indices, ascending in each; every live layer in exactly one group. No group reads results of a
            later one; apart from this they are in the order of their first layers.
        reasons: Requested groups that were cut because they cannot be bricks, each with the reason.
    """

    groups: tuple[tuple[int, ...], ...]
    reasons: Mapping[tuple[int, ...], str]


def units_of(graph: ModelGraph, wishes: Iterable[Collection[int]], *, copied: Collection[int] = ()) -> UnitGroups:
    """Group the live layers of a model.

    Args:
        graph: The model.
        wishes: Layers to keep together; other layers than live ones are ignored.
        copied: Layers that are copied for each reader: readers wait for the inputs of these layers, not for the layers.

    Returns:
        The groups; a layer outside all wishes is alone.
    """
    edges = _without_copied(_edges(graph), copied)
    groups: list[tuple[int, ...]] = []
    reasons: dict[tuple[int, ...], str] = {}
    links = _joined(graph, wishes)
    for group in links:
        # The group, or its layers one by one if no opset suits all of them.
        common = common_opsets(graph.layers[index].valid_opsets for index in group)
        parts = [(index,) for index in group] if is_empty(common) else [group]
        groups += parts
        reasons |= {group: _OPSETS} if len(parts) > 1 else {}
    while tangled := _tangles(edges, groups):
        # A group of many wishes blocks everything between them, so it is cut before smaller ones.
        for group in sorted(tangled, key=lambda group: (-links.get(group, 0), len(group), group)):
            parts = _untangled(edges, groups, group)
            if len(parts) > 1:
                groups.remove(group)
                groups += parts
                reasons[group] = _WAITING
                break
    return UnitGroups(_ordered(edges, groups), reasons)


def _joined(graph: ModelGraph, wishes: Iterable[Collection[int]]) -> dict[tuple[int, ...], int]:
    """Return groups of live layers, joined if they share a layer, with the number of wishes in each."""
    from networkx.utils import UnionFind

    joined = UnionFind(graph.live)
    links = dict.fromkeys(graph.live, 0)
    for wish in wishes:
        members = sorted(index for index in wish if index in links)
        if members:
            joined.union(*members)
            links[members[0]] += 1
    groups: dict[int, list[int]] = {}
    for index in graph.live:
        groups.setdefault(joined[index], []).append(index)
    return {tuple(group): sum(links[index] for index in group) for group in groups.values()}


def _edges(graph: ModelGraph) -> list[tuple[int, int]]:
    """Return producer and consumer of every value that is computed at run time, including skipped layers."""
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
    """Return the dataflow with the inputs of copied layers read by their readers."""
    if not copied:
        return edges
    readers: dict[int, set[int]] = {}  # those that hold the copies: readers of copied readers count as well
    for maker, reader in sorted(edges, reverse=True):
        if maker in copied:
            readers.setdefault(maker, set()).update(readers.get(reader, ()), {reader} - {*copied})
    direct_edges = []
    for maker, reader in edges:
        if maker not in copied:
            direct_edges += [(maker, reader), *((maker, further) for further in sorted(readers.get(reader, ())))]
    return direct_edges


def _contracted(edges: Iterable[tuple[int, int]], groups: Iterable[tuple[int, ...]]) -> nx.DiGraph[int]:
    """Return the dataflow with every group contracted to its first layer; other layers are nodes themselves."""
    import networkx as nx  # 150 ms, needed for units only

    first_layer = {index: group[0] for group in groups for index in group}
    flow: nx.DiGraph[int] = nx.DiGraph()
    flow.add_nodes_from(first_layer.values())
    pairs = ((first_layer.get(maker, maker), first_layer.get(reader, reader)) for maker, reader in edges)
    flow.add_edges_from((maker, reader) for maker, reader in pairs if maker != reader)
    return flow


def _tangles(edges: list[tuple[int, int]], groups: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the groups that wait for each other, or for themselves through layers outside of groups."""
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
    """Cut a group so that no path between layers of one part leads outside; return one part if none does."""
    import networkx as nx

    flow = _contracted(edges, [other for other in groups if other != group])
    flow.add_nodes_from(group)
    members = set(group)
    outside = flow.subgraph(set(flow) - members)
    later: dict[int, set[int]] = {}  # layer: members that wait for it through outside layers
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
    """Order groups so that each reads from earlier ones only, close to the order of their first layers."""
    import networkx as nx

    by_first = {group[0]: group for group in groups}
    nodes = nx.lexicographical_topological_sort(_contracted(edges, groups))
    return tuple(by_first[node] for node in nodes if node in by_first)


def fused_units(executed: ExecutedModel) -> UnitGroups:
    """Group the layers of a model so that no operator of the executed graph crosses groups.

    Layers that share an executed operator, directly or through others, are one unit. A layer that the runtime
    eliminates joins a neighbour: the only reader of its result, or else the producer of its input. A transposition that
    the runtime moved is one unit with the layers that it moved past.
    """
    copied = copied_layers(executed)
    wishes = [set(origin) - copied for origin in executed.origins]
    homes = [{index, _readers(executed.source, index)[0]} for index in sorted(copied)]
    moved = [stretch - copied for stretch in _moved_past(executed)]
    live = {*executed.source.live}
    alone = executed.eliminated.difference(*(stretch for stretch in moved if len(stretch & live) > 1))
    return units_of(executed.source, [*wishes, *homes, *moved, *_companions(executed.source, alone)], copied=copied)


_STRETCH = 16
"""Layers that a transposition moves past at most: beyond, the runtime laid out a part of the model anew."""


def _moved_past(executed: ExecutedModel) -> list[set[int]]:
    """Return the layers that transpositions moved past, with these: between two values that the runtime kept.

    A moved transposition reads a value that the model does not have, and others have cancelled out or became a part of
    a layout change. In a brick with all of these layers the runtime finds the same to do. Stretches that share a layer
    are one. Long ones, and those with several layers that multiply, are left out.
    """
    from networkx.utils import UnionFind

    source, graph = executed.source, executed.graph
    known = {*source.inputs, *(value for layer in source.layers for value in layer.outputs if value)}
    gone = {index for index in executed.eliminated if source.layers[index].op_type == "Transpose"}
    joined: UnionFind[int] = UnionFind()
    for layer in (layer for layer in graph.layers if not known.isdisjoint(layer.outputs)):
        begins, _ = _behind(graph, _activations(layer), known)
        reached, stretch = _behind(source, known.intersection(layer.outputs), begins)
        is_moved = layer.op_type == "Transpose" and begins.isdisjoint(_activations(layer))
        if reached <= begins and (is_moved or not gone.isdisjoint(stretch)):
            joined.union(*stretch)
    return [part for part in joined.to_sets() if len(part) <= _STRETCH and _multiplying(source, part) <= 1]


def _multiplying(graph: ModelGraph, indices: Iterable[int]) -> int:
    """Return how many layers multiply and add."""
    return sum(cost.macs > 0 for index in indices if (cost := graph.layers[index].cost) is not None)


def _behind(graph: ModelGraph, values: Iterable[str], ends: Collection[str]) -> tuple[set[str], set[int]]:
    """Walk back from values to the first ones among the ends, or to inputs; return these and the layers between."""
    reached: set[str] = set()
    between: set[int] = set()
    pending = [*values]
    while pending:
        value = pending.pop()
        maker = None if value in ends else graph.producer(value)
        if maker is None:
            reached.add(value)
        elif maker not in between:
            between.add(maker)
            pending += _activations(graph.layers[maker])
    return reached, between


def copied_layers(executed: ExecutedModel) -> frozenset[int]:
    """Return layers without an operator of their own that the runtime copies for each reader.

    It folds them into each reader or executes them for each: conversions of quantised values, and strided views.
    Every reader's brick contains a copy.
    """
    source = executed.source
    own = {max(origin) for origin in executed.origins if origin}
    return frozenset(
        index
        for index in executed.duplicated
        if (
            (source.layers[index].op_type == DEQUANTIZE and len(_readers(source, index)) > 1)
            or (source.layers[index].op_type in _AS_VIEWS and index not in own)
        )
        and source.layers[index].state is LayerState.LIVE
        and {*source.outputs}.isdisjoint(source.layers[index].outputs)
        and all(source.layers[reader].state is LayerState.LIVE for reader in _readers(source, index))
    )


def _readers(graph: ModelGraph, index: int) -> list[int]:
    return sorted({reader for value in graph.layers[index].outputs if value for reader in graph.consumers(value)})


def fused_sequences(
    executed: ExecutedModel, granularity: int, *, overlap: bool = False, connected: bool = False
) -> list[LayerSequence]:
    """Cut a model like ``split``, with units in place of layers.

    Args:
        executed: The model's executed graph.
        granularity: G, the maximum number of units in a sequence.
        overlap: Begin a sequence at every unit, and add every unit as a sequence.
        connected: Accept weakly connected windows of units, not only paths.

    Returns:
        Sequences of ``executed.source``, in the order of their units. Without ``overlap`` every live layer is in
        exactly one, except for copies (``copied_layers``).

    Raises:
        UsageError: ``granularity`` is less than 1.
    """
    graph = executed.source
    units = fused_units(executed).groups
    windows = spans(flow_over(graph, units), granularity, overlap=overlap, connected=connected)
    copied = copied_layers(executed)
    sequences = []
    for begin, end in in_time(windows, "cutting sequences"):
        members = {index for unit in units[begin:end] for index in unit}
        copies = _copies_for(graph, members, copied)
        sequences.append(make_sequence(graph, tuple(sorted({*members, *copies})), copies=copies, copied=copied))
    return with_reuse(graph, sequences)


def _copies_for(graph: ModelGraph, members: Collection[int], copied: frozenset[int]) -> tuple[int, ...]:
    """Return the copied layers, ascending, that layers of a sequence read from outside, directly or through others."""
    holders = {*members}
    for index in sorted(copied.difference(members), reverse=True):  # a reader comes before what it reads
        if holders.intersection(_readers(graph, index)):
            holders.add(index)
    return tuple(sorted(holders.difference(members)))


def _companions(graph: ModelGraph, eliminated: Iterable[int]) -> Iterator[set[int]]:
    """Yield each eliminated layer with the neighbour that it joins."""
    for index in sorted(eliminated):
        neighbour = _neighbour(graph, index)
        if neighbour is not None:
            yield {index, neighbour}


def _neighbour(graph: ModelGraph, index: int) -> int | None:
    """Return the only live reader of a layer's results; else a live producer of its inputs, else any reader."""
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
    """Return the share of the layout changes at each brick's edges that also occurs in the model.

    A runtime that executes a brick in its own layout converts all inputs and outputs of the brick. In a model it
    converts only at the edges of a region in that layout. Let ``full`` be the latency of a brick, ``inner`` its latency
    without the changes at its edges (measurement variant ``inner``), and ``share`` the result of this function. The
    model spends on the sequence::

        full - (1 - share) * (full - inner)

    Sums of these values contain the model's own layout changes at edges; ``inner`` contains those inside a sequence. A
    sum with an outside value is fused in ``inner``, as in the model, but not in ``full``: the share of this edge covers
    the difference. A brick without an ``inner`` measurement has no layout changes at its edges: ``inner`` equals
    ``full``.

    Edges are weighted by their bytes. A value that is converted into the layout once for several sequences counts a
    part in each. A value that is converted out of it counts in its producer's sequence.

    Args:
        executed: The model's executed graph.
        sequences: Sequences of ``executed.source`` without overlap, from ``fused_sequences`` or ``sequences``.

    Returns:
        For each sequence a number from 0 to 1; 0 if the model executes all its operators in the plain layout (its brick
        may differ).
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
    """Values that cross between sequences in the executed graph, with their layouts."""

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
        for layer, layer_homes in zip(executed.graph.layers, homes, strict=True):
            for home in layer_homes if layer.index not in self._changes and self._is_own(layer) else ():
                self._members[home].append(layer)

    def entering(self, number: int) -> Iterator[tuple[int, float]]:
        """Yield (bytes, converted share) of each value that a sequence reads in the runtime's layout."""
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
        """Yield (bytes, converted share) of each value that a sequence writes in the runtime's layout."""
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
        """Return True if another sequence or the caller reads one of the values; layout changes are not readers."""
        outputs = not {*self._graph.outputs}.isdisjoint(values)
        return outputs or bool(self._readers_of(values) - {number})

    def _readers_of(self, values: Iterable[str]) -> set[int]:
        readers = {reader for value in values for reader in self._graph.consumers(value)} - self._changes
        return {home for reader in readers for home in self._homes[reader]}

    def _bytes(self, value: str) -> int:
        value_type = self._graph.types.get(value)
        return value_type.nbytes if value_type is not None else 0


def _activations(layer: Layer) -> Iterator[str]:
    return (operand.value for operand in layer.operands if operand.role is Role.ACTIVATION)
