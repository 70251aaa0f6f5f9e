"""Static types of values, combined from shape inference, folding, the file and one execution."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from ...models.skeleton import is_weight
from ...models.subgraphs import (
    bodies,
    captures,
    contains_operator,
    infer_shapes,
    is_standard,
    plain_domain,
    state_defaults,
)
from ...models.time_limit import in_time
from ..costs.costed_node import CostedNode, UnknownCostError
from ..encoding import (
    Array,
    element_name,
    element_number,
    encode_array,
    tensor_array,
    tensor_type,
    tensor_type_of_array,
    type_of,
)  # fmt: skip
from ..layer import Operand, Role, TensorType
from ..operators import DEQUANTIZE, RANDOM, operator_of
from .arithmetic import EVALUATED_ELEMENTS, EVALUATED_FLOATS, Unevaluated, evaluate

# Folding: layers that take no time at inference.
#
# A layer is folded if it depends on constants only, or is a Shape or Size of a value with a static type. Its result is
# either *known* (exact shape arithmetic, ``arithmetic.py``), like any constant, or a weight: only its type matters.


_TRAINING_SLOTS = {"Dropout": 2}


class Constants:
    """The values of a model that are constant over inferences.

    Attributes:
        folded: Indices of the folded nodes, each with the reason.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.tensors: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        self.weights: set[str] = {value.name for value in graph.input if is_weight(value)} - self.tensors.keys()
        self.weights.update(tensor.values.name for tensor in graph.sparse_initializer)
        self.arrays: dict[str, Array] = {}
        self.folded: dict[int, str] = {}

    def __contains__(self, name: str) -> bool:
        """Return True if a value is constant, with or without known values."""
        return name in self.tensors or name in self.weights or name in self.arrays

    def known(self, name: str) -> bool:
        """Return True if the values of a constant are known."""
        return name in self.tensors or name in self.arrays

    def array(self, name: str) -> Array | None:
        """Return the values of a constant; None if unknown."""
        values = self.arrays.get(name)
        if values is None and name in self.tensors:
            values = self.arrays[name] = tensor_array(self.tensors[name])
        return values

    def scalar(self, name: str) -> int | None:
        """Return a constant of one integer or truth value; None if unknown."""
        array = self.array(name) if self.known(name) else None
        return int(array.item()) if array is not None and array.size == 1 and array.dtype.kind in "biu" else None

    @property
    def found(self) -> Mapping[str, Array]:
        """Known values that are not initializers: the results of folding."""
        return {name: array for name, array in self.arrays.items() if name not in self.tensors}


def fold(graph: onnx.GraphProto, types: Mapping[str, TensorType], *, dequantise: bool = False) -> Constants:
    """Find the folded nodes of a graph and evaluate shape arithmetic.

    Args:
        graph: The skeleton's graph, nodes in topological order.
        types: The static types known so far; a Shape needs the type of its input to be folded.
        dequantise: Keep DequantizeLinear of constants, as runtimes do: quantised weights keep their width, and an
            operator may fuse the conversion.

    Returns:
        The constants, with ``folded`` filled in.
    """
    constants = Constants(graph)
    for index, node in enumerate(in_time(graph.node, "evaluating shape arithmetic")):
        _fold_node(index, node, constants, types, dequantise=dequantise)
    return constants


def _fold_node(
    index: int, node: onnx.NodeProto, constants: Constants, types: Mapping[str, TensorType], *, dequantise: bool
) -> None:
    """Add a node to the folded ones if it is."""
    if node.op_type in {"Shape", "Size"} and is_standard(node):
        _fold_shape(index, node, constants, types)
    elif not (dequantise and node.op_type == DEQUANTIZE) and _depends_on_constants(node, constants):
        constants.folded[index] = "depends on constants only"
        _leave(node, constants, types)


def _fold_shape(index: int, node: onnx.NodeProto, constants: Constants, types: Mapping[str, TensorType]) -> None:
    source = types.get(node.input[0]) if node.input else None
    if source is None or not node.output:
        return
    if node.op_type == "Size":
        value = np.asarray(source.elements, np.int64)
    else:
        bounds = {attribute.name: attribute.i for attribute in node.attribute}
        value = np.asarray(source.shape[bounds.get("start", 0) : bounds.get("end")], np.int64)
    constants.folded[index] = f"{node.op_type} of a static shape"
    constants.arrays[node.output[0]] = value


def _depends_on_constants(node: onnx.NodeProto, constants: Constants) -> bool:
    for name in node.input:
        if name and name not in constants:
            return False
    if not any(node.input):  # without inputs: only ONNX's Constant is constant for certain
        return node.op_type == "Constant" and is_standard(node)
    if any(name not in constants for name in captures(node)):
        return False
    return not contains_operator(node, RANDOM) and not _trains(node, constants)


def _trains(node: onnx.NodeProto, constants: Constants) -> bool:
    """Return True if a node draws random numbers because of training mode."""
    slot = _TRAINING_SLOTS.get(node.op_type)
    if slot is None or slot >= len(node.input) or not node.input[slot]:
        return False
    mode = constants.array(node.input[slot])
    return mode is None or bool(mode.any())


def _leave(node: onnx.NodeProto, constants: Constants, types: Mapping[str, TensorType]) -> None:
    """Record the result of a folded node: known values for shape arithmetic, else weights."""
    names = [name for name in node.output if name]
    try:
        arrays = _values(node, constants, [types.get(name) for name in node.output])
    except Unevaluated:
        constants.weights.update(names)
        return
    for name, array in zip(node.output, arrays, strict=True):
        if name:
            constants.arrays[name] = array


def _values(node: onnx.NodeProto, constants: Constants, outputs: Iterable[TensorType | None]) -> list[Array]:
    if not is_standard(node):
        raise Unevaluated(node.domain)
    output_types = list(outputs)
    for output in output_types:
        if output is not None and not _small(output):
            raise Unevaluated(f"{output.elements} elements")
    inputs: list[Array | None] = []
    for name in node.input:
        array = constants.array(name) if name else None
        if name and (array is None or array.size > EVALUATED_ELEMENTS):
            raise Unevaluated(name)
        inputs.append(array)
    arrays = evaluate(node, inputs)
    if len(arrays) != len(output_types):
        raise Unevaluated(f"{len(arrays)} outputs")
    for array, output in zip(arrays, output_types, strict=True):
        if output is not None and tensor_type_of_array(array) != output:
            raise Unevaluated(f"shape inference says {output}")
    return arrays


def _small(output: TensorType) -> bool:
    floating = "float" in output.dtype or output.dtype == "double"
    return math.prod(output.shape) <= (EVALUATED_FLOATS if floating else EVALUATED_ELEMENTS)


ShapeOracle = Callable[[onnx.ModelProto, Sequence[str]], Mapping[str, TensorType]]
"""Finds types by executing a model in skeleton form once, elsewhere: requested names to types (may return fewer)."""

_ROUNDS = 8
"""Bound on alternating inference and folding; real models need two or three."""


@dataclass(frozen=True, slots=True)
class Inference:
    """Types and constants of a model.

    Attributes:
        types: Static types by value.
        unknown: For values without a static type, its known part in words: ``float[?, 3]``, ``a sequence``.
        constants: The constant values and the folded nodes.
        model: The skeleton's structure with every inferred type, including bodies of control flow. Nodes are at the
            skeleton's indices; if folding helped inference, a Constant replaces the folded node.
    """

    types: Mapping[str, TensorType]
    unknown: Mapping[str, str]
    constants: Constants
    model: onnx.ModelProto


def infer_types(model: onnx.ModelProto, *, oracle: ShapeOracle | None = None, dequantise: bool = False) -> Inference:
    """Find the static type of every value of a skeleton.

    Shape inference runs with data propagation. Folding then evaluates shape arithmetic. If it finds values and types
    are still missing, inference runs again with these values. Types stated by the file are used only if inference finds
    nothing. The oracle is asked for the rest, once.

    Args:
        model: A model in normal form (``models.skeleton``); not changed.
        oracle: Executes the model if inference is not enough.
        dequantise: As in ``fold``.

    Raises:
        BrokenModel: Shape inference refuses the model as a whole.
    """
    stated = {
        value.name: value for value in (*model.graph.value_info, *model.graph.output) if _static_type(value) is not None
    }
    inference, missing = _rounds(model, stated, dequantise=dequantise)
    types = {**inference.types}
    if missing and oracle is not None:
        if stated:  # the oracle's input values may give other shapes
            inference, missing = _rounds(model, {}, dequantise=dequantise)
        answers = oracle(model, missing)
        told = {name: static_type for name in stated if (static_type := _static_type(stated[name])) is not None}
        types = {**{name: told[name] for name in missing if name in told}, **inference.types}
        types |= {name: answers[name] for name in missing if name in answers}
        inference = replace(inference, constants=fold(model.graph, types, dequantise=dequantise))
    arrays = inference.constants.found
    types |= {name: tensor_type_of_array(array) for name, array in arrays.items() if name not in types}
    return replace(inference, types=types)


def _rounds(
    model: onnx.ModelProto, stated: Mapping[str, onnx.ValueInfoProto], *, dequantise: bool
) -> tuple[Inference, list[str]]:
    """Alternate inference and folding; return the result, and the values with a missing type."""
    remaining = {**stated}
    current = _bare(model)
    put: set[str] = set()
    for _ in range(_ROUNDS):
        inferred = infer_shapes(current)
        types, unknown = _read_types(inferred.graph)
        constants = fold(model.graph, types, dequantise=dequantise)
        missing = _missing(model.graph, types, constants)
        by_node = _node_by_node(model, types, constants, dequantise=dequantise) if missing else {}
        types |= by_node
        missing = [name for name in missing if name not in types and name not in constants.arrays]
        values = constants.found.keys() - put if missing or by_node else set[str]()
        additions = [_value_info(name, by_node[name]) for name in by_node]
        additions += [remaining.pop(name) for name in missing if name in remaining]
        if not values and not additions:
            break
        put |= values
        current.graph.value_info.extend(additions)
        _put_values(current.graph, constants)
    return Inference(types, unknown, constants, inferred), missing


def _node_by_node(
    model: onnx.ModelProto, types: Mapping[str, TensorType], constants: Constants, *, dequantise: bool
) -> dict[str, TensorType]:
    """Return the types that ONNX's inference of the whole graph leaves out; add the nodes that then fold.

    That inference stops at an operator that it does not know, and at shape arithmetic that it does not follow. From
    there on, in the order of the graph, the rows of the table of operators (``Operator.results``) and the schemas of
    ONNX give the types of one node after the other, and folding follows each. One pass does what would take a round
    for every block of a deep model.
    """
    graph = model.graph
    opsets = {plain_domain(entry.domain): entry.version for entry in model.opset_import}
    known, found = dict(types), dict[str, TensorType]()
    for index, node in enumerate(in_time(graph.node, "inferring shapes")):
        if index in constants.folded:
            continue
        _fold_node(index, node, constants, known, dequantise=dequantise)
        if all(name in known for name in node.output if name):
            continue
        values = [constants.arrays.get(name) for name in node.output] if index in constants.folded else []
        results: Sequence[TensorType | None] = [
            None if array is None else tensor_type_of_array(array) for array in values
        ]
        if None in results or not results:
            results = _results(node, known, constants, opsets)
        new = {name: kind for name, kind in zip(node.output, results, strict=False) if name and kind is not None}
        known |= new
        found |= {name: kind for name, kind in new.items() if name not in types}
    return found


def _results(
    node: onnx.NodeProto, types: Mapping[str, TensorType], constants: Constants, opsets: Mapping[str, int]
) -> Sequence[TensorType | None]:
    """Return the types of a node's results by the table of operators, or by its schema; empty if unknown."""
    row = operator_of(node)
    if row.results is not None:
        call = CostedNode(node, tuple(_operand(name, types, constants) for name in node.input), ())
        try:
            return row.results(call)
        except (UnknownCostError, ArithmeticError, LookupError):
            return []  # an illegal call; the oracle or the runtime says so
    if not is_standard(node) or any(name and name not in types for name in node.input) or any(bodies(node)):
        return []
    stated = onnx.NodeProto()
    stated.CopyFrom(node)
    state_defaults(stated)
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get("", 1), "")
        inferred = onnx.shape_inference.infer_node_outputs(
            schema,
            stated,
            {name: _type_proto(types[name]) for name in node.input if name},
            {
                name: numpy_helper.from_array(array, name)
                for name in node.input
                if name and (array := constants.array(name)) is not None and array.size <= EVALUATED_ELEMENTS
            },
        )
    except (
        onnx.defs.SchemaError,
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        RuntimeError,
        ValueError,
    ):
        return []
    kinds = (inferred.get(name) for name in node.output)
    return [None if kind is None else _static_type(onnx.ValueInfoProto(type=kind)) for kind in kinds]


def _operand(name: str, types: Mapping[str, TensorType], constants: Constants) -> Operand:
    if not name:
        return Operand("", None, Role.ABSENT)
    array = constants.array(name)
    if array is None or array.size > EVALUATED_ELEMENTS:
        return Operand(name, types.get(name), Role.WEIGHT if name in constants else Role.ACTIVATION)
    return Operand(name, tensor_type_of_array(array), Role.CONSTANT, encode_array(array))


def _type_proto(kind: TensorType) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(element_number(kind.dtype), kind.shape)


def _value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, element_number(kind.dtype), kind.shape)


def stated_types(model: onnx.ModelProto) -> Inference:
    """Take the types that the file states and fold nothing, for an executed graph.

    The runtime has already folded it, and shape inference does not know a runtime's own operators.

    Args:
        model: A model in skeleton form that states the type of every value; not changed.
    """
    types, unknown = _read_types(model.graph)
    return Inference(types, unknown, Constants(model.graph), model)


def _bare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy for inference, with stated types of inputs only, so that inferred types win."""
    # Before IR 4 shape inference knows types of initializers only from graph inputs.
    bare = onnx.ModelProto(
        ir_version=max(4, model.ir_version), opset_import=model.opset_import, functions=model.functions
    )
    source = model.graph
    bare.graph.name = source.name
    bare.graph.node.extend(source.node)
    bare.graph.input.extend(source.input)
    bare.graph.initializer.extend(source.initializer)
    bare.graph.sparse_initializer.extend(source.sparse_initializer)
    bare.graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in source.output)
    for node in bare.graph.node:
        if node.op_type in {"Squeeze", "Unsqueeze"}:
            # Sort an attribute's axes, because onnx infers a wrong shape unless they ascend; their order has no
            # meaning.
            for attribute in node.attribute:
                if attribute.name == "axes" and list(attribute.ints) != sorted(attribute.ints):
                    attribute.ints[:] = sorted(attribute.ints)
    return bare


def _put_values(graph: onnx.GraphProto, constants: Constants) -> None:
    """Replace folded nodes with known outputs by Constants, at the same indices."""
    for index in constants.folded:
        node = graph.node[index]
        if len(node.output) == 1 and node.op_type != "Constant" and node.output[0] in constants.arrays:
            value = onnx.helper.make_attribute("value", numpy_helper.from_array(constants.arrays[node.output[0]]))
            node.CopyFrom(onnx.NodeProto(op_type="Constant", output=node.output, attribute=[value]))


def _read_types(graph: onnx.GraphProto) -> tuple[dict[str, TensorType], dict[str, str]]:
    types: dict[str, TensorType] = {}
    unknown: dict[str, str] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        static_type = _static_type(value)
        if static_type is not None:
            types[value.name] = static_type
        else:
            unknown[value.name] = _describe(value.type)
    for tensor in graph.initializer:
        static_type = type_of(tensor)
        if static_type is not None:
            types[tensor.name] = static_type
    return types, unknown


def _static_type(value: onnx.ValueInfoProto) -> TensorType | None:
    """Return the type of a value; None unless its element type and all dimensions are known."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims = tensor.shape.dim
    shape = tuple([dim.dim_value for dim in dims])
    if shape and min(shape) <= 0 and any(not dim.HasField("dim_value") or dim.dim_value < 0 for dim in dims):
        return None
    return tensor_type(tensor.elem_type, shape)


def _describe(kind: onnx.TypeProto) -> str:
    """Describe in words the known part of a type that is not a static tensor."""
    which = kind.WhichOneof("value")
    if which is None:
        return "no type"
    if which != "tensor_type":
        return f"{'an' if which[0] == 'o' else 'a'} {which.removesuffix('_type').replace('_', ' ')}"
    tensor = kind.tensor_type
    element = element_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return f"{element} of unknown rank"
    dims = [str(dim.dim_value) if dim.HasField("dim_value") else _own_name(dim.dim_param) for dim in tensor.shape.dim]
    return f"{element}[{', '.join(dims)}]"


_INFERRED = "unk__"
"""Begins the names that shape inference makes up for dimensions."""


def _own_name(dimension: str) -> str:
    """Return a dimension's name in the file; a question mark without one."""
    return dimension if dimension and not dimension.startswith(_INFERRED) else "?"


def _missing(graph: onnx.GraphProto, types: Mapping[str, TensorType], constants: Constants) -> list[str]:
    """Return values without a static type that layers read or write, in file order."""
    missing: dict[str, None] = {}
    for node in graph.node:
        for name in (*node.input, *node.output):
            if name and name not in types and name not in constants.arrays:
                missing.setdefault(name)
    return list(missing)
