"""Which databases are read: those of this schema, and no others."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from dlbricks.db import Store, schema, upgrade
from dlbricks.errors import ForeignDatabase, NewerDatabase, OlderDatabase, StoreError


def stamp(path: Path, revision: str) -> None:
    raw = sqlite3.connect(path)
    raw.execute("UPDATE dlbricks_revision SET version_num = ?", (revision,))
    raw.commit()
    raw.close()


@pytest.mark.parametrize(
    ("revision", "error", "remedy"),
    [("9999", NewerDatabase, "update dlbricks"), ("0005", OlderDatabase, "measure again")],
)
def test_a_database_of_another_schema_is_left_alone(bench, revision, error, remedy):
    bench.store.close()
    stamp(bench.path, revision)
    for call in (Store.open, lambda path: Store.open(path, read_only=True), upgrade):
        with pytest.raises(error, match=rf"schema {revision}.*{remedy}"):
            call(bench.path)


def test_a_database_of_this_schema_needs_no_upgrade(bench):
    done = upgrade(bench.path)

    assert (done.before, done.after) == (schema.REVISION, schema.REVISION)


def test_there_must_be_something_to_upgrade(tmp_path):
    with pytest.raises(StoreError, match="no database"):
        upgrade(tmp_path / "none.db")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(ForeignDatabase):
        upgrade(tmp_path / "other.db")


def test_opening_needs_no_pandas(tmp_path):
    code = (
        "import sys; from dlbricks.db import Store; Store.open(sys.argv[1]).close(); "
        "print(sorted({'pandas', 'matplotlib', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.db"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
