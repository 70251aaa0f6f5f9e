"""The search: what does not save is not kept, what changes outputs is refused, and a part can be left out again."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.rewriting.affine import affine
from dlbricks.analyzer.rewriting.checked_model import read_subject
from dlbricks.analyzer.rewriting.checking import Checker
from dlbricks.analyzer.rewriting.recording import Engine, Values
from dlbricks.analyzer.rewriting.rewrite import Draft, Rewrite
from dlbricks.analyzer.rewriting.search import Found, Search, SearchRequest, step_path
from dlbricks.errors import ModelError, UsageError
from dlbricks.models.user_inputs import UserInputs
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


def searched(path: Path, share: float = 0.3, budget_s: float = 8.0, /, **engines: Engine) -> tuple[Search, Found]:
    search = Search(read_subject(path, None, {}), SearchRequest(str(path), str(path.parent), budget_s=budget_s))
    return search, search.run({name: (engine, share) for name, engine in engines.items()})


def renamed(values: Values, _: float) -> list[Rewrite]:
    """A null candidate: the same operator once more."""
    draft = Draft(values.graph)
    draft.copy(values.graph.nodes[-1], {}, to="y")
    return [draft.rewrite("planted: null", ["y"], [], values.total_ns)]


def wrong(values: Values, _: float) -> list[Rewrite]:
    """Another function, which takes no time."""
    draft = Draft(values.graph)
    draft.op("Identity", "x", to="b")
    return [draft.rewrite("planted: wrong", ["b"], [], values.total_ns)]


def unproven(values: Values, _: float) -> list[Rewrite]:
    """The same on ordinary inputs, at less cost: products with small numbers left out."""
    draft = Draft(values.graph)
    draft.op("Sin", "x", to="y")
    return [draft.rewrite("planted: unproven", ["y"], [], values.total_ns)]


def broken(_: Values, __: float) -> list[Rewrite]:
    raise ValueError("no such shape")


def test_null_candidates_wrong_ones_and_broken_engines_leave_no_step(path: Path):
    _, found = searched(path, renamed=renamed, wrong=wrong, broken=broken)

    reasons = dict(found.rejected)
    assert not found.steps
    assert "same" in reasons["planted: null"]
    assert "differs" in reasons["planted: wrong"]
    assert "no such shape" in reasons["broken"]


def test_an_engine_that_was_cut_short_gets_the_time_that_nobody_else_needs(path: Path):
    given = list[float]()

    def slow(_: Values, deadline: float) -> list[Rewrite]:
        given.append(deadline - time.perf_counter())
        time.sleep(given[0] + 0.1)  # longer than its first share
        return []

    def endless(_: Values, deadline: float) -> list[Rewrite]:
        time.sleep(max(0.0, deadline - time.perf_counter()) + 0.1)
        return []

    _, found = searched(path, 0.05, 12.0, slow=slow)
    _, cut = searched(path, 0.05, 3.0, endless=endless)

    assert len(given) == 2
    assert given[1] > 1.5 * given[0]
    assert not found.untried
    assert cut.untried == ("endless (its share of the time was up)",)


def test_an_engine_that_is_asked_again_sees_the_steps_before(path: Path, monkeypatch: pytest.MonkeyPatch):
    search = import_module("dlbricks.analyzer.rewriting.search")
    monkeypatch.setattr(search, "_ROUNDS", 1)
    monkeypatch.setattr(search, "_NEW_ROUND", 0.0)
    seen = list[list[str]]()

    def slow(values: Values, deadline: float) -> list[Rewrite]:
        seen.append([node.op_type for node in values.graph.nodes])
        time.sleep(max(0.0, deadline - time.perf_counter()) + 0.1 if len(seen) == 1 else 0.0)
        return []

    _, found = searched(path, 0.05, 12.0, slow=slow, affine=affine)

    assert len(found.steps) == 1
    assert [operators.count("MatMul") for operators in seen] == [3, 2]


def test_a_step_is_a_file_with_equal_outputs_and_can_be_left_out(path: Path):
    search, found = searched(path, affine=affine)

    assert [(step.kind, step.reason) for step in found.steps] == [("affine: one product", "algebra")]
    assert found.steps[0].layers
    assert found.hostile > 5
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
    assert checker.others[0]["x"].shape != (128, 64)


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

    with pytest.raises(ModelError):
        Checker(read_subject(tmp_path / "model.onnx", None, {}), threads=1, noise_ok=False)


def test_what_agrees_on_ordinary_inputs_alone_is_refused(tmp_path: Path):
    text = """<ir_version: 8, opset_import: ["" : 17]> m (float[256,64] x) => (float[256,64] y) {
        a = MatMul(x, u) b = MatMul(a, v) c = MatMul(b, u) d = MatMul(c, v) e = Add(x, d) y = Sin(e)
    }"""
    model = onnx.parser.parse_model(text)
    for name, shape in (("u", (64, 1024)), ("v", (1024, 64))):
        array = 1e-3 * np.random.default_rng(0).standard_normal(shape) / 64
        model.graph.initializer.append(numpy_helper.from_array(array.astype("f"), name))
    onnx.save(model, tmp_path / "model.onnx")

    _, found = searched(tmp_path / "model.onnx", unproven=unproven)

    assert found.steps == ()
    assert dict(found.rejected)["planted: unproven"] == "it is not shown to hold for every input"


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


def test_inputs_without_a_dimension_are_arrays(tmp_path: Path):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    model (float[4,64] x, float least, int64 shift) => (float[4,64] y) {
        above = Max(x, least) f = Cast<to = 1>(shift) y = Add(above, f)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "numbers.onnx")
    subject = read_subject(tmp_path / "numbers.onnx", None, {})

    sets = [*subject.feeds, *(feeds for _, feeds in subject.hostile())]

    assert {type(array) for feeds in sets for array in feeds.values()} == {np.ndarray}
    assert Checker(subject, threads=1, noise_ok=False).usable


def test_files_of_data_are_inputs_of_the_comparison(path: Path, tmp_path: Path):
    x = np.full((256, 64), 3, np.float32)
    np.savez(tmp_path / "own.npz", x=x)

    subject = read_subject(path, None, {}, UserInputs((tmp_path / "own.npz",)))

    assert subject.data == 1
    assert np.array_equal(subject.feeds[0]["x"], x)


def test_single_values_are_in_every_set_of_inputs(tmp_path: Path):
    text = """<ir_version: 8, opset_import: ["" : 17]> m (float[n, 8] x, int64[2] size) => (float[a, b] y)
        { r = Relu(x) y = Reshape(r, size) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "sized.onnx")

    subject = read_subject(tmp_path / "sized.onnx", None, {"n": 4}, UserInputs(values=(("size", "-1,2"),)))

    sets = [*subject.feeds, *subject.other_shapes(), *(feeds for _, feeds in subject.hostile())]
    assert {tuple(feeds["size"]) for feeds in sets} == {(-1, 2)}
    assert len({feeds["x"].shape for feeds in sets}) > 1
    assert len(Checker(subject, threads=1, noise_ok=False).usable) > 1


@pytest.mark.parametrize(
    "arrays",
    [{"x": np.zeros((2, 64), np.float32)}, {"x": np.zeros((256, 64), np.int8)}],
    ids=["another shape", "another type"],
)
def test_a_file_of_data_that_does_not_fit_is_one_line(path: Path, tmp_path: Path, arrays: dict[str, np.ndarray]):
    np.savez(tmp_path / "own.npz", **arrays)

    with pytest.raises(UsageError, match=r"own\.npz") as caught:
        read_subject(path, None, {}, UserInputs((tmp_path / "own.npz",)))

    assert "\n" not in str(caught.value)


def test_a_size_that_is_a_float_is_not_shaken_to_another_size(tmp_path: Path):
    text = """<ir_version: 8, opset_import: ["" : 17]> m (float[4, 4] x, float[2] picture) => (float[a, b] y)
        { size = Cast<to = 7>(picture) y = Expand(x, size) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "sized.onnx")

    subject = read_subject(tmp_path / "sized.onnx", None, {}, UserInputs(values=(("picture", "4,4"),)))

    assert len(Checker(subject, threads=1, noise_ok=False).usable) > 1


def test_hostile_inputs_find_a_guard_that_is_gone(tmp_path: Path):
    text = """<ir_version: 8, opset_import: ["" : 17]> m (float[64,64] x) => (float[64,64] y)
        <float low = {-50}, float high = {50}, float k = {0.01}> { c = Clip(x, low, high) y = Mul(c, k) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    checker = Checker(read_subject(tmp_path / "model.onnx", None, {}), threads=1, noise_ok=False)
    without = onnx.parser.parse_model(text.replace("Clip(x, low, high)", "Identity(x)"))

    verdict = checker.check(without.SerializeToString())

    assert "differs" in verdict.refusal or "differs" in checker.check_hostile(verdict.runner, until=np.inf)


def test_a_model_with_nodes_of_constants_is_searched(path: Path):
    model = onnx.load(path)
    half = onnx.helper.make_node("Constant", [], ["half"], value_float=0.5)
    model.graph.node[-1].input[0] = "less"
    model.graph.node.insert(0, half)
    model.graph.node.insert(len(model.graph.node) - 1, onnx.helper.make_node("Mul", ["g", "half"], ["less"]))
    onnx.save(model, path)

    _, found = searched(path, affine=affine)

    assert [step.kind for step in found.steps] == ["affine: one product"]
