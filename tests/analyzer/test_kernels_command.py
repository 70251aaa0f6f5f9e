"""``kernels``, ``run --kernels`` and ``brick show`` on the command line, with what was really profiled."""

from __future__ import annotations

import csv
import io
import json

import pytest

RESULT = {
    "name", "batch", "whole", "system", "stack", "backend", "device", "threads", "dtype", "source", "profiled_ms",
    "matrix_shares", "kernels", "elsewhere", "missing", "command", "error",
}  # fmt: skip
KERNEL = {"name", "operator", "place", "calls", "time_ms", "share", "matrix", "units", "elsewhere"}


@pytest.fixture
def profiled(cli, branches):
    """The model, its suite and a database; bricks and model are profiled."""
    assert cli("generate", branches, "-o", "suite").code == 0
    assert cli("run", "suite", "--cache", "hot", "--kernels").code == 0
    return branches


def test_kernels_of_a_model(cli, profiled):
    done = cli("kernels", profiled, "--json")

    assert done.code == 0
    (row,) = done.json["results"]
    assert set(row) == RESULT
    assert all(set(kernel) == KERNEL for kernel in row["kernels"])
    assert (row["backend"], row["source"], row["missing"]) == ("onnxruntime", "onnxruntime profiling", [])
    calls = {kernel["operator"]: kernel["calls"] for kernel in row["kernels"]}
    assert calls["Relu"] == 2
    assert calls["Conv"] == 2
    assert sum(row["matrix_shares"].values()) == pytest.approx(1.0)
    assert sum(kernel["share"] for kernel in row["kernels"]) == pytest.approx(1.0)

    table = cli("kernels", profiled).out
    assert "CPUExecutionProvider" in table
    assert "with matrix units" in table
    (line,) = csv.DictReader(io.StringIO(cli("kernels", profiled, "--format", "csv").out))
    assert json.loads(line["kernels"]) == row["kernels"]


def test_the_whole_model_is_told_once_it_is_profiled(cli, profiled):
    done = cli("kernels", profiled, "--whole", "--json")
    assert done.code == 3
    assert done.json["results"][0]["command"].startswith(f"dlbricks measure {profiled} ")

    measured = cli("measure", profiled, "--kernels", "--json")
    assert measured.code == 0
    assert measured.json["kernels"]["taken"] == 1
    done = cli("kernels", profiled, "--whole", "--json")
    assert done.code == 0
    assert done.json["results"][0]["whole"]


def test_missing_views_name_their_command(cli, branches):
    assert cli("generate", branches, "-o", "suite").code == 0
    run = cli("run", "suite", "--cache", "hot", "--json")
    assert (run.code, run.json["kernels"]) == (0, None)
    done = cli("kernels", branches)

    assert done.code == 3
    assert f"the kernels of 6 sequences are not known: dlbricks generate {branches} " in done.out
    assert "--kernels" in done.out


def test_a_run_tells_what_it_profiled(cli, branches):
    assert cli("generate", branches, "-o", "suite").code == 0
    run = cli("run", "suite", "--cache", "hot", "--kernels")
    assert "kernels: 4 told, 0 known, 0 failed" in run.out


def test_a_brick_shows_its_kernels(cli, profiled):
    rows = cli("brick", "list", "--suite", "suite", "--json").json["results"]
    key = next(row["key"] for row in rows if row["operators"] == ["Sigmoid"])

    (view,) = cli("brick", "show", key, "--json").json["kernels"]
    assert (view["backend"], view["threads"], view["executions"]) == ("onnxruntime", 1, 5)
    assert [kernel["operator"] for kernel in view["kernels"]] == ["Sigmoid"]
    assert "1 x Sigmoid" in cli("brick", "show", key).out


def test_a_backend_without_a_profiler_is_refused_before_anything_is_measured(cli, branches, install_plain):
    install_plain()
    assert cli("generate", branches, "-o", "suite").code == 0
    done = cli("run", "suite", "--backend", "plain", "--cache", "hot", "--kernels")

    assert done.code == 2
    assert "backend plain does not tell which kernels it executes; leave out --kernels" in done.error


@pytest.fixture
def install_plain(monkeypatch):
    """A backend that runs, and has no profiler."""
    from dlbricks.generator.backends import registry
    from dlbricks.generator.backends.ort import OrtBackend

    def install() -> None:
        monkeypatch.setattr(OrtBackend, "name", "plain")
        monkeypatch.delattr(OrtBackend, "kernels")
        point = registry._points()["onnxruntime"]
        monkeypatch.setattr(registry, "_points", lambda: {"onnxruntime": point, "plain": point})

    return install
