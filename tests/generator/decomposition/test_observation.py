"""Control flow observed in one execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from dlbricks.errors import UsageError
from dlbricks.generator.decomposition.observation import observe
from dlbricks.models import ModelSource, find_models
from dlbricks.models.control_flow import CourseChoice, How, chosen
from speech import generation, speech_detector

CASES = {
    "iterations of a while loop": (
        ('(float[2] x) => (float[2] y) <bool true = {1}, float limit = {9.5}, float one = {1.0}, float zero = {0.0}> {'
        ' y, count = Loop("", true, x, zero) <'
        " body = b (int64 i, bool c, float[2] v, float k) => (bool d, float[2] u, float m)"
        " { m = Add(k, one) d = Less(m, limit) u = Neg(v) }>}"),
        (CourseChoice("y", 10, How.OBSERVED),),
    ),
    "both branches are no course": (
        ('(float[2] x) => (float[2] y) <int64 n = {4}, int64 two = {2}> {'
        ' y = Loop(n, "", x) <body = b (int64 i, bool go, float[2] v) => (bool d, float[2] u) {'
        " d = Identity(go) late = Less(i, two)"
        " u = If(late) <then_branch = t () => (float[2] p) { p = Neg(v) },"
        " else_branch = e () => (float[2] q) { q = Abs(v) }>}>}"),
        (CourseChoice("y", 4, How.OBSERVED),),
    ),
    "iterations that execute nothing do not show": (
        ("(float[2] x, int64 n) => (float[2] y) <bool true = {1}> {"
        " s = Neg(x) y = Loop(n, true, s) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u) {"
        " d = Constant <value = bool {1}> () u = Constant <value = float[2] {1.0, 2.0}> () }>}"),
        (),
    ),
}  # fmt: skip


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[onnx.ModelProto], ModelSource]:
    def save(model: onnx.ModelProto) -> ModelSource:
        onnx.save(model, tmp_path / "model.onnx")
        return find_models([tmp_path / "model.onnx"])[0]

    return save


@pytest.mark.parametrize("case", CASES)
def test_courses_and_iterations_are_those_of_one_execution(source, case):
    graph, expected = CASES[case]

    (seen,) = observe([source(graph)])

    assert (seen.problem, seen.control) == (None, expected)


@pytest.mark.parametrize(("rate", "courses"), [(None, {"then", "else"}), (16000, {"then"}), (8000, {"else"})])
def test_the_branch_of_a_speech_detector(saved, rate, courses):
    model = speech_detector()
    if rate is not None:
        del model.graph.input[2]
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(rate), "sr"))

    (seen,) = observe([saved(model)])

    assert seen.control in {(CourseChoice("If_0", course, How.OBSERVED),) for course in courses}


def test_models_without_control_flow_are_not_run_and_one_that_cannot_says_so(saved, source):
    plain = source("(float[2] x) => (float[2] y) { y = Neg(x) }")
    assert observe([plain], backend="nothing of the kind") == [plain]
    (untold,) = observe([saved(speech_detector())], backend="torch")
    assert isinstance(untold.problem, UsageError)
    model = speech_detector()
    model.graph.node[0].op_type = "NoSuchOperator"
    (unable,) = observe([saved(model)])
    assert "control flow" in str(unable.problem)


def test_what_was_given_comes_first(saved):
    given = replace(saved(generation()), control=(CourseChoice("", 7),))
    (seen,) = observe([given])
    label = generation().graph.node[0].name
    assert seen.control == (CourseChoice("", 7), CourseChoice(label, 7, How.OBSERVED))
    assert chosen(seen.control, label, branch=False) == CourseChoice("", 7)


CHOSEN_LIMIT = (
    "(float[2] x, bool c) => (float[2] y) <bool true = {1}, float one = {1.0}, float zero = {0.0}> {"
    " limit = If(c) <then_branch = t () => (float p) { p = Constant <value_float = 2.5> () },"
    "                else_branch = e () => (float q) { q = Constant <value_float = 4.5> () }>"
    ' y, count = Loop("", true, x, zero) <'
    " body = b (int64 i, bool go, float[2] v, float k) => (bool d, float[2] u, float m)"
    " { m = Add(k, one) d = Less(m, limit) u = Neg(v) }>}"
)


def test_what_the_file_decides_is_not_overruled(source):
    decided = source(CHOSEN_LIMIT.replace(", bool c)", ")"), {"c": np.array(True)})
    (seen,) = observe([replace(decided, control=(CourseChoice("", "else"),))])
    assert chosen(seen.control, "y", branch=False) == CourseChoice("y", 3, How.OBSERVED)
