"""Convert a network to another precision before a session loads it.

``float16_network`` converts all float32 numbers to 16 bits: inputs, weights and computed values. Values that ONNX
defines without float16, for example the scales of a ``Resize`` or the numbers of a ``Range``, stay in float32 between
two casts. Operators of the runtime's domains are assumed to support both.

``quantised_network`` has its matrix products in eight bits, by ONNX Runtime's own dynamic quantizer. Weights become
signed bytes once, activations unsigned bytes anew in each execution; everything else stays as it is. Processors without
an instruction for products of bytes add two of them in 16 bits, which overflow: weights have 7 bits there, as ONNX
Runtime advises ("Quantize ONNX models", U8S8 on AVX2). The kernels are the same. Convolutions stay as they are, too:
the runtime's ConvInteger is slower than its Conv.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import external_data_helper, helper, inliner, numpy_helper

from ....errors import BackendError
from ....models.subgraphs import all_graphs, bodies, infer_shapes, is_standard, plain_domain
from ...machine.system import probe_system
from ...network.network import Network, initializer, outside
from .executed_nodes import take_weights

Array = npt.NDArray[Any]

_FLOAT, _HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16

_TYPED = {
    "Bernoulli": "dtype", "BlackmanWindow": "output_datatype", "Cast": "to", "EyeLike": "dtype",
    "HammingWindow": "output_datatype", "HannWindow": "output_datatype", "MelWeightMatrix": "output_datatype",
    "RandomNormal": "dtype", "RandomNormalLike": "dtype", "RandomUniform": "dtype", "RandomUniformLike": "dtype",
    "SequenceEmpty": "dtype",
}  # fmt: skip
"""Operators with an attribute that names their output type."""

_FLOAT_BY_DEFAULT = frozenset({
    "BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix", "RandomNormal", "RandomUniform",
    "SequenceEmpty",
})  # fmt: skip
"""The operators among them with float32 as the default."""


def float16_network(network: Network) -> Network:
    """Convert a network.

    Returns:
        A network that computes the same, as far as 16 bits allow; its inputs of float32 are of float16.

    Raises:
        BackendError: It cannot be converted.
    """
    try:
        return _converted(network)
    except (BackendError, MemoryError):
        raise
    except Exception as error:  # onnx raises whatever its parts raise
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise BackendError(f"the network cannot be converted to float16: {text}") from error


def rounded(array: Array) -> Array:
    """Round numbers to float16; too large or too small numbers become its largest or smallest number.

    A mask's bound stays finite, and a non-zero divisor does not become zero.
    """
    kind = np.finfo(np.float16)
    most, least = np.float32(kind.max), np.float32(kind.smallest_subnormal)
    finite = np.where(np.isinf(array), array, np.clip(array, -most, most))
    tiny = (finite != 0) & (np.abs(finite) < least)
    halves: Array = np.where(tiny, np.copysign(least, finite), finite).astype(np.float16)
    return halves


@dataclass(slots=True, eq=False)
class _Scope:
    """State of the conversion of a model.

    Attributes:
        opsets: Version by domain.
        floats: Values of float32 in all graphs: their names are unique.
        exact: Initializers of float32 by name in all graphs, before rounding.
        numbers: Numbers for the names of added values.
    """

    opsets: Mapping[str, int]
    floats: frozenset[str]
    exact: Mapping[str, Array]
    numbers: Iterator[int] = field(default_factory=count)

    def fresh(self, value: str) -> str:
        return f"{value}@{next(self.numbers)}:float32"


def _converted(network: Network) -> Network:
    model, weights = _taken(network)
    inferred = infer_shapes(model, propagate=False)
    rounded_by_id = {id(array): rounded(array) for array in weights.values() if array.dtype == np.float32}
    scope = _Scope(
        opsets={plain_domain(entry.domain): entry.version for entry in model.opset_import},
        floats=frozenset(_floats(inferred.graph)),
        exact={name: array for name, array in weights.items() if array.dtype == np.float32},
    )
    narrowed = {name: rounded_by_id.get(id(array), array) for name, array in weights.items()}
    del model.graph.initializer[:]
    model.graph.initializer.extend(initializer(name, array) for name, array in narrowed.items())
    _convert(model.graph, scope, {})
    return replace(
        network,
        model=model,
        path=None,
        weights=outside(model.graph, narrowed),
        feeds={
            name: rounded(array) if array.dtype == np.float32 else array for name, array in network.feeds.items()
        },
        file_bytes=0,
    )  # fmt: skip


def _taken(network: Network) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return the structure without functions, and the values of the outermost graph's initializers."""
    model = network.structure()
    folder = "" if network.path is None else str(network.path.absolute().parent)
    if model.functions:
        model = inliner.inline_local_functions(model)
    weights: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if tensor.name in network.weights:
            weights[tensor.name] = network.weights[tensor.name]
            continue
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            external_data_helper.load_external_data_for_tensor(tensor, folder)
        weights[tensor.name] = numpy_helper.to_array(tensor)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.ClearField("raw_data")
    return model, weights


def _floats(outermost: onnx.GraphProto) -> Iterator[str]:
    for graph in all_graphs(outermost):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == _FLOAT:
                yield value.name
        yield from (tensor.name for tensor in graph.initializer if tensor.data_type == _FLOAT)


def _convert(graph: onnx.GraphProto, scope: _Scope, outer_single: Mapping[str, str]) -> None:
    """Convert a graph in place.

    Args:
        graph: Its initializers of float16 are so already, if it is the outermost one.
        scope: Of the model.
        outer_single: Values of outer graphs that there are in float32 as well, by the name that these have.
    """
    for value in (*graph.input, *graph.output):
        _retype(value.type)
    del graph.value_info[:]
    for tensor in graph.initializer:
        if tensor.data_type == _FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(rounded(numpy_helper.to_array(tensor)), tensor.name))
    single = dict(outer_single)
    nodes: list[onnx.NodeProto] = []
    for node in list(graph.node):
        after: list[onnx.NodeProto] = []
        if not _follows(node):
            nodes += _widen_inputs(graph, node, scope, single)
            after = _narrow_outputs(node, scope)
        _convert_attributes(node)
        for body in bodies(node):
            _convert(body, scope, single)
        nodes += [node, *after]
    del graph.node[:]
    graph.node.extend(nodes)


def _follows(node: onnx.NodeProto) -> bool:
    """Return True if an operator takes its types from its bodies."""
    return any(bodies(node))


def _widen_inputs(
    graph: onnx.GraphProto, node: onnx.NodeProto, scope: _Scope, single: dict[str, str]
) -> list[onnx.NodeProto]:
    """Make a node read float32 for inputs without float16; return the casts for this."""
    casts = []
    schema = _schema(node, scope)
    for index, value in enumerate(node.input):
        if value not in scope.floats or not _is_single(schema.inputs if schema else (), index):
            continue
        if value not in single:
            single[value] = scope.fresh(value)
            if value in scope.exact:
                graph.initializer.append(numpy_helper.from_array(scope.exact[value], single[value]))
            else:
                casts.append(helper.make_node("Cast", [value], [single[value]], to=_FLOAT))
        node.input[index] = single[value]
    return casts


def _narrow_outputs(node: onnx.NodeProto, scope: _Scope) -> list[onnx.NodeProto]:
    """Return the casts after a node for outputs that exist in float32 only."""
    casts = []
    schema = _schema(node, scope)
    for index, value in enumerate(node.output):
        if value in scope.floats and _is_single(schema.outputs if schema else (), index):
            node.output[index] = scope.fresh(value)
            casts.append(helper.make_node("Cast", [node.output[index]], [value], to=_HALF))
    return casts


def _schema(node: onnx.NodeProto, scope: _Scope) -> onnx.defs.OpSchema | None:
    domain = plain_domain(node.domain)
    try:
        return onnx.defs.get_schema(node.op_type, scope.opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return None


def _is_single(parameters: Iterable[Any], index: int) -> bool:
    """Return True if a parameter allows float32 but not float16; the last parameter may be variadic."""
    parameter_list = list(parameters)
    types = parameter_list[min(index, len(parameter_list) - 1)].types if parameter_list else ()
    return "tensor(float)" in types and "tensor(float16)" not in types


def _convert_attributes(node: onnx.NodeProto) -> None:
    if not is_standard(node):
        return
    attributes = {attribute.name: attribute for attribute in node.attribute}
    for attribute in node.attribute:
        for tensor in (attribute.t, *attribute.tensors):
            if tensor.data_type == _FLOAT:
                tensor.CopyFrom(numpy_helper.from_array(rounded(numpy_helper.to_array(tensor)), tensor.name))
    named = _TYPED.get(node.op_type, "")
    if named in attributes and attributes[named].i == _FLOAT:
        attributes[named].i = _HALF
    elif named and named not in attributes and node.op_type in _FLOAT_BY_DEFAULT:
        node.attribute.append(helper.make_attribute(named, int(_HALF)))
    if node.op_type == "ConstantOfShape" and "value" not in attributes:
        zero = numpy_helper.from_array(np.zeros(1, dtype=np.float16))
        node.attribute.append(helper.make_attribute("value", zero))
    if node.op_type == "Constant" and not attributes.keys().isdisjoint({"value_float", "value_floats"}):
        (attribute,) = node.attribute
        numbers = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        tensor = numpy_helper.from_array(rounded(np.array(numbers, dtype=np.float32)))
        attribute.CopyFrom(helper.make_attribute("value", tensor))


def _retype(value: onnx.TypeProto) -> None:
    """Change a type, or the element type of a sequence, from float32 to float16."""
    kind = value.WhichOneof("value")
    if kind == "tensor_type" and value.tensor_type.elem_type == _FLOAT:
        value.tensor_type.elem_type = _HALF
    elif kind in {"sequence_type", "optional_type"}:
        _retype(getattr(value, kind).elem_type)


_OPERATORS = ("MatMul", "Gemm")
"""Quantized operators. Conv is missing: ConvInteger is never faster, and up to five times slower, than float32."""

_SMALLEST_OPSET = 11
"""DynamicQuantizeLinear came with it."""

_BYTE_PRODUCTS = {"avx_vnni", "avx512_vnni", "amx_int8"}
"""Instruction sets with products of bytes that are added in 32 bits."""

_PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")
"""Keeps the quantizer from asking for a preparation: it would optimise the model, which the session does afterwards."""


def quantised_network(network: Network) -> Network:
    """Quantize the weights of matrix products.

    Returns:
        The network itself if it lacks products with constant weights.

    Raises:
        BackendError: The quantizer failed, or the weights do not fit into one protobuf.
    """
    if not _can_be_quantised(network.structure()):
        return network
    model = network.self_contained() if network.model is not None else onnx.load(str(network.path))
    key, value = _PREPARED
    model.metadata_props.add(key=key, value=value)
    _forget_types_of_weights(model)
    with tempfile.TemporaryDirectory(prefix="dlbricks-quantised-") as folder:
        target = Path(folder) / "quantised.onnx"
        _quantise(model, target)
        quantised = onnx.load(str(target), load_external_data=False)
        weights = take_weights(quantised, folder, {})
    return replace(network, model=quantised, path=None, weights=weights, file_bytes=0)


def _can_be_quantised(model: onnx.ModelProto) -> bool:
    opset = next((entry.version for entry in model.opset_import if not plain_domain(entry.domain)), 0)
    floats = {tensor.name for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    return opset >= _SMALLEST_OPSET and any(
        node.op_type in _OPERATORS and is_standard(node) and node.input[1] in floats for node in model.graph.node
    )


def _forget_types_of_weights(model: onnx.ModelProto) -> None:
    """Drop the types that a model states for its initializers in addition, as PyTorch's exporter does.

    The quantizer transposes the weights of a Gemm without renaming them, and then finds another shape.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    remaining = [value for value in model.graph.value_info if value.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(remaining)


def _quantise(model: onnx.ModelProto, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    try:
        with _silence():
            quantize_dynamic(
                model,
                target,
                op_types_to_quantize=list(_OPERATORS),
                weight_type=QuantType.QInt8,
                reduce_range=_overflows(),
                use_external_data_format=True,
            )
    except MemoryError:
        raise
    except Exception as error:  # the quantizer raises whatever its parts raise
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise BackendError(f"ONNX Runtime's quantizer failed: {text}") from error


def _overflows() -> bool:
    """Return True if this processor adds products of bytes in 16 bits."""
    system = probe_system()
    return system.architecture == "x86_64" and _BYTE_PRODUCTS.isdisjoint(system.isa)


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the quantizer, which would give the root logger a handler."""
    root, handler, before = logging.getLogger(), logging.NullHandler(), logging.root.manager.disable
    root.addHandler(handler)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        root.removeHandler(handler)
