"""Visits: their time, their files, and that nothing is lost or done twice. Real runtimes on the CPU."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from dlbricks.bricks.reference import COPY, GEMM, STREAM, built_in_key
from dlbricks.db import Conditions, Store, Subject
from dlbricks.errors import StoreError, UsageError
from dlbricks.generator.measurement.ceilings import measure_ceilings
from dlbricks.models import find_models

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "visit.py"
BRIEF = ("--processes", 1, "--sessions", 2, "--visits", 12)
MIB = 1 << 20
FIRST = ("stack", "agreement-float32", "float32", "tf32")


@pytest.fixture(autouse=True)
def folder_of_no_other_test(monkeypatch):
    """A visit says in the environment where compiled code is kept: it is gone after the test."""
    monkeypatch.setenv("DLBRICKS_COMPILED", "")
    monkeypatch.delenv("DLBRICKS_COMPILED")


@pytest.fixture
def part(monkeypatch):
    """Import a module that stands beside the script."""
    monkeypatch.syspath_prepend(SCRIPT.parent)

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"visit_{name}")

    return load


def command(out: Path, *more: object) -> list[str]:
    return [sys.executable, str(SCRIPT), "--out", str(out), *map(str, more)]


def visit(out: Path, *more: object) -> int:
    """A visit in this process; its exit code."""
    return importlib.import_module("visit").main(command(out, *more)[2:])


def state(out: Path) -> dict:
    return json.loads((out / "visit.json").read_text())


def stored(out: Path) -> list[tuple]:
    """Everything measured, with its raw samples."""
    with Store.open(out / "measurements-1.db", read_only=True) as store:
        return [(found, store.blocks(found.id)) for found in store.measurements(variant=None, latest=False)]


def committed(database: Path) -> int:
    """Blocks that another process has written by now; none where it has not made the tables yet."""
    if not database.exists():
        return 0
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'block'").fetchone()
        return connection.execute("SELECT count(*) FROM block").fetchone()[0] if tables[0] else 0


def begun(out: Path) -> Iterator[tuple[str, list]]:
    """What is not finished, with its raw samples."""
    with Store.open(out / "measurements-1.db") as store:
        (system,), (stack,), conditions = store.systems(), store.stacks(), Conditions(threads=1, cache="hot")
        for left in store.left_open(system, stack, conditions):
            number, _, blocks = store.open_item(left.subject, left.key, system, stack, conditions, left.variant)
            yield number, blocks


# Time ---------------------------------------------------------------------------------------------------------------


def test_the_alarm_ends_what_is_being_done(part):
    clock = part("clock").Clock(0.3)

    with pytest.raises(part("clock").TimeUp, match="the time was up"), clock.alarm():
        time.sleep(10)

    assert clock.left_s == 0
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_being_asked_to_end_is_an_interrupt(part):
    with pytest.raises(part("clock").Terminated, match="terminated"), part("clock").Clock(60).alarm():
        signal.raise_signal(signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert issubclass(part("clock").TimeUp, KeyboardInterrupt)


def test_what_is_left_is_less_than_until_the_alarm(part):
    clock = part("clock").Clock(100, began=time.monotonic() - 50)

    assert 41 < clock.left_s <= 42
    assert clock.least_s == 3


# Files --------------------------------------------------------------------------------------------------------------


def test_settings_are_those_of_the_first_visit(part, tmp_path):
    folder = part("folder").Folder(tmp_path / "visits")
    folder.settle({"device": "cpu", "batch": None}, {"device": "cuda", "batch": 16})
    folder.begin(9)

    again = part("folder").Folder(tmp_path / "visits")
    again.settle({"device": None, "batch": 16}, {"device": "cuda", "batch": 4})

    assert again.settings == {"device": "cpu", "batch": 16}
    with pytest.raises(UsageError, match="was begun with device cpu, not cuda"):
        again.settle({"device": "cuda"}, {})


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_broken_state_is_named(part, tmp_path, text):
    (tmp_path / "visit.json").write_text(text)
    with pytest.raises(UsageError, match=r"visit\.json"):
        part("folder").Folder(tmp_path)


def test_a_folder_of_something_else_is_left_alone(part, tmp_path):
    (tmp_path / "thesis.tex").write_text("")

    with pytest.raises(UsageError, match="something else than visits"):
        part("folder").Folder(tmp_path)


def test_a_stage_is_known_by_system_and_stack(part, tmp_path):
    folder = part("folder").Folder(tmp_path)
    done = folder.record({"name": "float32"}, "one", "torch")
    done.status = "done"
    folder.save()

    again = part("folder").Folder(tmp_path)

    assert again.record({"name": "float32"}, "one", "torch").ended
    assert not again.record({"name": "float32"}, "another", "torch").ended
    assert not again.record({"name": "float32"}, "one", "newer torch").ended


def test_what_was_refused_is_forgotten_once_there_is_a_stack(part, tmp_path):
    folder = part("folder").Folder(tmp_path)
    folder.record({"name": "tf32"}, "system", "").status = "refused"
    folder.record({"name": "tf32"}, "another", "").status = "refused"

    folder.record({"name": "tf32"}, "system", "stack")

    assert [(record.system, record.stack) for record in folder.records] == [("another", ""), ("system", "stack")]


def test_a_fault_costs_its_stage_alone(part, going, monkeypatch, capsys):
    """Whatever it is: a machine that is seldom there is not left because of it."""
    visit = importlib.import_module("visit")
    stage = part("plan").Stage("float32", "nonsense", 0.1)
    records = {}

    visit._go_on(going, stage, records, {"stages": {}}, last=False)

    record = records["float32"]
    assert (record.status, record.reason) == ("failed", "unexpected KeyError: 'nonsense'")
    assert "Traceback" in capsys.readouterr().err


def test_a_line_that_was_cut_short_is_dropped(part, tmp_path):
    folder = part("folder").Folder(tmp_path)
    folder.add_row({"key": "a"})
    with (tmp_path / "agreement.jsonl").open("a") as file:
        file.write('{"key": "b", "verd')

    assert folder.rows() == [{"key": "a"}]
    folder.add_row({"key": "c"})
    assert folder.rows() == [{"key": "a"}, {"key": "c"}]


def test_measurements_go_where_there_is_room_and_stay_there(part, tmp_path):
    limit = part("folder").MOST_BYTES
    folder = part("folder").Folder(tmp_path)
    first, second, third = (folder.record({"name": name}, "system", "stack") for name in ("a", "b", "c"))

    assert folder.database(first, 1000).name == "measurements-1.db"
    first.result["left"] = 1000
    os.truncate(_made(tmp_path / "measurements-1.db"), limit - (4 << 20))  # leaves room for what a may still write
    assert folder.database(second, 1000).name == "measurements-2.db"
    assert folder.database(first, 1000).name == "measurements-1.db"

    os.truncate(_made(tmp_path / "measurements-2.db"), limit)
    with pytest.raises(StoreError, match="no room for 1000 more"):
        folder.database(third, 1000)
    first.status = "done"
    assert folder.database(third, 1000).name == "measurements-1.db"


def test_files_beyond_the_limits_are_reported(part, tmp_path):
    folder = part("folder").Folder(tmp_path)
    folder.save()
    assert folder.check() == []

    os.truncate(_made(tmp_path / "measurements-1.db"), part("folder").MOST_BYTES + 1)
    for number in range(part("folder").MOST_FILES):
        _made(tmp_path / f"more-{number}")

    assert folder.check() == ["measurements-1.db has 15728641 bytes", "there are 10 files"]


def _made(path: Path) -> Path:
    path.touch()
    return path


# Stages -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def going(part, branches, here):
    """A visit to this machine, with the means that are not given on the command line."""
    folder = part("folder").Folder(here / "visits")
    settings = {
        "models": [str(branches)], "backend": "onnxruntime", "device": "cpu", "options": {}, "threads": 1, "batch": 2,
        "processes": 1, "sessions": 1, "visits": 12,
    }  # fmt: skip
    folder.settle(dict.fromkeys(settings), settings)
    return part("state").Visit(folder, part("clock").Clock(60), here)


def test_bricks_are_checked_until_the_time_is_up_and_then_the_others(going, part):
    stage = part("plan").Stage("agreement", "agreement", 0.1)
    record = going.record(stage)

    part("stages").do(going, stage, record, 0.0)
    assert (record.status, record.result["unchecked"], len(going.folder.rows())) == ("open", 3, 1)

    part("stages").do(going, stage, record, 20.0)
    assert (record.status, record.result["counts"]) == ("done", {"same": 4})
    assert len({row["key"] for row in going.folder.rows()}) == len(going.folder.rows()) == 4


def test_the_shortest_models_come_first_and_as_many_as_fit(part):
    fitting = part("measuring")._fitting

    assert fitting({"a": 1.0, "b": 2.0, "c": 4.0}, 3.5) == ["a", "b"]
    assert fitting({"a": 1.0, "b": 2.0, "c": 4.0}, 7.0) == ["a", "b", "c"]
    assert fitting({"a": 1.0, "b": 2.0}, 0.5) == ["a"]


def test_a_model_at_a_time_is_done_where_the_time_is_short(going, part, write_branches):
    going.settings["models"].append(str(write_branches(Path("wider.onnx"))))
    write_branches(Path("broken.onnx")).write_bytes(b"no model")
    going.settings["models"].append("broken.onnx")
    stage = part("plan").Stage("float32", "bricks", 0.1)
    record = going.record(stage)

    part("stages").do(going, stage, record, 1.0)  # less than anything is begun with
    assert (record.status, record.result["waiting"]) == ("open", ["branches", "wider"])

    part("stages").do(going, stage, record, 20.0)
    assert (record.status, record.result["waiting"], record.result["left"]) == ("done", [], 0)
    assert record.result["failures"].keys() == {"broken"}


def test_models_alone_are_measured_once(going, part, here):
    stage = part("plan").Stage("alone", "models", 0.1)
    record = going.record(stage)

    part("stages").do(going, stage, record, 1.0)  # less than anything is begun with
    assert (record.status, record.result) == ("open", {"left": 1, "rows": {}})

    part("stages").do(going, stage, record, 20.0)
    known = stored(here / "visits")
    part("stages").do(going, stage, record, 20.0)

    assert record.status == "done"
    assert record.result["rows"]["branches"]["latency_ms"] > 0
    assert stored(here / "visits") == known


def test_kernels_are_of_what_is_measured(going, part):
    stage = part("plan").Stage("kernels-float32", "kernels", 0.1)
    record = going.record(stage)

    part("stages").do(going, stage, record, 20.0)

    assert (record.status, record.reason) == ("open", "float32 is not measured yet")


def test_ceilings_are_those_of_the_backend_and_the_options_of_their_stage(going, part, here, monkeypatch):
    """Of small networks: those of a machine are for the machine."""
    monkeypatch.setattr(
        part("measuring"), "measure_ceilings", partial(measure_ceilings, gemm_sizes=(512,), sizes=(MIB,))
    )
    stage = part("plan").Stage("ceilings", "ceilings", 0.1, options={"optimization": "basic"}, cache="hot")
    record = going.record(stage)

    part("stages").do(going, stage, record, 20.0)

    assert (record.status, record.result) == ("done", {"left": 0, "failures": {}})
    known = [found for found, _ in stored(here / "visits")]
    assert {found.subject for found in known} == {Subject.REFERENCE}
    assert {found.stack for found in known} == {record.stack}
    names = (f"{GEMM}512", f"{STREAM}{MIB}", f"{COPY}{MIB}")
    assert {found.key for found in known} >= {built_in_key(name) for name in names}
    found = part("tables").results([going.folder])
    rows = {row["network"]: row for row in found["ceilings"][0]["rows"]}
    assert {*rows} == {*names}
    assert rows[f"{GEMM}512"]["flops_s"] > 0
    assert rows[f"{GEMM}512"]["bytes_s"] is rows[f"{STREAM}{MIB}"]["flops_s"] is rows[f"{COPY}{MIB}"]["flops_s"] is None
    assert all(row["latency_ms"] > 0 for row in rows.values())
    assert f"| ceilings | {GEMM}512 |" in part("tables").markdown(found)


def test_models_are_compiled_ahead_and_what_fails_says_why(going, part, here, write_branches, monkeypatch):
    """What a backend does when it loads a model is done here by ONNX Runtime, which is quick at it."""
    monkeypatch.setenv("DLBRICKS_COMPILED", str(here / "compiled"))
    good = [str(write_branches(here / f"m{number}.onnx")) for number in range(2)]
    broken = here / "broken.onnx"
    broken.write_bytes(b"no model")
    stage = part("plan").Stage("ahead", "models", 0.1)

    failed = part("compiling").compile_ahead(going, stage, [*good, str(broken)], time.monotonic() + 60)

    assert [*failed] == [str(broken)]
    assert "broken.onnx" in failed[str(broken)]


def test_compiling_ends_when_its_time_is_up_and_leaves_no_process(going, part, here, write_branches, monkeypatch):
    monkeypatch.setenv("DLBRICKS_COMPILED", str(here / "compiled"))
    names = [str(write_branches(here / f"m{number}.onnx")) for number in range(4)]
    stage = part("plan").Stage("ahead", "models", 0.1)
    before = {*psutil.Process().children()}

    for allowed_s in (0.0, 0.05):
        begun = time.monotonic()
        assert part("compiling").compile_ahead(going, stage, names, begun + allowed_s) == {}
        assert time.monotonic() - begun < 5

    assert {*psutil.Process().children()} <= before


@pytest.mark.slow
def test_compiled_models_are_compiled_ahead_and_then_measured(going, part, here, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("DLBRICKS_COMPILED", str(here / "compiled"))
    going.settings["backend"] = "torch"
    stage = part("plan").Stage("float32-compile", "models", 0.3, options={"mode": "compile"})
    record = going.record(stage)

    part("stages").do(going, stage, record, 240.0)

    assert record.status == "done"
    assert record.result["compiling"] == {}
    assert record.result["rows"]["branches"]["latency_ms"] > 0
    assert [*(here / "compiled").rglob("*.so")]


# Visits -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_visit_is_resumed_reported_and_merged(cli, branches, here):
    """All of it on PyTorch: what there is, what agrees, what is fast; then on a machine that measures nothing."""
    pytest.importorskip("torch")
    settings = ("--device", "cpu", "--models", branches, "--batch", 2, "--minutes", 3, *BRIEF)

    first = visit(here / "visits", *settings, "--stage", *FIRST[:2])
    rows = (here / "visits/agreement.jsonl").read_text()
    second = visit(here / "visits", "--minutes", 3, "--stage", *FIRST, "kernels-float32")
    found, known = state(here / "visits"), stored(here / "visits")
    third = visit(here / "visits", "--minutes", 3, "--stage", *FIRST, "kernels-float32")

    assert (first, second, third) == (0, 0, 0)
    status = {record["stage"]["name"]: record["status"] for record in found["records"]}
    assert status == {**dict.fromkeys(FIRST[:3], "done"), "tf32": "refused", "kernels-float32": "done"}
    assert found["results"]["agreement"][0]["counts"] == {"same": 4}
    assert rows.count("\n") == 4
    assert (here / "visits/agreement.jsonl").read_text() == rows
    assert sum(measured.subject is Subject.MODEL for measured, _ in known) == 1
    assert found["results"]["kernels"][0]["views"] == 5  # of four bricks and the model
    assert stored(here / "visits") == known
    assert [each["ended"] for each in state(here / "visits")["visits"]] == ["done"] * 3

    shutil.copytree(here / "visits", here / "elsewhere")
    assert visit(here / "tables", "--report", "visits", "elsewhere") == 0
    tables = json.loads((here / "tables/results.json").read_text())
    stage = next(stage for stage in tables["stages"] if stage["stage"] == "float32")
    assert "| branches |" in (here / "tables/results.md").read_text()
    assert "tf32: refused: backend torch has no option 'tf32'" in (here / "tables/results.md").read_text()

    assert (
        cli("db", "merge", "elsewhere/measurements-1.db", "--db", "home.db", "--json").json["results"][0][
            "measurements"
        ]
        > 0
    )
    done = cli("estimate", branches, "--db", "home.db", "--cache", "model", "--json")
    assert done.code == 0
    for name in ("sequential_ms", "critical_path_ms", "measured_ms", "lower_bound_sequential_ms"):
        assert done.json["results"][0][name] == stage["models"][0][name] > 0


@pytest.mark.slow
def test_a_killed_visit_goes_on_where_it_was(here):
    settings = ("--device", "cpu", "--backend", "onnxruntime", "--models", "squeezenet", "--minutes", 0.5, *BRIEF)
    killed = subprocess.Popen(command(here / "visits", *settings), stderr=subprocess.DEVNULL)
    rows, database = here / "visits/agreement.jsonl", here / "visits/measurements-1.db"
    while not committed(database):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    before = dict(begun(here / "visits"))
    checked = rows.read_text()

    done = visit(here / "visits", "--minutes", 0.5, "--stage", "stack", "agreement-float32", "float32")

    assert before
    assert done == 0
    assert rows.read_text().startswith(checked)
    keys = [json.loads(line)["key"] for line in rows.read_text().splitlines()]
    assert len(keys) == len(set(keys)) == 38  # every brick was checked once
    after = {found.id: blocks for found, blocks in stored(here / "visits")}
    for number, blocks in before.items():
        assert after[number][: len(blocks)] == blocks  # no sample was lost, none was taken twice
    assert [each["ended"] for each in state(here / "visits")["visits"]] == [None, "done"]
    assert len(list((here / "visits").iterdir())) <= 8


def test_without_the_device_a_visit_says_so_and_ends(here, branches, capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")

    done = visit(here / "visits", "--device", "cuda", "--models", branches, "--minutes", 0.5)

    assert done == 1
    assert "torch cannot run on device 'cuda'" in capsys.readouterr().err.splitlines()[-1]
    assert "torch cannot run on device 'cuda'" in state(here / "visits")["visits"][0]["ended"]
    assert state(here / "visits")["stacks"]  # what the machine is, is known


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--backend", "abacus"], "no backend 'abacus'"),
        (["--device", "abacus"], "no device 'abacus'"),
        (["--models", "nonesuch"], "nonesuch"),
        (["--option", "speed=high"], "no option 'speed'"),
        (["--stage", "float8"], "no stage float8"),
        (["--minutes", "0"], "--minutes cannot be 0"),
        (["--minutes", "-3"], "--minutes cannot be -3"),
        (["--minutes", "nan"], "--minutes cannot be nan"),
        (["--visits", "0"], "visits cannot be 0"),
        (["--sessions", "0"], "sessions cannot be 0"),
        (["--report", "nodir"], "nodir holds no visit"),
    ],
)
def test_wrong_usage_is_refused_and_nothing_is_made(part, here, capsys, more, message):
    main = importlib.import_module("visit").main

    code = main(["--out", "visits", "--device", "cpu", "--backend", "onnxruntime", *more])

    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2
    assert message in line
    assert not [*here.iterdir()]


def test_what_earlier_visits_did_counts_where_there_is_no_time(going, part, here, capsys):
    visit, plan = importlib.import_module("visit"), part("plan")
    chosen = [stage for stage in plan.stages(2, "cpu") if stage.name in {"agreement-float32", "float32", "bfloat16"}]
    for stage in chosen[:2]:
        going.record(stage).status = "done"

    code = visit._visit(going.folder, chosen, part("clock").Clock(0.001))

    assert code == 3
    assert "2 of 3 stages are over" in capsys.readouterr().err
    assert state(here / "visits")["visits"][0]["ended"] == "the time was up"


def test_the_default_models_need_no_extra(part):
    names = importlib.import_module("visit")._DEFAULTS["models"]

    assert {"resnet50", "bert_base"} <= set(names)
    assert not [source.name for source in find_models(names) if source.problem]
