"""The two models of a decoder, and each of them at several lengths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import UnboundDimension, UsageError
from ...models import ModelSource
from ...models.dimensions import Kind
from ...models.source import find_models

__all__ = ["Lengthy", "lengthy", "pair"]

_PARTS = ("_prompt", "_step")
"""What names of the zoo end in: of the model that fills a cache, and of that which extends it."""


@dataclass(frozen=True, slots=True)
class Lengthy:
    """A model, and the dimension of it that is varied.

    Attributes:
        source: The model; nothing of it is read.
        dimension: Name of the dimension.
    """

    source: ModelSource
    dimension: str

    def at(self, lengths: Iterable[int]) -> list[ModelSource]:
        """The model at each of some lengths, its name with ``@dimension=length`` at its end."""
        return [
            replace(
                self.source,
                name=f"{self.source.name}@{self.dimension}={length}",
                dims=(*((name, size) for name, size in self.source.dims if name != self.dimension),
                      (self.dimension, length)),
            )
            for length in lengths
        ]  # fmt: skip


def pair(models: Sequence[str], dims: Mapping[str, int] | None = None) -> tuple[ModelSource, ModelSource]:
    """The model of the prompt and that of a step: two models, or the name that two of the zoo begin with.

    Args:
        models: Files or names.
        dims: Values of dimensions that are not varied, such as the length of what an encoder reads.

    Raises:
        UsageError: There are more, or one that is no such name, or an argument is several models.
    """
    arguments = [f"{models[0]}{part}" for part in _PARTS] if len(models) == 1 else list(models)
    found = find_models(arguments, dims=dims)
    problem = next((source.problem for source in found if source.problem), None)
    if len(models) == 1 and problem is not None:
        raise UsageError(
            f"'{models[0]}' is no decoder of the zoo",
            remedy="give the model of the prompt and that of a step; "
            "'dlbricks models list' shows names that end in _prompt and _step",
        )
    if problem is not None:
        raise problem
    if len(found) != len(_PARTS):
        raise UsageError(f"{len(found)} models are not a prompt and a step", remedy="give two models, or one name")
    return found[0], found[1]


def lengthy(source: ModelSource, kind: Kind, dimension: str | None, option: str) -> Lengthy:
    """A model with the dimension that counts its length.

    Args:
        source: The model.
        kind: What the dimension counts: ``SEQUENCE`` or ``PAST``.
        dimension: Its name; None: it is found by what it is called and where it stands.
        option: What gives the name, for the error.

    Raises:
        UnboundDimension: There is no such dimension.
        ModelError: The model cannot be read.
    """
    known = source.open_dimensions()
    name = dimension or next((name for name, found in known.items() if found is kind), None)
    if name is None or name not in known:
        what = f"dimension '{dimension}'" if dimension else f"open dimension that counts {_COUNTED[kind]}"
        remedy = f"there are {', '.join(known)}: {option} NAME" if known else "export it with dynamic dimensions"
        raise UnboundDimension(f"model '{source.name}' has no {what}", remedy=remedy)
    return Lengthy(source, name)


_COUNTED = {Kind.SEQUENCE: "tokens of a prompt", Kind.PAST: "positions of a cache"}
