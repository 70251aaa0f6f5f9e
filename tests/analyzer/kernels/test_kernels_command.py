"""``kernels``, ``run --kernels`` and ``brick show`` on the command line, with what was really profiled."""

from __future__ import annotations

import csv
import io
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from dlbricks.analyzer.kernels import Kernels, MissingView, ModelKernels
from dlbricks.analyzer.report.answers.bricks import kernels_answer
from dlbricks.db import Store
from dlbricks.generator.backends import registry
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.run import run
from dlbricks.models import find_models

RESULT = {
    "name", "batch", "whole", "system", "stack", "backend", "device", "threads", "dtype", "source", "profiled_ms",
    "matrix_shares", "kernels", "elsewhere", "missing", "command", "error",
}  # fmt: skip
KERNEL = {"name", "operator", "place", "calls", "time_ms", "share", "matrix", "units", "elsewhere", "layers"}


@dataclass(frozen=True)
class Profiled:
    model: Path
    suite: Path
    database: Path


@pytest.fixture(scope="module")
def profiled(tmp_path_factory, write_branches) -> Profiled:
    """A model, its suite, and a database in which every brick is profiled, and the model is not."""
    folder = tmp_path_factory.mktemp("profiled")
    found = Profiled(write_branches(folder / "branches.onnx"), folder / "suite", folder / "profiled.db")
    generate(find_models([found.model]), granularity=1, out=found.suite)
    with Store.open(found.database) as store:
        run(found.suite, store=store, cache="hot", kernels=True, visits=2, processes=1, sessions=1)
    return found


def test_kernels_of_a_model(cli, profiled):
    done = cli("kernels", profiled.model, "--db", profiled.database, "--json")

    assert done.code == 0
    (row,) = done.json["results"]
    assert set(row) == RESULT
    assert all(set(kernel) == KERNEL for kernel in row["kernels"])
    assert (row["backend"], row["source"], row["missing"]) == ("onnxruntime", "onnxruntime profiling", [])
    calls = {kernel["operator"]: kernel["calls"] for kernel in row["kernels"]}
    assert (calls["Relu"], calls["Conv"]) == (2, 2)
    assert sum(row["matrix_shares"].values()) == pytest.approx(1.0)
    assert sum(kernel["share"] for kernel in row["kernels"]) == pytest.approx(1.0)

    table = cli("kernels", profiled.model, "--db", profiled.database).out
    assert "Conv 3x3 1x4x16x16 →" in table
    assert "with matrix units" in table
    text = cli("kernels", profiled.model, "--db", profiled.database, "--format", "csv").out
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [line["kernel.name"] for line in lines] == [kernel["name"] for kernel in row["kernels"]]
    assert not any(set("[{") & set("".join(line.values())) for line in lines)


def test_the_whole_model_is_reported_once_it_is_profiled(cli, profiled, tmp_path):
    database = shutil.copy(profiled.database, tmp_path)
    done = cli("kernels", profiled.model, "--whole", "--db", database, "--json")
    assert done.code == 3
    assert done.json["results"][0]["command"].startswith(f"dlbricks measure {profiled.model} ")

    measured = cli("measure", profiled.model, "--kernels", "--db", database, "--json")
    assert measured.code == 0
    assert measured.json["kernels"]["taken"] == 1
    done = cli("kernels", profiled.model, "--whole", "--db", database, "--json")
    assert done.code == 0
    assert done.json["results"][0]["whole"]


def test_missing_views_name_their_command_and_it_takes_them(cli, branches):
    assert cli("generate", branches, "--graph", "source", "-o", "suite").code == 0
    plain = cli("run", "suite", "--cache", "hot", "--json")
    assert (plain.code, plain.json["kernels"]) == (0, None)
    missing = cli("kernels", branches)

    assert missing.code == 3
    assert f"the kernels of 6 sequences are not known: dlbricks generate {branches} " in missing.out
    assert "--kernels" in missing.out
    assert "     2 x Conv\n" in missing.out
    assert "kernels: 4 recorded, 0 known, 0 failed" in cli("run", "suite", "--cache", "hot", "--kernels").out
    assert cli("kernels", branches).code == 0


@pytest.fixture
def plain(monkeypatch) -> None:
    """A backend that runs, and has no profiler."""
    point = registry._points()["onnxruntime"]
    monkeypatch.setattr(OrtBackend, "name", "plain")
    monkeypatch.delattr(OrtBackend, "kernels")
    monkeypatch.setattr(registry, "_points", lambda: {"onnxruntime": point, "plain": point})


@pytest.mark.usefixtures("plain")
def test_a_backend_without_a_profiler_is_refused_before_anything_is_measured(cli, profiled, here):
    done = cli("run", profiled.suite, "--backend", "plain", "--cache", "hot", "--kernels", "--db", here / "new.db")

    assert done.code == 2
    assert "backend plain does not report the kernels that it executes; leave out --kernels" in done.error


def test_missing_views_are_counted_by_their_operators():
    """Of five kinds that are listed, the most frequent ones; different bricks of the same operators are one kind."""
    names = ("Add", "Mul", "Exp", "Sqrt", "Tanh")
    missing = (
        *(MissingView(f"brick {number}", ("Conv", "Relu"), number) for number in (1, 2, 3)),
        *(MissingView(name, (name,), 2) for name in names),
        MissingView(None, ("Loop",), 1),
    )
    lines = kernels_answer(Kernels((ModelKernels("m", whole=False, batch=None, missing=missing),))).summary

    assert lines == [
        "m: the kernels of 17 sequences are not known",
        "     6 x Conv+Relu",
        *(f"     2 x {name}" for name in names[:4]),
        "  and 3 more (--json lists all)",
    ]
