"""Measurements are compared by the reference network; the overhead network beside it must not be taken for it."""

from __future__ import annotations

import hashlib

from dlbricks.db.values import Subject
from dlbricks.generator.measurement.run import run
from dlbricks.generator.network.reference import REFERENCE, built_in


def test_every_measurement_carries_the_latency_of_the_reference_network(small_suite, store):
    run(small_suite, store=store, item_budget_s=0.02, processes=2, rounds=2)

    key = hashlib.sha256(built_in(REFERENCE).SerializeToString(deterministic=True)).hexdigest()
    (reference,) = store.measurements(subject=Subject.REFERENCE, keys=[key])
    low, high = min(reference.block_medians_ns), max(reference.block_medians_ns)
    found = store.measurements(subject=Subject.BRICK)
    assert found
    assert all(low <= entry.reference_ns <= high for entry in found)
