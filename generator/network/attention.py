"""Attention that exporters spell out in decoders, as ONNX's own operator (Attention, opset 23).

softmax(scale Q K^T + mask) V over heads, where queries and keys may have been turned by their positions before, one key
may serve several queries (Expand), and a cache of keys and values may be in front of the new ones (Concat): all of that
is one operator. ONNX Runtime's optimiser for transformers knows older spellings alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import onnx
from onnx import helper, numpy_helper

from ...models.subgraphs import reads

__all__ = ["drop_unread", "join_attention"]

_OPSET = 23
"""The first with Attention."""

_UNCHANGED = frozenset({
    "Abs", "Add", "And", "Cast", "Concat", "Constant", "ConstantOfShape", "Cos", "Div", "Equal", "Erf", "Exp", "Expand",
    "Gather", "GatherND", "Gelu", "Gemm", "Greater", "Identity", "LayerNormalization", "Less", "LessOrEqual", "Log",
    "MatMul", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceMean", "ReduceSum", "Relu",
    "Reshape", "ScatterND", "Shape", "Sigmoid", "Sin", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Tanh",
    "Transpose", "Trilu", "Unsqueeze", "Where",
})  # fmt: skip
"""Operators that mean the same from opset 18 to 23."""

_SINCE = 18

_RANK = 4

_HEADS = 1
"""The axis of the heads."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys or values of one attention.

    Attributes:
        new: Those that are made.
        past: The cache in front of them; empty for none.
        present: Both; empty where there is no cache.
        removed: Outputs of the operators that are gone with it.
    """

    new: str
    past: str
    present: str
    removed: tuple[str, ...]


class _Reader:
    """Looks operators up in a graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {value: node for node in graph.node for value in node.output if value}
        self.readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in set(reads(node)):
                self.readers[name].append(node)
            for one in node.attribute if node.op_type == "Constant" else ():
                if one.name == "value":
                    self._constants[node.output[0]] = one.t
        self.outputs = {value.name for value in graph.output}

    def maker(self, value: str, operator: str) -> onnx.NodeProto | None:
        """The operator that makes a value, where it is such a one."""
        node = self._makers.get(value)
        return node if node is not None and node.op_type == operator and not node.domain else None

    def alone(self, value: str) -> bool:
        """Whether one operator reads a value and nobody else needs it."""
        return len(self.readers[value]) == 1 and value not in self.outputs

    def number(self, value: str) -> float | None:
        """A constant of one element."""
        tensor = self._constants.get(value)
        array = None if tensor is None else numpy_helper.to_array(tensor)
        return float(array.item()) if array is not None and array.size == 1 else None


def join_attention(model: onnx.ModelProto) -> int:
    """Write every attention that is spelt out as one operator, in place; how many there were.

    A model that has operators whose meaning changed before opset 23 stays as it is.

    Args:
        model: The model.
    """
    opset = next((entry for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), None)
    own = {node.op_type for node in model.graph.node if not node.domain}
    if opset is None or opset.version < _SINCE or (opset.version < _OPSET and own - _UNCHANGED):
        return 0
    reader = _Reader(model.graph)
    made: dict[str, onnx.NodeProto] = {}
    gone: set[str] = set()
    for softmax in (node for node in model.graph.node if node.op_type == "Softmax" and not node.domain):
        found = _joined(reader, softmax)
        if found is not None:
            node, removed = found
            made[node.output[0]] = node
            gone |= removed
    if made:
        nodes = [made.get(node.output[0], node) for node in model.graph.node if node.output[0] not in gone]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        drop_unread(model.graph)
        opset.version = max(opset.version, _OPSET)
        model.ir_version = max(model.ir_version, 10)
    return len(made)


def _joined(reader: _Reader, softmax: onnx.NodeProto) -> tuple[onnx.NodeProto, set[str]] | None:
    """The operator for one Softmax, and the outputs of those that it stands for; None where it is no such attention."""
    weighted = next(iter(reader.readers[softmax.output[0]]), None)
    total = reader.maker(softmax.input[0], "Add")
    axis = next((one.i for one in softmax.attribute if one.name == "axis"), -1)
    if weighted is None or axis not in {-1, _RANK - 1} or not reader.alone(softmax.output[0]):
        return None
    if weighted.op_type != "MatMul" or weighted.input[0] != softmax.output[0]:
        return None
    sums = [(softmax.input[0], "")] if total is None else [tuple(total.input), tuple(reversed(total.input))]
    for scaled, mask in sums:
        scores = _scores(reader, scaled)
        turned = None if scores is None else reader.maker(scores[0].input[1], "Transpose")
        if scores is None or turned is None or _permutation(turned) != [0, 1, 3, 2]:
            continue
        product, scale, removed = scores
        keys, values = _keys(reader, turned.input[0]), _keys(reader, weighted.input[1])
        between = {*removed, softmax.input[0], turned.output[0]}
        if bool(keys.past) != bool(values.past) or not all(map(reader.alone, between)):
            return None
        inputs, outputs = [product.input[0], keys.new, values.new, mask], [weighted.output[0]]
        if keys.past:
            inputs += [keys.past, values.past]
            outputs += [keys.present, values.present]
        node = helper.make_node("Attention", inputs, outputs, name=f"{outputs[0]}/attention", scale=scale)
        return node, {*between, softmax.output[0], *keys.removed, *values.removed}
    return None


def _scores(reader: _Reader, value: str) -> tuple[onnx.NodeProto, float, list[str]] | None:
    """The product that a value is, what it is multiplied by, and the values on the way."""
    scale, removed = 1.0, []
    while True:
        removed.append(value)
        product = reader.maker(value, "MatMul")
        if product is not None:
            return product, scale, removed
        node = reader.maker(value, "Mul") or reader.maker(value, "Div")
        factor = None if node is None else reader.number(node.input[1])
        if node is None or not factor:
            return None
        scale *= factor if node.op_type == "Mul" else 1 / factor
        value = node.input[0]


def _keys(reader: _Reader, value: str) -> _Keys:
    """Where keys or values come from, behind what repeats them for several queries."""
    removed: list[str] = []
    reshaped = reader.maker(value, "Reshape")
    expanded = None if reshaped is None else reader.maker(reshaped.input[0], "Expand")
    wider = None if expanded is None else reader.maker(expanded.input[0], "Unsqueeze")
    if reshaped is not None and expanded is not None and wider is not None:
        repeated = [reshaped.output[0], expanded.output[0], wider.output[0]]
        if reader.number(wider.input[1]) == _HEADS + 1 and all(map(reader.alone, repeated)):
            removed += repeated
            value = wider.input[0]
    cached = reader.maker(value, "Concat")
    axis = next((one.i for one in cached.attribute if one.name == "axis"), 0) if cached is not None else 0
    if cached is None or len(cached.input) != 2 or axis not in {-2, _RANK - 2} or len(reader.readers[value]) != 1:
        return _Keys(value, "", "", tuple(removed))
    return _Keys(cached.input[1], cached.input[0], value, (*removed, value))


def _permutation(node: onnx.NodeProto) -> list[int]:
    return next((list(one.ints) for one in node.attribute if one.name == "perm"), [])


def drop_unread(graph: onnx.GraphProto) -> None:
    """Remove the constants that nothing reads any more."""
    read = {name for node in graph.node for name in reads(node)} | {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
