"""Values on the way to a session and back."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from dlbricks.generator.backends.onnxruntime.session import array_of, bytes_of, value_of


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(3.0),
        np.zeros((0, 4), dtype=np.int64),
        np.array([True, False, True]),
        np.arange(5).astype(ml_dtypes.bfloat16),
        np.arange(5).astype(ml_dtypes.float8_e4m3fn),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_a_value_comes_back_as_it_went_and_its_size_is_that_of_the_array(array):
    value = value_of(array)

    assert bytes_of(value) == array.nbytes
    assert np.array_equal(array_of(value), array)


def test_values_of_four_bits_share_bytes():
    value = ort.OrtValue.ortvalue_from_shape_and_type([3, 3], 22)  # onnx.TensorProto.INT4

    assert bytes_of(value) == 5
