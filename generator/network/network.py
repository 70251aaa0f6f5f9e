"""A network: the runnable ONNX of one brick or one whole model, with seeded weights and inputs.

A brick's weights are graph inputs marked ``role=weight``. Here they become initializers, as they are in a real
model, so that a runtime may fold, fuse and repack them. Their values stay outside the protobuf: the initializers
are marked external, and a backend hands the arrays to its runtime (or asks for ``Network.self_contained``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ...bricks.operators import RANDOM
from ...errors import BackendError, ModelError, UnboundDimension
from ...models.binding import apply, plan
from ...models.reader import read_full, read_structure
from ...models.skeleton import is_weight
from ...models.subgraphs import bodies, reads
from .inputs import InputType, make_inputs
from .shared import shared_buffers
from .synthetic.weights import synthesise

__all__ = ["Network", "export_network", "export_open_network", "file_network", "read_network", "synthetic_network"]

Array = npt.NDArray[Any]

_INLINE_BYTES = 1024
"""Weights of up to this size are stored in the protobuf: runtimes look at small values while they load."""

_IR_VERSION = 4
"""From this one on, initializers need not be inputs."""

_PACKED = frozenset({"int4", "uint4", "int2", "uint2", "float4_e2m1fn"})
"""Types whose elements share bytes in ONNX but not in NumPy; only the protobuf's conversion packs them."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """What a backend loads.

    Attributes:
        model: Structure; initializers that are marked external have their values in ``weights``. None: ``path``.
        path: A model file to be loaded as it is. None: ``model``.
        weights: Values of the external initializers, by name.
        feeds: Values of the graph inputs, by name, of all copies.
        outputs: Names of the graph outputs, of all copies; those of the first copy come first.
        overrides: ``dim_param`` to value, for a file with dynamic dimensions.
        unroll: Number of copies.
        file_bytes: Size of the file and its external data.
        as_is: Whether the runtime runs it as it stands, without optimising it.
        shared: Outputs that are written to the memory of an input, each with the input (``shared``).
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
        """Inputs of the first copy."""
        names = list(self.feeds)
        return {name: self.feeds[name] for name in names[: len(names) // self.unroll]}

    def first_outputs(self, values: Sequence[Array]) -> dict[str, Array]:
        """Outputs of the first copy by name, from the values of all."""
        count = len(self.outputs) // self.unroll
        return dict(zip(self.outputs[:count], values, strict=False))

    def structure(self) -> onnx.ModelProto:
        """A copy of the model, or the model of the file, without the values that stand elsewhere."""
        return onnx.load(str(self.path), load_external_data=False) if self.model is None else deepcopy(self.model)

    def self_contained(self) -> onnx.ModelProto:
        """The model with all weights inside, for runtimes and tools that take a protobuf or a file only.

        Raises:
            BackendError: It is larger than a protobuf can be (2 GiB), or it is a file already.
        """
        model = deepcopy(self.brick)
        size = sum(array.nbytes for array in self.weights.values())
        if size >= onnx.checker.MAXIMUM_PROTOBUF:
            raise BackendError(f"the weights ({size} bytes) do not fit into one protobuf of 2 GiB")
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.CopyFrom(numpy_helper.from_array(self.weights[tensor.name], tensor.name))
        return model


def synthetic_network(
    model: onnx.ModelProto, *, seed: int = 0, unroll: int = 1, outputs: Sequence[str] | None = None
) -> Network:
    """Build the network of a model in skeleton form (a brick, or a model of the built-in zoo).

    Args:
        model: Weights are graph inputs marked ``role=weight``; it is not changed.
        seed: Of weights and inputs.
        unroll: Copies in one network, so that one execution of a short brick is long enough to time. Each has
            inputs of its own, so that a runtime cannot merge them, and initializers of its own, so that it fuses
            each as it would a single one; the initializers' values are the same memory.
        outputs: Values to be the outputs in place of the model's own; what they do not need is dropped.

    Raises:
        BackendError: The model cannot be assembled (an attribute or type that ONNX GraphSurgeon cannot carry).
        UnboundDimension: An input has no static shape.
    """
    weights: dict[str, Array] = dict(synthesise(model, seed=seed))
    pinned = _unreached_weights(model)
    types = [_input_type(value, {}) for value in model.graph.input if not is_weight(value)]
    feeds: dict[str, Array] = {}
    for copy, fresh in enumerate(make_inputs(model, types, seed=seed, copies=unroll)):
        feeds |= {_renamed(name, copy): array for name, array in fresh.items()}
        feeds |= {_renamed(name, copy): weights[name].copy() for name in pinned}
    constants = {name: array for name, array in weights.items() if name not in pinned}
    assembled = _assemble(model, constants, unroll=unroll, outputs=outputs)
    external = {
        tensor.name for tensor in assembled.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    copied = ((_renamed(name, copy), array) for copy in range(unroll) for name, array in constants.items())
    declared = {value.name for value in assembled.graph.input}
    return Network(
        model=assembled,
        path=None,
        weights={name: array for name, array in copied if name in external},
        feeds={name: array for name, array in feeds.items() if name in declared},
        outputs=tuple(value.name for value in assembled.graph.output),
        unroll=unroll,
    )


def file_network(
    path: Path, *, overrides: Mapping[str, int], inputs: Sequence[InputType] = (), seed: int = 0
) -> Network:
    """Describe a whole model that a runtime loads from its own file, weights included.

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
        values: Whether large constants keep their values, which a network that is made of the file needs. Without
            them, time and memory depend on the structure alone.

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
    """A brick as self-contained ONNX with seeded weights as initializers, for any other tool."""
    data: bytes = synthetic_network(model, seed=seed).self_contained().SerializeToString(deterministic=True)
    return data


def export_open_network(model: onnx.ModelProto, seed: int = 0) -> bytes:
    """A model in skeleton form but for open dimensions, as self-contained ONNX with seeded weights as initializers.

    Args:
        model: The model; it keeps its open dimensions. Weights are those that it gets bound to the usual values.
        seed: Of the weights.

    Raises:
        UnboundDimension: An open dimension has no usual value.
        BackendError: The weights do not fit into one protobuf.
    """
    bound = deepcopy(model)
    apply(bound, plan(bound))
    weights = synthesise(bound, seed=seed)
    filled = _filled(model, weights)
    network = Network(filled, None, weights, {}, tuple(value.name for value in filled.graph.output))
    data: bytes = network.self_contained().SerializeToString(deterministic=True)
    return data


def _assemble(
    model: onnx.ModelProto, weights: Mapping[str, Array], *, unroll: int, outputs: Sequence[str] | None
) -> onnx.ModelProto:
    if unroll == 1 and outputs is None and _all_needed(model.graph):
        return _filled(model, weights)
    import onnx_graphsurgeon as gs

    tagged = deepcopy(model)
    for index, node in enumerate(tagged.graph.node):
        node.name = f"n{index}"
        if not any(bodies(node)):
            del node.attribute[:]  # see _restore_attributes
    log = gs.logger.G_LOGGER
    try:
        with log.suppress(log.ERROR):  # it prints; what it warns of is restored below
            graph = gs.import_onnx(tagged)
            tensors = graph.tensors()
            for name, array in weights.items():
                if name in tensors:
                    tensors[name].to_constant(gs.ir.tensor.LazyValues(initializer(name, array)))
            graph.inputs = [tensor for tensor in graph.inputs if tensor.name not in weights]
            if outputs is not None:
                graph.outputs = [tensors[name] for name in outputs]
            # Nodes that nothing needs go. The file's order stays: it is topological, and the copies follow each other.
            graph.cleanup()
            tensors = graph.tensors()
            copies = [_copy(graph, tensors, copy) for copy in range(1, unroll)]
            for nodes, own_inputs, own_outputs in copies:
                graph.nodes.extend(nodes)
                graph.inputs.extend(own_inputs)
                graph.outputs.extend(own_outputs)
            assembled: onnx.ModelProto = gs.export_onnx(graph, do_type_check=False)
    except Exception as error:  # GraphSurgeon raises whatever its parts raise
        raise BackendError(f"the network cannot be assembled: {error}") from error
    assembled.ir_version = max(model.ir_version, _IR_VERSION)
    _restore_attributes(assembled, model)
    return assembled


def _filled(model: onnx.ModelProto, weights: Mapping[str, Array]) -> onnx.ModelProto:
    """The model itself with its weights as initializers: most bricks need no more."""
    filled = deepcopy(model)
    kept = (value for value in model.graph.input if value.name not in weights)
    inputs = [onnx.ValueInfoProto(name=value.name, type=value.type) for value in kept]  # no longer marked as weights
    del filled.graph.input[:]
    filled.graph.input.extend(inputs)
    read = {name for node in model.graph.node for name in reads(node)}
    filled.graph.initializer.extend(initializer(name, array) for name, array in weights.items() if name in read)
    for node in filled.graph.node:
        node.ClearField("name")
    filled.ir_version = max(model.ir_version, _IR_VERSION)
    return filled


def _all_needed(graph: onnx.GraphProto) -> bool:
    """Whether each node makes a value that another one reads, or that is an output."""
    needed = {value.name for value in graph.output}.union(*map(reads, graph.node))
    return all(not needed.isdisjoint(filter(None, node.output)) for node in graph.node)


def _copy(graph: Any, tensors: Mapping[str, Any], copy: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Nodes, inputs and outputs of one more copy, all values renamed."""
    import onnx_graphsurgeon as gs

    def twin_of(tensor: Any) -> Any:
        if tensor.is_empty():
            return gs.Variable.empty()
        return twins[tensor.name]

    def renamed(tensor: Any) -> Any:
        name = _renamed(tensor.name, copy)
        if isinstance(tensor, gs.Constant):
            return _constant(name, tensor)
        return gs.Variable(name, dtype=tensor.dtype, shape=tensor.shape, type=tensor.type)

    twins = {name: renamed(tensor) for name, tensor in tensors.items()}
    nodes = []
    for node in graph.nodes:
        inputs, outputs = map(twin_of, node.inputs), map(twin_of, node.outputs)
        twin = node.copy(inputs=list(inputs), outputs=list(outputs), tensor_map=twins)
        twin.name = _renamed(node.name, copy)
        nodes.append(twin)
    return nodes, [twin_of(tensor) for tensor in graph.inputs], [twin_of(tensor) for tensor in graph.outputs]


def _constant(name: str, tensor: Any) -> Any:
    """The same constant under another name; its values are not read."""
    import onnx_graphsurgeon as gs

    proto = deepcopy(gs.exporters.onnx_exporter.OnnxExporter.export_tensor_proto(tensor))
    return gs.Constant(name, gs.ir.tensor.LazyValues(proto))


def _restore_attributes(assembled: onnx.ModelProto, source: onnx.ModelProto) -> None:
    """Give nodes their own attributes back, byte for byte.

    GraphSurgeon converts attributes to Python values and cannot carry all (an empty list, bytes that are not
    UTF-8, types), so it is given none. Only those of a node with a subgraph go through it, for their outer values
    are renamed in copies.
    """
    for node in assembled.graph.node:
        original = source.graph.node[int(node.name.partition("@")[0].removeprefix("n"))]
        if not any(bodies(original)):
            node.attribute.extend(original.attribute)
        node.ClearField("name")


def initializer(name: str, array: Array) -> onnx.TensorProto:
    if array.nbytes <= _INLINE_BYTES or array.dtype.kind in "OUS" or array.dtype.name in _PACKED:
        return numpy_helper.from_array(array, name)
    tensor = onnx.TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="in-memory")
    return tensor


def _unreached_weights(model: onnx.ModelProto) -> set[str]:
    """Weights of the outputs that no activation reaches.

    As initializers they would let the runtime compute those outputs while it loads, and the brick would time
    nothing. They stay inputs instead.
    """
    reached = {value.name for value in model.graph.input if not is_weight(value)}
    for node in model.graph.node:
        if node.op_type in RANDOM or any(name in reached for name in reads(node)):
            reached.update(node.output)
    wanted = {value.name for value in model.graph.output} - reached
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            wanted.update(reads(node))
    return {value.name for value in model.graph.input if is_weight(value) and value.name in wanted}


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
