"""Inserting what may be there already, on every kind of database."""

from __future__ import annotations

import pytest
from dlbricks.db import Store, identity
from dlbricks.db.schema import ModelFileRow, table_of
from sqlalchemy import select

FILES = table_of(ModelFileRow)


@pytest.fixture(params=["own word", "no word"])
def store(request, home, tmp_path, monkeypatch):
    if request.param == "no word":  # a database that SQLAlchemy knows no such statement of
        monkeypatch.setattr(identity, "_INSERTS", {})
    with Store.open(home(tmp_path / "a.db")) as opened:
        yield opened


def rows(*places: str, size: int = 1) -> list[dict[str, object]]:
    return [{"place": place, "size": size, "mtime_ns": 2, "sha256": "3", "external": "[]"} for place in places]


def sizes(store: Store) -> dict[str, int]:
    with store.reading() as connection:
        return dict(map(tuple, connection.execute(select(FILES.c.place, FILES.c.size))))


def test_what_is_there_stays(store):
    with store.writing() as connection:
        assert identity.insert_new(connection, FILES, rows("a", "b")) == 2
        assert identity.insert_new(connection, FILES, rows("b", "c", size=9)) == 1
        assert identity.insert_new(connection, FILES, []) == 0

    assert sizes(store) == {"a": 1, "b": 1, "c": 9}


def test_what_is_there_gives_way(store):
    with store.writing() as connection:
        identity.put_rows(connection, FILES, rows("a", "b"))
        identity.put_rows(connection, FILES, rows("b", "c", size=9))
        identity.put_rows(connection, FILES, [])

    assert sizes(store) == {"a": 1, "b": 9, "c": 9}


def test_many_rows_are_counted_once(store):
    many = rows(*(f"{number:05}" for number in range(2500)))
    with store.writing() as connection:
        assert identity.insert_new(connection, FILES, many[::2]) == 1250
        assert identity.insert_new(connection, FILES, many) == 1250
