"""Kernel views in the store: one per item, carried by merge and export."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest
from dlbricks.db import Kernel, KernelView, Store, Subject, Transferred, export, merge
from dlbricks.db.queries import Filter
from dlbricks.errors import StoreError

VIEW = KernelView(
    kernels=(
        Kernel("aten::mkldnn_convolution", "aten::conv2d", "cpu", 2, 52_000),
        Kernel("aten::clamp_min", "aten::relu", "cpu", 1, None),
    ),
    wall_ns=61_000,
    executions=5,
    source="torch.profiler",
)


def identity_of(bench, name="a", **changes):
    return bench.measurement(name, **changes).identity


def test_a_view_comes_back_as_it_was_stored(bench):
    identity = identity_of(bench)
    bench.store.put_kernels(identity, VIEW)
    assert bench.store.kernels(Filter()) == {identity: VIEW}
    assert bench.store.info()["counts"]["kernel_views"] == 1


def test_a_view_alone_is_no_measurement(bench):
    bench.store.put_kernels(identity_of(bench), VIEW)
    assert bench.store.measurements(variant=None) == []
    assert bench.store.failures(variant=None) == []
    assert bench.store.combinations() == []


def test_the_latest_view_of_an_item_stays(bench):
    identity = identity_of(bench)
    later = replace(VIEW, wall_ns=59_000)
    bench.store.put_kernels(identity, VIEW)
    bench.store.put_kernels(identity, later)
    assert bench.store.kernels(Filter()) == {identity: later}


def test_views_are_found_by_what_they_are_of(bench):
    one, other = identity_of(bench), identity_of(bench, "b")
    packed = replace(one, variant="packed")
    model = replace(one, subject=Subject.MODEL)
    for identity in (one, other, packed, model):
        bench.store.put_kernels(identity, VIEW)

    def found(**wanted):
        return set(bench.store.kernels(Filter(**wanted)))

    assert found() == {one, other, model}  # variants only where they are asked for
    assert found(variant="packed") == {packed}
    assert found(subject=Subject.BRICK, keys=[one.key]) == {one}
    assert found(stack="f" * 64) == set()
    assert found(conditions=replace(bench.conditions, threads=9)) == set()


def test_views_of_an_unknown_stack_are_refused(bench):
    with pytest.raises(StoreError, match="not stored"):
        bench.store.put_kernels(replace(identity_of(bench), stack="f" * 64), VIEW)


@pytest.mark.sqlite
@pytest.mark.parametrize("kernels", ['[["Conv"]]', '{"a": 1}', '[["Conv", "Conv", "cpu", "often", 5]]'])
def test_a_view_that_is_none_is_reported(bench, kernels):
    bench.store.put_kernels(identity_of(bench), VIEW)
    bench.store.close()
    raw = sqlite3.connect(bench.path)
    raw.execute("UPDATE kernel_view SET kernels = ?", (kernels,))
    raw.commit()
    raw.close()
    with Store.open(bench.path) as store, pytest.raises(StoreError, match="kernel view cannot be read"):
        store.kernels(Filter())


def test_merging_brings_views_and_the_latest_stays(tmp_path, furnish):
    one, other = furnish(tmp_path / "one.db"), furnish(tmp_path / "other.db")
    identity, rare = identity_of(one), identity_of(one, "rare")
    later = replace(VIEW, wall_ns=1)
    one.store.put_kernels(identity, VIEW)
    other.store.put_kernels(identity, later)
    other.store.put_kernels(rare, VIEW)
    assert merge(one.store, other.path) == Transferred(runs=1, kernel_views=2)
    assert merge(one.store, other.path) == Transferred()
    assert one.store.kernels(Filter()) == {identity: later, rare: VIEW}
    one.store.put_kernels(rare, later)
    assert merge(one.store, other.path) == Transferred()
    assert merge(other.store, one.path).kernel_views == 1
    assert other.store.kernels(Filter()) == one.store.kernels(Filter())


def test_views_leave_with_an_export(bench, tmp_path):
    brick, model = identity_of(bench), identity_of(bench, "secret-model", subject=Subject.MODEL)
    mine = replace(VIEW, kernels=(*VIEW.kernels, Kernel("/home/ann/kernels/own", "own", "cpu", 1, 7)))
    for identity in (brick, model):
        bench.store.put_kernels(identity, mine)
    export(bench.store, tmp_path / "all.db")
    with Store.open(tmp_path / "all.db", read_only=True) as copy:
        assert copy.kernels(Filter()) == {brick: mine, model: mine}
    export(bench.store, tmp_path / "public.db", measurements_only=True)
    with Store.open(tmp_path / "public.db", read_only=True) as copy:
        ((identity, view),) = copy.kernels(Filter()).items()
    assert identity == brick
    assert view.kernels[:2] == VIEW.kernels
    assert view.kernels[2] == Kernel("(withheld)", "own", "cpu", 1, 7)
    assert b"ann" not in (tmp_path / "public.db").read_bytes()
