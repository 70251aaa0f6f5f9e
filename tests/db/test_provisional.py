"""A database that nothing came of is not left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from dlbricks.db import Stack, Store, System
from dlbricks.db.provisional import open_for_results
from dlbricks.errors import StoreError, UsageError

SYSTEM = System("Xeon Example", "x86_64", 2, 4, (("L2", 2097152),), 16)


def refused(path: Path) -> None:
    with open_for_results(path):
        raise UsageError("no such option")


def test_a_refused_command_leaves_no_database(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        refused(tmp_path / "new.db")

    assert list(tmp_path.iterdir()) == []


def test_what_is_stored_stays(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with open_for_results(path) as store:
        store.put_system(SYSTEM)
        store.put_stack(Stack("onnxruntime", "cpu", ()))

    with Store.open(path, create=False) as store:
        assert list(store.systems()) == [SYSTEM.key]


def test_a_database_that_was_there_stays_though_it_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    Store.open(path).close()

    with pytest.raises(UsageError):
        refused(path)

    assert path.exists()


def test_a_database_that_another_has_open_stays(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with open_for_results(path):
        other = Store.open(path)
        assert other.combinations() == []

    assert path.exists()
    other.put_system(SYSTEM)
    other.close()


def test_what_cannot_be_opened_is_said_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("my notes")

    with pytest.raises(StoreError), open_for_results(path):
        pass

    assert path.read_text() == "my notes"
