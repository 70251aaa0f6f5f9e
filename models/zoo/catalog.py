"""The entries of the zoo, their recipes, and the cache of exported structures."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ...errors import ModelError, ModelNotFound
from ...version import __version__
from ..cache import cache_folder
from ..skeleton import Skeleton
from .recipes import RECIPES, Recipe, ZooEntry
from .structures import LIGHT_FILES, bert_base, gpt2, light, vit_b16
from .writer import constant_bytes

# Architectures exported from ``transformers`` on demand, kept as skeletons in the user's cache folder.
#
# A file's name contains a digest of recipe, dimensions, the exporter's source, and the versions of this tool, torch,
# transformers and onnxscript. Files do not contain weights (some hundred kilobytes each) and appear only when complete.


_EXPORTER = Path(__file__).with_name("exports.py")
"""The exporter's source, which decides an export together with the recipe."""

_NEEDED = ("torch", "transformers", "onnxscript")
_CHILD = {
    "HF_HUB_OFFLINE": "1",  # a recipe that would download is a mistake
    "TRANSFORMERS_DISABLE_TORCH_CHECK": "1",  # ONNX has nothing for assertions on values
}
_NAMELESS = ZooEntry("", "", "cnn", "export")
_REMEDY = "pip install 'dlbricks[zoo]'"


def exported(recipe: Recipe, batch: int, dims: Mapping[str, int]) -> Skeleton:
    """Return the skeleton of a recipe, from the cache or exported now (seconds to a minute, in a separate process).

    Raises:
        ModelError: The ``zoo`` extra is not installed, the exporter failed, or the cache cannot be written.
    """
    path = cache_folder() / "zoo" / f"{recipe.entry.name}-{digest(recipe, batch, dims)}.onnx"
    model = _kept(recipe, batch, [f"{key}={value}" for key, value in dims.items()], path)
    return Skeleton(model, bound={"batch": batch, **dims}, weight_bytes=constant_bytes(model))


def exported_open(recipe: Recipe, batch: int) -> onnx.ModelProto:
    """Return the model of a recipe with its dimensions open under their names, for a loop of any length.

    Raises:
        ModelError: As in ``exported``.
    """
    dims = dict(recipe.entry.dims)
    path = cache_folder() / "zoo" / f"{recipe.entry.name}-open-{digest(recipe, batch, dims)}.onnx"
    return _kept(recipe, batch, [f"{key}={value}?" for key, value in dims.items()], path)


def _kept(recipe: Recipe, batch: int, dims: Sequence[str], path: Path) -> onnx.ModelProto:
    """Return the file in the cache; export it if it is missing or unreadable."""
    model = _cached(path)
    if model is None:
        _export(recipe.entry.name, batch, dims, path)
        model = onnx.load(path)
    return model


def digest(recipe: Recipe, batch: int, dims: Mapping[str, int]) -> str:
    """Return a digest of everything that decides an exported skeleton.

    Raises:
        ModelError: The ``zoo`` extra is not installed.
    """
    try:
        versions = _versions()
    except metadata.PackageNotFoundError as error:
        raise ModelError(
            f"zoo model '{recipe.entry.name}' is exported with {error.name}, which is not installed", remedy=_REMEDY
        ) from error
    build = replace(recipe, entry=_NAMELESS)  # the list's entry does not matter
    parts = (__version__, *versions, _exporter(), repr(build), str(batch), repr(sorted(dims.items())))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def _versions() -> tuple[str, ...]:
    return tuple(metadata.version(name) for name in _NEEDED)


@cache
def _exporter() -> str:
    return _EXPORTER.read_text()


def _cached(path: Path) -> onnx.ModelProto | None:
    try:
        return onnx.load(path)
    except (FileNotFoundError, DecodeError):  # a damaged file is exported again
        return None


def _export(name: str, batch: int, dims: Sequence[str], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
            model_path = Path(folder) / "model.onnx"
            done = subprocess.run(
                [sys.executable, "-P", "-m", f"{__package__}.exports", name, str(model_path), str(batch), *dims],
                env={**os.environ, **_CHILD},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
                reason = reason.removeprefix(f"{ModelError.__module__}.{ModelError.__qualname__}: ")
                raise ModelError(f"zoo model '{name}' cannot be exported at {', '.join(dims)}: {reason}")
            model_path.replace(path)
    except OSError as error:
        raise ModelError(
            f"cannot keep zoo model '{name}' in {path.parent}: {error}", remedy="set DLBRICKS_CACHE to another folder"
        ) from error


def _transformer(name: str, task: str, dimension: str, size: int) -> ZooEntry:
    return ZooEntry(name, task, "transformer", "built-in", dims=((dimension, size),))


_BUILT_IN: dict[str, tuple[ZooEntry, tuple[int, int], Callable[..., Skeleton]]] = {
    "bert_base": (_transformer("bert_base", "text encoding", "sequence_length", 128), (1, 512), bert_base),
    "gpt2": (_transformer("gpt2", "language modelling", "sequence_length", 128), (1, 1024), gpt2),
    "vit_b16": (_transformer("vit_b16", "image classification", "image_size", 224), (16, 4096), vit_b16),
}
"""Entry, smallest and largest value of its dimension, and the function that writes it."""
_BATCHES = (1, 65536)
_SIZES = (1, 1 << 24)
_LIGHT = {name: ZooEntry(name, "image classification", "cnn", "light") for name in LIGHT_FILES}


def names() -> list[ZooEntry]:
    """Return every entry of the zoo, with or without its extra installed: light, built-in, exported."""
    return [
        *_LIGHT.values(),
        *(entry for entry, *_ in _BUILT_IN.values()),
        *(recipe.entry for recipe in RECIPES.values()),
    ]


def structure(name: str, *, batch: int | None = None, dims: Mapping[str, int] | None = None) -> Skeleton:
    """Return the skeleton of a zoo model, without weights.

    Args:
        name: A name of ``names()``.
        batch: Inputs per execution; None for 1.
        dims: Values of named dimensions (``sequence_length``, ``image_size``). Names that this model lacks are ignored,
            because one choice serves all models of a command.

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
        entry, limits, build = _BUILT_IN[name]
        values = {key: chosen.get(key, default) for key, default in entry.dims}
        for key, value in values.items():
            _check(name, key, value, limits)
        return build(size, **values)
    if name in RECIPES:
        values = _sizes(name, chosen)
        for key, value in values.items():
            _check(name, key, value, _SIZES)
        return exported(RECIPES[name], size, values)
    raise ModelNotFound(f"no model '{name}' in the zoo", remedy="see 'dlbricks models list'")


def open_structure(name: str, *, batch: int | None = None) -> onnx.ModelProto:
    """Return a decoder of the zoo with lengths open under their names, for a loop of any length.

    Args:
        name: A name of ``names()`` that ends in ``_prompt`` or ``_step``.
        batch: Inputs per execution; None for 1.

    Returns:
        Skeleton form with open dimensions.

    Raises:
        ModelNotFound: No entry has this name.
        ModelError: The entry is another kind of model, or its extra is not installed.
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
    """Return a digest of a zoo model, without its batch and anything constant in one version of dlbricks and onnx.

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
