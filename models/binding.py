"""Binding: every dynamic dimension of a model's inputs gets a value, which is recorded.

A value comes from ``--dim``, from ``--batch``, from arithmetic on other dimensions (``past_sequence_length + 1``), or
from the dimension's name or place (``dimensions.py``), in this order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from ..errors import BrokenModel, UnboundDimension, UnsupportedModel, UsageError
from . import dimensions
from .external import count_elements
from .skeleton import is_weight
from .subgraphs import Shape, infer_shapes, require_text, static_shape, static_shapes

# Changing a batch that the file fixes: the shapes and constants that change, and a check of the result.


_REMEDY = "export it with a dynamic batch dimension"
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})


Rebatch = tuple[Mapping[str, Shape], Mapping[str, Shape], Mapping[str, Shape]]
"""The changes that move a model from one batch to another: the new shape of each input; the new constant target of each
Reshape, by the node's output; and the new shape of each output, if it can be inferred."""


def leading_dimension(model: ModelProto, *, apart_from: Collection[str] = ()) -> int | None:
    """Return the batch that a model is fixed at: the first dimension of its first suitable input.

    Args:
        model: The model, in normal form.
        apart_from: Inputs with a dynamic first dimension.
    """
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if dims and not is_weight(value) and value.name not in apart_from:
            return int(dims[0].dim_value)
    return None


def plan_rebatch(model: ModelProto, old: int, new: int) -> Rebatch:
    """Find the changes that move a static model from one batch to another.

    Inputs with the old batch as first dimension get the new one. A constant target of a Reshape behind an input states
    how many leading rows all samples together make, so its first element is scaled with the batch (unless it is 0 or
    -1). A second shape inference then checks the result. Every value must keep its shape or have exactly the batch's
    factor more elements, and the input of a changed Reshape must have grown along its first dimension.

    Args:
        model: The model in normal form, with static inputs; it is modified.
        old: The fixed batch.
        new: The requested batch.

    Raises:
        UnsupportedModel: The model fixes the batch in another way, which the message names.
    """
    change = f"the fixed batch {old} cannot be changed to {new}"
    _drop_types(model.graph)
    before = _infer(model, strict=False, change=change)
    inputs = {
        value.name: (new, *shape[1:])
        for value in model.graph.input
        if not is_weight(value) and (shape := static_shape(value.type)) and shape[0] == old
    }
    targets = _grown_targets(model.graph, old, new)
    apply_rebatch(model, (inputs, targets, {}))
    after = _infer(model, strict=True, change=change)
    _check(model.graph, targets, (old, new), (before, after), change)
    return inputs, targets, {value.name: after[value.name] for value in model.graph.output if value.name in after}


def apply_rebatch(model: ModelProto, rebatch: Rebatch) -> None:
    """Change the batch of a model in place; the types of interior values become invalid and are dropped."""
    (inputs, targets, outputs), graph = rebatch, model.graph
    _drop_types(graph)
    for value in graph.output:
        for size in outputs.get(value.name, ()):
            value.type.tensor_type.shape.dim.add(dim_value=size)
    for value in graph.input:
        if value.name in inputs:
            for dim, size in zip(value.type.tensor_type.shape.dim, inputs[value.name], strict=True):
                dim.dim_value = size
    replaced = set()
    for node in graph.node:
        target = targets.get(node.output[0]) if node.output else None
        if target is None:
            continue
        if len(node.input) < 2:  # an attribute before opset 5
            next(attribute for attribute in node.attribute if attribute.name == "shape").ints[:] = target
            continue
        # A new constant, because the old one may have other readers.
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
    """Return the constant target of a Reshape; empty if it is not constant."""
    if len(node.input) < 2:
        return next((tuple(attribute.ints) for attribute in node.attribute if attribute.name == "shape"), ())
    tensor = constants.get(node.input[1])
    return tuple(np.frombuffer(tensor.raw_data, "<i8").tolist()) if tensor else ()


def _check(
    graph: GraphProto,
    targets: Collection[str],
    sizes: tuple[int, int],
    shapes: tuple[Mapping[str, Shape], Mapping[str, Shape]],
    change: str,
) -> None:
    """Raise ``UnsupportedModel`` unless every value grows with the batch, or stays; sizes and shapes: old and new."""
    (old, new), (before, after) = sizes, shapes
    constants = {value.name: static_shape(value.type) for value in graph.input if is_weight(value)}
    constants.update((tensor.name, tuple(tensor.dims)) for tensor in graph.initializer)

    def refusal(node: NodeProto, reason: str) -> UnsupportedModel:
        label = f"{node.op_type} '{node.name or node.output[0]}'"
        return UnsupportedModel(f"{change}: {label} {reason}", remedy=_REMEDY)

    for node in graph.node:
        for name in node.output:
            was, now = before.get(name), after.get(name)
            if was is None or was == now:
                continue
            if now is None:
                raise refusal(node, "has no static shape any more")
            if count_elements(now) * old != count_elements(was) * new:
                raise refusal(node, f"turns {list(was)} into {list(now)}")
        if node.output and node.output[0] in targets:
            was, now = before.get(node.input[0]), after.get(node.input[0])
            if was is None or now is None or now[0] * old != was[0] * new or now[1:] != was[1:]:
                raise refusal(node, "has a constant target, and reads samples that do not lead its input")
        if node.op_type in _RECURRENT and not node.domain:
            for state in node.input[5:7]:
                if (constants.get(state) or (0, new))[1:2] == (old,):
                    raise refusal(node, f"starts from a constant state '{state}' of that batch")


def _infer(model: ModelProto, *, strict: bool, change: str) -> dict[str, Shape]:
    """Return static shapes by value, including inputs."""
    try:
        return static_shapes(infer_shapes(model, strict=strict).graph)
    except BrokenModel as error:
        raise UnsupportedModel(f"{change}: {error.message}", remedy=_REMEDY) from error


@dataclass(frozen=True, slots=True)
class Binding:
    """The values and changes that bind a model, which depend on its structure only.

    Attributes:
        bound: Value by name: of a dimension, of a name in its arithmetic, or of ``input[axis]``.
        overrides: ``dim_param`` of an input to value, for a runtime that loads the file directly.
        shapes: Static shape of each dynamic input.
        rebatch: The change of a batch that the file fixes, or None.
        edited: True if ``overrides`` alone do not suffice for the file.
    """

    bound: Mapping[str, int] = field(default_factory=dict)
    overrides: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rebatch: Rebatch | None = None
    edited: bool = False


def plan(model: ModelProto, *, batch: int | None = None, dims: Mapping[str, int] | None = None) -> Binding:
    """Find the value of every dynamic dimension of a model in normal form.

    Args:
        model: The model; not changed.
        batch: Value of the batch dimension. A batch that the file fixes is changed, if possible.
        dims: Value by dimension name, or by ``input[axis]`` for a dimension without a name. Names that this model lacks
            are ignored (``require_known`` reports them).

    Raises:
        UnboundDimension: A dimension has neither a value nor a sensible default.
        UsageError: ``batch`` and ``dims`` contradict each other.
        UnsupportedModel: An input lacks a rank, or a fixed batch cannot be changed.
    """
    dim_values = dims or {}
    dynamic = list(_dynamic_dimensions(model))
    bound = _values(dynamic, batch, dim_values)
    named = {dimension.name for dimension in dynamic if dimension.name}
    shapes = _static_shapes(dynamic, bound)
    binding = Binding(
        bound=bound,
        overrides={name: bound[name] for name in bound if name in named},
        shapes=shapes,
        edited=any(not dimension.name for dimension in dynamic),
    )
    if batch is None or any(_kind(dimension) is dimensions.DimensionKind.BATCH for dimension in dynamic):
        return binding
    fixed = leading_dimension(model, apart_from={dimension.input for dimension in dynamic if dimension.axis == 0})
    if fixed is None:
        raise UnsupportedModel("no input has a batch dimension", remedy="leave --batch out")
    if fixed == batch:
        return binding
    trial = deepcopy(model)
    apply(trial, binding)
    rebatch = plan_rebatch(trial, fixed, batch)
    bound = {**bound, **{f"{name}[0]": batch for name in rebatch[0]}}
    return replace(binding, bound=bound, rebatch=rebatch, edited=True)


def apply(model: ModelProto, binding: Binding) -> None:
    """Bind a model in place: the planned one, or the same one with its weights.

    All occurrences of a name get its value, also in the types of interior values and outputs. A change of a fixed batch
    drops the types of interior values.
    """
    graph = model.graph
    for value in graph.input:
        if value.name in binding.shapes:
            for dim, size in zip(value.type.tensor_type.shape.dim, binding.shapes[value.name], strict=True):
                dim.dim_value = size
    if binding.rebatch:
        apply_rebatch(model, binding.rebatch)
    elif binding.bound:
        for values in (graph.value_info, graph.output):
            for value in values:
                _substitute(value, binding.bound)


class HasBound(Protocol):
    """A skeleton, or a value made from one."""

    @property
    def bound(self) -> Mapping[str, int]:
        """Dimension name to its value."""


def require_known(dims: Mapping[str, int], models: Iterable[HasBound]) -> None:
    """Check that each name of ``--dim`` is a dimension of at least one of the models.

    Raises:
        UsageError: No model has the dimension; the message lists the known ones.
    """
    dimension_names: set[str] = set().union(*(model.bound for model in models))
    if unknown := sorted(set(dims) - dimension_names):
        there = ", ".join(sorted(dimension_names)) or "none: the model's shapes are static"
        raise UsageError(f"--dim {unknown[0]}: no model has such a dimension", remedy=f"there are: {there}")


def kinds_of(model: ModelProto) -> dict[str, dimensions.DimensionKind]:
    """Return the kinds of a model's dynamic dimensions, and of the names in their arithmetic, by label.

    The model is in normal form.

    Raises:
        UnsupportedModel: An input states no rank.
    """
    return _kinds(list(_dynamic_dimensions(model)), {})[0]


def _dynamic_dimensions(model: ModelProto) -> Iterable[dimensions.Dimension]:
    for value in model.graph.input:
        if is_weight(value) or not value.type.HasField("tensor_type"):
            continue  # sequences and maps have no shape to bind
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            raise UnsupportedModel(
                f"input '{value.name}' states no rank, so that no shape can be bound", remedy="set it in the file"
            )
        shape = tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in tensor.shape.dim
        )
        for axis, size in enumerate(shape):
            if size is None:
                name = tensor.shape.dim[axis].dim_param
                require_text(name)
                name = "" if name in dimensions.NAMELESS else name
                yield dimensions.Dimension(value.name, axis, name, tensor.elem_type, shape)


def _kind(dimension: dimensions.Dimension) -> dimensions.DimensionKind:
    return dimensions.DimensionKind.UNKNOWN if dimensions.expression(dimension.name) else dimensions.classify(dimension)


def _kinds(
    dynamic: list[dimensions.Dimension], dim_values: Mapping[str, int]
) -> tuple[dict[str, dimensions.DimensionKind], list[str]]:
    """Return the kind of each label and of each name in arithmetic, and the labels that are arithmetic."""
    kinds: dict[str, dimensions.DimensionKind] = {}
    composed: dict[str, None] = {}
    for dimension in dynamic:
        if (arithmetic := dimensions.expression(dimension.name)) and dimension.name not in dim_values:
            composed[dimension.name] = None
            for name in dimensions.names_in(arithmetic):
                kinds.setdefault(name, dimensions.classify_name(name, dimension.input))
        # A plain dimension takes precedence over a name in arithmetic.
        elif kinds.get(dimension.label, dimensions.DimensionKind.UNKNOWN) is dimensions.DimensionKind.UNKNOWN:
            kinds[dimension.label] = dimensions.classify(dimension)
    return kinds, list(composed)


def _values(dynamic: list[dimensions.Dimension], batch: int | None, dim_values: Mapping[str, int]) -> dict[str, int]:
    """Return the value of each label, and of each name in a label's arithmetic."""
    dim_values = {**_implied(dim_values), **dim_values}
    kinds, composed = _kinds(dynamic, dim_values)
    decoding = dimensions.DimensionKind.PAST in kinds.values()
    bound: dict[str, int] = {}
    solutions = _solutions(dynamic, dim_values, decoding=decoding)
    for name, kind in kinds.items():
        value = dim_values.get(name, batch if kind is dimensions.DimensionKind.BATCH and batch is not None else None)
        if value is None:
            value = solutions.get(name)
        if value is None and kind is not dimensions.DimensionKind.TOTAL:
            value = dimensions.default_value(kind, decoding=decoding)
        if kind is dimensions.DimensionKind.BATCH and batch is not None and value != batch:
            raise UsageError(f"--batch {batch} and --dim {name}={value} contradict each other", remedy="give one")
        if value is not None:
            bound[name] = value
    for name, kind in kinds.items():
        if name not in bound and kind is dimensions.DimensionKind.TOTAL:
            bound[name] = _total(kinds, bound, decoding=decoding)
    for name in composed:
        arithmetic = dimensions.expression(name)
        value = dimensions.value_of(arithmetic, bound) if arithmetic else None
        if value is not None:
            bound[name] = value
    _require_all(dynamic, bound)
    order = dict.fromkeys([*(dimension.label for dimension in dynamic), *bound])
    return {name: bound[name] for name in order}


def _implied(dim_values: Mapping[str, int]) -> dict[str, int]:
    """Return the names that given arithmetic decides: with ``4*h=224``, h is 56.

    Raises:
        UsageError: Given sizes contradict each other, or no number fits.
    """
    implied: dict[str, int] = {}
    for label, size in dim_values.items():
        arithmetic = dimensions.expression(label)
        names = () if arithmetic is None else dimensions.names_in(arithmetic)
        if arithmetic is None or not names:
            continue
        if len(names) == 1 and names[0] not in dim_values:
            implied = {**dimensions.solved(arithmetic, size), **implied}
        known = {**implied, **dim_values}
        made = dimensions.value_of(arithmetic, known)
        if made != size and (made is not None or len(names) == 1):
            sizes = " and ".join(f"{name}={known[name]}" for name in names if name in known)
            reason = f"{sizes} makes {made}" if sizes else f"no {names[0]} fits"
            raise UsageError(f"--dim '{label}={size}' cannot be: {reason}", remedy="give sizes that agree")
    return implied


def _solutions(dynamic: list[dimensions.Dimension], dim_values: Mapping[str, int], *, decoding: bool) -> dict[str, int]:
    """Return values of names that occur in arithmetic only, so that its result is a usual size for its place.

    The side of an image that is ``4*h`` is to be 224, not ``h``.
    """
    solutions: dict[str, int] = {}
    plain = {dimension.name for dimension in dynamic} | dim_values.keys()
    for dimension in dynamic:
        arithmetic = dimensions.expression(dimension.name)
        if arithmetic is None or dimension.name in dim_values or plain.intersection(dimensions.names_in(arithmetic)):
            continue
        target = dimensions.default_value(dimensions.classify(replace(dimension, name="")), decoding=decoding)
        for name, value in dimensions.solved(arithmetic, target).items() if target is not None else ():
            solutions.setdefault(name, value)
    return solutions


def _require_all(dynamic: list[dimensions.Dimension], bound: Mapping[str, int]) -> None:
    if missing := [dimension for dimension in dynamic if dimension.label not in bound]:
        first = missing[0]
        labels = dict.fromkeys(dimension.label for dimension in missing)
        others = f" (and {len(labels) - 1} more)" if len(labels) > 1 else ""
        raise UnboundDimension(
            f"dimension '{first.label}' (axis {first.axis} of input '{first.input}'){others} has no value",
            remedy="give one: " + " ".join(f"--dim '{label}=N'" for label in labels),
        )


def _total(kinds: Mapping[str, dimensions.DimensionKind], bound: Mapping[str, int], *, decoding: bool) -> int:
    """Return the number of cached and new positions together."""
    past = [bound[name] for name, kind in kinds.items() if kind is dimensions.DimensionKind.PAST and name in bound]
    new = [bound[name] for name, kind in kinds.items() if kind is dimensions.DimensionKind.SEQUENCE and name in bound]
    return (past[0] if past else 0) + (
        new[0] if new else dimensions.default_value(dimensions.DimensionKind.SEQUENCE, decoding=decoding) or 0
    )


def _static_shapes(dynamic: list[dimensions.Dimension], bound: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, list[int | None]] = {}
    for dimension in dynamic:
        shapes.setdefault(dimension.input, list(dimension.shape))[dimension.axis] = bound[dimension.label]
    return {name: tuple(size for size in shape if size is not None) for name, shape in shapes.items()}


def _substitute(value: ValueInfoProto, bound: Mapping[str, int]) -> None:
    if not value.type.HasField("tensor_type"):
        return
    for dim in value.type.tensor_type.shape.dim:
        name = dim.dim_param
        if not name or not isinstance(name, str):
            continue
        if name in bound:
            dim.dim_value = bound[name]
        elif arithmetic := dimensions.expression(name):
            size = dimensions.value_of(arithmetic, bound)
            if size is not None:
                dim.dim_value = size
