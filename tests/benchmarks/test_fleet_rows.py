"""The made-up measurements of a fleet are such as were measured: whoever asks finds all of them."""

from __future__ import annotations

import shutil

import pytest
from dlbricks import estimate
from dlbricks.analyzer.history.history import history
from dlbricks.db import Store
from dlbricks.models import find_models

fleet_rows = pytest.importorskip("fleet_rows", reason="psycopg is not installed")


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A server with some runs of six models; what was made, and the models."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if shutil.which("initdb") is None:
        pytest.skip("no PostgreSQL server on the PATH")
    from fleet_stage import serving

    folder = tmp_path_factory.mktemp("rows")
    for above in (folder, *folder.parents[:3]):
        above.chmod(0o755)  # PostgreSQL is another user's
    models = fleet_rows.make_models(folder / "models", 6)
    with serving(folder / "server", wired=False, settings=fleet_rows.SETTINGS) as server:
        yield server, models, fleet_rows.fill(server, models, 60_000)


def test_what_is_made_is_what_was_asked_for(filled):
    _, models, made = filled

    each = made["bricks"] + len(models) + 2
    assert made["measurements"] == made["runs"] * each >= 60_000
    assert made["sequences"] == 60 * len(models)
    assert made["runs"] > fleet_rows.SYSTEMS * len(fleet_rows.BACKENDS)


def test_estimates_are_complete_and_beside_what_was_measured(filled):
    server, models, made = filled

    with Store.open(server.url, read_only=True) as store:
        found = estimate(find_models(list(map(str, models))), store=store, system=made["system"], stack=made["stack"])

    assert [one.coverage.sequences for one in found] == [1.0] * len(models)
    assert all(one.paired and one.lower_bound_sequential_ms < one.sequential_ms for one in found)


def test_a_history_has_every_run_of_every_system(filled):
    server, models, made = filled

    with Store.open(server.url, read_only=True) as store:
        rows = history(find_models([str(models[0])]), store=store).rows

    assert len(rows) == fleet_rows.SYSTEMS * len(fleet_rows.BACKENDS)
    assert sum(row.runs for row in rows) == made["runs"]
    assert all(row.machine for row in rows)


def test_the_tables_have_their_keys_and_indexes_again(filled):
    server, _, _ = filled
    query = "SELECT indexname FROM pg_indexes WHERE tablename = 'measurement' ORDER BY indexname"
    foreign = (
        "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND 'measurement'::regclass IN (conrelid, confrelid)"
    )

    assert [name for (name,) in server.ask(query)] == [
        "ix_measurement_latest", "ix_measurement_run_id", "pk_measurement", "uq_measurement_open",
    ]  # fmt: skip
    assert server.ask(foreign) == [(3,)]
