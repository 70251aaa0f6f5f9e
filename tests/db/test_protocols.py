"""What earlier versions measured: upgraded and readable, it neither answers nor blocks what is measured now."""

from __future__ import annotations

import dataclasses
import sqlite3

import pytest
from alembic import command
from dlbricks.db import Block, Conditions, Stop, Store, Subject, export, frame, merge, schema, upgrade
from dlbricks.db.decompositions import keep_records, kept_records
from dlbricks.db.filter import Filter
from dlbricks.db.identity import Identity
from dlbricks.db.place import Place, engine
from dlbricks.db.store import Opened
from dlbricks.db.upgrading import migration_config
from dlbricks.db.values import PROTOCOL, Kernel, KernelView
from dlbricks.errors import OlderDatabase, StoreError

RECORD = {"key": "k", "layers": [1, 2]}


def as_taken_then(measurement, **changes):
    """As a version before the second protocol would have stored it."""
    unknown = {"footprint_bytes": None, "undisturbed_ns": None, "quiet": None}
    return dataclasses.replace(
        measurement, protocol=1, stop=Stop.CONVERGED, reference_ns=2200.0, **{**unknown, **changes}
    )


def without_visits(block):
    return dataclasses.replace(block, visits=())


@pytest.fixture
def old(bench, old_database, block, tmp_path):
    """Makes a database of an earlier revision, with a finished measurement and an open one; returns what is in it."""

    def make(revision):
        done, left = as_taken_then(bench.measurement("done")), as_taken_then(bench.measurement("left"))
        blocks = [without_visits(block(0, 0)), without_visits(block(0, 1))]
        path = old_database(tmp_path / f"{revision}.db", revision, done, left, blocks)
        return path, done, left, blocks

    return make


@pytest.mark.parametrize("revision", schema.REVISIONS[:-1])
def test_a_database_of_every_revision_is_upgraded_and_stays_readable(old, bench, revision):
    path, done, left, blocks = old(revision)
    with pytest.raises(OlderDatabase, match="dlbricks db upgrade"):
        Store.open(path)

    done_now = upgrade(path)

    assert (done_now.before, done_now.after) == (revision, schema.REVISIONS[-1])
    with Store.open(path) as store:
        assert store.measurements(protocol=None) == store.measurements(protocol=1) == [done]
        assert store.blocks_of([done.id, left.id]) == {done.id: blocks, left.id: blocks}
        assert store.info()["counts"] | {"kernel_views": 0} == {
            "systems": 1, "stacks": 1, "runs": 1, "bricks": 1, "models": 0, "measurements": 1, "open": 1, "blocks": 4,
            "failures": 0, "kernel_views": 0,
        }  # fmt: skip
        (row,) = frame(store).to_dict("records")
        assert (row["id"], row["protocol"], row["reference_ns"]) == (done.id, 1, 2200.0)
        view = KernelView((Kernel("Conv", "Conv", "cpu", 1, 5),), 7, 3, "a test")
        store.put_kernels(Identity.of(done), view)
        assert store.kernels(Filter()) == {Identity.of(done): view}
        keep_records(store, "5" * 64, {"6" * 64: RECORD}, "1")
        assert kept_records(store, "5" * 64, ["6" * 64], "1") == {"6" * 64: RECORD}
    made = engine(Place.of(path))
    with made.connect() as connection:
        command.check(migration_config(connection))  # the tables are those of a new database
    made.dispose()
    with Store.open(path) as store:  # and more can be measured there
        assert store.add([(dataclasses.replace(done, id=left.id[::-1], protocol=PROTOCOL), blocks)]) == 1


@pytest.fixture
def upgraded(old):
    path, done, left, blocks = old("0002")
    upgrade(path)
    with Store.open(path) as store:
        yield store, done, left, blocks


def test_what_was_taken_otherwise_answers_nothing(upgraded):
    store, done, *_ = upgraded

    assert store.measurements() == store.measurements(latest=False) == []
    assert store.contenders(subject=Subject.BRICK, keys=[done.key], variant=None) == {}
    assert store.measured_keys(done.system, done.stack, done.conditions, Subject.BRICK) == set()
    assert store.combinations() == []


def test_what_was_taken_otherwise_hides_nothing_that_is_measured_now(upgraded, bench):
    store, done, *_ = upgraded
    now = dataclasses.replace(bench.measurement("done"), run=done.run, protocol=PROTOCOL)
    store.add([(now, ())])
    later = as_taken_then(bench.measurement("done", 1.0), run=done.run)
    store.add([(later, ())])

    assert store.measurements() == [now]
    assert store.measurements(protocol=1) == [later]
    assert store.measurements(protocol=None, latest=False) == [done, now, later]
    assert store.measured_keys(done.system, done.stack, done.conditions, Subject.BRICK) == {done.key}
    ((fastest,),) = store.contenders(subject=Subject.BRICK, keys=[done.key], variant=None).values()
    assert fastest.latency_ns == now.latency_ns


def test_what_was_left_open_says_by_which_protocol(upgraded, bench, block):
    store, done, left, blocks = upgraded

    (entry,) = store.left_open(done.system, done.stack, done.conditions)

    assert (entry.key, entry.run, entry.process, entry.protocol) == (left.key, left.run, 0, 1)
    found = store.open_item(left.subject, left.key, left.system, left.stack, left.conditions)
    assert found == (left.id, left.unroll, blocks)
    anew = dataclasses.replace(bench.measurement("left"), run=left.run)
    begun = Opened(anew.id, anew.run, Identity.of(anew), anew.unroll)
    with pytest.raises(StoreError, match="open already"):
        store.add_session([begun], [(anew.id, block(0, 0))])
    store.finish(left)  # as a measurement of its own protocol
    store.add_session([begun], [(anew.id, block(0, 0))])
    assert store.measurements(protocol=1) == sorted((done, left), key=lambda one: one.key)
    (entry,) = store.left_open(done.system, done.stack, done.conditions)
    assert (entry.key, entry.protocol) == (anew.key, PROTOCOL)


def test_both_protocols_travel_and_stay_what_they_are(upgraded, bench, block, tmp_path):
    store, done, _, blocks = upgraded
    made = bench.measure("new")
    bench.measure("secret", subject=Subject.MODEL)
    keep_records(bench.store, "5" * 64, {"6" * 64: RECORD}, "1")

    merge(bench.store, store)
    export(bench.store, tmp_path / "out.db", measurements_only=True)

    raw = sqlite3.connect(tmp_path / "out.db")
    assert [raw.execute(f"SELECT count(*) FROM {name}").fetchone() for name in ("decomposition", "model_file")] == [
        (0,),
        (0,),
    ]
    raw.close()
    with Store.open(tmp_path / "home.db") as home:
        merge(home, tmp_path / "out.db")
        assert home.measurements() == [made]
        assert home.measurements(protocol=None) == sorted((done, made), key=lambda one: one.key)
        assert home.blocks_of([done.id, made.id]) == {done.id: blocks, made.id: [block(0, 0), block(0, 1)]}
        assert kept_records(home, "5" * 64, ["6" * 64], "1") == {}


@pytest.mark.sqlite
@pytest.mark.parametrize("damage", [b"\0" * 23, b"", "text", 7], ids=["cut off", "empty", "text", "number"])
@pytest.mark.parametrize("column", ["data", "visits"])
def test_blocks_that_were_damaged_are_refused_where_they_are_read(bench, column, damage):
    made = bench.measure("a")
    bench.store.close()
    raw = sqlite3.connect(bench.path)
    raw.execute(f"UPDATE block SET {column} = ? WHERE round = 1", (damage,))
    raw.commit()
    raw.close()
    with Store.open(bench.path) as store:
        assert store.measurements() == [made]
        with pytest.raises(StoreError, match="restore a copy"):
            store.blocks(made.id)


def test_conditions_of_reuse_levels_stay_apart_from_those_of_footprint_classes(upgraded, bench):
    store, done, *_ = upgraded
    then = as_taken_then(bench.measurement("done"), run=done.run, conditions=Conditions(1, "64MiB"))
    store.add([(then, [Block(0, 0, ((1, 1),))])])

    assert store.combinations() == []
    assert {one.conditions.cache for one in store.measurements(protocol=None)} == {"hot", "64MiB"}
