"""The server that a fleet meets at: how it is reached, and its tables, in a schema beside the measurements.

::

    blob       suites and lock files by their hash
    outcome    how each attempt at a job ended
    node       when a node was last heard of, and which worker works for it
    procrastinate_*    the queue

Connections are opened for one transaction and closed: between a job's beginning and its end there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from ...db.faults import fault
from ...errors import DatabaseUnreachable, ForeignDatabase, NewerDatabase, StoreError, UsageError

if TYPE_CHECKING:
    import psycopg

SCHEMA = "dlbricks_fleet"
"""The schema of PostgreSQL that holds all of it: whoever has no fleet sees no other tables than before."""

_VERSION = 1
"""Of the tables here; 1: the first, with Procrastinate's schema of version 3.10."""

_ALONE = 0x464C5442
"""Advisory lock of whoever plans: "FLTB"."""

_WAITS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""How long libpq waits for a server that does not answer, in seconds and milliseconds, where the URL does not say."""

_MISSING = "3F000", "42P01", "42883"
"""SQLSTATE where the schema, a table or a function is not there."""

_TABLES = """
CREATE TABLE fleet (version integer NOT NULL);
CREATE TABLE blob (
    hash text PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('suite', 'lock')),
    content bytea NOT NULL,
    added timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE node (
    name text PRIMARY KEY,
    worker bigint NOT NULL,
    holder text NOT NULL,
    seen timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE outcome (
    job bigint NOT NULL,
    attempt integer NOT NULL,
    node text NOT NULL,
    complete boolean NOT NULL,
    reason text NOT NULL,
    began timestamptz NOT NULL,
    ended timestamptz NOT NULL DEFAULT now(),
    waited_s double precision NOT NULL,
    measured_s double precision NOT NULL,
    counts jsonb,
    PRIMARY KEY (job, attempt)
);
"""

if TYPE_CHECKING:
    Connection = psycopg.Connection[dict[str, Any]]
else:
    Connection = object


def bounded(url: str) -> str:
    """The URL of a PostgreSQL database, with limits to waiting where it has none.

    Raises:
        UsageError: It is the address of something else.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"postgresql", "postgresql+psycopg"}:
        shown = url.rpartition("@")[2]
        raise UsageError(
            f"a fleet meets in a PostgreSQL database, and {shown!r} is none",
            remedy="give --db postgresql+psycopg://…, or set DLBRICKS_DB",
        )
    given = _WAITS | _single(parse_qsl(parts.query, keep_blank_values=True))
    return urlunsplit(parts._replace(scheme="postgresql+psycopg", query=urlencode(given, quote_via=quote)))


def _single(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Each name once: several hosts (``host=A:1&host=B:2``, as SQLAlchemy has them) are a list, as libpq has them."""
    hosts = [value.partition(":") for name, value in pairs if name == "host"]
    given = dict(pairs)
    if len(hosts) > 1:
        given["host"] = ",".join(host for host, _, _ in hosts)
        if any(port for _, _, port in hosts):
            given["port"] = ",".join(port for _, _, port in hosts)
    return given


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A connection whose transaction is committed at the end, and rolled back on an error.

    Raises:
        DatabaseUnreachable: It cannot be reached, or was lost.
        StoreError: It holds no fleet, or refuses.
        UsageError: The extra is not installed.
    """
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
        from psycopg.rows import dict_row
    except ImportError as error:
        raise UsageError(f"a fleet needs {error.name}", remedy="pip install 'dlbricks[fleet]'") from error
    if find_spec("procrastinate") is None:
        raise UsageError("a fleet needs procrastinate", remedy="pip install 'dlbricks[fleet]'")
    shown = url.rpartition("@")[2].partition("?")[0]
    address = bounded(url).replace("+psycopg", "", 1)
    try:
        options = f"{conninfo_to_dict(address).get('options', '')} -c search_path={SCHEMA}"
        with psycopg.connect(
            address, options=options, application_name="dlbricks fleet", row_factory=dict_row
        ) as connection:
            yield connection
    except psycopg.OperationalError as error:
        if error.sqlstate is not None:
            raise fault(error, shown) from error
        raise DatabaseUnreachable(
            f"database {shown} cannot be reached: {error}",
            remedy="look at its address, the account, the server and the way to it",
        ) from error
    except psycopg.Error as error:
        if error.sqlstate in _MISSING:
            raise ForeignDatabase(
                f"database {shown} holds no fleet", remedy="begin one: dlbricks fleet plan"
            ) from error
        raise StoreError(f"database {shown} refused: {error}") from error


@contextmanager
def transaction(url: str) -> Iterator[Connection]:
    """As ``connected``, in a fleet whose tables are of this version.

    Raises:
        NewerDatabase: They are of another version.
    """
    with connected(url) as connection:
        _check(connection)
        yield connection


def make_tables(connection: Connection, queue: str) -> None:
    """Make the tables where they are missing, and keep others from planning until the transaction ends.

    Args:
        connection: Of somebody who may.
        queue: Statements that make those of the queue.

    Raises:
        NewerDatabase: There are tables of another version.
    """
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_ALONE])
    found = connection.execute("SELECT to_regclass(%s) IS NOT NULL AS there", [f"{SCHEMA}.fleet"]).fetchone()
    if found is None or not found["there"]:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}".encode())
        connection.execute(queue.encode())
        connection.execute(_TABLES)
        connection.execute("INSERT INTO fleet VALUES (%s)", [_VERSION])
    _check(connection)


def _check(connection: Connection) -> None:
    row = connection.execute("SELECT version FROM fleet").fetchone()
    if row is None or row["version"] != _VERSION:
        raise NewerDatabase(
            f"the fleet's tables are of version {row['version'] if row else '?'}, this dlbricks knows {_VERSION}",
            remedy="bring planner, nodes and tables to the same version of dlbricks",
        )
