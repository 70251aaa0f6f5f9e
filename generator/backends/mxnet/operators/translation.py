"""Translate a network to one symbol of MXNet with the arrays of its variables.

An ``OnnxNode`` is an ONNX operator to be expressed in symbols: its inputs, attributes and types. Values that depend on
constants or shapes alone are computed once, at loading.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from .....bricks.operators import PRODUCTS
from .....errors import UnsupportedBrick
from .....models.subgraphs import attribute_of, infer_shapes, is_standard, plain_domain, static_shape
from ....network.network import Network
from ...base import registering

Symbol = Any
"""A symbol of MXNet, which is not typed."""

Array = npt.NDArray[Any]
ValueType = tuple[np.dtype[Any], tuple[int, ...]]


class Variables:
    """The symbols of values that are bound to arrays: inputs and weights.

    An array that several values share (the weights of copies) is handed to the runtime once.
    """

    def __init__(self) -> None:
        self.bound: dict[str, Array] = {}
        self._derived: dict[tuple[int, str], tuple[Array, Array]] = {}

    def add(self, array: Array) -> Symbol:
        """Add a variable bound to an array."""
        import mxnet as mx

        name = f"v{len(self.bound)}"
        self.bound[name] = array
        return mx.sym.var(name)

    def derived(self, array: Array, how: str, make: Callable[[Array], Array]) -> Array:
        """Return an array derived from a weight at loading; equal weights share the result."""
        key = (id(array), how)
        if key not in self._derived:
            self._derived[key] = (array, np.ascontiguousarray(make(array)))  # keeps the array, and so its id
        return self._derived[key][1]


@dataclass(frozen=True, slots=True, eq=False)
class OnnxNode:
    """One operator of a network.

    Attributes:
        proto: The operator.
        opset: Version of its domain.
        types: Element type and shape of values, if static.
        constants: Values known at loading: weights and folded values.
        feeds: Fed values, which never change. MXNet's shapes are static; if ONNX has an input for one of its parameters
            (a shape, axes, bounds), the fed value is the parameter.
        used: Values that an operator reads or that are outputs.
        symbols: Symbols of computed and fed values; grows.
        variables: Variables of the network.
    """

    proto: onnx.NodeProto
    opset: int
    types: Mapping[str, ValueType]
    constants: Mapping[str, Array]
    feeds: Mapping[str, Array]
    used: frozenset[str]
    symbols: dict[str, Symbol]
    variables: Variables

    @property
    def sym(self) -> Any:
        """The operators of MXNet."""
        import mxnet as mx

        return mx.sym

    @property
    def op(self) -> str:
        """Its operator."""
        return self.proto.op_type

    def refusal(self, why: str) -> UnsupportedBrick:
        """Return the error for a feature that MXNet lacks."""
        return UnsupportedBrick(f"MXNet has no {self.op} {why}".rstrip())

    def has(self, index: int) -> bool:
        """Return True if an input is present."""
        return index < len(self.proto.input) and self.proto.input[index] != ""

    @property
    def count(self) -> int:
        """Number of its inputs."""
        return len(self.proto.input)

    def symbol(self, index: int = 0) -> Symbol:
        """Return an input."""
        name = self.proto.input[index]
        if name not in self.symbols:
            self.symbols[name] = self.variables.add(self.constants[name])
        return self.symbols[name]

    def constant(self, index: int) -> Array | None:
        """Return the value of an input if it is known at loading; None if it is computed or fed."""
        return self.constants.get(self.proto.input[index]) if self.has(index) else None

    def known(self, index: int, what: str = "") -> Array:
        """Return the value of an input that is a parameter in MXNet.

        Raises:
            UnsupportedBrick: The input is computed.
        """
        name = self.proto.input[index]
        value = self.constants.get(name, self.feeds.get(name))
        if value is None:
            raise self.refusal(f"with a computed input {index} {what}".rstrip())
        return value

    def integers(self, attribute: str, index: int) -> tuple[int, ...] | None:
        """Return integers that are an attribute at older opsets and an input at newer ones; None if missing."""
        values = self.attribute(attribute)
        if values is None and self.has(index):
            values = self.known(index).ravel().tolist()
        return None if values is None else tuple(int(value) for value in values)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute; text is decoded."""
        return attribute_of(self.proto, name, default)

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of an input."""
        return self._type(self.proto.input[index])[1]

    def dtype(self, index: int = 0) -> np.dtype[Any]:
        """Element type of an input."""
        return self._type(self.proto.input[index])[0]

    def rank(self, index: int = 0) -> int:
        """Return the number of dimensions of an input."""
        return len(self.shape(index))

    def axis(self, value: int, index: int = 0) -> int:
        """Return an axis of an input, counted from the front."""
        return value % max(self.rank(index), 1)

    def result(self, index: int = 0) -> tuple[int, ...]:
        """Shape of an output."""
        return self._type(self.proto.output[index])[1]

    def wants(self, index: int) -> bool:
        """Return True if an output is used."""
        return index < len(self.proto.output) and self.proto.output[index] in self.used

    def numpy(self, name: str, *inputs: Any, **parameters: Any) -> Symbol:
        """One of the operators that MXNet names after NumPy's: they know truth values and scalars."""
        import mxnet as mx

        converted = [value.as_np_ndarray() if isinstance(value, mx.sym.Symbol) else value for value in inputs]
        return getattr(mx.sym.np, name)(*converted, **parameters).as_nd_ndarray()

    def padded(self, symbol: Symbol, width: Sequence[tuple[int, int]], mode: str, filler: float = 0.0) -> Symbol:
        """More elements at the edges; so many before and behind, for each dimension."""
        from mxnet.symbol.numpy import _internal as operators  # the public function drops the filler

        value = {"constant_value": filler} if mode == "constant" else {}
        return operators.pad(symbol.as_np_ndarray(), pad_width=tuple(width), mode=mode, **value).as_nd_ndarray()

    def reshaped(self, symbol: Symbol, shape: Sequence[int]) -> Symbol:
        """Return the same elements in another shape."""
        if not shape:
            return self.numpy("reshape", symbol, ())
        if 0 in shape:
            raise self.refusal("of an empty tensor")
        return self.sym.reshape(symbol, shape=tuple(shape))

    def _type(self, name: str) -> ValueType:
        if name in self.constants:
            array = self.constants[name]
            return array.dtype, array.shape
        if name not in self.types:
            raise self.refusal("of a shape that is not static")
        return self.types[name]


Translation = Callable[[OnnxNode], Symbol | list[Symbol]]
"""Expresses an operator: one symbol, or one for each output."""

_TRANSLATIONS: dict[str, Translation] = {}


operator = registering(_TRANSLATIONS)
"""Registers the translation of ONNX operators."""


def register(rows: Mapping[str, Translation]) -> None:
    """Register translations that are one expression each, by ONNX operator."""
    _TRANSLATIONS.update(rows)


def translations() -> Mapping[str, Translation]:
    """Functions that translate operators, by ONNX operator."""
    for module in ("neural_layers", "shape_symbols", "unary_binary"):
        importlib.import_module(f".{module}", __package__)
    return _TRANSLATIONS


_COMPARED_BYTES = 1024
"""Arrays up to this size are compared by value, because each copy of a network has its own; larger ones by address."""

_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"})
"""Operators with outputs that may not be computed in advance, even without an activation as input."""

_SINCE_ONE_AXIS = 13
_OVER_ONE_AXIS = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
"""Before this opset they ran over all dimensions from their axis on, which the evaluator does not know."""


class Folding:
    """The computation of constants from constants.

    Equal operators on equal arrays (as in copies) give the same array, which MXNet gets once.

    Args:
        model: The network.
        constants: Known values; grows.
        types: Element type and shape of values, if static.
    """

    def __init__(self, model: onnx.ModelProto, constants: dict[str, Array], types: Mapping[str, ValueType]) -> None:
        self._model = model
        self._constants = constants
        self._types = types
        self._done: dict[Hashable, list[Array]] = {}
        self._opset = next((entry.version for entry in model.opset_import if not plain_domain(entry.domain)), 1)

    def fold(self, proto: onnx.NodeProto) -> bool:
        """Compute the outputs of an operator; return False if it is left to MXNet, which may refuse it."""
        if proto.op_type in {"Shape", "Size"} and is_standard(proto) and proto.input[0] in self._types:
            results = [_measured(proto, self._types[proto.input[0]][1])]
        elif self._constant(proto):
            folded_values = self._evaluated(proto)
            if folded_values is None:
                return False
            results = folded_values
        else:
            return False
        self._constants |= dict(zip([name for name in proto.output if name], results, strict=True))
        return True

    def _constant(self, proto: onnx.NodeProto) -> bool:
        if proto.op_type in _RANDOM or any(attribute.HasField("g") for attribute in proto.attribute):
            return False
        if proto.op_type in _OVER_ONE_AXIS and self._opset < _SINCE_ONE_AXIS:
            return False
        inputs = [name for name in proto.input if name]
        return all(name in self._constants for name in inputs) and (bool(inputs) or proto.op_type == "Constant")

    def _evaluated(self, proto: onnx.NodeProto) -> list[Array] | None:
        key = self._key(proto)
        if key not in self._done:
            results = self._computed(proto)
            if results is None:
                return None
            self._done[key] = results
        return self._done[key]

    def _key(self, proto: onnx.NodeProto) -> Hashable:
        """Return everything that the results depend on. The constants keep the arrays that are named by address."""
        bare = onnx.NodeProto(op_type=proto.op_type, domain=proto.domain, attribute=proto.attribute)
        inputs = tuple(_identity(self._constants[name]) if name else None for name in proto.input)
        return bare.SerializeToString(deterministic=True), inputs, tuple(map(bool, proto.output))

    def _computed(self, proto: onnx.NodeProto) -> list[Array] | None:
        from onnx.reference import ReferenceEvaluator

        names = dict.fromkeys(name for name in proto.input if name)
        inputs = {name: self._constants[name] for name in names}
        inner = helper.make_graph(
            [proto],
            "folded",
            [_declared(name, array) for name, array in inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in proto.output if name],
        )
        alone = helper.make_model(inner, opset_imports=self._model.opset_import, ir_version=self._model.ir_version)
        try:
            with np.errstate(all="ignore"):
                results: Any = ReferenceEvaluator(alone).run(None, inputs)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  # whatever NumPy raises: MXNet can compute it, or says why it cannot
            return None
        return [np.asarray(result) for result in results]


def _measured(proto: onnx.NodeProto, shape: tuple[int, ...]) -> Array:
    """Return the result of Shape or Size."""
    if proto.op_type == "Size":
        return np.array(math.prod(shape), np.int64)
    bounds = {attribute.name: attribute.i for attribute in proto.attribute}
    return np.array(shape[bounds.get("start") : bounds.get("end")], np.int64)


def _identity(array: Array) -> Hashable:
    small = array.nbytes <= _COMPARED_BYTES and array.dtype.kind != "O"
    return (array.dtype, array.shape, array.tobytes()) if small else id(array)


_LABEL = "~"
"""Prefix of MXNet's operator names, before the index of the ONNX node. No variable has this prefix."""

_KNOWN_BYTES = 1024
"""Values of up to this size are shown to the inference of shapes."""


@dataclass(frozen=True, slots=True, eq=False)
class MxnetNetwork:
    """A network as MXNet symbols.

    Attributes:
        symbol: All outputs, in order.
        arrays: Values of the variables.
        feeds: Network input of each fed variable.
        labels: Outputs of the ONNX node behind each label.
        operators: Its kinds of ONNX operators, in order.
    """

    symbol: Symbol
    arrays: Mapping[str, Array]
    feeds: Mapping[str, str]
    labels: Mapping[str, tuple[str, ...]]
    operators: tuple[str, ...]


def labelled(name: str) -> str:
    """Return the label in the name of an MXNet operator; empty without one."""
    label, dot, _ = name.partition(".")
    return label if dot and label.startswith(_LABEL) else ""


def translate(network: Network, *, fused: bool) -> MxnetNetwork:
    """Express a network in symbols.

    Args:
        network: A brick or a whole model.
        fused: MXNet will fuse operators for oneDNN; fusions with wrong results are prevented.

    Raises:
        UnsupportedBrick: MXNet lacks an operator, or its types or attributes.
        BackendError: The model file cannot be read, or an index in it is out of range.
    """
    import mxnet as mx

    model = network.loaded()
    constants = network.constants(model)
    feeds = dict(network.feeds)
    types = _types(model, feeds, constants)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    variables = Variables()
    symbols: dict[str, Symbol] = {name: variables.add(array) for name, array in feeds.items()}
    fed = dict(zip(variables.bound, feeds, strict=True))
    labels: dict[str, tuple[str, ...]] = {}
    translators = translations()
    folding = Folding(model, constants, types)
    used = frozenset({*network.outputs, *(name for node in model.graph.node for name in node.input if name)})
    apart = _apart(model.graph) if fused else frozenset()
    for number, proto in enumerate(model.graph.node):
        if folding.fold(proto):
            continue
        if not is_standard(proto) or proto.op_type not in translators:
            raise UnsupportedBrick(f"MXNet has no {f'{proto.domain}.{proto.op_type}'.lstrip('.')}")
        opset = versions.get("", versions.get("ai.onnx", 1))
        node = OnnxNode(proto, opset, types, constants, feeds, used, symbols, variables)
        label = f"{_LABEL}{number}"
        labels[label] = tuple(name for name in proto.output if name)
        with mx.name.Prefix(f"{label}."):
            translated = translators[proto.op_type](node)
            results = translated if isinstance(translated, list) else [translated]
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
    return MxnetNetwork(
        symbol=whole,
        arrays={name: array for name, array in variables.bound.items() if name in read},
        feeds=fed,
        labels=labels,
        operators=tuple(dict.fromkeys(proto.op_type for proto in model.graph.node)),
    )


def _apart(graph: onnx.GraphProto) -> frozenset[str]:
    """Return values that may not be fused with their readers.

    MXNet 1.9 fuses an operator with a reader of its output even if the output is also a network output or, for a matrix
    product, has other readers: these then get wrong values. It cannot fuse a sum of a value with itself either.
    ``BlockGrad`` prevents fusion and has no other effect without gradients.
    """
    uses = Counter(name for node in graph.node for name in node.input)
    exposed = {value.name for value in graph.output}
    several = {name for node in graph.node for name in node.output if node.op_type in PRODUCTS and uses[name] > 1}
    twice = {node.input[0] for node in graph.node if len(node.input) == 2 and node.input[0] == node.input[1]}
    return frozenset(several | twice | {name for name in exposed if uses[name]})


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
    types: dict[str, ValueType] = {name: (array.dtype, array.shape) for name, array in feeds.items()}
    for value in [*inferred.graph.value_info, *inferred.graph.output, *model.graph.value_info, *model.graph.output]:
        static = _static(value)
        if static is not None:
            types.setdefault(value.name, static)
    return types


def _declared(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _static(value: onnx.ValueInfoProto) -> ValueType | None:
    shape, element = static_shape(value.type), value.type.tensor_type.elem_type
    if shape is None or element in (TensorProto.UNDEFINED, TensorProto.STRING):
        return None
    return helper.tensor_dtype_to_np_dtype(element), shape
