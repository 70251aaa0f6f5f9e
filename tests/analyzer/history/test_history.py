"""What the runs of a model tell over time: series, changes, what they go with, and which brick is to blame."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from dlbricks.analyzer.history.history import Cause, history
from dlbricks.db import Conditions


def test_a_change_with_a_version_is_the_versions(nights):
    for _ in range(20):
        nights.run()
    first = nights.run(1.05, version="1.31.0")
    ids = [nights.run(1.05, version="1.31.0") for _ in range(3)]

    (row,) = history([nights.source], store=nights.store).rows

    (change,) = row.changes
    assert (row.runs, row.basis, len(row.points)) == (24, "undisturbed", 24)
    assert change.first.run == first
    assert change.found in ids
    assert (change.verdict, change.cause) == ("SLOWER", Cause.VERSIONS)
    assert change.versions == (("onnxruntime", "1.30.0", "1.31.0"),)
    seen = change.levels.difference
    assert seen.ratio == pytest.approx(1.05, abs=0.01)
    assert seen.ci95[0] < 1.05 < seen.ci95[1]
    assert (change.runs_before, change.runs_after) == (20, 4)
    assert change.reason == "onnxruntime 1.30.0 → 1.31.0; the machine did not move with it"
    assert row.scatter == pytest.approx(0.01, abs=0.005)
    assert 0.95 < row.points[0].latency_ms < 1.05, "undisturbed, and not the mean, which is a fifth longer"
    assert row.points[0].versions == {"onnxruntime": "1.30.0", "dlbricks": "0.1", "kernel": "6.1"}


def test_where_the_probes_moved_too_it_is_the_machine(nights):
    for _ in range(20):
        nights.run()
    for _ in range(5):
        nights.run(machine=1.08)

    found = history([nights.source], store=nights.store)

    (change,) = found.rows[0].changes
    assert (change.verdict, change.cause) == ("SLOWER", Cause.MACHINE)
    assert change.reason.startswith("the machine and not the runtime: it moved as well (probe of arithmetic x 1.0")
    assert {witness.name: witness.moved for witness in change.machine} == {
        "probe of arithmetic": True, "probe of memory": True, "a call of one addition": True
    }  # fmt: skip
    assert not found.alarms


@pytest.mark.parametrize(
    ("always", "then", "cause", "reason"),
    [
        # Our own networks alone show the machine too; of a new runtime they are no witness, for they run in it.
        ({"probe": False}, {"ms": 1.08, "reference_us": 2.16}, Cause.MACHINE, "the machine and not the runtime"),
        ({"probe": False}, {"ms": 1.08, "reference_us": 2.16, "version": "1.31.0"}, Cause.VERSIONS,
         "it is unknown if the machine changed"),
        ({}, {"version": "1.31.0", "machine": 1.08}, Cause.UNKNOWN, "both may be"),
        ({}, {"ms": 0.93}, Cause.UNKNOWN, "no recorded version changed, and the machine did not move with it"),
        ({}, {"ms": 1.06, "kernel": "6.2"}, Cause.VERSIONS, "kernel 6.1 → 6.2"),  # of the system
        # Of means the machine is told by means of the probes.
        ({"undisturbed": False, "reference_us": None}, {"machine": 1.08}, Cause.MACHINE, "the machine and not"),
    ],
)  # fmt: skip
def test_what_a_change_goes_with(nights, always, then, cause, reason):
    for _ in range(20):
        nights.run(**always)
    for _ in range(5):
        nights.run(**(always | then))

    (row,) = history([nights.source], store=nights.store).rows

    (change,) = row.changes
    assert change.cause is cause
    assert change.verdict == ("FASTER" if then.get("ms", 1.0) < 1 else "SLOWER")
    assert reason in change.reason
    assert {package for package, _, _ in change.versions} == (
        {"onnxruntime"} if "version" in then else {"kernel"} if "kernel" in then else set()
    )
    if "probe" in always:
        assert [witness.name for witness in row.machine] == ["a call of one addition"]
    if "undisturbed" in always:
        assert row.machine[0].latencies_us[0] == pytest.approx(50.5, abs=0.3), "the mean of 50 to 51; its least is 50.0"


def test_the_brick_that_changed_is_to_blame(nights):
    usual = dict.fromkeys(nights.bricks, 0.1)
    conv, relu, *_ = nights.bricks
    for _ in range(20):
        nights.run(bricks=usual)
    for _ in range(4):
        nights.run(1.1, version="1.31.0", bricks=usual | {conv: 0.15, relu: 0.09})

    (change,) = history([nights.source], store=nights.store).rows[0].changes

    worst = change.bricks[0]
    assert (worst.brick.key, worst.brick.operators, worst.brick.occurrences) == (conv, ("Conv",), 2)
    assert worst.contribution_ms == pytest.approx(2 * 0.05, abs=0.01)
    assert worst.ratio == pytest.approx(1.5, abs=0.05)
    assert change.bricks[-1].brick.key == relu
    assert len(change.bricks) == 4
    assert change.bricks_missing == 0


def test_bricks_of_one_side_only_are_counted_and_not_blamed(nights):
    conv, *_ = nights.bricks
    for _ in range(20):
        nights.run(bricks={conv: 0.1})
    for _ in range(4):
        nights.run(1.1)

    (change,) = history([nights.source], store=nights.store).rows[0].changes

    assert change.bricks == ()
    assert change.bricks_missing == 4


def test_options_and_conditions_are_series_of_their_own(nights):
    for _ in range(3):
        nights.run()
        nights.run(optimization="disabled")
        nights.run(conditions=Conditions(2, "model"))
        nights.run(conditions=Conditions(1, "cold"))
        nights.run(conditions=Conditions(1, "hot"))

    found = history([nights.source], store=nights.store)

    assert [(dict(row.track.runtime.options), row.track.threads, row.track.cache, row.runs) for row in found.rows] == [
        ({}, 1, "model", 6), ({"optimization": "disabled"}, 1, "model", 3), ({}, 2, "model", 3), ({}, 1, "cold", 3)
    ]  # fmt: skip
    assert len({found.place_of(row) for row in found.rows}) == 4
    assert [row.runs for row in history([nights.source], store=nights.store, threads=2).rows] == [3]
    assert [row.runs for row in history([nights.source], store=nights.store, cache="cold").rows] == [3]


OWN, OTHER = "own", "f" * 64


@pytest.mark.parametrize(
    ("files", "runs", "left_out"),
    [
        ([[OTHER], [OTHER], [OWN]], 3, []),
        ([[OWN], [OTHER], [OWN]], 3, []),
        ([[OTHER], [OWN], [OTHER], [OWN]], 2, [2]),
        ([[OTHER], [OWN], [OWN, OTHER]], 2, [1]),
    ],
    ids=["changed", "changed back", "two models in turn", "two models in one run"],
)
def test_a_series_follows_a_model_whose_file_changes_and_no_other_of_its_name(nights, files, runs, left_out):
    for keys in files:
        nights.run(files=[nights.key if key == OWN else key for key in keys])

    (row,) = history([nights.source], store=nights.store).rows

    assert row.runs == runs
    assert ("file" in row.points[0].versions) == (runs == 3)
    assert [other.runs for other in row.left_out] == left_out
    assert all("name that file" in other.difference for other in row.left_out)


def test_machines_that_change_to_a_file_one_after_the_other_measure_one_model(nights):
    for node, key in (
        ("a", OTHER),
        ("b", OTHER),
        ("a", nights.key),
        ("b", OTHER),
        ("a", nights.key),
        ("b", nights.key),
    ):
        nights.run(node=node, files=[key])

    (row,) = history([nights.source], store=nights.store).rows

    assert row.runs == 6


def test_one_run_without_an_undisturbed_latency_makes_means_of_all(nights):
    for number in range(4):
        nights.run(undisturbed=number != 2)

    (row,) = history([nights.source], store=nights.store).rows

    assert row.basis == "mean"
    assert all(1.1 < point.latency_ms < 1.3 for point in row.points)
    assert row.reason == "4 of the 9 runs that it takes to find a change"
    assert row.changes == ()


def test_since_lists_later_changes_and_still_learns_from_earlier_runs(nights):
    for level in (1.0, 1.06, 1.0):
        for _ in range(15):
            nights.run(level)

    def changes(since=None):
        return [change.verdict for change in history([nights.source], store=nights.store, since=since).rows[0].changes]

    assert changes() == ["SLOWER", "FASTER"]
    assert changes(datetime(2026, 9, 20, tzinfo=UTC)) == ["FASTER"]
    assert changes(datetime.fromisoformat("2026-09-01T00:00+02:00")) == ["SLOWER", "FASTER"]
    assert changes(datetime(2026, 12, 1)) == []  # noqa: DTZ001  # local time
