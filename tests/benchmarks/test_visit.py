"""Visits: their plan, their time, and that nothing is done twice. Real runtimes on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import visit
import visit_analyses
import visit_plan
import visit_plans
import visit_rehearsal
import visit_stages
import visit_state
from dlbricks.db import Store, Subject

TOP = Path(__file__).resolve().parents[2]
RESULTS = TOP / "docs/results"


def call(out: Path, *more: object) -> int:
    """A visit in this process; its exit code."""
    return visit.main(["--out", str(out), *map(str, more)])


def rehearse(out: Path, *more: object) -> int:
    """A rehearsal in a process of its own, since it brings backends of its own; its exit code."""
    command = [sys.executable, TOP / "benchmarks/visit.py", "--rehearse", "--out", out, "--minutes", "9"]
    return subprocess.run([*command, *map(str, more)], check=False).returncode


def stored(out: Path) -> list[tuple]:
    """Everything measured, with its raw samples."""
    with Store.open(out / "measurements.db", read_only=True) as store:
        return [(found, store.blocks(found.id)) for found in store.measurements(variant=None, latest=False)]


@pytest.mark.slow
def test_every_kind_of_stage_is_rehearsed_resumed_reported_and_merged(cli, here):
    """All of it on the CPU: agreement, latencies, plans, kernels; then a visit that has nothing left to measure."""
    pytest.importorskip("torch")
    first = ("stack", "tests", "agreement-cudnn")
    measuring = ("cudnn-float16", "float16-graph", "views-float16-graph", "fused-float16", "fused-cudnn-float16",
                 "float16-compiled", "cpu-16")  # fmt: skip
    more = ("--stage", *first, *measuring, "kernels-float16-graph", "plans-cudnn-float16", "fastest-cudnn-float16")

    codes = [rehearse(here / "visits", "--stage", *first), rehearse(here / "visits", *more)]
    known = stored(here / "visits")
    codes.append(rehearse(here / "visits", *more))

    found = json.loads((here / "visits/visit.json").read_text())
    assert codes == [0, 0, 0]
    assert {record["stage"]["name"]: record["status"] for record in found["records"]} == dict.fromkeys(more[1:], "done")
    assert found["results"]["agreement"][0]["counts"] == {"same": 9}
    assert stored(here / "visits") == known
    own = {record["stage"]["name"]: record["stack"] for record in found["records"]}
    measured = {(one.stack, one.conditions.dtype) for one, _ in known}
    assert {(own[name], "float32" if name == "cpu-16" else "float16") for name in measuring} <= measured
    plans = [json.loads(line) for line in (here / "visits/plans.jsonl").read_text().splitlines()]
    assert {tuple(row["operators"]) for row in plans} == {("Conv",), ("MatMul",)}
    assert all(plan["ns"] and plan["model_ns"] for row in plans for plan in row["plans"])
    with Store.open(here / "visits/measurements.db", read_only=True) as store:
        chosen = {dict(stack.options).get("plan") for stack in store.stacks().values()}
    assert "plan1" in chosen  # the first, plan9, is the slowest

    assert rehearse(here / "tables", "--report", "visits") == 0
    tables = json.loads((here / "tables/results.json").read_text())
    views = next(stage for stage in tables["stages"] if stage["stage"] == "views-float16-graph")
    assert all(row["sequential_ms"] > 0 and row["coverage"] == 1 for row in views["models"])
    fusions = {stage["stage"]: stage["models"] for stage in tables["fusions"]}
    assert [row["compared"] > 0 for row in fusions["fused-float16"]] == [True, True]
    stage = next(stage for stage in tables["stages"] if stage["stage"] == "float16-graph")
    model = next(row for row in stage["models"] if row["name"] == "convolutions")
    cli("db", "merge", "visits/measurements.db", "--db", "home.db")
    path = next((here / "visits-models").glob("conv*"))
    done = cli("estimate", path, "--db", "home.db", "--cache", "model", "--stack", stage["stack"], "--json")
    for name in ("sequential_ms", "critical_path_ms", "measured_ms"):
        assert done.json["results"][0][name] == model[name] > 0


def test_no_two_stages_of_a_rehearsal_measure_the_same():
    planned = [visit_rehearsal.rehearsed(stage, visit_rehearsal.Torch.name) for stage in visit_plan.stages([16, 64])]
    where = [
        (stage.backend, *sorted(stage.options.items()), stage.dtype, stage.batch, stage.granularity, stage.graph,
         stage.threads)
        for stage in planned
        if stage.kind in {"bricks", "models"}
    ]  # fmt: skip

    assert len(where) == len({*where}) > 20


def test_a_published_folder_can_be_continued(tmp_path):
    folder = visit_state.copied(RESULTS / "gpu", tmp_path / "visits")

    assert folder.settings["batch"] == [16]
    folder.settle({"batch": None, "rehearse": None}, {"batch": [16, 64], "rehearse": False})
    assert len(folder.rows(visit_state.PLANS)) > 500
    with folder.store() as store:
        assert len(store.measurements(subject=Subject.MODEL)) > 100
    assert {record.status for record in folder.records if record.stage["name"] == "float32-graph"} == {"done"}


def test_no_sum_of_plans_mixes_cache_states():
    hot, both = ({"plans": [{"ns": 9.0} | more, {"ns": 1.0} | more]} for more in ({}, {"model_ns": 12.0}))
    rows = {"a": hot | {"operators": ["Conv"]}, "b": both | {"operators": ["Conv"], "footprint": 8 << 20}}
    counts, measured = {"m": {"a": 2, "b": 1}}, {"m": {"measured_ms": 1e-4}}

    assert visit_plans.best_of(hot) == (9.0, 1.0)
    assert visit_plans.best_of(both) == (12.0, 12.0)
    assert visit_plans.in_one_state([hot, both]) == [both]
    with pytest.raises(ValueError, match="several cache states"):
        visit_analyses.selection(counts, rows, measured, {})
    found = visit_analyses.selection(counts, {"a": rows["a"]}, measured, {})
    assert (found["state"], found["default"]) == ("hot", "first plan")
    assert found["models"]["m"]["of_model"] == pytest.approx(0.16)
    found = visit_analyses.selection(counts, {"b": rows["b"]}, measured, {("b", "8MiB"): 32.0, ("b", "32MiB"): 90.0})
    assert (found["state"], found["default"]) == ("model", "framework")
    assert found["models"]["m"]["of_model"] == pytest.approx(0.2)
    assert visit_analyses.selection(counts, {"b": rows["b"]}, measured, {})["models"]["m"]["bricks"] == 0


def test_kernels_of_the_model_alone_are_those_that_no_brick_has():
    model, bricks = {"copy": (3, 30.0), "gemm": (2, 8.0)}, {"copy": (1, 5.0), "relu": (4, 4e6)}

    found = visit_analyses._differences(model, bricks)

    assert found["only_model"] == {"copy": {"calls": 2, "ms": 2e-5}, "gemm": {"calls": 2, "ms": 8e-6}}
    assert found["only_bricks"] == {"relu": {"calls": 4, "ms": 4.0}}


def test_a_stage_ends_with_its_time_and_the_next_one_begins(tmp_path, monkeypatch):
    clock = visit_state.Clock(600.0)
    one = visit_state.Visit(visit_state.Folder(tmp_path / "visits"), clock, tmp_path)
    one.folder.settings.update({**visit._DEFAULTS, **visit._REHEARSED, "backend": "onnxruntime"})
    monkeypatch.setattr(visit, "OVER_S", 0.2)
    monkeypatch.setattr(visit, "do", lambda visited, stage, record, allowed_s: time.sleep(60))
    stage = visit_rehearsal.rehearsed(visit_plan.Stage("long", "models", 6.1), "onnxruntime")
    monkeypatch.setattr(visit_state.Clock, "least_s", 0.0)
    noted = one.folder.begin(10.0)
    began = time.monotonic()

    record = visit._go_on(one, replace(stage, seconds=0.1), noted, last=False)

    assert time.monotonic() - began < 30
    assert (record.status, record.reason) == ("open", "stopped: its time was up")


def test_what_failed_is_tried_again_at_the_next_visit_and_no_more(tmp_path, monkeypatch, branches):
    asked = []

    def run(suite, *, again=(), since=None, dry_run=False, **_):
        asked.append((tuple(again), dry_run))
        failures = [SimpleNamespace(key="brick", kind="crashed", reason="it died")]
        chosen = SimpleNamespace(bricks=SimpleNamespace(failures=failures), models=SimpleNamespace(failures=[]))
        return SimpleNamespace(
            remaining=int(dry_run), models_remaining=0, forecast_s=1.0, failures=[("brick", "it died")], wall_s=1.0,
            outcome=SimpleNamespace(chosen=chosen),
        )  # fmt: skip

    monkeypatch.setattr(visit_stages, "run", run)
    stage = visit_rehearsal.rehearsed(visit_plan.Stage("float32", "bricks", 60), "onnxruntime")
    folder = visit_state.Folder(tmp_path / "visits")
    folder.settings.update({**visit._DEFAULTS, **visit._REHEARSED, "backend": "onnxruntime", "models": [str(branches)]})
    folder.begin(1.0)
    status = []
    for number in range(2):
        one = visit_state.Visit(folder, visit_state.Clock(600.0), tmp_path / f"work-{number}")
        one.work.mkdir()
        record = one.record(stage)
        visit_stages.do(one, stage, record, 60)
        status.append(record.status)

    assert status == ["open", "done"]
    assert {again for again, _ in asked[: len(asked) // 2]} == {()}
    assert {again for again, _ in asked[len(asked) // 2 :]} == {("failed",)}


@pytest.mark.sweep(0)
def test_a_bare_environment_with_the_listed_wheels_can_visit(tmp_path):
    """The packages that ``docs/how-to/gpu.md`` has carried to another machine are all that a visit needs.

    In Python 3.12, which those machines have, where there is one; else in the tests' own.
    """
    assert " ".join(visit_plan.WHEELS) in " ".join((TOP / "docs/how-to/gpu.md").read_text().split())
    kept = sorted((Path.home() / ".pyenv/versions").glob("3.12*/bin/python3.12"))
    pythons = [*filter(None, [shutil.which("python3.12")]), *kept, sys.executable]  # a shim may have nothing behind it
    starts = (subprocess.run([one, "--version"], capture_output=True, check=False).returncode == 0 for one in pythons)
    python = next(one for one, well in zip(pythons, starts, strict=True) if well)
    subprocess.run([python, "-m", "venv", tmp_path / "bare"], check=True)
    install = [tmp_path / "bare/bin/python", "-m", "pip", "install", "-q", "--no-deps", *visit_plan.WHEELS]
    if subprocess.run(install, capture_output=True, check=False).returncode:
        pytest.skip("no package index")
    (tmp_path / "link").mkdir()
    (tmp_path / "link/dlbricks").symlink_to(TOP)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "link")}
    command = [tmp_path / "bare/bin/python", TOP / "benchmarks/visit.py", "--rehearse", "--out", "visits"]
    stages = ["stack", "tests", "agreement-cudnn", "float32-graph", "plans-cudnn-float16"]

    done = subprocess.run(
        [*command, "--minutes", "4", "--stage", *stages], env=environment, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]


def test_wrong_usage_is_refused_and_nothing_is_made(here, capsys):
    for more, message in ((["--stage", "float8"], "no stage float8"), (["--minutes", "nan"], "cannot be nan")):
        code = call(here / "visits", "--device", "cpu", "--backend", "onnxruntime", *more)

        assert (code, message in capsys.readouterr().err) == (2, True)
    assert not [*here.iterdir()]
