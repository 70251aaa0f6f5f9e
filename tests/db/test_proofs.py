"""Proofs in the store: one row per model, carried by merge and export, and added to older databases."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from dlbricks.db import Proofs, Store, Subject, Transferred, export, merge, schema, upgrade
from dlbricks.errors import StoreError

PROOFS = Proofs("c" * 64, 1, ({"kind": "threads", "proof": {"before_ms": 2.5}},), ("rewrites",))


def identity_of(bench, name="m"):
    return replace(bench.identity(name), subject=Subject.MODEL)


def older(bench) -> None:
    """Turn a database into one of the revision before proofs."""
    bench.store.close()
    with closing(sqlite3.connect(bench.path)) as raw:
        raw.executescript("DROP TABLE proof; UPDATE dlbricks_revision SET version_num = '0006'")


def test_proofs_come_back_as_they_were_stored_and_the_latest_stay(bench):
    identity, fewer = identity_of(bench), replace(PROOFS, findings=(), untried=())
    assert bench.store.proofs(identity) is None
    for proofs in (PROOFS, fewer):
        bench.store.put_proofs(identity, proofs)
        assert bench.store.proofs(identity) == proofs
    assert bench.store.proofs(replace(identity, key="0" * 64)) is None
    assert bench.store.info()["counts"]["proofs"] == 1
    assert bench.store.combinations() == []


def test_merging_brings_proofs_and_the_later_ones_stay(tmp_path, furnish):
    one, other = furnish(tmp_path / "one.db"), furnish(tmp_path / "other.db")
    identity, later = identity_of(one), replace(PROOFS, untried=())
    one.store.put_proofs(identity, PROOFS)
    other.store.put_proofs(identity, later)
    assert merge(one.store, other.path) == Transferred(runs=1, proofs=1)
    assert merge(one.store, other.path) == Transferred()
    assert one.store.proofs(identity) == later
    assert merge(other.store, one.path, node="nobody").proofs == 0


def test_proofs_leave_with_an_export_but_not_with_measurements_only(bench, tmp_path):
    identity = identity_of(bench)
    bench.store.put_proofs(identity, PROOFS)
    export(bench.store, tmp_path / "all.db")
    export(bench.store, tmp_path / "public.db", measurements_only=True)
    for name, proofs in (("all.db", PROOFS), ("public.db", None)):
        with Store.open(tmp_path / name, read_only=True) as copy:
            assert copy.proofs(identity) == proofs


@pytest.mark.sqlite
@pytest.mark.parametrize("change", ["findings = '7'", "untried = '[1]'", "form = 'new'", "contents = x'00'"])
def test_proofs_that_are_none_are_reported(bench, tmp_path, furnish, change):
    bench.store.put_proofs(identity_of(bench), PROOFS)
    bench.store.close()
    with closing(sqlite3.connect(bench.path)) as raw:
        raw.executescript(f"UPDATE proof SET {change}")
    with Store.open(bench.path, read_only=True) as store, pytest.raises(StoreError, match="did not write"):
        store.proofs(identity_of(bench))
    ours = furnish(tmp_path / "target.db")
    with pytest.raises(StoreError, match="did not write"):
        merge(ours.store, bench.path)


@pytest.mark.sqlite
def test_an_older_database_is_read_as_it_is_and_extended_where_it_is_written(bench, tmp_path, furnish):
    measured, identity = bench.measure("a"), identity_of(bench)
    older(bench)
    with Store.open(bench.path, read_only=True) as store:
        assert store.measurements() == [measured]
        assert store.proofs(identity) is None
        assert store.info()["counts"]["proofs"] == 0
    ours = furnish(tmp_path / "target.db")
    assert merge(ours.store, bench.path).measurements == 1
    with Store.open(bench.path) as store:
        store.put_proofs(identity, PROOFS)
        assert (store.measurements(), store.proofs(identity)) == ([measured], PROOFS)


@pytest.mark.sqlite
def test_upgrade_adds_what_an_older_database_lacks(bench):
    older(bench)
    done = upgrade(bench.path)
    assert (done.before, done.after) == ("0006", schema.REVISION)
    with Store.open(bench.path, read_only=True) as store:
        assert store.proofs(identity_of(bench)) is None
    assert upgrade(bench.path).before == schema.REVISION
