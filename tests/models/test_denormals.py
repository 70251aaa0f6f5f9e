"""Denormal numbers among weights, wherever a file keeps them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.models import denormals, find_models
from dlbricks.models.denormals import denormal_weights
from onnx import helper, numpy_helper

WEIGHTS = np.array([1e-45, -1e-40, 1.1e-38, 1.2e-38, 0.0, -0.0, 1.0, np.inf, np.nan, 1e-30], np.float32)
"""Three denormal numbers, the smallest normal one, and others."""

BODY = '<ir_version: 8, opset_import: ["": 17]> g (float[10] x, bool c) => (float[10] y) {{{0}}}'


def counted(
    folder: Path, body: str, *tensors: onnx.TensorProto, constant: bool = False, **how: object
) -> dict[str, int]:
    model = onnx.parser.parse_model(BODY.format(body))
    if constant:
        model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(WEIGHTS)))
    model.graph.initializer.extend(tensors)
    onnx.save(model, folder / "m.onnx", **how)
    (source,) = find_models([folder / "m.onnx"])
    return denormal_weights(source)


@pytest.mark.parametrize("at_once", [1, 4, 1 << 22])
def test_numbers_below_the_smallest_normal_one_are_counted(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(denormals, "_AT_ONCE", at_once)
    raw = numpy_helper.from_array(WEIGHTS, "w")
    listed = helper.make_tensor("v", onnx.TensorProto.FLOAT, [10], WEIGHTS.tolist())
    double = numpy_helper.from_array(WEIGHTS.astype(np.float64), "d")

    found = counted(tmp_path, "a = Add(x, w) y = Mul(a, v)", raw, listed, double)

    assert found == {"w": 3, "v": 3}


def test_weights_in_external_files_constants_and_bodies_are_counted(tmp_path):
    raw = numpy_helper.from_array(np.tile(WEIGHTS, 1000).reshape(1000, 10), "w")
    body = "a = ReduceMax<keepdims=0, axes=[0]>(w) y = Add(x, a)"

    assert counted(tmp_path, body, raw, save_as_external_data=True, location="m.bin", size_threshold=0) == {"w": 3000}
    assert counted(tmp_path, "y = Add(x, w)", constant=True) == {"w": 3}
    branch = (
        "y = If(c) <then_branch = one () => (float[10] p) <float[10] w = {1e-40,0,0,0,0,0,0,0,0,0}> {p = Add(x, w)},"
        " else_branch = two () => (float[10] q) {q = Neg(x)}>"
    )
    assert counted(tmp_path, branch) == {"w": 1}


def test_a_model_of_the_zoo_has_made_up_weights():
    (source,) = find_models(["squeezenet"])

    assert denormal_weights(source) == {}
