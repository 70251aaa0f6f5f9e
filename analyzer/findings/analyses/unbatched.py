"""The same weights applied to several inputs one after another, where one batch would do.

Saving: all but one reading of the weights, at the rate at which this model's own operators move data, and never more
than the repeated operators take. What a larger product saves besides (registers that are reused, steps of a recurrence
that are made together) is not priced. Batching for the reuse of weights as in Williams, Waterman
and Patterson (2009): it raises the operations per byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from ....bricks.graph.graph import ModelGraph
from ....bricks.layer import Layer, LayerState, Role
from ..analysis import Analysis, finding, told
from ..finding import Finding, Remedy
from ..subject import Node, Spent, Subject

__all__ = ["ANALYSIS", "groups"]

_SHOWN = 3


def _run(subject: Subject) -> Iterable[Finding]:
    rate, places = subject.bytes_per_ms, list[tuple[list[Layer], list[Node], Spent]]()
    if rate is None:
        return
    for group in groups(subject.graph):
        nodes = [subject.touching([layer.index]) for layer in group]
        if any(len(one) != 1 for one in nodes) or len({id(one[0]) for one in nodes}) < len(group):
            continue  # parted, or run at once already
        once, again = nodes[0][0], subject.spent([one[0] for one in nodes[1:]])
        if once.row is None or again is None or not again.ms:
            continue
        least = min(again.ms, (len(group) - 1) * _weight_bytes(group[0]) / rate)
        gone = Spent(least, again.half_ms * least / again.ms, ())
        places.append((group, [one[0] for one in nodes], gone))
    current = subject.spent([node for _, nodes, _ in places for node in nodes])
    if current is None:
        return
    evidence = [f"the same weights {len(group)} times: {told(nodes)}" for group, nodes, _ in places[:_SHOWN]]
    evidence += [f"and {len(places) - _SHOWN} places more like these"] if len(places) > _SHOWN else []
    yield finding(
        subject,
        "unbatched",
        f"{len(places)} layers are applied to several inputs one after another",
        layers=[layer.index for group, *_ in places for layer in group],
        current=current,
        saving=Spent(sum(one.ms for *_, one in places), sum(one.half_ms for *_, one in places), ()),
        evidence=evidence,
        remedy=Remedy("manual", "Put the inputs into one batch (Concat), and part what comes out (Split)."),
    )


def groups(graph: ModelGraph) -> Iterator[list[Layer]]:
    """Layers with the same weights, of inputs of one shape, none of which waits for another."""
    alike: defaultdict[tuple[object, ...], list[Layer]] = defaultdict(list)
    for layer in graph.layers:
        if layer.state is not LayerState.LIVE or not _weight_bytes(layer):
            continue
        reads = tuple(
            one.value if one.role in {Role.WEIGHT, Role.CONSTANT} else str(one.type) for one in layer.operands
        )
        attributes = tuple(sorted(attribute.SerializeToString() for attribute in layer.node.attribute))
        alike[layer.domain, layer.op_type, attributes, reads].append(layer)
    for layers in alike.values():
        group, behind = list[Layer](), set[int]()
        for layer in layers if len(layers) > 1 else ():
            if layer.index not in behind and layer.operands[0].value not in {one.operands[0].value for one in group}:
                group.append(layer)
                behind |= _behind(graph, layer)
        if len(group) > 1:
            yield group


def _weight_bytes(layer: Layer) -> int:
    return sum(one.type.nbytes for one in layer.operands if one.role is Role.WEIGHT and one.type is not None)


def _behind(graph: ModelGraph, layer: Layer) -> set[int]:
    """All layers that wait for a layer."""
    found, pending = set[int](), [layer]
    while pending:
        for name in pending.pop().outputs:
            for index in graph.consumers(name) if name else ():
                if index not in found:
                    found.add(index)
                    pending.append(graph.layers[index])
    return found


ANALYSIS = Analysis("unbatched", run=_run)
