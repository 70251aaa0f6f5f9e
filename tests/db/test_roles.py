"""What a node may do on a server by the statements of docs/databases.md, and how the way to it is protected."""

from __future__ import annotations

import dataclasses
import re
import socket
import subprocess
from pathlib import Path

import pytest
from dlbricks.db import Store, merge
from dlbricks.errors import StoreError
from servers import serving

_PAGE = Path(__file__).resolve().parents[2] / "docs/databases.md"
ROLE, NODE = re.findall(r"^```sql\n(.*?)^```", _PAGE.read_text(), re.DOTALL | re.MULTILINE)


def certificates(folder: Path) -> None:
    """An authority, what it says of a server called localhost, and another authority."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes")
    for name in ("ca", "other"):
        openssl("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-out", "server.pem")
    openssl("x509", "-req", "-in", "server.csr", *signed)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that lets nobody in over the network without a password and encryption."""
    folder = tmp_path_factory.mktemp("tls")
    try:
        certificates(folder)
    except FileNotFoundError:
        pytest.skip("no PostgreSQL server can be asked for TLS without openssl")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = "listen_addresses = '127.0.0.1'\nssl = on\nssl_cert_file = 'server.pem'\nssl_key_file = 'server.key'"
    access = "hostssl all all 127.0.0.1/32 scram-sha-256"
    secrets = {name: folder / name for name in ("server.pem", "server.key")}
    with serving(settings, access=access, secrets=secrets, port=port) as server:
        yield server, folder


@pytest.fixture(scope="module")
def place(guarded):
    """Its address for a node, with everything that the page says of roles done."""
    server, folder = guarded
    server.execute("CREATE DATABASE dlbricks")
    Store.open(server.url("dlbricks")).close()
    server.execute(ROLE, NODE, NODE.replace("alpha", "beta"), database="dlbricks")

    def address(user: str, *, host: str = "localhost", mode: str = "verify-full", authority: str = "ca") -> str:
        there = f"{user}:of {user}@{host}:{server.port}/dlbricks".replace(" ", "%20")
        return f"postgresql+psycopg://{there}?sslmode={mode}&sslrootcert={folder / authority}.pem"

    return address


@pytest.fixture
def owner(guarded, place) -> str:
    server, _ = guarded
    return server.url("dlbricks")


def test_a_node_adds_what_it_has_finished(place, owner, furnish, tmp_path, block):
    alpha, beta = furnish(tmp_path / "alpha.db", node="alpha"), furnish(tmp_path / "beta.db", node="beta")
    merge(alpha.store, beta.path)
    ours, theirs = alpha.measure("a", 10.0), beta.measure("a", 20.0)
    alpha.store.add_failure(alpha.failure("f"))
    with Store.open(place("alpha")) as store:
        first = merge(store, alpha.path, node="alpha")
        assert merge(store, alpha.path, node="alpha").measurements == 0
    with Store.open(place("beta")) as store:
        assert merge(store, beta.path, node="beta").measurements == 1
    alpha.store.end_run(alpha.run.id, after={"load_1m": 1.0}, finished="2026-11-21T04:00:00Z")
    with Store.open(place("alpha")) as store:
        merge(store, alpha.path, node="alpha")
        assert store.measurements(node="beta") == [theirs]  # everybody reads everything

    assert (first.runs, first.measurements, first.blocks, first.failures) == (1, 1, 2, 1)
    with Store.open(owner) as store:
        assert {m.id for m in store.measurements(latest=False)} >= {ours.id, theirs.id}
        assert store.blocks(ours.id) == [block(0, 0), block(0, 1)]
        ended = {run.id: run.finished for run in store.runs()}
        assert (ended[alpha.run.id], ended[beta.run.id]) == ("2026-11-21T04:00:00Z", None)


_FORBIDDEN = {
    "change a result": "UPDATE measurement SET mean_ns = 1 WHERE id = '{theirs}'",
    "change its own result": "UPDATE measurement SET mean_ns = 1 WHERE id = '{ours}'",
    "delete a result": "DELETE FROM measurement WHERE id = '{theirs}'",
    "delete its own result": "DELETE FROM measurement WHERE id = '{ours}'",
    "delete samples": "DELETE FROM block WHERE measurement_id = '{theirs}'",
    "change samples": "UPDATE block SET warmups = 9 WHERE measurement_id = '{theirs}'",
    "add samples to another's": "INSERT INTO block SELECT measurement_id, 9, 9, 0, samples, data, visits FROM block "
    "WHERE measurement_id = '{theirs}' LIMIT 1",
    "delete failures": "DELETE FROM failure",
    "rename a run": "UPDATE run SET node = 'beta' WHERE id = '{run}'",
    "change a system": "UPDATE system SET cpu = 'Faster'",
    "forget everything": "TRUNCATE measurement CASCADE",
    "drop a table": "DROP TABLE block",
    "change the revision": "DELETE FROM dlbricks_revision",
    "make a table": "CREATE TABLE mine (a int)",
    "let itself do more": "GRANT ALL ON measurement TO alpha; UPDATE measurement SET mean_ns = 1",
    "become somebody else": "SET ROLE ann",
    "lift the policies": "ALTER TABLE run DISABLE ROW LEVEL SECURITY",
}


@pytest.mark.parametrize("statement", _FORBIDDEN.values(), ids=_FORBIDDEN)
def test_a_node_cannot(place, owner, furnish, tmp_path, statement):
    from sqlalchemy import text

    alpha, beta = furnish(tmp_path / "alpha.db", node="alpha"), furnish(tmp_path / "beta.db", node="beta")
    ours, theirs = alpha.measure("a"), beta.measure("a")
    for bench in (alpha, beta):
        with Store.open(place(bench.run.node)) as store:
            merge(store, bench.path, node=bench.run.node)
    names = {"ours": ours.id, "theirs": theirs.id, "run": alpha.run.id}

    with (
        Store.open(place("alpha")) as store,
        pytest.raises(StoreError, match=r"permission denied|row-level security|must be owner"),
        store.writing() as connection,
    ):
        connection.execute(text(statement.format(**names)))

    with Store.open(owner) as store:
        assert {m.id: m for m in store.measurements(latest=False)}.items() >= {ours.id: ours, theirs.id: theirs}.items()
        assert len(store.blocks(theirs.id)) == 2


def test_a_node_cannot_end_the_run_of_another(place, owner, furnish, tmp_path):
    """No error: the row is not there for it to be changed."""
    beta = furnish(tmp_path / "beta.db", node="beta")
    with Store.open(place("beta")) as store:
        merge(store, beta.path, node="beta")

    with Store.open(place("alpha")) as store, pytest.raises(StoreError, match="holds no run"):
        store.end_run(beta.run.id, after={}, finished="2020")

    with Store.open(owner) as store:
        assert beta.run in store.runs()


def test_a_node_cannot_add_in_the_name_of_another(place, furnish, tmp_path):
    beta = furnish(tmp_path / "beta.db", node="beta")
    beta.measure("a")
    with Store.open(place("alpha")) as store:
        for node in ("beta", None):
            with pytest.raises(StoreError, match="row-level security"):
                merge(store, beta.path, node=node)
        assert beta.run.id not in {run.id for run in store.runs()}


def test_a_node_cannot_leave_anything_open(place, furnish, tmp_path):
    alpha = furnish(tmp_path / "alpha.db", node="alpha")
    with Store.open(place("alpha")) as store:
        merge(store, alpha.path, node="alpha")
        alpha = dataclasses.replace(alpha, store=store)
        with pytest.raises(StoreError, match="row-level security"):
            alpha.begin(alpha.measurement("a"))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"authority": "other"}, "certificate verify failed"),
        ({"host": "127.0.0.1"}, "does not match host name"),
        ({"mode": "disable"}, "no encryption"),
    ],
    ids=["another authority", "another name", "no encryption"],
)
def test_a_server_that_is_not_verified_is_not_talked_to(place, wrong, reason):
    with pytest.raises(StoreError, match=reason) as error:
        Store.open(place("alpha", **wrong))

    assert "of alpha" not in str(error.value)
    assert "of%20alpha" not in str(error.value)


def test_the_way_to_a_server_is_encrypted(place):
    from sqlalchemy import text

    with Store.open(place("alpha")) as store, store.reading() as connection:
        ssl = "SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert connection.execute(text(ssl)).one()[0] is True
