"""Executing a network for what it computes: types for the shape oracle, arrays for conformance."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ....bricks.constants import tensor_type
from ....errors import BackendError
from ....models.shapes import declared_shape
from ...backends.base import Backend, Settings
from ...network.network import synthetic_network
from ...network.types import array_type

__all__ = ["executed_types", "read_feeds", "write_arrays"]

_MOST_ATTEMPTS = 64
"""Executions that one call may take to work around operators that cannot run."""


def executed_types(
    model: onnx.ModelProto, names: Sequence[str], backend: Backend, settings: Settings, *, seed: int = 0
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Execute a skeleton-form model and return the types of some of its values.

    Where a value cannot be computed (an operator that the runtime lacks), the names are tried in halves, so that
    the others are found all the same.

    Returns:
        Name to element type (ONNX's name in lower case) and shape; what could not be computed is missing.
    """
    produced = {name for node in model.graph.node for name in node.output}
    types = {}
    for value in model.graph.input:
        if value.name in names:
            known = tensor_type(value.type.tensor_type.elem_type, declared_shape(value.type))
            if known is not None:  # an element type without a name is as good as none
                types[value.name] = known.dtype, known.shape
    waiting = [[name for name in names if name in produced]]
    attempts = _MOST_ATTEMPTS
    while waiting and attempts:
        wanted = waiting.pop(0)
        attempts -= 1
        try:
            types |= _types(model, wanted, backend, settings, seed=seed)
        except BackendError:
            if len(wanted) > 1:
                waiting += [wanted[: len(wanted) // 2], wanted[len(wanted) // 2 :]]
    return types


def _types(
    model: onnx.ModelProto, names: Sequence[str], backend: Backend, settings: Settings, *, seed: int
) -> dict[str, tuple[str, tuple[int, ...]]]:
    if not names:
        return {}
    network = synthetic_network(model, seed=seed, outputs=names)
    executable = backend.prepare(network, settings)
    try:
        executable.run()
        executable.synchronize()
        found = network.first_outputs(executable.outputs())
    finally:
        executable.close()
    return {name: array_type(array) for name, array in found.items()}


def write_arrays(path: Path, values: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an npz file; names may be anything. Types that NumPy lacks are written as float32."""
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, array in values.items():
            kind = array.dtype.kind
            plain = array if kind in "biufc" else array.astype(np.str_ if kind in "OSU" else np.float32)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, plain, allow_pickle=False)


def read_feeds(path: Path, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The inputs of a network with the values that an npz file has under their names.

    Args:
        path: A file that ``write_arrays`` wrote.
        feeds: The inputs; those that the file lacks, and strings, keep their values.

    Raises:
        BackendError: The file has an input of another shape.
    """
    found = dict(feeds)
    with np.load(path, allow_pickle=False) as archive:
        for name, own in feeds.items():
            if name not in archive.files or own.dtype == object:
                continue
            array = archive[name]
            if array.shape != own.shape:
                raise BackendError(f"input '{name}' is {list(own.shape)}, and {list(array.shape)} was given")
            found[name] = array.astype(own.dtype, order="C")  # a scalar stays one
    return found
