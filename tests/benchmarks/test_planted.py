"""The corpus of planted faults: models run and equal their twins, and scores count what they should."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    corpus = importlib.import_module("plants.corpus")
finally:
    sys.path.remove(str(FOLDER))

PLANTS = corpus.plants()
ROUNDED = {"half-pair": 2e-3, "bfloat-pair": 1e-2}
"""Faults that round to 16 bits; all others compute in 32 bits at least."""

ONCE = [next(plant for plant in PLANTS if plant.fault == fault) for fault in corpus.FAULTS]


@pytest.fixture
def score(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("plants.score")


def outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    """Of seeded inputs."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(7)
    feeds = {
        one.name: rng.integers(0, 1000, one.shape) if "int" in one.type else rng.standard_normal(one.shape, np.float32)
        for one in session.get_inputs()
    }
    return session.run(None, feeds)


@pytest.mark.sweep(1, by="fault")
@pytest.mark.parametrize(("fault", "plant"), [pytest.param(one.fault, one, id=one.name) for one in PLANTS])
def test_a_plant_leaves_the_function_as_it_is(fault, plant):
    faulty, planted = plant.model(faulty=True)
    clean, repaired = plant.model(faulty=False)
    for model in (faulty, clean):
        onnx.checker.check_model(model, full_check=True)
        names = [node.name for node in model.graph.node]
        assert len(set(names)) == len(names)
    assert planted
    assert set(planted) <= {node.name for node in faulty.graph.node}
    assert set(repaired) <= {node.name for node in clean.graph.node}

    expected = outputs(clean)
    for got, wanted in zip(outputs(faulty), expected, strict=False):  # what it has beyond them is the fault
        assert np.isfinite(wanted).all()
        assert np.abs(wanted).max() > 1e-3
        np.testing.assert_allclose(got, wanted, rtol=0, atol=ROUNDED.get(fault, 1e-5) * np.abs(wanted).max())


def test_the_corpus_is_as_large_as_it_says():
    assert len({plant.name for plant in PLANTS}) == len(PLANTS) >= 40
    assert len({plant.what.kind for plant in PLANTS}) >= 13
    assert {plant.architecture for plant in PLANTS} == set(corpus.ARCHITECTURES)
    assert {plant.fault for plant in PLANTS} == set(corpus.FAULTS)


def test_an_architecture_is_of_one_half_and_a_third_is_held():
    held = {plant.architecture for plant in PLANTS if plant.half == "held"}
    tuned = {plant.architecture for plant in PLANTS if plant.half == "tune"}

    assert not held & tuned
    assert len(held) * 3 >= len(held | tuned)
    assert {plant.what.kind for plant in PLANTS} == {plant.what.kind for plant in PLANTS if plant.half == "held"}


def test_names_of_layers_do_not_reveal_faults():
    words = {*corpus.FAULTS, *(plant.what.kind for plant in PLANTS), "fault", "plant", "clean", "slow", "denormal"}
    words = {word.replace("-", "_") for word in words} - {"kernel", "gather", "channels"}  # words of any model
    for plant in ONCE:
        model, planted = plant.model(faulty=True)
        named = [*planted, *(one.name for one in model.graph.initializer), *(one.name for one in model.graph.input)]

        assert not [(word, name) for word in words for name in named if word in name.lower()]


def test_twins_are_two_models_to_the_database(tmp_path):
    from dlbricks.bricks.graph.graph import build_graph
    from dlbricks.models import find_models

    chosen = [plant for plant in ONCE if plant.what.kind in {"denormals", "constants", "branches"}]
    corpus.write(chosen, tmp_path)
    for plant in chosen:
        files = [str(tmp_path / side / f"{plant.name}.onnx") for side in ("faulty", "clean")]
        faulty, clean = (build_graph(source.skeleton()).key for source in find_models(files))

        assert faulty != clean


def test_models_are_the_same_bytes_again():
    plant = PLANTS[0]

    assert plant.model(faulty=True)[0].SerializeToString() == plant.model(faulty=True)[0].SerializeToString()


@dataclass
class Found:
    """A finding."""

    kind: str
    layers: tuple[str, ...] = ()
    at_most: bool = False


def judged(score, kind="gelu", faulty=(), clean=(), half="tune"):
    places = {"layers": ["a", "b"], "repaired": ["c"]}
    return score.judge(name="m", kind=kind, half=half, **places, faulty=faulty, clean=clean)


def test_a_plant_is_found_by_a_finding_of_its_kind_at_its_place(score):
    assert judged(score, faulty=[Found("unfused_activation", ("x", "b"))]).found

    elsewhere = judged(score, faulty=[Found("unfused_activation", ("x",))])
    assert (elsewhere.found, elsewhere.mentioned, elsewhere.other) == (False, True, ("unfused_activation",))
    assert not judged(score, faulty=[Found("transposes", ("a",))]).mentioned


def test_only_a_remedy_for_the_whole_session_goes_without_layers(score):
    assert judged(score, "denormals", [Found("denormals")]).found
    assert not judged(score, "gelu", [Found("unfused_activation")]).found


def test_what_the_twin_has_as_well_is_no_false_alarm_and_the_planted_kind_on_the_twin_is_one(score):
    verdicts = [
        judged(score, faulty=[Found("unfused_activation", ("a",)), Found("threads")], clean=[Found("threads")]),
        judged(score, faulty=[Found("duplicates", ("a",))], clean=[Found("unfused_activation", ("c",))], half="held"),
    ]
    rates = score.result(verdicts)

    assert rates["all"]["recall"] == 0.5
    assert rates["all"]["precision"] == pytest.approx(2 / 3)
    assert (rates["all"]["twin_findings"], rates["all"]["twins_blamed"]) == (2, 1)
    elsewhere = judged(score, clean=[Found("unfused_activation", ("a",))])
    assert (elsewhere.blamed, elsewhere.alike) == (0, 1)
    assert not judged(score, faulty=[Found("roofline", ("a",), at_most=True)]).other
    assert rates["halves"]["tune"]["recall"] == 1
    assert rates["halves"]["held"]["recall"] == 0
    assert rates["kinds"]["gelu"]["held"]["precision"] == 0
    text = score.report(rates | {"dlbricks": "1", "date": "now", "system": {"cpu": "c"}})
    assert "| half held | 1 | 0.0 % |" in text
    assert "* m (held)" in text


def test_nothing_found_has_no_precision(score):
    assert score.result([judged(score)])["all"]["precision"] is None


def test_each_kind_of_fault_is_answered_by_some_kind_of_finding(score):
    assert set(score.accepted()) == {plant.what.kind for plant in PLANTS}
    assert all(one.findings for one in score.accepted().values())


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("planted")


def test_models_are_written_beside_their_twins(planted, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["planted.py", "--write", str(tmp_path), "--plants", "stereo-denormal-mask"])
    planted.main()

    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*.onnx"))] == [
        "clean/stereo-denormal-mask.onnx",
        "faulty/stereo-denormal-mask.onnx",
    ]


def test_a_plant_that_is_not_there_is_an_error(planted, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["planted.py", "--write", "x", "--plants", "nothing"])
    with pytest.raises(SystemExit, match="no plant nothing"):
        planted.main()


@pytest.mark.slow
def test_a_cost_is_the_difference_of_twins_that_were_visited_in_turn(planted, monkeypatch, tmp_path):
    command = ["planted.py", "--measure", "--visits", "4", "--processes", "1", "--out", str(tmp_path), "--plants"]
    for name in ("stereo-denormal-mask", "convnext-power"):
        monkeypatch.setattr(sys, "argv", [*command, name])
        planted.main()
    found = json.loads((tmp_path / "planted.json").read_text())

    assert [row["name"] for row in found["plants"]] == [
        "convnext-power",
        "stereo-denormal-mask",
    ]  # the earlier one stays
    for row in found["plants"]:
        assert row["reason"] is None
        assert row["cost_ms"] == pytest.approx(row["faulty_ms"] - row["clean_ms"])
        assert row["share"] == pytest.approx(row["cost_ms"] / row["faulty_ms"])
        assert row["share_ci95"][0] <= row["share"] <= row["share_ci95"][1]
    assert found["plants"][0]["more"] == {"Pow": 2}
    assert found["plants"][0]["fewer"] == {"Mul": 2, "Sqrt": 4}
    assert found["summary"]["measured"] == 2
    assert "| kernel | power | convnext |" in (tmp_path / "planted.md").read_text()
