"""Inserting what may be there already, on every kind of database."""

from __future__ import annotations

import pytest
from dlbricks.db import Store, identity
from dlbricks.db.schema import STACK
from sqlalchemy import select


@pytest.fixture(params=["own word", "no word"])
def store(request, home, tmp_path, monkeypatch):
    if request.param == "no word":  # a database that SQLAlchemy knows no such statement of
        monkeypatch.setattr(identity, "_ON_CONFLICT", frozenset())
    with Store.open(home(tmp_path / "a.db")) as opened:
        yield opened


def rows(*keys: str, size: int = 1) -> list[dict[str, object]]:
    return [{"key": key, "backend": str(size), "device": "cpu", "versions": [], "options": []} for key in keys]


def sizes(store: Store) -> dict[str, int]:
    with store.reading() as connection:
        return {key: int(size) for key, size in connection.execute(select(STACK.c.key, STACK.c.backend))}


def test_what_is_there_stays(store):
    with store.writing() as connection:
        assert identity.insert_new(connection, STACK, rows("a", "b")) == 2
        assert identity.insert_new(connection, STACK, rows("b", "c", size=9)) == 1
        assert identity.insert_new(connection, STACK, []) == 0

    assert sizes(store) == {"a": 1, "b": 1, "c": 9}


def test_many_rows_are_counted_once(store):
    many = rows(*(f"{number:05}" for number in range(2500)))
    with store.writing() as connection:
        assert identity.insert_new(connection, STACK, many[::2]) == 1250
        assert identity.insert_new(connection, STACK, many) == 1250
