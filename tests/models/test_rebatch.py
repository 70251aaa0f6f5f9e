"""Changing a batch that the file fixes: consistent, or refused with the obstacle named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from dlbricks.errors import UnsupportedModel
from dlbricks.models.binding import apply, plan
from dlbricks.models.normal import normalise
from dlbricks.models.runnable import load_skeleton
from onnx import ModelProto, TensorProto, numpy_helper

LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx"))


def parse(body: str, *, opset: int = 17) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {body}')


def rebatch(model: ModelProto, batch: int) -> ModelProto:
    normal = normalise(model).model
    apply(normal, plan(normal, batch=batch))
    return normal


def dims(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


FLATTEN = """g (float[1, 6] x) => (float[1, 6] y) <float[2, 3] mid> {
    to = Constant <value_ints = [2, 3]> ()
    back = Constant <value_ints = [1, -1]> ()
    mid = Reshape (x, to)
    y = Reshape (mid, back)
}"""


def test_samples_stay_apart() -> None:
    """Each row of the batch is computed as it would be alone."""
    source = parse(FLATTEN)
    alone = ort.InferenceSession(source.SerializeToString())
    model = rebatch(source, 3)
    onnx.checker.check_model(model)
    assert dims(model.graph.input[0]) == dims(model.graph.output[0]) == [3, 6]
    assert not model.graph.value_info
    assert {t.name: numpy_helper.to_array(t).tolist() for t in model.graph.initializer} == {
        "mid__target": [6, 3],
        "y__target": [3, -1],
    }
    x = np.random.default_rng(0).random((3, 6), np.float32)
    (y,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(y, np.concatenate([alone.run(None, {"x": row[None]})[0] for row in x]))


@pytest.mark.parametrize(
    ("body", "batch", "ends", "constants"),
    [
        ("(float[8, 6] x) => (float[24, 2] y) { t = Constant <value_ints = [24, 2]> () y = Reshape (x, t) }",
         2, [[2, 6], [6, 2]], {"y__target": [6, 2]}),  # fewer samples
        (("(float[1, 6] x) => (float[1, 6] y, int64[2] t) {"
         " t = Constant <value_ints = [1, 6]> () z = Relu (x) y = Reshape (z, t) }"),
         5, [[5, 6], [5, 6], [2]], {"t": [1, 6], "y__target": [5, 6]}),  # a target with other readers
        (("(float[1, 6] x) => (float[1, 6] y) { w = Constant <value = float[6] {1, 2, 3, 4, 5, 6}> ()"
         " t = Constant <value_ints = [1, 6]> () row = Reshape (w, t) y = Add (x, row) }"),
         5, [[5, 6], [5, 6]], {"w": [1, 2, 3, 4, 5, 6], "t": [1, 6]}),  # weights keep their shape
        ("(float[2, 6] a, float[2] b, float[6] c) => (float[2, 6] y) { d = Add (a, c) y = Add (d, c) z = Neg (b) }",
         4, [[4, 6], [4], [6], [4, 6]], {}),
    ],
)  # fmt: skip
def test_inputs_and_targets_follow(body: str, batch: int, ends: list[list[int]], constants: dict[str, object]) -> None:
    model = rebatch(parse(f"g {body}"), batch)
    assert [dims(value) for value in (*model.graph.input, *model.graph.output)] == ends
    assert {t.name: numpy_helper.to_array(t).tolist() for t in model.graph.initializer} == constants


def test_beside_dynamic_dimensions() -> None:
    source = parse("g (float[2, height] a) => (float[2, height] y) { y = Relu (a) }")
    normal = normalise(source).model
    binding = plan(normal, batch=3)
    apply(normal, binding)
    assert dims(normal.graph.input[0]) == dims(normal.graph.output[0]) == [3, 224]
    assert binding.bound == {"height": 224, "a[0]": 3}
    assert binding.edited


REFUSED = {
    "Concat": "(float[1, 2, 6] x) => (float[1, 3, 6] y) {"
    " token = Constant <value = float[1, 1, 6] {1, 2, 3, 4, 5, 6}> () y = Concat <axis = 1> (token, x) }",
    "Add": "(float[2, 6] x) => (float[2, 6] y) {"
    " w = Constant <value = float[2, 6] {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}> () y = Add (x, w) }",
    "Reshape 'y' .* do not lead its input": "(float[1, 5, 6] x) => (float[5, 2, 3] y) {"
    " t = Constant <value_ints = [5, 2, 3]> () z = Transpose <perm = [1, 0, 2]> (x) y = Reshape (z, t) }",
    "MatMul": "(float[2, 2] x) => (float[2, 2] y) { y = MatMul (x, x) }",
    "Reshape": "(float[1, 3] x) => (float[9] z) {"
    " o = Constant <value_ints = [9]> () t = Transpose <perm = [1, 0]> (x) y = MatMul (t, x) z = Reshape (y, o) }",
}


@pytest.mark.parametrize("obstacle", REFUSED)
def test_refused(obstacle: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"the fixed batch \d cannot be changed to 4: .*{obstacle}") as caught:
        rebatch(parse(f"g {REFUSED[obstacle]}"), 4)
    assert "dynamic batch" in str(caught.value)


def test_constant_state_of_a_recurrent_layer() -> None:
    source = parse("""g (float[1, 4, 3] x, float[1, 8, 3] w, float[1, 8, 2] r) => (float[4, 1, 1, 2] y) {
        state = Constant <value = float[1, 1, 2] {0.5, 0.5}> ()
        steps = Transpose <perm = [1, 0, 2]> (x)
        y = LSTM <hidden_size = 2> (steps, w, r, , , state)
    }""")
    for name in ("w", "r"):
        value = next(value for value in source.graph.input if value.name == name)
        source.graph.initializer.append(
            numpy_helper.from_array(
                np.ones([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32), name
            )
        )
    with pytest.raises(UnsupportedModel, match="LSTM 'y' starts from a constant state 'state'"):
        rebatch(source, 4)


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_models(path: Path) -> None:
    one, four = load_skeleton(path), load_skeleton(path, batch=4)
    inferred = onnx.shape_inference.infer_shapes(four.model, strict_mode=True, data_prop=True)
    assert dims(inferred.graph.output[0])[0] == 4
    assert dims(inferred.graph.output[0])[1:] == dims(one.model.graph.output[0])[1:]
    assert plan(normalise(onnx.load(path)).model, batch=4).edited
    assert not plan(normalise(onnx.load(path)).model).edited
    assert list(four.bound.values()) == [4]
    assert inferred.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
