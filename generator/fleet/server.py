"""The PostgreSQL server of a fleet: connections, and tables in a separate schema of the measurements' database.

::

    blob       suites and lock files by their hash
    outcome    how each attempt at a job ended
    node       when a node was last heard of, and which worker works for it
    procrastinate_*    the queue

A connection lives for one transaction: while a job runs, no connection is open.
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
"""The PostgreSQL schema of all fleet tables."""

_VERSION = 1
"""Of the tables here; 1: the first, with Procrastinate's schema of version 3.10."""

_ALONE = 0x464C5442
"""Advisory lock of planners: "FLTB"."""

_WAITS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""Default time limits of libpq for a server that does not answer, in seconds and milliseconds."""

_MISSING = "3F000", "42P01", "42883"
"""SQLSTATE codes for a missing schema, table or function."""

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
    """Return the URL of a PostgreSQL database with time limits added, unless it has them.

    Raises:
        UsageError: The address is not PostgreSQL's.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"postgresql", "postgresql+psycopg"}:
        shown = url.rpartition("@")[2]
        raise UsageError(
            f"a fleet meets in a PostgreSQL database, and {shown!r} is none",
            remedy="give --db postgresql+psycopg://…, or set DLBRICKS_DB",
        )
    parameters = _WAITS | _single(parse_qsl(parts.query, keep_blank_values=True))
    return urlunsplit(parts._replace(scheme="postgresql+psycopg", query=urlencode(parameters, quote_via=quote)))


def _single(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Each name once: several hosts (``host=A:1&host=B:2``, as SQLAlchemy has them) are a list, as libpq has them."""
    hosts = [value.partition(":") for name, value in pairs if name == "host"]
    parameters = dict(pairs)
    if len(hosts) > 1:
        parameters["host"] = ",".join(host for host, _, _ in hosts)
        if any(port for _, _, port in hosts):
            parameters["port"] = ",".join(port for _, _, port in hosts)
    return parameters


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Open a connection with one transaction: commit at the end, roll back on an error.

    Raises:
        DatabaseUnreachable: The server cannot be reached, or the connection was lost.
        StoreError: The database has no fleet, or refuses.
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
    """Open a connection like ``connected``, to a fleet with tables of this version.

    Raises:
        NewerDatabase: The tables have another version.
    """
    with connected(url) as connection:
        _check(connection)
        yield connection


def make_tables(connection: Connection, queue: str) -> None:
    """Create missing tables, and exclude other planners until the transaction ends.

    Args:
        connection: Connection with the right to create tables.
        queue: Statements that create the queue's tables.

    Raises:
        NewerDatabase: The tables have another version.
    """
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_ALONE])
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL AS there", [f"{SCHEMA}.fleet"]).fetchone()
    if row is None or not row["there"]:
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
