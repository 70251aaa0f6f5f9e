"""Parts of a model that compute in float64 between others that do not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from ...bricks.layer import Layer
from ...bricks.operators import RANDOM
from ...models.subgraphs import may_have_bodies
from .draft import Draft
from .movement import IDLE
from .pattern import Match, View

__all__ = ["apply", "find"]

_WIDE = "double"
_TYPED = RANDOM | {"ConstantOfShape", "EyeLike", "OneHot", "Range", "SequenceEmpty"}
"""Operators that say their type in a way of their own."""


def find(view: View) -> list[Match]:
    """Connected layers that read or write float64; none that reach an input or an output of the model."""
    found, seen = [], set[int]()
    for index in view.graph.live:
        layer = view.graph.layers[index]
        if index in seen or not _wide(view, layer):
            continue
        members = _connected(view, index)
        seen |= members
        layers = [view.graph.layers[one] for one in sorted(members)]
        ends = [name for one in layers for name in one.outputs if name and view.dtype(name) != _WIDE]
        if all(one.op_type in IDLE | {"Cast"} for one in layers):
            continue  # conversions there and back, which are no part that computes in anything
        hard = any(may_have_bodies(one.node) or one.op_type in _TYPED or one.domain for one in layers)
        if hard or not ends or any(view.is_output(name) for one in layers for name in _wide_values(view, one)):
            continue
        if any(name in view.graph.inputs for one in layers for name in _wide_values(view, one)):
            continue
        sources = [name for one in layers for name in one.node.input if name and view.dtype(name) != _WIDE]
        found.append(view.match(members, ends[-1], dict.fromkeys(sources)))
    return found


def _wide_values(view: View, layer: Layer) -> Iterator[str]:
    for name in (*layer.node.input, *layer.outputs):
        if name and view.dtype(name) == _WIDE:
            yield name


def _wide(view: View, layer: Layer) -> bool:
    return any(True for _ in _wide_values(view, layer))


def _connected(view: View, start: int) -> set[int]:
    """Layers that hand float64 to each other."""
    members, pending = {start}, [start]
    while pending:
        layer = view.graph.layers[pending.pop()]
        for name in _wide_values(view, layer):
            maker = view.graph.producer(name)
            for index in (*view.graph.consumers(name), *(() if maker is None else (maker,))):
                if index not in members and view.graph.layers[index].state == "live":
                    members.add(index)
                    pending.append(index)
    return members


def apply(draft: Draft, view: View, match: Match) -> None:
    """Convert to float32 where float64 is asked for, and read the constants in float32."""
    narrow: dict[str, str] = {}
    for index in match.layers:
        node = draft.maker(next(name for name in view.graph.layers[index].outputs if name))
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.DOUBLE:
                attribute.i = onnx.TensorProto.FLOAT
        for slot, name in enumerate(node.input):
            tensor = draft.initializer(name) if name else None
            if tensor is None or tensor.data_type != onnx.TensorProto.DOUBLE:
                continue
            if name not in narrow:
                narrow[name] = draft.constant(numpy_helper.to_array(tensor).astype(np.float32), "narrow")
            node.input[slot] = narrow[name]
    stale = {name for index in match.layers for name in view.graph.layers[index].outputs}
    for value in draft.model.graph.value_info:
        if value.name in stale and value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
