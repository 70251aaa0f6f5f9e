"""A model with its control flow written out computes what the model computes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from dlbricks.bricks.graph.control import size_of
from dlbricks.bricks.graph.expansion import ExpandedOperator, Expansion
from dlbricks.models.control_flow import Course
from dlbricks.models.normal import normalise
from speech import generation, speech_detector

HEAD = '<ir_version: 8, opset_import: ["": {opset}]>'
RNG = np.random.default_rng(0)
Feeds = Mapping[str, np.ndarray]


def run(model: onnx.ModelProto, feeds: Feeds, count: int) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, dict(feeds))][:count]


value = onnx.helper.make_tensor_value_info


def written_out(
    model: onnx.ModelProto, *rounds: Mapping[str, Course], bare: onnx.ValueInfoProto | None = None
) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    normal = normalise(copy, keep_weights=True).model
    expansion = Expansion(normal, keep_weights=True)
    for courses in rounds:
        expansion.apply([(output, course, bare) for output, course in courses.items()])
    onnx.checker.check_model(normal, full_check=True)
    return normal


def same(
    model: onnx.ModelProto, feeds: Feeds, *rounds: Mapping[str, Course], bare: onnx.ValueInfoProto | None = None
) -> None:
    out = written_out(model, *rounds, bare=bare)
    left = {node.op_type for node in out.graph.node} & {"If", "Loop", "Scan"}
    assert not left or bare is not None
    count = len(model.graph.output)
    for mine, theirs in zip(run(out, feeds, count), run(model, feeds, count), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def size_holds(model: onnx.ModelProto, output: str, course: Course) -> bool:
    """What is said beforehand of an operator's size is no less than what it becomes, and no more than twice as much."""
    normal = normalise(model).model
    (node,) = (node for node in normal.graph.node if node.output[0] == output)
    before = normal.ByteSize()
    layers, size, _ = size_of(node, course)
    (found,) = Expansion(normal).apply([(output, course, None)]).values()
    assert isinstance(found, ExpandedOperator)
    return len(found.nodes) <= layers <= 2 * len(found.nodes) and normal.ByteSize() - before <= size


def audio(rate: int) -> Feeds:
    return {
        "input": RNG.standard_normal((1, 512), np.float32),
        "state": RNG.standard_normal((2, 1, 128), np.float32),
        "sr": np.array(rate),
    }


@pytest.mark.parametrize(("rate", "branch"), [(16000, "then"), (8000, "else")])
def test_branches_of_a_speech_detector(rate: int, branch: str) -> None:
    same(speech_detector(), audio(rate), {"output": branch})
    same(speech_detector(), audio(rate), {"output": branch}, bare=value("is_wide", onnx.TensorProto.BOOL, ()))


@pytest.mark.parametrize("trips", [1, 7])
def test_iterations_of_a_loop(trips: int) -> None:
    feeds = {name: RNG.standard_normal((1, 256), np.float32) for name in ("start", "bias")}
    same(generation(), feeds | {"steps": np.array(trips)}, {"end": trips})
    same(generation(trips=trips), feeds, {"end": trips}, bare=value("start", onnx.TensorProto.FLOAT, (1, 256)))


@pytest.mark.parametrize("trips", [1, 2, 50])
def test_the_size_counts_what_is_stacked(trips: int) -> None:
    assert size_holds(generation(), "end", trips)


def test_names_are_found_at_once() -> None:
    model = generation()
    model.graph.input.add().name = "wanted#2"
    expansion = Expansion(model)
    asked = [expansion.fresh("wanted") for _ in range(100_000)]  # for hours, if each began to look at the first
    assert asked[:3] == ["wanted", "wanted#1", "wanted#3"]
    assert len(set(asked)) == len(asked)


def test_a_loop_without_iterations() -> None:
    text = (
        HEAD.format(opset=17)
        + """g (float[2] x) => (float[2] y) <int64 n = {0}> {
        y = Loop(n, "", x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u) {
            d = Identity(c) u = Neg(v)
        }>
    }"""
    )
    same(onnx.parser.parse_model(text), {"x": np.ones(2, np.float32)}, {"y": 0})


def test_what_cannot_be_written_out_stays_as_it_is() -> None:
    model = generation()
    (found,) = Expansion(normalise(model).model).apply([("end", 0, None)]).values()
    assert "in no iteration" in found
    model = generation()
    del model.graph.node[0].input[-1]
    normal = normalise(model).model
    (found,) = Expansion(normal).apply([("end", 2, None)]).values()
    assert "does not fit" in found
    assert [node.op_type for node in normal.graph.node] == ["Loop"]


@pytest.mark.parametrize("opset", [11, 17])
def test_a_scan_in_both_directions(opset: int) -> None:
    text = (
        HEAD.format(opset=opset)
        + """g (float[2] h0, float[6,2] x, float[2,6] z) =>
        (float[2] y, float[6,2] forward, float[2,6] backward) {
        y, forward, backward = Scan <
            num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1],
            scan_output_axes = [0, 1], scan_output_directions = [0, 1],
            body = b (float[2] h, float[2] e, float[2] f) => (float[2] u, float[2] s, float[2] t) {
                k = Mul(h, e) u = Add(k, f) s = Relu(u) t = Identity(h)
            }
        > (h0, x, z)
    }"""
    )
    feeds = {name: RNG.standard_normal(shape, np.float32) for name, shape in (("h0", 2), ("x", (6, 2)), ("z", (2, 6)))}
    model = onnx.parser.parse_model(text)
    same(model, feeds, {"y": 6})
    assert size_holds(model, "y", 6)


NESTED = """g (float[2,3] x, bool flag) => (float[2,3] y) {
    top = Relu(x)
    y = Loop(n, "", top) <body = outer (int64 i, bool c, float[2,3] v) => (bool d, float[2,3] u) {
        d = Identity(c)
        k = Constant <value_float = 2.0> ()
        scaled = Mul(v, k)
        u = If(flag) <
            then_branch = t () => (float[2,3] a) { a = Add(scaled, top) },
            else_branch = e () => (float[2,3] b) { b = Sub(scaled, v) }
        >
    }>
}"""


def test_an_if_in_a_loop() -> None:
    model = onnx.parser.parse_model(HEAD.format(opset=17) + NESTED)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(3), "n"))
    feeds = {"x": RNG.standard_normal((2, 3), np.float32)}
    normal = normalise(model, keep_weights=True).model
    found = Expansion(normal, keep_weights=True).apply([("y", 3, None)])["y"]
    assert isinstance(found, ExpandedOperator)
    inner = found.inner
    assert list(inner) == ["y/0/u", "y/1/u", "y"]
    assert set(inner.values()) == {"u"}
    for flag, branch in ((True, "then"), (False, "else")):
        same(model, feeds | {"flag": np.array(flag)}, {"y": 3}, dict.fromkeys(inner, branch))


def test_outputs_that_the_body_does_not_make() -> None:
    text = (
        HEAD.format(opset=17)
        + """g (float[2] x, bool c) => (float[2] a, float[2] b, float[1] k) {
        r = Relu(x)
        a, b, k = If(c) <
            then_branch = t () => (float[2] s, float[2] s2, float[1] one) {
                s = Neg(r) s2 = Identity(r) one = Constant <value_floats = [1.0]> ()
            },
            else_branch = e () => (float[2] u, float[2] u2, float[1] two) {
                u = Abs(r) u2 = Neg(u) two = Constant <value_floats = [2.0]> ()
            }
        >
    }"""
    )
    for flag, branch in ((True, "then"), (False, "else")):
        same(onnx.parser.parse_model(text), {"x": np.ones(2, np.float32), "c": np.array(flag)}, {"a": branch})
