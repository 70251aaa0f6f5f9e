from __future__ import annotations

import dataclasses
import shutil
import sqlite3

import pytest
from dlbricks.db import Stack, Store, Subject, System, Transferred, merge
from dlbricks.errors import ForeignDatabase, OlderDatabase, StoreError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import content

OTHER_SYSTEM = System("EPYC Example", "x86_64", 64, 128, (("L3", 2**25),), 512, ("avx2",))
OTHER_STACK = Stack("openvino", "cpu", (("openvino", "2026.1"),))


@pytest.fixture
def two(tmp_path, furnish):
    one, other = furnish(tmp_path / "one.db"), furnish(tmp_path / "other.db", system=OTHER_SYSTEM, stack=OTHER_STACK)
    for name in "ab":
        one.measure(name)
    for name in "bc":
        other.measure(name, 2000.0)
    other.measure("m", subject=Subject.MODEL)
    other.measure("c", 1500.0, variant="winograd")
    other.store.add_failure(other.failure("d"))
    return one, other


def test_merging_brings_everything_over(two):
    one, other = two
    done = merge(one.store, other.path)
    assert done == Transferred(systems=1, stacks=1, runs=1, measurements=4, blocks=8, failures=1)
    merged, brought = content(one.store), content(other.store)
    assert merged[0].keys() == {one.system, other.system}
    for mine, theirs in zip(merged[2:4], brought[2:4], strict=True):
        assert all(value in mine for value in theirs)
    assert brought[4].items() <= merged[4].items()
    assert [m.summary.median_ns for m in one.store.measurements(keys=[one.measurement("b").key])] == [1000.0, 2000.0]


def test_the_newest_measurement_of_an_item_wins_wherever_it_comes_from(tmp_path, furnish):
    one, other = furnish(tmp_path / "one.db"), furnish(tmp_path / "other.db")
    one.measure("a", 1.0)
    other.measure("a", 2.0)
    one.measure("b", 4.0)
    one.measure("a", 3.0)
    other.measure("b", 5.0)
    merge(one.store, other.path)
    assert sorted(m.summary.median_ns for m in one.store.measurements()) == [3.0, 5.0]
    assert len(one.store.measurements(latest=False)) == 5
    assert len(one.store.systems()) == 1


def test_open_items_stay_where_they_were_begun(two, block):
    one, other = two
    made = other.measurement("z")
    other.begin(made)
    other.store.add_session((), [(made.id, block(0, 0))])
    merge(one.store, other.path)
    assert one.store.info()["counts"]["open"] == 0
    other.store.finish(made)
    assert merge(one.store, other.path) == Transferred(measurements=1, blocks=1)


def test_a_run_that_ended_meanwhile_is_completed(two):
    one, other = two
    merge(one.store, other.path)
    other.store.end_run(other.run.id, after={"load_1m": 1.0}, finished="2026-11-21T04:00:00Z")
    merge(one.store, other.path)
    assert dataclasses.replace(other.run, after={"load_1m": 1.0}, finished="2026-11-21T04:00:00Z") in one.store.runs()


def test_a_database_cannot_be_merged_into_itself(two, tmp_path):
    one, _ = two
    (tmp_path / "link.db").symlink_to(one.path)
    for other in (one.store, one.path, tmp_path / "link.db"):
        with pytest.raises(StoreError, match="into itself"):
            merge(one.store, other)


def test_what_cannot_be_merged_adds_nothing(two, tmp_path):
    one, other = two
    before = content(one.store)
    (tmp_path / "text.db").write_text("nothing of the kind")
    with pytest.raises(ForeignDatabase):
        merge(one.store, tmp_path / "text.db")
    other.store.close()
    for statement, kind in (
        ("UPDATE system SET memory_gib = 1", StoreError),  # passes one machine off as another
        ("UPDATE dlbricks_revision SET version_num = ''", OlderDatabase),
    ):
        copy = tmp_path / "copy.db"
        shutil.copy(other.path, copy)
        raw = sqlite3.connect(copy)
        raw.execute(statement)
        raw.commit()
        raw.close()
        with pytest.raises(kind):
            merge(one.store, copy)
        assert content(one.store) == before


def test_more_rows_than_one_statement_takes(tmp_path, furnish, block):
    one, other = furnish(tmp_path / "one.db"), furnish(tmp_path / "other.db")
    made = [(other.measurement(i), (block(0, 0), block(1, 0))) for i in range(1300)]
    other.store.add(made)
    one.store.add((one.measurement(i), ()) for i in range(0, 1300, 2))
    assert merge(one.store, other.path) == Transferred(runs=1, measurements=1300, blocks=2600)
    assert len(one.store.measurements(latest=False)) == 1950
    assert len(one.store.measurements()) == 1300
    assert merge(one.store, other.path) == Transferred()


_MEASURED = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcd"), st.booleans()), max_size=12)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(measured=_MEASURED, order=st.permutations([0, 1, 2, 0, 1]))
def test_three_machines_in_any_order_and_repetition(tmp_path_factory, furnish, measured, order):
    folder = tmp_path_factory.mktemp("three")
    machines = [
        furnish(folder / f"{i}.db", system=dataclasses.replace(OTHER_SYSTEM, memory_gib=i // 2)) for i in range(3)
    ]
    for machine, name, failed in measured:
        bench = machines[machine]
        if failed:
            bench.store.add_failure(bench.failure(name))
        else:
            bench.measure(name)
    with Store.open(folder / "a.db") as a, Store.open(folder / "b.db") as b:
        for i in order:
            merge(a, machines[i].path)
        for i in (0, 1, 2):
            merge(b, machines[i].path)
        assert content(a) == content(b)
        assert len(a.measurements(latest=False)) == sum(not failed for *_, failed in measured)
    for machine in machines:
        machine.store.close()


def test_merging_twice_adds_nothing(two):
    one, other = two
    merge(one.store, other.path)
    before = content(one.store)
    assert merge(one.store, other.path) == Transferred()
    assert content(one.store) == before
