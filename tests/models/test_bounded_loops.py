"""Loops that cannot end are refused before anything executes them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import onnx
import onnx.parser
import pytest
from dlbricks.db.values import Conditions, Identity, Subject
from dlbricks.errors import UnsupportedModel
from dlbricks.generator.measurement.selection import brick_members
from dlbricks.models import find_models


def nested(depth: int, *, goes_on: str = "Identity(goes{})", level: int = 0) -> str:
    """Loops within each other, each of n iterations."""
    name, source = (f"w{level - 1}", f"v{level - 1}") if level else ("y", "x")
    last = level + 1 == depth
    inside = f"w{level} = Relu(v{level})" if last else nested(depth, goes_on=goes_on, level=level + 1)
    head = f"(int64 i{level}, bool goes{level}, float[4] v{level}) => (bool m{level}, float[4] w{level})"
    body = f"step{level} {head} {{ {inside} m{level} = {goes_on.format(level)} }}"
    return f"[loop{level}] {name} = Loop (n, on, {source}) < body = {body} >"


def write(path: Path, graph: str, inputs: str = "float[4] x") -> Path:
    constants = "<bool on = {1}, int64 n = {1000}>" if "int64 n" not in inputs else "<bool on = {1}>"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float[4] y) {constants} {{ {graph} }}'
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


def test_nested_loops_that_take_days_are_refused_with_their_time(tmp_path: Path):
    (source,) = find_models([write(tmp_path / "deep.onnx", nested(5))])

    with pytest.raises(UnsupportedModel, match=r"deep\.onnx: Loop 'loop0' executes 2e\+15 .* about 19 years"):
        source.skeleton()


@pytest.mark.parametrize(
    "graph", [nested(2), nested(5, goes_on="Less(i{}, n)")], ids=["few iterations", "iterations that may end early"]
)
def test_loops_that_may_end_in_time_are_not_refused(tmp_path: Path, graph: str):
    (source,) = find_models([write(tmp_path / "shallow.onnx", graph)])

    assert source.skeleton().model.graph.node[0].op_type == "Loop"


@pytest.mark.parametrize(("condition", "refused"), [("Identity(goes)", True), ("Less(i, limit)", False)])
@pytest.mark.parametrize("begun", ["", "on"])
def test_a_loop_without_iterations_whose_condition_stays_true_is_refused(tmp_path: Path, condition, begun, refused):
    body = f"step (int64 i, bool goes, float[4] v) => (bool m, float[4] w) {{ w = Relu(v) m = {condition} }}"
    graph = f"limit = Constant <value = int64 {{7}}> () [ring] y = Loop (, {begun}, x) < body = {body} >"
    (source,) = find_models([write(tmp_path / "open.onnx", graph)])

    if refused:
        with pytest.raises(UnsupportedModel, match="Loop 'ring' never ends"):
            source.skeleton()
    else:
        assert source.skeleton()


def test_given_iterations_count(tmp_path: Path):
    path = write(tmp_path / "open.onnx", nested(5), "float[4] x, int64 n")
    few, many = (find_models([path], values={"n": text})[0] for text in ("3", "1000"))

    assert few.skeleton().given
    with pytest.raises(UnsupportedModel, match="loop0"):
        many.skeleton()


def test_a_brick_of_a_foreign_suite_is_refused_too(tmp_path: Path):
    model = write(tmp_path / "deep.onnx", nested(5)).read_bytes()
    suite = SimpleNamespace(brick=lambda _: SimpleNamespace(model=model))
    identity = Identity(Subject.BRICK, "ab", "system", "stack", Conditions(1, "hot"), "")

    members, broken = brick_members(suite, [identity], {}, 1, packed=False)

    assert not members
    assert "Loop 'loop0'" in broken["ab"]
