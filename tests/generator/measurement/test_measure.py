"""Ground truth of whole models."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import onnx
import pytest
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.db.values import Subject
from dlbricks.errors import UsageError
from dlbricks.generator.backends.registry import get
from dlbricks.generator.machine.lock import machine_lock
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from dlbricks.models import find_models
from dlbricks.models.user_inputs import UserInputs

QUICK = {"visits": 12}


def test_each_model_has_a_row_and_its_ground_truth_or_its_error(small_models, store, tmp_path, source):
    """Of two that cannot run one is no ONNX; the other is, with an operator that the runtime does not know."""
    (tmp_path / "broken.onnx").write_bytes(b"\x00")
    foreign = source("(float[4] x) => (float[4] y) {z = Abs(x) y = Neg(z)}")
    model = onnx.load(foreign.path)
    model.graph.node[0].op_type, model.graph.node[0].domain = "NoSuchOperator", "no.such.domain"
    model.opset_import.add(domain="no.such.domain", version=1)
    onnx.save(model, foreign.path)

    good, broken, unable = measure(
        [*small_models, *find_models([tmp_path / "broken.onnx"]), foreign], store=store, **QUICK
    ).rows

    assert (good.name, good.error, good.backend) == (small_models[0].name, None, "onnxruntime")
    assert good.ci95_ms[0] <= good.latency_ms <= good.ci95_ms[1]
    assert good.p90_ms <= good.p99_ms
    assert min(good.load_ms, good.first_run_ms) > 0
    assert good.verdict in {"stable", "noisy", "unstable"}
    assert "broken.onnx" in broken.error
    assert "NoSuchOperator" in unable.error or "no.such.domain" in unable.error
    assert broken.latency_ms is unable.latency_ms is None
    (stored,) = store.measurements(subject=Subject.MODEL)
    assert stored.key == build_graph(small_models[0].skeleton()).key == good.key
    assert stored.latency_ns == pytest.approx(good.latency_ms * 1e6)
    assert stored.undisturbed_ns == pytest.approx(good.undisturbed_ms * 1e6)
    assert (stored.unroll, stored.summary.samples) == (1, 12)
    assert measure([], store=store).rows == ()


def test_what_is_wrong_with_a_model_is_told_before_the_wait_for_another_process(small_models, store, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"\x00")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04")
    broken = find_models([tmp_path / "broken.onnx"])

    with machine_lock():
        (row,) = measure(broken, store=store).rows
        with pytest.raises(UsageError, match="no model has such a dimension"):
            measure([replace(model, dims=(("zz", 3),)) for model in small_models], store=store)
        with pytest.raises(UsageError, match="not an npz file"):
            measure(
                [replace(model, given=UserInputs((tmp_path / "broken.npz",))) for model in small_models], store=store
            )

    assert "broken.onnx" in row.error


def test_a_model_alone_has_its_memory_and_percentiles_of_single_executions(small_models, store):
    (row,) = measure(small_models, store=store, alone=True, **QUICK).rows

    assert row.alone_error is None
    seen, bare = row.alone.seen, row.alone.without_arena
    assert seen.empty_bytes < seen.loaded_bytes <= seen.peak_bytes
    assert row.alone.weight_bytes <= seen.loaded_bytes - seen.empty_bytes + (8 << 20)
    assert bare.peak_bytes > bare.empty_bytes
    assert len(seen.executions_ns) == row.alone.record()["executions_alone"] == 1000
    assert row.p50_ms <= row.p90_ms <= row.p95_ms <= row.p99_ms
    assert row.alone.quantile_ms(0.999) is None, "one execution of a thousand shows no quantile"
    assert row.record()["memory_peak_mb"] == row.alone.peak_bytes / 1e6
    assert row.alone.peak_bytes == row.alone.runtime_bytes + seen.peak_bytes - seen.empty_bytes


@pytest.mark.slow  # what is compiled takes its time
def test_a_backend_that_runs_nothing_in_turn_measures_models_in_the_default_cache_state(
    small_models, small_suite, store
):
    pytest.importorskip("torch")
    options = {"mode": "compile"}
    assert not get("torch").in_turn(get("torch").resolve("cpu", options))

    report = measure(small_models, store=store, backend="torch", options=options, **{**QUICK, "processes": 1})

    assert [row.error for row in report.rows] == [None]
    (stored,) = store.measurements(subject=Subject.MODEL)
    assert stored.conditions.cache == "model"
    with pytest.raises(UsageError, match="cannot measure in cache mode 'model'"):
        run(small_suite, store=store, backend="torch", options=options)


def test_a_zoo_model_is_measured_with_synthetic_weights(store):
    report = measure(find_models(["squeezenet"]), store=store, **QUICK)

    assert report.rows[0].error is None
    assert report.rows[0].latency_ms > 0.1


def test_models_are_measured_again_but_for_those_since_a_time(small_models, store):
    begun = datetime.now(UTC)
    first = measure(small_models, store=store, **QUICK)

    known = measure(small_models, store=store, since=begun, **QUICK)
    anew = measure(small_models, store=store, since=datetime.now(UTC), **QUICK)
    again = measure(small_models, store=store, **QUICK)

    assert (known.rows, known.run) == (first.rows, None)
    assert len({None, first.run, anew.run, again.run}) == 4
    assert len(store.measurements(subject=Subject.MODEL, latest=False)) == 3
