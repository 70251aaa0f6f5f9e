"""Every model of the onnx wheel's test data ends in a skeleton that computes what the file computes, or in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from dlbricks.errors import ModelError
from dlbricks.models import find_models
from dlbricks.models.skeleton import KEPT_ELEMENTS, is_weight
from onnx import numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented  # noqa: A004

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
CORPUS = find_models([DATA / folder for folder in ("light", "simple", "pytorch-converted", "pytorch-operator")])


@pytest.mark.parametrize("source", CORPUS, ids=lambda source: source.name)
def test_skeleton(source) -> None:
    try:
        skeleton = source.skeleton()
    except ModelError as error:
        pytest.fail(f"no model of the corpus is refused today: {error}")
    graph = skeleton.model.graph
    onnx.checker.check_model(skeleton.model)
    assert not [node for node in graph.node if node.op_type == "Constant"]
    assert all(np.prod(tensor.dims) <= KEPT_ELEMENTS for tensor in graph.initializer)
    for value in graph.input:
        if value.type.HasField("tensor_type"):
            assert all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    constants = onnx.load(source.path).graph.initializer
    held = sum(numpy_helper.to_array(tensor).nbytes for tensor in constants)
    assert skeleton.weight_bytes >= held


def test_outputs_are_those_of_the_file() -> None:
    """With the file's own weights fed to the skeleton's weight inputs."""
    compared = 0
    for source in CORPUS:
        if source.path is None or "pytorch" not in str(source.path):
            continue
        original = onnx.load(source.path)
        try:
            reference = session(original)
        except NotImplemented:
            continue  # ONNX Runtime has no kernels for some operators of opset 6
        arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in original.graph.initializer}
        for node in original.graph.node:
            if node.op_type == "Constant":
                arrays[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        given = {}
        for number, name in enumerate(value.name for value in original.graph.input if value.name not in arrays):
            tensor = onnx.load_tensor(source.path.parent / "test_data_set_0" / f"input_{number}.pb")
            given[name] = numpy_helper.to_array(tensor)
        skeleton = source.skeleton().model
        weights = {value.name: arrays[value.name] for value in skeleton.graph.input if is_weight(value)}
        expected = reference.run(None, given)
        for want, got in zip(expected, session(skeleton).run(None, {**given, **weights}), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=source.name)
        compared += 1
    assert compared >= 60


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # models this old list initializers as inputs, and are warned of it
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
