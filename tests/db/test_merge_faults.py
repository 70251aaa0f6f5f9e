"""Which of two databases a merge calls to account: each error names the one that it came from, and the other not."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from dlbricks.db import Store, merge, merging
from dlbricks.errors import DatabaseLocked, StoreError

_MANY = 400


def blamed(error: pytest.ExceptionInfo[StoreError], one: Path | str, other: Path | str) -> str:
    """The message, which names one of the databases and not the other."""
    message = str(error.value)
    ours, theirs = (str(place).rpartition("@/")[2].partition("?")[0] for place in (one, other))
    assert ours in message
    assert theirs not in message
    return message


@pytest.fixture
def source(tmp_path, furnish, block) -> Path:
    """A file with measurements."""
    bench = furnish(tmp_path / "source.db")
    bench.store.add((bench.measurement(number), (block(0, 0), block(1, 0))) for number in range(_MANY))
    bench.store.close()
    return Path(bench.path)


@pytest.fixture
def target(tmp_path) -> Path:
    """A file that is ours, and empty."""
    Store.open(tmp_path / "target.db").close()
    return tmp_path / "target.db"


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Whoever holds a database is not waited for."""
    monkeypatch.setattr(merging, "_PATIENCE_S", 0.0)


@pytest.mark.parametrize("held", ["source", "target"])
def test_one_that_another_process_holds(source, target, impatient, held):
    """In WAL mode a reader waits for nobody; as other programs may leave a file, it does."""
    taken, free = (source, target) if held == "source" else (target, source)
    holder = sqlite3.connect(taken, isolation_level=None)
    if held == "source":
        holder.execute("PRAGMA journal_mode=DELETE")
    other = Store.open(source, read_only=True, busy_timeout_s=0.05)
    with other, Store.open(target, busy_timeout_s=0.05) as store:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseLocked) as error:
            merge(store, other)
    blamed(error, taken, free)
    holder.close()
