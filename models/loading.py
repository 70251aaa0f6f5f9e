"""From a model file to its skeleton: read, bring into normal form, bind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from onnx import ModelProto

from ..errors import BrokenModel, ModelError
from .binding import apply, kinds_of, plan
from .control.choices import Choice
from .dimensions import Kind
from .external import ExternalFolder
from .normal import normalise
from .reader import read_full, read_structure
from .skeleton import Skeleton

__all__ = ["load_full", "load_kinds", "load_skeleton"]


def load_skeleton(
    path: Path, *, batch: int | None = None, dims: Mapping[str, int] | None = None, control: tuple[Choice, ...] = ()
) -> Skeleton:
    """The structure of a model file, bound to static shapes, without weights.

    Args:
        path: The ONNX file.
        batch: Value of the batch dimension; None for 1, or what the file fixes.
        dims: Value by dimension name, or by ``input[axis]``. Names that the model does not have are ignored.
        control: What was said of the course of its control flow.

    Raises:
        ModelError: The file cannot be read or bound; which kind says why. The message names the file.
        UsageError: ``batch`` and ``dims`` contradict each other.
    """
    with _naming(path):
        normal = normalise(read_structure(path))
        binding = plan(normal.model, batch=batch, dims=dims)
        apply(normal.model, binding)
    return Skeleton(
        model=normal.model,
        bound=binding.bound,
        weight_bytes=normal.weight_bytes,
        path=path,
        overrides=binding.overrides,
        edited=binding.edited,
        control=control,
    )


def load_kinds(path: Path) -> dict[str, Kind]:
    """What each dynamic dimension of a model file counts, by name, or by ``input[axis]``.

    Raises:
        ModelError: The file cannot be read; which kind says why. The message names the file.
    """
    with _naming(path):
        return kinds_of(normalise(read_structure(path)).model)


def load_full(
    path: Path, *, batch: int | None = None, dims: Mapping[str, int] | None = None
) -> tuple[ModelProto, ExternalFolder]:
    """The same model as ``load_skeleton``, under the same names, with its weights.

    Embedded weights are read, so that this takes their size in memory several times over; external ones stay
    references.

    Returns:
        The model, and the folder of the external files that it refers to.

    Raises:
        DlbricksError: As ``load_skeleton``.
    """
    with _naming(path):
        binding = plan(normalise(read_structure(path)).model, batch=batch, dims=dims)
        model, folder = read_full(path)
        normal = normalise(model, keep_weights=True)
        apply(normal.model, binding)
    return normal.model, folder


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        raise type(error)(f"{path}: {error.message}", remedy=error.remedy) from error
    except UnicodeDecodeError as error:
        raise BrokenModel(f"{path}: a name in it is not UTF-8") from error
