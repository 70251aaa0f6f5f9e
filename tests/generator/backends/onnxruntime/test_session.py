"""Values on the way to a session and back."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from computing import settings
from dlbricks.generator.backends.onnxruntime import session
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.backends.onnxruntime.session import array_of, bytes_of, value_of
from dlbricks.generator.network.network import synthetic_network


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


@pytest.mark.parametrize("graph", [
    "(int64[3] x, {0}[400,50] w0) => ({0}[3,50] y) {{y = Gather(w0, x)}}",
    "({0}[3,400] x, {0}[400,50] w0) => ({0}[3,50] y) {{y = MatMul(x, w0)}}",
])  # fmt: skip
@pytest.mark.parametrize(("element", "as_is"), [("float", True), ("float", False), ("float16", True)])
def test_huge_weights_are_read_in_place_and_outputs_stay(skeleton_of, monkeypatch, graph, element, as_is):
    network = replace(synthetic_network(skeleton_of(graph.format(element))), as_is=as_is)
    copied = OrtBackend().prepare(network, settings())
    copied.run()

    monkeypatch.setattr(session, "HUGE_BYTES", 1 << 10)
    shared = OrtBackend().prepare(network, settings())
    shared.run()

    (one,), (other,) = copied.outputs(), shared.outputs()
    assert np.array_equal(one, other)
    assert np.abs(one).max() > 0


def test_a_huge_table_is_not_copied(skeleton_of, monkeypatch):
    monkeypatch.setattr(session, "HUGE_BYTES", 1 << 10)
    lookup = "(int64[3] x, float[400,50] w0) => (float[3,50] y) {y = Gather(w0, x)}"
    network = replace(synthetic_network(skeleton_of(lookup)), as_is=True)
    executable = OrtBackend().prepare(network, settings())
    executable.run()
    (before,) = executable.outputs()

    network.weights["w0"][...] += 1
    executable.run()

    (after,) = executable.outputs()
    np.testing.assert_array_equal(after, before + 1)
