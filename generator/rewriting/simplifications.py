"""Work that can be left out: constants, repetitions, expansions, one-hot products, powers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import helper

from ...bricks.layer import DEQUANTIZE, QUANTIZE, RANDOM, Layer, LayerState, Role
from ...errors import ModelError
from ...models.subgraphs import may_have_bodies, reads
from .pattern import Array, Match, ModelDraft, View

# Constants that are computed at every inference: what reads nothing but constants, and is read by what does not.


_OF_SHAPES = frozenset({"Constant", "Shape", "Size"})
"""Operators whose results are no arithmetic."""

_EVALUATED = 21
"""Opset of which the reference evaluator knows the operators: it has no DequantizeLinear before 19."""


def find_constants(view: View) -> list[Match]:
    """Every value that is made of constants, and that something else reads."""
    found = []
    for layer in view.graph.layers:
        if not view.is_constant(layer) or len([name for name in layer.outputs if name]) != 1:
            continue
        made = layer.outputs[0]
        wanted = view.is_output(made) or not all(view.is_constant(reader) for reader in view.readers(made))
        before = _made_of(view, layer) if wanted else {}
        if before and not any(_hard(view, input_layer) for input_layer in before.values()):
            found.append(view.match(before, made, ()))
    return found


def _made_of(view: View, layer: Layer) -> dict[int, Layer]:
    """Return a layer and all layers that it is computed from, by index."""
    found = {layer.index: layer}
    waiting = [layer]
    while waiting:
        for name in reads(waiting.pop().node):
            index = view.graph.producer(name)
            if index is not None and index not in found:
                found[index] = view.graph.layers[index]
                waiting.append(found[index])
    return found


def _hard(view: View, layer: Layer) -> bool:
    """Whether what a layer makes is not to be had of constants alone, by ONNX's own definition."""
    drawn = any(name in view.graph.inputs for name in reads(layer.node))
    return drawn or bool(layer.domain) or layer.op_type in _OF_SHAPES or may_have_bodies(layer.node)


def apply_constants(draft: ModelDraft, view: View, match: Match) -> None:
    """Store the value, as ONNX's reference evaluator computes it.

    Raises:
        ModelError: The evaluator cannot compute it, or what it is made of is beyond the file.
    """
    from onnx import version_converter
    from onnx.reference import ReferenceEvaluator

    nodes = [view.graph.layers[index].node for index in match.layers]
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in reads(node) if name not in made)
    held = [tensor for name in read if (tensor := draft.initializer(name)) is not None]
    if len(held) < len(read) or any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in held):
        raise ModelError(f"what '{match.value}' is made of is not in the file itself")
    graph = helper.make_graph(nodes, "constants", [], [onnx.ValueInfoProto(name=match.value)], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", draft.opset)])
    try:
        if draft.opset < _EVALUATED:
            model = version_converter.convert_version(model, _EVALUATED)
        (value,) = ReferenceEvaluator(model).run([match.value], {})
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"'{match.value}' cannot be computed: {error}") from error
    stored = draft.constant(np.ascontiguousarray(value), "stored")
    draft.redefine(match.value, [draft.node("Identity", [stored], match.value)])


# Work that is done twice: layers that compute the same of the same (common subexpressions).
#
# Numbered by value (Alpern, Wegman and Zadeck 1988, "Detecting equality of variables in programs"): two layers are
# one where operator, attributes and the numbers of what they read agree. Small constants agree by their values; large
# ones by their names, or by what they hold, where that is known.


_RANDOM = RANDOM | {"Dropout"}


def find_duplicates(view: View) -> list[Match]:
    """Every layer that repeats an earlier one; large constants that are not known differ from all others."""
    wanted = _candidates(view)
    held: dict[str, str] = {}

    def spelt(layer: Layer, slot: int) -> str:
        name = layer.operands[slot].value
        if name in wanted and name not in held:
            array = view.content(layer, slot)
            held[name] = name if array is None else f"{array.dtype}{array.shape}{_digest(array.tobytes())}"
        return held.get(name, name)

    return [
        view.match([layer.index], mine, [theirs], twin=theirs)
        for layer, original in _repeated(view, spelt)
        for mine, theirs in zip(layer.outputs, original.outputs, strict=True)
        if mine
    ]


def _candidates(view: View) -> set[str]:
    """Large constants that are worth reading: of layers that were one if those of one type held the same."""
    return {
        operand.value
        for pair in _repeated(view, lambda layer, slot: str(layer.operands[slot].type))
        for layer in pair
        for operand in layer.operands
        if operand.role is Role.WEIGHT
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _repeated(view: View, spelt: Callable[[Layer, int], str]) -> Iterator[tuple[Layer, Layer]]:
    """Layers that repeat another one, with that; large constants are distinguished by how they are spelt."""
    numbers: dict[str, str] = {}
    first: dict[tuple[object, ...], Layer] = {}
    for layer in view.graph.layers:
        if layer.state is not LayerState.LIVE or may_have_bodies(layer.node) or layer.op_type in _RANDOM:
            continue
        reads = []
        for slot, operand in enumerate(layer.operands):
            if operand.role is Role.CONSTANT and operand.data is not None:
                reads.append(_digest(operand.data))
            elif operand.role is Role.WEIGHT:
                reads.append(spelt(layer, slot))
            else:
                reads.append(numbers.get(operand.value, operand.value))
        attributes = tuple(sorted(attribute.SerializeToString() for attribute in layer.node.attribute))
        same = (layer.domain, layer.op_type, attributes, tuple(reads), tuple(map(bool, layer.outputs)))
        original = first.setdefault(same, layer)
        if original is not layer:
            numbers |= {
                mine: numbers.get(theirs, theirs)
                for mine, theirs in zip(layer.outputs, original.outputs, strict=True)
                if mine
            }
            yield layer, original


def apply_duplicates(draft: ModelDraft, _view: View, match: Match) -> None:
    """Read what is there already."""
    draft.redefine(match.value, [draft.node("Identity", [match.twin], match.value)])


# Values that are repeated along an axis for operators that would repeat them by themselves, by broadcasting.


_BROADCASTING = frozenset(
    {"Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Or",
     "Pow", "Sub", "Sum", "Where", "Xor"}
)  # fmt: skip


def find_expansions(view: View) -> list[Match]:
    """Every Expand whose readers all broadcast, and come to the same shape without it."""
    found = []
    for layer in view.live("Expand"):
        source, value = layer.node.input[0], layer.outputs[0]
        readers = view.readers(value)
        if (
            not view.is_output(value)
            and readers
            and all(_same_without(view, reader, value, source) for reader in readers)
        ):
            found.append(view.match([layer.index], value, [source]))
    return found


def _same_without(view: View, reader: Layer, value: str, source: str) -> bool:
    """Whether a reader makes the same shape of what was not repeated."""
    if reader.op_type not in _BROADCASTING or reader.domain:
        return False
    shapes = [view.shape(source if name == value else name) for name in reader.node.input if name]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return False
    return np.broadcast_shapes(*known) == view.shape(reader.outputs[0])


def apply_expansions(draft: ModelDraft, _view: View, match: Match) -> None:
    """Hand on what is not repeated."""
    draft.redefine(match.value, [draft.node("Identity", list(match.reads), match.value)])
    stale = [info for info in draft.model.graph.value_info if info.name == match.value]
    for info in stale:
        draft.model.graph.value_info.remove(info)  # its shape is another one now


# Signed quantised values as unsigned ones: the zero point moves by 128, and every number stays what it was.
#
# On x86, ONNX Runtime has its kernels for unsigned bytes. It turns a signed value by itself where that is converted
# back once; where several operators read it, or a constant stands beside it, all of them are computed in floating
# point.


_SHIFT = 128
_ZERO_POINT = 2
_CONSTANT = "constant"

_ALIKE = frozenset({"Add", "Concat", "Mul", "Where"})
"""Operators whose inputs must be of one type; products take signed weights beside unsigned data."""


def find_unsigned(view: View) -> list[Match]:
    """Every signed value between conversions, and every signed constant that is read beside such values.

    Only those whose zero points are known: one that is computed, or left out, stays as it is.
    """
    found = []
    for layer in view.live(QUANTIZE):
        value = layer.outputs[0]
        readers = view.readers(value)
        if view.dtype(value) != "int8" or view.is_output(value) or not readers:
            continue
        if all(reader.op_type == DEQUANTIZE and _is_known(view, reader) for reader in readers) and _is_known(
            view, layer
        ):
            found.append(view.match({layer.index, *(reader.index for reader in readers)}, value, ()))
    constants = (layer for layer in view.graph.layers if layer.op_type == DEQUANTIZE and _is_beside(view, layer))
    return [*found, *(view.match({layer.index}, layer.outputs[0], (), form=_CONSTANT) for layer in constants)]


def _is_beside(view: View, layer: Layer) -> bool:
    constant, readers = view.weight(layer, 0), view.readers(layer.outputs[0])
    if not _is_known(view, layer):
        return False
    signed = constant is not None and constant.type is not None and constant.type.dtype == "int8"
    return signed and bool(readers) and all(reader.op_type in _ALIKE for reader in readers)


def _is_known(view: View, layer: Layer) -> bool:
    return view.array(layer, _ZERO_POINT) is not None


def apply_unsigned(draft: ModelDraft, view: View, match: Match) -> None:
    """Move the zero points, each by itself since they may differ, and the numbers of a constant.

    Raises:
        ModelError: A zero point or a constant is not known.
    """
    layers = [view.graph.layers[index] for index in match.layers]
    zeros = [found for layer in layers if (found := view.array(layer, _ZERO_POINT)) is not None]
    if len(zeros) < len(layers):
        raise ModelError(f"a zero point of '{match.value}' is not known")
    for layer, zero in zip(layers, zeros, strict=True):
        node = draft.maker(layer.outputs[0])
        node.input[_ZERO_POINT] = draft.constant(_unsigned(zero), "unsigned_zero")
        if match.form == _CONSTANT:
            held = view.content(layer, 0)
            if held is None:
                raise ModelError(f"what '{match.value}' is made of is not known")
            node.input[0] = draft.constant(_unsigned(held), "unsigned")
    draft.forget_type(match.value)


def _unsigned(signed: Array) -> Array:
    return np.asarray((signed.astype(np.int16) + _SHIFT).astype(np.uint8))


# A product of a matrix with rows that are one-hot: it picks rows of the matrix, and Gather does so without a sum.
#
# Spellings: ``OneHot(indices) @ W``, ``Cast(indices == 0..n-1) @ W``, and constant rows: ``P @ x``, ``x @ P``, or a
# convolution of 1 x 1 with P, where each row (column) of P has a single one among zeros.


_AXES = 2
_LARGEST = 1 << 22
"""Most elements of a matrix that is looked into."""


def find_one_hot(view: View) -> list[Match]:
    """Every such product of a model."""
    products = view.live("MatMul", "Gemm", "Conv")
    return [match for product in products if (match := _of(view, product) or _picks(view, product)) is not None]


def _picks(view: View, product: Layer) -> Match | None:
    """A product with constant one-hot rows, and which element each of them picks."""
    if product.op_type == "Conv":
        filters = _filters(view, product)
        found = _picked(filters) if filters is not None else None
        return _pick(view, product, 0, 1, found)
    if not _plain(view, product):
        return None
    left, right = _matrix(view, product, 0), _matrix(view, product, 1)
    rank = len(view.shape(product.outputs[0]) or ())
    if left is not None:
        return _pick(view, product, 1, rank - 2, _picked(left))
    return _pick(view, product, 0, rank - 1, None if right is None else _picked(right.T))


def _pick(view: View, product: Layer, slot: int, axis: int, picked: list[int] | None) -> Match | None:
    if picked is None:
        return None
    numbers = {str(place): float(pixel) for place, pixel in enumerate(picked)}
    source = [product.node.input[slot]]
    return view.match([product.index], product.outputs[0], source, form=f"picks {axis}", numbers=numbers)


def _matrix(view: View, product: Layer, slot: int) -> Array | None:
    """A constant matrix by which something of its rank or more is multiplied."""
    operand, other = view.weight(product, slot), view.shape(product.node.input[1 - slot])
    if operand is None or operand.type is None or len(operand.type.shape) != _AXES or other is None:
        return None
    if len(other) < _AXES or not 1 < operand.type.elements <= _LARGEST:
        return None
    return view.content(product, slot)


def _filters(view: View, layer: Layer) -> Array | None:
    """The filters of a convolution of single pixels without a bias, as a matrix."""
    operand = view.weight(layer, 1)
    shapes = view.shape(layer.node.input[0]), view.shape(layer.outputs[0])
    if operand is None or operand.type is None or None in shapes or len(layer.operands) > 2:
        return None
    shape = operand.type.shape
    pixels = shapes[0][2:] == shapes[1][2:] and all(size == 1 for size in shape[2:])  # type: ignore[index]
    if not pixels or view.attribute(layer, "group") not in {None, 1} or not 1 < operand.type.elements <= _LARGEST:
        return None
    filters = view.content(layer, 1)
    return None if filters is None else filters.reshape(shape[0], -1)


def _picked(matrix: Array) -> list[int] | None:
    """Where each row has its one; None where a row is not one-hot."""
    if np.count_nonzero(matrix[0]) != 1 or not np.array_equal(np.count_nonzero(matrix, axis=1), np.ones(len(matrix))):
        return None
    places = matrix.argmax(axis=1)
    return [int(pixel) for pixel in places] if bool((matrix[np.arange(len(matrix)), places] == 1).all()) else None


def _of(view: View, product: Layer) -> Match | None:
    matrix = view.weight(product, 1)
    if (
        product.op_type == "Conv"
        or matrix is None
        or matrix.type is None
        or len(matrix.type.shape) != 2
        or not _plain(view, product)
    ):
        return None
    layers = {product.index}
    rows = product.node.input[0]
    while (passed := view.maker(rows, "Cast", "Identity")) is not None:
        layers.add(passed.index)
        rows = passed.node.input[0]
    made = view.maker(rows, "OneHot", "Equal")
    if made is None:
        return None
    layers.add(made.index)
    indices = _one_hot(view, made, matrix.type.shape[0]) if made.op_type == "OneHot" else _equal(view, made)
    if indices is None or view.dtype(indices) not in {"int32", "int64"}:
        return None
    return view.match(layers, product.outputs[0], [indices, matrix.value], form=made.op_type)


def _plain(view: View, product: Layer) -> bool:
    """Whether a Gemm is a product and no more."""
    if product.op_type == "MatMul":
        return True
    alone = len([name for name in product.node.input if name]) == 2
    scaled = view.attribute(product, "alpha") not in {None, 1.0}
    return alone and not scaled and not view.attribute(product, "transA") and not view.attribute(product, "transB")


def _one_hot(view: View, layer: Layer, depth: int) -> str | None:
    values, axis = view.array(layer, 2), view.attribute(layer, "axis")
    if view.number(layer, 1) != depth or values is None or values.tolist() != [0, 1] or axis not in {None, -1}:
        return None
    return str(layer.node.input[0])


def _equal(view: View, layer: Layer) -> str | None:
    """The indices that are compared with 0, 1, 2, ... along the last axis."""
    for slot in (0, 1):
        found = view.content(layer, slot)
        counted = found is not None and found.ndim >= 1 and np.array_equal(found.ravel(), np.arange(found.shape[-1]))
        shape = view.shape(layer.node.input[1 - slot])
        if counted and shape and shape[-1] == 1 and found is not None and found.ndim <= len(shape):
            return str(layer.node.input[1 - slot])
    return None


def apply_one_hot(draft: ModelDraft, view: View, match: Match) -> None:
    """Pick the rows."""
    if match.form.startswith("picks"):
        picked = np.array([match.numbers[str(place)] for place in range(len(match.numbers))], dtype=np.int64)
        reads = [*match.reads, draft.constant(picked, "picked")]
        draft.redefine(match.value, [draft.node("Gather", reads, match.value, axis=int(match.form.split()[1]))])
        return
    indices, matrix = match.reads
    nodes = []
    if match.form == "Equal":
        shape = view.shape(indices)
        assert shape is not None  # noqa: S101  # the match needed it
        target = draft.constant(np.array(shape[:-1], dtype=np.int64), "rows")
        nodes.append(draft.node("Reshape", [indices, target]))
        indices = nodes[-1].output[0]
    nodes.append(draft.node("Gather", [matrix, indices], match.value, axis=0))
    draft.redefine(match.value, nodes)


# Local response normalisation by a convolution and square roots in place of sums and powers element by element.
#
# y = x / d^beta with d = k + alpha / size sum, where the sum is that of x^2 over ``size`` neighbouring channels
# (Krizhevsky, Sutskever and Hinton 2012, "ImageNet classification with deep convolutional neural networks", as ONNX has
# it). d is a convolution of 1 x 1 whose weights are alpha / size along a band and 0 elsewhere: that multiplies by many
# zeros, at the rate of a matrix product. For beta = 3/4 the power is sqrt(d) sqrt(sqrt(d)), for 1/2 sqrt(d).


_ROOTS = (0.5, 0.75)


def find_local_response(view: View) -> list[Match]:
    """Every such layer on images of float32 whose power is made of square roots."""
    found = []
    for layer in view.live("LRN"):
        shape, size = view.shape(layer.outputs[0]), view.attribute(layer, "size")
        beta = _given(view.attribute(layer, "beta"), 0.75)
        fits = shape is not None and len(shape) == 4 and size % 2 and any(np.isclose(beta, root) for root in _ROOTS)
        if not fits or view.dtype(layer.outputs[0]) != "float":
            continue
        numbers = {
            "alpha": _given(view.attribute(layer, "alpha"), 1e-4),
            "beta": beta,
            "bias": _given(view.attribute(layer, "bias"), 1.0),
            "size": float(size),
        }
        found.append(view.match([layer.index], layer.outputs[0], [layer.node.input[0]], numbers=numbers))
    return found


def _given(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def apply_local_response(draft: ModelDraft, view: View, match: Match) -> None:
    """Squares, their weighted sum over neighbouring channels, and square roots."""
    (source,) = match.reads
    shape = view.shape(source)
    assert shape is not None  # noqa: S101  # the match needed it
    channels, size = shape[1], int(match.numbers["size"])
    apart = np.abs(np.subtract.outer(np.arange(channels), np.arange(channels)))
    band = np.where(apart <= size // 2, match.numbers["alpha"] / size, 0.0).astype(np.float32)
    weights = draft.constant(band.reshape(channels, channels, 1, 1), "lrn_band")
    bias = draft.constant(np.full(channels, match.numbers["bias"], dtype=np.float32), "lrn_bias")
    square = draft.node("Mul", [source, source])
    divisor = draft.node("Conv", [square.output[0], weights, bias], kernel_shape=[1, 1])
    nodes = [square, divisor, draft.node("Sqrt", [divisor.output[0]])]
    root = nodes[-1].output[0]
    if np.isclose(match.numbers["beta"], 0.75):
        nodes.append(draft.node("Sqrt", [root]))
        nodes.append(draft.node("Mul", [root, nodes[-1].output[0]]))
    draft.redefine(match.value, [*nodes, draft.node("Div", [source, nodes[-1].output[0]], match.value)])
