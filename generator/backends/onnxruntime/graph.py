"""The graph that an ONNX Runtime session executes: saved by the session itself, typed by one profiled run of it.

The session writes its graph while it is created. Large initializers go to a side file that is a link to the null
device, so that no weights reach the disk. The profile of one execution gives the type of every output of every node:
ONNX's shape inference does not know the runtime's own operators, and the saved graph states no types.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from ....bricks.tensor import ELEMENT_BITS
from ....errors import BackendError
from ...network.network import Network
from ...network.types import array_type
from ..base import ExecutedGraph, ValueType, node_name
from .provider import Provider

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["executed_graph"]

_INLINE_BYTES = 8193
"""Initializers from this size on are discarded: 1,024 elements of 8 bytes are the most that a skeleton keeps."""

_KERNEL = "_kernel_time"
"""Ends the name of the profile's event for the execution of one node."""

_BEFORE_LAYOUT = "extended"
_LAYOUTS = frozenset({"layout", "all"})
"""Levels that change layouts: operators get new values there, which carry none of the source's names."""

_DTYPES = {"int4x2": "int4", "uint4x2": "uint4", "int2x4": "int2", "uint2x4": "uint2", "float4e2m1x2": "float4e2m1"}
"""Element types as the profile spells them, where ONNX spells them otherwise."""


def executed_graph(
    network: Network,
    weights: Mapping[str, ort.OrtValue],
    feeds: Mapping[str, ort.OrtValue],
    make_options: Callable[[], ort.SessionOptions],
    *,
    level: str,
    providers: Sequence[Provider],
) -> ExecutedGraph:
    """Create the session of a network and read its graph; run it once for the types.

    Args:
        network: What the session loads.
        weights: Values of its external initializers.
        feeds: Values of its inputs.
        make_options: Makes the session's options, fresh ones with each call.
        level: The level of optimisation that these ask for.
        providers: Of the session.

    Raises:
        BackendError: The profile does not belong to the graph.
        Exception: Whatever the runtime raises.
    """
    import onnxruntime as ort

    source = _named(network)
    with tempfile.TemporaryDirectory(prefix="dlbricks-graph-") as place:
        folder = Path(place)
        options = make_options()
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        session, model = _create(source, network, weights, options, folder / "executed.onnx", providers=providers)
        binding = session.io_binding()
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, value)
        for name in network.outputs:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        inputs = {name: array_type(array) for name, array in network.feeds.items()}
        types = _types(model, inputs, json.loads(Path(session.end_profiling()).read_bytes()))
        del binding, session
        stages = []
        if level in _LAYOUTS:
            options = make_options()
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            target = folder / f"{_BEFORE_LAYOUT}.onnx"
            stages.append(_create(source, network, weights, options, target, providers=providers)[1])
    return ExecutedGraph(model, types, tuple(stages))


def _named(network: Network) -> bytes:
    """The network's structure with named nodes; what it keeps in other files stays there."""
    model = network.structure()
    for node in model.graph.node:
        node.name = node_name(node)
    data: bytes = model.SerializeToString()
    return data


def _create(
    source: bytes,
    network: Network,
    weights: Mapping[str, ort.OrtValue],
    options: ort.SessionOptions,
    target: Path,
    *,
    providers: Sequence[Provider],
) -> tuple[ort.InferenceSession, onnx.ModelProto]:
    """A session, and its graph without the payload of large initializers."""
    import onnxruntime as ort

    side = target.with_suffix(".weights")
    side.symlink_to("/dev/null")
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", side.name)
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_min_size_in_bytes", str(_INLINE_BYTES)
    )
    if network.path is not None:
        folder = str(network.path.resolve().parent)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    if weights:
        options.add_external_initializers(list(weights), list(weights.values()))
    session = ort.InferenceSession(source, options, providers=providers, enable_fallback=0)
    model = onnx.load(str(target), load_external_data=False)
    with contextlib.suppress(FileNotFoundError):  # it took the side file away, having found it empty
        side.unlink()
    return session, model


def _types(
    model: onnx.ModelProto, inputs: Mapping[str, ValueType], events: Iterable[Mapping[str, Any]]
) -> dict[str, ValueType]:
    """Types of all values that nodes of the graph compute, from the profile of one execution.

    Nodes that the runtime put in may have no name; they are found by their operator and the types that they read.
    A node whose outputs are not all tensors is left out: the profile does not say which of them it lists.

    Raises:
        BackendError: A node was not executed: the saved graph is not the session's.
    """
    profiled = {
        event["name"].removesuffix(_KERNEL): event["args"]
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL)
    }
    alike = {(run["op_name"], *_listed(run["input_type_shape"])): run for run in profiled.values()}
    known = dict(inputs)
    for tensor in model.graph.initializer:
        known[tensor.name] = (onnx.TensorProto.DataType.Name(tensor.data_type).lower(), tuple(tensor.dims))
    types: dict[str, ValueType] = {}
    for node in model.graph.node:
        reads = [known[value] for value in node.input if value in known]
        run = profiled.get(node.name) if node.name else alike.get((node.op_type, *reads))
        if run is None:
            raise BackendError(
                f"ONNX Runtime did not execute {node.op_type} {node.name!r} of the graph that it saved",
                remedy="use --graph source",
            )
        made = _listed(run["output_type_shape"])
        named = [value for value in node.output if value]
        if len(made) == len(named):
            known.update(zip(named, made, strict=True))
            types.update((value, known[value]) for value in named if known[value][0] in ELEMENT_BITS)
    return types


def _listed(entries: Iterable[Mapping[str, list[int]]]) -> list[ValueType]:
    """Types as the profile lists them: one entry per tensor, element type to shape."""
    pairs = [next(iter(entry.items())) for entry in entries]
    return [(_DTYPES.get(spelt.lower(), spelt.lower()), tuple(shape)) for spelt, shape in pairs]
