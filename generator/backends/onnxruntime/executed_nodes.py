"""The graphs that ONNX Runtime makes of a network, and the traces of its optimiser.

``executed_graphs`` returns the graph that a session executes: saved by the session, typed by profiled runs. The
session writes its graph while it is created. Large initializers go to a side file that is a link to the null device, so
that no weights reach the disk. The profile of an execution gives the type of every output: ONNX's shape inference does
not know the runtime's operators, and the saved graph has types for none of them.

``optimised_network`` returns a network as a session has optimised it, with its weights, to be run unchanged. A brick
lacks three effects of the neighbours in a model:

- Fusions that the runtime withholds where a value is an output of the graph, such as HardSwish into a blocked
  convolution. Something reads the outputs of a brick while it is optimised (``with_read_outputs``).
- Sums that are fused into a convolution because both summands have the blocked layout (``with_blocked_summands``). In a
  brick the other summand is an input in plain layout, and the sum is a separate operator. A pooling of one element
  behind this input produces the blocked layout and changes nothing else. Its time and the time of the reorder before it
  count as a layout change at the brick's edge.
- Poolings of bytes between quantised convolutions, with channels last (``with_pools_channels_last``). In a model ONNX
  Runtime turns such a MaxPool into NhwcMaxPool; in a single brick it stays a MaxPool of bytes (in 1.31: 9.2 ms instead
  of 0.12 ms for 3 by 3 over 64 channels of 111 by 111). The added layout changes are measured separately, like all
  layout changes at the edges of a brick. This concerns unsigned bytes only. On x86 the runtime has integer kernels for
  these alone; signed bytes are between floating-point convolutions and keep their layout.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import external_data_helper, helper, numpy_helper

from ....bricks.graph.model_graph import Layouts
from ....bricks.layer import ELEMENT_BITS
from ....errors import BackendError
from ....models.subgraphs import all_graphs, all_nodes, rename
from ...network.network import Network, array_type
from ..base import ExecutedGraph, OptimiserTraits, ValueType
from ..reports import GENERATED, node_name
from .session import KERNEL, Provider, created, reads_strings, runs, save_graph, value_of

if TYPE_CHECKING:
    import onnxruntime as ort

_DOMAIN = "com.microsoft.nchwc"

FROM_BLOCKED = "ReorderOutput"
"""Brings a value out of the blocked layout."""

REORDERS = frozenset({"ReorderInput", FROM_BLOCKED})
"""Changes between the network's own layout and the blocked one."""

TRAITS = OptimiserTraits(
    layouts=Layouts(
        changes=frozenset(f"{_DOMAIN}.{name}" for name in REORDERS),
        domains=frozenset({_DOMAIN}),
        prefixes=("Nhwc",),
        flags=frozenset({"channels_last"}),
    ),
    transposing=frozenset(f"com.microsoft.{name}" for name in ("FusedGemm", "FusedMatMul", "TransposeMatMul")),
    prefixes=("Fused", "Nhwc"),
    blocked=re.compile(r"(?P<value>.+?)(?P<step>_bn|_mul)?_nchwc(_token_\d+)?"),
    summands=3,
    renamed=re.compile(r"(?P<name>.+?)(/duplicated)*(_token_\d+)?"),
    by_threads=False,  # its graph transformers are not told the number
)


def channels_last_values(nodes: Iterable[onnx.NodeProto]) -> frozenset[str]:
    """Return the inputs and outputs of operators with channels last; transpositions around them are layout changes.

    Quantised convolutions do (QLinearConv), and poolings between them (NhwcMaxPool).
    """
    return frozenset(value for node in nodes if _is_marked(node) for value in (*node.input, *node.output) if value)


def _is_marked(node: onnx.NodeProto) -> bool:
    """Return True for an operator whose name or attribute says that it has channels last."""
    flagged = any(attribute.name in TRAITS.layouts.flags and attribute.i for attribute in node.attribute)
    return flagged or node.op_type.startswith(TRAITS.layouts.prefixes)


def _has_layouts(model: onnx.ModelProto) -> bool:
    """Return True if a graph has operators in a layout of the runtime; values of others keep the source's names."""
    return any(node.domain in TRAITS.layouts.domains or _is_marked(node) for node in all_nodes(model.graph.node))


Array = npt.NDArray[np.generic]

_COMPARED = 4096
"""Bytes by which a weight is known to be the one that was given."""


def take_weights(model: onnx.ModelProto, folder: str, session_weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return the values of a model's external initializers, and mark these as in memory.

    Args:
        model: Model without its external data; changed.
        folder: Folder of the external data.
        session_weights: Weights of the session; unchanged weights are not read again.
    """
    weights: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            weights[tensor.name] = _value(tensor, folder, session_weights.get(tensor.name))
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            del tensor.external_data[:]
            tensor.external_data.add(key="location", value="in-memory")
    return weights


def _value(tensor: onnx.TensorProto, folder: str, weight: Array | None) -> Array:
    dtype, shape = helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)
    where = external_data_helper.ExternalDataInfo(tensor)
    path, offset = Path(folder) / where.location, where.offset or 0
    if weight is not None and weight.shape == shape and weight.dtype == dtype and weight.flags.c_contiguous:
        beginning = weight.reshape(-1)[: _COMPARED // dtype.itemsize].tobytes()
        with path.open("rb") as file:
            file.seek(offset)
            if file.read(len(beginning)) == beginning:
                return weight
    if int(where.length or 0) != dtype.itemsize * int(np.prod(shape)):  # types of four bits share bytes
        external_data_helper.load_external_data_for_tensor(tensor, folder)
        return np.array(numpy_helper.to_array(tensor))
    return np.fromfile(path, dtype=dtype, count=int(np.prod(shape)), offset=offset).reshape(shape)


_INLINE_BYTES = 1024

_LEFT = "dlbricks.left_to_session"
"""Key of the metadata of a network that its own session has to optimise."""


def optimised_network(network: Network, options: ort.SessionOptions, providers: Sequence[Provider]) -> Network:
    """Create the session of a network, and read the optimised network back.

    Args:
        network: A brick, or a whole model.
        options: The session's options; changed.
        providers: Providers of the session.

    Returns:
        The same computation; its operators are those that the session executes.
    """
    with tempfile.TemporaryDirectory(prefix="dlbricks-optimised-") as folder:
        target = Path(folder) / "optimised.onnx"
        save_graph(options, target, "weights", least=_INLINE_BYTES)
        created(network, options, providers)
        model = onnx.load(str(target), load_external_data=False)
        weights = take_weights(model, folder, network.weights)
    read = {value.name for value in model.graph.input}
    return replace(
        network,
        model=model,
        path=None,
        weights=weights,
        feeds={name: array for name, array in network.feeds.items() if name in read},
        outputs=tuple(value.name for value in model.graph.output),
        overrides={},
        file_bytes=0,
        as_is=True,
    )


def left_to_session(network: Network) -> Network:
    """Mark a network as left to each session to optimise, although it counts as optimised."""
    model = deepcopy(network.brick)
    model.metadata_props.add(key=_LEFT, value="1")
    return replace(network, model=model, as_is=True)


def is_left(network: Network) -> bool:
    """Return True for a network of ``left_to_session``."""
    return network.model is not None and any(entry.key == _LEFT for entry in network.model.metadata_props)


_DISCARDED_BYTES = 8193
"""Initializers from this size on are discarded: 1,024 elements of 8 bytes are the most that a skeleton keeps."""

_BEFORE_LAYOUT = "extended"
_LAYOUTS = frozenset({"layout", "all"})
"""Levels that change layouts: operators get new values there, which carry none of the source's names."""

_DTYPES = {"int4x2": "int4", "uint4x2": "uint4", "int2x4": "int2", "uint2x4": "uint2", "float4e2m1x2": "float4e2m1"}
"""Element types that the profile spells differently from ONNX."""


def executed_graphs(
    networks: Sequence[Network],
    make_options: Callable[[], ort.SessionOptions],
    *,
    level: str,
    providers: Sequence[Provider],
) -> list[ExecutedGraph]:
    """Create the session of a network and read its graph; run it once for the types at each size of its inputs.

    Args:
        networks: The network to load, with the inputs of each size.
        make_options: Makes the session's options, fresh ones with each call.
        level: The level of optimisation in these options.
        providers: Providers of the session.

    Raises:
        BackendError: The profile does not belong to the graph.
        Exception: Any exception of the runtime.
    """
    import onnxruntime as ort

    network = networks[0]
    named = replace(network, model=_named(network))
    with tempfile.TemporaryDirectory(prefix="dlbricks-graph-") as folder_name:
        folder = Path(folder_name)
        options = make_options()
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        # The weights must outlive the session.
        session, _weights, model = _created(named, options, folder / "executed.onnx", providers)
        for sized in networks:
            _run_once(session, sized)
        executions = runs(json.loads(Path(session.end_profiling()).read_bytes()))
        del session
        if len(networks) == 1:
            executions = executions[-1:]
        if len(executions) != len(networks):
            raise BackendError(f"ONNX Runtime's profile has {len(executions)} executions of {len(networks)}")
        types = [
            _types(model, {name: array_type(array) for name, array in sized.feeds.items()}, events)
            for sized, events in zip(networks, executions, strict=True)
        ]
        stages = []
        if level in _LAYOUTS and _has_layouts(model):
            options = make_options()
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            stages.append(_created(named, options, folder / f"{_BEFORE_LAYOUT}.onnx", providers)[2])
    return [ExecutedGraph(deepcopy(model), sized, tuple(map(deepcopy, stages))) for sized in types]


def _run_once(session: ort.InferenceSession, network: Network) -> None:
    """Run a session without copies of inputs and outputs, where the runtime can bind them."""
    if reads_strings(network):
        session.run(list(network.outputs), dict(network.feeds))
        return
    binding = session.io_binding()
    feeds = {name: value_of(array) for name, array in network.feeds.items()}
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, value)
    for name in network.outputs:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)


def _named(network: Network) -> onnx.ModelProto:
    """Return the network's structure with named nodes; external data stays in its files."""
    model = network.structure()
    for node in model.graph.node:
        node.name = node_name(node)
    return model


def _beside_its_data(network: Network, path: Path) -> tuple[Network, Path]:
    """Return a model file, and the folder of its external data.

    A session that saves its graph takes no links that lead out of this folder, as those of a hub's cache do. It then
    gets the structure of the file with the names that the links lead to.
    """
    if not path.is_symlink():
        return network, path.parent
    model = network.structure()
    entries = [
        entry
        for graph in all_graphs(model.graph)
        for tensor in graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    ]
    targets = {entry.value: (path.parent / entry.value).resolve() for entry in entries}
    folders = {target.parent for target in targets.values()}
    if len(folders) != 1 or folders == {path.parent.resolve()}:
        return network, path.parent
    for entry in entries:
        entry.value = targets[entry.value].name
    return replace(network, model=model, path=None), folders.pop()


def _created(
    network: Network, options: ort.SessionOptions, target: Path, providers: Sequence[Provider]
) -> tuple[ort.InferenceSession, object, onnx.ModelProto]:
    """Create a session; return it with its weights, and its graph without the payload of large initializers."""
    side = target.with_suffix(".weights")
    side.symlink_to("/dev/null")
    save_graph(options, target, side.name, least=_DISCARDED_BYTES)
    if network.path is not None:
        network, folder = _beside_its_data(network, network.path.absolute())
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    session, weights = created(network, options, providers)
    model = onnx.load(str(target), load_external_data=False)
    with contextlib.suppress(FileNotFoundError):  # it took the side file away, having found it empty
        side.unlink()
    return session, weights, model


def _types(
    model: onnx.ModelProto, inputs: Mapping[str, ValueType], events: Iterable[Mapping[str, Any]]
) -> dict[str, ValueType]:
    """Return the types of all computed values, from the profile of one execution.

    Inserted nodes may lack a name; their operator and input types identify them. A node with outputs other than tensors
    is left out, because the profile does not say which outputs it lists.

    Raises:
        BackendError: A node was not executed, so that the saved graph is not the session's.
    """
    profiled = {
        event["name"].removesuffix(KERNEL): event["args"]
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith(KERNEL)
    }
    alike = {(run["op_name"], *_listed(run["input_type_shape"])): run for run in profiled.values()}
    types_by_value = dict(inputs)
    for tensor in model.graph.initializer:
        types_by_value[tensor.name] = (onnx.TensorProto.DataType.Name(tensor.data_type).lower(), tuple(tensor.dims))
    types: dict[str, ValueType] = {}
    for node in model.graph.node:
        reads = [types_by_value[value] for value in node.input if value in types_by_value]
        run = profiled.get(node.name) if node.name else alike.get((node.op_type, *reads))
        if run is None:
            raise BackendError(
                f"ONNX Runtime did not execute {node.op_type} {node.name.removeprefix(GENERATED)!r} of the graph that "
                "it saved",
                remedy="use --graph source",
            )
        output_types = _listed(run["output_type_shape"])
        named = [value for value in node.output if value]
        if len(output_types) == len(named):
            types_by_value.update(zip(named, output_types, strict=True))
            types.update((value, types_by_value[value]) for value in named if types_by_value[value][0] in ELEMENT_BITS)
    return types


def _listed(entries: Iterable[Mapping[str, list[int]]]) -> list[ValueType]:
    """Types as the profile lists them: one entry per tensor, element type to shape."""
    pairs = [next(iter(entry.items())) for entry in entries]
    return [(_DTYPES.get(spelt.lower(), spelt.lower()), tuple(shape)) for spelt, shape in pairs]


_READER, _READ = "IsNaN", "@read:"
"""The operator that reads the outputs of a brick, which no runtime fuses with another; prefix of what it writes."""

_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE})


def with_read_outputs(network: Network) -> Network:
    """Return a network whose floating-point outputs are read by a node each, which writes the output in their place."""
    model = deepcopy(network.brick)
    made = {value for node in model.graph.node for value in node.output}
    for value in model.graph.output:
        if value.type.tensor_type.elem_type in _FLOATS and value.name in made:
            model.graph.node.append(helper.make_node(_READER, [value.name], [_READ + value.name]))
            value.name = _READ + value.name
            value.type.tensor_type.elem_type = onnx.TensorProto.BOOL
    return replace(network, model=model, outputs=tuple(value.name for value in model.graph.output))


def without_readers(optimised: Network, network: Network) -> Network:
    """Return an optimised network without the readers of ``with_read_outputs``; outputs of one value become one."""
    model = deepcopy(optimised.brick)
    graph = model.graph
    readers = {node.output[0]: node for node in graph.node if node.output and node.output[0].startswith(_READ)}
    names: dict[str, str] = {}
    for output, node in readers.items():
        names.setdefault(node.input[0], output.removeprefix(_READ))
        graph.node.remove(node)
    made = {value for node in graph.node for value in node.output}
    for node in graph.node:
        rename(node, {value: output for value, output in names.items() if value in made})
    graph.node.extend(  # what all nodes cancelled out of
        helper.make_node("Identity", [value], [output]) for value, output in names.items() if value not in made
    )
    declared = {value.name: value for value in network.brick.graph.output}
    one_each = {*declared} - {output.removeprefix(_READ) for output in readers} | {*names.values()}
    outputs = [declared[name] for value in graph.output if (name := value.name.removeprefix(_READ)) in one_each]
    del graph.output[:]
    graph.output.extend(outputs)
    return replace(optimised, model=model, outputs=tuple(value.name for value in outputs))


_SUMS = frozenset({"Add", "Sum"})
_IMAGE = 4
"""Number of dimensions of tensors that can be blocked."""

_BLOCKED = "@blocked:"
"""Prefix of the values that the poolings write."""


def with_blocked_summands(network: Network, optimised: Network) -> Network | None:
    """Put a pooling of one element behind inputs that are added to blocked values.

    Returns:
        An equivalent network; None without an input of this kind.
    """
    if network.model is None or optimised.model is None or any(map(is_idle_pooling, network.model.graph.node)):
        return None
    graph = optimised.model.graph
    reordered = {node.output[0] for node in graph.node if node.op_type == FROM_BLOCKED}
    plain = [
        value
        for node in graph.node
        if node.op_type in _SUMS and not reordered.isdisjoint(node.input)
        for value in node.input
        if value in optimised.feeds and optimised.feeds[value].ndim == _IMAGE
    ]
    if not plain:
        return None
    model = deepcopy(network.model)
    for node in model.graph.node:
        if node.op_type in _SUMS:
            node.input[:] = [_BLOCKED + value if value in plain else value for value in node.input]
    for index, value in enumerate(dict.fromkeys(plain)):
        pooling = helper.make_node("MaxPool", [value], [_BLOCKED + value], kernel_shape=[1, 1])
        model.graph.node.insert(index, pooling)
    return replace(network, model=model)


def is_idle_pooling(node: onnx.NodeProto) -> bool:
    """Return True if a node is a pooling of one element, which copies its input."""
    attributes = {attribute.name: list(attribute.ints) for attribute in node.attribute if attribute.ints}
    if node.op_type != "MaxPool" or attributes.get("kernel_shape") != [1, 1]:
        return False
    return set(attributes.get("strides", [1])) == {1} and set(attributes.get("pads", [0])) == {0}


_BYTE = np.dtype(np.uint8)
_MICROSOFT = "com.microsoft"
_LAST, _FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
_BEFORE, _AFTER = "@last:", "@pooled:"
"""Prefixes of the values in between."""


def with_pools_channels_last(optimised: Network) -> Network:
    """Replace poolings of bytes that read an input of a brick.

    Args:
        optimised: The optimised form of a brick, or of several that share nothing.

    Returns:
        An equivalent network; the same object if nothing is replaced.
    """
    pools = [node for node in optimised.brick.graph.node if _is_pool_of_bytes(node, optimised)]
    if not pools:
        return optimised
    model = deepcopy(optimised.brick)
    del model.graph.node[:]
    for node in optimised.brick.graph.node:
        model.graph.node.extend(_channels_last(node) if node in pools else [node])
    if not any(entry.domain == _MICROSOFT for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))
    return replace(optimised, model=model)


def _is_pool_of_bytes(node: onnx.NodeProto, network: Network) -> bool:
    if node.op_type != "MaxPool" or node.domain or len([name for name in node.output if name]) != 1:
        return False
    read = network.feeds.get(node.input[0])
    ordered = any(attribute.name == "storage_order" and attribute.i for attribute in node.attribute)
    return read is not None and read.ndim == _IMAGE and read.dtype == _BYTE and not ordered


def _channels_last(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    read, output = node.input[0], node.output[0]
    pool = helper.make_node("NhwcMaxPool", [_BEFORE + output], [_AFTER + output], domain=_MICROSOFT, name=node.name)
    pool.attribute.extend(attribute for attribute in node.attribute if attribute.name != "storage_order")
    return [
        helper.make_node("Transpose", [read], [_BEFORE + output], perm=_LAST),
        pool,
        helper.make_node("Transpose", [_AFTER + output], [output], perm=_FIRST),
    ]
