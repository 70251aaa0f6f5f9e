"""The constructed execution as a trace, and a model whose nodes bear their costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from dlbricks.analyzer.report.section import Section, layer_rows
from dlbricks.analyzer.report.viewers import annotate, write_trace
from dlbricks.errors import UsageError

from .conftest import Reported


@pytest.fixture
def section(reported: Reported) -> Section:
    return reported.sections[0]


@pytest.fixture
def events(section: Section, tmp_path: Path) -> list[dict[str, Any]]:
    """What takes time in the trace of the model."""
    count = write_trace([section], tmp_path / "trace.json")
    found = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(found) == count
    return [one for one in found if one["ph"] == "X"]


def test_the_levels_nest_and_add_up(section: Section, events: list[dict[str, Any]]) -> None:
    row = [one for one in events if one["tid"] == 1]
    (model,) = (one for one in row if one["cat"] == "model")
    layers = [one for one in row if one["cat"] == "layer"]
    kernels = [one for one in row if one["cat"] == "kernel"]
    assert model["dur"] == pytest.approx(1e3 * (section.estimate.sums.sequential_ms or 0), abs=1e-3)
    assert sum(one["dur"] for one in layers) == model["dur"]
    assert [one["args"]["brick"] for one in layers] == [part.key for part in section.estimate.parts.sequences]
    assert kernels
    for kernel in kernels:
        assert [one for one in layers if one["ts"] <= kernel["ts"] and _end(kernel) <= _end(one)]


def test_branches_at_once_end_with_the_critical_path_and_the_measured_profile_stands_beside(
    section: Section, events: list[dict[str, Any]]
) -> None:
    lanes = [one for one in events if one["tid"] >= 10]
    profile = [one["name"] for one in events if one["tid"] == 2]

    assert max(map(_end, lanes)) == pytest.approx(1e3 * (section.estimate.sums.critical_path_ms or 0), abs=1e-3)
    assert profile == [kernel.name for kernel in section.profile if kernel.time_ns is not None]
    assert profile


def test_events_of_a_thread_follow_each_other_or_nest_to_the_last_bit(events: list[dict[str, Any]]) -> None:
    threads: dict[int, list[dict[str, float]]] = {}
    for event in events:
        threads.setdefault(event["tid"], []).append(event)
    assert len(threads) >= 4  # a row, a profile, two lanes
    for inside in threads.values():
        open_until: list[float] = []
        for event in sorted(inside, key=lambda one: (one["ts"], -one["dur"])):
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            assert not open_until or _end(event) <= open_until[-1]
            open_until.append(_end(event))


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


def test_the_model_itself_is_not_written_over_nor_two_into_one_file(section: Section, tmp_path: Path) -> None:
    assert section.model is not None
    path = section.model.source.path
    assert path is not None
    before = path.read_bytes()

    with pytest.raises(UsageError, match="is the model itself"):
        annotate([section], path)

    assert path.read_bytes() == before
    with pytest.raises(UsageError, match="2 models do not fit"):
        annotate([section, section], tmp_path / "a.onnx")


def _end(event: dict[str, float]) -> float:
    return event["ts"] + event["dur"]
