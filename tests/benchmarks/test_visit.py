"""Visits: their plan, their time, and that nothing is done twice. Real runtimes on the CPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import visit
from dlbricks.db import Store, Subject

BRIEF = ("--processes", 1, "--sessions", 2, "--visits", 12)
FIRST = ("stack", "agreement-float32", "float32", "tf32")


def call(out: Path, *more: object) -> int:
    """A visit in this process; its exit code."""
    return visit.main(["--out", str(out), *map(str, more)])


def stored(out: Path) -> list[tuple]:
    """Everything measured, with its raw samples."""
    with Store.open(out / "measurements.db", read_only=True) as store:
        return [(found, store.blocks(found.id)) for found in store.measurements(variant=None, latest=False)]


@pytest.mark.slow
def test_a_visit_is_resumed_reported_and_merged(cli, branches, here):
    """All of it on PyTorch: what there is, what agrees, what is fast; then on a machine that measures nothing."""
    pytest.importorskip("torch")
    settings = ("--device", "cpu", "--models", branches, "--batch", 2, "--minutes", 3, *BRIEF)
    more = ("--minutes", 3, "--stage", *FIRST, "kernels-float32", "findings-float32")

    codes = [call(here / "visits", *settings, "--stage", *FIRST[:2]), call(here / "visits", *more)]
    known = stored(here / "visits")
    codes.append(call(here / "visits", *more))

    found = json.loads((here / "visits/visit.json").read_text())
    status = {record["stage"]["name"]: record["status"] for record in found["records"]}
    assert codes == [0, 0, 0]
    assert status == {
        **dict.fromkeys(FIRST[:3], "done"),
        "tf32": "refused",
        "kernels-float32": "done",
        "findings-float32": "done",
    }
    assert found["results"]["agreement"][0]["counts"] == {"same": 4}
    assert sum(measured.subject is Subject.MODEL for measured, _ in known) == 1
    assert stored(here / "visits") == known

    shutil.copytree(here / "visits", here / "elsewhere")
    assert call(here / "tables", "--report", "visits", "elsewhere") == 0
    tables = json.loads((here / "tables/results.json").read_text())
    (row,) = next(stage["models"] for stage in tables["stages"] if stage["stage"] == "float32")
    assert "| tf32 | refused | backend torch has no option 'tf32'" in (here / "tables/results.md").read_text()
    cli("db", "merge", "elsewhere/measurements.db", "--db", "home.db")
    done = cli("estimate", branches, "--db", "home.db", "--cache", "model", "--json")
    for name in ("sequential_ms", "critical_path_ms", "measured_ms", "lower_bound_sequential_ms"):
        assert done.json["results"][0][name] == row[name] > 0


def test_wrong_usage_is_refused_and_nothing_is_made(here, capsys):
    for more, message in ((["--stage", "float8"], "no stage float8"), (["--minutes", "nan"], "cannot be nan")):
        code = call(here / "visits", "--device", "cpu", "--backend", "onnxruntime", *more)

        assert (code, message in capsys.readouterr().err) == (2, True)
    assert not [*here.iterdir()]
