"""Values of nodes as real numbers, for random numbers in place of the values that they read.

Sums, products and moves of elements are computed in double precision. A composite operator is computed by its
definition. Every other operator is one fixed random function of its operands, the same wherever it occurs. If two
groups of nodes agree, the agreement follows from algebra and not from a property of these operators.

* A function of one element becomes a stand-in (``standin``): random, smooth, nowhere flat and nowhere nearly linear.
* ``Max`` is half the sum of its operands plus an even function (``_even``) in place of half their distance. ``Relu``,
  ``Min`` and ``Clip`` follow from it.
* Any other operator is a function of its operands as a whole.
* Booleans are numbers, also below 0 and above 1, and their operators are multilinear.
* Integers are exact. Operators that lose digits of them (``Div``, narrow types that overflow) are random functions.
* The exponential is a positive random function of moderate size: no exponential hides another one.
* Constants of a million or more, epsilons, and arrays of small weights are symbols. Large constants would hide all
  other terms, and small ones would not count.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper

from ...bricks.operators import (
    BODIES,
    ELEMENTWISE,
    MOVES,
    RANDOM,
    REDUCTIONS,
    VIEWS,
    Trait,
    having,
    operator_of,
)
from ...models.subgraphs import all_nodes, attributes_of, plain_domain, reads
from .recording import Sizes, is_sum_of_sizes, session
from .rewrite import MICROSOFT, Array

_POOL = 1.3
"""Exponent of the sum of powers that replaces a maximum over many elements."""
_HUGE, _TINY, _FAINT, _TOKENS = 1e6, 1.1e-5, 1e-3, 1 << 20
"""Constants that become symbols: large ones, single small ones, arrays of small ones; number of different integers in
place of unknown results."""
_MOST_POWER, _NO_BOUND = 8, 3.4e38
_END = np.iinfo(np.int32).max
_WHATEVER_SIZE = frozenset({(0, 1), (0, _END), (1, _END), (-1, _END), (0, -1)})
"""Starts and ends of slices that act alike at every size of an axis of at least one element."""
_LARGE = 1e4
"""Size of some slices relative to others in a draw of several sizes."""

_F = TypeVar("_F")

Typed = tuple[np.dtype[Any], tuple[int, ...]]
"""Element type and shape of a value."""


class Unclear(Exception):
    """Something cannot be evaluated."""


# Random functions.


def standin(key: str, *xs: Array) -> Array:
    """Return the random function of a key, element by element."""
    random = np.random.default_rng(zlib.crc32(key.encode()))
    bent: Any = random.uniform(0, 6.3)
    plain: Any = random.uniform(0, 6.3)
    for x in xs:
        bent = bent + random.choice([-1, 1]) * random.uniform(0.8, 1.9) * np.arcsinh(x)
        plain = plain + random.choice([-1, 1]) * random.uniform(0.4, 1.6) * _tamed(x)
    waves: Array = np.asarray(
        random.uniform(0.7, 1.0) * np.sin(bent) + 0.2 * np.sin(2.3 * bent + 1) + 0.1 * np.sin(plain)
    )
    return waves


def _rising(key: str, x: Array) -> Array:
    """Return a random function that never falls."""
    u, shift = np.arcsinh(x), zlib.crc32(key.encode()) / 2.0**32 * 6.28
    curve: Array = 3 * u + np.sin(2 * u + shift)
    return curve


def _tamed(x: Array) -> Array:
    """Return numbers of moderate size, on which a wave does not amplify rounding."""
    tamed: Array = x / (1 + 0.05 * np.abs(x))
    return tamed


def _odd(key: str, x: Array) -> Array:
    return (standin(key, x) - standin(key, -x)) / 2


def _even(x: Array) -> Array:
    """Return a smooth function in place of half the absolute value: even, and zero at zero."""
    u = np.arcsinh(x)
    half: Array = 0.9 * (1 - np.cos(1.3 * u)) + 0.4 * (1 - np.cos(2.9 * u)) + 0.1 * (1 - np.cos(0.9 * _tamed(x)))
    return half


def _token(x: Array) -> Array:
    """Return an integer for a real number."""
    tokens: Array = np.floor((np.asarray(x) * 1e9) % _TOKENS).astype(np.int64)
    return tokens


def _hashed(key: str, *xs: Array) -> Array:
    """Return the random function of integers of a key."""
    total: Any = np.uint64(zlib.crc32(key.encode()))
    with np.errstate(over="ignore"):
        for x in xs:
            total = (total ^ np.asarray(x, np.int64).astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            total = (total ^ (total >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            total = total ^ (total >> np.uint64(32))
    hashes: Array = np.asarray(total % np.uint64(_TOKENS)).astype(np.int64)
    return hashes


def _truth(x: Array) -> Array:
    truth: Array = 0.5 + 1.5 * np.sin(2 * x)
    return truth


# Definitions.


def _largest(a: Array, b: Any) -> Array:
    maximum: Array = (a + b) / 2 + _even(a - b)
    return maximum


def _least(a: Array, b: Any) -> Array:
    minimum: Array = (a + b) / 2 - _even(a - b)
    return minimum


def _tanh(x: Array) -> Array:
    return _odd("Tanh", x)


def _sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * _tanh(x / 2)


def _exp(x: Array) -> Array:
    return 1.7 + standin("Exp", x)


def _log(x: Array) -> Array:
    logarithm: Array = np.log(np.abs(x))
    return logarithm


def _root(x: Array) -> Array:
    root: Array = np.sqrt(np.abs(x))
    return root


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return _least(_largest(alpha * x + beta, 0.0), 1.0)


def _gelu(x: Array, *, quick: bool) -> Array:
    bent = _tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)) if quick else _odd("Erf", x / np.sqrt(2))
    activation: Array = x / 2 * (1 + bent)
    return activation


def _leaky(x: Array, slope: Array) -> Array:
    activation: Array = slope * x + (1 - slope) * _largest(x, 0.0)
    return activation


def _less(a: Array, b: Array) -> Array:
    return _compared("Less", a, b)


def _at_most(a: Array, b: Array) -> Array:
    """Return a random truth of a <= b, which is not the negation of b < a: a NaN satisfies neither."""
    return _compared("LessOrEqual", a, b)


def _same(a: Array, b: Array) -> Array:
    return (_compared("Equal", a, b) + _compared("Equal", b, a)) / 2


def _compared(key: str, a: Array, b: Array) -> Array:
    if a.dtype.kind == "i" and b.dtype.kind == "i":
        return _truth(_hashed(key, a, b).astype(np.float64))
    return _truth(standin(key, np.asarray(a, np.float64), np.asarray(b, np.float64)))


def _power(x: Array, exponent: Array) -> Array:
    first = float(exponent.reshape(-1)[0]) if exponent.size and (exponent == exponent.reshape(-1)[0]).all() else 1 / 3
    if abs(first) > _MOST_POWER or not (4 * first).is_integer():
        return standin("Pow", x, exponent)
    quarters, power = int(abs(4 * first)), np.ones(())
    if quarters % 4 == 0:
        power = x ** (quarters // 4)
    elif quarters % 2 == 0:
        power = _root(x) ** (quarters // 2)
    else:
        power = _root(_root(x)) ** quarters
    return power if first >= 0 else 1.0 / power


def _normal(x: Array, axes: tuple[int, ...], epsilon: float, *, centred: bool = True) -> Array:
    x = x - x.mean(axes, keepdims=True) if centred else x
    normalised: Array = x / _root((x * x).mean(axes, keepdims=True) + epsilon)
    return normalised


def _symbol(numbers: Any) -> Array:
    """Return random numbers between 0 and 1 that depend on every digit of numbers."""
    bits = np.ascontiguousarray(np.asarray(numbers, np.float64)).view(np.int64)
    symbols: Array = (_hashed("symbol", bits) + 0.5) / _TOKENS
    return symbols


def _visible(number: float) -> float:
    """Return a number that shows in place of an epsilon."""
    size = abs(number)
    return number if size == 0 or size >= _TINY else float(np.sign(number) * (0.02 + 0.03 * _symbol([size])[0]))


def _near(numbers: Array) -> Array:
    """Return numbers of moderate size in place of large ones, next to which nothing else would count."""
    far = ~(np.abs(numbers) < _HUGE)
    if not far.any():
        return numbers
    sign = np.sign(np.nan_to_num(numbers, nan=1.0, posinf=1.0, neginf=-1.0))
    return np.where(far, sign * (2 + 2 * _symbol(numbers)), numbers)


def _as_symbols(numbers: Array, *, computed: bool) -> Array:
    """Return numbers of moderate size in place of large and small ones; computed arrays stay as small as they are."""
    moderate_numbers = _near(numbers)
    if moderate_numbers.size == 1:
        return np.full_like(moderate_numbers, _visible(moderate_numbers.item()))
    most = float(np.abs(moderate_numbers).max(initial=0.0))
    if computed or not 0 < most < _FAINT:
        return moderate_numbers
    return moderate_numbers * ((0.5 + zlib.crc32(np.ascontiguousarray(moderate_numbers).tobytes()) / 2.0**32) / most)


def _lifted(x: Array) -> Array:
    """Return summands that replace operands of a maximum: sums commute and associate too, and nothing more is used."""
    summands: Array = np.exp(_POOL * np.arcsinh(x))
    return summands


def _lowered(x: Array) -> Array:
    maxima: Array = np.sinh(np.log(x) / _POOL)
    return maxima


_REAL, _EXACT = having(Trait.REAL), having(Trait.EXACT)
_WIDE = 8
"""Operators that are exact for integers of so many bytes; narrower ones overflow."""


def _windows(
    x: Array, kernel: Sequence[int], at: Mapping[str, Any], out: Sequence[int], *, outside: float = 0.0
) -> Any:
    """Yield for each place of a window its offset and the elements there, one for each window."""
    rank = len(kernel)
    strides, dilations = at.get("strides") or [1] * rank, at.get("dilations") or [1] * rank
    pads, widths = at.get("pads") or [0] * 2 * rank, []
    for axis in range(rank):
        total = (out[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1 - x.shape[axis + 2]
        same = {"SAME_UPPER": max(total, 0) // 2, "SAME_LOWER": (max(total, 0) + 1) // 2}
        first = same.get(at.get("auto_pad", "NOTSET"), pads[axis])
        widths.append((first, max(total - first, 0)))
    padded = np.pad(x, [(0, 0), (0, 0), *widths], constant_values=outside)
    for offset in itertools.product(*map(range, kernel)):
        part = [
            slice(begin * dilation, begin * dilation + (size - 1) * stride + 1, stride)
            for begin, dilation, size, stride in zip(offset, dilations, out, strides, strict=True)
        ]
        yield offset, padded[(slice(None), slice(None), *part)]


def _beside(vector: Array, rank: int) -> Array:
    """Return one number for each channel, as broadcast over rows and columns."""
    return vector.reshape(-1, *[1] * (rank - 2))


def _conv(x: Array, w: Array, bias: Array | None, at: Mapping[str, Any], shape: Sequence[int]) -> Array:
    groups, outputs, count = at.get("group", 1), w.shape[0], int(np.prod(shape[2:]))
    sums = np.zeros((x.shape[0], groups, outputs // groups, count))
    for offset, part in _windows(x, w.shape[2:], at, shape[2:]):
        taps = w[(slice(None), slice(None), *offset)].reshape(groups, outputs // groups, -1)
        sums += taps @ part.reshape(x.shape[0], groups, -1, count)
    sums = sums.reshape(x.shape[0], outputs, *shape[2:])
    return sums if bias is None else sums + _beside(bias, x.ndim)


def _conv_transposed(x: Array, w: Array, bias: Array | None, at: Mapping[str, Any], shape: Sequence[int]) -> Array:
    rank, groups, (batch, channels) = x.ndim - 2, at.get("group", 1), x.shape[:2]
    if at.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in at:
        raise Unclear("a ConvTranspose with automatic padding")
    strides, dilations = at.get("strides") or [1] * rank, at.get("dilations") or [1] * rank
    pads, flat = at.get("pads") or [0] * 2 * rank, x.reshape(batch, groups, channels // groups, -1)
    sizes = [max((x.shape[i + 2] - 1) * strides[i] + (w.shape[i + 2] - 1) * dilations[i] + 1, shape[i + 2] + pads[i])
             for i in range(rank)]  # fmt: skip
    sums = np.zeros((batch, w.shape[1] * groups, *sizes))
    for offset in itertools.product(*map(range, w.shape[2:])):
        at_offset: Any = (slice(None), slice(None), *offset)
        taps = w[at_offset].reshape(groups, channels // groups, -1).swapaxes(1, 2)
        begins = [step * dilation for step, dilation in zip(offset, dilations, strict=True)]
        part: Any = tuple(
            slice(begins[i], begins[i] + (x.shape[i + 2] - 1) * strides[i] + 1, strides[i]) for i in range(rank)
        )
        sums[:, :, *part] += (taps @ flat).reshape(batch, -1, *x.shape[2:])
    inside: Any = tuple(slice(pads[i], pads[i] + shape[i + 2]) for i in range(rank))
    sums = sums[:, :, *inside]
    return sums if bias is None else sums + _beside(bias, x.ndim)


def _average(x: Array, at: Mapping[str, Any], shape: Sequence[int]) -> Array:
    kernel, counted = at["kernel_shape"], np.ones((1, 1, *x.shape[2:]))
    if at.get("count_include_pad"):
        pads = at.get("pads") or [0] * 2 * len(kernel)
        sides = [(0, 0), (0, 0), *zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)]
        x, counted, at = np.pad(x, sides), np.ones((1, 1, *np.pad(x[:1, :1], sides).shape[2:])), {**at, "pads": None}
    total, number = (sum(part for _, part in _windows(side, kernel, at, shape[2:])) for side in (x, counted))
    averages: Array = total / number
    return averages


# Operators with their operands.


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator with its operands.

    Attributes:
        node: The node.
        at: Its attributes.
        xs: Its operands as numbers; None for one that is left out.
        typed: Element type and shape of its first output.
        opset: Version of ONNX's own operators.
        axes: Axes of a reduction, from 0 on; None if they are computed.
        actual: True if numbers are not replaced by symbols.
    """

    node: onnx.NodeProto
    at: Mapping[str, Any]
    xs: Sequence[Array | None]
    typed: Typed
    opset: int
    axes: tuple[int, ...] | None
    actual: bool = False

    @property
    def x(self) -> Array:
        """The first operand."""
        assert self.xs[0] is not None  # noqa: S101
        return self.xs[0]

    @property
    def epsilon(self) -> float:
        """The attribute of that name, or a number that shows in its place."""
        epsilon: float = self.at.get("epsilon", 1e-5)
        return epsilon if self.actual else _visible(epsilon)

    def operand(self, slot: int) -> Array | None:
        """Return an operand; None if it is left out."""
        return self.xs[slot] if slot < len(self.xs) else None


def _clip(call: Operation) -> Array:
    x, (low, high) = call.x, (call.operand(1), call.operand(2))
    if "min" in call.at or "max" in call.at:  # as attributes, with the largest numbers as no bounds
        low, high = (None if abs(bound) >= _NO_BOUND else _near(np.array(bound))
                     for bound in (call.at.get("min", -np.inf), call.at.get("max", np.inf)))  # fmt: skip
    x = x if low is None else _largest(x, low)
    return x if high is None else _least(x, high)


def _softmax(call: Operation) -> Array:
    axis, x = call.at.get("axis", -1 if call.opset >= 13 else 1), call.x
    flat = x if call.opset >= 13 else x.reshape(*x.shape[: axis % x.ndim], -1)
    axis = axis if call.opset >= 13 else -1
    exponentials = _exp(flat)
    shares = (exponentials / exponentials.sum(axis, keepdims=True)).reshape(x.shape)
    return shares if call.node.op_type == "Softmax" else _log(shares)


def _layer_normalised(call: Operation) -> Array:
    axis = call.at.get("axis", -1) % call.x.ndim
    centred = call.node.op_type == "LayerNormalization"
    normalised = _normal(call.x, tuple(range(axis, call.x.ndim)), call.epsilon, centred=centred)
    scale, shift = call.operand(1), call.operand(2)
    normalised = normalised if scale is None else normalised * scale
    return normalised if shift is None else normalised + shift


def _normalised(call: Operation) -> Array:
    x, scale, shift = call.x, call.operand(1), call.operand(2)
    epsilon, kind = call.epsilon, call.node.op_type
    assert scale is not None and shift is not None  # noqa: S101, PT018
    if kind == "BatchNormalization":
        mean, variance = call.operand(3), call.operand(4)
        if mean is None or variance is None or call.at.get("training_mode"):
            raise Unclear("a BatchNormalization in training")
        plain = (x - _beside(mean, x.ndim)) / _root(_beside(variance, x.ndim) + epsilon)
    else:
        plain = _normal(x, tuple(range(2, x.ndim)), epsilon)
    return plain * _beside(scale, x.ndim) + _beside(shift, x.ndim)


def _local_response(call: Operation) -> Array:
    x, size = call.x, call.at["size"]
    square = np.pad(x * x, [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (x.ndim - 2)])
    total = sum(square[:, offset : offset + x.shape[1]] for offset in range(size))
    base = call.at.get("bias", 1.0) + call.at.get("alpha", 1e-4) / size * np.asarray(total)
    beta = np.array(call.at.get("beta", 0.75))
    return x / (np.power(base, beta) if call.actual else _power(_root(base) ** 2, beta))


def _gemm(call: Operation) -> Array:
    a, b, c = call.x, call.operand(1), call.operand(2)
    assert b is not None  # noqa: S101
    product: Array = call.at.get("alpha", 1.0) * (
        (a.swapaxes(-1, -2) if call.at.get("transA") else a) @ (b.swapaxes(-1, -2) if call.at.get("transB") else b)
    )
    return product if c is None else product + call.at.get("beta", 1.0) * c


def _convolved(call: Operation) -> Array:
    weight = call.operand(1)
    assert weight is not None  # noqa: S101
    convolve = _conv if call.node.op_type == "Conv" else _conv_transposed
    return convolve(call.x, weight, call.operand(2), call.at, call.typed[1])


def _fourier(call: Operation) -> Array:
    """Return the discrete Fourier transform of the last axis but one."""
    x, length = call.x, call.operand(1)
    axis = call.operand(2) if call.opset >= 20 else np.asarray(call.at.get("axis", 1))
    axis = np.asarray(-2) if axis is None else axis
    if (length is not None and int(length.reshape(-1)[0]) != x.shape[-2]) or int(
        axis.reshape(-1)[0]
    ) % x.ndim != x.ndim - 2:
        raise Unclear("a DFT along another axis")
    samples = x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0].astype(complex)
    spectrum = (np.fft.ifft if call.at.get("inverse") else np.fft.fft)(samples, axis=-1)[..., : call.typed[1][-2]]
    return np.stack([spectrum.real, spectrum.imag], -1)


def _short_fourier(call: Operation) -> Array:
    """Return the short-time Fourier transform of a real signal."""
    step, window = call.operand(1), call.operand(2)
    if (call.x.ndim == 3 and call.x.shape[-1] != 1) or step is None:
        raise Unclear("an STFT of complex numbers")
    frames, length = call.typed[1][1], call.operand(3)
    size = len(window) if window is not None else 0 if length is None else int(length.reshape(-1)[0])
    hop, x = int(step.reshape(-1)[0]), call.x.reshape(call.x.shape[0], -1)
    cut = np.stack([x[:, number * hop : number * hop + size] for number in range(frames)], 1)
    spectra = np.fft.fft(cut if window is None else cut * window, axis=-1)[..., : call.typed[1][2]]
    return np.stack([spectra.real, spectra.imag], -1)


def _pooled(call: Operation) -> Array:
    if len([name for name in call.node.output if name]) > 1:
        raise Unclear("indices of a pool")
    if call.node.op_type == "GlobalMaxPool":
        return _lowered(_lifted(call.x).sum(tuple(range(2, call.x.ndim)), keepdims=True))
    parts = _windows(_lifted(call.x), call.at["kernel_shape"], call.at, call.typed[1][2:])
    return _lowered(np.asarray(sum(part for _, part in parts)))


_Rules = Mapping[str, Callable[[Operation], Array]]


def _reduced(ends: tuple[Callable[[Array], Array], Callable[[Array], Array]]) -> Callable[[Operation], Array]:
    before, after = ends

    def reduce(call: Operation) -> Array:
        if call.axes is None:
            raise Unclear("computed axes")
        total: Array = before(call.x).sum(call.axes, keepdims=bool(call.at.get("keepdims", 1)))
        return after(total)

    return reduce


def _single(of: Callable[[Array], Array]) -> Callable[[Operation], Array]:
    return lambda call: of(call.x)


def _folded(join: Callable[[Array, Array], Array]) -> Callable[[Operation], Array]:
    def fold(call: Operation) -> Array:
        total = call.x
        for x in call.xs[1:]:
            assert x is not None  # noqa: S101
            total = join(total, x)
        return total

    return fold


def _gather(call: Operation) -> Array:
    axis, index = call.at.get("axis", 0), call.operand(1)
    assert index is not None  # noqa: S101
    if not call.x.shape[axis]:
        raise Unclear("an empty axis")
    index = index % call.x.shape[axis]  # which legal index it is does not matter
    return np.take(call.x, index, axis) if call.node.op_type == "Gather" else np.take_along_axis(call.x, index, axis)


def _fast_gelu(call: Operation) -> Array:
    bias = call.operand(1)
    quick = call.node.op_type == "FastGelu" or call.at.get("approximate", "none") == "tanh"
    return _gelu(call.x if bias is None else call.x + bias, quick=quick)


def _all(rule: Callable[[_F], Callable[[Operation], Array]], of: Mapping[str, _F]) -> _Rules:
    return {name: rule(function) for name, function in of.items()}


_RULES: _Rules = {
    **_all(_single, {
    "Neg": lambda x: -x, "Reciprocal": lambda x: 1.0 / x, "Sqrt": _root, "Exp": _exp, "Log": _log, "Tanh": _tanh,
    "Sigmoid": _sigmoid, "Relu": lambda x: _largest(x, 0.0), "Abs": lambda x: _even(2 * x), "Not": lambda x: 1 - x,
    "Softplus": lambda x: standin("Softplus", x), "Mish": lambda x: x * _tanh(standin("Softplus", x)),
    "HardSwish": lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5), "Erf": lambda x: _odd("Erf", x)
    }),
    **_all(_folded, {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Div": lambda a, b: a / b,
    "Less": _less, "Greater": lambda a, b: _less(b, a), "LessOrEqual": _at_most,
    "GreaterOrEqual": lambda a, b: _at_most(b, a), "Equal": _same, "And": lambda a, b: a * b,
    "Or": lambda a, b: a + b - a * b, "Xor": lambda a, b: a + b - 2 * a * b, "Pow": _power,
    "PRelu": _leaky, "MatMul": lambda a, b: a @ b
    }),
    **_all(_reduced, {
    "ReduceMax": (_lifted, _lowered), "ReduceMin": (lambda x: _lifted(-x), lambda x: -_lowered(x)),
    "ReduceL1": (lambda x: _even(2 * x), lambda x: x), "ReduceL2": (lambda x: x * x, _root),
    "ReduceSumSquare": (lambda x: x * x, lambda x: x), "ReduceLogSumExp": (_exp, _log),
    "ReduceLogSum": (lambda x: x, _log)
    }),
    "AveragePool": lambda call: _average(call.x, call.at, call.typed[1]), "BatchNormalization": _normalised,
    "Clip": _clip, "Conv": _convolved, "ConvTranspose": _convolved,
    "DFT": _fourier, "FastGelu": _fast_gelu, "FusedMatMul": _gemm, "Gather": _gather,
    "GatherElements": _gather, "Gelu": _fast_gelu, "Gemm": _gemm,
    "GlobalAveragePool": lambda call: call.x.mean(tuple(range(2, call.x.ndim)), keepdims=True),
    "GlobalMaxPool": _pooled, "HardSigmoid": lambda call: _hard_sigmoid(
        call.x, call.at.get("alpha", 0.2), call.at.get("beta", 0.5)),
    "InstanceNormalization": _normalised, "LRN": _local_response, "LayerNormalization": _layer_normalised,
    "LeakyRelu": lambda call: _leaky(call.x, np.asarray(call.at.get("alpha", 0.01))),
    "LogSoftmax": _softmax, "Max": _folded(_largest), "MaxPool": _pooled,
    "Mean": lambda call: _folded(np.add)(call) / len(call.xs), "Min": _folded(_least),
    "QuickGelu": lambda call: call.x * _sigmoid(call.at.get("alpha", 1.702) * call.x),
    "RMSNormalization": _layer_normalised, "STFT": _short_fourier,
    "SimplifiedLayerNormalization": _layer_normalised, "Softmax": _softmax,
    "Sum": _folded(np.add), "Swish": lambda call: call.x * _sigmoid(call.at.get("alpha", 1.0) * call.x),
}  # fmt: skip
"""Operators by their definitions, for real numbers."""

DEFINED = frozenset(_RULES)


def same_function(node: onnx.NodeProto) -> str:
    """Return a text that is equal for nodes that compute the same function: operator, domain and attributes."""
    attributes = sorted(attribute.SerializeToString(deterministic=True).hex() for attribute in node.attribute)
    return " ".join((plain_domain(node.domain), node.op_type, *attributes))


class Evaluation:
    """Values of nodes for one draw of random numbers.

    Args:
        types: Element type and shape of each value.
        constants: Constants, and values that depend on shapes alone, at these shapes.
        opsets: Versions of the operators by domain.
        seed: Number of the draw.
        computed: Constants that were computed from others; arrays of small ones do not become symbols.
        large: Slices differ in size by four powers of ten.
        sizes: The changing sizes of a dynamic model.
        order: Compute maxima exactly, and replace functions that never fall by random rising ones. Otherwise, evaluate
            only moves, and sums and products with constants.
        unrounded: Compute constants of constants in double precision too, and not as the runtime rounds them.
        actual: Compute with the numbers themselves, and refuse operators that need a random function.
        until: When to give up, on ``time.perf_counter``.
    """

    def __init__(
        self,
        types: Mapping[str, Typed],
        constants: Mapping[str, Array],
        opsets: Mapping[str, int],
        *,
        seed: int,
        computed: Collection[str] = (),
        large: bool = False,
        sizes: Sizes = Sizes(),  # noqa: B008  # frozen
        order: bool = False,
        unrounded: bool = False,
        actual: bool = False,
        until: float = np.inf,
    ) -> None:
        self._types, self._opsets, self._seed, self._large, self._until = dict(types), opsets, seed, large, until
        self.constants, self._sizes = dict(constants), sizes
        self._order, self._unrounded, self._computed, self._actual = order, unrounded, computed, actual
        self._numbers: dict[str, Array] = {}
        self._sized, self._unsure, self._static, self._given = (
            set(sizes.sized),
            set(sizes.unsure),
            set[str](),
            frozenset(constants),
        )
        self._lengths = set(sizes.lengths)

    def draw(self, name: str) -> None:
        """Make a value random."""
        kind, shape = self._type(name)
        random = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        if kind.kind == "f":
            numbers: Array = random.standard_normal(shape) + random.uniform(-0.5, 0.5)
            for axis, size in enumerate(shape):
                if self._large and size > 1 and random.random() < 0.7:
                    sizes = np.where(random.random(size) < 0.3, _LARGE, 1.0)
                    numbers = numbers * sizes.reshape([-1 if dim == axis else 1 for dim in range(len(shape))])
        elif kind.kind in "iu":
            numbers = random.integers(0, _TOKENS, shape)
        elif kind.kind == "b":
            numbers = random.choice([-1, 1], shape) * random.uniform(1, 2, shape)
        else:
            raise Unclear(f"a value of type {kind}")
        self._numbers[name] = np.asarray(numbers)

    def give(self, name: str, array: Array) -> None:
        """Set a value."""
        self._numbers[name] = array

    def number(self, name: str) -> Array:
        """Return a value as real numbers or integers."""
        if name in self._numbers:
            return self._numbers[name]
        if name not in self.constants:
            raise Unclear(f"the value {name} is not known")
        if name in self._unsure:
            if self._actual:
                raise Unclear(f"{name} needs a stand-in")
            self.draw(name)
            return self._numbers[name]
        array = self.constants[name]
        if array.dtype.kind in "iu":
            return array.astype(np.int64)
        if array.dtype.kind not in "fb":
            raise Unclear(f"a constant of type {array.dtype}")
        numbers = array.astype(np.float64)
        return numbers if self._actual else _as_symbols(numbers, computed=name in self._computed)

    def evaluate(self, nodes: Sequence[onnx.NodeProto], targets: Iterable[str]) -> None:
        """Evaluate nodes in order, and forget each value after its last use."""
        last = {name: index for index, node in enumerate(nodes) for name in reads(node)}
        target_names = set(targets)
        for index, node in enumerate(nodes):
            if time.perf_counter() > self._until:
                raise Unclear("the time for a proof is up")
            self._node(node)
            for name in reads(node):
                if last[name] == index and name not in target_names:
                    self._numbers.pop(name, None)

    def _type(self, name: str) -> Typed:
        if name not in self._types:
            raise Unclear(f"the type of {name} is not known")
        return self._types[name]

    def _node(self, node: onnx.NodeProto) -> None:
        outputs, operator = [name for name in node.output if name], node.op_type
        if any(inner.op_type in RANDOM for inner in all_nodes([node])) or (
            operator == "Dropout" and len(node.input) > 2 and node.input[2]
        ):
            raise Unclear("a random operator")
        if operator in {"Shape", "Size"}:
            self._measure(node)
            return
        fixed = [not name or (name in self.constants and name not in self._unsure) for name in node.input]
        real = self._unrounded and self._type(outputs[0])[0].kind == "f" and operator in DEFINED
        if all(fixed) and operator not in BODIES and not real:
            arrays = {name: self.constants[name] for name in node.input if name}
            self.constants.update(zip(outputs, executed(node, arrays, self._opsets), strict=True))
            if not self._sized.isdisjoint(node.input):
                kinds = {name: array.dtype for name, array in self.constants.items() if name in node.input}
                old = not self._sizes.changing.keys().isdisjoint(outputs)
                many = operator == "Mul" and len(self._sized.intersection(node.input)) > 1
                sums = is_sum_of_sizes(node, kinds, self._sized, self._changing, self._lengths) and (old or not many)
                self._sized.update(outputs)
                if sums and self._unsure.isdisjoint(node.input):
                    self._static.update(outputs)
                else:
                    self._unsure.update(outputs)
            return
        if self._actual and (operator not in _REAL | MOVES | _EXACT or self._type(outputs[0])[0].kind in "iu"):
            raise Unclear(f"{operator} needs a stand-in")
        results = self._applied(node, fixed)
        for name, array in zip(outputs, results, strict=True):
            kind, shape = self._type(name)
            if kind.kind in "iu" and array.dtype.kind == "f":
                array = _token(array)  # noqa: PLW2901
            elif kind.kind in "fb":
                array = np.asarray(array, np.float64)  # noqa: PLW2901
            if array.shape != shape:
                raise Unclear(f"{operator} has the shape {array.shape} instead of {shape}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise Unclear(f"{operator} is not finite")
            self._numbers[name] = array

    def _measure(self, node: onnx.NodeProto) -> None:
        """Compute a Shape or Size at the tried sizes; mark it as unsure if it may not follow from the inputs' sizes."""
        name, (out, *_) = node.input[0], node.output
        sized = np.empty(self._type(name)[1], np.bool_)
        self.constants[out] = executed(node, {name: sized}, self._opsets)[0]
        self._static.add(out)
        if self._changing(name):
            self._sized.add(out)
            if node.op_type == "Shape":
                self._lengths.add(out)
            if name not in self._sizes.plain:
                self._unsure.add(out)

    def _changing(self, name: str) -> frozenset[int]:
        """Return the axes of a value that may change in size: all axes of a new value, unless its sizes are known."""
        changing = self._sizes.changing
        if not changing or name in self._static or (name not in changing and name in self._given):
            return frozenset()
        return changing.get(name, frozenset(range(len(self._type(name)[1]))))

    def _applied(self, node: onnx.NodeProto, fixed: Sequence[bool]) -> Sequence[Array]:  # noqa: PLR0911  # one rule each
        operator, plain = node.op_type, plain_domain(node.domain)
        typed = self._type(next(filter(None, node.output)))
        if plain not in {"", MICROSOFT} or operator in BODIES:
            return self._whole(node)
        integer = typed[0].kind in "iu"
        if self._order:
            return [self._ordered(node, fixed, typed)]
        xs = [self.number(name) if name else None for name in node.input]
        operands = [x for x in xs if x is not None]
        if operator == "Cast":
            return [self._cast(node, operands[0], typed)]
        if operator == "Dropout":
            return [operands[0], np.ones(operands[0].shape)][: len([name for name in node.output if name])]
        if integer and operator in ELEMENTWISE - {"Identity"}:
            return [self._integers(node, xs, typed, fixed)]
        if operator == "Where":
            condition, a, b = operands
            return [condition * a + (1 - condition) * b]
        if attributes_of(node).get("ceil_mode") and self._changing(node.input[0]):
            return self._whole(node)
        if operator == "Pow" and self._actual:
            return [np.power(operands[0], operands[1])]
        if operator in {"Gather", "GatherElements"} and fixed[1] and node.input[1] not in self._unsure:
            return self._exactly(node, fixed)
        if operator in _RULES and (not integer or operator in {"Gather", "GatherElements"}):
            axes = self._axes(node, fixed) if operator in REDUCTIONS else None
            call = Operation(node, attributes_of(node), xs, typed, self._opsets.get("", 17), axes, self._actual)
            return [np.asarray(_RULES[operator](call))]
        if (
            operator in MOVES | _EXACT
            and not plain
            and not (operator in _EXACT and integer and typed[0].itemsize < _WIDE)
        ):
            return self._exactly(node, fixed)
        if operator in ELEMENTWISE - {"BitCast", "CastLike"} and len([name for name in node.output if name]) == 1:
            numbers = standin(same_function(node), *(np.asarray(x, np.float64) for x in operands))
            return [_truth(numbers) if typed[0].kind == "b" else numbers]
        return self._whole(node)

    def _integers(self, node: onnx.NodeProto, xs: Sequence[Array | None], typed: Typed, fixed: Sequence[bool]) -> Array:
        """Evaluate an elementwise function with integers as its result."""
        operands = [x for x in xs if x is not None]
        if node.op_type == "Where":
            condition, a, b = operands
            return np.where(condition > 0.5, a, b) if fixed[0] else _hashed("Where", _token(condition), a, b)
        if Trait.WHOLE in operator_of(node).traits and typed[0].itemsize == _WIDE:
            return np.asarray(_RULES[node.op_type](Operation(node, {}, xs, typed, 0, None)))
        return _hashed(same_function(node), *operands)

    def _ordered(self, node: onnx.NodeProto, fixed: Sequence[bool], typed: Typed) -> Array:
        """Evaluate a maximum exactly, and a function that never falls as a random rising function."""
        operator, at = node.op_type, attributes_of(node)
        if fixed[0] or any(not is_fixed for is_fixed in fixed[1:]) or typed[0].kind != "f":
            raise Unclear(f"{operator} of several values, for an order")
        xs = [self.number(name) if name else None for name in node.input]
        x = np.asarray(xs[0])
        axes = self._axes(node, fixed) if operator == "ReduceMax" else tuple(range(2, x.ndim))
        if operator in {"GlobalMaxPool", "ReduceMax"} and axes:
            return np.asarray(x.max(axes, keepdims=bool(at.get("keepdims", 1))))
        if operator == "MaxPool" and len(node.output) == 1:
            parts = _windows(x, at["kernel_shape"], at, typed[1][2:], outside=-np.inf)
            return np.asarray(np.max([part for _, part in parts], axis=0))
        if operator in having(Trait.RISING) and at.get("alpha", 1.0) >= 0:
            return _rising(same_function(node), x)
        if operator == "Clip":
            key = repr([at, *(None if other is None else other.tolist() for other in xs[1:])])
            return _rising(key, x)
        if operator in VIEWS | {"Transpose"}:
            return self._exactly(node, fixed)[0]
        if operator in having(Trait.AFFINE):
            call = Operation(node, at, xs, typed, self._opsets.get("", 17), None)
            return self._cast(node, x, typed) if operator == "Cast" else np.asarray(_RULES[operator](call))
        raise Unclear(f"{operator}, for an order")

    def _cast(self, node: onnx.NodeProto, x: Array, typed: Typed) -> Array:
        """Return a value in another type; only a cast to a wider type leaves it unchanged."""
        before, after = self._type(node.input[0])[0], typed[0]
        if before.kind == after.kind and after.itemsize >= before.itemsize:
            return x
        if after.kind == "f" and (
            before.kind == "b" or (before.kind in "iu" and 2 * before.itemsize <= after.itemsize)
        ):
            return x
        key = f"Cast {before.kind} {after}"
        if x.dtype.kind == "i":
            tokens = _hashed(key, x)
            if after.kind == "f":
                return tokens / _TOKENS
            return _truth(tokens.astype(np.float64)) if after.kind == "b" else tokens
        numbers = standin(key, x)
        return _truth(numbers) if after.kind == "b" else numbers

    def _axes(self, node: onnx.NodeProto, fixed: Sequence[bool]) -> tuple[int, ...] | None:
        axes: Any = attributes_of(node).get("axes")
        if len(node.input) > 1 and node.input[1]:
            if not fixed[1]:
                return None
            axes = self.constants[node.input[1]].reshape(-1).tolist()
        rank = len(self._type(node.input[0])[1])
        if not axes:
            return () if attributes_of(node).get("noop_with_empty_axes") else tuple(range(rank))
        return tuple(sorted(axis % rank for axis in axes))

    def _exactly(self, node: onnx.NodeProto, fixed: Sequence[bool]) -> Sequence[Array]:
        """Run an operator of exact arithmetic or a move in double precision."""
        slots = operator_of(node).data
        data = [slot in slots if slots is not None else True for slot in range(len(node.input))]
        data = [is_data or (node.op_type == "Pad" and slot == 2) for slot, is_data in enumerate(data)]
        parameters = [slot for slot, name in enumerate(node.input) if name and not data[slot]]
        unknown = any(not fixed[slot] for slot in parameters)
        adding = attributes_of(node).get("reduction", "none") != "none"
        if unknown or adding or self._clamps(node, parameters):
            return self._whole(node)
        arrays = {name: self.number(name) if data[slot] else self.constants[name]
                  for slot, name in enumerate(node.input) if name}  # fmt: skip
        kinds = {arrays[name].dtype.kind for slot, name in enumerate(node.input) if name and data[slot]}
        if kinds == {"i", "f"}:
            arrays = {name: np.asarray(array, np.float64) if data[list(node.input).index(name)] else array
                      for name, array in arrays.items()}  # fmt: skip
        return executed(node, arrays, self._opsets)

    def _clamps(self, node: onnx.NodeProto, parameters: Sequence[int]) -> bool:
        """Return True if a move may act differently at other sizes: a Slice stops at the end of its axis."""
        if node.op_type in {"Expand", "Pad", "Resize", "Slice", "Tile"} and any(
            node.input[slot] in self._sized for slot in parameters
        ):
            return True
        axes, rank = self._changing(node.input[0]), len(self._type(node.input[0])[1])
        if node.op_type == "CenterCropPad" and axes:
            return True
        if node.op_type == "Squeeze" and axes:
            return not parameters and "axes" not in attributes_of(node)
        if node.op_type != "Slice" or not axes:
            return False
        operands = [self.constants[node.input[slot]].reshape(-1).tolist() if slot < len(node.input) and node.input[slot]
                 else None for slot in range(1, 5)]  # fmt: skip
        starts, ends, cut, steps = operands
        if starts is None or ends is None:
            return True
        return any(
            axis % rank in axes and (step != 1 or (start, min(end, _END)) not in _WHATEVER_SIZE)
            for start, end, axis, step in zip(
                starts, ends, cut or range(len(starts)), steps or [1] * len(starts), strict=True
            )
        )

    def _whole(self, node: onnx.NodeProto) -> list[Array]:
        """Return random functions of the operands as a whole."""
        if self._actual:
            raise Unclear(f"{node.op_type} needs a stand-in")
        key = f"{same_function(node)} {[bool(name) for name in node.input]}"
        names = list(reads(node)) if node.op_type in BODIES else [name for name in node.input if name]
        random, sums = np.random.default_rng(zlib.crc32(key.encode())), np.zeros(4)
        for name in names:
            x = np.arcsinh(self.number(name).astype(np.float64)).reshape(-1)
            sums += random.standard_normal((4, x.size)) @ x
        results = list[Array]()
        for name in filter(None, node.output):
            kind, shape = self._type(name)
            parts = random.standard_normal((4, *shape))
            numbers = np.tensordot(np.sin(3 * sums + [0.3, 1.1, 2.2, 5.0]), parts, 1)
            results.append(
                _token(numbers) if kind.kind in "iu" else _truth(numbers) if kind.kind == "b" else np.asarray(numbers)
            )
        return results


_loaded: dict[bytes, Any] = {}
_MOST_LOADED = 500


def executed(node: onnx.NodeProto, arrays: Mapping[str, Array], opsets: Mapping[str, int]) -> list[Array]:
    """Run one node with the runtime, and return its outputs that have names.

    Raises:
        Unclear: The runtime cannot run the node.
    """
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in arrays.items()
    ]
    names = [name for name in node.output if name]
    graph = helper.make_graph([node], "one", inputs, [onnx.ValueInfoProto(name=name) for name in names])
    versions = {"": 17, **opsets}
    versions.setdefault(plain_domain(node.domain), 1)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*entry) for entry in versions.items()])
    model.ir_version = 8
    data = model.SerializeToString(deterministic=True)
    try:
        if data not in _loaded:
            if len(_loaded) > _MOST_LOADED:
                _loaded.clear()
            _loaded[data] = session(data, optimised=False)
        return list(_loaded[data].run(names, dict(arrays)))
    except Exception as error:  # the runtime refuses nodes in its own ways
        raise Unclear(f"{node.op_type}: {' '.join(str(error).split())[:120]}") from error
