"""Pad the channels of a network with zeros to a multiple of a number: the same function in other sizes.

Blocked layouts (ONNX Runtime's, oneDNN's) and the matrix units of GPUs need channels in multiples of 8 or 16; other
numbers fall back to slower kernels. The owner of a model may pad it once: each layer then reads and writes meaningless
channels. The weights of these channels are zeros, so that the real channels do not change.

Padding changes the network and is not a backend's option. An option is part of a stack's key, and a new option would
separate all stacks from their stored measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ...bricks.operators import ELEMENTWISE, OPERATORS, PRODUCTS, Kind, Trait, having, named
from ...errors import UnsupportedBrick
from ...models.skeleton import is_weight
from ...models.subgraphs import bodies, infer_shapes, is_standard, static_shapes
from .network import Network, initializer, outside, synthetic_network

# Which axis of each value of a network holds channels.
#
# An axis is counted from the end, as broadcasting aligns shapes: -3 in images, -1 in the rows of a product.


_POOLS, _GLOBAL_POOLS = (named(kind, Trait.REAL) | named(kind, Trait.MAXIMUM) for kind in (Kind.POOL, Kind.GLOBAL_POOL))
_SEEDS = _POOLS | PRODUCTS | {"Conv"}
"""Operators that have kernels for some numbers of channels only, or faster ones."""

_OF_IMAGES = _POOLS | _GLOBAL_POOLS | {"Conv"} | named(Kind.NORMALISATION, Trait.AFFINE)
"""Operators with channels in axis 1 of their inputs and outputs."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of a network's values.

    Attributes:
        shapes: Static shapes by value, constants included.
        axes: Axis of the channels by value, counted from the end; values with unknown channels are missing.
    """

    shapes: Mapping[str, Shape]
    axes: Mapping[str, int]

    def count(self, value: str) -> int:
        """Return the number of channels of a value with a channel axis."""
        return self.shapes[value][self.axes[value]]

    def counts(self) -> set[int]:
        """All numbers of channels that there are."""
        return {self.count(value) for value in self.axes}


def find_channels(model: onnx.ModelProto) -> Channels:
    """Find the channels of convolutions, pools and products with constants, and of all values that share them.

    Args:
        model: Model of a network, or a brick in skeleton form; large initializers may lack their values.

    Raises:
        UnsupportedBrick: The model has none of these operators, or two of them use different axes of the same value.
    """
    shapes = static_shapes(infer_shapes(model, propagate=False).graph)
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {value.name for value in model.graph.input if is_weight(value)}
    nodes = [node for node in model.graph.node if is_standard(node)]
    axes: dict[str, int] = {}
    for node in nodes:
        if node.op_type not in _SEEDS or node.input[0] in constants:
            continue
        if node.op_type not in PRODUCTS or node.input[1] in constants:
            _assign(axes, node, (node.input[0], node.output[0]), shapes)
    if not axes:
        raise UnsupportedBrick("no convolution, pool or product with constant weights, whose channels could be padded")
    previous_size = -1
    while previous_size < len(axes):
        previous_size = len(axes)
        for node in nodes:
            _spread(axes, node, constants, shapes)
    return Channels(shapes, axes)


def _spread(
    axes: dict[str, int], node: onnx.NodeProto, constants: Collection[str], shapes: Mapping[str, Shape]
) -> None:
    """Carry the axis that is known of one value of a node to its others."""
    if node.op_type in _GLOBAL_POOLS or node.op_type == "BatchNormalization":
        if node.input[0] not in constants and (node.input[0] in axes or node.output[0] in axes):
            _assign(axes, node, (node.input[0], node.output[0]), shapes)
    elif node.op_type in ELEMENTWISE:
        values = [value for value in (*node.input, node.output[0]) if value and value not in constants]
        for axis in {axes[value] for value in values if value in axes}:
            size = _size(shapes.get(node.output[0]), axis)
            # A value that is broadcast over channels has none itself.
            alike = (value for value in values if size is not None and _size(shapes.get(value), axis) == size)
            _set(axes, node, ((value, axis) for value in alike))


def _assign(axes: dict[str, int], node: onnx.NodeProto, values: Iterable[str], shapes: Mapping[str, Shape]) -> None:
    """Note the channel axes that an operator defines."""
    for value in values:
        if value not in shapes:
            raise UnsupportedBrick(f"{node.op_type} of a value without a static shape")
        axis = 1 - len(shapes[value]) if node.op_type in _OF_IMAGES else -1
        if not -len(shapes[value]) <= axis < 0:
            raise UnsupportedBrick(f"{node.op_type} of a value that has too few dimensions for channels")
        _set(axes, node, [(value, axis)])


def _set(axes: dict[str, int], node: onnx.NodeProto, channel_axes: Iterable[tuple[str, int]]) -> None:
    for value, axis in channel_axes:
        if axes.setdefault(value, axis) != axis:
            raise UnsupportedBrick(f"{node.op_type} takes another axis for channels than its neighbours")


def _size(shape: Shape | None, axis: int) -> int | None:
    return None if shape is None or len(shape) < -axis else shape[axis]


Array = npt.NDArray[Any]

_SMALLEST = 8
"""The smallest multiple that is measured; its double is skipped if the sizes are equal."""

_ROUNDING = 1e-5
"""By how much a number may differ that a runtime computed, as a share of it, or of one."""


def padded_network(network: Network, multiple: int) -> Network:
    """Pad the channels of convolutions, pools and products with constants, and of all values that share them.

    Inputs and outputs are padded too, as between padded layers. Padded channels are the last ones; their values are
    finite and meaningless. Copies of a brick still share their weights.

    Args:
        network: A brick in the form that was cut; one or several copies.
        multiple: At least 1, which changes nothing.

    Raises:
        UnsupportedBrick: No channel needs padding, an operator cannot be padded, or half the multiple (8 or more) gives
            the same sizes.
    """
    if multiple == 1:
        return network
    if network.model is None or network.as_is:
        raise UnsupportedBrick("only bricks of source layers have their channels padded")
    return _Padder(network, network.model, _channels_to_pad(network.model, multiple), multiple).pad()


def brick_network(
    model: onnx.ModelProto, *, seed: int = 0, unroll: int = 1, multiple: int = 1, alike: bool = False
) -> Network:
    """Return the padded network of a brick (``synthetic_network``).

    A brick without channels to pad is refused before weights are made, which may take longer than timing the brick.

    Raises:
        UnsupportedBrick: As ``padded_network``.
        BackendError: As ``synthetic_network``.
        UnboundDimension: As ``synthetic_network``.
    """
    if multiple > 1:
        _channels_to_pad(model, multiple)
    return padded_network(synthetic_network(model, seed=seed, unroll=unroll, alike=alike), multiple)


class _Padder:
    """The padded network while it is made.

    All padded elements of a value are equal; ``_fills`` has their number by value. Those of ``_loose`` are approximate,
    since a runtime rounds.
    """

    def __init__(self, network: Network, model: onnx.ModelProto, channels: Channels, multiple: int) -> None:
        self._network = network
        self._model = model
        self._channels = channels
        self._multiple = multiple
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._fills = {value.name: 0.0 for value in model.graph.input if self._is_padded(value.name)}
        self._loose: set[str] = set()
        self._constants: dict[str, Array] = {}
        self._arrays: dict[tuple[int | bytes, np.dtype[Any], Shape, float], Array] = {}

    def pad(self) -> Network:
        nodes = [self._node(node) for node in self._model.graph.node]
        model = deepcopy(self._model)
        graph = model.graph
        del graph.node[:], graph.value_info[:], graph.initializer[:]
        graph.node.extend(nodes)
        for value in (*graph.input, *graph.output):
            if self._is_padded(value.name):
                axis = self._channels.axes[value.name]
                value.type.tensor_type.shape.dim[axis].dim_value = self._target(value.name)[axis]
        read = {name for node in nodes for name in node.input} | {value.name for value in graph.output}
        graph.initializer.extend(tensor for name, tensor in self._tensors.items() if name in read)
        graph.initializer.extend(initializer(name, array) for name, array in self._constants.items())
        weights = outside(graph, {**self._network.weights, **self._constants})
        feeds = {
            name: _padded(array, self._target(name), 0.0) if self._is_padded(name) else array
            for name, array in self._network.feeds.items()
        }
        return replace(self._network, model=model, weights=weights, feeds=feeds)

    def _node(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return the node with padded inputs and outputs."""
        if not any(self._is_padded(value) for value in (*node.input, *node.output)):
            if any(bodies(node)):
                raise UnsupportedBrick(f"{node.op_type} may read padded channels in its bodies")
            return node
        rule = self._rule(node)
        values = [node.output[0]] if node.op_type in ELEMENTWISE else [node.input[0], node.output[0]]
        if rule is None or not all(value in self._channels.axes for value in values):
            raise UnsupportedBrick(f"{node.op_type} cannot be carried over to padded channels")
        if any(node.output[1:]):
            raise UnsupportedBrick(f"{node.op_type} with more than one result cannot be carried over")
        twin = deepcopy(node)
        self._fills[node.output[0]] = rule(twin)
        return twin

    def _rule(self, node: onnx.NodeProto) -> Callable[[onnx.NodeProto], float] | None:
        """Return the rule that rewrites a node in place and returns the padded elements of its result."""
        if not is_standard(node):
            return None
        if node.op_type in ELEMENTWISE and not node.op_type.startswith("Bit"):
            return self._pointwise
        if node.op_type in _POOLS | _GLOBAL_POOLS:
            return self._pool
        if node.op_type in PRODUCTS:
            return self._product
        return {"Conv": self._convolution, "BatchNormalization": self._normalisation}.get(node.op_type)

    def _convolution(self, node: onnx.NodeProto) -> float:
        read, written = self._target(node.input[0])[1], self._target(node.output[0])[1]
        weight = self._shape_of_constant(node, 1)
        group = next((attribute for attribute in node.attribute if attribute.name == "group"), None)
        if group is None or group.i == 1:
            shape: Shape = (written, read, *weight[2:])
        elif group.i == self._channels.count(node.input[0]) == self._channels.count(node.output[0]):
            shape, group.i = (written, *weight[1:]), written
        else:
            raise UnsupportedBrick("the groups of a convolution are not padded")
        node.input[1] = self._constant(node.input[1], shape)
        if len(node.input) > 2 and node.input[2]:
            self._shape_of_constant(node, 2)
            node.input[2] = self._constant(node.input[2], (written,))
        return 0.0

    def _product(self, node: onnx.NodeProto) -> float:
        depth, width = self._target(node.input[0])[-1], self._target(node.output[0])[-1]
        weight = self._shape_of_constant(node, 1)
        flags = {attribute.name: attribute.i for attribute in node.attribute}
        if len(weight) != 2 or len(self._channels.shapes[node.input[0]]) < 2 or flags.get("transA"):
            raise UnsupportedBrick(f"{node.op_type} is padded only of rows with a constant matrix")
        node.input[1] = self._constant(node.input[1], (width, depth) if flags.get("transB") else (depth, width))
        if len(node.input) > 2 and node.input[2]:
            bias = self._shape_of_constant(node, 2)
            if not bias or bias[-1] != self._channels.count(node.output[0]):
                raise UnsupportedBrick("a bias that is the same for all columns is not padded")
            node.input[2] = self._constant(node.input[2], (*bias[:-1], width))
        return 0.0

    def _normalisation(self, node: onnx.NodeProto) -> float:
        count = self._target(node.output[0])[1]
        for slot, fill in enumerate((0.0, 0.0, 0.0, 1.0), start=1):  # scale, bias, mean, variance
            if len(self._shape_of_constant(node, slot)) != 1:
                raise UnsupportedBrick("a normalisation of each element by itself is not padded")
            node.input[slot] = self._constant(node.input[slot], (count,), fill)
        return 0.0

    def _pool(self, node: onnx.NodeProto) -> float:
        fill = self._fills[node.input[0]]
        if fill and any(attribute.name == "count_include_pad" and attribute.i for attribute in node.attribute):
            raise UnsupportedBrick("an average over the edge of padded channels is not the same everywhere")
        if fill or node.input[0] in self._loose:
            self._loose.add(node.output[0])
        return fill

    def _pointwise(self, node: onnx.NodeProto) -> float:
        original, fills = list(node.input), []
        axis, count = self._channels.axes[node.output[0]], self._channels.count(node.output[0])
        width = self._target(node.output[0])[axis]
        fill = float(OPERATORS["", node.op_type].neutral or 0)  # zeros would lead to divisions by zero
        for slot, name in enumerate(original):
            if not name:
                continue
            if name not in self._tensors:
                if name not in self._fills or self._channels.count(name) != count:
                    raise UnsupportedBrick(f"{node.op_type} broadcasts over padded channels")
                fills.append((name, self._fills[name]))
                continue
            shape = self._channels.shapes[name]
            if len(shape) >= -axis and shape[axis] == count and not (slot and node.op_type in having(Trait.SCALARS)):
                node.input[slot] = self._constant(name, _resized(shape, axis, width), fill)
                fills.append((name, fill))
                continue
            values = self._values(name)
            if values.size != 1 and not (values == values.flat[0]).all():
                raise UnsupportedBrick(f"a constant of {node.op_type} varies within padded channels")
            fills.append((name, float(values.flat[0])))
        source = deepcopy(node)
        source.input[:] = original
        result = _evaluated(source, dict(fills), self._model.opset_import)
        loose = [(name, value) for name, value in fills if name in self._loose]
        for name, value in loose:
            step = _ROUNDING * max(abs(value), 1.0)
            near = (
                _evaluated(source, {**dict(fills), name: value + by}, self._model.opset_import) for by in (-step, step)
            )
            if not np.isfinite(list(near)).all():
                raise UnsupportedBrick(f"{node.op_type} of padded channels may not be finite")
        if not np.isfinite(result):
            raise UnsupportedBrick(f"{node.op_type} of padded channels is not finite")
        if loose or result not in {0.0, 1.0}:
            self._loose.add(node.output[0])
        return result

    def _is_padded(self, value: str) -> bool:
        return value in self._channels.axes and self._channels.count(value) % self._multiple != 0

    def _target(self, value: str) -> Shape:
        """Return the padded shape of a value with channels."""
        axis = self._channels.axes[value]
        return _resized(self._channels.shapes[value], axis, _rounded(self._channels.count(value), self._multiple))

    def _shape_of_constant(self, node: onnx.NodeProto, slot: int) -> Shape:
        if node.input[slot] not in self._tensors:
            raise UnsupportedBrick(f"the weights of {node.op_type} are computed")
        return self._channels.shapes[node.input[slot]]

    def _values(self, name: str) -> Array:
        weight = self._network.weights.get(name)
        return numpy_helper.to_array(self._tensors[name]) if weight is None else weight

    def _constant(self, name: str, shape: Shape, fill: float = 0.0) -> str:
        """Name of a constant, padded to a shape; equal ones of several copies have their memory in common."""
        if self._channels.shapes[name] == shape:
            return name
        padded_name = f"{name}~{'x'.join(map(str, shape))}~{fill:g}"  # a constant may be read in several ways
        if padded_name not in self._constants:
            values = self._values(name)
            # Copies have large arrays in common, and small ones within the protobuf each.
            same = id(values) if name in self._network.weights else values.tobytes()
            key = (same, values.dtype, shape, fill)
            if key not in self._arrays:
                self._arrays[key] = _padded(values, shape, fill)
            self._constants[padded_name] = self._arrays[key]
        return padded_name


def _channels_to_pad(model: onnx.ModelProto, multiple: int) -> Channels:
    """Return the channels of a model with channels to pad."""
    channels = find_channels(model)
    counts = channels.counts()
    if all(count % multiple == 0 for count in counts):
        raise UnsupportedBrick(f"all channels are multiples of {multiple} already")
    half = multiple // 2
    if half >= _SMALLEST and all(_rounded(count, half) == _rounded(count, multiple) for count in counts):
        raise UnsupportedBrick(f"padded to multiples of {half}, all channels are multiples of {multiple} already")
    return channels


def _evaluated(node: onnx.NodeProto, operands: Mapping[str, float], opsets: Iterable[onnx.OperatorSetIdProto]) -> float:
    """Return an operator's result for single numbers, by ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator

    kind = onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(name, kind, [1]) for name in operands]
    outputs = [helper.make_tensor_value_info(node.output[0], kind, [1])]
    model = helper.make_model(helper.make_graph([node], "one", inputs, outputs), opset_imports=list(opsets))
    feeds = {name: np.full(1, value, np.float32) for name, value in operands.items()}
    try:
        with np.errstate(all="ignore"):
            (result,) = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:  # the reference's exceptions share no base class
        raise UnsupportedBrick(f"what {node.op_type} makes of padded channels is not known: {error!r:.80}") from error
    return float(np.asarray(result).reshape(-1)[0])


def _padded(array: Array, shape: Sequence[int], fill: float) -> Array:
    """Return a larger array that begins with the given one."""
    padded = np.full(shape, fill, dtype=array.dtype)
    padded[tuple(slice(size) for size in array.shape)] = array
    return padded


def _rounded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _resized(shape: Shape, axis: int, size: int) -> Shape:
    """Return the shape with another size at an axis, counted from the end."""
    position = len(shape) + axis
    return (*shape[:position], size, *shape[position + 1 :])
