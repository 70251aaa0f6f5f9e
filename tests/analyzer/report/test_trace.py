"""The constructed execution as a trace, and a model whose nodes bear their costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime
import pytest
from dlbricks.analyzer.report.annotation import annotate
from dlbricks.analyzer.report.section import Section, layer_rows
from dlbricks.analyzer.report.trace import write_trace
from dlbricks.analyzer.reporting import report
from dlbricks.db import Store
from dlbricks.errors import UsageError
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from dlbricks.models import find_models


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory, write_branches: Callable[[Path], Path]) -> Section:
    """A model that was measured and profiled, its bricks too."""
    folder = tmp_path_factory.mktemp("traced")
    models = find_models([write_branches(folder / "branches.onnx")])
    with Store.open(folder / "dlbricks.db") as store:
        report(models, store=store, suite=folder / "suite", budget_s=6)
        run(folder / "suite", store=store, kernels=True)
        measure(models, store=store, cache="model", kernels=True)
        (made,) = report(models, store=store).sections
    return made


def test_the_levels_nest_and_add_up(section: Section, tmp_path: Path) -> None:
    count = write_trace([section], tmp_path / "trace.json")

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == count
    row = [one for one in events if one["ph"] == "X" and one["tid"] == 1]
    (model,) = (one for one in row if one["cat"] == "model")
    layers = [one for one in row if one["cat"] == "layer"]
    kernels = [one for one in row if one["cat"] == "kernel"]
    assert model["dur"] == pytest.approx(1e3 * (section.estimate.sequential_ms or 0), abs=1e-3)
    assert sum(one["dur"] for one in layers) == model["dur"]
    assert [one["args"]["brick"] for one in layers] == [part.key for part in section.estimate.sequences]
    assert kernels
    for kernel in kernels:
        assert [one for one in layers if one["ts"] <= kernel["ts"] and _end(kernel) <= _end(one)]


def test_branches_at_once_end_with_the_critical_path(section: Section, tmp_path: Path) -> None:
    write_trace([section], tmp_path / "trace.json")

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = [one for one in events if one["ph"] == "X" and one["tid"] >= 10]
    assert max(map(_end, lanes)) == pytest.approx(1e3 * (section.estimate.critical_path_ms or 0), abs=1e-3)


def test_events_of_a_thread_follow_each_other_or_nest_to_the_last_bit(section: Section, tmp_path: Path) -> None:
    write_trace([section], tmp_path / "trace.json")

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    threads: dict[int, list[dict[str, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            threads.setdefault(event["tid"], []).append(event)
    assert len(threads) >= 4  # a row, a profile, two lanes
    for inside in threads.values():
        open_until: list[float] = []
        for event in sorted(inside, key=lambda one: (one["ts"], -one["dur"])):
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            assert not open_until or _end(event) <= open_until[-1]
            open_until.append(_end(event))


def test_the_measured_profile_stands_beside(section: Section, tmp_path: Path) -> None:
    write_trace([section], tmp_path / "trace.json")

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    profile = [one["name"] for one in events if one["ph"] == "X" and one["tid"] == 2]
    assert profile == [kernel.name for kernel in section.profile if kernel.time_ns is not None]
    assert profile


def test_every_node_of_the_model_bears_its_cost(section: Section, tmp_path: Path) -> None:
    count = annotate([section], tmp_path / "annotated.onnx")

    model = onnx.load(tmp_path / "annotated.onnx")
    onnx.checker.check_model(model)
    onnxruntime.InferenceSession(tmp_path / "annotated.onnx", providers=["CPUExecutionProvider"])
    assert count == len(model.graph.node) == 6
    notes = [{one.key: one.value for one in node.metadata_props} for node in model.graph.node]
    known = {row.sequence.key: row for row in layer_rows(section)}
    for node, note in zip(model.graph.node, notes, strict=True):
        row = known[note["dlbricks.brick"]]
        assert row.measurement is not None
        assert note["dlbricks.measurement"] == row.measurement.id
        assert note["dlbricks.latency"] in node.doc_string
    assert any("dlbricks.together with" in note for note in notes)  # a convolution with its activation


def test_the_model_itself_is_not_written_over(section: Section) -> None:
    assert section.model is not None
    path = section.model.source.path
    assert path is not None
    before = path.read_bytes()

    with pytest.raises(UsageError, match="is the model itself"):
        annotate([section], path)

    assert path.read_bytes() == before


def test_several_models_are_no_one_file(section: Section, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 models do not fit"):
        annotate([section, section], tmp_path / "a.onnx")


def _end(event: dict[str, float]) -> float:
    return event["ts"] + event["dur"]
