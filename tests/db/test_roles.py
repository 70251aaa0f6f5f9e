"""What a node may do on a server by the statements of docs/how-to/databases.md."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from dlbricks.db import Store, merge
from dlbricks.errors import StoreError
from sqlalchemy import text

_PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/databases.md"
ROLE, NODE = re.findall(r"^```sql\n(.*?)^```", _PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def place(server):
    """The address of a database for a user, with everything that the page says of roles done."""
    with server.databases() as new:
        owned = new()
        name = owned.partition("@/")[2].partition("?")[0]
        Store.open(owned).close()
        server.execute(ROLE, NODE, NODE.replace("alpha", "beta"), database=name)
        yield lambda user="ann": server.url(name, user)
        server.execute("DROP OWNED BY dlbricks_node", database=name)
        server.execute("DROP ROLE alpha", "DROP ROLE beta", "DROP ROLE dlbricks_node")


@pytest.fixture
def nodes(tmp_path, furnish):
    """The databases of two nodes."""
    return [furnish(tmp_path / f"{node}.db", node=node) for node in ("alpha", "beta")]


def test_a_node_adds_what_it_has_finished(place, nodes, block):
    alpha, beta = nodes
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
        assert store.blocks(ours.id) == [block(0, 0), block(0, 1)]
        ended = {run.id: run.finished for run in store.runs()}

    assert (first.runs, first.measurements, first.blocks, first.failures) == (1, 1, 2, 1)
    assert (ended[alpha.run.id], ended[beta.run.id]) == ("2026-11-21T04:00:00Z", None)


DENIED = r"permission denied|row-level security"
_FORBIDDEN = (
    "UPDATE measurement SET mean_ns = 1 WHERE id = '{ours}'",
    "DELETE FROM measurement WHERE id = '{theirs}'",
    "UPDATE block SET warmups = 9 WHERE measurement_id = '{theirs}'",
    "INSERT INTO block SELECT '{theirs}', 9, 9, 0, samples, data, visits FROM block LIMIT 1",
    "DELETE FROM failure",
    "UPDATE run SET node = 'beta' WHERE id = '{run}'",
    "UPDATE system SET cpu = 'Faster'",
    "DELETE FROM dlbricks_revision",
)


def test_a_node_cannot_change_what_is_there_nor_add_in_the_name_of_another(place, nodes):
    alpha, beta = nodes
    ours, theirs = alpha.measure("a"), beta.measure("a")
    for bench in nodes:
        with Store.open(place(bench.run.node)) as store:
            merge(store, bench.path, node=bench.run.node)
    later = beta.measure("b")
    with Store.open(place("alpha")) as store:
        for statement in _FORBIDDEN:
            wanted = text(statement.format(ours=ours.id, theirs=theirs.id, run=alpha.run.id))
            with pytest.raises(StoreError, match=DENIED), store.writing() as connection:
                connection.execute(wanted)
        for node in ("beta", None):
            with pytest.raises(StoreError, match=DENIED):
                merge(store, beta.path, node=node)
        with pytest.raises(StoreError, match=DENIED):  # nothing stays open
            dataclasses.replace(alpha, store=store).begin(alpha.measurement("c"))
        with pytest.raises(StoreError, match="holds no run"):  # the row is not there for it to be changed
            store.end_run(beta.run.id, after={}, finished="2020")
        known = {m.id: m for m in store.measurements(latest=False)}
        assert known.items() >= {ours.id: ours, theirs.id: theirs}.items()
        assert later.id not in known
