"""The user's own inputs of a model, as npz files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import onnx

from ..errors import UsageError
from .subgraphs import static_shape

Feeds = dict[str, npt.NDArray[Any]]
"""A value for each input."""


def read_inputs(path: Path, inputs: Mapping[str, onnx.TypeProto]) -> Feeds:
    """Read the user's own inputs of a model.

    Args:
        path: An npz file with an array for each input.
        inputs: Type of each input, with static shapes.

    Raises:
        UsageError: The file cannot be read, or an array is missing, has another shape or another type.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError, BadZipFile) as error:
        raise UsageError(f"{path} is not an npz file of arrays", remedy="write it with numpy.savez") from error
    if arrays.keys() != inputs.keys():
        raise UsageError(f"{path} has {', '.join(sorted(arrays)) or 'no arrays'}, and the inputs are "
                         f"{', '.join(sorted(inputs))}")  # fmt: skip
    for name, array in arrays.items():
        kind = onnx.helper.tensor_dtype_to_np_dtype(inputs[name].tensor_type.elem_type)
        shape = static_shape(inputs[name])
        if array.dtype != kind or shape != array.shape:
            raise UsageError(f"{path}: '{name}' is {array.dtype}{list(array.shape)}, and the input is "
                             f"{kind}{list(shape or ())}", remedy="give the sizes with --dim or --batch")  # fmt: skip
    return arrays


def check_inputs(path: Path, network: Path) -> None:
    """Raise ``UsageError`` if an npz file does not hold the inputs of a model.

    Args:
        path: The npz file.
        network: The model's file, with static shapes.
    """
    graph = onnx.load(network, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    read_inputs(path, {value.name: value.type for value in graph.input if value.name not in constants})
