"""The rewrites by name, and whole models with one of them applied."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import onnx

from ...bricks.graph.graph import ModelGraph, build_graph
from ...bricks.inference.shapes import ShapeOracle
from ...errors import ModelError, UsageError
from ...models import ModelSource
from ...models.external import ExternalFolder
from ...models.runnable import load_full
from ..network.export import export_model
from . import fusions, movement, simplifications
from . import padding_old as padding
from .pattern import Array, Match, ModelDraft, View


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One way to change a model so that it computes the same.

    Attributes:
        find: Where it applies.
        apply: Does it.
        tolerance: Largest difference of an output that rounding explains, relative to that output's largest value.
    """

    find: Callable[[View], list[Match]]
    apply: Callable[[ModelDraft, View, Match], None]
    tolerance: float = 1e-4


REWRITES: Mapping[str, Rewrite] = {
    "activations": Rewrite(fusions.find_activations, fusions.apply_activations, 1e-3),
    "attention": Rewrite(fusions.find_attention, fusions.apply_attention, 1e-3),
    "casts": Rewrite(movement.find_casts, movement.apply_casts, 1e-6),
    "constants": Rewrite(simplifications.find_constants, simplifications.apply_constants, 1e-5),
    "duplicates": Rewrite(simplifications.find_duplicates, simplifications.apply_duplicates, 1e-5),
    "expansions": Rewrite(simplifications.find_expansions, simplifications.apply_expansions, 1e-6),
    "islands": Rewrite(movement.find_islands, movement.apply_islands, 1e-3),
    "local_response": Rewrite(simplifications.find_local_response, simplifications.apply_local_response),
    "normalisations": Rewrite(fusions.find_normalisations, fusions.apply_normalisations, 1e-3),
    "one_hot": Rewrite(simplifications.find_one_hot, simplifications.apply_one_hot, 1e-6),
    "padding_8": Rewrite(partial(padding.find, multiple=8), padding.apply),
    "padding_16": Rewrite(partial(padding.find, multiple=16), padding.apply),
    "roundings": Rewrite(movement.find_rounding, movement.apply_casts, 2e-2),
    "sums": Rewrite(fusions.find_sums, fusions.apply_sums),
    "transposes": Rewrite(movement.find_transposes, movement.apply_transposes, 1e-6),
    "unsigned": Rewrite(simplifications.find_unsigned, simplifications.apply_unsigned, 5e-2),
}
"""By name, each with what it may change an output by."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A model that was changed.

    Attributes:
        path: The new file.
        count: Places that were changed.
        tolerance: As ``Rewrite``.
    """

    path: Path
    count: int
    tolerance: float


def matches(name: str, graph: ModelGraph, source: ModelSource | None = None) -> list[Match]:
    """Where a rewrite applies.

    Args:
        name: One of ``REWRITES``.
        graph: The model's own graph.
        source: The model, whose large constants are read where that decides; None: they are distinguished by name.

    Raises:
        UsageError: There is no such rewrite.
        ModelError: The model's constants cannot be read.
    """
    if name not in REWRITES:
        raise UsageError(f"there is no rewrite {name!r}", remedy=f"known are {', '.join(REWRITES)}")
    return REWRITES[name].find(_view(graph, source))


def _view(graph: ModelGraph, source: ModelSource | None) -> View:
    return View(graph, None if source is None or source.path is None else _Contents(source))


class _Contents:
    """What a model's large constants hold; the file is read when the first is asked for.

    Args:
        source: A model that is a file.
    """

    def __init__(self, source: ModelSource) -> None:
        self._source = source

    @cached_property
    def _file(self) -> tuple[Mapping[str, onnx.TensorProto], ExternalFolder]:
        assert self._source.path is not None  # noqa: S101  # the caller looked
        model, folder = load_full(self._source.path, batch=self._source.batch, dims=dict(self._source.dims))
        return {tensor.name: tensor for tensor in model.graph.initializer}, folder

    def __call__(self, name: str) -> Array | None:
        tensors, folder = self._file
        tensor = tensors.get(name)
        if tensor is None:
            return None
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return np.asarray(onnx.numpy_helper.to_array(tensor))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.frombuffer(folder.locate(tensor).read(), dtype=dtype).reshape(tuple(tensor.dims))


def as_file(source: ModelSource, folder: Path) -> ModelSource:
    """The model as a file with weights: itself, or for the zoo what ``models export`` would write.

    Raises:
        ModelError: It cannot be read or bound.
        BackendError: It cannot be written.
        OSError: It cannot be written there.
    """
    if source.path is not None:
        return source
    path = folder / "original.onnx"
    export_model(source, path, force=True)
    return replace(source, path=path, zoo=None, batch=None, dims=())


def rewritten(
    source: ModelSource, name: str, path: Path, *, oracle: ShapeOracle | None = None, values: Collection[str] = ()
) -> Rewritten | None:
    """Write a model with a rewrite applied wherever it applies.

    Args:
        source: A model that is a file.
        name: One of ``REWRITES``.
        path: The file to write; external data goes beside it.
        oracle: Finds shapes that inference does not.
        values: Only where one of these is made; all places where none is named.

    Returns:
        None where it applies nowhere.

    Raises:
        UsageError: There is no such rewrite.
        ModelError: The model cannot be read, changed or written.
    """
    if source.path is None:
        raise UsageError(f"{source.name} is no file", remedy="call as_file first")
    # Control flow stays: a model in which one branch stands for the whole would be another model.
    graph = build_graph(replace(source.skeleton(), control=None), oracle=oracle)
    found = [match for match in matches(name, graph, source) if not values or match.value in values]
    if not found:
        return None
    model, folder = load_full(source.path, batch=source.batch, dims=dict(source.dims))
    draft, view = ModelDraft(model), _view(graph, source)
    for match in found:
        REWRITES[name].apply(draft, view, match)
    changed = draft.finish()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(changed.SerializeToString(deterministic=True))
        for location, data in folder.locations.items():
            target = path.parent / location
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(data, target)
    except OSError as error:
        raise ModelError(f"{path} cannot be written: {error.strerror}") from error
    return Rewritten(path, len(found), REWRITES[name].tolerance)
