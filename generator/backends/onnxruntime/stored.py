"""A model that ONNX Runtime wrote: its external weights taken into memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
from onnx import external_data_helper, numpy_helper

__all__ = ["take_weights"]


def take_weights(model: onnx.ModelProto, folder: str) -> dict[str, npt.NDArray[np.generic]]:
    """Values of a model's external initializers, which are marked as being in memory afterwards.

    Args:
        model: Loaded without its external data; changed.
        folder: Where the external data is.
    """
    found = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            external_data_helper.load_external_data_for_tensor(tensor, folder)
            found[tensor.name] = np.array(numpy_helper.to_array(tensor))
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            del tensor.external_data[:]
            tensor.external_data.add(key="location", value="in-memory")
    return found
