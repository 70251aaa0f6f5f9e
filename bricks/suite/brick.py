"""A brick: a unique sequence as one small ONNX file, and back.

The file is in skeleton form (``models.skeleton``): weights are graph inputs marked ``role=weight``, constants with
relevant values are initializers. It contains nothing of its model: values are numbered, nodes have empty names. Equal
sequences give equal bytes on every machine, and the key can be recomputed from the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx.numpy_helper
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from ...errors import BrokenModel, DlbricksError, InvalidSequence, ModelError, TamperedBrick, unforeseen
from ...models.external import count_elements
from ...models.skeleton import Skeleton, is_weight, mark_causal, mark_weight
from ...models.subgraphs import all_graphs, declared_shape, plain_domain
from ..canonical.bodies import nameless_attributes
from ..canonical.roles import CANONICAL_OPSET, find_schema, is_deciding
from ..cutting.sequences import Numbering, make_sequence, number_values
from ..encoding import element_number
from ..graph.flow import common_opsets
from ..graph.model_graph import ModelGraph, build_graph
from ..layer import Cost, Layer, LayerSequence, LayerState, Operand, Role, TensorType
from ..operators import MICROSOFT, Kind, operator_of
from ..work import weights_read

IR_VERSION = 10
"""IR version of brick files: the first with metadata on values, for the marks of weights."""

MAX_BRICK_BYTES = 64 << 20
"""Largest brick file that is read. Bricks do not contain weights, so larger files are not bricks."""


_SALT = "salt"
"""Metadata entry for the salt of a brick's key."""


@dataclass(frozen=True, slots=True)
class Brick:
    """A unique sequence: the same network modulo weight values.

    Attributes:
        key: SHA-256 over its layers, wiring and exposed values, hexadecimal.
        model: Its ONNX file.
        operators: Its operators in order, ``Conv``, or ``com.microsoft.Gelu`` outside ONNX's own domain.
        cost: Work and traffic of its layers together; None if unknown for any layer.
        layers: Number of layers.
        weight_bytes: Bytes of its weights.
        read_bytes: Bytes of its weights that one execution reads; embedding tables count only the rows read.
        input_bytes: Bytes of the activations that it reads from outside.
        output_bytes: Bytes of the values that it exposes.
        salt: As in ``ModelGraph.salt``. A brick of an executed graph has a salt and runs without the runtime's
            optimisation.
    """

    key: str
    model: bytes
    operators: tuple[str, ...]
    cost: Cost | None
    layers: int
    weight_bytes: int
    read_bytes: int
    input_bytes: int
    output_bytes: int
    salt: str = ""


def build_brick(graph: ModelGraph, sequence: LayerSequence) -> Brick:
    """Write the brick of a sequence.

    Nodes are in canonical form at the canonical opset. If a node exists only later, the first opset with all of them is
    used. If a node has an older meaning or kernel, the last opset with these is used.

    Raises:
        InvalidSequence: It contains a layer that is not live.
    """
    layers = [graph.layers[index] for index in sequence.layers]
    for layer in layers:
        if layer.state is not LayerState.LIVE:
            raise InvalidSequence(
                f"layer {layer.name} is {layer.state.value} and cannot be in a brick",
                remedy="take sequences from 'split'",
            )
    model = _Writer(layers, number_values(graph, sequence.layers, exposed=frozenset(sequence.outputs))).write()
    if graph.salt:
        model.metadata_props.add(key=_SALT, value=graph.salt)
    return _describe(graph, sequence, layers, model.SerializeToString(deterministic=True))


def load_brick(data: bytes, *, expected: str | None = None) -> Brick:
    """Read a brick from an untrusted file and recompute its key.

    Args:
        data: The file.
        expected: The key that it must have: its name in a suite.

    Raises:
        BrokenModel: It is too large, not ONNX, or not written by ``build_brick``.
        TamperedBrick: Its key is not the expected one.
    """
    if len(data) > MAX_BRICK_BYTES:
        raise BrokenModel(f"a brick of {len(data)} bytes is larger than {MAX_BRICK_BYTES}")
    try:
        return _loaded(data, expected)
    except DlbricksError:
        raise
    except Exception as error:  # the border: a foreign file may break an assumption that nobody knew of
        raise BrokenModel(unforeseen(f"brick {expected or ''}", error, "read")) from error


def _loaded(data: bytes, expected: str | None) -> Brick:
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise BrokenModel(f"brick {expected or ''} is not ONNX", remedy="generate the suite again") from error
    if not _is_sound(model):
        raise BrokenModel(
            f"brick {expected or ''} holds names that are not text, or constants that do not fill their shape",
            remedy="generate the suite again",
        )
    _refuse_foreign_parts(model)
    try:
        graph = build_graph(Skeleton(model), salt=_salt(model), dequantise=True)
    except ModelError as error:
        raise BrokenModel(f"brick {expected or ''} is not a valid network: {error.message}") from error
    if not graph.live or len(graph.live) != len(graph.layers):
        dead = next((layer for layer in graph.layers if layer.state is not LayerState.LIVE), None)
        reason = f"layer {dead.name} is {dead.state.value}: {dead.reason}" if dead else "it has no layers"
        raise BrokenModel(f"brick {expected or ''} cannot run: {reason}", remedy="generate the suite again")
    sequence = make_sequence(graph, graph.live)
    if expected is not None and sequence.key != expected:
        raise TamperedBrick(
            f"the file of brick {expected} holds another network ({sequence.key})", remedy="generate the suite again"
        )
    return _describe(graph, sequence, list(graph.layers), data)


def _salt(model: onnx.ModelProto) -> str:
    """Return the salt stated by a brick file, or an empty string.

    Raises:
        BrokenModel: It states several.
    """
    salts = [entry.value for entry in model.metadata_props if entry.key == _SALT]
    if len(salts) > 1:
        raise BrokenModel("a brick belongs to one stack, not to several", remedy="generate the suite again")
    return salts[0] if salts else ""


def _is_sound(message: Message) -> bool:
    """Return True if all text is UTF-8 (protobuf returns ``bytes`` otherwise) and all tensors are complete."""
    for field, value in message.ListFields():
        values = (value,) if isinstance(value, str | bytes | Message) else value
        if field.type == FieldDescriptor.TYPE_STRING and not all(isinstance(item, str) for item in values):
            return False
        if field.type == FieldDescriptor.TYPE_MESSAGE and not all(map(_is_sound, values)):
            return False
    return not isinstance(message, onnx.TensorProto) or _is_whole(message)


def _is_whole(tensor: onnx.TensorProto) -> bool:
    """Return True if a tensor has as many values as its shape requires."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return True  # refused by name, below
    try:
        onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, LookupError):
        return False
    return True


def _refuse_foreign_parts(model: onnx.ModelProto) -> None:
    """Refuse parts that bricks never contain, because the key would not cover them or they refer to other files.

    Raises:
        BrokenModel: It has functions, training information, sparse or external constants.
    """
    graph = model.graph
    if model.functions or model.training_info or graph.sparse_initializer or graph.quantization_annotation:
        raise BrokenModel("a brick holds nothing but nodes and constants", remedy="generate the suite again")
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in graph.initializer):
        raise BrokenModel("a brick holds its constants itself, not in another file", remedy="generate the suite again")


def _describe(graph: ModelGraph, sequence: LayerSequence, layers: list[Layer], data: bytes) -> Brick:
    """Return the brick with its sums."""
    cost: Cost | None = Cost()
    for layer in layers:
        cost = cost + layer.cost if cost is not None and layer.cost is not None else None
    types = _operand_types(layers)
    return Brick(
        key=sequence.key,
        model=data,
        operators=tuple(layer.kind for layer in layers),
        cost=cost,
        layers=len(layers),
        weight_bytes=sum(types[value].nbytes for value in sequence.weights),
        read_bytes=weights_read(layers),
        input_bytes=sum(types[value].nbytes for value in sequence.inputs),
        output_bytes=sum(graph.types[value].nbytes for value in sequence.outputs),
        salt=graph.salt,
    )


def _operand_types(layers: Iterable[Layer]) -> dict[str, TensorType]:
    """Return the types of all activations and weights that layers read."""
    return {
        operand.value: operand.type
        for layer in layers
        for operand in layer.operands
        if operand.role in {Role.ACTIVATION, Role.WEIGHT} and operand.type is not None
    }


class _Writer:
    """The ONNX file of one brick."""

    def __init__(self, layers: list[Layer], numbering: Numbering) -> None:
        self._layers = layers
        self._numbering = numbering
        self._constants: dict[bytes, str] = {}

    def write(self) -> onnx.ModelProto:
        model = onnx.ModelProto(ir_version=IR_VERSION)
        opsets = self._opsets()
        for domain, version in sorted(opsets.items()):
            model.opset_import.add(domain=domain, version=version)
        body = model.graph
        body.name = "brick"
        for layer in self._layers:
            body.node.append(self._node(layer, opsets))
        types = _operand_types(self._layers)
        names = self._numbering.names
        for value in self._numbering.inputs:
            info = _value_info(names[value], types[value])
            body.input.append(mark_causal(info) if value in self._numbering.causal else info)
        for value in self._numbering.weights:
            body.input.append(mark_weight(_value_info(names[value], types[value])))
        for data, name in self._constants.items():
            tensor = onnx.TensorProto.FromString(data)
            tensor.name = name
            body.initializer.append(tensor)
        exposed = set(self._numbering.outputs)
        for layer in self._layers:
            for value, kind in zip(layer.outputs, layer.output_types, strict=True):
                if value and kind is not None:
                    target = body.output if value in exposed else body.value_info
                    target.append(_value_info(names[value], kind))
        return model

    def _opsets(self) -> dict[str, int]:
        """Return the version of each domain for all nodes."""
        opsets: dict[str, int] = {}
        for layer in self._layers:
            for domain, version in layer.canonical_opsets:
                opsets[domain] = max(version, opsets.get(domain, 1))
        valid = common_opsets(layer.valid_opsets for layer in self._layers)
        # Every file imports ONNX's own domain, because runtimes expect it.
        opsets[""] = CANONICAL_OPSET if valid is None else min(opsets[""], valid[1] - 1)
        return opsets

    def _node(self, layer: Layer, opsets: Mapping[str, int]) -> onnx.NodeProto:
        """Return a layer's node under canonical names, without attributes that the opset does not know."""
        node = onnx.NodeProto(op_type=layer.op_type, domain=layer.domain)
        if layer.canonical is not None:
            node.op_type = layer.canonical.op_type
            schema = find_schema(layer.domain, layer.canonical.op_type, opsets.get(layer.domain, 1))
            node.attribute.extend(
                attribute
                for attribute in layer.canonical.attribute
                if schema is None or attribute.name in schema.kinds or layer.domain
            )
        else:
            node.attribute.extend(map(onnx.AttributeProto.FromString, nameless_attributes(layer.node, {})))
        for attribute in node.attribute:
            for tensor in (*([attribute.t] if attribute.HasField("t") else ()), *attribute.tensors):
                tensor.ClearField("name")  # no part of the key
                tensor.ClearField("doc_string")
        node.input.extend(self._operand(operand) for operand in layer.operands)
        while node.input and not node.input[-1]:
            node.input.pop()
        node.output.extend(self._numbering.names[value] if value else "" for value in layer.outputs)
        return node

    def _operand(self, operand: Operand) -> str:
        """Return the name of an input in the brick; constants of equal value share one initializer."""
        if operand.role is Role.ABSENT:
            return ""
        if operand.data is not None:
            return self._constants.setdefault(operand.data, f"c{len(self._constants)}")
        return self._numbering.names[operand.value]


def _value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, element_number(kind.dtype), kind.shape)


# What a brick carries of its model beyond operators and shapes.


@dataclass(frozen=True, slots=True)
class Carried:
    """Content of a model that its bricks carry.

    Attributes:
        values: Elements of small constants that do not decide a shape, and of lists in attributes of other domains
            than ONNX's own, such as coefficients; they are part of a brick's key.
        texts: Texts in attributes, sorted: of other domains than ONNX's own, and of operators on texts.
    """

    values: int
    texts: tuple[str, ...]


def carried_by(bricks: Iterable[Brick]) -> Carried:
    """Return what bricks carry of their models beyond operators and shapes."""
    values, texts = 0, set[str]()
    for brick in bricks:
        for graph in all_graphs(onnx.load_model_from_string(brick.model).graph):
            deciding = {
                name
                for node in graph.node
                for slot, name in enumerate(node.input)
                if is_deciding(plain_domain(node.domain), node.op_type, slot)
            }
            for tensor in graph.initializer:
                if tensor.data_type == onnx.TensorProto.STRING:
                    texts.update(text.decode(errors="replace") for text in tensor.string_data)
                elif tensor.name not in deciding:
                    values += count_elements(tensor.dims)
            for node in graph.node:
                domain = plain_domain(node.domain)
                # In ONNX's own domain other texts are names of modes.
                if domain or operator_of(node).kind is Kind.TEXT or node.op_type == "Constant":
                    texts.update(_texts(node))
                if domain and not domain.startswith((MICROSOFT, _ONNX_ML)):
                    texts.add(domain)
                values += _listed(node)
    return Carried(values, tuple(sorted(texts)))


_ONNX_ML = "ai.onnx.ml"


def _listed(node: onnx.NodeProto) -> int:
    """Return how many numbers the lists and tensors in an operator's attributes hold.

    Integers of operators that the runtime defines are sizes, as those of ONNX's own, whose tensors are constants too.
    """
    domain = plain_domain(node.domain)
    has_sizes = not domain or domain.startswith(MICROSOFT)
    return sum(
        len(attribute.floats)
        + (0 if has_sizes else len(attribute.ints))
        + sum(
            count_elements(tensor.dims) for tensor in (attribute.t, *attribute.tensors) if tensor.data_type and domain
        )
        for attribute in node.attribute
    )


def _texts(node: onnx.NodeProto) -> Iterator[str]:
    for attribute in node.attribute:
        for text in (attribute.s, *attribute.strings):
            if text:
                yield text.decode(errors="replace")


# Types of a brick's inputs and outputs as text, for tables.


@dataclass(frozen=True, slots=True)
class BrickTypes:
    """Types and shapes of a brick, as ``float[1,64,56,56]``, joined by blanks.

    Attributes:
        inputs: Types of activations.
        weights: Types of weights.
        outputs: Types of exposed values.
        strides: Strides of its operators, as ``2x2``; empty without strides.
        kernel: Kernels of its convolutions and poolings, as ``3x3``; empty without these.
    """

    inputs: str
    weights: str
    outputs: str
    strides: str
    kernel: str = ""


def signature_of(brick: Brick) -> BrickTypes:
    """Read the types from a brick's file."""
    graph = onnx.load_model_from_string(brick.model).graph
    types = {value.name: _type(value) for value in (*graph.input, *graph.value_info)}
    spatial = [_spatial(node, types.get(node.input[1]) if len(node.input) > 1 else None) for node in graph.node]
    return BrickTypes(
        inputs=_joined(types[value.name] for value in graph.input if not is_weight(value)),
        weights=_joined(types[value.name] for value in graph.input if is_weight(value)),
        outputs=_joined(map(_type, graph.output)),
        strides=_sizes(strides for _, strides in spatial),
        kernel=_sizes(kernel for kernel, _ in spatial),
    )


def signature_in(graph: ModelGraph, part: LayerSequence) -> BrickTypes:
    """Return the types of a sequence; equal to the brick's, except for constants that are not weights."""
    layers = [graph.layers[index] for index in part.layers]
    spatial = [_spatial(layer.node, layer.operands[1].type if len(layer.operands) > 1 else None) for layer in layers]
    return BrickTypes(
        inputs=_joined(map(graph.types.get, part.inputs)),
        weights=_joined(map(graph.types.get, part.weights)),
        outputs=_joined(map(graph.types.get, part.outputs)),
        strides=_sizes(strides for _, strides in spatial),
        kernel=_sizes(kernel for kernel, _ in spatial),
    )


def _spatial(node: onnx.NodeProto, weight: TensorType | None) -> tuple[Sequence[int], Sequence[int]]:
    """Return kernel and strides of an operator, or empty ones."""
    attributes = {
        attribute.name: attribute.ints for attribute in node.attribute if attribute.name in {"kernel_shape", "strides"}
    }
    kernel: Sequence[int] = attributes.get("kernel_shape", ())
    if not kernel and "Conv" in node.op_type and weight is not None:
        kernel = weight.shape[2:]
    return kernel, attributes.get("strides") or (1,) * len(kernel)


def _sizes(several: Iterable[Sequence[int]]) -> str:
    return " ".join("x".join(map(str, sizes)) for sizes in several if sizes)


def _joined(types: Iterable[TensorType | None]) -> str:
    return " ".join(f"{kind.dtype}[{','.join(map(str, kind.shape))}]" for kind in types if kind is not None)


def _type(value: onnx.ValueInfoProto) -> TensorType:
    tensor = value.type.tensor_type
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    return TensorType(name, declared_shape(value.type))
