"""What the zoo holds: one entry per name, and the recipe behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx

from ...errors import ModelError, ModelNotFound
from ..skeleton import Skeleton
from .bert import bert_base
from .cache import digest, exported, exported_open
from .entry import ZooEntry
from .gpt2 import gpt2
from .light import LIGHT_FILES, light
from .recipes import RECIPES
from .vit import vit_b16

__all__ = ["fingerprint", "names", "open_structure", "structure"]


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    entry: ZooEntry
    limits: Mapping[str, tuple[int, int]]  # smallest and largest value of each dimension
    build: Callable[..., Skeleton]


_BUILT_IN = {
    built.entry.name: built
    for built in (
        _BuiltIn(
            ZooEntry("bert_base", "text encoding", "transformer", "built-in", dims=(("sequence_length", 128),)),
            {"sequence_length": (1, 512)},
            bert_base,
        ),
        _BuiltIn(
            ZooEntry("gpt2", "language modelling", "transformer", "built-in", dims=(("sequence_length", 128),)),
            {"sequence_length": (1, 1024)},
            gpt2,
        ),
        _BuiltIn(
            ZooEntry("vit_b16", "image classification", "transformer", "built-in", dims=(("image_size", 224),)),
            {"image_size": (16, 4096)},
            vit_b16,
        ),
    )
}
_BATCHES = (1, 65536)
_SIZES = (1, 1 << 24)
_LIGHT = {name: ZooEntry(name, "image classification", "cnn", "light") for name in LIGHT_FILES}


def names() -> list[ZooEntry]:
    """Every entry of the zoo, whether or not its extra is installed: light, built-in, exported."""
    return [
        *_LIGHT.values(),
        *(built.entry for built in _BUILT_IN.values()),
        *(recipe.entry for recipe in RECIPES.values()),
    ]


def structure(name: str, *, batch: int | None = None, dims: Mapping[str, int] | None = None) -> Skeleton:
    """The skeleton of a zoo model, without weights.

    Args:
        name: A name of ``names()``.
        batch: Inputs per execution; 1 where None.
        dims: Values of named dimensions (``sequence_length``, ``image_size``); names that this model does not have are
            ignored, because one choice serves all models of a command.

    Raises:
        ModelNotFound: No entry has this name.
        ModelError: The batch or a dimension is out of range, or the entry's extra is not installed.
    """
    chosen = dict(dims or {})
    size = chosen.get("batch", 1) if batch is None else batch
    _check(name, "batch", size, _BATCHES)
    if name in _LIGHT:
        return light(name, size)
    if name in _BUILT_IN:
        built = _BUILT_IN[name]
        values = {key: chosen.get(key, default) for key, default in built.entry.dims}
        for key, value in values.items():
            _check(name, key, value, built.limits[key])
        return built.build(size, **values)
    if name in RECIPES:
        values = _sizes(name, chosen)
        for key, value in values.items():
            _check(name, key, value, _SIZES)
        return exported(RECIPES[name], size, values)
    raise ModelNotFound(f"no model '{name}' in the zoo", remedy="see 'dlbricks models list'")


def open_structure(name: str, *, batch: int | None = None) -> onnx.ModelProto:
    """A decoder of the zoo whose lengths stay open under their names: what a loop of any length executes.

    Args:
        name: A name of ``names()`` that ends in ``_prompt`` or ``_step``.
        batch: Inputs per execution; 1 where None.

    Returns:
        In skeleton form, but for the dimensions that are open.

    Raises:
        ModelNotFound: No entry has this name.
        ModelError: It is no such decoder, or the entry's extra is not installed.
    """
    if name not in {entry.name for entry in names()}:
        raise ModelNotFound(f"no model '{name}' in the zoo", remedy="see 'dlbricks models list'")
    recipe = RECIPES.get(name)
    if recipe is None or not recipe.cache:
        raise ModelError(
            f"the dimensions of zoo model '{name}' cannot stay open",
            remedy="those of decoders with a cache can, whose names end in _prompt or _step",
        )
    size = 1 if batch is None else batch
    _check(name, "batch", size, _BATCHES)
    return exported_open(recipe, size)


def fingerprint(name: str, dims: Mapping[str, int]) -> str:
    """What a zoo model is made of, in short, beside its batch and what is the same in one version of dlbricks and onnx.

    Args:
        name: A name of ``names()``.
        dims: As for ``structure``.

    Raises:
        ModelError: The entry's extra is not installed.
    """
    if name not in RECIPES:
        return name
    return f"{name} {digest(RECIPES[name], 1, _sizes(name, dims))}"


def _sizes(name: str, chosen: Mapping[str, int]) -> dict[str, int]:
    return {key: chosen.get(key, default) for key, default in RECIPES[name].entry.dims}


def _check(name: str, dimension: str, value: int, limits: tuple[int, int]) -> None:
    low, high = limits
    if not low <= value <= high:
        raise ModelError(f"zoo model '{name}' cannot have {dimension}={value}", remedy=f"use {low} to {high}")
