from __future__ import annotations

import builtins
import dataclasses
import re
import sqlite3
import uuid

import pandas as pd
import pytest
from dlbricks.db import Stack, Store, Subject, export, frame, merge
from dlbricks.db.exporting import export_run
from dlbricks.db.values import PROTOCOL
from dlbricks.errors import DatabaseReadOnly, StoreError, UsageError

SECRETS = ("ann", "secret", "laptop", "/home")


@pytest.fixture
def full(bench):
    bench.measure("a")
    bench.measure("a", 900.0, load_ns=None, undisturbed_ns=None, quiet=None)
    bench.measure("b", variant="winograd")
    bench.measure("secret-model", subject=Subject.MODEL)
    bench.store.add_failure(bench.failure("c"))
    bench.store.end_run(
        bench.run.id,
        after={"load_1m": 2.0, "host": "anns-laptop", "probes_ns": [7.0, 9.5]},
        finished="2026-11-21T04:00:00Z",
    )
    return bench


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_holds_every_finished_measurement(full, tmp_path, kind):
    path = tmp_path / f"out.{kind}"
    assert export(full.store, path) == 4
    table = pd.read_csv(path, keep_default_na=False, na_values=[""]) if kind == "csv" else pd.read_parquet(path)
    expected = frame(full.store)
    assert list(table.columns) == list(expected.columns)
    assert table["median_ns"].tolist() == expected["median_ns"].tolist()
    assert table["undisturbed_ns"].isna().sum() == table["quiet"].isna().sum() == 1
    assert set(table["protocol"]) == {PROTOCOL}
    assert set(table["footprint_bytes"]) == {32 << 20}
    assert set(table["versions"]) == {"onnxruntime=1.31.0"}
    assert set(table["subject"]) == {"brick", "model"}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_of_measurements_only_has_no_models(full, tmp_path, kind):
    path = tmp_path / "out"
    assert export(full.store, path, format=kind, measurements_only=True) == 3
    table = pd.read_csv(path) if kind == "csv" else pd.read_parquet(path)
    assert set(table["subject"]) == {"brick"}


def test_the_private_round_trip(full, tmp_path):
    """Latencies travel home: bricks with their raw samples, and nothing that shows whose and where."""
    out = tmp_path / "out.db"
    assert export(full.store, out, measurements_only=True) == 3
    data = out.read_bytes().lower()
    for secret in SECRETS:
        assert not re.search(rb"(?<![a-z])" + re.escape(secret.encode()), data), secret
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out.db"]
    with Store.open(tmp_path / "home.db") as home:
        done = merge(home, out)
        assert (done.measurements, done.blocks, done.failures, done.runs) == (3, 6, 1, 1)
        assert home.measurements(subject=Subject.MODEL) == []
        bricks = full.store.measurements(subject=Subject.BRICK, variant=None, latest=False)
        assert home.measurements(variant=None, latest=False) == bricks
        assert [home.blocks(m.id) for m in bricks] == [full.store.blocks(m.id) for m in bricks]
        assert all(block.visits for taken in home.blocks_of([m.id for m in bricks]).values() for block in taken)
        (run,) = home.runs()
        assert (run.id, run.tool, run.suite, run.finished) == (
            full.run.id, full.run.tool, full.run.suite, "2026-11-21T04:00:00Z",
        )  # fmt: skip
        assert (run.options, run.before, run.after) == (
            {"threads": 1},
            {"governor": "performance", "load_1m": 0.1},
            {"load_1m": 2.0, "probes_ns": [7.0, 9.5]},
        )
        assert [failure.kind for failure in home.failures()] == ["crashed"]
        assert merge(home, out).measurements == 0


def test_a_run_of_models_only_does_not_leave(bench, tmp_path):
    bench.measure("secret-model", subject=Subject.MODEL)
    assert export(bench.store, tmp_path / "out.db", measurements_only=True) == 0
    with Store.open(tmp_path / "out.db", read_only=True) as out:
        assert out.runs() == []


def test_the_whole_database_as_one_file(full, tmp_path):
    assert export(full.store, tmp_path / "copy.db", format="sqlite") == 4
    raw = sqlite3.connect(tmp_path / "copy.db")
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    raw.close()
    with Store.open(tmp_path / "copy.db", read_only=True) as copy:
        assert copy.measurements(variant=None, latest=False) == full.store.measurements(variant=None, latest=False)
        assert copy.runs() == full.store.runs()
        assert copy.failures() == full.store.failures()


def test_a_path_among_the_options_stops_a_private_export(bench, tmp_path):
    stack = Stack("onnxruntime", "cpu", (), (("library", "/home/ann/lib/custom.so"),))
    bench.store.put_stack(stack)
    bench.measure("a", stack=stack.key)
    with pytest.raises(StoreError, match="may be a path"):
        export(bench.store, tmp_path / "out.db", measurements_only=True)
    assert export(bench.store, tmp_path / "out.db") == 1


def test_one_run_leaves_alone(full, tmp_path):
    """Without what other runs measured, and on what; a path among the options of the run stops it."""
    other = dataclasses.replace(full.run, id=str(uuid.uuid4()), options={"options": {"library": "~/custom.so"}})
    full.store.begin_run(other)
    full.store.put_stack(Stack("torch", "cpu", (("torch", "2.9"),)))
    measurement = dataclasses.replace(full.measurement("d"), run=other.id)
    full.store.add([(measurement, [])])

    export_run(full.store, tmp_path / "run.db", full.run)

    with Store.open(tmp_path / "run.db", read_only=True) as store:
        assert [run.id for run in store.runs()] == [full.run.id]
        assert {one.key for one in store.measurements(variant=None)} == {full.measurement(key).key for key in "ab"}
        assert [failure.key for failure in store.failures()] == [full.measurement("c").key]
        assert (len(store.stacks()), len(store.systems())) == (1, 1)
        assert sum(combination.count for combination in store.combinations(variant=None)) == 2
    with pytest.raises(StoreError, match=r"library=~/custom\.so, which may be a path"):
        export_run(full.store, tmp_path / "other.db", other)


def test_nothing_is_overwritten(full, tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("precious")
    for target in (path, *([] if isinstance(full.path, str) else [full.path])):
        with pytest.raises(StoreError, match="exists already"):
            export(full.store, target)
    assert path.read_text() == "precious"


def test_bad_targets(full, tmp_path):
    with pytest.raises(UsageError, match="csv, parquet, sqlite"):
        export(full.store, tmp_path / "out.xlsx")
    with pytest.raises(StoreError, match="does not exist"):
        export(full.store, tmp_path / "nowhere" / "out.csv")


def test_without_pyarrow_the_remedy_is_named(full, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StoreError, match="pip install pyarrow"):
        export(full.store, tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir() if "parquet" in path.name] == []


def test_reading_is_enough(full, tmp_path):
    with Store.open(full.path, read_only=True) as store:
        assert export(store, tmp_path / "out.csv") == 4
        with pytest.raises(DatabaseReadOnly):
            store.end_run(full.run.id, after={}, finished="2026-11-21T03:00:00Z")
