"""Algorithms: each brick in each way that the runtime offers, and what a way that fails costs."""

from __future__ import annotations

import pytest
from computing import operators, settings
from dlbricks import estimate
from dlbricks.db import Subject
from dlbricks.errors import UsageError
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.measurement.run import run
from dlbricks.generator.network.network import synthetic_network
from dlbricks.generator.progress import Stage
from dlbricks.generator.worker.messages import Time
from working import network

QUICKEST = {"visits": 10, "processes": 1, "sessions": 1}
NAMES = ("basic", "extended", "unfused", "unpacked")

CONVOLUTIONS = (
    "(float[1,16,8,8] x, float[32,16,3,3] w0, float[32] w1, float[32,32,3,3] w2) => (float[1,32,4,4] y)"
    "{a = Conv(x, w0, w1) b = Relu(a) y = Conv(b, w2)}"
)

_CHOOSY = """
import os, signal
from dlbricks.errors import UnsupportedBrick
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend

class ChoosyBackend(OrtBackend):
    name = "choosy"
    def prepare(self, network, settings):
        kinds = {node.op_type for node in network.model.graph.node} if network.model is not None else set()
        if settings.options["prepacking"] == "off" and "Sqrt" in kinds:
            raise UnsupportedBrick("no unpacked Sqrt")
        if settings.options["optimization"] == "basic" and "Exp" in kinds and "Sigmoid" not in kinds:
            if os.environ.get("DLBRICKS_TEST_CRASH"):
                os.kill(os.getpid(), signal.SIGSEGV)
            raise UnsupportedBrick("no basic Exp")
        return super().prepare(network, settings)
"""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("cache", ["hot", "cold", "model"])
def test_every_brick_is_measured_once_per_algorithm_and_then_reused(small_suite, small_models, store, cache):
    plain = run(small_suite, store=store, cache=cache, **QUICKEST)

    forecast = run(small_suite, store=store, cache=cache, algorithms=True, dry_run=True, **QUICKEST)
    report = run(small_suite, store=store, cache=cache, algorithms=True, **QUICKEST)

    assert (plain.measured, plain.algorithms, plain.algorithms_remaining) == (10, 0, 0)
    assert (forecast.remaining, forecast.algorithms_remaining, forecast.complete) == (0, 40, True)
    assert forecast.forecast_s > 0
    assert (report.bricks, report.measured, report.reused, report.remaining) == (10, 0, 10, 0)
    assert (report.algorithms, report.algorithms_reused, report.algorithms_remaining) == (40, 0, 0)
    assert report.complete
    assert report.stack == plain.stack
    for name in NAMES:
        found = store.measurements(subject=Subject.BRICK, variant=name)
        assert {one.key for one in found} == set(small_suite.keys)
        assert all(one.unroll == 1 for one in found) or cache != "cold"
        assert all(one.summary.samples >= 10 for one in found)
    again = run(small_suite, store=store, cache=cache, algorithms=True, **QUICKEST)
    assert (again.run, again.algorithms, again.algorithms_reused) == (None, 0, 40)
    (answer,) = estimate(small_models, store=store, cache=cache)
    latencies = {one.key: one.latency_ns / 1e6 for one in store.measurements(subject=Subject.BRICK)}
    for row in answer.parts.sequences:
        rivals = store.measurements(keys=[row.key], variant=None)
        assert row.latency_ms == latencies[row.key]
        assert row.lower_bound_ms == min(one.latency_ns for one in rivals if one.variant in {"", *NAMES}) / 1e6
        assert row.fastest_variant in {"", *NAMES}


@pytest.mark.slow
def test_bricks_and_algorithms_are_measured_in_the_same_sessions(small_suite, store):
    report = run(small_suite, store=store, cache="hot", algorithms=True, **QUICKEST)

    assert (report.measured, report.algorithms) == (10, 40)
    assert {one.run for one in store.measurements(subject=Subject.BRICK, variant=None)} == {report.run}
    (stored,) = store.runs()
    assert stored.options["algorithms"] == list(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unsupported", "crashed"])
def test_an_algorithm_that_fails_is_no_failure_of_its_brick(small_suite, store, install_backend, monkeypatch, kind):
    install_backend("choosy", "ChoosyBackend", _CHOOSY)
    monkeypatch.setenv("DLBRICKS_TEST_CRASH", "1" if kind == "crashed" else "")
    asked = {"store": store, "backend": "choosy", "cache": "hot", "algorithms": True, **QUICKEST}

    report = run(small_suite, **asked)

    failed = {failure.variant: (failure.kind, failure.reason) for failure in report.algorithm_failures}
    assert failed.keys() == {"unpacked", "basic"}
    assert failed["unpacked"] == ("unsupported", "no unpacked Sqrt")
    assert failed["basic"][0] == kind
    assert (report.measured, report.failed, report.failures, report.algorithms) == (10, 0, (), 38)
    assert report.complete == (kind == "unsupported")  # that there is none is an answer
    assert store.failures(subject=Subject.BRICK) == []
    assert store.info()["counts"]["open"] == 0
    if kind == "unsupported":
        again, tried = (run(small_suite, **asked, **more) for more in ({}, {"again": ["failed"]}))
        assert (again.run, again.algorithms_reused, len(again.algorithm_failures)) == (None, 38, 2)
        assert (tried.algorithms, tried.algorithms_reused, len(tried.algorithm_failures)) == (0, 38, 2)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_algorithms_where_they_are_asked_for(small_suite, store):
    seen = 0

    def stop_after_some(progress):
        nonlocal seen
        seen += progress.stage is Stage.SAMPLE
        if seen == 400:
            raise KeyboardInterrupt

    protocol = {**QUICKEST, "visits": 12, "sessions": 2}
    with pytest.raises(KeyboardInterrupt):
        run(small_suite, store=store, cache="hot", algorithms=True, progress=stop_after_some, **protocol)

    def measured():
        found = store.measurements(subject=Subject.BRICK, variant=None)
        return {(one.key, one.variant) for one in found if one.variant}

    before = measured()
    run(small_suite, store=store, cache="hot", **protocol)
    assert measured() == before
    assert store.info()["counts"]["open"] > 0  # of algorithms: nothing was asked about them
    report = run(small_suite, store=store, cache="hot", algorithms=True, **protocol)
    assert (report.measured, report.reused) == (0, 10)
    assert report.algorithms + report.algorithms_reused == len(measured()) == 40
    assert store.info()["counts"]["open"] == 0


def test_only_what_differs_from_the_options_is_offered():
    backend = OrtBackend()

    def names(**options):
        effective = backend.resolve("cpu", options)
        return tuple(one.name for one in backend.require_algorithms("cpu", effective, "float32"))

    assert names() == NAMES
    assert names(optimization="basic") == ("extended", "full", "unfused", "unpacked")
    assert names(optimization="disabled", prepacking="off") == ("basic", "extended", "full", "packed")
    for name in names():
        assert name != "inner"  # a variant that is no algorithm


def test_algorithms_execute_other_operators(skeleton_of):
    backend = OrtBackend()
    network = synthetic_network(skeleton_of(CONVOLUTIONS))

    def executed(*algorithm):
        chosen = backend.with_algorithm(settings(), *algorithm) if algorithm else settings()
        return {*operators(backend.optimised(network, chosen))}

    assert "ReorderInput" in executed()
    assert executed("extended") == {"Conv", "FusedConv"}
    assert executed("basic") == {"Conv", "Relu"}


def test_a_worker_runs_algorithms_in_turn_and_knows_no_others(small_suite, worker):
    path = str(small_suite.brick_path(small_suite.keys[0]).resolve())
    for name in ("", *NAMES):
        worker.load(network(name, path, variant=name))
    for name in ("", *NAMES):
        assert worker.time(Time(name)).elapsed_ns > 0
        worker.drop(name)
    with pytest.raises(UsageError, match=r"no algorithm .winograd. here; it has basic, extended, unf"):
        worker.load(network("w", path, variant="winograd"))
