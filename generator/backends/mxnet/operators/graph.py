"""A network as one symbol of MXNet with the arrays that its variables are bound to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper, numpy_helper

from .....bricks.operators import PRODUCTS
from .....errors import BackendError, UnsupportedBrick
from .....models.shapes import infer_shapes, static_shape
from ....network.network import Network
from .folding import Folding
from .node import DOMAINS, Array, Node, Symbol, ValueType, Variables, translations

__all__ = ["Translated", "labelled", "translate"]

_LABEL = "~"
"""What names of MXNet's operators begin with: then the place of their node in ONNX. No variable's name begins so."""

_KNOWN_BYTES = 1024
"""Values of up to this size are shown to the inference of shapes."""


@dataclass(frozen=True, slots=True, eq=False)
class Translated:
    """A network in MXNet's terms.

    Attributes:
        symbol: All outputs, in order.
        arrays: Variable to value.
        feeds: Variable to the input of the network that it is.
        labels: Label to what the node in ONNX gives, from which operators with that label were made.
        operators: Kinds of ONNX operators that it holds, in order.
    """

    symbol: Symbol
    arrays: Mapping[str, Array]
    feeds: Mapping[str, str]
    labels: Mapping[str, tuple[str, ...]]
    operators: tuple[str, ...]


def labelled(name: str) -> str:
    """The label in the name of one of MXNet's operators; empty where it has none."""
    label, dot, _ = name.partition(".")
    return label if dot and label.startswith(_LABEL) else ""


def translate(network: Network, *, fused: bool) -> Translated:
    """Express a network in symbols.

    Args:
        network: A brick or a whole model.
        fused: Whether MXNet will fuse operators for oneDNN; what it would get wrong is kept apart.

    Raises:
        UnsupportedBrick: MXNet has no such operator, or not with these types or attributes.
        BackendError: The model file cannot be read, or an index in it is out of range.
    """
    import mxnet as mx

    model = network.model if network.model is not None else _loaded(network)
    constants = _constants(model, network.weights)
    feeds = dict(network.feeds)
    types = _types(model, feeds, constants)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    variables = Variables()
    symbols: dict[str, Symbol] = {name: variables.add(array) for name, array in feeds.items()}
    fed = dict(zip(variables.bound, feeds, strict=True))
    labels: dict[str, tuple[str, ...]] = {}
    known = translations()
    folding = Folding(model, constants, types)
    used = frozenset({*network.outputs, *(name for node in model.graph.node for name in node.input if name)})
    apart = _apart(model.graph) if fused else frozenset()
    for number, proto in enumerate(model.graph.node):
        if folding.fold(proto):
            continue
        if proto.domain not in DOMAINS or proto.op_type not in known:
            raise UnsupportedBrick(f"MXNet has no {f'{proto.domain}.{proto.op_type}'.lstrip('.')}")
        opset = versions.get("", versions.get("ai.onnx", 1))
        node = Node(proto, opset, types, constants, feeds, used, symbols, variables)
        label = f"{_LABEL}{number}"
        labels[label] = tuple(name for name in proto.output if name)
        with mx.name.Prefix(f"{label}."):
            made = known[proto.op_type](node)
            results = made if isinstance(made, list) else [made]
            for name, symbol in zip(proto.output, results, strict=False):
                if name:
                    symbols[name] = mx.sym.BlockGrad(symbol) if name in apart else symbol
    outputs = []
    for name in network.outputs:
        if name not in symbols:
            symbols[name] = variables.add(constants[name])
        outputs.append(symbols[name])
    whole = mx.sym.Group(outputs)
    read = {*whole.list_arguments(), *whole.list_auxiliary_states()}
    return Translated(
        symbol=whole,
        arrays={name: array for name, array in variables.bound.items() if name in read},
        feeds=fed,
        labels=labels,
        operators=tuple(dict.fromkeys(proto.op_type for proto in model.graph.node)),
    )


def _apart(graph: onnx.GraphProto) -> frozenset[str]:
    """Values that no operator may be fused with.

    MXNet 1.9 fuses an operator with one that reads its output even where that output is also one of the network, or,
    with a product of matrices, is read by others too: they then get the wrong values. Nor can it fuse a sum of a value
    with itself. Nothing is fused across ``BlockGrad``, which does nothing else when there are no gradients.
    """
    uses = Counter(name for node in graph.node for name in node.input)
    exposed = {value.name for value in graph.output}
    several = {name for node in graph.node for name in node.output if node.op_type in PRODUCTS and uses[name] > 1}
    twice = {node.input[0] for node in graph.node if len(node.input) == 2 and node.input[0] == node.input[1]}
    return frozenset(several | twice | {name for name in exposed if uses[name]})


def _loaded(network: Network) -> onnx.ModelProto:
    assert network.path is not None  # noqa: S101  # a network has a model or a path
    try:
        return onnx.load(network.path)
    except Exception as error:  # the reader raises whatever its parts raise
        raise BackendError(f"{network.path.name} cannot be read: {error}") from error


def _constants(model: onnx.ModelProto, weights: Mapping[str, Array]) -> dict[str, Array]:
    found = dict(weights)
    for tensor in model.graph.initializer:
        if tensor.name not in found:
            found[tensor.name] = numpy_helper.to_array(tensor)
    return found


def _types(model: onnx.ModelProto, feeds: Mapping[str, Array], constants: Mapping[str, Array]) -> dict[str, ValueType]:
    """Element type and shape of every value, with the inputs as they are fed."""
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    bare.graph.name = "types"
    bare.graph.node.extend(model.graph.node)
    bare.graph.output.extend(model.graph.output)
    for name, array in {**constants, **feeds}.items():
        bare.graph.input.append(_declared(name, array))
        if name in constants and array.nbytes <= _KNOWN_BYTES and array.dtype.kind in "biuf":
            bare.graph.initializer.append(numpy_helper.from_array(array, name))
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = infer_shapes(bare)
    found: dict[str, ValueType] = {name: (array.dtype, array.shape) for name, array in feeds.items()}
    for value in [*inferred.graph.value_info, *inferred.graph.output, *model.graph.value_info, *model.graph.output]:
        static = _static(value)
        if static is not None:
            found.setdefault(value.name, static)
    return found


def _declared(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _static(value: onnx.ValueInfoProto) -> ValueType | None:
    shape, element = static_shape(value.type), value.type.tensor_type.elem_type
    if shape is None or element in (TensorProto.UNDEFINED, TensorProto.STRING):
        return None
    return helper.tensor_dtype_to_np_dtype(element), shape
