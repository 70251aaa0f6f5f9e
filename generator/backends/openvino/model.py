"""Read a network into OpenVINO, from a protobuf in memory or from a file, and choose the layout of its edges.

OpenVINO computes convolutions and their neighbours with channels last. A model changes the layout at its ends. A brick
that is compiled alone changes it at each of its ends, which may take longer than the brick. Therefore a brick reads and
returns the layout of its computation, as between the layers of a model.

A convolution writes a sum over one of its summands. If this is the result of a brick, OpenVINO copies it twice, which
takes longer than the convolution. In a model the next layer reads it in place; here an added operator does, which
returns one element.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from ....db.values import NATIVE
from ....errors import BackendError, UnsupportedBrick
from ...network.network import Network, read_network

if TYPE_CHECKING:
    import openvino

_PAGE = 4096

_DEFAULT_AXIS = {"Gather": 0, "GatherElements": 0}
"""Operators that read by index along one axis, with their default axis."""


_FLOATS = {"f64": "double", "f16": "float16", "bf16": "bfloat16"}
"""OpenVINO's name of a type that it may compute in another one, to ONNX's."""

_NOT_COMPUTING = frozenset({"Parameter", "Result", "Convert", "ConvertLike", "ShapeOf"})
"""Operators that take any type as it is."""


def read_model(core: openvino.Core, network: Network, dtype: str = NATIVE) -> openvino.Model:
    """Read a network's model, with the shapes of its inputs.

    Raises:
        UnsupportedBrick: It has strings (a request with strings crashes the process when it is freed), or it computes
            in a type that OpenVINO would replace.
        BackendError: An index is out of range, or inputs or outputs are missing.
        RuntimeError: OpenVINO cannot read it.
    """
    if network.model is not None:
        _require_indices(network, network.model.graph)
    if network.model is None:
        model = core.read_model(str(network.path))
    elif sum(array.nbytes for array in network.weights.values()) < onnx.checker.MAXIMUM_PROTOBUF:
        model = core.read_model(network.self_contained().SerializeToString())
    else:
        with tempfile.TemporaryDirectory(prefix="dlbricks-") as folder:  # it maps the file: that may lose its name
            model = core.read_model(str(_write_files(network, network.model, Path(folder))))
    if len(model.outputs) != len(network.outputs):
        raise BackendError(f"OpenVINO gives {len(model.outputs)} outputs instead of {len(network.outputs)}")
    strings = [port for port in (*model.inputs, *model.outputs) if port.element_type.get_type_name() == "string"]
    if strings:
        named = ", ".join(sorted(name for port in strings for name in port.names))
        raise UnsupportedBrick(f"OpenVINO cannot be timed on strings: {named}")
    names = input_names(network)
    if len(model.inputs) != len(names):
        raise BackendError(f"OpenVINO takes {len(model.inputs)} inputs instead of {len(names)}")
    _require_own_types(model, dtype)
    if any(port.partial_shape.is_dynamic for port in model.inputs):
        model.reshape({index: network.feeds[name].shape for index, name in enumerate(names)})
    return model


def narrow_edges(model: openvino.Model, precision: str) -> tuple[openvino.Model, frozenset[int]]:
    """Let a model read and return values in its computing precision, as between the layers of a model.

    Otherwise it reads and returns single precision and converts in each execution; a single operator would not use the
    precision at all.

    Args:
        model: The model; not to be used afterwards.
        precision: OpenVINO's name for the precision.

    Returns:
        The model, and the outputs that had single precision before.
    """
    from openvino import Type
    from openvino.preprocess import PrePostProcessor

    def single(ports: Sequence[openvino.Output]) -> list[int]:
        return [index for index, port in enumerate(ports) if port.get_element_type() == Type.f32]

    edges = PrePostProcessor(model)
    narrow = getattr(Type, precision)
    outputs = single(model.outputs)
    for index in single(model.inputs):
        edges.input(index).tensor().set_element_type(narrow)
    for index in outputs:
        edges.output(index).tensor().set_element_type(narrow)
    return edges.build(), frozenset(outputs)


def input_names(network: Network) -> list[str]:
    """Return the names of the inputs in the order of the network, which OpenVINO keeps.

    OpenVINO may lose a name: an input that is also an output (through an operator without effect) has lost its name.
    """
    model = network.model
    if model is None:
        assert network.path is not None  # noqa: S101  # a network has one or the other
        model = read_network(network.path)
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in constants]


def probe_model() -> bytes:
    """Return the smallest network: one operator on one element."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "probe", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data


def _write_files(network: Network, source: onnx.ModelProto, folder: Path) -> Path:
    """Write a model file with external weights, for a network that is too large for one protobuf."""
    model = deepcopy(source)
    with (folder / "weights").open("wb") as file:
        for tensor in model.graph.initializer:
            if tensor.data_location != TensorProto.EXTERNAL:
                continue
            offset = file.seek(-file.tell() % _PAGE, 1)
            length = file.write(np.ascontiguousarray(network.weights[tensor.name]).tobytes())
            del tensor.external_data[:]
            for key, value in (("location", "weights"), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _require_indices(network: Network, graph: onnx.GraphProto) -> None:
    """Refuse indices that are out of range: OpenVINO does not look, and reads zeros there."""
    shapes: dict[str, tuple[int, ...]] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    shapes |= {name: array.shape for name, array in network.feeds.items()}
    for node in graph.node:
        if node.op_type not in _DEFAULT_AXIS or node.domain or node.input[0] not in shapes:
            continue
        indices = network.feeds.get(node.input[1])
        if indices is None or not indices.size:
            continue
        size = shapes[node.input[0]][_axis(node)]
        if not -size <= indices.min() <= indices.max() < size:
            raise BackendError(
                f"{node.op_type} cannot read elements {indices.min()} to {indices.max()} of {size}: out of range"
            )


def _require_own_types(model: openvino.Model, dtype: str) -> None:
    """Refuse types that OpenVINO would silently replace; constants may have any type."""
    computed = set[str]()
    for operator in model.get_ordered_ops():
        name, kind = operator.get_friendly_name(), operator.get_type_name()
        inputs = operator.input_values()
        active = [port for port in inputs if port.get_node().get_friendly_name() in computed]
        if kind != "Parameter" and not active:
            continue
        computed.add(name)
        if kind in _NOT_COMPUTING:
            continue
        types = (port.get_element_type().get_type_name() for port in (*active, *operator.outputs()))
        replaced = next(
            (precision for type_name in types if (precision := _FLOATS.get(type_name)) not in {None, dtype}), None
        )
        if replaced is not None:
            raise UnsupportedBrick(f"OpenVINO has no {kind} of {replaced}: it would compute it in {dtype}")


def _axis(node: onnx.NodeProto) -> int:
    attributes: Mapping[str, int] = {attribute.name: attribute.i for attribute in node.attribute}
    return attributes.get("axis", _DEFAULT_AXIS[node.op_type])


_CHANNELS_LAST: Mapping[str, tuple[str, str]] = {"acdb": ("NCHW", "NHWC"), "acdeb": ("NCDHW", "NDHWC")}
"""Layouts at the edges of a model by OpenVINO's name: as in ONNX, and with channels last."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Inputs and outputs that have their channels last, by index, each with its layout as OpenVINO spells it."""

    inputs: Mapping[int, str]
    outputs: Mapping[int, str]

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)

    def taken(self, index: int, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an input in the network's layout, from ONNX's."""
        return np.moveaxis(array, 1, -1) if index in self.inputs else array

    def given(self, index: int, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an output in ONNX's layout, from the network's."""
        return np.moveaxis(array, -1, 1) if index in self.outputs else array


def changed_edges(compiled: openvino.CompiledModel) -> Edges:
    """Return the edges at which a compiled model changes the layout, to or from channels last."""
    executed = compiled.get_runtime_model()
    inputs, outputs = {}, {}
    places = {port.get_node().get_friendly_name(): index for index, port in enumerate(compiled.inputs)}
    for parameter in executed.get_parameters():
        layouts = {_layout(reader) if _kind(reader) == "Reorder" else "" for reader in _readers(parameter)}
        if len(layouts) == 1 and (layout := layouts.pop()) in _CHANNELS_LAST:
            inputs[places[parameter.get_friendly_name()]] = layout
    for index, result in enumerate(executed.get_results()):
        change = result.input_value(0).get_node()
        layout = _layout(change.input_value(0).get_node()) if _kind(change) == "Reorder" else ""
        if layout in _CHANNELS_LAST:
            outputs[index] = layout
    return Edges(inputs, outputs)


def with_edges(model: openvino.Model, edges: Edges) -> openvino.Model:
    """Return a model that reads and returns values in a layout; the argument is not to be used afterwards."""
    from openvino import Layout
    from openvino.preprocess import PrePostProcessor

    processor = PrePostProcessor(model)
    infos: Sequence[tuple[Any, str]] = (
        *((processor.input(index), layout) for index, layout in edges.inputs.items()),
        *((processor.output(index), layout) for index, layout in edges.outputs.items()),
    )
    for info, layout in infos:
        first, last = _CHANNELS_LAST[layout]
        info.model().set_layout(Layout(first))
        info.tensor().set_layout(Layout(last))
    return processor.build()


def copied_outputs(compiled: openvino.CompiledModel, edges: Edges) -> frozenset[int]:
    """Return the outputs in a layout of ``edges`` that are copied from the memory of a convolution's summand."""
    copied = set()
    for index, result in enumerate(compiled.get_runtime_model().get_results()):
        kinds = []
        operator = result.input_value(0).get_node()
        while index in edges.outputs and (kind := _kind(operator)) in {"Reorder", "Transpose"}:
            kinds.append(kind)
            operator = operator.input_value(0).get_node()
        if "Transpose" in kinds and _kind(operator) == "Convolution":
            copied.add(index)
    return frozenset(copied)


def reading_one_of(model: openvino.Model, outputs: frozenset[int]) -> openvino.Model:
    """Return a model from ``with_edges`` that returns only the first element of some outputs."""
    from openvino import Model, opset8

    results = []
    for index, result in enumerate(model.get_results()):
        value = result.input_value(0)
        if index in outputs:
            inner = value.get_node()  # what changes the layout stands behind what is computed
            value = inner.input_value(0) if inner.get_type_name() == "Transpose" else value
            rank = len(value.get_partial_shape())
            zeros, ones = (opset8.constant([number] * rank) for number in (0, 1))
            value = opset8.slice(value, zeros, ones, ones, opset8.constant([*range(rank)])).output(0)
        results.append(value)
    return Model(results, model.get_parameters())


def _readers(operator: openvino.Node) -> Iterator[openvino.Node]:
    return (port.get_node() for output in operator.outputs() for port in output.get_target_inputs())


def _kind(operator: openvino.Node) -> str:
    return str(operator.get_rt_info()["layerType"].astype(str))


def _layout(operator: openvino.Node) -> str:
    return str(operator.get_rt_info()["outputLayouts"].astype(str))
