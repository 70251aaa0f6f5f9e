"""Static types: what ONNX shape inference, folding, the file and one execution together know of every value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from ...models.skeleton import is_weight
from ...models.subgraphs import captures, contains_operator, infer_shapes, is_standard
from ..constants import Array, element_name, tensor_array, tensor_type, tensor_type_of_array, type_of
from ..layer import DEQUANTIZE, RANDOM, TensorType
from .arithmetic import EVALUATED_ELEMENTS, EVALUATED_FLOATS, Unevaluated, evaluate

# Folding: the layers that cost nothing at inference, and the values they leave behind.
#
# A layer is folded when it depends on constants only, or when it is a Shape or Size of a value with a static type.
# What a folded layer leaves behind is either *known* (exact shape arithmetic, ``arithmetic.py``) and then a constant
# like any other, or it is a weight: its type matters, its values do not.


_TRAINING_SLOTS = {"Dropout": 2}


class Constants:
    """The values of a model that do not change from one inference to the next.

    Attributes:
        folded: Indices of the folded nodes, and why each is folded.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.tensors: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        self.weights: set[str] = {value.name for value in graph.input if is_weight(value)} - self.tensors.keys()
        self.weights.update(tensor.values.name for tensor in graph.sparse_initializer)
        self.arrays: dict[str, Array] = {}
        self.folded: dict[int, str] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a value is constant, with or without known values."""
        return name in self.tensors or name in self.weights or name in self.arrays

    def known(self, name: str) -> bool:
        """Whether the values of a constant are known."""
        return name in self.tensors or name in self.arrays

    def array(self, name: str) -> Array | None:
        """The values of a constant; None where they are not known."""
        known = self.arrays.get(name)
        if known is None and name in self.tensors:
            known = self.arrays[name] = tensor_array(self.tensors[name])
        return known

    @property
    def found(self) -> Mapping[str, Array]:
        """The known values that are not initializers: what folding found."""
        return {name: array for name, array in self.arrays.items() if name not in self.tensors}


def fold(graph: onnx.GraphProto, types: Mapping[str, TensorType], *, dequantise: bool = False) -> Constants:
    """Find the folded nodes of a graph and evaluate what decides shapes.

    Args:
        graph: The skeleton's graph, nodes in topological order.
        types: The static types known so far; a Shape of a value without one is not folded.
        dequantise: Leave DequantizeLinear of constants to the runtime, as runtimes do: quantised weights stay as wide
            as the file has them, and an operator may take their conversion in.

    Returns:
        The constants, with ``folded`` filled in.
    """
    constants = Constants(graph)
    for index, node in enumerate(graph.node):
        if node.op_type in {"Shape", "Size"} and is_standard(node):
            _fold_shape(index, node, constants, types)
        elif dequantise and node.op_type == DEQUANTIZE:
            continue
        elif _depends_on_constants(node, constants):
            constants.folded[index] = "depends on constants only"
            _leave(node, constants, types)
    return constants


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
    if not any(node.input):  # a source: only ONNX's own constants are known to be constant
        return node.op_type == "Constant" and is_standard(node)
    if any(name not in constants for name in captures(node)):
        return False
    return not contains_operator(node, RANDOM) and not _trains(node, constants)


def _trains(node: onnx.NodeProto, constants: Constants) -> bool:
    """Whether a node draws random numbers because it is in training mode."""
    slot = _TRAINING_SLOTS.get(node.op_type)
    if slot is None or slot >= len(node.input) or not node.input[slot]:
        return False
    mode = constants.array(node.input[slot])
    return mode is None or bool(mode.any())


def _leave(node: onnx.NodeProto, constants: Constants, types: Mapping[str, TensorType]) -> None:
    """Record what a folded node leaves behind: known values where they are shape arithmetic, else weights."""
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
    wanted = list(outputs)
    for output in wanted:
        if output is not None and not _small(output):
            raise Unevaluated(f"{output.elements} elements")
    inputs: list[Array | None] = []
    for name in node.input:
        array = constants.array(name) if name else None
        if name and (array is None or array.size > EVALUATED_ELEMENTS):
            raise Unevaluated(name)
        inputs.append(array)
    arrays = evaluate(node, inputs)
    if len(arrays) != len(wanted):
        raise Unevaluated(f"{len(arrays)} outputs")
    for array, output in zip(arrays, wanted, strict=True):
        if output is not None and tensor_type_of_array(array) != output:
            raise Unevaluated(f"shape inference says {output}")
    return arrays


def _small(output: TensorType) -> bool:
    floating = "float" in output.dtype or output.dtype == "double"
    return math.prod(output.shape) <= (EVALUATED_FLOATS if floating else EVALUATED_ELEMENTS)


ShapeOracle = Callable[[onnx.ModelProto, Sequence[str]], Mapping[str, TensorType]]
"""Finds types by executing a skeleton-form model once, elsewhere: names wanted to types found (may be fewer)."""

_ROUNDS = 8
"""Bound on alternating inference and folding; real models need two or three."""

_SORTED_AXES = frozenset({"Squeeze", "Unsqueeze"})


@dataclass(frozen=True, slots=True)
class Inference:
    """What is known of every value of a model.

    Attributes:
        types: Static types by value.
        unknown: For values without one, what is known instead, in words: ``float[?, 3]``, ``a sequence``.
        constants: The constant values and the folded nodes.
        model: The skeleton's structure with every inferred type in it, bodies of control flow included; nodes are
            at the skeleton's indices (where folding helped inference, a folded node stands as a Constant).
    """

    types: Mapping[str, TensorType]
    unknown: Mapping[str, str]
    constants: Constants
    model: onnx.ModelProto


def infer_types(model: onnx.ModelProto, *, oracle: ShapeOracle | None = None, dequantise: bool = False) -> Inference:
    """Find the static type of every value of a skeleton.

    Shape inference runs with data propagation. Folding then evaluates shape arithmetic; while that finds values
    and types are still missing, the values are put in and inference runs again. Types that the file states are
    believed only where inference has nothing to say. What is still missing is asked of the oracle, once.

    Args:
        model: A model in normal form (``models.skeleton``); not changed.
        oracle: Executes the model where inference is not enough.
        dequantise: As of ``fold``.

    Raises:
        BrokenModel: Shape inference refuses the model as a whole.
    """
    stated = {
        value.name: value for value in (*model.graph.value_info, *model.graph.output) if _static_type(value) is not None
    }
    found, missing = _rounds(model, stated, dequantise=dequantise)
    types = {**found.types}
    if missing and oracle is not None:
        if stated:  # the oracle executes with values of its own, which other shapes may belong to than those stated
            found, missing = _rounds(model, {}, dequantise=dequantise)
        answers = oracle(model, missing)
        told = {name: known for name in stated if (known := _static_type(stated[name])) is not None}
        types = {**{name: told[name] for name in missing if name in told}, **found.types}
        types |= {name: answers[name] for name in missing if name in answers}
        found = replace(found, constants=fold(model.graph, types, dequantise=dequantise))
    arrays = found.constants.found
    types |= {name: tensor_type_of_array(array) for name, array in arrays.items() if name not in types}
    return replace(found, types=types)


def _rounds(
    model: onnx.ModelProto, stated: Mapping[str, onnx.ValueInfoProto], *, dequantise: bool
) -> tuple[Inference, list[str]]:
    """Return what inference and folding in turn find, and the values whose type is still missing."""
    left = {**stated}
    current = _bare(model)
    put: set[str] = set()
    for _ in range(_ROUNDS):
        inferred = infer_shapes(current)
        types, unknown = _read_types(inferred.graph)
        constants = fold(model.graph, types, dequantise=dequantise)
        missing = _missing(model.graph, types, constants)
        values = constants.found.keys() - put if missing else set[str]()
        additions = [left.pop(name) for name in missing if name in left]
        if not values and not additions:
            break
        put |= values
        current.graph.value_info.extend(additions)
        _put_values(current.graph, constants)
    return Inference(types, unknown, constants, inferred), missing


def stated_types(model: onnx.ModelProto) -> Inference:
    """Take the types as the file states them and fold nothing: for the graph that a runtime executes.

    What could be folded has been, by the runtime; and shape inference knows nothing of a runtime's own operators.

    Args:
        model: A model in skeleton form that states the type of every value; not changed.
    """
    types, unknown = _read_types(model.graph)
    return Inference(types, unknown, Constants(model.graph), model)


def _bare(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy to infer in: no stated types but the inputs', so that what inference finds wins."""
    # Before IR 4 an initializer that is no graph input has no type for shape inference.
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
        if node.op_type in _SORTED_AXES:
            _sort_axes(node)
    return bare


def _sort_axes(node: onnx.NodeProto) -> None:
    """Sort an attribute's axes, whose order means nothing: onnx infers a wrong shape where they do not ascend."""
    for attribute in node.attribute:
        if attribute.name == "axes" and list(attribute.ints) != sorted(attribute.ints):
            attribute.ints[:] = sorted(attribute.ints)


def _put_values(graph: onnx.GraphProto, constants: Constants) -> None:
    """Replace the folded nodes whose outputs are all known by Constants, at the same indices."""
    for index in constants.folded:
        node = graph.node[index]
        if len(node.output) == 1 and node.op_type != "Constant" and node.output[0] in constants.arrays:
            value = onnx.helper.make_attribute("value", numpy_helper.from_array(constants.arrays[node.output[0]]))
            node.CopyFrom(onnx.NodeProto(op_type="Constant", output=node.output, attribute=[value]))


def _read_types(graph: onnx.GraphProto) -> tuple[dict[str, TensorType], dict[str, str]]:
    types: dict[str, TensorType] = {}
    unknown: dict[str, str] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        known = _static_type(value)
        if known is not None:
            types[value.name] = known
        else:
            unknown[value.name] = _describe(value.type)
    for tensor in graph.initializer:
        known = type_of(tensor)
        if known is not None:
            types[tensor.name] = known
    return types, unknown


def _static_type(value: onnx.ValueInfoProto) -> TensorType | None:
    """The type of a value whose element type and dimensions are all known."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims = tensor.shape.dim
    shape = tuple([dim.dim_value for dim in dims])
    if shape and min(shape) <= 0 and any(not dim.HasField("dim_value") or dim.dim_value < 0 for dim in dims):
        return None
    return tensor_type(tensor.elem_type, shape)


def _describe(kind: onnx.TypeProto) -> str:
    """What is known of a type that is not a static tensor, in words."""
    which = kind.WhichOneof("value")
    if which is None:
        return "no type"
    if which != "tensor_type":
        return f"{'an' if which[0] == 'o' else 'a'} {which.removesuffix('_type').replace('_', ' ')}"
    tensor = kind.tensor_type
    element = element_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return f"{element} of unknown rank"
    dims = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim]
    return f"{element}[{', '.join(dims)}]"


def _missing(graph: onnx.GraphProto, types: Mapping[str, TensorType], constants: Constants) -> list[str]:
    """Values that layers read or write and that have no static type, in file order."""
    missing: dict[str, None] = {}
    for node in graph.node:
        for name in (*node.input, *node.output):
            if name and name not in types and name not in constants.arrays:
                missing.setdefault(name)
    return list(missing)
