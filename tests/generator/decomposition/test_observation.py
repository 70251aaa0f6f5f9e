"""Control flow observed in one execution."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from dlbricks.errors import UsageError
from dlbricks.generator.decomposition.observation import observe
from dlbricks.models import ModelSource, find_models
from dlbricks.models.control.choices import Choice, How, chosen
from speech import generation, speech_detector

HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def source(model: onnx.ModelProto, path: Path) -> ModelSource:
    onnx.save(model, path / "model.onnx")
    (found,) = find_models([path / "model.onnx"])
    return found


def test_the_branch_of_a_speech_detector(tmp_path: Path) -> None:
    (seen,) = observe([source(speech_detector(), tmp_path)])
    assert seen.control in {(Choice("If_0", course, How.OBSERVED),) for course in ("then", "else")}


def test_a_constant_rate_decides(tmp_path: Path) -> None:
    for rate, course in ((16000, "then"), (8000, "else")):
        model = speech_detector()
        del model.graph.input[2]
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(rate), "sr"))
        (seen,) = observe([source(model, tmp_path)])
        assert seen.control == (Choice("If_0", course, How.OBSERVED),)


def test_iterations_of_a_while_loop(tmp_path: Path) -> None:
    text = (
        HEAD
        + """g (float[2] x) => (float[2] y) <float limit = {9.5}, float one = {1.0}, float zero = {0.0}> {
        y, count = Loop("", true, x, zero) <
            body = b (int64 i, bool c, float[2] v, float k) => (bool d, float[2] u, float m) {
                m = Add(k, one) d = Less(m, limit) u = Neg(v)
            }
        >
    }"""
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "true"))
    (seen,) = observe([source(model, tmp_path)])
    assert seen.control == (Choice("y", 10, How.OBSERVED),)


def test_both_branches_are_no_course(tmp_path: Path) -> None:
    text = (
        HEAD
        + """g (float[2] x) => (float[2] y) <int64 n = {4}, int64 two = {2}> {
        y = Loop(n, "", x) <body = b (int64 i, bool go, float[2] v) => (bool d, float[2] u) {
            d = Identity(go) late = Less(i, two)
            u = If(late) <then_branch = t () => (float[2] p) { p = Neg(v) },
                          else_branch = e () => (float[2] q) { q = Abs(v) }>
        }>
    }"""
    )
    (seen,) = observe([source(onnx.parser.parse_model(text), tmp_path)])
    assert seen.control == (Choice("y", 4, How.OBSERVED),)


def test_what_was_given_comes_first(tmp_path: Path) -> None:
    given = replace(source(generation(), tmp_path), control=(Choice("", 7),))
    (seen,) = observe([given])
    label = generation().graph.node[0].name
    assert seen.control == (Choice("", 7), Choice(label, 7, How.OBSERVED))
    assert chosen(seen.control, label, branch=False) == Choice("", 7)


CHOSEN_LIMIT = (
    HEAD
    + """g (float[2] x, bool c) => (float[2] y) <bool true = {1}, float one = {1.0}, float zero = {0.0}> {
    limit = If(c) <then_branch = t () => (float p) { p = Constant <value_float = 2.5> () },
                   else_branch = e () => (float q) { q = Constant <value_float = 4.5> () }>
    y, count = Loop("", true, x, zero) <
        body = b (int64 i, bool go, float[2] v, float k) => (bool d, float[2] u, float m) {
            m = Add(k, one) d = Less(m, limit) u = Neg(v)
        }
    >
}"""
)


@pytest.mark.parametrize(("branch", "trips"), [("then", 3), ("else", 5)])
def test_others_are_seen_along_what_was_given(branch: str, trips: int, tmp_path: Path) -> None:
    given = replace(source(onnx.parser.parse_model(CHOSEN_LIMIT), tmp_path), control=(Choice("", branch),))
    (seen,) = observe([given])
    assert chosen(seen.control, "y", branch=False) == Choice("y", trips, How.OBSERVED)


def test_what_the_file_decides_is_not_overruled(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(CHOSEN_LIMIT)
    del model.graph.input[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "c"))
    (seen,) = observe([replace(source(model, tmp_path), control=(Choice("", "else"),))])
    assert chosen(seen.control, "y", branch=False) == Choice("y", 3, How.OBSERVED)


def test_iterations_that_execute_nothing_do_not_show(tmp_path: Path) -> None:
    text = (
        HEAD
        + """g (float[2] x, int64 n) => (float[2] y) <bool true = {1}> {
        s = Neg(x)
        y = Loop(n, true, s) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u) {
            d = Constant <value = bool {1}> () u = Constant <value = float[2] {1.0, 2.0}> ()
        }>
    }"""
    )
    (seen,) = observe([source(onnx.parser.parse_model(text), tmp_path)])
    assert seen.problem is None
    assert seen.control == ()


def test_models_without_control_flow_are_not_run(tmp_path: Path) -> None:
    text = HEAD + "g (float[2] x) => (float[2] y) { y = Neg(x) }"
    plain = source(onnx.parser.parse_model(text), tmp_path)
    assert observe([plain], backend="nothing of the kind") == [plain]


def test_a_model_that_cannot_run_says_so(tmp_path: Path) -> None:
    model = speech_detector()
    model.graph.node[0].op_type = "NoSuchOperator"
    (seen,) = observe([source(model, tmp_path)])
    assert seen.problem is not None
    assert "control flow" in str(seen.problem)


def test_a_backend_that_cannot_tell(tmp_path: Path) -> None:
    (seen,) = observe([source(speech_detector(), tmp_path)], backend="torch")
    assert isinstance(seen.problem, UsageError)
