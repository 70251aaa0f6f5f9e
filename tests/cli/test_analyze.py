"""The command that reports what models miss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest


@pytest.fixture
def measured(here: Path, write_lrn: Callable[[Path], Path], cli: Callable[..., Any]) -> Path:
    """A model whose executed operators are measured, with ``dlbricks.db`` beside it."""
    write_lrn(here / "lrn.onnx")
    assert cli("generate", "lrn.onnx", "-g", "1", "--graph", "runtime", "-o", "suite", "-q").code == 0
    run = cli("run", "suite", "--with", "lrn.onnx", "--visits", "6", "--processes", "1", "-q")
    assert run.code == 0
    return here


@pytest.mark.slow
def test_a_model_is_analysed_proven_and_written(measured: Path, cli: Callable[..., Any]) -> None:
    done = cli("analyze", "lrn.onnx", "--prove", "--visits", "12", "--write", "better", "--json", "-q")

    assert done.code == 0
    (row,) = done.json["results"]
    assert row["name"] == "lrn"
    assert row["basis"] == "measured"
    everything = [*row["findings"], *row["tried"]]
    assert {"denormals"} <= {one["kind"] for one in everything}
    for one in everything:
        assert {"kind", "layers", "current_ms", "achievable_ms", "saving_ms", "ci95_ms", "evidence", "remedy"} <= {*one}
        assert (one["proven_ms"] is None) == (one["proof"] is None)
        written = one["proof"] and one["proof"]["artefact"]
        if written:
            onnx.checker.check_model(str(measured / written))
            assert "LRN" not in {node.op_type for node in onnx.load(measured / written).graph.node}


def test_a_limit_that_is_crossed_ends_with_4(measured: Path, cli: Callable[..., Any]) -> None:
    found = cli("analyze", "lrn.onnx", "--minimum-share", "0.0001%", "--json")
    largest = max((one["share"] for one in found.json["results"][0]["findings"]), default=0.0)

    limit = f"saving>{max(largest * 50, 0.001)}%"  # half of it; on a busy machine nothing may stand out from chance
    below = cli("analyze", "lrn.onnx", "--minimum-share", "0.0001%", "--fail-on", limit, "--json")
    above = cli("analyze", "lrn.onnx", "--fail-on", "saving>100%", "--json")

    assert below.code == (4 if largest > 0 else 0)
    assert above.code == 0


def test_nothing_stored_is_incomplete_with_the_command(
    here: Path, write_lrn: Callable[[Path], Path], cli: Callable[..., Any]
) -> None:
    write_lrn(here / "lrn.onnx")
    assert cli("measure", "lrn.onnx", "--visits", "6", "--processes", "1", "-q").code == 0

    done = cli("analyze", "lrn.onnx")

    assert done.code == 3
    assert "dlbricks generate" in done.out
    assert "not measured" in done.out
