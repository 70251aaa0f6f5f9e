"""What is opened, and what is refused: each with its own kind of error and one clear line."""

from __future__ import annotations

import os
import sqlite3
import traceback
from pathlib import Path

import pytest
from dlbricks.db import Store
from dlbricks.db.place import Place
from dlbricks.errors import (
    DatabaseReadOnly,
    DiskFull,
    ForeignDatabase,
    StoreError,
)

# Python 3.12 and later warn of any fork beside another thread; a BLAS that an earlier test loaded has some.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

NOBODY = 65534


def one_line(error: pytest.ExceptionInfo[StoreError], path: Path) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert str(path) in text
    assert error.value.remedy
    return text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def as_nobody(action) -> str:
    """Run in a child that has not root's right to write everywhere; '' or the traceback of what went wrong."""

    def demoted() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        action()

    return in_child(demoted)


def in_child(action) -> str:
    """Run in a forked child; '' or the traceback of what went wrong."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        text = ""
        try:
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
def open_folder(tmp_path_factory):
    """A folder that another user may enter and write to (pytest's own are private)."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
        folder.chmod(0o777)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("content", [b"\x08\x07\x12\x04not a database", b"x", b"SQLite format 2\0" * 100])
def test_a_file_that_is_not_sqlite(tmp_path, content, read_only):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ForeignDatabase) as error:
        Store.open(path, read_only=read_only)
    assert "not an SQLite database" in one_line(error, path)
    assert path.read_bytes() == content
    assert names(tmp_path) == ["model.onnx"]


def test_a_header_without_a_database(tmp_path):
    path = tmp_path / "a.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    with pytest.raises(ForeignDatabase) as error:
        Store.open(path)
    one_line(error, path)


def test_another_programs_database(tmp_path):
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE urls (url TEXT)")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(ForeignDatabase) as error:
        Store.open(path)
    assert "not made by dlbricks" in one_line(error, path)
    assert path.read_bytes() == before


def test_another_programs_empty_database(tmp_path):
    path = tmp_path / "other.db"
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA application_id=252006674")  # Fossil
    raw.execute("VACUUM")
    raw.close()
    with pytest.raises(ForeignDatabase):
        Store.open(path)


def test_tables_of_ours_without_the_mark_are_foreign(bench):
    bench.store.close()
    raw = sqlite3.connect(bench.path)
    raw.execute("PRAGMA application_id=0")
    raw.commit()
    raw.close()
    with pytest.raises(ForeignDatabase):
        Store.open(bench.path)


def test_a_directory(tmp_path):
    with pytest.raises(ForeignDatabase) as error:
        Store.open(tmp_path)
    assert "is a directory" in one_line(error, tmp_path)


def test_a_pipe_does_not_block(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ForeignDatabase, match="not a regular file"):
        Store.open(path)


def test_a_folder_that_is_not_there(tmp_path):
    path = tmp_path / "nowhere" / "a.db"
    with pytest.raises(StoreError, match="folder of database") as error:
        Store.open(path)
    one_line(error, path)
    assert not path.parent.exists()


def test_below_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError):
        Store.open(tmp_path / "file" / "a.db")


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}])
def test_a_database_that_is_not_there_is_not_made_by_reading(tmp_path, options):
    path = tmp_path / "a.db"
    with pytest.raises(StoreError, match="no database") as error:
        Store.open(path, **options)
    one_line(error, path)
    assert names(tmp_path) == []


def test_an_empty_file_becomes_a_database(tmp_path):
    path = tmp_path / "a.db"
    path.touch()
    with Store.open(path) as store:
        assert store.info()["counts"]["runs"] == 0
    with Store.open(path, read_only=True) as store:
        assert store.info()["counts"]["runs"] == 0


def test_strange_names(tmp_path):
    path = tmp_path / "50% off? #1 ä & 'b'.db"
    with Store.open(path) as store:
        store.info()
    with Store.open(path, read_only=True) as store:
        store.info()
    with Store.open(f"sqlite:///{tmp_path}/plain.db") as store:
        assert store.place.path == tmp_path / "plain.db"
    assert names(tmp_path) == [path.name, "plain.db"]


def test_closing_leaves_one_file(bench):
    bench.measure("a")
    bench.store.close()
    with Store.open(bench.path, read_only=True) as store:
        assert len(store.measurements()) == 1
    assert names(bench.path.parent) == [bench.path.name]


def test_a_read_only_store_refuses_to_write(bench):
    with Store.open(bench.path, read_only=True) as store, pytest.raises(DatabaseReadOnly) as error:
        store.add_session((), ())
    one_line(error, bench.path)


def test_a_truncated_database(bench):
    for i in range(300):
        bench.measure(i)
    bench.store.close()
    data = bench.path.read_bytes()
    bench.path.write_bytes(data[: len(data) // 2 // 4096 * 4096])
    with pytest.raises(StoreError) as error, Store.open(bench.path) as store:
        store.measurements(variant=None)
    assert "damaged" in one_line(error, bench.path)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_read_only_file(open_folder, furnish, read_only):
    path = open_folder / "a.db"
    bench = furnish(path)
    bench.measure("a")
    bench.store.close()
    path.chmod(0o444)

    def action():
        if read_only:
            with Store.open(path, read_only=True) as store:
                assert len(store.measurements()) == 1
        else:
            with pytest.raises(DatabaseReadOnly) as error:
                Store.open(path)
            one_line(error, path)

    assert as_nobody(action) == ""


@pytest.mark.parametrize("read_only", [False, True])
def test_a_read_only_folder(open_folder, furnish, read_only):
    """In WAL mode reading wants to create files; where that is forbidden, reading works all the same."""
    path = open_folder / "a.db"
    bench = furnish(path)
    bench.measure("a")
    bench.store.close()
    path.chmod(0o666)
    open_folder.chmod(0o555)

    def action():
        if read_only:
            with Store.open(path, read_only=True) as store:
                assert len(store.measurements()) == 1
        else:
            with pytest.raises(DatabaseReadOnly) as error:
                Store.open(path)
            one_line(error, path)

    assert as_nobody(action) == ""
    assert names(open_folder) == ["a.db"]


def test_no_database_can_be_made_in_a_read_only_folder(open_folder):
    open_folder.chmod(0o555)

    def action():
        with pytest.raises(DatabaseReadOnly) as error:
            Store.open(open_folder / "a.db")
        one_line(error, open_folder / "a.db")

    assert as_nobody(action) == ""


def test_unfinished_writes_in_a_read_only_folder_are_not_ignored(open_folder, furnish):
    """Opened as immutable, a database would silently lack what its write-ahead log still holds."""
    source = open_folder / "live.db"
    bench = furnish(source)
    bench.measure("a")
    copy = open_folder / "copy"
    copy.mkdir(0o777)
    for end in ("", "-wal"):  # as a killed process leaves them
        data = source.with_name(source.name + end).read_bytes()
        (copy / f"a.db{end}").write_bytes(data)
    copy.chmod(0o555)

    def action():
        with pytest.raises(DatabaseReadOnly) as error:
            Store.open(copy / "a.db", read_only=True)
        assert "a.db-wal" in one_line(error, copy / "a.db")

    assert as_nobody(action) == ""
    copy.chmod(0o777)


def test_a_file_that_may_not_be_read(open_folder, furnish):
    path = open_folder / "a.db"
    furnish(path).store.close()
    path.chmod(0)

    def action():
        with pytest.raises(StoreError, match="cannot be read") as error:
            Store.open(path, read_only=True)
        one_line(error, path)

    assert as_nobody(action) == ""


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


def test_a_full_disk_keeps_what_was_committed(bench, block):
    """The operating system's own refusal to let a file grow."""
    import resource
    import signal

    kept = bench.measure("a")
    made = bench.measurement("b")
    bench.begin(made)
    bench.store.close()

    def fill(store):
        for round_ in range(2000):
            store.add_session((), [(made.id, block(0, round_, n=200))])

    def action():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        with Store.open(bench.path) as store, pytest.raises(StoreError) as error:
            fill(store)
        one_line(error, bench.path)
        assert isinstance(error.value, DiskFull) or "disk" in str(error.value)

    assert in_child(action) == ""
    with Store.open(bench.path) as store:
        assert store.measurements() == [kept]
        stored = store.blocks(made.id)
        assert stored == [block(0, round_, n=200) for round_ in range(len(stored))]
        assert stored


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nosuch://somewhere/db", "driver"),
        ("://", "SQLAlchemy"),
        ("mysql+nosuchdriver://u:secret@host/db", "driver"),
    ],
)
def test_urls_that_lead_nowhere(url, says):
    with pytest.raises(StoreError) as error:
        Store.open(url)
    assert says in str(error.value)
    assert "secret" not in str(error.value)


def test_a_password_is_never_shown():
    assert "secret" not in str(Place.of("postgresql+psycopg://ann:secret@localhost/db"))
