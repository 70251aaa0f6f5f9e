"""Changing a batch that is fixed in the file: which shapes and constants must change, and whether that holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from ..errors import BrokenModel, UnsupportedModel
from .payload import count_elements
from .shapes import Shape, infer_shapes, static_shape, static_shapes
from .skeleton import is_weight

__all__ = ["Rebatch", "apply_rebatch", "leading_dimension", "plan_rebatch"]

_REMEDY = "export it with a dynamic batch dimension"
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})


@dataclass(frozen=True, slots=True)
class Rebatch:
    """What moves a model from one batch to another.

    Attributes:
        inputs: New shape, by input.
        targets: New constant target of a Reshape, by the node's output.
        outputs: New shape, by output, where it can be inferred.
    """

    inputs: Mapping[str, Shape]
    targets: Mapping[str, Shape]
    outputs: Mapping[str, Shape] = field(default_factory=dict)


def leading_dimension(model: ModelProto, *, apart_from: Collection[str] = ()) -> int | None:
    """The batch that a model is fixed at: the first dimension of its first input that has one.

    Args:
        model: The model, in normal form.
        apart_from: Inputs whose first dimension is dynamic.
    """
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if dims and not is_weight(value) and value.name not in apart_from:
            return int(dims[0].dim_value)
    return None


def plan_rebatch(model: ModelProto, old: int, new: int) -> Rebatch:
    """Find what to change to move a static model from one batch to another.

    Inputs whose first dimension is the old batch get the new one. A constant target of a Reshape that lies behind an
    input says how many leading rows all samples together make, so that its first element grows with the batch
    (unless it is 0 or -1, which follow by themselves). Whether that was right is then checked by inferring all shapes
    again: each value must be as before, or have exactly the batch's factor more elements, and what such a Reshape
    reads must have grown along its first dimension.

    Args:
        model: The model in normal form, with static inputs; used up.
        old: The batch that it is fixed at.
        new: The batch wanted.

    Raises:
        UnsupportedModel: The batch is baked into the model in another way; says where.
    """
    change = f"the fixed batch {old} cannot be changed to {new}"
    _drop_types(model.graph)
    before = _infer(model, strict=False, change=change)
    inputs = {
        value.name: (new, *shape[1:])
        for value in model.graph.input
        if not is_weight(value) and (shape := static_shape(value.type)) and shape[0] == old
    }
    rebatch = Rebatch(inputs, _grown_targets(model.graph, old, new))
    apply_rebatch(model, rebatch)
    after = _infer(model, strict=True, change=change)
    _check(model.graph, rebatch, _Change(change, old, new, before, after))
    return replace(
        rebatch, outputs={value.name: after[value.name] for value in model.graph.output if value.name in after}
    )


def apply_rebatch(model: ModelProto, rebatch: Rebatch) -> None:
    """Change the batch of a model in place; the types of interior values are void and dropped."""
    graph = model.graph
    _drop_types(graph)
    for value in graph.output:
        for size in rebatch.outputs.get(value.name, ()):
            value.type.tensor_type.shape.dim.add(dim_value=size)
    for value in graph.input:
        if value.name in rebatch.inputs:
            for dim, size in zip(value.type.tensor_type.shape.dim, rebatch.inputs[value.name], strict=True):
                dim.dim_value = size
    replaced = set()
    for node in graph.node:
        target = rebatch.targets.get(node.output[0]) if node.output else None
        if target is None:
            continue
        if len(node.input) < 2:  # an attribute before opset 5
            next(attribute for attribute in node.attribute if attribute.name == "shape").ints[:] = target
            continue
        # A constant of its own: the old one may have other readers.
        name = f"{node.output[0]}__target"
        raw = np.asarray(target, "<i8").tobytes()
        graph.initializer.add(name=name, data_type=TensorProto.INT64, dims=[len(target)], raw_data=raw)
        replaced.add(node.input[1])
        node.input[1] = name
    read = {name for node in graph.node for name in node.input}.union(value.name for value in graph.output)
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in replaced - read:
            del graph.initializer[index]


def _drop_types(graph: GraphProto) -> None:
    graph.ClearField("value_info")
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def _grown_targets(graph: GraphProto, old: int, new: int) -> dict[str, Shape]:
    constants = {t.name: t for t in graph.initializer if t.data_type == TensorProto.INT64 and len(t.dims) == 1}
    activations = {value.name for value in graph.input if not is_weight(value)}
    targets: dict[str, Shape] = {}
    for node in graph.node:
        if activations.isdisjoint(node.input):
            continue
        activations.update(node.output)
        if node.op_type == "Reshape" and not node.domain and node.input[0] in activations:
            target = _target(node, constants)
            if target and target[0] > 0 and target[0] % old == 0:
                targets[node.output[0]] = (target[0] // old * new, *target[1:])
    return targets


def _target(node: NodeProto, constants: Mapping[str, TensorProto]) -> Shape:
    """The constant target of a Reshape; empty where it is not constant."""
    if len(node.input) < 2:
        return next((tuple(attribute.ints) for attribute in node.attribute if attribute.name == "shape"), ())
    tensor = constants.get(node.input[1])
    return tuple(np.frombuffer(tensor.raw_data, "<i8").tolist()) if tensor else ()


@dataclass(frozen=True, slots=True)
class _Change:
    """A change in words, its two batches, and the static shapes by value at each."""

    text: str
    old: int
    new: int
    before: Mapping[str, Shape]
    after: Mapping[str, Shape]

    def refusal(self, node: NodeProto, reason: str) -> UnsupportedModel:
        label = f"{node.op_type} '{node.name or node.output[0]}'"
        return UnsupportedModel(f"{self.text}: {label} {reason}", remedy=_REMEDY)


def _check(graph: GraphProto, rebatch: Rebatch, change: _Change) -> None:
    old, new = change.old, change.new
    constants = {value.name: static_shape(value.type) for value in graph.input if is_weight(value)}
    constants.update((tensor.name, tuple(tensor.dims)) for tensor in graph.initializer)
    for node in graph.node:
        for name in node.output:
            was, now = change.before.get(name), change.after.get(name)
            if was is None or was == now:
                continue
            if now is None:
                raise change.refusal(node, "has no static shape any more")
            if count_elements(now) * old != count_elements(was) * new:
                raise change.refusal(node, f"turns {list(was)} into {list(now)}")
        if node.output and node.output[0] in rebatch.targets:
            was, now = change.before.get(node.input[0]), change.after.get(node.input[0])
            if was is None or now is None or now[0] * old != was[0] * new or now[1:] != was[1:]:
                raise change.refusal(node, "has a constant target, and reads samples that do not lead its input")
        if node.op_type in _RECURRENT and not node.domain:
            for state in node.input[5:7]:
                if (constants.get(state) or (0, new))[1:2] == (old,):
                    raise change.refusal(node, f"starts from a constant state '{state}' of that batch")


def _infer(model: ModelProto, *, strict: bool, change: str) -> dict[str, Shape]:
    """Static shapes by value, inputs among them."""
    try:
        return static_shapes(infer_shapes(model, strict=strict).graph)
    except BrokenModel as error:
        raise UnsupportedModel(f"{change}: {error.message}", remedy=_REMEDY) from error
