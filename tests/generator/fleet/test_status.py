"""Status: what is counted, and what is forecast from what."""

from __future__ import annotations

import pytest
from dlbricks.generator.fleet.planning import plan
from dlbricks.generator.fleet.queue import held_jobs
from dlbricks.generator.fleet.server import transaction
from dlbricks.generator.fleet.status import fleet_status

from .conftest import end, took


def test_coverage_failures_and_forecasts(campaign, url):
    plan(campaign(nodes=["alpha", "beta"], threads=[1, 2, 3]), url)
    before = fleet_status(url)
    (one,) = before.campaigns
    assert (one.campaign, one.cells, one.waiting, one.complete, one.forecast_s) == ("november", 6, 6, 0, None)
    assert [(node.node, node.seen, node.waiting, node.forecast_s) for node in before.nodes] == [
        ("alpha", None, 3, None), ("beta", None, 3, None),
    ]  # fmt: skip
    counts = {"bricks": 10, "measured": 7, "reused": 1, "failed": 1, "remaining": 1}
    end(url, took_s=60.0, counts=counts)
    end(url, took_s=5.0, reason="it rained")
    with transaction(url) as connection:
        job = took(connection)

    status = fleet_status(url)

    (one,) = status.campaigns
    assert (one.cells, one.waiting, one.running, one.complete, one.failed) == (6, 3, 1, 1, 1)
    assert (one.bricks, one.bricks_measured, one.bricks_failed, one.bricks_remaining) == (10, 8, 1, 1)
    alpha, beta = status.nodes
    assert alpha.seen is not None
    assert alpha.running == "november: small on sleepy, 3 threads, hot, float32"
    assert alpha.forecast_s is None
    assert (beta.waiting, beta.seen, beta.running) == (3, None, None)
    assert beta.forecast_s is None  # two and three threads were completed nowhere
    assert one.forecast_s is None
    (failure,) = status.failures
    assert (failure.node, failure.cell, failure.reason) == (
        "alpha",
        "november: small on sleepy, 2 threads, hot, float32",
        "it rained",
    )

    end(url, "beta", took_s=30.0)
    assert fleet_status(url).nodes[1].forecast_s is None  # another number of threads tells nothing
    assert fleet_status(url, campaign="december").campaigns == ()
    assert len(fleet_status(url, campaign="november").campaigns) == 1
    with transaction(url) as connection:
        assert held_jobs(connection, "alpha") == [job.id]  # it waits again, in nobody's hands


def test_what_runs_is_forecast_by_what_is_alike(campaign, url):
    plan(campaign(nodes=["alpha", "beta"]), url)
    end(url, took_s=60.0)
    with transaction(url) as connection:
        took(connection, "beta")

    status = fleet_status(url)

    assert status.nodes[1].forecast_s == pytest.approx(60, abs=5)  # less what it ran
    assert status.campaigns[0].forecast_s == pytest.approx(60, abs=5)


@pytest.mark.parametrize("counts", ['{"bricks": "x", "models": -1, "failed": 1e400}', "[]", "7"])
def test_what_a_node_notes_cannot_break_it(campaign, url, counts):
    plan(campaign(nodes=["alpha", "beta"]), url)
    end(url, took_s=60.0, counts={"bricks": 10, "models": 2, "models_remaining": 1})
    one = fleet_status(url).campaigns[0]
    assert (one.bricks, one.models, one.models_remaining, one.forecast_s) == (10, 2, 1, 60.0)
    with transaction(url) as connection:
        connection.execute("UPDATE outcome SET counts = %s, waited_s = 'NaN', ended = 'infinity'", [counts])
        connection.execute("UPDATE node SET seen = 'infinity'")
        connection.execute("UPDATE procrastinate_events SET at = 'infinity'")

    status = fleet_status(url)

    assert (status.campaigns[0].bricks, status.campaigns[0].models, status.campaigns[0].complete) == (0, 0, 1)
    assert status.campaigns[0].forecast_s is None
    assert status.nodes[0].seen is None
