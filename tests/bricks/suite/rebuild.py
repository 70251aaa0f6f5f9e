"""The whole model again, put together from its bricks.

What a runtime computes from it must be what it computes from the original: that is the proof that canonical forms
mean what the source meant, that no window was cut wrongly, and that every value that is needed is exposed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from dlbricks.bricks.canonical.attributes import read_value
from dlbricks.bricks.canonical.schemas import Schema, find_schema
from dlbricks.bricks.graph.graph import ModelGraph
from dlbricks.bricks.layer import LayerState
from dlbricks.bricks.sequence import LayerSequence
from dlbricks.bricks.suite.brick import IR_VERSION, build_brick
from dlbricks.errors import UnsupportedModel
from dlbricks.models.subgraphs import all_nodes, bodies, reads
from onnx import numpy_helper

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["rebuild"]


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Some nodes with the opsets that they are written for and what they are, for a message."""

    nodes: list[onnx.NodeProto]
    opsets: Mapping[str, int]
    label: str


def rebuild(model: onnx.ModelProto, graph: ModelGraph, sequences: Iterable[LayerSequence]) -> onnx.ModelProto:
    """Assemble a model from the bricks of its sequences.

    Nodes are those of the brick files. Values that a brick exposes have their source names, interior values have
    names that nothing else knows. Folded layers are computed here, as they are computed before inference; skipped
    layers stay as they are.

    Args:
        model: The whole model *with* its weights in normal form (``models.normal``), so that its values have the
            names that the graph knows.
        graph: The same model's graph.
        sequences: Its sequences; every live layer in exactly one.

    Returns:
        A model with the inputs, the outputs and the weights of ``model``.

    Raises:
        UnsupportedModel: Two parts need different opsets that no common one can stand in for; or a folded layer reads
            a weight that ``model`` has no values of.
    """
    rebuilt = onnx.ModelProto(ir_version=max(IR_VERSION, model.ir_version))
    body = rebuilt.graph
    body.name = "rebuilt"
    body.input.extend(model.graph.input)
    body.output.extend(model.graph.output)
    pieces = []
    for number, sequence in enumerate(sequences):
        piece, constants = _from_brick(graph, sequence, f"brick{number}.")
        pieces.append(piece)
        body.initializer.extend(constants)
    pieces.extend(
        _Piece([layer.node], dict(layer.opsets), f"layer {layer.name}")
        for layer in graph.layers
        if layer.state is LayerState.SKIPPED
    )
    opsets = _common_opsets(pieces)
    for domain, version in sorted(opsets.items()):
        rebuilt.opset_import.add(domain=domain, version=version)
    nodes = [node for piece in pieces for node in piece.nodes]
    wanted = {name for node in nodes for name in reads(node)} | {value.name for value in body.output}
    body.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in wanted)
    body.sparse_initializer.extend(t for t in model.graph.sparse_initializer if t.values.name in wanted)
    body.initializer.extend(_compute_folded(model, graph, wanted))
    body.node.extend(_order(nodes))
    return rebuilt


def _from_brick(graph: ModelGraph, sequence: LayerSequence, prefix: str) -> tuple[_Piece, list[onnx.TensorProto]]:
    """The nodes and constants of a sequence's brick, under the names of the model."""
    brick = onnx.ModelProto.FromString(build_brick(graph, sequence).model)
    arguments = (*sequence.inputs, *sequence.weights)
    names = {value.name: source for value, source in zip(brick.graph.input, arguments, strict=True)}
    names.update({value.name: source for value, source in zip(brick.graph.output, sequence.outputs, strict=True)})
    for node in brick.graph.node:
        _rename(node, names, prefix)
    for tensor in brick.graph.initializer:
        tensor.name = prefix + tensor.name
    opsets = {opset.domain: opset.version for opset in brick.opset_import}
    return _Piece(list(brick.graph.node), opsets, f"brick {sequence.key[:12]}"), list(brick.graph.initializer)


def _rename(node: onnx.NodeProto, names: Mapping[str, str], prefix: str) -> None:
    """Rename what a node reads and makes; names that the mapping does not know get the prefix."""
    for values in (node.input, node.output):
        for slot, name in enumerate(values):
            if name:
                values[slot] = names.get(name, prefix + name)
    for body in bodies(node):
        for value in (*body.input, *body.output):
            value.name = names.get(value.name, prefix + value.name)
        for tensor in body.initializer:
            tensor.name = prefix + tensor.name
        for inner in body.node:
            _rename(inner, names, prefix)


def _common_opsets(pieces: list[_Piece]) -> dict[str, int]:
    """Per domain the newest opset of any piece at which all other pieces mean the same.

    Raises:
        UnsupportedModel: An operator changed between any two.
    """
    versions: dict[str, set[int]] = {}
    for piece in pieces:
        for domain, version in piece.opsets.items():
            versions.setdefault(domain, set()).add(version)
    found = {}
    for domain, known in versions.items():
        stuck = {target: _stuck(pieces, domain, target) for target in sorted(known, reverse=True)}
        found[domain] = next((target for target, why in stuck.items() if why is None), 0)
        if not found[domain]:
            raise UnsupportedModel(str(next(iter(stuck.values()))))
    return found


def _stuck(pieces: list[_Piece], domain: str, target: int) -> str | None:
    """Why not all operators of a domain can stand in a model of an opset; None where they can."""
    for piece in pieces:
        version = piece.opsets.get(domain, target)
        for node in all_nodes(piece.nodes) if version != target else ():
            if ("" if node.domain == "ai.onnx" else node.domain) != domain:
                continue
            old, new = find_schema(domain, node.op_type, version), find_schema(domain, node.op_type, target)
            if old is None or new is None or not _alike(node, old, new):
                return f"{piece.label}: {node.op_type} of opset {version} cannot stand in a model of opset {target}"
    return None


def _alike(node: onnx.NodeProto, old: Schema, new: Schema) -> bool:
    """Whether a node of one version is one of another."""
    first, last = sorted((old, new), key=lambda schema: schema.since)
    attributes = {attribute.name: read_value(attribute) for attribute in node.attribute}
    return old.since == new.since or (attributes.keys() <= new.kinds.keys() and first.reads_as(last, attributes))


def _compute_folded(model: onnx.ModelProto, graph: ModelGraph, wanted: set[str]) -> list[onnx.TensorProto]:
    """The values that are computed before inference and that something needs, by ONNX's reference implementation.

    They come from folded layers, and from nodes that are weights and no layers (a large ConstantOfShape).
    """
    from onnx.reference import ReferenceEvaluator  # heavy, and of use here alone

    running = {name for layer in graph.layers if layer.state is not LayerState.FOLDED for name in layer.node.output}
    nodes: list[onnx.NodeProto] = []
    needed = set(wanted)
    for node in reversed(model.graph.node):
        if not running.intersection(node.output) and needed.intersection(node.output):
            nodes.append(node)
            needed.update(reads(node))
    if not nodes:
        return []
    made = {name for node in nodes for name in node.output if name}
    folded = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    folded.graph.name = "folded"
    folded.graph.node.extend(reversed(nodes))
    folded.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    kept = {tensor.name for tensor in folded.graph.initializer}
    results = sorted(made & wanted)
    folded.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in results)
    # A Shape reads a value that exists at run time only: any array of that shape does.
    stand_ins: dict[str, npt.NDArray[Any]] = {}
    measured = {name for node in nodes if node.op_type in {"Shape", "Size"} for name in node.input}
    for name in sorted({name for node in nodes for name in reads(node)} - made - kept):
        if name not in measured or name not in graph.types:
            raise UnsupportedModel(f"{name!r} has no value", remedy="give the model together with its weights")
        stand_ins[name] = np.broadcast_to(np.float32(0), graph.types[name].shape)
        folded.graph.input.append(onnx.helper.make_empty_tensor_value_info(name))
    values = ReferenceEvaluator(folded).run(results, stand_ins)
    return [numpy_helper.from_array(np.asarray(value), name) for name, value in zip(results, values, strict=True)]


def _order(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Topological order; nodes that may come in any order keep theirs."""
    producer = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for maker in {producer[name] for name in reads(node) if name in producer}:
            waiting[number] += 1
            readers[maker].append(number)
    ready = [number for number, count in enumerate(waiting) if count == 0]
    ordered = []
    while ready:
        number = heapq.heappop(ready)
        ordered.append(nodes[number])
        for reader in readers[number]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(ordered) < len(nodes):
        raise UnsupportedModel("the bricks depend on each other in a circle")
    return ordered
