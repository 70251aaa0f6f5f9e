"""Ground truth of whole models."""

from __future__ import annotations

from datetime import UTC, datetime

import onnx
import pytest
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.db.values import Subject
from dlbricks.errors import UsageError
from dlbricks.generator.backends.registry import get
from dlbricks.generator.backends.requirements import in_turn
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from dlbricks.models import find_models

QUICK = {"visits": 12}


def test_each_model_has_a_row(small_models, store, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"\x00")
    models = [*small_models, *find_models([tmp_path / "broken.onnx"])]

    report = measure(models, store=store, **QUICK)

    good, broken = report.rows
    assert good.name == small_models[0].name
    assert good.error is None
    assert good.backend == "onnxruntime"
    assert good.ci95_ms[0] <= good.latency_ms <= good.ci95_ms[1]
    assert good.p90_ms <= good.p99_ms
    assert good.load_ms > 0
    assert good.first_run_ms > 0
    assert good.verdict in {"stable", "noisy", "unstable"}
    assert "broken.onnx" in broken.error
    assert broken.latency_ms is None


def test_what_is_measured_is_the_ground_truth_of_the_model(small_models, store):
    report = measure(small_models, store=store, **QUICK)

    key = build_graph(small_models[0].skeleton()).key
    (stored,) = store.measurements(subject=Subject.MODEL)
    assert stored.key == key == report.rows[0].key
    assert stored.latency_ns == pytest.approx(report.rows[0].latency_ms * 1e6)
    assert stored.undisturbed_ns == pytest.approx(report.rows[0].undisturbed_ms * 1e6)
    assert stored.unroll == 1
    assert stored.summary.samples == 12


def test_models_that_were_measured_since_a_time_are_answered_from_the_store(small_models, store):
    begun = datetime.now(UTC)
    first = measure(small_models, store=store, **QUICK)
    now = datetime.now(UTC)

    known = measure(small_models, store=store, since=begun, **QUICK)
    anew = measure(small_models, store=store, since=now, **QUICK)

    assert known.rows == first.rows
    assert known.run is None
    assert anew.run is not None
    assert len(store.measurements(subject=Subject.MODEL, latest=False)) == 2


@pytest.mark.slow  # what is compiled takes its time
def test_a_backend_that_runs_nothing_in_turn_measures_models_in_the_default_cache_state(
    small_models, small_suite, store
):
    pytest.importorskip("torch")
    options = {"mode": "compile"}
    assert not in_turn(get("torch"), get("torch").resolve("cpu", options))

    report = measure(small_models, store=store, backend="torch", options=options, **{**QUICK, "processes": 1})

    assert [row.error for row in report.rows] == [None]
    (stored,) = store.measurements(subject=Subject.MODEL)
    assert stored.conditions.cache == "model"
    with pytest.raises(UsageError, match="cannot measure in cache mode 'model'"):
        run(small_suite, store=store, backend="torch", options=options)


def test_measuring_again_measures_again(small_models, store):
    first = measure(small_models, store=store, **QUICK)
    second = measure(small_models, store=store, **QUICK)

    assert first.run != second.run
    assert len(store.measurements(subject=Subject.MODEL, latest=False)) == 2


def test_a_zoo_model_is_measured_with_synthetic_weights(store):
    report = measure(find_models(["squeezenet"]), store=store, **QUICK)

    assert report.rows[0].error is None
    assert report.rows[0].latency_ms > 0.1


def test_the_batch_is_part_of_the_model(store, tmp_path, model_file):
    path = model_file(tmp_path / "mlp.onnx", "(float[N,64] x) => (float[N,32] y) {y = MatMul(x, w)}", {"w": (64, 32)})

    report = measure(find_models([path], batches=[1, 64]), store=store, **QUICK)

    assert [row.error for row in report.rows] == [None, None]
    assert report.rows[0].key != report.rows[1].key
    assert len(store.measurements(subject=Subject.MODEL)) == 2


def test_a_model_that_cannot_run_is_a_row_with_its_error(store, tmp_path, model_file):
    """Valid ONNX, but with an operator that the runtime does not know."""
    path = model_file(tmp_path / "foreign.onnx", "(float[4] x) => (float[4] y) {z = Abs(x) y = Neg(z)}", {})
    model = onnx.load(path)
    model.graph.node[0].op_type = "NoSuchOperator"
    model.graph.node[0].domain = "no.such.domain"
    model.opset_import.add(domain="no.such.domain", version=1)
    onnx.save(model, path)

    report = measure(find_models([path]), store=store, **QUICK)

    assert "NoSuchOperator" in report.rows[0].error or "no.such.domain" in report.rows[0].error
    assert report.rows[0].latency_ms is None


def test_no_models_are_no_rows(store):
    assert measure([], store=store).rows == ()
