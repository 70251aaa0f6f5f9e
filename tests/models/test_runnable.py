"""What is handed to a runtime really runs there, and computes what the file computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from dlbricks.errors import BrokenModel, UnsupportedModel
from dlbricks.generator.network.synthetic.weights import synthesise
from dlbricks.models import find_models
from dlbricks.models.runnable import Runnable
from dlbricks.models.skeleton import is_weight
from onnx import ModelProto, TensorProto, helper, numpy_helper

RNG = np.random.default_rng(0)
WEIGHT = RNG.random((3, 700), np.float32)


def network(*dims: int | str | None, extra: list[int] | None = None) -> ModelProto:
    """``x @ w``, cut to as many rows as ``extra`` says."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"])]
    nodes += [
        helper.make_node("Constant", [], ["to"], value_ints=extra or [0, -1]),
        helper.make_node("Reshape", ["p", "to"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(WEIGHT, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def execute(runnable: Runnable, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    for name, value in runnable.overrides:
        options.add_free_dimension_override_by_name(name, value)
    session = ort.InferenceSession(runnable.path, options, providers=["CPUExecutionProvider"])
    shapes = {value.name: tuple(value.shape) for value in session.get_inputs()}
    for name, _, shape in runnable.inputs:
        assert shapes[name] == shape
    return session.run(None, feeds)[0]


def source(path: Path, model: ModelProto, **options: object):
    path.write_bytes(model.SerializeToString())
    (found,) = find_models([path], **options)  # type: ignore[arg-type]
    return found


def test_overrides_suffice(tmp_path: Path) -> None:
    out = tmp_path / "out"
    runnable = source(tmp_path / "m.onnx", network("batch", "seq", 3), batches=[2], dims={"seq": 5}).runnable(out)
    assert runnable == Runnable(tmp_path / "m.onnx", False, (("batch", 2), ("seq", 5)), (("x", "float", (2, 5, 3)),))
    assert not out.exists()
    x = RNG.random((2, 5, 3), np.float32)
    np.testing.assert_allclose(execute(runnable, {"x": x}), (x @ WEIGHT).reshape(2, -1), rtol=1e-5)


def test_a_file_with_open_lengths_is_loaded_as_it_is(tmp_path: Path) -> None:
    model = network("", "seq", 3)  # the batch has no name that could be overridden
    found = replace(source(tmp_path / "m.onnx", model, batches=[2], dims={"seq": 5}), opened=True)

    runnable = found.runnable(tmp_path / "out")

    assert runnable == Runnable(tmp_path / "m.onnx", False, (), (("x", "float", (2, 5, 3)),))
    assert found.skeleton().opened


def test_a_branch_that_is_never_taken_contradicts_nothing(tmp_path: Path) -> None:
    """An LSTM's state says the batch; the branch for a high rate wants an input of nine columns."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[rows, columns] x, float[2, unknown, 4] state, int64 rate) => (float[n] y)
        <int64 limit = {1000000}, int64[1] nine = {9}, int64[1] eight = {8}> {
            high = Greater(rate, limit)
            y = If(high) <then_branch = a () => (float[9] p) { p = Reshape(x, nine) },
                          else_branch = b () => (float[8] q) { q = Reshape(x, eight) }>
        }""")
    for value in model.graph.input[:2]:
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    found = source(tmp_path / "model.onnx", model, dims={"x[1]": 8})

    runnable = found.runnable(tmp_path)

    assert runnable.path == tmp_path / "model.onnx"
    assert [shape for _, _, shape in runnable.inputs] == [(1, 8), (2, 1, 4), ()]
    feeds = {
        name: np.zeros(shape, np.int64 if dtype == "int64" else np.float32) for name, dtype, shape in runnable.inputs
    }
    (y,) = ort.InferenceSession(runnable.path, providers=["CPUExecutionProvider"]).run(None, feeds)
    assert y.shape == (8,)


def test_changed_batch(tmp_path: Path) -> None:
    model = network(1, 2, 3, extra=[1, -1])
    runnable = source(tmp_path / "m.onnx", model, batches=[3]).runnable(tmp_path / "out")
    assert runnable.inputs == (("x", "float", (3, 2, 3)),)
    x = RNG.random((3, 2, 3), np.float32)
    np.testing.assert_allclose(execute(runnable, {"x": x}), (x @ WEIGHT).reshape(3, -1), rtol=1e-5)


@pytest.mark.parametrize("location", ["w.bin", "data/w.bin"])
def test_changed_batch_with_external_data(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "in"
    (folder / location).parent.mkdir(parents=True)
    model = network(1, 2, 3, extra=[1, -1])
    (folder / location).write_bytes(bytes(64) + WEIGHT.tobytes())
    (tensor,) = model.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "64"), ("length", str(WEIGHT.nbytes))):
        tensor.external_data.add(key=key, value=value)
    found = source(folder / "m.onnx", model, batches=[2])
    runnable = found.runnable(tmp_path / "out")
    assert (runnable.path.parent / location).is_file()
    assert runnable.path.stat().st_size < 2000
    x = RNG.random((2, 2, 3), np.float32)
    np.testing.assert_allclose(execute(runnable, {"x": x}), (x @ WEIGHT).reshape(2, -1), rtol=1e-5)


def test_changed_batch_through_functions(tmp_path: Path) -> None:
    """The copy is edited under the names that inlining makes, with and without weights."""
    weight = np.arange(6 * 700, dtype=np.float32).reshape(6, 700) / 100
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "l": 1]>
        g (float[1, 2, 3] x) => (float[1, 700] y) { y = l.f (x) }
        <domain: "l", opset_import: ["": 17]> f (a) => (b)
        { t = Constant <value_ints = [1, 6]> () c = Reshape (a, t) b = MatMul (c, w) }""")
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight))
    model.functions[0].node.insert(0, constant)
    runnable = source(tmp_path / "m.onnx", model, batches=[2]).runnable(tmp_path)
    x = RNG.random((2, 2, 3), np.float32)
    np.testing.assert_allclose(execute(runnable, {"x": x}), x.reshape(2, 6) @ weight, rtol=1e-5)


def test_zoo_model(tmp_path: Path) -> None:
    (found,) = find_models(["squeezenet"])
    runnable = found.runnable(tmp_path)
    assert runnable.synthetic
    assert runnable.path == tmp_path / "squeezenet.onnx"
    assert [shape for _, _, shape in runnable.inputs] == [(1, 3, 224, 224)]
    model = onnx.load(runnable.path)
    weights = synthesise(model, seed=1)
    assert weights.keys() == {value.name for value in model.graph.input if is_weight(value)}
    image = {name: RNG.random(shape, np.float32) for name, _, shape in runnable.inputs}
    assert np.isfinite(execute(runnable, {**weights, **image})).all()


def test_inputs_that_are_no_tensors(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [])
    graph = helper.make_graph([helper.make_node("SequenceLength", ["s"], ["y"])], "g", [sequence], [y])
    found = source(tmp_path / "m.onnx", helper.make_model(graph))
    assert found.skeleton().model.graph.node[0].op_type == "SequenceLength"
    with pytest.raises(UnsupportedModel, match="input 's' is a sequence, not a tensor"):
        found.runnable(tmp_path)


def test_names_make_no_paths(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for folder in ("a", "."):
        (tmp_path / folder / "m.onnx").write_bytes(network(None, 3).SerializeToString())
    found = find_models([tmp_path], batches=[1, 2])
    paths = {one.runnable(tmp_path / "out").path for one in found}
    assert len(paths) == 4
    assert all(path.parent.parent == tmp_path / "out" for path in paths)


def test_an_input_without_an_element_type_is_a_broken_model(tmp_path: Path) -> None:
    for number in (TensorProto.UNDEFINED, 99):
        model = network(2, 5, 3)
        model.graph.input[0].type.tensor_type.elem_type = number
        with pytest.raises(BrokenModel, match="input 'x' has no element type"):
            source(tmp_path / "m.onnx", model).runnable(tmp_path / "out")
