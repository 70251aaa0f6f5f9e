"""``dlbricks report``: what it writes, where, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

Cli = Callable[..., Any]


def test_report_writes_a_page_and_answers(cli: Cli, branches: Path, here: Path) -> None:
    done = cli("report", branches, "--budget", "15s", "--threads", "1", "--json")

    assert done.code == 0
    assert "picked: --graph runtime" in done.err
    assert done.json["page"] == "report.html"
    assert isinstance(done.json["results"][0]["findings"], list)
    assert (here / "report.html").read_text().startswith("<!doctype html>")
    assert (here / "dlbricks.db").exists()

    again = cli("report", branches, "--no-measure", "-o", "b.html", "--trace", "t.json", "--annotated", "a.onnx", "-q")

    assert (again.code, again.err) == (0, "")
    *_, fast, costly, change, untried, page = again.out.splitlines()
    assert fast.startswith("branches: ")
    assert " ms measured" in fast
    assert costly.startswith("  Where the time goes: Conv")
    assert change.startswith("  What to change: ")
    assert untried.startswith("  Not tried: ")
    assert page == "Page: b.html"
    assert {path.name for path in here.iterdir()} >= {"b.html", "t.json", "a.onnx"}

    limits = ("--fail-on", "latency>10s", "--fail-on", "size>0.1kB")
    crossed = cli("report", branches, "--no-measure", "-o", "b.html", "-q", *limits)
    assert crossed.code == 4
    assert "latency>10s: kept" in crossed.out
    assert "size>0.1kB: crossed" in crossed.out


def test_refused_commands_leave_nothing(cli: Cli, branches: Path, here: Path) -> None:
    assert "no file, folder, pattern or zoo name" in cli("report", "nosuch").error
    assert "is a folder" in cli("report", branches, "-o", here).error
    assert "do not fit into one file" in cli("report", branches, "squeezenet", "--annotated", "a.onnx").error
    assert "add --no-measure" in cli("report", branches, "--system", "ab").error

    assert [path.name for path in here.iterdir()] == ["branches.onnx"]


def test_a_model_that_cannot_be_read_is_one_line(cli: Cli, here: Path) -> None:
    (here / "broken.onnx").write_bytes(b"\x08")

    done = cli("report", "broken.onnx", "-q")

    assert done.code == 1
    assert "broken.onnx" in done.error
    assert [path.name for path in here.iterdir()] == ["broken.onnx"]


@pytest.mark.parametrize("step", ["measure_missing", "profile_different", "_alone", "_analysed_model", "render_page"])
def test_an_interrupted_report_prints_what_is_known(
    step: str, cli: Cli, branches: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"dlbricks.analyzer.reporting.{step}", interrupted)
    done = cli("report", branches, "-q", "--budget", "15s", "--alone")

    assert done.code == 130
    assert done.out.splitlines()[-1].startswith("Interrupted: this is what is known so far")
    assert (here / "report.html").exists() == (step != "render_page")
    assert done.err.splitlines()[-1] == "dlbricks: interrupted"
