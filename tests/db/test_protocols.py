"""Rows of different protocols are never combined; blocks that were damaged are refused where they are read."""

from __future__ import annotations

import dataclasses

from dlbricks.db import Subject
from dlbricks.db.store import OpenedMeasurement
from dlbricks.db.values import PROTOCOL


def test_what_was_taken_otherwise_answers_nothing_and_hides_nothing(bench):
    store = bench.store
    before = dataclasses.replace(bench.measurement("a"), protocol=PROTOCOL - 1)
    store.add([(before, ())])

    assert store.measurements() == store.measurements(latest=False) == []
    assert store.contenders(subject=Subject.BRICK, keys=[before.key], variant=None) == {}
    assert store.measured_keys(before.system, before.stack, before.conditions, Subject.BRICK) == set()
    assert store.combinations() == []

    now = bench.measurement("a")
    later = dataclasses.replace(bench.measurement("a", 1.0), protocol=PROTOCOL - 1)
    store.add([(now, ()), (later, ())])

    assert store.measurements() == [now]
    assert store.measurements(protocol=PROTOCOL - 1) == [later]
    ((fastest,),) = store.contenders(subject=Subject.BRICK, keys=[now.key], variant=None).values()
    assert fastest.latency_ns == now.latency_ns


def test_what_was_left_open_says_by_which_protocol(bench, block):
    left = bench.measurement("left")
    bench.store.add_session(
        [OpenedMeasurement(left.id, left.run, left.identity, left.unroll)], [(left.id, block(0, 0))]
    )

    (entry,) = bench.store.left_open(left.system, left.stack, left.conditions)

    assert (entry.identity.key, entry.run, entry.process, entry.protocol) == (left.key, left.run, 0, PROTOCOL)
