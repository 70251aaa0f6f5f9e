"""Padded channels: models with them compute what they did before, whatever reads the channels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.generator.rewriting.padding import channel_masks_of
from dlbricks.generator.rewriting.pattern import View
from dlbricks.generator.rewriting.rewrite import rewritten
from dlbricks.models import ModelSource, find_models
from onnx import numpy_helper

Array = npt.NDArray[np.generic]

WEIGHTS = {
    "f1": (1, 3, 3, 3),
    "f7": (7, 3, 3, 3),
    "g7": (7, 3, 3, 3),
    "r1": (5, 1, 3, 3),
    "r7": (5, 7, 3, 3),
    "r8": (5, 8, 3, 3),
    "r14": (5, 14, 3, 3),
    "t7": (7, 5, 2, 2),
    "d7": (7, 1, 3, 3),
    "s7": (7, 1, 1),
    "c5": (1, 5, 1, 1),
    "q5": (5, 5, 3, 3),
    "one": (1, 1, 1),
    "m1": (1, 5),
    "m64": (64, 5),
    "m7": (7, 5),
}


def model(path: Path, body: str, shape: str = "1,3,8,8", opset: int = 17) -> ModelSource:
    """A model of ``body``, which makes ``y`` of ``x``."""
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> model (float[{shape}] x) => (float[a,b,c,d] y) {body}'
    )
    read = {name for node in made.graph.node for name in node.input}
    generator = np.random.default_rng(0)
    for name in sorted(read & WEIGHTS.keys()):
        values = generator.uniform(0.5, 1.5, WEIGHTS[name]) * generator.choice([-1.0, 1.0], WEIGHTS[name])
        made.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    (made.graph.output[0].type.tensor_type.ClearField("shape"))
    onnx.save(onnx.shape_inference.infer_shapes(made), path)
    (source,) = find_models([path])
    return source


def output(path: Path) -> Array:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    (one,) = session.get_inputs()
    x = np.random.default_rng(1).normal(size=one.shape).astype(np.float32)
    return np.asarray(session.run(None, {"x": x})[0])


def padded(source: ModelSource) -> set[str]:
    """Values that are padded."""
    return set(channel_masks_of(View(build_graph(source.skeleton())), 8)[0])


PAD = "pads=[1,1,1,1]"
A = f"a = Conv<{PAD}>(x, f7)"
B = f"b = Conv<{PAD}>(x, g7)"
ONE = f"a = Conv<{PAD}>(x, f1)"
READ = f"y = Conv<{PAD}>(z, r7)"

PADDED = {
    "concat": (f"{{{A} {B} z = Concat<axis=1>(a, b) y = Conv<{PAD}>(z, r14)}}", {"a", "b", "z"}),
    "concat of others": (f"{{{ONE} {B} z = Concat<axis=1>(a, b) y = Conv<{PAD}>(z, r8)}}", {"a", "b", "z"}),
    "gate": (f"{{{A} s = Sigmoid(a) z = Mul(s, a) {READ}}}", {"a", "s", "z"}),
    "squeezed gate": (
        f"{{{A} p = GlobalAveragePool(a) s = HardSigmoid(p) z = Mul(a, s) {READ}}}",
        {"a", "p", "s", "z"},
    ),
    "prelu": (f"{{{A} z = PRelu(a, s7) {READ}}}", {"a", "z"}),
    "prelu of one": (f"{{{A} z = PRelu(a, one) {READ}}}", {"a", "z"}),
    "division": (f"{{{A} z = Div(a, s7) {READ}}}", {"a", "z"}),
    "depthwise": (f"{{{A} z = Conv<{PAD}, group=7>(a, d7) {READ}}}", {"a", "z"}),
    "scales": ("<float[4] k = {1, 1, 2, 2}>" + f'{{{A} z = Resize<mode="nearest">(a, , k) {READ}}}', {"a", "z"}),
    "sizes": ("<int64[4] k = {1, 7, 16, 16}>" + f'{{{A} z = Resize<mode="nearest">(a, , , k) {READ}}}', {"a", "z"}),
    "transposed": (f"{{{A} z = Relu(a) y = ConvTranspose<strides=[2,2]>(z, t7)}}", {"a", "z"}),
    "one channel": (f"{{{ONE} z = Relu(a) y = Conv<{PAD}>(z, r1)}}", {"a", "z"}),
    "one channel, flat": (f"{{{ONE} z = Flatten(a) y = Gemm(z, m64)}}", {"a", "z"}),
    "flat": (f"{{{A} z = ReduceMean<axes=[2,3]>(a) f = Flatten(z) y = MatMul(f, m7)}}", {"a", "z", "f"}),
    "squeezed": (
        "<int64[2] k = {2, -1}>" + f"{{{A} z = GlobalMaxPool(a) f = Squeeze(z, k) y = MatMul(f, m7)}}",
        {"a", "z", "f"},
    ),
}

LEFT = {
    "one channel over several": f"{{{ONE} z = Mul(a, c5) y = Conv<{PAD}>(z, q5)}}",
    "one channel and several": f"{{{ONE} z = Add(c5, a) y = Conv<{PAD}>(z, q5)}}",
    "divisor": f"<float k = {{1.0}}> {{{A} z = Div(k, a) {READ}}}",
    "both": f"{{{A} z = Div(a, a) {READ}}}",
    "divisor of a constant": f"{{{A} z = Div(s7, a) {READ}}}",
    "one channel, flat behind it": f"{{{ONE} z = Flatten<axis=2>(a) y = Gemm(z, m64)}}",
    "one channel, flat behind it from the end": f"{{{ONE} z = Flatten<axis=-2>(a) y = Gemm(z, m64)}}",
    "one channel, averaged too": f"{{{ONE} z = ReduceMean<axes=[1,2,3]>(a) y = Conv<{PAD}>(z, r1)}}",
    "one channel, averaged with all": f"{{{ONE} z = ReduceMean(a) y = Conv<{PAD}>(z, r1)}}",
    "one channel, squeezed": (
        "<int64[2] k = {1, 2}>" + f"{{{ONE} z = GlobalMaxPool(a) f = Squeeze(z, k) y = MatMul(f, m1)}}"
    ),
    "rows in place of channels": f"<float[7,1,1,1,1] k = {{{', '.join('1234567')}}}> {{{A} z = Add(a, k) y = Relu(z)}}",
}


@pytest.mark.parametrize("name", PADDED)
def test_padded_channels_change_nothing(tmp_path: Path, name: str) -> None:
    body, values = PADDED[name]
    source = model(tmp_path / "model.onnx", body)
    assert source.path is not None

    changed = rewritten(source, "padding_8", tmp_path / "new.onnx")

    assert changed is not None
    assert padded(source) == values
    expected = output(source.path)
    found = output(changed.path)
    assert found.shape == expected.shape
    assert float(np.abs(found - expected).max()) <= changed.tolerance * float(np.abs(expected).max())


@pytest.mark.parametrize("name", LEFT)
def test_channels_stay_that_have_no_place_for_more(tmp_path: Path, name: str) -> None:
    source = model(tmp_path / "model.onnx", LEFT[name])
    assert source.path is not None
    assert output(source.path).size

    assert rewritten(source, "padding_8", tmp_path / "new.onnx") is None


def test_sizes_of_rows_and_columns_alone_stay(tmp_path: Path) -> None:
    body = "<int64[2] k = {16, 16}>" + f'{{{A} z = Resize<axes=[2,3], mode="nearest">(a, , , k) {READ}}}'
    source = model(tmp_path / "model.onnx", body, opset=18)
    assert source.path is not None

    changed = rewritten(source, "padding_8", tmp_path / "new.onnx")

    assert changed is not None
    expected = output(source.path)
    assert float(np.abs(output(changed.path) - expected).max()) <= changed.tolerance * float(np.abs(expected).max())
