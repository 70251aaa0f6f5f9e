"""Executing a graph layer by layer, on a model's own values: what each layer reads and writes in the running model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from ....bricks.graph.causal import SOFTMAX
from ....errors import BackendError
from ....models.skeleton import KEPT_ELEMENTS, hides_future, mark_causal, mark_weight
from ....models.subgraphs import reads
from ...backends.base import Backend, Executable, Settings
from ...network.network import Network, synthetic_network

__all__ = ["Step", "walk"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One layer on the way through a graph, loaded with the model's own values and executed once.

    Attributes:
        index: Of the layer, in the graph's order.
        node: The layer.
        inputs: What it reads that is computed from the model's inputs.
        outputs: What it writes.
        own: The layer as a network with the model's own values, run once. It is closed when the walk goes on.
        skeleton: The layer in skeleton form, to be filled with synthetic values.
    """

    index: int
    node: onnx.NodeProto
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    own: Executable
    skeleton: onnx.ModelProto

    def synthetic(self, seed: int) -> Network:
        """The layer as a network with the values that it has as a brick."""
        return _as_layer(synthetic_network(self.skeleton, seed=seed))


def walk(network: Network, backend: Backend, settings: Settings) -> Iterator[Step]:
    """Execute a graph layer by layer.

    A value is kept until the last layer that reads it, as in the runtime: memory is that of the weights and of the
    activations that are alive together.

    Args:
        network: A graph that is executed as it stands, with its weights and inputs.
        backend: The runtime.
        settings: How it is set up.

    Yields:
        Each layer that reads an activation, after its execution.

    Raises:
        UnsupportedBrick: A layer cannot be executed by itself.
        BackendError: The runtime failed, or a value is no tensor.
        MemoryError: There was not enough memory.
    """
    model = network.model
    if model is None:
        raise BackendError(f"{network.path} is a model file, not a graph that is executed as it stands")
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    values: dict[str, Array] = dict(network.feeds)
    readers = Counter(name for node in model.graph.node for name in {*reads(node)})
    for index, node in enumerate(model.graph.node):
        inputs = {name: values[name] for name in reads(node) if name not in constants}
        tensors = [constants[name] for name in dict.fromkeys(reads(node)) if name in constants]
        layer = _layer(model, node, inputs)
        layer.graph.initializer.extend(tensors)
        weights = {tensor.name: network.weights[tensor.name] for tensor in tensors if tensor.name in network.weights}
        names = tuple(value.name for value in layer.graph.output)
        own = backend.prepare(_as_layer(Network(layer, None, weights, inputs, names)), settings)
        try:
            own.run()
            own.synchronize()
            outputs = dict(zip(names, own.outputs(), strict=True))
            if inputs:
                yield Step(index, node, inputs, outputs, own, _skeleton(_layer(model, node, inputs), tensors))
            # The runtime's own buffers end with the session.
            kept = {name: np.array(array) for name, array in outputs.items() if readers[name]}
        finally:
            own.close()
        values |= kept
        for name in inputs:
            readers[name] -= 1
            if not readers[name]:
                del values[name]


def _layer(model: onnx.ModelProto, node: onnx.NodeProto, inputs: Mapping[str, Array]) -> onnx.ModelProto:
    """A model of one node; its constants are still to be added. The runtime finds the types of its outputs."""
    layer = onnx.ModelProto(ir_version=model.ir_version)
    layer.opset_import.extend(model.opset_import)
    layer.graph.name = "layer"
    layer.graph.node.append(node)
    for name, array in inputs.items():
        number = helper.np_dtype_to_tensor_dtype(array.dtype)
        value = helper.make_tensor_value_info(name, number, array.shape)
        masked = node.op_type == SOFTMAX and hides_future(array)
        layer.graph.input.append(mark_causal(value) if masked else value)
    layer.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    return layer


def _skeleton(layer: onnx.ModelProto, constants: list[onnx.TensorProto]) -> onnx.ModelProto:
    """A layer whose large constants are weights to be filled, as in a brick."""
    for tensor in constants:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and np.prod(tensor.dims) <= KEPT_ELEMENTS:
            layer.graph.initializer.append(tensor)
        else:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            layer.graph.input.append(mark_weight(value))
    return layer


def _as_layer(network: Network) -> Network:
    """To be run as it stands."""
    return replace(network, as_is=True)
