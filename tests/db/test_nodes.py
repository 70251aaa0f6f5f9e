"""Equal machines on one database, told apart by what their owner calls them."""

from __future__ import annotations

import csv
import dataclasses
import uuid

import pytest
from dlbricks.db import Stack, Store, export, frame, merge
from dlbricks.db.store import OpenedMeasurement
from dlbricks.errors import StoreError


@pytest.fixture
def two(home, tmp_path, furnish):
    """Runs of two nodes, which are one system, on one database."""
    place = home(tmp_path / "shared.db")
    return furnish(place, node="alpha"), furnish(place, node="beta")


def opened(bench, measurement) -> OpenedMeasurement:
    return OpenedMeasurement(measurement.id, bench.run.id, measurement.identity, measurement.unroll)


def test_each_node_has_open_samples_of_its_own(two, block):
    alpha, beta = two
    ours, theirs = alpha.measurement("a"), beta.measurement("a")

    alpha.store.add_session([opened(alpha, ours)], [(ours.id, block(0, 0))])
    beta.store.add_session([opened(beta, theirs)], [(theirs.id, block(5, 1))])

    assert alpha.store.open_item(ours.identity, node="alpha") == (ours.id, ours.unroll, [block(0, 0)])
    assert alpha.store.open_item(ours.identity, node="beta") == (theirs.id, theirs.unroll, [block(5, 1)])
    assert alpha.store.open_item(ours.identity) is None  # a machine without a name continues nothing of theirs
    system, stack, conditions = ours.system, ours.stack, ours.conditions
    assert [left.run for left in beta.store.left_open(system, stack, conditions, node="beta")] == [beta.run.id]
    assert beta.store.left_open(system, stack, conditions) == []
    with pytest.raises(StoreError, match=f"open already as measurement {ours.id}"):
        alpha.store.add_session([opened(alpha, alpha.measurement("a"))], ())


def test_finished_measurements_and_failures_are_asked_for_by_node(two):
    alpha, beta = two
    ours, theirs = alpha.measure("a", 10.0), beta.measure("a", 20.0)
    alpha.store.add_failure(alpha.failure("f"))

    assert alpha.store.measurements() == [theirs]
    assert alpha.store.measurements(node="alpha") == [ours]
    assert alpha.store.measurements(node="") == []
    assert [one.run for one in beta.store.failures(node="alpha")] == [alpha.run.id]
    assert beta.store.failures(node="beta") == []
    beta.store.add_failure(beta.failure("f"))  # later, and of another node
    assert [one.run for one in beta.store.failures(node="alpha")] == [alpha.run.id]
    assert [one.run for one in beta.store.failures()] == [beta.run.id]
    assert frame(alpha.store)[["node", "campaign"]].to_numpy().tolist() == [["alpha", "autumn"], ["beta", "autumn"]]


@pytest.mark.parametrize("kind", ["csv", "db"])
def test_an_export_of_one_node(two, tmp_path, kind, block):
    alpha, beta = two
    ours = alpha.measure("a", 10.0)
    beta.measure("a", 20.0)
    beta.store.add_failure(beta.failure("f"))
    beta.store.put_stack(Stack("torch", "cpu", (("torch", "2.9"),)))

    assert export(alpha.store, tmp_path / f"alpha.{kind}", node="alpha") == 1

    if kind == "csv":
        (row,) = csv.DictReader((tmp_path / "alpha.csv").read_text().splitlines())
        assert (row["id"], row["node"], row["campaign"]) == (ours.id, "alpha", "autumn")
        return
    with Store.open(tmp_path / "alpha.db") as store:
        assert store.measurements() == store.measurements(node="alpha") == [ours]
        assert store.blocks(ours.id) == [block(0, 0), block(0, 1)]
        assert (store.runs(), store.failures()) == ([alpha.run], [])
        assert list(store.stacks()) == [ours.stack]


def test_a_merge_keeps_the_nodes_apart(two, home, tmp_path):
    alpha, beta = two
    ours, theirs = alpha.measure("a"), beta.measure("a")
    with Store.open(home(tmp_path / "all.db")) as store:
        merge(store, alpha.path)

        assert store.measurements(node="alpha") == [ours]
        assert store.measurements(node="beta") == [theirs]
        assert {(run.node, run.campaign) for run in store.runs()} == {("alpha", "autumn"), ("beta", "autumn")}


@pytest.mark.parametrize("kind", ["csv", "db"])
def test_the_names_of_nodes_and_campaigns_stay_at_home(two, tmp_path, kind):
    alpha, beta = two
    alpha.measure("a")
    beta.measure("b")

    assert export(alpha.store, tmp_path / f"out.{kind}", measurements_only=True) == 2

    raw = (tmp_path / f"out.{kind}").read_bytes()
    assert not [name for name in (b"alpha", b"beta", b"autumn") if name in raw]


def test_what_is_added_with_its_samples_is_of_the_node_of_its_run(two, block):
    alpha, beta = two
    made = dataclasses.replace(alpha.measurement("a"), id=str(uuid.uuid4()))

    assert alpha.store.add([(made, [block(0, 0)])]) == 1
    assert alpha.store.add([(made, [block(0, 0)])]) == 0  # again, as after an acknowledgement that was lost

    assert beta.store.measurements(node="alpha") == [made]
    assert beta.store.blocks(made.id) == [block(0, 0)]
