"""What a node may do in the fleet's tables, by the statements of docs/how-to/databases.md and docs/how-to/fleet.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dlbricks.errors import StoreError
from dlbricks.generator.fleet.planning import plan
from dlbricks.generator.fleet.server import connected

_DOCS = Path(__file__).resolve().parents[3] / "docs"
_SQL = re.compile(r"^```sql\n(.*?)^```", re.DOTALL | re.MULTILINE)
ROLE, NODE = _SQL.findall((_DOCS / "how-to" / "databases.md").read_text())
(FLEET,) = _SQL.findall((_DOCS / "how-to" / "fleet.md").read_text())


@pytest.fixture
def guarded(campaign, url, server):
    """A fleet with a job for each of two nodes; the address of a node."""
    plan(campaign(nodes=["alpha", "beta"]), url)
    name = url.partition("@/")[2].partition("?")[0]
    server.execute(ROLE, NODE, NODE.replace("alpha", "beta"), FLEET, database=name)
    yield lambda user: url.replace("//ann@", f"//{user}@")
    server.execute(*(f"DROP OWNED BY {role}" for role in ("dlbricks_node", "alpha", "beta")), database=name)
    server.execute("DROP ROLE alpha", "DROP ROLE beta", "DROP ROLE dlbricks_node")


@pytest.mark.slow
def test_a_node_works_with_what_it_may(guarded, workers, states):
    workers.url = guarded("alpha")

    workers.drained()

    assert states() == ["succeeded", "todo"]


_FORBIDDEN = {
    "plan": "INSERT INTO procrastinate_jobs (queue_name, task_name) VALUES ('alpha', 'x')",
    "change what is asked for": "UPDATE procrastinate_jobs SET args = '{}' WHERE queue_name = 'alpha'",
    "delete a job": "DELETE FROM procrastinate_jobs",
    "give another a job": "UPDATE procrastinate_jobs SET queue_name = 'beta' WHERE queue_name = 'alpha'",
    "note an end for another": "INSERT INTO outcome SELECT id, 0, 'beta', true, '', now(), now(), 0, 0 FROM "
    "procrastinate_jobs WHERE queue_name = 'beta'",
    "end another's job in its own name": "INSERT INTO outcome SELECT id, 0, 'alpha', true, '', now(), now(), 0, 0 FROM "
    "procrastinate_jobs WHERE queue_name = 'beta'",
    "come as another": "INSERT INTO node VALUES ('beta', 1, 'x')",
    "change a suite": "UPDATE blob SET content = ''",
    "add a suite": "INSERT INTO blob VALUES ('x', 'suite', '')",
    "forget": "TRUNCATE outcome",
}


def test_a_node_can_do_nothing_else(guarded):
    for statement in _FORBIDDEN.values():
        with pytest.raises(StoreError, match="refused"), connected(guarded("alpha")) as connection:
            connection.execute(statement.encode())
