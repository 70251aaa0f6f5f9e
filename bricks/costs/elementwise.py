"""Work of operators that treat each output element on its own: arithmetic, comparisons, activations."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...models.subgraphs import bodies
from ..layer import Cost, TensorType
from .costed_node import CostedNode, Formula, UnknownCostError


def of_sizes(formula: str, work: Callable[[int, int], Cost]) -> Formula:
    """Make the cost function of an operator whose work depends on two numbers of elements.

    Args:
        formula: The formula in words.
        work: Cost for n elements of the first input and m of the first output.
    """

    def cost(call: CostedNode) -> Cost:
        return work(call.input(0).elements, call.output().elements)

    cost.__doc__ = formula
    return cost


# Work of reductions and scans, with n input elements and m output elements.


ADDED = of_sizes("``additions = n`` (accumulated from zero).", lambda n, _: Cost(additions=n))
MULTIPLIED = of_sizes("``multiplications = n``.", lambda n, _: Cost(multiplications=n))
COMPARED = of_sizes("Maximum, minimum or their position: ``comparisons = n``.", lambda n, _: Cost(comparisons=n))
AVERAGED = of_sizes("``additions = n``, ``divisions = m``.", lambda n, m: Cost(additions=n, divisions=m))
SOFTMAX = of_sizes(
    "``exp(x - max) / sum``: n comparisons, 2n additions, n exponentials, n divisions.",
    lambda n, _: Cost(comparisons=n, additions=2 * n, exponentials=n, divisions=n),
)

ABSOLUTE_SUM = of_sizes("``sum |x|``: n comparisons and additions.", lambda n, _: Cost(comparisons=n, additions=n))
NORM = of_sizes(
    "``sqrt(sum x x)``: ``multiplications = n``, ``additions = n``, ``divisions = m`` (roots).",
    lambda n, m: Cost(multiplications=n, additions=n, divisions=m),
)
LOG_SUM = of_sizes(
    "``log(sum x)``: ``additions = n``, ``exponentials = m``.", lambda n, m: Cost(additions=n, exponentials=m)
)
LOG_SUM_EXP = of_sizes(
    "``max + log(sum exp(x - max))``: n comparisons, 2n + m additions, n + m exponentials.",
    lambda n, m: Cost(comparisons=n, additions=2 * n + m, exponentials=n + m),
)
SQUARE_SUM = of_sizes(
    "``sum x x``: n multiplications and additions.", lambda n, _: Cost(multiplications=n, additions=n)
)


# Work of sorting and selection. The exact count depends on the data; the stated bound is counted.


def top_k(call: CostedNode) -> Cost:
    """Count a heap of k elements per row: ``comparisons = n * ceil(log2(k + 1))``."""
    axis = call.attribute("axis", -1)
    out = call.output()
    k = out.shape[axis] if out.shape else 1
    return Cost(comparisons=call.input(0).elements * max(1, k.bit_length()))


def unique(call: CostedNode) -> Cost:
    """Count a sort: ``comparisons = n ceil(log2 n)``."""
    n = call.input(0).elements
    return Cost(comparisons=n * max(1, (n - 1).bit_length() if n else 0))


def non_max_suppression(call: CostedNode) -> Cost:
    """Count at most ``B C S min(k, S)`` overlaps of S boxes with the kept k, each 6 comparisons.

    An overlap is also 5 additions, 3 multiplications and 1 division. Unknown if k is computed at run time.
    """
    boxes, scores = call.input(0), call.input(1)
    limits = call.values(2)
    if limits is None:
        raise UnknownCostError("NonMaxSuppression with a limit computed at run time")
    overlaps = scores.elements * min(int(limits[0]), boxes.shape[1])
    return Cost(
        comparisons=6 * overlaps + scores.elements,
        additions=5 * overlaps,
        multiplications=3 * overlaps,
        divisions=overlaps,
    )


def multinomial(call: CostedNode) -> Cost:
    """Count a cumulative softmax of n scores per row, then a binary search per sample."""
    scores = call.input(0)
    n, samples = scores.elements, call.output().elements
    classes = scores.shape[-1] if scores.shape else 1
    return Cost(exponentials=n, additions=n, comparisons=samples * max(1, math.ceil(math.log2(max(2, classes)))))


# Operators that move, copy or reinterpret data, and control flow with empty bodies: bytes, no arithmetic.


def move(call: CostedNode) -> Cost:
    """No work: each output element is a copy, a cast or a constant; index arithmetic is not counted."""
    for slot, name in enumerate(call.node.output):
        if name:
            call.output(slot)
    return Cost()


def scatter(call: CostedNode) -> Cost:
    """Count one operation per element of the updates for a ``reduction`` (add, mul, max, min), else only copies."""
    n = call.input(2).elements
    match call.attribute("reduction", "none"):
        case "add":
            return Cost(additions=n)
        case "mul":
            return Cost(multiplications=n)
        case "max" | "min":
            return Cost(comparisons=n)
        case _:
            return move(call)


def bare(call: CostedNode) -> Cost:
    """Return no work for empty bodies; the number of executions of other bodies is unknown here."""
    held = list(bodies(call.node))
    if not held or any(body.node for body in held):
        raise UnknownCostError(f"the work of the bodies of {call.node.op_type} is not known")
    return Cost()


# Work of normalisations and softmax.
#
# n is the number of elements of the data, r the number of groups with common statistics (rows of a
# LayerNormalization, channels of a BatchNormalization).


def rows(data: TensorType, axis: int) -> int:
    """Count the groups of a normalisation over the axes from ``axis`` on: the product of the dimensions before it."""
    axis += len(data.shape) if axis < 0 else 0
    return math.prod(data.shape[:axis])


def standardise(n: int, r: int, *, scale: bool, bias: bool) -> Cost:
    """``(x - mean) / sqrt(variance + epsilon)``, then scale and bias.

    Additions 3n (mean, centring, variance) + n for a bias + r (epsilon); multiplications 2n (squares, reciprocal
    deviation) + n for a scale; divisions 4r (mean, variance, root, reciprocal).
    """
    return Cost(additions=(3 + bias) * n + r, multiplications=(2 + scale) * n, divisions=4 * r)


def batch_norm(call: CostedNode) -> Cost:
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


def layer_norm(call: CostedNode) -> Cost:
    """``standardise`` over the axes from ``axis`` (default -1) on; r rows."""
    data = call.input(0)
    return standardise(data.elements, rows(data, call.attribute("axis", -1)), scale=True, bias=call.has(2))


def rms_norm(call: CostedNode) -> Cost:
    """``x / sqrt(mean(x x) + epsilon) scale``: 3n multiplications, n + r additions, 3r divisions."""
    data = call.input(0)
    r = rows(data, call.attribute("axis", -1))
    return Cost(multiplications=3 * data.elements, additions=data.elements + r, divisions=3 * r)


def instance_norm(call: CostedNode) -> Cost:
    """``standardise`` with ``r = N C``."""
    data = call.input(0)
    return standardise(data.elements, rows(data, 2), scale=True, bias=True)


def group_norm(call: CostedNode) -> Cost:
    """``standardise`` with ``r = N num_groups``."""
    data = call.input(0)
    groups = call.require("num_groups")
    return standardise(data.elements, data.shape[0] * groups, scale=True, bias=True)


def mean_variance_norm(call: CostedNode) -> Cost:
    """``standardise`` without scale and bias over ``axes`` (default 0, 2, 3)."""
    data = call.input(0)
    axes = {axis % len(data.shape) for axis in call.attribute("axes", [0, 2, 3])}
    r = math.prod(size for axis, size in enumerate(data.shape) if axis not in axes)
    return standardise(data.elements, r, scale=False, bias=False)


def lrn(call: CostedNode) -> Cost:
    """``x / (k + alpha / size * sum of size neighbours x x) ^ beta``.

    ``multiplications = 2n``, ``additions = size n`` (size - 1 in the window, 1 for k; the window is not clipped
    at the edges here), ``exponentials = n``, ``divisions = n``.
    """
    n = call.input(0).elements
    return Cost(multiplications=2 * n, additions=call.require("size") * n, exponentials=n, divisions=n)


def lp_norm(call: CostedNode) -> Cost:
    """``x / |x|_p``: p=1 n comparisons, p=2 n multiplications and r roots; n additions and n divisions."""
    data = call.input(0)
    axis = call.attribute("axis", -1) % len(data.shape)
    r = data.elements // data.shape[axis] if data.shape[axis] else 0
    if call.attribute("p", 2) == 1:
        return Cost(comparisons=data.elements, additions=data.elements, divisions=data.elements)
    return Cost(multiplications=data.elements, additions=data.elements, divisions=data.elements + r)


def log_softmax(call: CostedNode) -> Cost:
    """``x - max - log(sum exp(x - max))``: n comparisons, 3n additions, n exponentials and one log per row."""
    data = call.input(0)
    if not data.shape:
        raise UnknownCostError("LogSoftmax of a scalar")
    length = data.shape[call.attribute("axis", -1)]
    r = data.elements // length if length else 0
    return Cost(comparisons=data.elements, additions=3 * data.elements, exponentials=data.elements + r)


def cross_entropy(call: CostedNode) -> Cost:
    """Log-softmax of the scores, then one subtraction per sample: 3n + samples additions, n exponentials."""
    n, samples = call.input(0).elements, call.input(1).elements
    return Cost(comparisons=n, additions=3 * n + samples, exponentials=n + samples)


def negative_log_likelihood(call: CostedNode) -> Cost:
    """One addition and one multiplication (weight or -1) per sample."""
    samples = call.input(1).elements
    return Cost(additions=samples, multiplications=samples)


def per_element(formula: str, work: Cost) -> Formula:
    """Make the cost function of an operator that computes ``formula`` once per output element."""

    def cost(call: CostedNode) -> Cost:
        return call.output().elements * work

    cost.__doc__ = f"Per output element: ``{formula}``."
    return cost


GELU = Cost(multiplications=3, additions=1, exponentials=1)
FAST_GELU = Cost(multiplications=6, additions=2, exponentials=1)
"""Of one element: ``0.5 x (1 + erf(x / sqrt 2))``, and ``0.5 x (1 + tanh(c (x + d x x x)))``."""


def gelu(call: CostedNode) -> Cost:
    """Per element ``0.5 x (1 + erf(x / sqrt 2))``, or the tanh form, by ``approximate``."""
    each = FAST_GELU if call.attribute("approximate", "none") == "tanh" else GELU
    return call.output().elements * each


def clip(call: CostedNode) -> Cost:
    """Count per element one comparison for each bound that is present."""
    bounds = call.has(1) + call.has(2) + (call.attribute("min") is not None) + (call.attribute("max") is not None)
    return Cost(comparisons=bounds * call.output().elements)


def power(call: CostedNode) -> Cost:
    """``x ^ y`` per element: a whole y up to 4 is ``y - 1`` multiplications, 0.5 a square root, else one pow."""
    n = call.output().elements
    exponent = call.values(1)
    if exponent is not None and len(exponent) == 1:
        if exponent[0] in {0, 1, 2, 3, 4}:
            return Cost(multiplications=max(0, int(exponent[0]) - 1) * n)
        if exponent[0] in {0.5, -1}:
            return Cost(divisions=n)
    return Cost(exponentials=n)


def add_all(call: CostedNode) -> Cost:
    """Sum of k inputs: ``additions = (k - 1) output elements``."""
    return Cost(additions=(len(call.inputs()) - 1) * call.output().elements)


def mean_all(call: CostedNode) -> Cost:
    """Mean of k inputs: ``additions = (k - 1) output elements``, ``divisions = output elements``."""
    n = call.output().elements
    return Cost(additions=(len(call.inputs()) - 1) * n, divisions=n)


def compare_all(call: CostedNode) -> Cost:
    """Max or Min of k inputs: ``comparisons = (k - 1) output elements``."""
    return Cost(comparisons=(len(call.inputs()) - 1) * call.output().elements)


def dropout(call: CostedNode) -> Cost:
    """Count per element one draw, one comparison, one multiplication in training mode; nothing at inference."""
    training = call.values(2)
    if not call.has(2) or training == [False]:
        return Cost()
    n = call.output().elements
    return Cost(additions=n, comparisons=n, multiplications=n)
