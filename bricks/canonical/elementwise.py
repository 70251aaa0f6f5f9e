"""Rules of elementwise operators: broadcasting before opset 7, bounds, casts, activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from .draft import Draft, OpsetBound, resolve_axis
from .registry import rule

_FLOAT8 = ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0")


@rule("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
def binary(draft: Draft) -> None:
    """Before opset 7 the second operand matched a run of the first's axes; numpy's rule is the case of the last."""
    legacy = draft.pop("broadcast", 0)
    axis = draft.pop("axis")
    if draft.since >= 7 or not legacy or axis is None:
        return
    left, right = len(draft.shape(0)), len(draft.shape(1))
    if resolve_axis(axis, left) + right != left:
        raise OpsetBound("broadcast along leading axes")


@rule("PRelu")
def prelu(draft: Draft) -> None:
    """Before opset 7 the slope ran along the channels, since then numpy's rule holds."""
    if draft.since >= 7:
        return
    slope = draft.type(1)
    if slope.elements != 1 and len(draft.shape(0)) != 2:
        raise OpsetBound("slope along the channels")


@rule("Clip")
def clip(draft: Draft) -> None:
    """Bounds are inputs; one that binds nothing is absent."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(draft.type(0).dtype.upper()))
    for slot, name in ((1, "min"), (2, "max")):
        value = draft.pop(name)
        if value is not None:
            draft.put(slot, np.asarray(value, np.float32).astype(dtype))
        bound = draft.array(slot)
        if bound is None or bound.size != 1:
            continue
        if _binds(bound.ravel()[0], largest=slot == 2):
            draft.put(slot, bound.reshape(()))
        else:
            draft.drop(slot)


def _binds(value: Any, *, largest: bool) -> bool:
    """Whether a bound lies within the range of its type."""
    if value.dtype.kind not in "fiu":  # bfloat16 and the like: numpy knows no limits
        return True
    limits: Any = np.finfo(value.dtype) if value.dtype.kind == "f" else np.iinfo(value.dtype)
    return bool(value < limits.max) if largest else bool(value > limits.min)


@rule("Cast")
def cast(draft: Draft) -> None:
    """The target is a number; saturation matters to 8-bit floats only."""
    target = draft.attributes["to"]
    if isinstance(target, bytes):  # before opset 6 it was a name
        draft.attributes["to"] = onnx.TensorProto.DataType.Value(target.decode().upper())
    if draft.output().dtype not in _FLOAT8:
        draft.attributes["saturate"] = 1
        draft.pop("round_mode")


@rule("CastLike")
def cast_like(draft: Draft) -> None:
    """Saturation matters to 8-bit floats only."""
    if draft.output().dtype not in _FLOAT8:
        draft.attributes["saturate"] = 1
        draft.pop("round_mode")


@rule("Dropout")
def dropout(draft: Draft) -> None:
    """At inference Dropout is the identity: ratio and training mode go, and any seed with them."""
    draft.pop("is_test")
    draft.pop("seed")
    ratio = draft.pop("ratio")
    if draft.since < 12:
        if len(draft.outputs) > 1:
            raise OpsetBound("the mask was no boolean, or said nothing at inference")
        return
    if draft.given(2):
        training = draft.array(2)
        if training is None or training.any():
            if ratio is not None:
                raise OpsetBound("ratio given twice")
            return
    draft.drop(1)
    draft.drop(2)


@rule("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def random(draft: Draft) -> None:
    """A seed decides which numbers are drawn, not what it costs."""
    draft.pop("seed")


@rule("GlobalLpPool")
def global_lp_pool(draft: Draft) -> None:
    """The norm's order became an integer."""
    whole_order(draft)


def whole_order(draft: Draft) -> None:
    """Make the attribute ``p`` an integer, where it is one."""
    order = draft.attributes.get("p", 2)
    if order != int(order):
        raise OpsetBound(f"norm of order {order}")
    draft.attributes["p"] = int(order)


@rule("Softmax", "LogSoftmax", "Hardmax")
def softmax(draft: Draft) -> None:
    """Before opset 13 all axes from ``axis`` on were one; that is one axis where only one of them is longer than 1."""
    shape = draft.shape(0)
    if not shape:
        raise OpsetBound("a scalar has no axis")
    axis = resolve_axis(draft.attributes["axis"], len(shape))
    if draft.since < 13:
        long = [candidate for candidate in range(axis, len(shape)) if shape[candidate] != 1]
        if len(long) > 1:
            raise OpsetBound("several axes are one")
        axis = long[0] if long else axis
    draft.attributes["axis"] = axis


@rule("Einsum")
def einsum(draft: Draft) -> None:
    """Subscripts are explicit, without blanks, and lettered in order of appearance."""
    equation = draft.attributes["equation"].decode().replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    if not arrow:  # numpy's rule: subscripts that appear once, in alphabetical order, after the ellipsis
        letters = inputs.replace(".", "").replace(",", "")
        output = ("..." if "..." in inputs else "") + "".join(
            sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        )
    names: dict[str, str] = {}
    for letter in inputs + output:
        if letter.isalpha() and letter not in names:
            names[letter] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[len(names)]
    relabelled = "".join(names.get(letter, letter) for letter in f"{inputs}->{output}")
    draft.attributes["equation"] = relabelled.encode()


@rule("Gemm")
def gemm(draft: Draft) -> None:
    """Before opset 7 the bias said whether it broadcasts; to the last axes, as numpy does."""
    draft.pop("broadcast")
