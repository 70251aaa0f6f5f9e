"""A network: the runnable ONNX of one brick or one whole model, with seeded weights and inputs.

A brick's weights are graph inputs marked ``role=weight``. Here they become initializers, as they are in a real
model, so that a runtime may fold, fuse and repack them. Their values stay outside the protobuf: the initializers
are marked external, and a backend hands the arrays to its runtime (or asks for ``Network.self_contained``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ...bricks.operators import RANDOM, Trait, operator_of
from ...errors import BackendError, ModelError, UnboundDimension
from ...models.binding import apply, plan
from ...models.external import count_elements, payload_bytes
from ...models.reader import read_full, read_structure
from ...models.skeleton import is_weight
from ...models.subgraphs import (
    all_nodes,
    attribute_of,
    declared_shape,
    needed,
    own_names,
    plain_domain,
    reads,
    rename,
)
from ...models.user_inputs import InputType
from .inputs import make_inputs
from .synthetic.walk import OTHER_WEIGHTS
from .synthetic.weights import synthesise

# Caches of keys and values that an operator extends in place, where what it reads and what it writes are one buffer.
#
# A loop that generates text may bind the ``past`` and the ``present`` of a step to the same memory, as large as the
# longest answer: GroupQueryAttention then writes the new position and copies nothing. A model is made for that where
# both are declared with the same shape; otherwise ``present`` is longer by the new positions.


def shared_buffers(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the outputs that a loop binds to the memory of an input, each with that input, by name."""
    inputs, outputs = _shapes(graph.input), _shapes(graph.output)
    return {
        present: past
        for past, present in extended_caches(graph)
        if past in inputs and present in outputs and inputs[past] == outputs[present]
    }


def extended_caches(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Yield what operators that may extend a cache in place read of it, and what they write."""
    for node in graph.node:
        row = operator_of(node)
        for read, written in row.caches if Trait.IN_PLACE in row.traits else ():
            if len(node.input) > read and len(node.output) > written:
                yield node.input[read], node.output[written]


def _shapes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, bytes]:
    """Element types and shapes as they are declared, open dimensions by their names."""
    return {value.name: value.type.SerializeToString(deterministic=True) for value in values}


# Copies of a brick in one network: its nodes and constants under other names, and its weights with other values.
#
# Runtimes share packed weights between nodes where the packed bytes are equal (ONNX Runtime does), and copies would
# then read warm what a model reads cold.


Array = npt.NDArray[Any]

HUGE_BYTES = 1 << 28
"""No usual last-level cache holds a noticeable part of weights of this size: where they are in memory does not show."""


def add_copy(graph: onnx.GraphProto, source: onnx.GraphProto, name_of: Callable[[str], str]) -> list[onnx.NodeProto]:
    """Add the nodes and constants of a graph to another graph, with other names for all values.

    Args:
        graph: The target; the caller declares its inputs and outputs.
        source: The graph to copy; unchanged.
        name_of: Maps a name to the name in the copy.

    Returns:
        The added nodes in order, without node names.
    """
    names = {name: name_of(name) for name in own_names(source) if name}
    for tensor in source.initializer:
        twin = graph.initializer.add()
        twin.CopyFrom(tensor)
        twin.name = names[tensor.name]
    added = []
    for node in source.node:
        added.append(graph.node.add())
        added[-1].CopyFrom(node)
        added[-1].ClearField("name")
        rename(added[-1], names)
    return added


def add_value(values: Any, value: onnx.ValueInfoProto, name: str) -> None:
    """Declare an input or output (``graph.input``, ``graph.output``) of the type of another one."""
    twin = values.add()
    twin.CopyFrom(value)
    twin.name = name


def distinct(array: Array, copy: int) -> Array:
    """Return a copy of the values, rotated by as many places as the number of the copy.

    Rotated values keep their distribution and their range.
    """
    return np.roll(array.reshape(-1), copy).reshape(array.shape)


# The type of an array, as requests and replies carry it, and narrower ones.


def array_type(array: npt.NDArray[Any]) -> tuple[str, tuple[int, ...]]:
    """ONNX's name of the element type, in lower case, and the shape."""
    number = helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.TensorProto.DataType.Name(number).lower(), tuple(array.shape)


def narrowed_to(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Numbers in a narrower type; finite ones stay finite, as masks are made of the largest number of float32."""
    limit = np.float32(ml_dtypes.finfo(dtype).max)
    return np.where(np.isfinite(array), np.clip(array, -limit, limit), array).astype(dtype)


# How far two arrays of numbers are apart.


def relative_difference(values: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Return the largest difference over the largest finite value of ``other``; infinite if only one is finite."""
    first, two = values.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(two)
    if not np.array_equal(first[~finite], two[~finite], equal_nan=True) or not np.isfinite(first[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    largest = float(np.abs(two[finite]).max())
    apart = float(np.abs(first[finite] - two[finite]).max())
    return apart / largest if largest else apart


_INLINE_BYTES = 1024
"""Weights of up to this size are stored in the protobuf: runtimes look at small values while they load."""

_IR_VERSION = 4
"""From this one on, initializers need not be inputs."""

_PACKED = frozenset({"int4", "uint4", "int2", "uint2", "float4_e2m1fn"})
"""Types with several elements per byte in ONNX but not in NumPy; only the protobuf's conversion packs them."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A runnable network, as a backend loads it.

    Attributes:
        model: Structure; the values of external initializers are in ``weights``. None: see ``path``.
        path: A model file to be loaded unchanged. None: see ``model``.
        weights: Values of the external initializers, by name.
        feeds: Values of the graph inputs, by name, of all copies.
        outputs: Names of the graph outputs, of all copies; those of the first copy come first.
        overrides: ``dim_param`` to value, for a file with dynamic dimensions.
        unroll: Number of copies.
        file_bytes: Size of the file and its external data.
        as_is: Run it without the runtime's optimisation.
        shared: Outputs that are written to the memory of an input, each with that input (``shared_buffers``).
    """

    model: onnx.ModelProto | None
    path: Path | None
    weights: Mapping[str, Array]
    feeds: Mapping[str, Array]
    outputs: tuple[str, ...]
    overrides: Mapping[str, int] = field(default_factory=dict)
    unroll: int = 1
    file_bytes: int = 0
    as_is: bool = False
    shared: Mapping[str, str] = field(default_factory=dict)

    @property
    def brick(self) -> onnx.ModelProto:
        """The model of a brick, or of several.

        Raises:
            BackendError: It is a model file.
        """
        if self.model is None:
            raise BackendError(f"{self.path} is a model file, not a network of a brick")
        return self.model

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in memory (copies share them), or of the file that holds them."""
        return self.file_bytes + sum({id(array): array.nbytes for array in self.weights.values()}.values())

    @property
    def feed_bytes(self) -> int:
        """Bytes of the inputs of all copies."""
        return sum(array.nbytes for array in self.feeds.values())

    def first_feeds(self) -> dict[str, Array]:
        """Return the inputs of the first copy."""
        names = list(self.feeds)
        return {name: self.feeds[name] for name in names[: len(names) // self.unroll]}

    def first_outputs(self, values: Sequence[Array]) -> dict[str, Array]:
        """Return the outputs of the first copy by name, from the values of all copies."""
        count = len(self.outputs) // self.unroll
        return dict(zip(self.outputs[:count], values, strict=False))

    def loaded(self) -> onnx.ModelProto:
        """Return the model, or the model of the file with its weights.

        Raises:
            BackendError: The file cannot be read.
        """
        if self.path is None or self.model is not None:
            return self.brick
        try:
            return onnx.load(str(self.path))
        except Exception as error:  # protobuf's and the file system's
            raise BackendError(f"{self.path.name} cannot be read: {' '.join(str(error).split())}") from error

    def constants(self, model: onnx.ModelProto) -> dict[str, Array]:
        """Return the weights, and the values of the other initializers of its model."""
        inline = (tensor for tensor in model.graph.initializer if tensor.name not in self.weights)
        return {**{tensor.name: numpy_helper.to_array(tensor) for tensor in inline}, **self.weights}

    def structure(self) -> onnx.ModelProto:
        """Return a copy of the model, or the model of the file, without external values."""
        return onnx.load(str(self.path), load_external_data=False) if self.model is None else deepcopy(self.model)

    def self_contained(self) -> onnx.ModelProto:
        """Return the model with all weights inside, for runtimes and tools that need a protobuf or a file.

        Raises:
            BackendError: It exceeds 2 GiB, the limit of a protobuf, or it is a file already.
        """
        model = deepcopy(self.brick)
        _require_fit(sum(array.nbytes for array in self.weights.values()))
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.CopyFrom(numpy_helper.from_array(self.weights[tensor.name], tensor.name))
        return model


def synthetic_network(
    model: onnx.ModelProto,
    *,
    seed: int = 0,
    unroll: int = 1,
    outputs: Sequence[str] | None = None,
    replacing: bool = False,
    alike: bool = False,
) -> Network:
    """Build the network of a model in skeleton form (a brick, or a model of the built-in zoo).

    Args:
        model: Weights are graph inputs marked ``role=weight``; it is not changed.
        seed: Of weights and inputs; multiples of ``OTHER_WEIGHTS`` change the weights alone.
        unroll: Copies in one network, so that one execution of a short brick is long enough to time. Separate inputs
            keep a runtime from merging copies; separate initializers let it fuse each copy like a single brick. The
            initializers' values share memory.
        outputs: Values that replace the model's outputs; nodes that they do not need are dropped.
        replacing: The caller replaces the inputs. Huge tables then have values in all rows, not only in those that the
            drawn inputs select.
        alike: As for ``make_inputs``.

    Raises:
        BackendError: The model cannot be assembled (a type that cannot be filled).
        UnboundDimension: An input has no static shape.
    """
    types = [_input_type(value, {}) for value in model.graph.input if not is_weight(value)]
    inputs = make_inputs(model, types, seed=seed % OTHER_WEIGHTS, copies=unroll, alike=alike)
    weights: dict[str, Array] = dict(synthesise(model, seed=seed, rows={} if replacing else _rows_read(model, inputs)))
    pinned = _unreached_weights(model)
    feeds: dict[str, Array] = {}
    for copy, fresh in enumerate(inputs):
        feeds |= {_renamed(name, copy): array for name, array in fresh.items()}
        feeds |= {_renamed(name, copy): weights[name].copy() for name in pinned}
    constants = {name: array for name, array in weights.items() if name not in pinned}
    assembled = _assemble(model, constants, unroll=unroll, outputs=outputs)
    copied = {_renamed(name, copy): array for copy in range(unroll) for name, array in constants.items()}
    declared = {value.name for value in assembled.graph.input}
    return Network(
        model=assembled,
        path=None,
        weights=outside(assembled.graph, copied),
        feeds={name: array for name, array in feeds.items() if name in declared},
        outputs=tuple(value.name for value in assembled.graph.output),
        unroll=unroll,
    )


def file_network(
    path: Path, *, overrides: Mapping[str, int], inputs: Sequence[InputType] = (), seed: int = 0
) -> Network:
    """Describe a whole model that a runtime loads from a file, weights included.

    Args:
        path: The ONNX file.
        overrides: ``dim_param`` to value.
        inputs: Types of the graph inputs; empty: as the file declares them.
        seed: Of the inputs.

    Raises:
        ModelError: The file cannot be read, or an input has no static shape.
    """
    model = read_network(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    types = list(inputs) or [
        _input_type(value, overrides) for value in model.graph.input if value.name not in constants
    ]
    return Network(
        model=None,
        path=path,
        weights={},
        feeds=make_inputs(model, types, seed=seed)[0],
        outputs=tuple(value.name for value in model.graph.output),
        overrides=overrides,
        file_bytes=_file_bytes(path, model),
        shared=shared_buffers(model.graph),
    )


def read_network(path: Path, *, values: bool = False) -> onnx.ModelProto:
    """Read a brick or model file.

    Args:
        path: The file.
        values: Keep the values of large constants, to make a network of the file. Without them, time and memory
            depend on the structure alone.

    Raises:
        ModelError: It cannot be read; the message names the file.
    """
    try:
        return read_full(path)[0] if values else read_structure(path)
    except ModelError as error:
        if path.name in error.message:
            raise
        raise type(error)(f"{path}: {error.message}", remedy=error.remedy) from error


def export_network(model: onnx.ModelProto, seed: int = 0) -> bytes:
    """Return a brick as self-contained ONNX with seeded weights as initializers, for any other tool.

    Raises:
        BackendError: The weights do not fit into one protobuf.
    """
    pinned = _unreached_weights(model)
    weights = _weights_for_export(model, seed)
    return _self_contained(model, {name: array for name, array in weights.items() if name not in pinned})


def export_open_network(model: onnx.ModelProto, seed: int = 0) -> bytes:
    """Return a model with open dimensions as self-contained ONNX with seeded weights as initializers.

    Args:
        model: The model in skeleton form; it keeps its open dimensions. Usual values for these decide the weights.
        seed: Of the weights.

    Raises:
        UnboundDimension: An open dimension has no usual value.
        BackendError: The weights do not fit into one protobuf.
    """
    bound = deepcopy(model)
    apply(bound, plan(bound))
    return _self_contained(model, _weights_for_export(bound, seed))


def _weights_for_export(model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    """Draw the weights of a model; a file that states too many bytes is refused before any is drawn."""
    _require_fit(sum(_stated_bytes(value.type) for value in model.graph.input if is_weight(value)))
    return dict(synthesise(model, seed=seed))


def _self_contained(model: onnx.ModelProto, weights: Mapping[str, Array]) -> bytes:
    filled = _filled(model, weights)
    network = Network(filled, None, weights, {}, tuple(value.name for value in filled.graph.output))
    data: bytes = network.self_contained().SerializeToString(deterministic=True)
    return data


def _require_fit(nbytes: int) -> None:
    if nbytes >= onnx.checker.MAXIMUM_PROTOBUF:
        raise BackendError(f"the weights ({nbytes} bytes) do not fit into one protobuf of 2 GiB")


def _assemble(
    model: onnx.ModelProto, weights: Mapping[str, Array], *, unroll: int, outputs: Sequence[str] | None
) -> onnx.ModelProto:
    """Return the model with its weights as initializers, in the requested number of copies, one after the other."""
    assembled = _filled(model, weights, outputs)
    graph = assembled.graph
    first = deepcopy(graph) if unroll > 1 else graph
    for copy in range(1, unroll):
        name_of = partial(_renamed, copy=copy)
        add_copy(graph, first, name_of)
        for declared, values in ((graph.input, first.input), (graph.output, first.output)):
            for value in values:
                add_value(declared, value, name_of(value.name))
    return assembled


def _filled(
    model: onnx.ModelProto, weights: Mapping[str, Array], outputs: Sequence[str] | None = None
) -> onnx.ModelProto:
    """Return the model with its weights as initializers, without nodes that the (named) outputs do not need."""
    filled = deepcopy(model)
    graph = filled.graph
    if outputs is not None:
        infos = {value.name: value for value in (*model.graph.value_info, *model.graph.input, *model.graph.output)}
        del graph.output[:]
        graph.output.extend(infos.get(name) or helper.make_empty_tensor_value_info(name) for name in outputs)
    inputs = [  # no longer marked as weights
        onnx.ValueInfoProto(name=value.name, type=value.type) for value in graph.input if value.name not in weights
    ]
    nodes = needed(graph.node, [value.name for value in graph.output])
    if len(nodes) < len(graph.node):
        del graph.node[:]
        graph.node.extend(nodes)
    read = {value.name for value in graph.output}.union(*map(reads, graph.node))
    constants = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.input[:], graph.initializer[:]
    graph.input.extend(inputs)
    graph.initializer.extend(constants)
    graph.initializer.extend(initializer(name, array) for name, array in weights.items() if name in read)
    for node in graph.node:
        node.ClearField("name")
    filled.ir_version = max(model.ir_version, _IR_VERSION)
    return filled


def initializer(name: str, array: Array) -> onnx.TensorProto:
    """Return an array as an initializer; the protobuf holds the values of a small one only."""
    if array.nbytes <= _INLINE_BYTES or array.dtype.kind in "OUS" or array.dtype.name in _PACKED:
        return numpy_helper.from_array(array, name)
    tensor = onnx.TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="in-memory")
    return tensor


def outside(graph: onnx.GraphProto, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the values of initializers that are stored outside of the protobuf (see ``initializer``)."""
    names = {tensor.name for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL}
    return {name: array for name, array in values.items() if name in names}


def _stated_bytes(kind: onnx.TypeProto) -> int:
    return payload_bytes(kind.tensor_type.elem_type, count_elements(declared_shape(kind)))


def _rows_read(model: onnx.ModelProto, inputs: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the rows that lookups by inputs read of huge tables without other readers, by the table's name.

    Rows outside the table are left to the runtime, which refuses them.
    """
    tables = {
        value.name: declared_shape(value.type)[0]
        for value in model.graph.input
        if is_weight(value) and _stated_bytes(value.type) >= HUGE_BYTES
    }
    if not tables:
        return {}
    readers = Counter(name for node in all_nodes(model.graph.node) for name in node.input)
    read = {
        node.input[0]: np.concatenate([feeds[node.input[1]].reshape(-1) for feeds in inputs])
        for node in model.graph.node
        if node.op_type == "Gather" and not plain_domain(node.domain) and attribute_of(node, "axis", 0) == 0
        and node.input[0] in tables and readers[node.input[0]] == 1 and all(node.input[1] in feeds for feeds in inputs)
    }  # fmt: skip
    return {name: rows[(rows >= -tables[name]) & (rows < tables[name])] for name, rows in read.items()}


def _unreached_weights(model: onnx.ModelProto) -> set[str]:
    """Weights of the outputs that no activation reaches.

    As initializers they would let the runtime compute those outputs while it loads, and the brick would time
    nothing. They stay inputs instead.
    """
    reached = {value.name for value in model.graph.input if not is_weight(value)}
    for node in model.graph.node:
        if node.op_type in RANDOM or any(name in reached for name in reads(node)):
            reached.update(node.output)
    needed_values = {value.name for value in model.graph.output} - reached
    for node in reversed(model.graph.node):
        if needed_values.intersection(node.output):
            needed_values.update(reads(node))
    return {value.name for value in model.graph.input if is_weight(value) and value.name in needed_values}


def _renamed(name: str, copy: int) -> str:
    return f"{name}@{copy}" if copy else name


def _input_type(value: onnx.ValueInfoProto, overrides: Mapping[str, int]) -> InputType:
    tensor = value.type.tensor_type
    shape = []
    for axis, dim in enumerate(tensor.shape.dim):
        size = dim.dim_value if dim.HasField("dim_value") else overrides.get(dim.dim_param)
        if size is None:
            raise UnboundDimension(
                f"dimension {dim.dim_param or axis} of input {value.name} has no value", remedy="bind it with --dim"
            )
        shape.append(size)
    return value.name, onnx.TensorProto.DataType.Name(tensor.elem_type).lower(), tuple(shape)


def _file_bytes(path: Path, model: onnx.ModelProto) -> int:
    """Size of a model file and of the external data it names."""
    entries = (entry for tensor in model.graph.initializer for entry in tensor.external_data)
    files = {path, *(path.parent / entry.value for entry in entries if entry.key == "location")}
    return sum(file.stat().st_size for file in files if file.is_file())
