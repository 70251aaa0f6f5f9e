"""Estimates at sizes that were not measured: read between sizes that were, marked, and never beyond them."""

from __future__ import annotations

import dataclasses
import uuid

import numpy as np
import onnx
import pytest
from dlbricks.analyzer.estimation.estimate import estimate_between
from dlbricks.analyzer.estimation.estimates import Estimates, estimate_record
from dlbricks.analyzer.report.answers.estimated import estimates_answer
from dlbricks.bricks.graph.footprint import CORE_LEVEL, level_name
from dlbricks.db import Conditions, Run, Subject
from dlbricks.generator.backends.registry import get
from dlbricks.generator.machine.system import probe_system
from dlbricks.models import ModelSource, find_models
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

    assert entry.latency.ms == pytest.approx(2 * ms(300), rel=1e-3)
    assert entry.sums.sequential_ms == pytest.approx(2 * ms(300), rel=1e-3)
    found = entry.parts.interpolated
    assert (found.dimension, found.between, found.measured) == ("seq", (256, 512), (128, 256, 512, 1024))
    assert [one.length for one in found.left_out] == [256, 512]
    low, high = entry.latency.ci95_ms
    assert low < 2 * ms(300) < high
    assert not entry.complete  # nothing of it is measured, and it says so
    assert entry.parts.coverage.sequences == 0
    assert (found.bricks, found.share, entry.sums.known_ms) == (2, 1.0, 0.0)
    assert all(part.interpolated and part.verdict is None for part in entry.parts.sequences)
    assert entry.sums.critical_path_ms == entry.sums.sequential_ms  # composed as always: it is a chain
    record = estimate_record(entry)
    assert record["interpolated"]["between"] == (256, 512)
    summary = "\n".join(estimates_answer(Estimates((entry,))).summary)
    assert "100% of it is interpolated between seq=256 and 512, 2 of 2 bricks" in summary


def test_an_interpolated_estimate_stands_beside_the_model_where_that_is_measured(measured, graph_of):
    lab, source = measured
    wanted = at(source, seq=300)
    lab.put([(graph_of(wanted).key, 8.0)], subject=Subject.MODEL)

    (entry,) = estimate_between([wanted], store=lab.store)

    assert (entry.truth.ms, entry.truth.paired) == (8.0, False)
    assert entry.truth.ratio == pytest.approx(2 * ms(300) / 8.0, rel=1e-3)
    low, high = entry.truth.ratio_ci95
    assert low < entry.truth.ratio < high


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

    assert entry.latency.ms == pytest.approx(2 * ms(300), rel=1e-3)
    assert (entry.place.stack, entry.place.threads, entry.parts.coverage.sequences) == (STACK.key, 1, 0.5)


def test_sizes_that_were_asked_for_suffice_where_enough_of_them_are_measured(measured):
    lab, source = measured
    models = [at(source, seq=size) for size in (128, 256, 300, 512)]

    found = estimate_between(models, store=lab.store).rows

    assert found[2].parts.interpolated.measured == (128, 256, 512)  # 1024 is looked at where there are fewer


def test_a_batch_is_a_size_and_without_any_there_is_nothing_to_vary(lab, keys_of):
    source = dataclasses.replace(lab.source(OPEN), dims=(("seq", 8),))
    for batch in (2, 8):
        lab.put((key, ms(batch)) for key in keys_of(dataclasses.replace(source, batch=batch)))
    single = dataclasses.replace(source, name="single", batch=4, dims=())

    (entry,) = estimate_between([dataclasses.replace(source, name="model@b4", batch=4)], store=lab.store)
    assert entry.parts.interpolated is None  # two sizes are given, and nothing says which of them varies

    models = [dataclasses.replace(source, name=f"model@b{batch}", batch=batch) for batch in (2, 4, 8)]
    _, entry, _ = estimate_between(models, store=lab.store)
    assert (entry.parts.interpolated.dimension, entry.parts.interpolated.between) == ("batch", (2, 8))
    assert entry.latency.ci95_ms is None  # of two sizes none can be left out
    assert estimate_between([single], store=lab.store).rows[0].parts.interpolated is None


# ONNX Runtime fuses the sum and both activations into convolutions, and changes the layout behind them.
FUSED = """
<ir_version: 8, opset_import: ["" : 17]>
fused (float[n, 3, 16, 16] x) => (float[n, 10] y) {
    a = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w1)
    b = Relu(a)
    c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(b, w2)
    d = Add(c, b)
    s = Sigmoid(d)
    t = Transpose<perm=[0, 2, 3, 1]>(s)
    u = ReduceMean<axes=[1, 2], keepdims=0>(t)
    y = MatMul(u, w3)
}
"""
HOT = Conditions(1, "hot")


@pytest.fixture
def home(lab):
    """The lab, on this machine and with the stack that is installed here."""
    lab.system, lab.stack, lab.conditions = probe_system(), get("onnxruntime").stack("cpu", {}), HOT
    lab.store.put_system(lab.system)
    lab.store.put_stack(lab.stack)
    lab.run = str(uuid.uuid4())
    lab.store.begin_run(Run(lab.run, "2026-11-23T00:00:00Z", "0", "run", None, lab.system.key, lab.stack.key))
    return lab


@pytest.fixture
def batches(home):
    """A model with weights at some batches; nothing of it is measured."""
    made = onnx.parser.parse_model(FUSED)
    for name, shape in {"w1": (16, 3, 3, 3), "w2": (16, 16, 3, 3), "w3": (16, 10)}.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.full(shape, 0.1, np.float32), name))
    onnx.save(made, home.folder / "fused.onnx")
    return find_models([home.folder / "fused.onnx"], batches=[1, 2, 3, 4, 8])


def filled(lab, batches, graph, **changes):
    """Each brick of all batches but 3 takes as long as there are samples, and its place; how many there are at 3."""
    found = estimate_between(batches, store=lab.store, graph=graph).rows
    for entry in found:
        if entry.model.source.batch != 3:
            places = {part.key: place for place, part in enumerate(entry.parts.sequences)}
            lab.put(((key, entry.model.source.batch + 0.1 * place) for key, place in places.items()), **changes)
    return [0.1 * place for place, _ in enumerate(found[2].parts.sequences)]


@pytest.mark.parametrize("graph", ["source", "fused", "runtime"])
def test_what_the_runtime_executes_is_read_between_batches(home, batches, graph):
    """Bricks of layers, of fusions, and of nodes with a layout change among them that stands for no layer."""
    places = filled(home, batches, graph)

    entry = estimate_between(batches, store=home.store, graph=graph).rows[2]

    assert entry.parts.interpolated.measured == (1, 2, 4, 8)
    assert entry.parts.interpolated.bricks == len(places)
    assert entry.sums.sequential_ms == pytest.approx(sum(3 + place for place in places))
    operators = [part.op_types for part in entry.parts.sequences]
    assert (("ReorderOutput",) in operators) == (graph == "runtime")


def test_where_the_executed_graph_is_known_at_other_sizes_it_is_read_too_and_is_the_basis(home, batches):
    level = level_name(CORE_LEVEL)
    inside = filled(home, batches, "runtime", conditions=Conditions(1, level))
    layers = filled(home, batches, "source")

    known, between = estimate_between(batches, store=home.store, cache="hot").rows[1:3]

    assert known.latency.ms == pytest.approx(sum(2 + place for place in inside))
    assert between.latency.ms == pytest.approx(sum(3 + place for place in inside))
    assert between.sums.sequential_ms == pytest.approx(sum(3 + place for place in layers))
    assert between.parts.interpolated.bricks == len(inside) + len(layers)
    assert [one.ms for one in between.parts.interpolated.left_out] == pytest.approx(
        [sum(size + place for place in inside) for size in (2, 4)]
    )


@pytest.mark.parametrize(("size", "near"), [(100, "128, 256, 512"), (2000, "256, 512, 1024")])
def test_nothing_is_extrapolated(measured, size, near):
    lab, source = measured

    (entry,) = estimate_between([at(source, seq=size)], store=lab.store)

    assert (entry.latency.ms, entry.parts.interpolated) == (None, None)
    assert entry.parts.interpolation_reason == f"seq={size} does not lie between sizes that are measured ({near})"
    assert "nothing is extrapolated" in "\n".join(estimates_answer(Estimates((entry,))).summary)


def test_a_layer_that_cannot_be_a_brick_is_not_made_up_for(lab, keys_of):
    text = OPEN.replace("float[batch, seq, 8] y)", "float[batch, seq, 8] y, float[n, m] z)")
    text = text.replace('["" : 17]', '["" : 17, "strange" : 1]')
    source = lab.source(text.replace("y = Sigmoid(a)", "y = Sigmoid(a) z = strange.Thing(a)"))
    for size in (256, 512):
        lab.put((key, ms(size)) for key in keys_of(at(source, seq=size)))

    (entry,) = estimate_between([at(source, seq=300)], store=lab.store)

    assert (entry.latency.ms, entry.parts.interpolated) == (None, None)
    assert "cannot be a brick" in entry.parts.missing[-1].reason


def test_what_is_measured_stays_as_it_is_and_counts(measured):
    lab, source = measured
    lab.put(
        (part.key, ms(400)) for part in estimate_between([at(source, seq=400)], store=lab.store).rows[0].parts.sequences
    )

    known, between = estimate_between([at(source, seq=400), at(source, seq=300)], store=lab.store)

    assert known.parts.interpolated is None
    assert known.latency.ms == 2 * ms(400)
    assert between.parts.interpolated.between == (256, 400)  # sizes that were asked for are looked at too
    assert between.parts.interpolated.measured == (128, 256, 400, 512, 1024)
