"""Control flow on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from dlbricks.db import Store
from speech import generation, speech_detector

Cli = Callable[..., Any]


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    path = tmp_path / "detector.onnx"
    onnx.save(speech_detector(), path)
    return path


def test_an_unknown_course_leaves_one_layer_and_names_the_option(cli: Cli, detector: Path, tmp_path: Path) -> None:
    done = cli("generate", detector, "-g", 1, "-o", tmp_path / "suite")
    assert done.code == 3
    assert "If If_0 unknown, one layer: its condition is not constant; state it with --branch, or see" in done.out


def test_an_estimate_says_the_course_and_repeats_it(cli: Cli, detector: Path, tmp_path: Path) -> None:
    with Store.open(tmp_path / "kept.db"):
        pass  # nothing is measured
    done = cli("estimate", detector, "--branch", "then", "--db", tmp_path / "kept.db", "--json")
    (row,) = done.json["results"]
    assert [flow["how"] for flow in row["control"]] == ["given"]
    assert all(" --branch then " in missing["command"] for missing in row["missing"])
    assert row["missing"]


def test_an_estimate_says_what_control_flow_takes_by_itself(cli: Cli, tmp_path: Path) -> None:
    path, suite, db = tmp_path / "loop.onnx", tmp_path / "suite", tmp_path / "kept.db"
    onnx.save(generation(width=64), path)
    cli("generate", path, "--trip", 3, "-g", 1, "-o", suite)
    cli("run", suite, "--db", db, "--visits", 2, "--option", "pinning=off")

    told = cli("estimate", path, "--trip", 3, "--db", db)
    (row,) = cli("estimate", path, "--trip", 3, "--db", db, "--explain", "--json").json["results"]

    (flow,) = row["control"]
    assert flow["own_ms"] > 0
    assert flow["moved_ms"] > 0
    assert "beyond its body" in told.out
    assert "slices and stacks" in told.out
    assert {part["cache"] for part in row["parts"]} == {row["level"]} == {"64KiB"}


def test_a_given_branch_is_decomposed(cli: Cli, detector: Path, tmp_path: Path) -> None:
    done = cli("generate", detector, "--branch", "If_0=else", "-g", 1, "-o", tmp_path / "suite", "--json")
    assert done.code == 0
    (row,) = done.json["results"]
    (flow,) = row["control"]
    assert (flow["name"], flow["how"], flow["course"], flow["layers"]) == ("If_0", "given", "else", 27)
    assert row["skipped"] == []
    assert row["macs"] > 0
