"""Binding: every dynamic dimension of a model's inputs gets a value, and what was bound is recorded.

A value comes from ``--dim``, from ``--batch``, from arithmetic on other dimensions (``past_sequence_length + 1``), or
from what the name or the place of the dimension says (``dimensions.py``), in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Protocol

from onnx import ModelProto, ValueInfoProto

from ..errors import UnboundDimension, UnsupportedModel, UsageError
from .dimensions import Dimension, Kind, classify, classify_name, default_value, expression
from .names import require_text
from .rebatch import Rebatch, apply_rebatch, leading_dimension, plan_rebatch
from .skeleton import is_weight

__all__ = ["Binding", "apply", "kinds_of", "plan", "require_known"]


@dataclass(frozen=True, slots=True)
class Binding:
    """What binding a model takes; a matter of its structure alone.

    Attributes:
        bound: Value by name: a dimension's, a name in its arithmetic, or ``input[axis]``.
        overrides: ``dim_param`` of an input to value, for a runtime that loads the file itself.
        shapes: Static shape of each input that had none.
        rebatch: The change of a batch that the file fixes; None where there is none.
        edited: Whether the file cannot serve with ``overrides`` alone.
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
        batch: Value of the batch dimension. A batch that is fixed in the file is changed, where that can be done.
        dims: Value by dimension name, or by ``input[axis]`` for a dimension without a name. Names that this model
            does not have are ignored (``require_known`` reports them).

    Raises:
        UnboundDimension: A dimension has no value, and no sensible default.
        UsageError: ``batch`` and ``dims`` contradict each other.
        UnsupportedModel: An input states no rank; or a fixed batch cannot be changed.
    """
    given = dims or {}
    dynamic = list(_dynamic_dimensions(model))
    bound = _values(dynamic, batch, given)
    named = {dimension.name for dimension in dynamic if dimension.name}
    shapes = _static_shapes(dynamic, bound)
    binding = Binding(
        bound=bound,
        overrides={name: bound[name] for name in bound if name in named},
        shapes=shapes,
        edited=any(not dimension.name for dimension in dynamic),
    )
    if batch is None or any(_kind(dimension) is Kind.BATCH for dimension in dynamic):
        return binding
    fixed = leading_dimension(model, apart_from={dimension.input for dimension in dynamic if dimension.axis == 0})
    if fixed is None:
        raise UnsupportedModel("no input has a batch dimension", remedy="leave --batch out")
    if fixed == batch:
        return binding
    trial = deepcopy(model)
    apply(trial, binding)
    rebatch = plan_rebatch(trial, fixed, batch)
    bound = {**bound, **{f"{name}[0]": batch for name in rebatch.inputs}}
    return replace(binding, bound=bound, rebatch=rebatch, edited=True)


def apply(model: ModelProto, binding: Binding) -> None:
    """Bind a model in place: the one that was planned for, or the same one with its weights.

    All occurrences of a name get its value, in the types of interior values and outputs too. A change of a fixed
    batch drops those of interior values.
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


class Bound(Protocol):
    """A skeleton, or anything that was made of one."""

    @property
    def bound(self) -> Mapping[str, int]:
        """Dimension name to its value."""


def require_known(dims: Mapping[str, int], models: Iterable[Bound]) -> None:
    """Check that each name of ``--dim`` is a dimension of at least one of the models.

    Args:
        dims: Value by dimension name.
        models: The models that could be read, as skeletons or graphs.

    Raises:
        UsageError: It is of none; the message says which there are.
    """
    known: set[str] = set().union(*(model.bound for model in models))
    if unknown := sorted(set(dims) - known):
        there = ", ".join(sorted(known)) or "none: the model's shapes are static"
        raise UsageError(f"--dim {unknown[0]}: no model has such a dimension", remedy=f"there are: {there}")


def kinds_of(model: ModelProto) -> dict[str, Kind]:
    """What each dynamic dimension of a model in normal form counts, and each name in its arithmetic, by label.

    Raises:
        UnsupportedModel: An input states no rank.
    """
    return _kinds(list(_dynamic_dimensions(model)), {})[0]


def _dynamic_dimensions(model: ModelProto) -> Iterable[Dimension]:
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
                yield Dimension(value.name, axis, name, tensor.elem_type, shape)


def _kind(dimension: Dimension) -> Kind:
    return Kind.UNKNOWN if expression(dimension.name) else classify(dimension)


def _kinds(dynamic: list[Dimension], given: Mapping[str, int]) -> tuple[dict[str, Kind], list[str]]:
    """What each label counts, and each name in a label's arithmetic; and the labels that are arithmetic."""
    kinds: dict[str, Kind] = {}
    composed: dict[str, None] = {}
    for dimension in dynamic:
        if (arithmetic := expression(dimension.name)) and dimension.name not in given:
            composed[dimension.name] = None
            for name in arithmetic.names:
                kinds.setdefault(name, classify_name(name, dimension.input))
        # What a plain dimension is outweighs what a name within arithmetic suggests.
        elif kinds.get(dimension.label, Kind.UNKNOWN) is Kind.UNKNOWN:
            kinds[dimension.label] = classify(dimension)
    return kinds, list(composed)


def _values(dynamic: list[Dimension], batch: int | None, given: Mapping[str, int]) -> dict[str, int]:
    """The value of each label, and of each name in a label's arithmetic."""
    kinds, composed = _kinds(dynamic, given)
    decoding = Kind.PAST in kinds.values()
    bound: dict[str, int] = {}
    for name, kind in kinds.items():
        value = given.get(name, batch if kind is Kind.BATCH and batch is not None else None)
        if value is None and kind is not Kind.TOTAL:
            value = default_value(kind, decoding=decoding)
        if kind is Kind.BATCH and batch is not None and value != batch:
            raise UsageError(f"--batch {batch} and --dim {name}={value} contradict each other", remedy="give one")
        if value is not None:
            bound[name] = value
    for name, kind in kinds.items():
        if name not in bound and kind is Kind.TOTAL:
            bound[name] = _total(kinds, bound, decoding=decoding)
    for name in composed:
        arithmetic = expression(name)
        value = arithmetic.value(bound) if arithmetic else None
        if value is not None:
            bound[name] = value
    _require_all(dynamic, bound)
    order = dict.fromkeys([*(dimension.label for dimension in dynamic), *bound])
    return {name: bound[name] for name in order}


def _require_all(dynamic: list[Dimension], bound: Mapping[str, int]) -> None:
    if missing := [dimension for dimension in dynamic if dimension.label not in bound]:
        first = missing[0]
        labels = dict.fromkeys(dimension.label for dimension in missing)
        others = f" (and {len(labels) - 1} more)" if len(labels) > 1 else ""
        raise UnboundDimension(
            f"dimension '{first.label}' (axis {first.axis} of input '{first.input}'){others} has no value",
            remedy="give one: " + " ".join(f"--dim '{label}=N'" for label in labels),
        )


def _total(kinds: Mapping[str, Kind], bound: Mapping[str, int], *, decoding: bool) -> int:
    """Cached positions and new ones together."""
    past = [bound[name] for name, kind in kinds.items() if kind is Kind.PAST and name in bound]
    new = [bound[name] for name, kind in kinds.items() if kind is Kind.SEQUENCE and name in bound]
    return (past[0] if past else 0) + (new[0] if new else default_value(Kind.SEQUENCE, decoding=decoding) or 0)


def _static_shapes(dynamic: list[Dimension], bound: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
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
        elif arithmetic := expression(name):
            size = arithmetic.value(bound)
            if size is not None:
                dim.dim_value = size
