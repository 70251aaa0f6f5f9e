"""Values that need not be computed: constants, neutral sums and products, the same nodes on the same values."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx

from ...bricks.operators import BODIES, RANDOM, operator_of
from .evaluation import same_function
from .recording import Values, late
from .rewrite import Array, Draft, Rewrite

_MOST_BYTES = 64 << 20
"""Limit on one computed constant."""


def constants(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of values that need not be computed."""
    rewrites = list[Rewrite]()
    for search in (_computed_once, _neutral, _common):
        if not late(deadline):
            rewrites += values.attempt(list, search(values)) or []
    return rewrites


def _computed_once(values: Values) -> Iterator[Rewrite]:
    """Return values that depend on constants alone as constants."""
    graph, shape_only = values.graph, values.shape_only
    for node in graph.nodes:
        draft, outputs = Draft(graph), list[str]()
        for name in node.output:
            array = values.runs[0].get(name)
            needed = name in graph.wanted or any(
                graph.nodes[reader].output[0] not in shape_only for reader in graph.readers[name]
            )
            if name and name in shape_only and needed and array is not None and array.nbytes <= _MOST_BYTES:
                draft.op("Identity", draft.constant(array), to=name)
                outputs.append(name)
        if outputs and len(outputs) == len([name for name in node.output if name]):
            gone = graph.unneeded(outputs, ())
            yield draft.rewrite("constants: folded", outputs, graph.names(gone), values.cost_of(gone))


def _neutral(values: Values) -> Iterator[Rewrite]:
    """Return sums without a summand of zeros, and products without a factor of ones."""
    graph = values.graph
    for index, node in enumerate(graph.nodes):
        neutral = operator_of(node).neutral
        for slot in () if neutral is None else (0, 1) if node.op_type in {"Add", "Mul"} else (1,):
            name, other = node.input[slot], node.input[1 - slot]
            if values.is_constant(other) or values.shapes.get(other) != values.shapes.get(node.output[0]):
                continue
            maker, arrays = graph.maker(name), [values.constant(name)]
            if not neutral and maker is not None and maker.op_type == "Mul":
                arrays += [values.constant(read) for read in maker.input]
            if any(array is not None and array.size and (array == neutral).all() for array in arrays):
                draft = Draft(graph)
                draft.op("Identity", other, to=node.output[0])
                gone = graph.removable(range(index + 1), node.output[0], read=[other])
                names, saving_ns = graph.names(gone), values.cost_of(gone)
                yield draft.rewrite("constants: identities removed", [node.output[0]], names, saving_ns)
                break


def _common(values: Values) -> Iterator[Rewrite]:
    """Return nodes that compute the same function of the same values as an earlier one."""
    graph = values.graph
    same, first = dict[str, str](), dict[object, tuple[str, ...]]()

    def name_of(read: str) -> object:
        array: Array | None = graph.constants.get(read)
        return same.get(read, read) if array is None else (array.dtype.str, array.shape, array.tobytes())

    for node in graph.nodes:
        if node.op_type in RANDOM | BODIES:
            continue
        key = same_function(node), tuple(name_of(read) for read in node.input), len(node.output)
        if key not in first:
            first[key] = tuple(node.output)
            continue
        same.update(zip(node.output, first[key], strict=True))
    for node in graph.nodes:
        if node.output[0] not in same or not _is_read_elsewhere(values, node, same):
            continue
        draft, pairs = Draft(graph), [(name, same[name]) for name in node.output if name and same[name]]
        for name, source in pairs:
            draft.op("Identity", source, to=name)
        gone = graph.unneeded([name for name, _ in pairs], [source for _, source in pairs])
        names, saving_ns = graph.names(gone), values.cost_of(gone)
        yield draft.rewrite("constants: common subexpressions", [name for name, _ in pairs], names, saving_ns)


def _is_read_elsewhere(values: Values, node: onnx.NodeProto, same: Collection[str]) -> bool:
    """Return True if a result is an output, or is read by a node that is not a copy of another one."""
    graph = values.graph
    for name in node.output:
        readers = [graph.nodes[reader] for reader in graph.readers[name]]
        if name in graph.wanted or any(reader.output[0] not in same for reader in readers):
            return True
    return False
