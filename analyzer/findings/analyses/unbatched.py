"""The same weights applied to several inputs one after another, where one batch would do.

Saving: all but one reading of the weights, at the rate at which this model's own operators move data, and never more
than the repeated operators take. That is the least: what a larger product saves besides (registers that are reused,
steps of a recurrence that are made together) is not priced. Batching for the reuse of weights as in Williams, Waterman
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

__all__ = ["ANALYSIS"]

_SHOWN = 3
_RECURRENT = 2


def _run(subject: Subject) -> Iterable[Finding]:
    rate, places = subject.bytes_per_ms, list[tuple[list[Layer], list[Node], Spent]]()
    if rate is None:
        return
    for group in _groups(subject.graph):
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


def _groups(graph: ModelGraph) -> Iterator[list[Layer]]:
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
    for group in alike.values():
        indices = {layer.index for layer in group}
        inputs = {layer.operands[0].value for layer in group}
        if len(inputs) == len(group) > 1 and not any(_behind(graph, layer) & indices for layer in group):
            yield group


def _weight_bytes(layer: Layer) -> int:
    """What is read of weights: of a recurrence (GRU, LSTM, RNN), the third input at every step."""
    read = 0
    for slot, operand in enumerate(layer.operands):
        if operand.role is Role.WEIGHT and operand.type is not None:
            read += operand.type.nbytes * (_steps(layer) if slot == _RECURRENT else 1)
    return read


def _steps(layer: Layer) -> int:
    sequence = layer.operands[0].type
    return sequence.shape[0] if layer.op_type in {"GRU", "LSTM", "RNN"} and sequence is not None else 1


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
