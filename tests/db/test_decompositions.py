"""What models were decomposed into stays in its database, and is read only where it is whole."""

from __future__ import annotations

import os
import sqlite3
import zlib
from pathlib import Path

import pytest
from dlbricks.db import Store, export, merge
from dlbricks.db.decompositions import keep_file, keep_records, kept_file, kept_records, open_keeping
from dlbricks.db.place import Place, engine
from dlbricks.errors import DatabaseReadOnly, StoreError
from sqlalchemy import text

RECORD = {"names": ["the secret layer"], "numbers": [1, 2, 3]}
MODEL, PART, OTHER = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def kept(bench):
    """A store that keeps a model file and a decomposition beside a measurement."""
    bench.measure("a")
    keep_file(bench.store, Path("/home/ann/secret.onnx"), (10, 20), "d" * 64, ["weights.bin"])
    keep_records(bench.store, MODEL, {PART: RECORD}, "1")
    return bench


def rows(path: Path | str, table: str) -> list[tuple[object, ...]]:
    made = engine(Place.of(path))
    with made.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(f"SELECT * FROM {table}"))]
    made.dispose()
    return found


def change(path: Path, statement: str, *values: object) -> None:
    raw = sqlite3.connect(path)
    raw.execute(statement, values)
    raw.commit()
    raw.close()


def test_records_come_back_as_they_were_kept(kept):
    assert kept_records(kept.store, MODEL, [PART, OTHER], "1") == {PART: RECORD}
    keep_records(kept.store, MODEL, {PART: {"x": 1}, OTHER: {}}, "1")
    assert kept_records(kept.store, MODEL, [PART, OTHER], "1") == {PART: {"x": 1}, OTHER: {}}
    assert kept_records(kept.store, OTHER, [PART], "1") == {}


def test_records_of_other_code_are_not_read_and_go_with_the_next_one(kept):
    assert kept_records(kept.store, MODEL, [PART], "2") == {}
    keep_records(kept.store, OTHER, {PART: RECORD}, "2")
    assert [row[:3] for row in rows(kept.path, "decomposition")] == [(OTHER, PART, "2")]


def test_a_file_is_known_by_its_path_size_and_time(kept):
    path = Path("/home/ann/secret.onnx")
    assert kept_file(kept.store, path, (10, 20)) == ("d" * 64, ("weights.bin",))
    for state in ((11, 20), (10, 21)):
        assert kept_file(kept.store, path, state) is None
    assert kept_file(kept.store, Path("/home/ann/other.onnx"), (10, 20)) is None
    keep_file(kept.store, path, (11, 20), "e" * 64, ())
    assert kept_file(kept.store, path, (11, 20)) == ("e" * 64, ())
    assert len(rows(kept.path, "model_file")) == 1


@pytest.mark.parametrize("only", [True, False])
def test_no_export_takes_them_along(kept, tmp_path, only):
    out = tmp_path / "out.db"
    assert export(kept.store, out, measurements_only=only) == 1
    assert rows(out, "decomposition") == rows(out, "model_file") == []
    assert b"secret.onnx" not in out.read_bytes()
    export(kept.store, tmp_path / "out.csv", measurements_only=only)
    assert "secret" not in (tmp_path / "out.csv").read_text()


def test_no_merge_takes_them_along(kept, home, tmp_path):
    place = home(tmp_path / "target.db")
    with Store.open(place) as target:
        assert merge(target, kept.path).measurements == 1
    assert rows(place, "decomposition") == rows(place, "model_file") == []


def test_a_merge_leaves_those_of_the_target(kept, tmp_path):
    Store.open(tmp_path / "other.db").close()
    merge(kept.store, tmp_path / "other.db")
    assert kept_records(kept.store, MODEL, [PART], "1") == {PART: RECORD}


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", zlib.compress(b"[1]"), zlib.compress(b"{"), zlib.compress(b"{}")[:-3], "text", None, 7,
     zlib.compress(b'{"a":' * 100_000), zlib.compress(b"\xff{}")],
    ids=["empty", "no zlib", "list", "no JSON", "cut off", "text", "null", "number", "deep", "no UTF-8"],
)  # fmt: skip
@pytest.mark.sqlite
def test_a_damaged_record_is_as_good_as_none(kept, data):
    if data is None:
        change(kept.path, "DELETE FROM decomposition")
    else:
        change(kept.path, "UPDATE decomposition SET data = ?", data)
    assert kept_records(kept.store, MODEL, [PART], "1") == {}


@pytest.mark.sqlite
def test_a_record_that_fills_the_memory_is_not_read(kept, monkeypatch):
    monkeypatch.setattr("dlbricks.db.decompositions._MOST_BYTES", 100)
    change(kept.path, "UPDATE decomposition SET data = ?", zlib.compress(b'{"a": "' + b"x" * 1000 + b'"}'))
    assert kept_records(kept.store, MODEL, [PART], "1") == {}


@pytest.mark.parametrize(
    ("column", "value"), [("external", "{"), ("external", "[1]"), ("sha256", b"\xff"), ("size", "x")]
)
@pytest.mark.sqlite
def test_a_damaged_file_row_is_as_good_as_none(kept, column, value):
    change(kept.path, f"UPDATE model_file SET {column} = ?", value)
    assert kept_file(kept.store, Path("/home/ann/secret.onnx"), (10, 20)) is None


def test_a_database_opened_for_reading_refuses_them(kept):
    with Store.open(kept.path, read_only=True) as store:
        assert kept_records(store, MODEL, [PART], "1") == {PART: RECORD}
        with pytest.raises(DatabaseReadOnly):
            keep_records(store, MODEL, {OTHER: RECORD}, "1")


def test_a_database_is_opened_for_keeping_where_that_can_be(kept):
    with open_keeping(kept.path) as store:
        keep_records(store, MODEL, {OTHER: RECORD}, "1")
    assert len(rows(kept.path, "decomposition")) == 2


@pytest.mark.sqlite
def test_a_database_that_somebody_writes_is_opened_for_reading(kept, monkeypatch):
    monkeypatch.setattr("dlbricks.db.decompositions._PATIENCE_S", 0.05)
    holder = sqlite3.connect(kept.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with open_keeping(kept.path) as store, pytest.raises(DatabaseReadOnly):
        keep_records(store, MODEL, {OTHER: RECORD}, "1")
    holder.close()


@pytest.mark.sqlite
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write read-only files")
def test_a_file_that_cannot_be_written_is_opened_for_reading(kept):
    kept.store.close()
    kept.path.chmod(0o444)
    with open_keeping(kept.path) as store:
        assert kept_records(store, MODEL, [PART], "1") == {PART: RECORD}


def test_no_database_is_made_to_ask_it(tmp_path):
    with pytest.raises(StoreError, match="no database"):
        open_keeping(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
