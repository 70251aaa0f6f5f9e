"""Normalisation that is spelt out: (x - mean(x)) / sqrt(variance(x) + epsilon), then scale and shift.

Over the last axes (Ba, Kiros and Hinton 2016, "Layer Normalization"), or over rows and columns of each channel
(Ulyanov, Vedaldi and Lempitsky 2016, "Instance Normalization"); and x / sqrt(mean(x^2) + epsilon) over the last axis
(Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"). Found by what is computed (``moments``): how the
variance is written, and where scale and shift come in, do not matter. One that adds nothing to the variance stays as it
is: of equal elements it makes no number, and of nearly equal ones another than the operator that would stand for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from onnx import helper

from ...bricks.constants import element_number
from ...bricks.layer import Layer
from ...errors import ModelError
from .draft import Draft
from .moments import REDUCING, Sheet, reduced_axes
from .pattern import Array, Match, View
from .sums import keep_apart

__all__ = ["apply", "find"]

Numbers = npt.NDArray[np.float64]

_DEEPEST = 4
"""Layers at most between the value that is normalised and a sum."""
_SAME = 1e-6
_LARGEST = 0.1
"""Largest epsilon."""


def find(view: View) -> list[Match]:
    """Every normalisation of a model that is spelt out."""
    found: list[Match] = []
    taken = set[int]()
    for seed in view.live(*REDUCING):
        match = None if seed.index in taken else _around(view, seed)
        if match is not None and not taken & set(match.layers):
            found.append(match)
            taken |= set(match.layers)
    return found


def _around(view: View, seed: Layer) -> Match | None:
    """The normalisation that a sum is part of."""
    axes, shape = reduced_axes(view, seed), view.shape(seed.node.input[0])
    if not axes or shape is None:
        return None
    last, planes = axes == tuple(range(len(shape) - len(axes), len(shape))), axes == tuple(range(2, len(shape)))
    sources = [one for one in dict.fromkeys(_upstream(view, seed.node.input[0], _DEEPEST)) if view.shape(one) == shape]
    sheets = [(source, Sheet(view, source, axes)) for source in sources]
    forms = {"layer": last, "instance": planes, "root": axes == (len(shape) - 1,)}
    found = [
        match
        for form, fits in forms.items()
        for source, sheet in sheets
        if fits and (match := _normalised(sheet, source, seed, form)) is not None
    ]
    return max(found, key=lambda one: (not one.broken_by, len(one.layers)), default=None)


def _upstream(view: View, value: str, deepest: int) -> Iterator[str]:
    """A value and what it is made of in a few steps."""
    yield value
    maker = view.maker(value, "Abs", "Mul", "Pow", "Sub") if deepest else None
    if maker is not None:
        for slot, name in enumerate(maker.node.input):
            if name and view.weight(maker, slot) is None:
                yield from _upstream(view, name, deepest - 1)


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
    for epsilon in sorted((one for one in sheet.numbers if 0 < one <= _LARGEST), reverse=True):
        normal = centred / np.sqrt((centred * centred).mean(1, keepdims=True) + epsilon)
        ours, theirs = (normal.T, made.T) if form == "instance" else (normal, made)
        mean, target = ours.mean(0), theirs.mean(0)
        spread = ((ours - mean) ** 2).mean(0)
        if not spread.all():
            continue
        scale = ((ours - mean) * (theirs - target)).mean(0) / spread
        shift = target - scale * mean
        if np.abs(scale * ours + shift - theirs).max() > _SAME * max(1.0, np.abs(theirs).max()):
            continue
        factor, summand = _named(sheet, scale, 1.0), _named(sheet, shift, 0.0)
        if factor is None or summand is None or (form == "root" and summand != ("", 0.0)):
            continue
        return factor[0], summand[0], {"epsilon": epsilon, "scale": factor[1], "shift": summand[1]}
    return None


def _named(sheet: Sheet, numbers: Numbers, default: float) -> tuple[str, float] | None:
    """The constant that holds these numbers, or the one number that they all are; None where they are neither."""
    first = float(numbers[0])
    if np.allclose(numbers, first, rtol=_SAME, atol=_SAME):
        return "", default if abs(first - default) < _SAME else first
    for name, drawn in sheet.drawn.items():
        if drawn.size == numbers.size and np.allclose(numbers, drawn.ravel(), rtol=_SAME, atol=_SAME):
            return name, default
    return None


def apply(draft: Draft, view: View, match: Match) -> None:
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
