"""Estimates at sizes that were not measured: read between sizes that were, marked, and never beyond them."""

from __future__ import annotations

import dataclasses

import pytest
from dlbricks.analyzer.estimation.interpolation import estimate_between
from dlbricks.analyzer.report.answers.estimates import estimate_record, estimates_answer
from dlbricks.db import Conditions
from dlbricks.models import ModelSource
from lab import STACK

OPEN = """
<ir_version: 8, opset_import: ["" : 17]>
open (float[batch, seq, 8] x) => (float[batch, seq, 8] y) {
    a = Relu(x)
    y = Sigmoid(a)
}
"""


def at(source: ModelSource, **dims: int) -> ModelSource:
    ends = "".join(f"@{name}={size}" for name, size in dims.items())
    return dataclasses.replace(source, name=f"{source.name}{ends}", dims=tuple(dims.items()))


def ms(size: int) -> float:
    """Latency of each of the two bricks."""
    return 1.0 + 0.01 * size


@pytest.fixture
def measured(lab, keys_of):
    """The model with bricks at some sizes."""
    source = lab.source(OPEN)
    for size in (128, 256, 512, 1024):
        lab.put((key, ms(size)) for key in keys_of(at(source, seq=size)))
    return lab, source


def test_what_lies_between_measured_sizes_is_read_there(measured):
    lab, source = measured

    (entry,) = estimate_between([at(source, seq=300)], store=lab.store)

    assert entry.estimate_ms == pytest.approx(2 * ms(300), rel=1e-3)
    assert entry.sequential_ms == pytest.approx(2 * ms(300), rel=1e-3)
    found = entry.interpolated
    assert (found.dimension, found.between, found.measured) == ("seq", (256, 512), (128, 256, 512, 1024))
    assert [one.length for one in found.left_out] == [256, 512]
    low, high = entry.ci95_ms
    assert low < 2 * ms(300) < high
    assert not entry.complete  # nothing of it is measured, and it says so
    assert entry.coverage.sequences == 0
    record = estimate_record(entry)
    assert record["interpolated"]["between"] == (256, 512)
    assert "interpolated between seq=256 and 512" in "\n".join(estimates_answer([entry]).summary)


def test_what_is_measured_stays_as_it_is_and_counts(measured):
    lab, source = measured
    lab.put((part.key, ms(400)) for part in estimate_between([at(source, seq=400)], store=lab.store)[0].sequences)

    known, between = estimate_between([at(source, seq=400), at(source, seq=300)], store=lab.store)

    assert known.interpolated is None
    assert known.estimate_ms == 2 * ms(400)
    assert between.interpolated.between == (256, 400)  # sizes that were asked for are looked at too
    assert between.interpolated.measured == (128, 256, 400, 512, 1024)


@pytest.mark.parametrize("change", ["stack", "cache", "threads"])
def test_other_sizes_are_of_the_combination_that_the_model_is_in_part_measured_under(measured, keys_of, change):
    lab, source = measured
    wanted = at(source, seq=300)
    lab.put([(keys_of(wanted)[0], ms(300))])
    other = dataclasses.replace(STACK, versions=(("onnxruntime", "1.30.0"),))
    lab.store.put_stack(other)
    changes = {
        "stack": {"stack": other.key},
        "cache": {"conditions": Conditions(1, "cold")},
        "threads": {"conditions": Conditions(2)},
    }[change]
    for size in (256, 512):
        lab.put(((key, 9.0) for key in keys_of(at(source, seq=size))), **changes)

    (entry,) = estimate_between([wanted], store=lab.store)

    assert entry.estimate_ms == pytest.approx(2 * ms(300), rel=1e-3)
    assert (entry.stack, entry.threads, entry.coverage.sequences) == (STACK.key, 1, 0.5)


@pytest.mark.parametrize(("size", "near"), [(100, "128, 256, 512"), (2000, "256, 512, 1024")])
def test_nothing_is_extrapolated(measured, size, near):
    lab, source = measured

    (entry,) = estimate_between([at(source, seq=size)], store=lab.store)

    assert (entry.estimate_ms, entry.interpolated) == (None, None)
    assert entry.interpolation_reason == f"seq={size} does not lie between sizes that are measured ({near})"
    assert "nothing is extrapolated" in "\n".join(estimates_answer([entry]).summary)


def test_a_batch_is_a_size_and_without_any_there_is_nothing_to_vary(lab, keys_of):
    source = dataclasses.replace(lab.source(OPEN), dims=(("seq", 8),))
    for batch in (2, 8):
        lab.put((key, ms(batch)) for key in keys_of(dataclasses.replace(source, batch=batch)))
    single = dataclasses.replace(source, name="single", batch=4, dims=())

    (entry,) = estimate_between([dataclasses.replace(source, name="model@b4", batch=4)], store=lab.store)
    assert entry.interpolated is None  # two sizes are given, and nothing says which of them varies

    models = [dataclasses.replace(source, name=f"model@b{batch}", batch=batch) for batch in (2, 4, 8)]
    _, entry, _ = estimate_between(models, store=lab.store)
    assert (entry.interpolated.dimension, entry.interpolated.between) == ("batch", (2, 8))
    assert entry.ci95_ms is None  # of two sizes none can be left out
    assert estimate_between([single], store=lab.store)[0].interpolated is None
