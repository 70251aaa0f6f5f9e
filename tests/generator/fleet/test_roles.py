"""What a node may do in the fleet's tables, by the statements of docs/databases.md and docs/fleet.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dlbricks.errors import StoreError
from dlbricks.generator.fleet.planning import plan
from dlbricks.generator.fleet.server import connected, transaction

_DOCS = Path(__file__).resolve().parents[3] / "docs"
_SQL = re.compile(r"^```sql\n(.*?)^```", re.DOTALL | re.MULTILINE)
ROLE, NODE = _SQL.findall((_DOCS / "databases.md").read_text())
(FLEET,) = _SQL.findall((_DOCS / "fleet.md").read_text())


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
def test_a_node_works_with_what_it_may(guarded, workers, rows):
    workers.url = guarded("alpha")

    worker = workers.start()
    _, err = worker.communicate(timeout=300)

    assert worker.returncode == 0, err
    assert rows("SELECT queue_name AS q, status::text AS s FROM procrastinate_jobs ORDER BY id") == [
        {"q": "alpha", "s": "succeeded"},
        {"q": "beta", "s": "todo"},
    ]


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


@pytest.mark.parametrize("statement", _FORBIDDEN.values(), ids=_FORBIDDEN)
def test_a_node_cannot(guarded, statement):
    with pytest.raises(StoreError, match="refused"), connected(guarded("alpha")) as connection:
        connection.execute(statement.encode())


def test_the_jobs_and_workers_of_others_are_out_of_reach(guarded, url, rows):
    with transaction(url) as connection:
        connection.execute("INSERT INTO procrastinate_workers SELECT FROM generate_series(1, 3)")
    with connected(guarded("alpha")) as connection:
        done = connection.execute("UPDATE procrastinate_jobs SET status = 'failed' WHERE queue_name = 'beta'")
        assert done.rowcount == 0
        assert connection.execute("SELECT id FROM procrastinate_fetch_job_v2(ARRAY['beta'], NULL)").fetchone() == {
            "id": None
        }

        connection.execute("INSERT INTO node VALUES ('alpha', 2, 'x')")
        done = connection.execute("UPDATE procrastinate_workers SET last_heartbeat = now()")
        assert done.rowcount == 1  # its own

    assert {row["s"] for row in rows("SELECT status::text AS s FROM procrastinate_jobs")} == {"todo"}
