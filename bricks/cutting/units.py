"""Units: groups of layers that stay together when a model is cut, such as those that a runtime fuses.

Groups that were wished for are joined where they share a layer. A unit must be a network that a brick can be made of:
an opset must exist that all of its layers can be written for, and no unit may wait for its own result, neither by a
way through single layers nor by one through other units. A unit that would is cut, as few of them as possible.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...models.subgraphs import captures
from ..graph.flow import common_opsets, is_empty
from ..graph.graph import ModelGraph
from ..layer import LayerState, Role

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Units", "units_of"]

_OPSETS = "no opset has all of these operators as they are written"
_WAITING = "a brick of them would wait for its own result, by way of other layers"


@dataclass(frozen=True, slots=True)
class Units:
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


def units_of(graph: ModelGraph, wishes: Iterable[Collection[int]], *, copied: Collection[int] = ()) -> Units:
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
    return Units(_ordered(edges, groups), reasons)


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

    place = _places(groups)
    flow: nx.DiGraph[int] = nx.DiGraph()
    flow.add_nodes_from(place.values())
    pairs = ((place.get(maker, maker), place.get(reader, reader)) for maker, reader in edges)
    flow.add_edges_from((maker, reader) for maker, reader in pairs if maker != reader)
    return flow


def _places(groups: Iterable[tuple[int, ...]]) -> Mapping[int, int]:
    return {index: group[0] for group in groups for index in group}


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
