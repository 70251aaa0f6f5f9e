"""What a model's own values do to its latency: values found layer by layer, differences summed, stored and found."""

from __future__ import annotations

import numpy as np
import pytest
from computing import computed, settings
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.db.queries import Filter
from dlbricks.db.values import DATA, DATA_CACHE, Conditions, Run, Subject
from dlbricks.errors import UsageError
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.measurement.data_effects import data_row, effect_of, measure_data
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.network.network import file_network
from dlbricks.generator.worker.execution.layer_effects import subnormal_share, walk
from dlbricks.generator.worker.messages import LayerEffect
from dlbricks.models import find_models
from dlbricks.models.skeleton import hides_future
from working import UNPINNED, file

QUICK = {"options": UNPINNED, "processes": 2, "rounds": 2}

MASKED = (
    "(float[1,4,64,64] x, float[1,4,64,32] v) => (float[1,4,64,32] y)"
    "{a = Add(x, mask) b = Softmax<axis=-1>(a) c = MatMul(b, v) y = Tanh(c)}"
)
"""Attention with a mask of -86 in half of its columns: exp(-86) is subnormal once it is divided by a sum."""

BRANCHED = (
    "(float[4,8] x) => (float[4,8] y)"
    "{a = Relu(x) s = ReduceSum<keepdims=0>(a) t = Greater(s, zero)"
    " b = If(t)<then_branch = yes () => (float[4,8] p) {p = Mul(a, w)},"
    " else_branch = no () => (float[4,8] q) {q = Neg(a)}> y = Add(b, x)}"
)

SEQUENCED = (
    "(float[4,8] x) => (float[4,8] y) {s = SequenceConstruct(x, x) i = Relu(x) y = ConcatFromSequence<axis=0>(s)}"
)


@pytest.fixture
def masked(source):
    mask = np.zeros((1, 1, 64, 64), np.float32)
    mask[..., 32:] = -86
    return source(MASKED, {"mask": mask})


def walked(model):
    """The optimised network of a model, and the steps of a walk through it."""
    network = OrtBackend().optimised(file_network(model.path, overrides={}), settings())
    return network, walk(network, OrtBackend(), settings())


@pytest.mark.parametrize("case", ["masked", "branched"])
def test_a_walk_computes_what_the_model_does_layer_by_layer(case, source, request):
    weights = {"w": np.full((4, 8), 2, np.float32), "zero": np.zeros((), np.float32)}
    network, steps = walked(source(BRANCHED, weights) if case == "branched" else request.getfixturevalue("masked"))

    found, layers = {}, []
    for step in steps:
        found |= {name: np.array(array) for name, array in step.outputs.items()}
        layers.append((step.index, step.node.op_type))

    assert layers == list(enumerate(node.op_type for node in network.model.graph.node))
    for name, wanted in zip(network.outputs, computed(network), strict=True):
        np.testing.assert_array_equal(found[name], wanted)


def test_the_synthetic_twin_of_a_layer_has_other_values_of_the_same_types(masked):
    for step in walked(masked)[1]:
        twin = step.synthetic(seed=0)
        own = {name: (array.dtype, array.shape) for name, array in step.inputs.items()}

        assert {name: (array.dtype, array.shape) for name, array in twin.feeds.items()} == own
        assert twin.as_is
        assert subnormal_share(twin.feeds.values()) == 0


def test_the_twin_of_a_softmax_behind_a_causal_mask_reads_masked_scores_as_its_brick_does(source):
    _, steps = walked(source(MASKED, {"mask": np.triu(np.full((1, 1, 64, 64), -1e9, np.float32), 1)}))

    reads = {
        step.node.op_type: [hides_future(array) for array in step.synthetic(seed=0).feeds.values()] for step in steps
    }

    assert reads["Softmax"] == [True]
    assert not any(hides for op_type, found in reads.items() for hides in found if op_type != "Softmax")


@pytest.mark.parametrize(
    ("values", "share"),
    [
        (np.array([0.0, 1e-40, -1e-40, 1.0], np.float32), 0.5),
        (np.array([1e-40, 1e-310], np.float64), 0.5),
        (np.array([1, 0], np.int64), 0.0),
        (np.array([np.inf, np.nan, 0.0], np.float32), 0.0),
        (np.empty(0, np.float32), 0.0),
    ],
)
def test_subnormal_numbers_are_counted(values, share):
    assert subnormal_share([values]) == share


def test_the_worker_reports_which_layers_have_subnormal_numbers(masked, worker, worker_of):
    layers = worker_of(together=True).examine(file(masked.path, synthetic=False), 2, timeout_s=60)

    softmax, product, tanh = (next(one for one in layers if one.op_type == op) for op in ("Softmax", "MatMul", "Tanh"))
    assert softmax.subnormal_in == 0
    assert softmax.subnormal_out > 0.1
    assert product.subnormal_in > 0.1
    assert tanh.subnormal_in == tanh.subnormal_out == 0
    assert all(len(layer.differences_ns) == 2 for layer in layers)
    assert all(layer.own_ns > 0 and layer.synthetic_ns > 0 for layer in layers)
    with pytest.raises(UsageError, match="layer by layer"):  # only one greeted for networks in turn examines
        worker.examine(file(masked.path, synthetic=False), 1, timeout_s=60)


def contrast(differences: tuple[float, ...], *, index: int = 0, synthetic_ns: float = 1000.0) -> LayerEffect:
    return LayerEffect(index, "Softmax", 0.0, 0.25, synthetic_ns + differences[0], synthetic_ns, differences)


def summed(*processes: tuple[LayerEffect, ...]):
    run = Run("run", "2026-01-01T00:00:00+00:00", "0", "measure", None, "system", "stack")
    return effect_of(processes, "key", run, Conditions(1))


def test_the_effect_is_the_sum_over_layers_of_each_process_and_round():
    one = (contrast((100.0, 110.0)), contrast((-10.0, 0.0), index=1))
    two = (contrast((104.0, 106.0)), contrast((-4.0, 4.0), index=1))

    measurement, blocks = summed(one, two)

    assert measurement.summary.block_medians_ns == (90.0, 110.0, 100.0, 110.0)
    assert measurement.summary.median_ns == 105.0
    assert measurement.variant == DATA
    assert measurement.subject is Subject.MODEL
    assert [(block.process, block.round, block.samples) for block in blocks] == [
        (0, 0, ((90, 1),)), (0, 1, ((110, 1),)), (1, 0, ((100, 1),)), (1, 1, ((110, 1),)),
    ]  # fmt: skip


def test_one_disturbance_of_one_layer_does_not_move_the_sum():
    calm = (contrast((100.0, 101.0)), contrast((0.0, 1.0), index=1))
    disturbed = (contrast((102.0, 103.0)), contrast((5e6, -1.0), index=1))

    measurement, _ = summed(calm, disturbed, calm)

    assert measurement.summary.median_ns == pytest.approx(101.0, abs=5)
    assert measurement.ci95_ns[1] < 120


def test_layers_are_named_whose_values_matter_in_every_round():
    slow, noisy, small, light = (
        contrast((900.0, 950.0), index=0),
        contrast((900.0, -900.0), index=1),
        contrast((20.0, 30.0), index=2),
        contrast((0.5, 0.6), index=3, synthetic_ns=1.0),
    )
    processes = ((slow, noisy, small, light),) * 2
    measurement, _ = summed(*processes)

    (named,) = data_row(processes, measurement, "model").layers

    assert named.layer == 0
    assert named.factor == pytest.approx(1.925)
    assert named.effect_ms == pytest.approx(925e-6)


def test_an_effect_is_stored_found_again_and_no_ground_truth(masked, source, store, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"\x00")
    unable = [source(SEQUENCED, name="sequenced"), *find_models([tmp_path / "broken.onnx"])]

    report = measure_data([masked, *unable], store=store, **QUICK)

    row, *others = report.rows
    key = build_graph(masked.skeleton()).key
    (found,) = store.measurements(Filter(Subject.MODEL, [key], report.system, report.stack, variant=DATA))
    assert (row.error, row.key, row.examined) == (None, key, 4)
    assert found.latency_ns / 1e6 == pytest.approx(row.effect_ms)
    assert found.summary.samples == 4
    assert found.identity.conditions == Conditions(1, DATA_CACHE)
    assert [(bool(one.error), one.effect_ms) for one in others] == [(True, None)] * 2
    assert store.measurements(subject=Subject.MODEL) == []
    assert len(store.measurements(subject=Subject.MODEL, variant=DATA)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("data", [False, True])
def test_whole_models_are_measured_and_examined_in_one_call_where_it_is_asked_for(masked, store, data):
    (row,) = measure([masked], store=store, options=UNPINNED, visits=10, data=data).rows

    assert row.latency_ms > 0
    assert (row.data_effect_ms is not None, row.data_error) == (data, None)
    assert not data or row.data_ci95_ms[0] <= row.data_effect_ms <= row.data_ci95_ms[1]
    assert len(store.measurements(subject=Subject.MODEL)) == 1
    assert len(store.measurements(variant=DATA)) == data


@pytest.mark.slow
def test_a_model_of_the_zoo_is_examined_with_synthetic_weights(store):
    (row,) = measure_data(find_models(["squeezenet"]), store=store, **{**QUICK, "rounds": 1}).rows

    assert row.error is None
    assert row.examined >= 30
    assert row.ci95_ms[0] <= row.effect_ms <= row.ci95_ms[1]


def test_the_interval_of_no_effect_lies_around_zero():
    measurement, _ = summed((contrast((-3.0, 2.0)),), (contrast((1.0, -1.0)),), (contrast((2.0, -2.0)),))

    low, high = measurement.ci95_ns
    assert low < 0 < high
    assert measurement.summary.verdict == "stable"  # relative to the model
