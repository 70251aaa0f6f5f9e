"""The effect of a model's own values on its layers: each is timed with them, and with the values of a brick.

Values change a layer's latency if they are subnormal (the processor then takes a slow path for each), or so far from
zero that a kernel leaves its usual range. This module does not predict which kernels are affected by which values. It
executes the model layer by layer, on its own values, and times every layer with both. The two alternate within
milliseconds, thus the difference is free of drift.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from statistics import median
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
from ..messages import LayerEffect
from .timing import undisturbed

Array = npt.NDArray[Any]

_SAMPLE_NS = 200_000
"""Shortest sample in nanoseconds: 2000 times the cost of reading the clock. Each pair has two per layer."""

_PAIRS = 2
"""Pairs of samples per round, in the order a b b a: each follows itself as often as the other. The shortest of each
kind is taken: every execution has the effect of the values, while disturbances only ever lengthen some."""


def layer_effects(
    network: Network, backend: Backend, settings: Settings, *, rounds: int, seed: int = 0
) -> Iterator[LayerEffect]:
    """Time every layer of a graph with the model's own values and with synthetic ones.

    Args:
        network: A graph in executed form, with its weights and inputs.
        backend: The runtime.
        settings: Its settings.
        rounds: Differences per layer.
        seed: Seed of the synthetic values.

    Raises:
        UnsupportedBrick: A layer cannot be executed alone.
        BackendError: The runtime failed.
        MemoryError: There was not enough memory.
    """
    for step in walk(network, backend, settings):
        synthetic = backend.prepare(step.synthetic(seed), settings)
        try:
            own_ns, synthetic_ns, differences = _pairs(step.own, synthetic, rounds)
        finally:
            synthetic.close()
        yield LayerEffect(
            index=step.index,
            op_type=step.node.op_type,
            subnormal_in=subnormal_share(step.inputs.values()),
            subnormal_out=subnormal_share(step.outputs.values()),
            own_ns=own_ns,
            synthetic_ns=synthetic_ns,
            differences_ns=differences,
        )


def subnormal_share(arrays: Iterable[Array]) -> float:
    """Return the share of subnormal numbers (0 < size < least normal number of the type) among floating-point ones."""
    found = total = 0
    for array in arrays:
        if array.dtype.kind == "f":
            size = np.abs(array)
            found += int(np.count_nonzero((size > 0) & (size < np.finfo(array.dtype).tiny)))
            total += array.size
    return found / total if total else 0.0


def _pairs(own: Executable, synthetic: Executable, rounds: int) -> tuple[float, float, tuple[float, ...]]:
    """Return the median latency of each, and per round the difference between the shortest samples."""
    both = (own, synthetic)
    taken: tuple[list[float], list[float]] = ([], [])
    with undisturbed():
        loops = 1
        for executable in both:
            _latency_ns(executable, 1)
            loops = max(loops, int(_SAMPLE_NS / max(1.0, _latency_ns(executable, 1))))
        for number in range(rounds * _PAIRS):
            for which in (0, 1) if number % _PAIRS else (1, 0):
                _latency_ns(both[which], 1)  # refills the caches after the other executable
                taken[which].append(_latency_ns(both[which], loops))
    begins = range(0, rounds * _PAIRS, _PAIRS)
    shortest = [[min(times[begin : begin + _PAIRS]) for begin in begins] for times in taken]
    return median(taken[0]), median(taken[1]), tuple(mine - other for mine, other in zip(*shortest, strict=True))


def _latency_ns(executable: Executable, loops: int) -> float:
    times = repeat(None, loops)
    start = time.perf_counter_ns()
    for _ in times:
        executable.run()
    executable.synchronize()
    return (time.perf_counter_ns() - start) / loops


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedLayer:
    """One layer during the walk through a graph, loaded with the model's own values and executed once.

    Attributes:
        index: Position of the layer in the graph.
        node: The layer.
        inputs: The values that it reads and that depend on the model's inputs.
        outputs: The values that it writes.
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
        """Return the layer as a network with the values of a brick."""
        return _as_layer(synthetic_network(self.skeleton, seed=seed))


def walk(network: Network, backend: Backend, settings: Settings) -> Iterator[ExecutedLayer]:
    """Execute a graph layer by layer.

    A value is kept until the last layer that reads it, as in the runtime. The memory in use is therefore the weights
    and the activations that are alive together.

    Args:
        network: A graph in executed form, with its weights and inputs.
        backend: The runtime.
        settings: Its settings.

    Yields:
        Each layer that reads an activation, after its execution.

    Raises:
        UnsupportedBrick: A layer cannot be executed alone.
        BackendError: The runtime failed, or a value is not a tensor.
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
                yield ExecutedLayer(index, node, inputs, outputs, own, _skeleton(_layer(model, node, inputs), tensors))
            # Closing the session frees the runtime's own buffers.
            kept = {name: np.array(array) for name, array in outputs.items() if readers[name]}
        finally:
            own.close()
        values |= kept
        for name in inputs:
            readers[name] -= 1
            if not readers[name]:
                del values[name]


def _layer(model: onnx.ModelProto, node: onnx.NodeProto, inputs: Mapping[str, Array]) -> onnx.ModelProto:
    """Return a model of one node, without its constants. The runtime infers the types of its outputs."""
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
    """Return a layer with its large constants as weights to be filled, as in a brick."""
    for tensor in constants:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and np.prod(tensor.dims) <= KEPT_ELEMENTS:
            layer.graph.initializer.append(tensor)
        else:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            layer.graph.input.append(mark_weight(value))
    return layer


def _as_layer(network: Network) -> Network:
    """Return the network with optimisation off."""
    return replace(network, as_is=True)
