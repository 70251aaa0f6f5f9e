"""The search: what does not save is not kept, what changes outputs is refused, and a part can be left out again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.errors import ModelError
from dlbricks.generator.rewriting.affine import affine
from dlbricks.generator.rewriting.checking import Checker, Race, race, read_subject
from dlbricks.generator.rewriting.form import Draft, Rewrite
from dlbricks.generator.rewriting.search import Found, Search, SearchRequest, step_path
from dlbricks.generator.rewriting.values import Engine, Values
from onnx import numpy_helper

GRAPH = "(float[N,64] x) => (float[N,64] y) {a = MatMul(x, u) b = MatMul(a, v) f = Sin(b) g = Sin(f) y = MatMul(g, w)}"
"""Two products through a wide value, which one small product replaces at a fraction of their cost."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path, "256")


def written(folder: Path, rows: str) -> Path:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> model ' + GRAPH.replace("N", rows))
    random = np.random.default_rng(0)
    for name, shape in (("u", (64, 4096)), ("v", (4096, 64)), ("w", (64, 64))):
        model.graph.initializer.append(numpy_helper.from_array((random.standard_normal(shape) / 64).astype("f"), name))
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def searched(path: Path, **engines: Engine) -> tuple[Search, Found]:
    search = Search(read_subject(path, None, {}), SearchRequest(str(path), str(path.parent), budget_s=8.0))
    return search, search.run({name: (engine, 0.3) for name, engine in engines.items()})


def renamed(values: Values, _: float) -> list[Rewrite]:
    """A null candidate: the same operator once more."""
    draft = Draft(values.graph)
    draft.copy(values.graph.nodes[-1], {}, to="y")
    return [draft.rewrite("planted: null", ["y"], [], values.total_ns)]


def wrong(values: Values, _: float) -> list[Rewrite]:
    """Another function."""
    draft = Draft(values.graph)
    draft.op("Cos", "f", to="g")
    return [draft.rewrite("planted: wrong", ["g"], [], values.total_ns)]


def broken(_: Values, __: float) -> list[Rewrite]:
    raise ValueError("no such shape")


def test_null_candidates_wrong_ones_and_broken_engines_leave_no_step(path: Path):
    _, found = searched(path, renamed=renamed, wrong=wrong, broken=broken)

    reasons = dict(found.rejected)
    assert not found.steps
    assert "same" in reasons["planted: null"]
    assert "other values" in reasons["planted: wrong"]
    assert "no such shape" in reasons["broken"]


def test_a_step_is_a_file_with_equal_outputs_and_can_be_left_out(path: Path):
    search, found = searched(path, affine=affine)

    assert [step.kind for step in found.steps] == ["affine: one product"]
    assert found.steps[0].layers
    checker = Checker(read_subject(path, None, {}), threads=1, noise_ok=False)
    assert not checker.check(step_path(path.parent, 1).read_bytes()).refusal
    assert search.without([0]) == ""
    left = onnx.load(step_path(path.parent, 1, without=[0]))
    assert [node.op_type for node in left.graph.node].count("MatMul") == 3


def test_an_output_that_differs_is_refused(path: Path):
    checker = Checker(read_subject(path, None, {}), threads=1, noise_ok=False)
    model = onnx.load(path)
    model.graph.initializer[-1].CopyFrom(
        numpy_helper.from_array(1.001 * numpy_helper.to_array(model.graph.initializer[-1]), "w")
    )

    assert "differs" in checker.check(model.SerializeToString()).refusal
    assert not Checker(read_subject(path, None, {}), threads=1, noise_ok=True).check(path.read_bytes()).refusal


def test_a_dynamic_model_stays_dynamic_and_is_compared_at_a_second_shape(tmp_path: Path):
    subject = read_subject(written(tmp_path, "n"), None, {"n": 128})
    checker = Checker(subject, threads=1, noise_ok=False)

    assert subject.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"
    assert subject.feeds[0]["x"].shape == (128, 64)
    assert subject.other_feeds[0]["x"].shape != (128, 64)
    assert checker.second_shape


def test_notes_of_a_file_stay(path: Path):
    model = onnx.load(path)
    model.metadata_props.add(key="names", value="cat, dog")
    onnx.save(model, path)

    assert [entry.value for entry in read_subject(path, None, {}).model.metadata_props] == ["cat, dog"]


def test_a_model_that_does_not_run_is_refused(tmp_path: Path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> m (float[2,3] x) => (float[2,3] y) <int64[2] s = {5, 7}>'
        "{y = Reshape(x, s)}"
    )
    onnx.save(model, tmp_path / "model.onnx")

    with pytest.raises((ModelError, Exception)):
        Checker(read_subject(tmp_path / "model.onnx", None, {}), threads=1, noise_ok=False)


def test_a_race_takes_samples_of_each_pair(path: Path):
    pairs = ((str(path), str(path)), (str(path), str(path)))

    taken = race(Race(str(path), pairs, None, (), 1, 0.05, seed=3))

    assert len(taken) == 2
    assert all(before > 0 and after > 0 for samples in taken for before, after in samples)


MASKED = """<ir_version: 8, opset_import: ["" : 17]>
model (float[4,64] x, int64[4,64] attention_mask) => (float[4,64] y) {
 m = Cast<to = 1>(attention_mask) s = Mul(x, m) y = Sin(s)
}"""


def unmasked(values: Values, _: float) -> list[Rewrite]:
    """The mask left out, which changes nothing where it is all ones."""
    draft = Draft(values.graph)
    draft.op("Sin", "x", to="y")
    return [draft.rewrite("planted: unmasked", ["y"], [], values.total_ns)]


def test_masks_vary_so_that_none_is_left_out(tmp_path: Path):
    onnx.save(onnx.parser.parse_model(MASKED), tmp_path / "masked.onnx")

    subject = read_subject(tmp_path / "masked.onnx", None, {})
    _, found = searched(tmp_path / "masked.onnx", unmasked=unmasked)

    assert {int(feeds["attention_mask"].min()) for feeds in subject.feeds} == {0, 1}
    assert found.steps == ()


@pytest.mark.parametrize("kind", ["int64", "float"])
def test_numbers_that_a_model_compares_with_are_among_the_inputs(tmp_path: Path, kind: str):
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    model (float[4,64] x, {kind}[4,64] labels) => (float[4,64] y)
      <{kind} ignored = {{9}}, float zero = {{0}}> {{
        hidden = Equal(labels, ignored) s = Where(hidden, zero, x) y = Sin(s)
    }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "hidden.onnx")

    _, found = searched(tmp_path / "hidden.onnx", unmasked=unmasked)

    assert found.steps == ()


def test_bytes_of_an_image_have_all_values_in_a_checked_set(tmp_path: Path):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    model (uint8[4,64] image) => (float[4,64] y) <float dark = {40}> {
        f = Cast<to = 1>(image) low = LessOrEqual(f, dark) s = Sin(f) y = Where(low, f, s)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "image.onnx")
    feeds = read_subject(tmp_path / "image.onnx", None, {}).feeds

    assert max(int(feed["image"].max()) for feed in feeds) > 200


def test_a_model_that_takes_one_value_only_is_refused(tmp_path: Path):
    onnx.save(onnx.parser.parse_model(MASKED), tmp_path / "masked.onnx")
    subject = read_subject(tmp_path / "masked.onnx", None, {})

    with pytest.raises(ModelError, match="'attention_mask' was accepted with one value only"):
        Checker(replace(subject, feeds=subject.feeds[:1]), threads=1, noise_ok=False)


def test_a_model_with_nodes_of_constants_is_searched(path: Path):
    model = onnx.load(path)
    half = onnx.helper.make_node("Constant", [], ["half"], value_float=0.5)
    model.graph.node[-1].input[0] = "less"
    model.graph.node.insert(0, half)
    model.graph.node.insert(len(model.graph.node) - 1, onnx.helper.make_node("Mul", ["g", "half"], ["less"]))
    onnx.save(model, path)

    _, found = searched(path, affine=affine)

    assert [step.kind for step in found.steps] == ["affine: one product"]
