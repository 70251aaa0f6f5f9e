"""Spelt-out functions that a runtime has one operator for: attention, normalisations, activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from onnx import helper

from ...bricks.constants import element_number
from ...bricks.layer import Layer, Role
from ...errors import ModelError
from .moments import REDUCING, Sheet, reduced_axes
from .pattern import Array, Match, ModelDraft, View

# Attention that is spelt out: softmax(scale Q K^T + mask) V over several heads (Vaswani et al. 2017, section 3.2).
#
# Queries, keys and values are split into heads by a Reshape and transposed; numbers may scale either side of the
# product, or the product itself, and the mask is added. How far the transpositions are spelt out in one or more does
# not matter. What repeats keys for several queries, or masks by a choice (Where), is left alone.


_HEADS_FIRST = (0, 2, 1, 3)
_TRANSPOSED = (0, 2, 3, 1)
"""Heads first, the width of a head before the tokens: a product with it is one with the transposed keys."""

_RANK = len(_HEADS_FIRST)

_LAST_BY_DEFAULT = 13
"""Opset since which Softmax is over the last axis where it does not say."""


@dataclass(frozen=True, slots=True)
class _Split:
    """A value of (batch, tokens, hidden), split into heads.

    Attributes:
        source: The value.
        shape: Batch, tokens, heads, width of a head.
        factor: What it was multiplied by.
    """

    source: str
    shape: tuple[int, ...]
    factor: float


def find_attention(view: View) -> list[Match]:
    """Every attention of a model that is spelt out."""
    return [match for layer in view.live("Softmax") if (match := _attention_around(view, layer)) is not None]


def _attention_around(view: View, softmax: Layer) -> Match | None:
    """The attention that a Softmax is the middle of."""
    core, around = {softmax.index}, set[int]()
    scores = _scores(view, softmax.node.input[0], core) if _over_last(view, softmax) else None
    weighted = _only_reader(view, softmax.outputs[0], "MatMul")
    if scores is None or weighted is None or weighted.node.input[0] != softmax.outputs[0]:
        return None
    product, factor, mask = scores
    query = _split(view, product.node.input[0], _HEADS_FIRST, around)
    key = _split(view, product.node.input[1], _TRANSPOSED, around)
    value = _split(view, weighted.node.input[1], _HEADS_FIRST, around)
    turned = _only_reader(view, weighted.outputs[0], "Transpose")
    merged = None if turned is None else _only_reader(view, turned.outputs[0], "Reshape")
    if query is None or key is None or value is None or turned is None or merged is None:
        return None
    batch, tokens, heads, _ = query.shape
    alike = key.shape[:3] == value.shape[:3] and (key.shape[0], *key.shape[2:]) == (batch, heads, query.shape[3])
    made = (batch, tokens, heads * value.shape[3])
    if not alike or value.factor != 1.0 or _perm(view, turned) != _HEADS_FIRST or view.shape(merged.outputs[0]) != made:
        return None
    core |= {weighted.index, turned.index, merged.index}
    result = merged.outputs[0]
    if view.broken_by(core, result) or not _fits(view, mask, (batch, heads, tokens, key.shape[1])):
        return None  # what reads scores or probabilities needs them anyway
    reads = [query.source, key.source, value.source, *([mask] if mask else [])]
    numbers = {"heads": float(heads), "scale": factor * query.factor * key.factor}
    return view.match(core | around, result, reads, numbers=numbers)


def _over_last(view: View, softmax: Layer) -> bool:
    shape, axis = view.shape(softmax.outputs[0]), view.attribute(softmax, "axis")
    if axis is None:
        axis = -1 if dict(softmax.opsets).get("", 0) >= _LAST_BY_DEFAULT else 1
    return shape is not None and len(shape) == _RANK and axis in {-1, 3} and view.dtype(softmax.outputs[0]) == "float"


def _only_reader(view: View, value: str, operator: str) -> Layer | None:
    readers = view.readers(value)
    return readers[0] if len(readers) == 1 and readers[0].op_type == operator and not readers[0].domain else None


def _scores(view: View, value: str, layers: set[int]) -> tuple[Layer, float, str] | None:
    """The product that a value is, what scales it, and the mask that is added to it (empty for none)."""
    total = view.maker(value, "Add")
    if total is None:
        found = _scaled(view, value, layers)
        return None if found is None else (*found, "")
    for slot in (0, 1):
        members: set[int] = set()
        found = _scaled(view, total.node.input[slot], members)
        if found is not None:
            layers |= members | {total.index}
            return *found, total.node.input[1 - slot]
    return None


def _scaled(view: View, value: str, layers: set[int]) -> tuple[Layer, float] | None:
    """The product that a value is but for a factor, and that."""
    factor = 1.0
    while (scaling := _factor(view, value)) is not None:
        layer, value, scale = scaling
        layers.add(layer.index)
        factor *= scale
    product = view.maker(value, "MatMul")
    if product is None:
        return None
    layers.add(product.index)
    return product, factor


def _factor(view: View, value: str) -> tuple[Layer, str, float] | None:
    """A layer that multiplies or divides by one number: the layer, what it reads, and what by."""
    layer = view.maker(value, "Mul", "Div")
    if layer is None:
        return None
    for slot in (0, 1) if layer.op_type == "Mul" else (1,):
        number = view.number(layer, slot)
        if number:
            return layer, layer.node.input[1 - slot], number if layer.op_type == "Mul" else 1 / number
    return None


def _split(view: View, value: str, wanted: tuple[int, ...], layers: set[int]) -> _Split | None:
    """What was split into heads and transposed to make a value of four axes; None where it was made otherwise."""
    axes: tuple[int, ...] = (0, 1, 2, 3)
    factor = 1.0
    while True:
        scaling = _factor(view, value)
        turned = view.maker(value, "Transpose")
        if scaling is not None:
            layer, value, scale = scaling
            factor *= scale
        elif turned is not None:
            layer, value = turned, turned.node.input[0]
            perm = _perm(view, layer)
            if len(perm) != len(axes):
                return None
            axes = tuple(perm[axis] for axis in axes)
        else:
            break
        layers.add(layer.index)
    split = view.maker(value, "Reshape")
    shape = view.shape(value)
    if split is None or shape is None or len(shape) != len(axes) or axes != wanted:
        return None
    batch, tokens, heads, width = shape
    source = str(split.node.input[0])
    if view.shape(source) != (batch, tokens, heads * width):
        return None
    layers.add(split.index)
    return _Split(source, shape, factor)


def _perm(view: View, layer: Layer) -> tuple[int, ...]:
    return tuple(view.attribute(layer, "perm") or ())


def _fits(view: View, mask: str, scores: tuple[int, ...]) -> bool:
    """Whether a mask can be handed to the fused operator; none is as good."""
    if not mask:
        return True
    shape = view.shape(mask)
    if shape is None or len(shape) > len(scores) or view.dtype(mask) != "float":
        return False
    return all(length in {1, size} for length, size in zip(_padded(shape), scores, strict=True))


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (_RANK - len(shape)) + shape


def apply_attention(draft: ModelDraft, view: View, match: Match) -> None:
    """Write it as ONNX Runtime's MultiHeadAttention, which other runtimes do not know."""
    query, key, value, *masks = match.reads
    inputs, before = [query, key, value], []
    for mask in masks:
        shape, queries, keys = (view.shape(operand) for operand in (mask, query, key))
        assert shape is not None and queries is not None and keys is not None  # noqa: S101, PT018  # as ``find`` saw
        wanted = (*_padded(shape)[:2], queries[1], keys[1])
        if shape != wanted:
            before.append(draft.node("Expand", [mask, draft.constant(np.array(wanted, np.int64), "mask_shape")]))
        inputs += ["", "", before[0].output[0] if before else mask]
    heads, scale = int(match.numbers["heads"]), match.numbers["scale"]
    node = draft.node("MultiHeadAttention", inputs, match.value, domain="com.microsoft", num_heads=heads, scale=scale)
    draft.redefine(match.value, [*before, node])


# Additions before a layer normalisation, written so that ONNX Runtime does not fuse both.
#
# It fuses Add with LayerNormalization to SkipLayerNormalization, whose kernel on CPUs takes several times as long as
# the operators that it stands for. Sum of two values is the same function, and no part of the pattern.


def find_sums(view: View) -> list[Match]:
    """Every addition of two values of one shape that a layer normalisation reads."""
    found = []
    for layer in view.live("Add"):
        value = layer.outputs[0]
        normalising = view.readers(value, "LayerNormalization")
        if normalising and _adds(view, layer):
            members = {layer.index, *(reader.index for reader in normalising[:1])}
            found.append(view.match(members, value, layer.node.input))
    return found


def _adds(view: View, layer: Layer) -> bool:
    """Whether two computed values of one shape are added."""
    shapes = {view.shape(name) for name in (*layer.node.input, layer.outputs[0])}
    return (
        all(operand.role is Role.ACTIVATION for operand in layer.operands) and len(shapes) == 1 and None not in shapes
    )


def apply_sums(draft: ModelDraft, _view: View, match: Match) -> None:
    """Add by Sum."""
    draft.redefine(match.value, [draft.node("Sum", match.reads, match.value)])


def keep_apart(draft: ModelDraft, view: View, value: str) -> None:
    """The same for a value that a normalisation comes to read."""
    layer = view.maker(value, "Add")
    if layer is not None and _adds(view, layer) and draft.maker(value).op_type == "Add":
        draft.redefine(value, [draft.node("Sum", layer.node.input, value)])


# Normalisation that is spelt out: (x - mean(x)) / sqrt(variance(x) + epsilon), then scale and shift.
#
# Over the last axes (Ba, Kiros and Hinton 2016, "Layer Normalization"), or over rows and columns of each channel
# (Ulyanov, Vedaldi and Lempitsky 2016, "Instance Normalization"); and x / sqrt(mean(x^2) + epsilon) over the last
# axis (Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"). Found by what is computed (``moments``): how
# the variance is written, and where scale and shift come in, do not matter. One that adds nothing to the variance
# stays as it is: of equal elements it makes no number, and of nearly equal ones another than the operator that would
# stand for it.


Numbers = npt.NDArray[np.float64]

_NORM_DEEPEST = 4
"""Layers at most between the value that is normalised and a sum."""
_NORM_SAME = 1e-6
_LARGEST = 0.1
"""Largest epsilon."""


def find_normalisations(view: View) -> list[Match]:
    """Every normalisation of a model that is spelt out."""
    found: list[Match] = []
    taken = set[int]()
    for seed in view.live(*REDUCING):
        match = None if seed.index in taken else _normalisations_around(view, seed)
        if match is not None and not taken & set(match.layers):
            found.append(match)
            taken |= set(match.layers)
    return found


def _normalisations_around(view: View, seed: Layer) -> Match | None:
    """The normalisation that a sum is part of."""
    axes, shape = reduced_axes(view, seed), view.shape(seed.node.input[0])
    if not axes or shape is None:
        return None
    last, planes = axes == tuple(range(len(shape) - len(axes), len(shape))), axes == tuple(range(2, len(shape)))
    sources = [
        source
        for source in dict.fromkeys(_normalisations_upstream(view, seed.node.input[0], _NORM_DEEPEST))
        if view.shape(source) == shape
    ]
    sheets = [(source, Sheet(view, source, axes)) for source in sources]
    forms = {"layer": last, "instance": planes, "root": axes == (len(shape) - 1,)}
    found = [
        match
        for form, fits in forms.items()
        for source, sheet in sheets
        if fits and (match := _normalised(sheet, source, seed, form)) is not None
    ]
    return max(found, key=lambda match: (not match.broken_by, len(match.layers)), default=None)


def _normalisations_upstream(view: View, value: str, deepest: int) -> Iterator[str]:
    """A value and what it is made of in a few steps."""
    yield value
    maker = view.maker(value, "Abs", "Mul", "Pow", "Sub") if deepest else None
    if maker is not None:
        for slot, name in enumerate(maker.node.input):
            if name and view.weight(maker, slot) is None:
                yield from _normalisations_upstream(view, name, deepest - 1)


def _normalised(sheet: Sheet, source: str, seed: Layer, form: str) -> Match | None:
    """What a source is normalised to, as far as possible without a value in the midst that is read elsewhere."""
    view = sheet.view
    known = [name for name in sheet.makers if view.shape(name) == sheet.shape and sheet.values[name].shape[1] > 1]
    broken = None
    for name in sorted(known, key=lambda name: -sheet.makers[name].index):
        layers = sheet.layers(name, source)
        numbers = _fitted(sheet, source, name, form) if seed.index in layers else None
        if numbers is None:
            continue
        scale, shift, values = numbers
        values |= {"axes": len(sheet.axes)}
        match = view.match(layers, name, (source, scale, shift), form=form, numbers=values)
        if not match.broken_by:
            return match
        broken = broken or match
    return broken


def _fitted(sheet: Sheet, source: str, value: str, form: str) -> tuple[str, str, dict[str, float]] | None:
    """Scale and shift, by name where they are constants of the model, of a value that is a normalisation.

    Its epsilon is a number of the model, the largest that fits.
    """
    x, made = sheet.values[source], sheet.values[value]
    centred = x if form == "root" else x - x.mean(1, keepdims=True)
    for epsilon in sorted((number for number in sheet.numbers if 0 < number <= _LARGEST), reverse=True):
        normal = centred / np.sqrt((centred * centred).mean(1, keepdims=True) + epsilon)
        ours, theirs = (normal.T, made.T) if form == "instance" else (normal, made)
        mean, target = ours.mean(0), theirs.mean(0)
        spread = ((ours - mean) ** 2).mean(0)
        if not spread.all():
            continue
        scale = ((ours - mean) * (theirs - target)).mean(0) / spread
        shift = target - scale * mean
        if np.abs(scale * ours + shift - theirs).max() > _NORM_SAME * max(1.0, np.abs(theirs).max()):
            continue
        factor, summand = _named(sheet, scale, 1.0), _named(sheet, shift, 0.0)
        if factor is None or summand is None or (form == "root" and summand != ("", 0.0)):
            continue
        return factor[0], summand[0], {"epsilon": epsilon, "scale": factor[1], "shift": summand[1]}
    return None


def _named(sheet: Sheet, numbers: Numbers, default: float) -> tuple[str, float] | None:
    """The constant that holds these numbers, or the one number that they all are; None where they are neither."""
    first = float(numbers[0])
    if np.allclose(numbers, first, rtol=_NORM_SAME, atol=_NORM_SAME):
        return "", default if abs(first - default) < _NORM_SAME else first
    for name, drawn in sheet.drawn.items():
        if drawn.size == numbers.size and np.allclose(numbers, drawn.ravel(), rtol=_NORM_SAME, atol=_NORM_SAME):
            return name, default
    return None


def apply_normalisations(draft: ModelDraft, view: View, match: Match) -> None:
    """Write it as one operator: ONNX's LayerNormalization or InstanceNormalization, ONNX Runtime's root mean square."""
    source, scale, shift = match.reads
    shape, dtype = view.shape(source), view.dtype(source)
    assert shape is not None and dtype is not None  # noqa: S101, PT018  # the match needed both
    axes, kind = int(match.numbers["axes"]), helper.tensor_dtype_to_np_dtype(element_number(dtype))
    wanted = shape[1:2] if match.form == "instance" else shape[-axes:]

    def parameter(name: str, stem: str) -> str:
        if not name:
            return draft.constant(np.full(wanted, match.numbers[stem], dtype=kind), f"same_{stem}")
        found = _held(view, match, name)
        return name if found.shape == wanted else draft.constant(found.reshape(wanted), f"flat_{stem}")

    inputs = [source, parameter(scale, "scale")]
    epsilon = match.numbers["epsilon"]
    if match.form == "instance":
        inputs.append(parameter(shift, "shift"))
        node = draft.node("InstanceNormalization", inputs, match.value, epsilon=epsilon)
    else:
        if shift or match.numbers["shift"]:
            inputs.append(parameter(shift, "shift"))
        operator = "LayerNormalization" if match.form == "layer" else "SimplifiedLayerNormalization"
        node = draft.node(operator, inputs, match.value, axis=-axes, epsilon=epsilon)
    draft.redefine(match.value, [node])
    keep_apart(draft, view, source)


def _held(view: View, match: Match, name: str) -> Array:
    for index in match.layers:
        layer = view.graph.layers[index]
        if name in layer.node.input and (found := view.content(layer, list(layer.node.input).index(name))) is not None:
            return found
    raise ModelError(f"what '{name}' holds cannot be read", remedy="give the model as a file")


# Activation functions that are spelt out operator by operator, found by the function that they compute.
#
# The layers between a value and what is made of it alone are evaluated on a grid of numbers, and compared with the
# functions below: the order of factors, and whether a constant divides or multiplies, do not matter.
#
# * gelu: x/2 (1 + erf(x/sqrt 2)) (Hendrycks and Gimpel 2016, "Gaussian Error Linear Units")
# * gelu_tanh: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), its approximation there
# * quick_gelu: x sigmoid(1.702 x), likewise


_GRID = np.linspace(-6.0, 6.0, 121)
_SAME = 2e-3
"""Largest difference of two functions that count as one: constants are often written with three digits."""

_DEEPEST = 9
"""Most layers between the value and what is made of it."""

_SEEDS = ("Erf", "Tanh", "Sigmoid")


def _erf(values: Array) -> Array:
    from scipy.special import erf

    return np.asarray(erf(values))


FORMS: Mapping[str, Callable[[Array], Array]] = {
    "gelu": lambda x: x / 2 * (1 + _erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
}

_UNARY: Mapping[str, Callable[[Array], Array]] = {
    "Erf": _erf,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Identity": lambda x: x,
}

_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": lambda x, y: np.power(x, y) if float(y).is_integer() else np.full_like(x, np.nan),
}


def find_activations(view: View) -> list[Match]:
    """Every activation function of a model that is spelt out."""
    found: dict[int, Match] = {}
    for seed in view.live(*_SEEDS):
        match = _activations_around(view, seed)
        if match is not None and not any(set(match.layers) & set(other.layers) for other in found.values()):
            found[seed.index] = match
    return list(found.values())


def _activations_around(view: View, seed: Layer) -> Match | None:
    """The function that a layer is the core of."""
    sources = _activations_upstream(view, seed.outputs[0])
    for made in _downstream(view, seed.outputs[0]):
        for source in sources:
            if view.shape(source) != view.shape(made):
                continue
            grid = _Grid(view, source)
            with np.errstate(all="ignore"):
                values = grid.value(made)
            if values is None or seed.index not in grid.layers:
                continue
            apart = {form: float(np.abs(values - function(_GRID)).max()) for form, function in FORMS.items()}
            form = min(apart, key=apart.__getitem__)  # the first two are 5e-4 apart
            if apart[form] <= _SAME:
                return view.match(grid.layers, made, [source], form=form)
    return None


def _activations_upstream(view: View, value: str) -> list[str]:
    """Return the values that a value is made of within ``_DEEPEST`` layers, the nearest first."""

    def makes(name: str) -> Iterator[str]:
        maker = view.maker(name, *_UNARY, *_BINARY)
        for slot, read in enumerate(maker.node.input if maker is not None else ()):
            if maker is not None and read and view.number(maker, slot) is None:
                yield read

    return _within_reach(value, makes)[1:]


def _downstream(view: View, value: str) -> list[str]:
    """Return the values that are made of a value within ``_DEEPEST`` layers, the nearest first."""
    return _within_reach(value, lambda name: (reader.outputs[0] for reader in view.readers(name, *_UNARY, *_BINARY)))[
        1:
    ]


def _within_reach(value: str, following: Callable[[str], Iterable[str]]) -> list[str]:
    """Return a value and those that follow it within ``_DEEPEST`` steps, each once."""
    found = {value: None}
    edge = [value]
    for _ in range(_DEEPEST):
        edge = [name for reached in edge for name in following(reached) if name not in found]
        found.update(dict.fromkeys(edge))
        edge = list(dict.fromkeys(edge))
    return list(found)


@dataclass(slots=True, eq=False)
class _Grid:
    """Values over the grid that are made of one source and of constants alone.

    Attributes:
        view: The model.
        source: The value that is the grid itself.
        layers: Layers on the way.
        known: Values by name and the layers that they may still be away from the source; None where there is none.
    """

    view: View
    source: str
    layers: set[int] = field(default_factory=set)
    known: dict[tuple[str, int], Array | None] = field(default_factory=dict)

    def value(self, name: str, deepest: int = _DEEPEST) -> Array | None:
        """Return a value over the grid; None where it is made of something else."""
        if name == self.source:
            return _GRID
        if (name, deepest) not in self.known:
            self.known[name, deepest] = self._made(name, deepest)
        return self.known[name, deepest]

    def _made(self, name: str, deepest: int) -> Array | None:
        maker = self.view.maker(name, *_UNARY, *_BINARY)
        if maker is None or not deepest:
            return None
        self.layers.add(maker.index)
        values: list[Array] = []
        for slot, read in enumerate(maker.node.input):
            number = self.view.number(maker, slot)
            operand = np.float64(number) if number is not None else self.value(read, deepest - 1)
            if operand is None:
                return None
            values.append(np.asarray(operand))
        if maker.op_type in _UNARY:
            return _UNARY[maker.op_type](values[0])
        if maker.op_type == "Pow" and values[1].ndim:
            return None
        return np.broadcast_to(_BINARY[maker.op_type](values[0], values[1]), _GRID.shape)


def apply_activations(draft: ModelDraft, _view: View, match: Match) -> None:
    """Write the function as one operator: ONNX's own from opset 20 on, ONNX Runtime's before."""
    (source,) = match.reads
    if match.form == "quick_gelu":
        node = draft.node("QuickGelu", [source], match.value, domain="com.microsoft", alpha=1.702)
    elif draft.opset >= 20:
        approximate = "tanh" if match.form == "gelu_tanh" else "none"
        node = draft.node("Gelu", [source], match.value, approximate=approximate)
    else:
        operator = "FastGelu" if match.form == "gelu_tanh" else "Gelu"
        node = draft.node(operator, [source], match.value, domain="com.microsoft")
    draft.redefine(match.value, [node])
