"""Constants that are computed at every inference: what reads nothing but constants, and is read by what does not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper

from ...bricks.layer import Layer
from ...errors import ModelError
from ...models.subgraphs import may_have_bodies, reads
from .draft import Draft
from .pattern import Match, View

__all__ = ["apply", "find"]

_OF_SHAPES = frozenset({"Constant", "Shape", "Size"})
"""Operators whose results are no arithmetic."""

_EVALUATED = 21
"""Opset of which the reference evaluator knows the operators: it has no DequantizeLinear before 19."""


def find(view: View) -> list[Match]:
    """Every value that is made of constants, and that something else reads."""
    found = []
    for layer in view.graph.layers:
        if not view.is_constant(layer) or len([name for name in layer.outputs if name]) != 1:
            continue
        made = layer.outputs[0]
        wanted = view.is_output(made) or not all(view.is_constant(one) for one in view.readers(made))
        before = list(_before(view, layer)) if wanted else []
        if before and not any(_hard(view, one) for one in before):
            found.append(view.match({one.index for one in before}, made, ()))
    return found


def _before(view: View, layer: Layer) -> Iterator[Layer]:
    yield layer
    for name in reads(layer.node):
        index = view.graph.producer(name)
        if index is not None:
            yield from _before(view, view.graph.layers[index])


def _hard(view: View, layer: Layer) -> bool:
    """Whether what a layer makes is not to be had of constants alone, by ONNX's own definition."""
    drawn = any(name in view.graph.inputs for name in reads(layer.node))
    return drawn or bool(layer.domain) or layer.op_type in _OF_SHAPES or may_have_bodies(layer.node)


def apply(draft: Draft, view: View, match: Match) -> None:
    """Store the value, as ONNX's reference evaluator computes it.

    Raises:
        ModelError: The evaluator cannot compute it, or what it is made of is beyond the file.
    """
    from onnx import version_converter
    from onnx.reference import ReferenceEvaluator

    nodes = [view.graph.layers[index].node for index in match.layers]
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in reads(node) if name not in made)
    held = [tensor for name in read if (tensor := draft.initializer(name)) is not None]
    if len(held) < len(read) or any(one.data_location == onnx.TensorProto.EXTERNAL for one in held):
        raise ModelError(f"what '{match.value}' is made of is not in the file itself")
    graph = helper.make_graph(nodes, "constants", [], [onnx.ValueInfoProto(name=match.value)], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", draft.opset)])
    try:
        if draft.opset < _EVALUATED:
            model = version_converter.convert_version(model, _EVALUATED)
        (value,) = ReferenceEvaluator(model).run([match.value], {})
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"'{match.value}' cannot be computed: {error}") from error
    stored = draft.constant(np.ascontiguousarray(value), "stored")
    draft.redefine(match.value, [draft.node("Identity", [stored], match.value)])
