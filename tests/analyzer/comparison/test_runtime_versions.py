"""Two versions of a runtime: two interpreters of this environment, one of which executes one operator many times."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from dlbricks.analyzer.comparison.bug_reports import write_bug_reports
from dlbricks.analyzer.comparison.difference import Relation, paired
from dlbricks.analyzer.comparison.runtime_versions import compare_versions, starts_of, without_call
from dlbricks.analyzer.report.answers.versions import versions_answer
from dlbricks.analyzer.report.tables import render
from dlbricks.errors import BackendError
from dlbricks.generator.measurement.trial import Trial
from dlbricks.models import find_models
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

SLOW_ERF = """
import onnxruntime
once = onnxruntime.InferenceSession.run_with_iobinding
load = onnxruntime.InferenceSession.__init__
def loaded(self, model, *given, **options):
    data = model if isinstance(model, bytes) else open(model, "rb").read()
    self.times = 40 if b"Erf" in data else 1
    load(self, model, *given, **options)
def often(self, *given):
    for _ in range(self.times):
        once(self, *given)
onnxruntime.InferenceSession.__init__ = loaded
onnxruntime.InferenceSession.run_with_iobinding = often
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A product, Erf twice, a product; long enough that the interpreter of the other version does not count."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.random((256, 256), np.float32), name) for name in ("v", "w")]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("Erf", ["a"], ["b"]),
        helper.make_node("Erf", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [256, 256]) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "private_name", [x], [y], weights)
    path = tmp_path / "private_name.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@settings(deadline=None)
@given(st.floats(-900, 900), st.floats(0.5, 2))
def test_a_difference_of_calls_is_no_difference_of_a_brick(more_ns, ratio):
    call = Trial((np.full(8, 2_000.0),) * 6, (np.full(8, 2_000.0 + more_ns),) * 6, 0.0)
    brick = Trial((np.full(8, 9_000.0),) * 6, (np.full(8, 9_000.0 * ratio + more_ns),) * 6, 0.0)

    found = without_call(brick, call)

    assert isinstance(found, Trial)
    assert paired(found.before_ns, found.after_ns).difference.ratio == pytest.approx(ratio)
    assert without_call(BackendError("it cannot run"), call).message == "it cannot run"


START_NS = [(50_000_000, 4_000_000), (51_000_000, 4_200_000), (49_500_000, 4_100_000), (50_500_000, 3_900_000)]


@pytest.mark.parametrize(
    ("load", "first", "verdicts"),
    [(1.0, 1.0, ("SAME", "SAME")), (1.5, 1.0, ("SLOWER", "SAME")), (1.0, 0.5, ("SAME", "FASTER"))],
)
def test_a_start_is_told_if_it_differs_far_beyond_its_scatter(load, first, verdicts):
    other = [(load * loading, first * run) for loading, run in START_NS]

    starts = starts_of(Trial((), (), 0.0, starts_ns=(START_NS, other)))

    assert tuple(str(start.verdict) for start in starts) == verdicts
    assert starts[0].levels.difference.ratio == pytest.approx(load)
    assert starts[1].record()["other_ms"] == pytest.approx(first * starts[1].record()["base_ms"])


def test_a_start_that_scatters_or_is_known_of_few_processes_is_not_told():
    scattered = [(90_000_000, 1), (52_000_000, 1), (140_000_000, 1), (70_000_000, 1)]

    load, _ = starts_of(Trial((), (), 0.0, starts_ns=(START_NS, scattered)))

    assert load.verdict is Relation.UNCLEAR
    assert starts_of(Trial((), (), 0.0, starts_ns=(START_NS[:3], scattered[:3]))) is None


@pytest.mark.slow
def test_what_became_slower_is_told_by_brick_and_can_be_reproduced(model, pythons, tmp_path):
    names = str(pythons("old")), str(pythons("new", SLOW_ERF))

    found = compare_versions(find_models([model]), names, folder=tmp_path / "bricks", graph="source")

    (row,) = found.rows
    assert row.verdict is Relation.SLOWER
    told = [brick for brick in row.bricks if brick.told]
    assert [brick.brick.operators for brick in told] == [("Erf",)]
    assert told[0].brick.occurrences == 2
    assert told[0].fresh
    assert told[0].effect_ms == pytest.approx(2 * (told[0].levels.after_ms - told[0].levels.before_ms))
    assert row.explained is not None
    assert row.explained > 0
    assert row.executed == {}  # both optimise alike
    assert found.complete

    text = render(versions_answer(found))
    assert "1 slower and 0 faster" in text
    assert "µs; bricks are compared without this difference" in text
    assert "are left; both versions execute the same operators" in text
    assert "  load " in text
    record = json.loads(json.dumps(found.to_json()))["results"][0]
    assert record["bricks"][0]["operator"] == "Erf"
    assert record["bricks"][0]["count"] == 2
    effects_ms = sum(brick["effect_ms"] for brick in record["bricks"])
    assert row.difference_ms == pytest.approx(effects_ms + record["call_ms"] + record["left_ms"])
    assert record["explained"] == pytest.approx(1 - record["left_ms"] / row.difference_ms)
    assert set(record["load"]) == set(record["first_run"]) == {"base_ms", "other_ms", "ratio", "ratio_ci95", "verdict"}
    assert len(found.records().lines) == len(row.bricks)
    part = replace(row, missing={"key": "the time was up"})
    assert (part.left_ms, part.explained) == (None, None)
    unsure = replace(row, bricks=tuple(replace(brick, verdict=Relation.UNCLEAR) for brick in row.bricks))
    told = render(versions_answer(replace(found, rows=(unsure,))))
    assert f"0 slower and 0 faster, {len(row.bricks)} not decided" in told

    (folder,) = write_bug_reports(found, tmp_path / "reports")
    for file in folder.iterdir():
        assert b"private_name" not in file.read_bytes()
    assert "slower in" in (folder / "REPORT.md").read_text()
    command = [sys.executable, folder / "reproduce.py", sys.executable, sys.executable, "3"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == 2  # one environment, twice
    assert "ratio" in said[1]


@pytest.mark.slow
def test_bricks_are_cut_along_the_fusions_of_the_versions_runtime(pythons, tmp_path):
    pytest.importorskip("openvino")
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.random((64, 64), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [64, 64]) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "fused", [x], [y], [weight])
    path = tmp_path / "fused.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    names = str(pythons("old")), str(pythons("new"))

    found = compare_versions(find_models([path]), names, folder=tmp_path / "bricks", backend="openvino", budget_s=1)

    assert [found.suite.brick(key).operators for key in found.suite.keys] == [("MatMul", "Relu")]


def test_a_version_that_cannot_run_here_is_one_line(model, pythons, cli):
    old, new = pythons("old"), pythons("new", "raise SystemExit('no dlbricks here')")

    done = cli("compare", model, "--versions", f"{old},{new}")

    assert done.code == 1
    assert "no dlbricks here" in done.error
    assert done.error.count("\n") <= 1


def test_one_environment_is_refused(model, pythons, tmp_path, cli):
    python = pythons("old")

    done = cli("compare", model, "--versions", f"{python},{python}")

    assert done.code == 2
    assert "are one environment" in done.error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1.22.1", "is not two versions"),
        ("1.22.1,1.23.2,1.24.4", "is not two versions"),
        ("onnxruntime>=1.22,onnxruntime==1.23.2", "names no version"),
        ("numpy==1.26.0,numpy==2.0.0", "names no version"),
        ("new,old", "is no version of a runtime"),
        ("./no/python,./other/python", "there is no Python"),
    ],
)
def test_what_names_no_version_is_refused(text, said, model, cli):
    done = cli("compare", model, "--versions", text)

    assert done.code == 2
    assert said in done.error


def test_options_of_stored_results_are_refused(model, cli):
    done = cli("compare", model, "--versions", "1.22.1,1.23.2", "--base", "torch")

    assert done.code == 2
    assert "--base does not concern two versions" in done.error
    assert "--write is for --versions" in cli("compare", model, "--write", "reports").error
