"""Inputs of a decoder in a loop: new tokens, their positions, and masks over the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...bricks.decoder import DecoderInput, InputRole
from ...models.skeleton import LOW
from ...models.user_inputs import numpy_type

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class DecoderFile:
    """A decoder, as a worker runs it.

    Attributes:
        path: Its file.
        inputs: Its inputs.
        logits: The output with the scores of all tokens.
        vocabulary: Number of tokens; 1 if unknown, so that every token is legal.
        shared: Past and present keys and values are one buffer.
        fixed: Sizes of dimensions that count neither sequences nor positions, by label.
    """

    path: str
    inputs: tuple[DecoderInput, ...]
    logits: str
    vocabulary: int
    shared: bool
    fixed: dict[str, int] = field(default_factory=dict)

    @property
    def caches(self) -> tuple[DecoderInput, ...]:
        """The inputs with keys and values."""
        return tuple(entry for entry in self.inputs if entry.role is InputRole.CACHE)

    def cache_shape(self, entry: DecoderInput, *, batch: int, positions: int) -> tuple[int, ...]:
        """Return the shape of a cache of some positions."""
        return _shape(entry, self.fixed, batch, 0, positions)

    def feeds(self, tokens: npt.NDArray[np.int64], past: int) -> dict[str, Array]:
        """Return the inputs of one execution, but for the caches.

        Args:
            tokens: Shape (batch, new).
            past: Cached positions.
        """
        return {
            entry.name: _values(entry, self.fixed, tokens, past)
            for entry in self.inputs
            if entry.role is not InputRole.CACHE
        }


def dtype_of(entry: DecoderInput) -> np.dtype[Any]:
    """Return NumPy's type of an input."""
    return numpy_type(entry.dtype)


def _shape(entry: DecoderInput, fixed: Mapping[str, int], batch: int, new: int, past: int) -> tuple[int, ...]:
    counted = entry.sizes(batch, new, past)
    return tuple(
        own if own is not None else fixed.get(label, size or 0)
        for own, size, label in zip(entry.shape, counted, entry.labels, strict=True)
    )


def _values(entry: DecoderInput, fixed: Mapping[str, int], tokens: npt.NDArray[np.int64], past: int) -> Array:
    batch, new = tokens.shape
    shape = _shape(entry, fixed, batch, new, past)
    match entry.role:
        case InputRole.TOKENS:
            values: Any = tokens if len(shape) > 1 else tokens[0]
        case InputRole.POSITIONS:
            values = past + np.arange(new)
        case InputRole.MASK:
            values = _mask(entry, len(shape), past, new)
        case InputRole.BRANCH:
            values = past > 0
        case InputRole.LAST:
            values = past + new - 1
        case InputRole.TOTAL:
            values = past + new
        case _:
            values = 1
    return np.ascontiguousarray(np.broadcast_to(np.asarray(values), shape)).astype(dtype_of(entry))


def _mask(entry: DecoderInput, rank: int, past: int, new: int) -> Array:
    """Return a mask that hides later tokens only: ones, or numbers to add to scores."""
    if rank <= 2:
        return np.ones(past + new)
    seen = np.tri(new, past + new, past, dtype=bool)
    if dtype_of(entry).kind in "bi":
        return seen
    return np.where(seen, 0.0, LOW)
