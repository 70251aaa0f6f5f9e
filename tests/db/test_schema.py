"""The migrations and the models describe the same tables."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from dlbricks.db import Store, schema, upgrade, upgrading
from dlbricks.db.place import WRITING, Place, engine
from dlbricks.db.revision import mark
from dlbricks.errors import ForeignDatabase, NewerDatabase, OlderDatabase, StoreError
from sqlalchemy import inspect


def plain(value: object) -> object:
    """As text and sorted: the order of constraints says nothing, and clauses have no equality."""
    if isinstance(value, dict):
        return sorted((str(name), plain(one)) for name, one in value.items())
    if isinstance(value, list):
        return sorted((plain(one) for one in value), key=str)
    return str(value)


def tables(path: Path) -> dict[str, dict[str, object]]:
    """Per table its columns and constraints of every kind."""
    kinds = ("columns", "foreign_keys", "unique_constraints", "indexes", "check_constraints", "pk_constraint")
    made = engine(Place.of(path))
    with made.connect() as connection:
        look = inspect(connection)
        found = {
            name: {kind: plain(getattr(look, f"get_{kind}")(name)) for kind in kinds} for name in look.get_table_names()
        }
    made.dispose()
    return found


def unstamped(path: Path) -> Path:
    """A file of ours from before the first revision."""
    place = Place.of(path)
    made = engine(place)
    with made.connect().execution_options(**{WRITING: True}) as connection, connection.begin():
        mark(connection, place)
    made.dispose()
    return path


def stamp(path: Path, revision: str) -> None:
    raw = sqlite3.connect(path)
    raw.execute("UPDATE dlbricks_revision SET version_num = ?", (revision,))
    raw.commit()
    raw.close()


def test_upgrading_from_nothing_makes_the_tables_of_the_models(tmp_path):
    old = unstamped(tmp_path / "old.db")
    with pytest.raises(OlderDatabase, match="dlbricks db upgrade"):
        Store.open(old)
    done = upgrade(old)
    assert (done.before, done.after) == ("", schema.REVISIONS[-1])
    Store.open(tmp_path / "new.db").close()
    assert tables(old) == tables(tmp_path / "new.db")
    assert {"measurement", "block", "dlbricks_revision"} <= tables(old).keys()
    with Store.open(old) as store:
        assert store.measurements() == []
    assert upgrade(old).before == schema.REVISIONS[-1]  # nothing left to do


def test_alembic_finds_no_difference(tmp_path):
    from alembic import command

    Store.open(tmp_path / "a.db").close()
    made = engine(Place.of(tmp_path / "a.db"))
    with made.connect() as connection:
        command.check(upgrading.migration_config(connection))
    made.dispose()


def test_the_list_of_revisions_is_that_of_the_scripts(tmp_path):
    from alembic.script import ScriptDirectory

    made = engine(Place.of("sqlite://"))
    with made.connect() as connection:
        scripts = ScriptDirectory.from_config(upgrading.migration_config(connection))
    made.dispose()
    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == schema.REVISIONS


def test_a_newer_database_is_left_alone(bench):
    bench.store.close()
    stamp(bench.path, "9999")
    for call in (Store.open, lambda path: Store.open(path, read_only=True), upgrade):
        with pytest.raises(NewerDatabase, match="update dlbricks"):
            call(bench.path)


def test_there_must_be_something_to_upgrade(tmp_path):
    with pytest.raises(StoreError, match="no database"):
        upgrade(tmp_path / "none.db")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(ForeignDatabase):
        upgrade(tmp_path / "other.db")


NEXT = """
from alembic import op
from sqlalchemy import Column, String

revision = "9000"
down_revision = "{newest}"


def upgrade():
    with op.batch_alter_table("measurement", recreate="always") as table:
        table.add_column(Column("note", String(20)))
    {then}
"""


@pytest.fixture
def next_version(tmp_path, monkeypatch):
    """This package as it will be with one more revision, whose script is really run."""

    def make(then: str = "pass") -> None:
        scripts, known = tmp_path / "migrations", schema.REVISIONS
        shutil.copytree(upgrading._SCRIPTS, scripts)
        (scripts / "versions" / "9000_note.py").write_text(NEXT.format(then=then, newest=schema.REVISIONS[-1]))
        monkeypatch.setattr(upgrading, "_SCRIPTS", scripts)
        for module in ("schema", "revision", "upgrading"):
            monkeypatch.setattr(sys.modules[f"dlbricks.db.{module}"], "REVISIONS", (*known, "9000"))

    return make


def test_an_older_database_is_upgraded_with_everything_in_it(bench, block, next_version):
    made = bench.measure("a")
    bench.store.close()
    newest = schema.REVISIONS[-1]
    next_version()
    with pytest.raises(OlderDatabase, match=rf"schema {newest}.*wants 9000"):
        Store.open(bench.path, read_only=True)
    done = upgrade(bench.path)
    assert (done.before, done.after) == (newest, "9000")
    assert "note" in str(tables(bench.path)["measurement"]["columns"])
    with Store.open(bench.path) as store:
        assert store.measurements() == [made]
        assert store.blocks(made.id) == [block(0, 0), block(0, 1)]


@pytest.mark.parametrize("then", ["op.execute('DELETE FROM run')", "op.execute('SELECT nonsense')"])
def test_an_upgrade_that_fails_changes_nothing(bench, next_version, then):
    made = bench.measure("a")
    bench.store.close()
    before, newest = tables(bench.path), schema.REVISIONS[-1]
    next_version(then)
    with pytest.raises(StoreError):
        upgrade(bench.path)
    assert tables(bench.path) == before
    raw = sqlite3.connect(bench.path)
    assert raw.execute("SELECT id FROM measurement").fetchall() == [(made.id,)]
    assert raw.execute("SELECT version_num FROM dlbricks_revision").fetchall() == [(newest,)]
    raw.close()


def test_opening_needs_neither_alembic_nor_pandas(tmp_path):
    code = (
        "import sys; from dlbricks.db import Store; Store.open(sys.argv[1]).close(); "
        "print(sorted({'alembic', 'pandas', 'matplotlib', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.db"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
