"""Work of normalisations and softmax.

Throughout, n is the number of elements of the data and r the number of groups that share their statistics
(rows of a LayerNormalization, channels of a BatchNormalization).
"""

from __future__ import annotations

import math

from ..cost import Cost
from ..tensor import TensorType
from .call import Call, Formula, UnknownCostError

__all__ = ["FORMULAS", "group_norm", "layer_norm", "rms_norm", "rows", "softmax"]


def rows(data: TensorType, axis: int) -> int:
    """Groups of a normalisation over the axes from ``axis`` on: the product of the dimensions before it."""
    axis += len(data.shape) if axis < 0 else 0
    return math.prod(data.shape[:axis])


def standardise(n: int, r: int, *, scale: bool, bias: bool) -> Cost:
    """``(x - mean) / sqrt(variance + epsilon)``, then scale and bias.

    Additions 3n (mean, centring, variance) + n for a bias + r (epsilon); multiplications 2n (squares, reciprocal
    deviation) + n for a scale; divisions 4r (mean, variance, root, reciprocal).
    """
    return Cost(
        additions=(3 + bias) * n + r,
        multiplications=(2 + scale) * n,
        divisions=4 * r,
    )


def batch_norm(call: Call) -> Cost:
    """Inference: ``y = a x + b`` with a, b per channel C.

    ``multiplications = n + C``, ``additions = n + 2 C``, ``divisions = 2 C`` (root and quotient). In training
    mode the statistics come on top: 3n additions, n multiplications, 2 C divisions.
    """
    n, channels = call.input(0).elements, call.input(1).elements
    training = bool(call.attribute("training_mode", 0))
    return Cost(
        additions=n + 2 * channels + training * 3 * n,
        multiplications=n + channels + training * n,
        divisions=2 * channels + training * 2 * channels,
    )


def layer_norm(call: Call) -> Cost:
    """``standardise`` over the axes from ``axis`` (default -1) on; r rows."""
    data = call.input(0)
    return standardise(data.elements, rows(data, call.attribute("axis", -1)), scale=True, bias=call.has(2))


def rms_norm(call: Call) -> Cost:
    """``x / sqrt(mean(x x) + epsilon) scale``: 3n multiplications, n + r additions, 3r divisions."""
    data = call.input(0)
    r = rows(data, call.attribute("axis", -1))
    return Cost(multiplications=3 * data.elements, additions=data.elements + r, divisions=3 * r)


def instance_norm(call: Call) -> Cost:
    """``standardise`` with ``r = N C``."""
    data = call.input(0)
    return standardise(data.elements, rows(data, 2), scale=True, bias=True)


def group_norm(call: Call) -> Cost:
    """``standardise`` with ``r = N num_groups``."""
    data = call.input(0)
    groups = call.require("num_groups")
    return standardise(data.elements, data.shape[0] * groups, scale=True, bias=True)


def mean_variance_norm(call: Call) -> Cost:
    """``standardise`` without scale and bias over ``axes`` (default 0, 2, 3)."""
    data = call.input(0)
    axes = {axis % len(data.shape) for axis in call.attribute("axes", [0, 2, 3])}
    r = math.prod(size for axis, size in enumerate(data.shape) if axis not in axes)
    return standardise(data.elements, r, scale=False, bias=False)


def lrn(call: Call) -> Cost:
    """``x / (k + alpha / size * sum of size neighbours x x) ^ beta``.

    ``multiplications = 2n``, ``additions = size n`` (size - 1 in the window, 1 for k; the window is not clipped
    at the edges here), ``exponentials = n``, ``divisions = n``.
    """
    n = call.input(0).elements
    return Cost(multiplications=2 * n, additions=call.require("size") * n, exponentials=n, divisions=n)


def lp_norm(call: Call) -> Cost:
    """``x / |x|_p``: p=1 n comparisons, p=2 n multiplications and r roots; n additions and n divisions."""
    data = call.input(0)
    axis = call.attribute("axis", -1) % len(data.shape)
    r = data.elements // data.shape[axis] if data.shape[axis] else 0
    if call.attribute("p", 2) == 1:
        return Cost(comparisons=data.elements, additions=data.elements, divisions=data.elements)
    return Cost(multiplications=data.elements, additions=data.elements, divisions=data.elements + r)


def softmax(call: Call) -> Cost:
    """``exp(x - max) / sum``: n comparisons, 2n additions, n exponentials, n divisions."""
    n = call.input(0).elements
    return Cost(comparisons=n, additions=2 * n, exponentials=n, divisions=n)


def log_softmax(call: Call) -> Cost:
    """``x - max - log(sum exp(x - max))``: n comparisons, 3n additions, n exponentials and one log per row."""
    data = call.input(0)
    if not data.shape:
        raise UnknownCostError("LogSoftmax of a scalar")
    length = data.shape[call.attribute("axis", -1)]
    r = data.elements // length if length else 0
    return Cost(comparisons=data.elements, additions=3 * data.elements, exponentials=data.elements + r)


def hardmax(call: Call) -> Cost:
    """1 at the first maximum of each row: n comparisons."""
    return Cost(comparisons=call.input(0).elements)


def cross_entropy(call: Call) -> Cost:
    """Log-softmax of the scores, then one subtraction per sample: 3n + samples additions, n exponentials."""
    n, samples = call.input(0).elements, call.input(1).elements
    return Cost(comparisons=n, additions=3 * n + samples, exponentials=n + samples)


def negative_log_likelihood(call: Call) -> Cost:
    """One addition and one multiplication (weight or -1) per sample."""
    samples = call.input(1).elements
    return Cost(additions=samples, multiplications=samples)


FORMULAS: dict[tuple[str, str], Formula] = {
    ("", "BatchNormalization"): batch_norm,
    ("", "GroupNormalization"): group_norm,
    ("", "Hardmax"): hardmax,
    ("", "InstanceNormalization"): instance_norm,
    ("", "LRN"): lrn,
    ("", "LayerNormalization"): layer_norm,
    ("", "LogSoftmax"): log_softmax,
    ("", "LpNormalization"): lp_norm,
    ("", "MeanVarianceNormalization"): mean_variance_norm,
    ("", "NegativeLogLikelihoodLoss"): negative_log_likelihood,
    ("", "RMSNormalization"): rms_norm,
    ("", "SimplifiedLayerNormalization"): rms_norm,  # ONNX Runtime registers it in ONNX's own domain
    ("", "Softmax"): softmax,
    ("", "SoftmaxCrossEntropyLoss"): cross_entropy,
}
