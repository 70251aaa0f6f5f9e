"""Status: what is counted, and what is forecast from what."""

from __future__ import annotations

import pytest
from dlbricks.generator.fleet.planning import plan
from dlbricks.generator.fleet.queue import fetch, finish, heard, stale
from dlbricks.generator.fleet.server import transaction
from dlbricks.generator.fleet.status import fleet_status


def end(url: str, node: str, took_s: float, *, reason: str = "", counts: dict[str, int] | None = None) -> None:
    with transaction(url) as connection:
        job = fetch(connection, node, heard(connection, node, node, take_over=False))
        outcome = {"began": "2026-11-23T00:00:00Z", "waited_s": 1.0, "measured_s": took_s - 1, "counts": counts}
        finish(connection, job, {**outcome, "complete": not reason, "reason": reason})


def test_nothing_is_forecast_from_nothing(campaign, url):
    plan(campaign(nodes=["alpha", "beta"], threads=[1, 2]), url)

    status = fleet_status(url)

    (one,) = status.campaigns
    assert (one.campaign, one.cells, one.waiting, one.complete) == ("november", 4, 4, 0)
    assert one.forecast_s is None
    assert [(node.node, node.seen, node.waiting, node.forecast_s) for node in status.nodes] == [
        ("alpha", None, 2, None),
        ("beta", None, 2, None),
    ]


def test_coverage_failures_and_forecasts(campaign, url):
    plan(campaign(nodes=["alpha", "beta"], threads=[1, 2, 3]), url)
    counts = {"bricks": 10, "measured": 7, "reused": 1, "failed": 1, "remaining": 1}
    end(url, "alpha", 60.0, counts=counts)
    end(url, "alpha", 5.0, reason="it rained")
    with transaction(url) as connection:
        assert fetch(connection, "alpha", heard(connection, "alpha", "alpha", take_over=False)) is not None

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

    end(url, "beta", 30.0)
    status = fleet_status(url)

    assert status.nodes[1].forecast_s is None  # another number of threads tells nothing


def test_what_runs_is_forecast_by_what_is_alike(campaign, url):
    plan(campaign(nodes=["alpha", "beta"]), url)
    end(url, "alpha", 60.0)
    with transaction(url) as connection:
        assert fetch(connection, "beta", heard(connection, "beta", "beta", take_over=False)) is not None

    status = fleet_status(url)

    assert status.nodes[1].forecast_s == pytest.approx(60, abs=5)  # less what it ran
    assert status.campaigns[0].forecast_s == pytest.approx(60, abs=5)


@pytest.mark.parametrize("counts", ['{"bricks": "x", "models": -1, "failed": 1e400}', "[]", '"x"', "7"])
def test_what_a_node_notes_cannot_break_it(campaign, url, counts):
    plan(campaign(nodes=["alpha", "beta"]), url)
    end(url, "alpha", 60.0, counts={"bricks": 10, "models": 2, "models_remaining": 1})
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


def test_a_job_of_another_version_is_named_and_no_more(campaign, url):
    plan(campaign(nodes=["alpha", "beta"]), url)
    with transaction(url) as connection:
        connection.execute(
            "UPDATE procrastinate_jobs SET args = args || '{\"novelty\": 1}'::jsonb WHERE queue_name = 'beta'"
        )

    status = fleet_status(url)

    assert status.campaigns[0].cells == 1
    (failure,) = status.failures
    assert (failure.campaign, failure.node) == ("november", "beta")
    assert "not of this version: novelty" in failure.reason


def test_a_job_that_waits_again_is_in_nobodys_hands(campaign, url):
    plan(campaign(), url)
    with transaction(url) as connection:
        number = heard(connection, "alpha", "alpha", take_over=False)
        job = fetch(connection, "alpha", number)
        assert stale(connection, "alpha") == [job.id]


def test_only_one_campaign(campaign, url, tmp_path):
    asked = campaign()
    plan(asked, url)

    assert fleet_status(url, campaign="december").campaigns == ()
    assert len(fleet_status(url, campaign="november").campaigns) == 1
