"""The corpus of planted faults: models run and equal their twins, and scores count what they should."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import numpy as np
import onnx
import planted
import pytest
from plants import corpus, score

PLANTS = corpus.plants()
ROUNDED = {"half-pair": 2e-3, "bfloat-pair": 1e-2}
"""Faults that round to 16 bits; all others compute in 32 bits at least."""


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


@pytest.mark.sweep(6)
@pytest.mark.parametrize(("fault", "plant"), [pytest.param(one.fault, one, id=one.name) for one in PLANTS])
def test_a_plant_leaves_the_function_as_it_is(fault, plant):
    faulty, layers = plant.model(faulty=True)
    clean, repaired = plant.model(faulty=False)
    for model in (faulty, clean):
        onnx.checker.check_model(model, full_check=True)
        names = [node.name for node in model.graph.node]
        assert len(set(names)) == len(names)
    assert layers
    assert set(layers) <= {node.name for node in faulty.graph.node}
    assert set(repaired) <= {node.name for node in clean.graph.node}

    for got, wanted in zip(outputs(faulty), outputs(clean), strict=False):  # what it has beyond them is the fault
        assert np.isfinite(wanted).all()
        assert np.abs(wanted).max() > 1e-3
        np.testing.assert_allclose(got, wanted, rtol=0, atol=ROUNDED.get(fault, 1e-5) * np.abs(wanted).max())


@dataclass
class Found:
    """A finding."""

    kind: str
    layers: tuple[str, ...] = ()
    at_most: bool = False


def test_what_is_found_and_what_is_a_false_alarm():
    def judged(half, faulty, clean):
        places = {"layers": ["a", "b"], "repaired": ["c"]}
        return score.judge(name="m", kind="gelu", half=half, **places, faulty=faulty, clean=clean)

    found = judged("tune", [Found("pointwise", ("a",)), Found("threads")], [Found("threads")])
    missed = judged("held", [Found("equality", ("a",))], [Found("pointwise", ("c",))])
    rates = score.result([found, missed])

    assert (found.found, missed.found) == (True, False)
    assert rates["all"]["recall"] == 0.5
    assert rates["all"]["precision"] == pytest.approx(2 / 3)
    assert (rates["all"]["twin_findings"], rates["all"]["twins_blamed"]) == (2, 1)


@pytest.mark.slow
def test_a_cost_is_the_difference_of_twins_that_were_visited_in_turn(monkeypatch, tmp_path, capsys):
    command = ["planted.py", "--measure", "--visits", "4", "--processes", "1", "--out", str(tmp_path), "--plants"]
    monkeypatch.setattr(sys, "argv", [*command, "convnext-power"])
    planted.main()
    (row,) = json.loads((tmp_path / "planted.json").read_text())["plants"]

    assert row["reason"] is None
    assert row["cost_ms"] == pytest.approx(row["faulty_ms"] - row["clean_ms"])
    assert row["share_ci95"][0] <= row["share"] <= row["share_ci95"][1]
    assert (row["more"], row["fewer"]) == ({"Pow": 2}, {"Mul": 2, "Sqrt": 4})
    assert "| kernel | power | convnext |" in capsys.readouterr().out
