"""How people say which course control flow takes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from dlbricks.models.control_flow import CourseChoice, How, chosen, force, read_choices
from dlbricks.models.normal import normalise
from speech import generation, speech_detector


def test_choices_as_people_write_them() -> None:
    found, observe = read_choices(["then", "a=b=else"], ["3", "Loop_0=12"])
    assert found == (
        CourseChoice("", "then"),
        CourseChoice("a=b", "else"),
        CourseChoice("", 3),
        CourseChoice("Loop_0", 12),
    )
    assert not observe


@pytest.mark.parametrize(("branches", "trips"), [(["observed"], []), ([], ["observed"])])
def test_what_is_not_said_may_be_observed(branches: list[str], trips: list[str]) -> None:
    assert read_choices(branches, trips) == ((), True)


def test_a_choice_that_names_the_operator_wins() -> None:
    choices = [CourseChoice("", "then"), CourseChoice("b", "else"), CourseChoice("b", 3)]
    assert chosen(choices, "a", branch=True) == CourseChoice("", "then")
    assert chosen(choices, "b", branch=True) == CourseChoice("b", "else")
    assert chosen(choices, "b", branch=False) == CourseChoice("b", 3)
    assert chosen(choices, "a", branch=False) is None


def test_what_is_given_to_all_wins_over_what_was_observed() -> None:
    seen = CourseChoice("a", "else", How.OBSERVED)
    assert chosen([seen, CourseChoice("", "then")], "a", branch=True) == CourseChoice("", "then")
    assert chosen([seen, CourseChoice("b", "then")], "a", branch=True) == seen


# Control flow that takes a given course, whatever its inputs say ---------------------------------------------------

RNG = np.random.default_rng(0)
Feeds = Mapping[str, np.ndarray]


def run(model: onnx.ModelProto, feeds: Feeds, count: int) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, dict(feeds))][:count]


def audio(rate: int) -> Feeds:
    return {
        "input": RNG.standard_normal((1, 512), np.float32),
        "state": RNG.standard_normal((2, 1, 128), np.float32),
        "sr": np.array(rate),
    }


@pytest.mark.parametrize("rate", [16000, 8000])
@pytest.mark.parametrize("branch", ["then", "else"])
def test_a_course_can_be_forced(rate: int, branch: str) -> None:
    feeds = audio(rate)
    forced = normalise(speech_detector(), keep_weights=True).model
    force(forced, [CourseChoice("If_0", branch)])
    onnx.checker.check_model(forced, full_check=True)
    expected = run(speech_detector(), feeds | {"sr": np.array(16000 if branch == "then" else 8000)}, 2)
    for mine, theirs in zip(run(forced, feeds, 2), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert "If" in {node.op_type for node in forced.graph.node}


def test_iterations_can_be_forced() -> None:
    feeds = {name: RNG.standard_normal((1, 256), np.float32) for name in ("start", "bias")}
    forced = normalise(generation(), keep_weights=True).model
    force(forced, [CourseChoice("", 5)])
    for mine, theirs in zip(
        run(forced, feeds | {"steps": np.array(2)}, 2),
        run(generation(), feeds | {"steps": np.array(5)}, 2),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)
