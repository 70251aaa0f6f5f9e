"""Activation functions that are spelt out operator by operator, found by the function that they compute.

The layers between a value and what is made of it alone are evaluated on a grid of numbers, and compared with the
functions below: the order of factors, and whether a constant divides or multiplies, do not matter.

* gelu: x/2 (1 + erf(x/sqrt 2)) (Hendrycks and Gimpel 2016, "Gaussian Error Linear Units")
* gelu_tanh: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), its approximation there
* quick_gelu: x sigmoid(1.702 x), likewise
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...bricks.layer import Layer
from .draft import Draft
from .pattern import Match, View

__all__ = ["FORMS", "apply", "find"]

Array = npt.NDArray[Any]

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


def find(view: View) -> list[Match]:
    """Every activation function of a model that is spelt out."""
    found: dict[int, Match] = {}
    for seed in view.live(*_SEEDS):
        match = _around(view, seed)
        if match is not None and not any(set(match.layers) & set(other.layers) for other in found.values()):
            found[seed.index] = match
    return list(found.values())


def _around(view: View, seed: Layer) -> Match | None:
    """The function that a layer is the core of."""
    sources = list(dict.fromkeys(_upstream(view, seed.outputs[0], _DEEPEST)))
    for made in dict.fromkeys(_downstream(view, seed.outputs[0], _DEEPEST)):
        if made == seed.outputs[0]:
            continue
        for source in sources:
            if view.shape(source) != view.shape(made):
                continue
            layers: set[int] = set()
            with np.errstate(all="ignore"):
                values = _evaluate(view, made, source, layers)
            if values is None or seed.index not in layers:
                continue
            apart = {form: float(np.abs(values - function(_GRID)).max()) for form, function in FORMS.items()}
            form = min(apart, key=apart.__getitem__)  # the first two are 5e-4 apart
            if apart[form] <= _SAME:
                return view.match(layers, made, [source], form=form)
    return None


def _upstream(view: View, value: str, deepest: int) -> Iterator[str]:
    maker = view.maker(value, *_UNARY, *_BINARY)
    if maker is None or not deepest:
        return
    for slot, name in enumerate(maker.node.input):
        if name and view.number(maker, slot) is None:
            yield name
            yield from _upstream(view, name, deepest - 1)


def _downstream(view: View, value: str, deepest: int) -> Iterator[str]:
    yield value
    if deepest:
        for reader in view.readers(value, *_UNARY, *_BINARY):
            yield from _downstream(view, reader.outputs[0], deepest - 1)


def _evaluate(view: View, value: str, source: str, layers: set[int], deepest: int = _DEEPEST) -> Array | None:
    """A value over the grid, where it is made of the source and of constants alone; notes the layers on the way."""
    if value == source:
        return _GRID
    maker = view.maker(value, *_UNARY, *_BINARY)
    if maker is None or not deepest:
        return None
    layers.add(maker.index)
    values: list[Array] = []
    for slot, name in enumerate(maker.node.input):
        number = view.number(maker, slot)
        one = np.float64(number) if number is not None else _evaluate(view, name, source, layers, deepest - 1)
        if one is None:
            return None
        values.append(np.asarray(one))
    if maker.op_type in _UNARY:
        return _UNARY[maker.op_type](values[0])
    if maker.op_type == "Pow" and values[1].ndim:
        return None
    return np.broadcast_to(_BINARY[maker.op_type](values[0], values[1]), _GRID.shape)


def apply(draft: Draft, _view: View, match: Match) -> None:
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
