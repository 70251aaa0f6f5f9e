"""What is opened, and what is refused: each with its own kind of error and one clear line."""

from __future__ import annotations

import os
import sqlite3
import traceback
from pathlib import Path

import pytest
from dlbricks.db import Store, System
from dlbricks.db.faults import fault
from dlbricks.db.merging import open_for_results
from dlbricks.db.place import DatabasePlace
from dlbricks.errors import (
    DatabaseLocked,
    DatabaseReadOnly,
    DatabaseUnreachable,
    DiskFull,
    ForeignDatabase,
    StoreError,
    UsageError,
)
from sqlalchemy import exc

# Python 3.12 and later warn of any fork beside another thread; a BLAS that an earlier test loaded has some.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

NOBODY = 65534


def one_line(error: pytest.ExceptionInfo[StoreError], path: Path) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def as_nobody(action) -> str:
    """Run in a child that has not root's right to write everywhere; '' or the traceback of what went wrong."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        text = ""
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            action()
        except BaseException:  # noqa: BLE001  (the parent raises it)
            text = traceback.format_exc()
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def open_folder():
    """A folder that another user may enter and write to (pytest's own are private)."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
        folder.chmod(0o777)


def executed(*statements: str):
    """Makes a database by statements."""

    def make(path: Path) -> None:
        raw = sqlite3.connect(path)
        for statement in statements:
            raw.execute(statement)
        raw.commit()
        raw.close()

    return make


def unmarked(path: Path) -> None:
    """Tables of ours in a file that does not say whose it is."""
    Store.open(path).close()
    executed("PRAGMA application_id=0")(path)


REFUSED = {
    "no SQLite": (lambda path: path.write_bytes(b"\x08\x07\x12\x04no"), ForeignDatabase, "not an SQLite database"),
    "a header alone": (lambda path: path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096), ForeignDatabase, None),
    "another program's": (executed("CREATE TABLE urls (url TEXT)"), ForeignDatabase, "not made by dlbricks"),
    "another's, empty": (executed("PRAGMA application_id=252006674", "VACUUM"), ForeignDatabase, None),  # Fossil
    "without our mark": (unmarked, ForeignDatabase, None),
    "a directory": (Path.mkdir, ForeignDatabase, "is a directory"),
    "a pipe": (os.mkfifo, ForeignDatabase, "not a regular file"),
}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_database_of_ours_is_refused_and_stays(tmp_path, kind, read_only):
    make, error, message = REFUSED[kind]
    path = tmp_path / "a.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None

    with pytest.raises(error, match=message) as refused:
        Store.open(path, read_only=read_only)

    one_line(refused, path)
    assert refused.value.remedy
    assert before is None or path.read_bytes() == before
    assert names(tmp_path) == ["a.db"]


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("nowhere/a.db", {}, "folder of database"),
        ("file/a.db", {}, "a file in place of a folder"),
        ("a.db", {"create": False}, "no database"),
        ("a.db", {"read_only": True}, "no database"),
    ],
)
def test_a_database_that_is_not_there_is_not_made(tmp_path, place, options, message):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=message) as error:
        Store.open(tmp_path / place, **options)
    one_line(error, tmp_path / place)
    assert names(tmp_path) == ["file"]


def test_an_empty_file_becomes_a_database(tmp_path):
    path = tmp_path / "a.db"
    path.touch()
    for read_only in (False, True):
        with Store.open(path, read_only=read_only) as store:
            assert store.info()["counts"]["runs"] == 0


def test_strange_names(tmp_path):
    path = tmp_path / "50% off? #1 ä & 'b'.db"
    for read_only in (False, True):
        with Store.open(path, read_only=read_only) as store:
            store.info()
    with Store.open(f"sqlite:///{tmp_path}/plain.db") as store:
        assert store.place.path == tmp_path / "plain.db"
    assert names(tmp_path) == [path.name, "plain.db"]


def test_closing_leaves_one_file(bench):
    bench.measure("a")
    bench.store.close()
    with Store.open(bench.path, read_only=True) as store:
        assert len(store.measurements()) == 1
        with pytest.raises(DatabaseReadOnly) as error:
            store.add_session((), ())
    one_line(error, bench.path)
    assert names(bench.path.parent) == [bench.path.name]


@pytest.mark.parametrize(
    ("modes", "read_only", "refused"),
    [
        ((0o777, 0o444), True, None),
        ((0o777, 0o444), False, DatabaseReadOnly),
        ((0o555, 0o666), True, None),  # in WAL mode reading wants to create files; it works without
        ((0o555, 0o666), False, DatabaseReadOnly),
        ((0o555, None), False, DatabaseReadOnly),  # none can be made there
        ((0o777, 0o000), True, StoreError),
    ],
)
def test_permissions_of_the_folder_and_the_file(open_folder, furnish, modes, read_only, refused):
    path, (folder_mode, file_mode) = open_folder / "a.db", modes
    if file_mode is not None:
        bench = furnish(path)
        bench.measure("a")
        bench.store.close()
        path.chmod(file_mode)
    open_folder.chmod(folder_mode)

    def action():
        if refused is None:
            with Store.open(path, read_only=read_only) as store:
                assert len(store.measurements()) == 1
        else:
            with pytest.raises(refused) as error:
                Store.open(path, read_only=read_only)
            assert ("cannot be read" in one_line(error, path)) is (file_mode == 0)

    assert as_nobody(action) == ""
    assert folder_mode == 0o777 or names(open_folder) == ([] if file_mode is None else ["a.db"])


def test_unfinished_writes_in_a_read_only_folder_are_not_ignored(open_folder, furnish):
    """Opened as immutable, a database would silently lack what its write-ahead log still holds."""
    source = open_folder / "live.db"
    furnish(source).measure("a")
    copy = open_folder / "copy"
    copy.mkdir(0o777)
    for end in ("", "-wal"):  # as a killed process leaves them
        (copy / f"a.db{end}").write_bytes(source.with_name(source.name + end).read_bytes())
    copy.chmod(0o555)

    def action():
        with pytest.raises(DatabaseReadOnly) as error:
            Store.open(copy / "a.db", read_only=True)
        assert "a.db-wal" in one_line(error, copy / "a.db")

    assert as_nobody(action) == ""
    copy.chmod(0o777)


def test_a_full_database_keeps_what_was_committed(bench, block):
    """``max_page_count`` makes SQLite say SQLITE_FULL, as it does on a full disk."""
    kept = bench.measure("a")
    with bench.store.writing() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 2}")
    made = bench.measurement("b")
    bench.begin(made)
    stored = []

    def fill():
        for round_ in range(100):
            bench.store.add_session((), [(made.id, block(0, round_, n=200))])
            stored.append(block(0, round_, n=200))

    with pytest.raises(DiskFull) as error:
        fill()
    assert "what was committed before is kept" in one_line(error, bench.path)
    bench.store.close()
    with Store.open(bench.path) as store:
        assert store.measurements() == [kept]
        assert store.blocks(made.id) == stored
        store.add_session((), [(made.id, block(0, len(stored), n=200))])  # with room again, it goes on


class Reported(Exception):
    """What a driver raises: SQLite's has a number, PostgreSQL's a code of the SQL standard."""

    def __init__(self, sqlite: int | None = None, state: str | None = None) -> None:
        super().__init__("of the driver")
        self.sqlite_errorcode, self.sqlstate = sqlite, state


@pytest.mark.parametrize(
    ("reported", "kind", "says"),
    [
        (Reported(sqlite3.SQLITE_BUSY_SNAPSHOT), DatabaseLocked, "held by another process"),  # more exact than BUSY
        (Reported(sqlite3.SQLITE_IOERR), StoreError, "the disk reports an error"),
        (Reported(state="25006"), DatabaseReadOnly, "its server lets it be read only"),
        (Reported(state="40P01"), DatabaseLocked, "held by another process"),
        (Reported(state="53100"), DiskFull, "no space is left"),
        (Reported(state="57P01"), DatabaseUnreachable, "cannot be reached"),
        (Reported(state="42501"), StoreError, "cannot be used: of the driver"),
        (Reported(), DatabaseUnreachable, "cannot be used: of the driver"),
        (StoreError("said already"), StoreError, "said already"),
    ],
    ids=lambda value: str(getattr(value, "__dict__", "") or getattr(value, "__name__", "")),
)
def test_what_a_driver_reports_becomes_a_kind_of_error(reported, kind, says):
    error = reported if isinstance(reported, StoreError) else exc.OperationalError("SELECT 1", None, reported)

    found = fault(error, "here")

    assert type(found) is kind
    assert says in str(found)


@pytest.mark.parametrize(
    ("url", "says"),
    [("nosuch://somewhere/db", "driver"), ("://", "SQLAlchemy"), ("mysql+nosuchdriver://u:secret@host/db", "driver")],
)
def test_urls_that_lead_nowhere(url, says):
    with pytest.raises(StoreError) as error:
        Store.open(url)
    assert says in str(error.value)
    assert "secret" not in str(error.value)


def test_a_password_is_never_shown():
    assert "secret" not in str(DatabasePlace.of("postgresql+psycopg://ann:secret@localhost/db"))


# A database that another process holds; processes that all write are in ``test_many_writers`` ----------------------


@pytest.fixture
def holder(bench):
    """Another connection that holds the write lock."""
    raw = sqlite3.connect(bench.path, isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    yield raw
    raw.close()


def test_writing_waits_for_the_lock_and_then_goes_on(bench, holder, block):
    made = bench.measurement("a")
    with pytest.raises(DatabaseLocked, match="another process") as error:
        Store.open(bench.path, busy_timeout_s=0.1)
    assert str(bench.path) in str(error.value)
    holder.execute("ROLLBACK")
    bench.begin(made)
    with Store.open(bench.path, busy_timeout_s=0.1) as store:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseLocked):
            store.add_session((), [(made.id, block(0, 0))])
        holder.execute("COMMIT")
        store.add_session((), [(made.id, block(0, 0))])
        assert store.blocks(made.id) == [block(0, 0)]


def test_reading_does_not_wait_for_a_writer(bench, holder):
    assert bench.store.measurements() == []
    with Store.open(bench.path, read_only=True, busy_timeout_s=0.1) as store:
        assert store.info()["counts"]["runs"] == 1


# A database that nothing came of is not left behind ----------------------------------------------------------------

SYSTEM = System("Xeon Example", "x86_64", 2, 4, (("L2", 2097152),), 16)


def refused(path: Path) -> None:
    with open_for_results(path):
        raise UsageError("no such option")


def test_a_refused_command_leaves_no_database(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        refused(tmp_path / "new.db")

    assert list(tmp_path.iterdir()) == []


def test_a_database_that_another_has_open_stays(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with open_for_results(path):
        other = Store.open(path)
        assert other.combinations() == []

    assert path.exists()
    other.put_system(SYSTEM)
    other.close()
