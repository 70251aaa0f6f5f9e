"""Architectures exported from ``transformers`` on demand, kept as skeletons in a folder of the user's.

The folder is ``$DLBRICKS_CACHE``, else ``~/.cache/dlbricks``. A file's name carries a digest of everything that made
it: recipe, dimensions, the exporter's own source, and the versions of this tool, torch, transformers and onnxscript.
Files hold no weights (some hundred kilobytes each) and appear whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ...errors import ModelError
from ...version import __version__
from ..skeleton import Skeleton
from .entry import ZooEntry
from .recipe import Recipe
from .writer import constant_bytes

__all__ = ["cache_folder", "digest", "exported", "exported_open"]

_EXPORTER = tuple(Path(__file__).with_name(name) for name in ("exports.py", "calls.py"))
"""What decides, beside the recipe, what an export is."""

_NEEDED = ("torch", "transformers", "onnxscript")
_CHILD = {
    "HF_HUB_OFFLINE": "1",  # a recipe that would download is a mistake
    "TRANSFORMERS_DISABLE_TORCH_CHECK": "1",  # ONNX has nothing for assertions on values
}
_NAMELESS = ZooEntry("", "", "cnn", "export")
_REMEDY = "pip install 'dlbricks[zoo]'"


def cache_folder() -> Path:
    """Where exported skeletons are kept: ``$DLBRICKS_CACHE``, else ``~/.cache/dlbricks``."""
    chosen = os.environ.get("DLBRICKS_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "dlbricks"


def exported(recipe: Recipe, batch: int, dims: Mapping[str, int]) -> Skeleton:
    """The skeleton of a recipe, from the cache or exported now (seconds to a minute, in a process of its own).

    Args:
        recipe: What to build.
        batch: Inputs per execution.
        dims: A value for every dimension of the recipe.

    Raises:
        ModelError: The ``zoo`` extra is not installed, the exporter failed, or the cache cannot be written.
    """
    path = cache_folder() / "zoo" / f"{recipe.entry.name}-{digest(recipe, batch, dims)}.onnx"
    model = _kept(recipe, batch, [f"{key}={value}" for key, value in dims.items()], path)
    return Skeleton(model, bound={"batch": batch, **dims}, weight_bytes=constant_bytes(model))


def exported_open(recipe: Recipe, batch: int) -> onnx.ModelProto:
    """The same, but that the recipe's own dimensions stay open, under their names: what a loop of any length executes.

    Args:
        recipe: What to build.
        batch: Inputs per execution.

    Raises:
        ModelError: As for ``exported``.
    """
    dims = dict(recipe.entry.dims)
    path = cache_folder() / "zoo" / f"{recipe.entry.name}-open-{digest(recipe, batch, dims)}.onnx"
    return _kept(recipe, batch, [f"{key}={value}?" for key, value in dims.items()], path)


def _kept(recipe: Recipe, batch: int, dims: Sequence[str], path: Path) -> onnx.ModelProto:
    """The file in the cache; where there is none that can be read, it is exported."""
    model = _cached(path)
    if model is None:
        _export(recipe.entry.name, batch, dims, path)
        model = onnx.load(path)
    return model


def digest(recipe: Recipe, batch: int, dims: Mapping[str, int]) -> str:
    """Everything that makes an exported skeleton, in short.

    Raises:
        ModelError: The ``zoo`` extra is not installed.
    """
    try:
        versions = _versions()
    except metadata.PackageNotFoundError as error:
        raise ModelError(
            f"zoo model '{recipe.entry.name}' is exported with {error.name}, which is not installed", remedy=_REMEDY
        ) from error
    build = replace(recipe, entry=_NAMELESS)  # what the list says about it makes no difference
    parts = (__version__, *versions, _exporter(), repr(build), str(batch), repr(sorted(dims.items())))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def _versions() -> tuple[str, ...]:
    return tuple(metadata.version(name) for name in _NEEDED)


@cache
def _exporter() -> str:
    return "".join(file.read_text() for file in _EXPORTER)


def _cached(path: Path) -> onnx.ModelProto | None:
    try:
        return onnx.load(path)
    except (FileNotFoundError, DecodeError):  # a damaged file is exported again
        return None


def _export(name: str, batch: int, dims: Sequence[str], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
            made = Path(folder) / "model.onnx"
            done = subprocess.run(
                [sys.executable, "-P", "-m", f"{__package__}.exports", name, str(made), str(batch), *dims],
                env={**os.environ, **_CHILD},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
                reason = reason.removeprefix(f"{ModelError.__module__}.{ModelError.__qualname__}: ")
                raise ModelError(f"zoo model '{name}' cannot be exported at {', '.join(dims)}: {reason}")
            made.replace(path)
    except OSError as error:
        raise ModelError(
            f"cannot keep zoo model '{name}' in {path.parent}: {error}", remedy="set DLBRICKS_CACHE to another folder"
        ) from error
