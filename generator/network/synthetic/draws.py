"""How one synthetic weight is drawn, and the drawing itself, at memory speed.

Fresh normal numbers cost 10 ns each, 1.5 s for VGG-19. Tensors are therefore cut from one pool of normal numbers per
seed, each from its own offset. The pool's length is prime, so that the rows of a matrix do not repeat within it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import helper

__all__ = ["BIAS", "Draw", "draw"]

BIAS = 0.02
"""Standard deviation of biases, and of float weights that nothing asks anything of."""

_NORMALS = 1_048_573
_UNIFORMS = 65_521
_MASK64 = (1 << 64) - 1

Array = npt.NDArray[Any]
# numpy's own know no bfloat16, float8 and int4; these are untyped
_iinfo: Callable[..., Any] = ml_dtypes.iinfo
_finfo: Callable[..., Any] = ml_dtypes.finfo


@dataclass(frozen=True, slots=True)
class Draw:
    """The distribution of one weight.

    Attributes:
        kind: ``normal``: mean 0, standard deviation ``high``. ``uniform``: from ``low`` to ``high``. ``integer``:
            from ``low`` to ``high`` - 1. ``quantised``: normal around the middle of the integer type, standard
            deviation ``high``, clipped to the type. ``values``: exactly ``values``, repeated over the shape.
        low: See ``kind``.
        high: See ``kind``.
        values: See ``kind``.
    """

    kind: Literal["normal", "uniform", "integer", "quantised", "values"]
    low: float = 0.0
    high: float = 0.0
    values: tuple[float, ...] = ()

    @property
    def rms(self) -> float:
        """Root of the mean square of what is drawn."""
        if self.kind in {"normal", "quantised"}:
            return self.high
        if self.kind == "values":
            return math.sqrt(sum(value * value for value in self.values) / max(1, len(self.values)))
        return math.sqrt((self.low * self.low + self.low * self.high + self.high * self.high) / 3)


@lru_cache(maxsize=2)
def _pools(seed: int) -> tuple[Array, Array]:
    generator = np.random.Generator(np.random.PCG64(seed))
    normals = generator.standard_normal(_NORMALS, dtype=np.float32)
    # In double precision: in which order NumPy adds depends on its version and the processor, and must not show.
    normals -= np.float32(normals.mean(dtype=np.float64))
    normals /= np.float32(normals.std(dtype=np.float64))
    return normals, generator.random(_UNIFORMS, dtype=np.float32)


def _offset(numbers: Sequence[int], length: int) -> int:
    """Where in a pool of ``length`` a tensor begins: a splitmix64 hash of the numbers that identify it."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
        state ^= state >> 31
    return state % length


def _cut(pool: Array, offset: int, shape: Sequence[int], scale: float) -> Array:
    """Numbers from ``pool`` times ``scale``, starting at ``offset`` and wrapping around."""
    out = np.empty(math.prod(shape), np.float32)
    done = 0
    while done < out.size:
        part = pool[offset : offset + out.size - done]
        np.multiply(part, np.float32(scale), out=out[done : done + part.size])
        done += part.size
        offset = 0
    return out.reshape(tuple(shape))


def draw(recipe: Draw, dtype: int, shape: tuple[int, ...], *, seed: int, ordinal: int) -> Array:
    """The array of one weight: equal for equal arguments, on every machine.

    Args:
        recipe: Its distribution.
        dtype: ONNX element type (``onnx.TensorProto.FLOAT``).
        shape: Its shape.
        seed: Seed of the model; at least 0.
        ordinal: Position among the weights of the model. Names play no part.
    """
    target = helper.tensor_dtype_to_np_dtype(dtype)
    normals, uniforms = _pools(seed)
    identity = (ordinal, *shape)
    if recipe.kind == "values":
        return np.asarray(np.resize(np.array(recipe.values), shape).astype(target))
    if recipe.kind == "normal":
        return _cast(_cut(normals, _offset(identity, _NORMALS), shape, recipe.high), target)
    if recipe.kind == "quantised":
        limits = _iinfo(target)
        middle = (int(limits.min) + int(limits.max) + 1) // 2
        numbers = np.rint(_cut(normals, _offset(identity, _NORMALS), shape, recipe.high))
        return np.asarray(np.clip(numbers + middle, int(limits.min), int(limits.max)).astype(target))
    numbers = _cut(uniforms, _offset(identity, _UNIFORMS), shape, recipe.high - recipe.low)
    numbers += np.float32(recipe.low)
    if recipe.kind == "uniform":
        return _cast(numbers, target)
    return np.asarray(np.minimum(np.floor(numbers), recipe.high - 1).astype(target))


def _cast(numbers: Array, target: np.dtype[Any]) -> Array:
    """To the target type; what would be a denormal number there becomes zero."""
    if target == np.float32:
        return numbers
    if target != np.float64:
        limits = _finfo(target)
        numbers[np.abs(numbers) < float(limits.smallest_normal)] = 0
    return np.asarray(numbers.astype(target))
