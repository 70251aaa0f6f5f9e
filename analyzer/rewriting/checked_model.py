"""The model to be rewritten, with inputs at the measured and at other shapes.

Inputs never prove that a rewrite is right. They suggest rewrites, and they are a safety net below the proofs: guards in
models exist for the inputs of ``CheckedModel.hostile``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...bricks.operators import Trait, having
from ...errors import DlbricksError, ModelError
from ...generator.network.inputs import make_inputs
from ...models.binding import apply, plan
from ...models.normal import NormalForm, normalise
from ...models.reader import read_full
from ...models.subgraphs import static_shape
from ...models.user_inputs import NOTHING_GIVEN, InputType, UserInputs
from .recording import Feeds
from .rewrite import Array

_SCALES = (1.0, 1.0, 3.0, 30.0)
"""Factors of floating-point inputs in each set of inputs: typical, typical, scaled, wide."""

_SHAPES = 2
"""Number of dynamic dimensions that are changed alone, in addition to all together."""

_SIZES = (1, 3, 7, 13, 100, 300, 700)
"""Sizes of dynamic dimensions at which files are compared."""

_CHANGES: Sequence[Callable[[int, int], int]] = (
    lambda size, index: size + 1 + 2 * index if size < _LARGE else size // 2 + 1 + 2 * index,
    lambda size, index: max(1, size // 2 + index),
    lambda size, _: 1 if size > 1 else 2,
    lambda size, index: size + 3 + index if size % 32 else size + 32 * (index + 1 if size < _LARGE else -1),
    lambda size, _: 2 * size if size < _LARGE else size // 2,
)
"""Other sizes of the dynamic dimensions, by size and place: odd and even ones; some are not legal."""

_LARGE = 160
"""Size from which other sizes are smaller."""

_LARGE_CONSTANT = 4096
"""Elements of a constant from which its contents decide no shape."""

_MOST_GROWTH = 16
"""Largest growth of an input at another size."""


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model to be rewritten.

    Attributes:
        path: Its file.
        model: The model with its weights; dynamic dimensions stay dynamic.
        overridable: Constants that a caller could override, since they are inputs of the file as well.
        is_external: Weights are in separate files.
        is_altered: The model has another form than the file: constants in place of nodes and of inputs.
        feeds: Sets of inputs at the measured shape, the user's own first.
        data: Number of the user's own sets.
        values: The values that all sets of inputs share.
        bound: Sizes of dynamic dimensions at the measured shape; empty for a static model.
    """

    path: Path
    model: onnx.ModelProto
    overridable: frozenset[str]
    is_external: bool
    is_altered: bool
    feeds: tuple[Feeds, ...]
    data: int
    bound: Mapping[str, int]
    values: UserInputs = NOTHING_GIVEN

    def at(self, sizes: Mapping[str, int], *, seed: int = 1) -> Feeds | None:
        """Return inputs at other sizes of the dynamic dimensions; None if the model cannot be bound to them."""
        other = _copy_of_structure(self.model)
        with contextlib.suppress(DlbricksError):  # another size need not be possible
            apply(other, plan(other, dims=dict(sizes)))
            return _feeds(other, _SCALES[:1], _large(self.model), self.values, first=seed)[0]
        return None

    def other_shapes(self) -> Iterator[Feeds]:
        """Yield inputs at other shapes; some may be impossible."""
        sizes = dict(self.bound)
        for change in _CHANGES if sizes else ():
            other = {name: change(size, index) for index, (name, size) in enumerate(sizes.items())}
            if (feeds := self.at(other)) is not None:
                yield feeds
        for name, size in list(sizes.items())[:_SHAPES] if len(sizes) > 1 else ():
            if (feeds := self.at({**sizes, name: size + 1 if size % 32 else size + 32})) is not None:
                yield feeds

    def hostile(self) -> Iterator[tuple[str, Feeds]]:
        """Yield inputs that guards exist for, each with a name; some may be illegal for the model."""
        usual, fixed = self.feeds[self.data], self.values.names()
        for name, change in _HOSTILE.items():
            yield (
                name,
                {
                    key: array if key in fixed else np.asarray(change(np.random.default_rng(5), array))
                    for key, array in usual.items()
                },
            )
        if not self.bound:
            return
        largest = max(array.size for array in usual.values())
        for size in _SIZES:
            for changed in (dict.fromkeys(self.bound, size), *(
                {**self.bound, name: size} for name in list(self.bound)[:_SHAPES] if len(self.bound) > 1)):  # fmt: skip
                feeds = self.at(changed)
                if feeds is not None and max(array.size for array in feeds.values()) <= _MOST_GROWTH * largest:
                    yield f"size {size}", feeds


def _planted(numbers: Sequence[float], share: float) -> Callable[[np.random.Generator, Array], Array]:
    """Return a change that puts numbers in random places of floating-point inputs."""

    def change(random: np.random.Generator, array: Array) -> Array:
        if array.dtype.kind != "f":
            return array
        chosen = random.choice(np.array(numbers), array.shape)
        return np.where(random.random(array.shape) < share, chosen, array).astype(array.dtype)

    return change


def _one(number: float) -> Callable[[np.random.Generator, Array], Array]:
    """Return a change that puts a number in the last place of floating-point inputs."""

    def change(_: np.random.Generator, array: Array) -> Array:
        copy = array.copy()
        if array.dtype.kind == "f" and array.size:
            copy.reshape(-1)[-1] = number
        return copy

    return change


def _of_floats(change: Callable[[Array], Array]) -> Callable[[np.random.Generator, Array], Array]:
    return lambda _, array: change(array).astype(array.dtype) if array.dtype.kind == "f" else array


def _of_integers(number: int) -> Callable[[np.random.Generator, Array], Array]:
    """Return a change that puts an integer in random places of integer inputs, and 0 or 1 in all places of booleans."""

    def change(random: np.random.Generator, array: Array) -> Array:
        if array.dtype.kind == "b":
            return np.full(array.shape, number > 0)
        if array.dtype.kind not in "iu":
            return array
        least, most = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
        replacement = np.asarray(min(max(number, least), most), array.dtype)
        return np.where(random.random(array.shape) < _DECIDING, replacement, array)

    return change


def _rows_of_zeros(array: Array) -> Array:
    copy = array.copy()
    if copy.ndim > 1:
        copy.reshape(-1, copy.shape[-1])[::3] = 0
    return copy


_HOSTILE: Mapping[str, Callable[[np.random.Generator, Array], Array]] = {
    **{f"times {scale:g}": _of_floats(partial(np.multiply, scale)) for scale in (1e-6, 1e-3, 1e3, 1e6)},
    "plus 100": _of_floats(lambda array: array + 100),
    "bytes": _of_floats(lambda array: np.abs(np.round(array * 80)) % 256),
    "zeros": lambda _, array: np.zeros_like(array),
    "one constant": _of_floats(np.ones_like),
    "rows of zeros": _of_floats(_rows_of_zeros),
    "one spike": _planted((1e4,), 1e-3),
    "saturated": _of_floats(lambda array: np.sign(array) * 1e4),
    "ties": _of_floats(np.round),
    "NaN": _planted((np.nan,), 1e-2),
    "one NaN": _one(np.nan),
    "minus one": _of_integers(-1),
    "too large": _of_integers(1 << 20),
}
"""Changes of inputs, by name."""


def read_subject(
    path: Path, batch: int | None, dims: Mapping[str, int], given: UserInputs | None = None
) -> CheckedModel:
    """Read a model file.

    Args:
        path: The file.
        batch: Batch to measure at; a batch that the file fixes is changed.
        dims: Values of dynamic dimensions to measure at.
        given: The user's own inputs: each file is a set, and its other inputs are seeded; single values are in every
            set.

    Raises:
        ModelError: The file cannot be read or bound.
        UsageError: A given value has another shape or type than its input.
    """
    normal, external, altered = _with_weights(path)
    model, overridable = normal.model, normal.overridable
    bound = _copy_of_structure(model)
    binding = plan(bound, batch=batch, dims=dims)
    apply(bound, binding)
    given = given or NOTHING_GIVEN
    values, large = UserInputs(values=given.values), _large(model)
    feeds = _feeds(bound, _SCALES, large, values)
    user_feeds = tuple({**feeds[0], **arrays} for arrays in given.of(_inputs(bound, large))) if given.files else ()
    if binding.rebatch is not None:
        apply(model, binding)
    sizes = {} if binding.rebatch is not None else dict(binding.bound)
    return CheckedModel(
        path, model, overridable, external, altered, (*user_feeds, *feeds), len(user_feeds), sizes, values
    )


def _with_weights(path: Path) -> tuple[NormalForm, bool, bool]:
    model, folder = read_full(path)
    external = bool(folder.locations)
    input_names = {value.name for value in model.graph.input}
    altered = any(node.op_type == "Constant" for node in model.graph.node) or any(
        tensor.name in input_names for tensor in model.graph.initializer
    )
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            data = folder.locate(tensor).read()
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = bytes(data)
    notes = onnx.ModelProto(metadata_props=model.metadata_props, doc_string=model.doc_string)
    notes.producer_name = model.producer_name
    normal = normalise(model, keep_weights=True)
    for name in ("metadata_props", "doc_string", "producer_name"):
        normal.model.ClearField(name)
    normal.model.MergeFrom(notes)
    del normal.model.graph.value_info[:]  # types inside are recorded, and binding thousands of them takes minutes
    return normal, external, altered


def _copy_of_structure(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model without the contents of large constants, which are inputs there (``_large``)."""
    copy = onnx.ModelProto()
    copy.ir_version, copy.graph.name = model.ir_version, model.graph.name
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    copy.graph.node.extend(model.graph.node)
    copy.graph.input.extend(model.graph.input)
    copy.graph.output.extend(model.graph.output)
    large = _large(model)
    for tensor in model.graph.initializer:
        if tensor.name in large:
            copy.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        else:
            copy.graph.initializer.append(tensor)
    return copy


def _large(model: onnx.ModelProto) -> frozenset[str]:
    """Return the names of large constants, except inputs."""
    input_names = {value.name for value in model.graph.input}
    return frozenset(
        tensor.name for tensor in model.graph.initializer if np.prod(tensor.dims) > _LARGE_CONSTANT
        and tensor.name not in input_names
    )  # fmt: skip


def _feeds(
    bound: onnx.ModelProto, scales: Sequence[float], large: frozenset[str], values: UserInputs, *, first: int = 0
) -> tuple[Feeds, ...]:
    """Return sets of inputs. In all but number 0 integers and booleans vary: masks of ones would hide their effect."""
    compared, types = _compared(bound), _inputs(bound, large)
    usual, fixed = make_inputs(bound, types, seed=0)[0], next(iter(values.of(types)), {})
    return tuple(
        {
            name: np.asarray(
                _varied(
                    np.multiply(array, scale, dtype=array.dtype) if array.dtype.kind == "f" else array,
                    usual[name],
                    seed,
                    compared,
                )
            )
            for name, array in make_inputs(bound, types, seed=seed)[0].items()
        }
        | fixed
        for seed, scale in enumerate(scales, start=first)
    )


def _inputs(bound: onnx.ModelProto, large: frozenset[str]) -> list[InputType]:
    """Return the types of the inputs of a bound model; ``large`` are its constants among them.

    Raises:
        ModelError: The shape of an input is not static.
    """
    constants = {tensor.name for tensor in bound.graph.initializer} | large
    types = list[InputType]()
    for value in bound.graph.input:
        if value.name in constants:
            continue
        shape = static_shape(value.type)
        if shape is None:
            raise ModelError(f"input '{value.name}' has no static shape", remedy="give its dimensions")
        kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
        types.append((value.name, kind, shape))
    return types


def _varied(array: Array, usual: Array, seed: int, compared: _Numbers) -> Array:
    """Return an input that differs from the usual one enough for conditions to be true and false.

    Integers and booleans that are the same in every set vary, except for the first of each row, because a row that is
    masked as a whole would give no finite output. In one set a quarter of the other integers is zero. In another one a
    quarter of all numbers are constants that the model compares with, and neighbours of them.
    """
    kind = array.dtype.kind
    if seed == 0 or kind not in "iubf" or not array.size:
        return array
    value, random = int(array.flat[0]) if kind != "f" else 1, np.random.default_rng(seed)
    if seed == _COMPARED and kind in "iu" and array.dtype.itemsize <= _NARROW:
        least, most = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
        return random.integers(least, most, array.shape, array.dtype, endpoint=True)
    deciding = compared["f" if kind == "f" else "i"] if seed == _COMPARED else [0] * (kind in "iu" and seed == _ZEROS)
    if kind == "f" or not np.array_equal(array, usual):
        if not deciding or kind == "b":
            return array
        numbers = np.where(random.random(array.shape) < _DECIDING, random.choice(deciding, array.shape), array)
    elif array.size == 1:
        return np.full_like(array, random.choice([0, 1, value // 2, 2 * value]))
    else:
        numbers = random.integers(0, max(value, 1) + 1, array.shape)
    numbers = numbers.astype(array.dtype)
    if array.ndim:
        numbers[..., 0] = array[..., 0]
    return numbers


_ZEROS, _COMPARED, _DECIDING = 1, 2, 0.25
"""Sets with zeros and with compared numbers; share of these numbers."""

_NARROW = 2
"""Bytes of integers that may be images or sounds: the set of compared numbers has all their values."""

_Numbers = Mapping[str, Sequence[float]]
"""Numbers by kind: ``i`` or ``f``."""


def _compared(model: onnx.ModelProto) -> _Numbers:
    """Return the constants that a model compares with; of integers no negative ones, and the neighbours as well."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = (node for node in model.graph.node if node.op_type == "Constant")
    tensors |= {node.output[0]: value.t for node in nodes for value in node.attribute if value.name == "value"}
    numbers_by_kind: dict[str, set[float]] = {"i": set(), "f": set()}
    for node in model.graph.node:
        for name in node.input if node.op_type in having(Trait.COMPARES) | {"Equal"} else ():
            if name in tensors and np.prod(tensors[name].dims) == 1:
                constant = numpy_helper.to_array(tensors[name])
                if constant.dtype.kind in "iu":
                    numbers_by_kind["i"].update(
                        number for step in (-1, 0, 1) if (number := int(constant.item()) + step) >= 0
                    )
                elif constant.dtype.kind == "f" and node.op_type == "Equal":
                    numbers_by_kind["f"].add(float(constant.item()))
    return {kind: sorted(numbers) for kind, numbers in numbers_by_kind.items()}
