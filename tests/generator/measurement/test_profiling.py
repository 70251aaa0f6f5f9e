"""The pass that records which kernels run, after everything is timed: what it takes, and what a failure in it costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from dlbricks.db import Block, Subject
from dlbricks.db.filter import Filter
from dlbricks.db.identity import Identity
from dlbricks.db.store import Opened
from dlbricks.db.values import INNER
from dlbricks.errors import UsageError
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from dlbricks.generator.progress import Stage
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.replies import Profiled
from dlbricks.generator.worker.requests import Profile

QUICKEST = {"visits": 10, "processes": 1, "sessions": 1, "cache": "hot"}


def test_a_run_takes_a_view_of_each_brick_and_model_once(small_suite, small_models, store):
    stages = []
    report = run(
        small_suite, store=store, models=small_models, kernels=True, progress=lambda step: stages.append(step.stage),
        **QUICKEST,
    )  # fmt: skip

    assert report.complete
    assert report.kernels is not None
    assert (report.kernels.taken, report.kernels.known, report.kernels.failures) == (11, 0, ())
    assert stages[-1] is Stage.PROFILE  # nothing is timed after it
    views = store.kernels(Filter(stack=report.stack, system=report.system))
    assert {identity.key for identity in views if identity.subject is Subject.BRICK} == set(small_suite.keys)
    assert {identity.conditions.cache for identity in views} == {"hot"}
    (whole,) = (view for identity, view in views.items() if identity.subject is Subject.MODEL)
    assert {"Softmax", "Sqrt", "Exp"} <= {one.operator for one in whole.kernels}

    again = run(small_suite, store=store, models=small_models, kernels=True, **QUICKEST).kernels
    assert again is not None
    assert (again.taken, again.known) == (0, 11)


def test_a_view_serves_every_cache_state(small_suite, store):
    run(small_suite, store=store, kernels=True, **QUICKEST)
    cold = run(small_suite, store=store, kernels=True, **{**QUICKEST, "cache": "cold"}).kernels

    assert cold is not None
    assert (cold.taken, cold.known) == (0, 10)


def test_views_of_algorithms(small_suite, store):
    report = run(small_suite, store=store, algorithms=True, kernels=True, **QUICKEST)

    views = store.kernels(Filter(stack=report.stack, variant="basic"))
    operators = {one.operator for view in views.values() for one in view.kernels}
    assert len(views) == 10
    assert not any(name.startswith("Reorder") for name in operators)


def test_what_was_measured_before_is_profiled_when_it_is_asked_for(small_suite, store):
    assert run(small_suite, store=store, **QUICKEST).kernels is None
    assert store.kernels(Filter()) == {}
    report = run(small_suite, store=store, kernels=True, **QUICKEST)
    assert (report.measured, report.reused) == (0, 10)
    assert report.kernels is not None
    assert report.kernels.taken == 10


def test_what_is_measured_and_begun_again_is_profiled(small_suite, store):
    """As an interrupted run leaves it: the whole is measured, what is found on the way is open."""
    options = {**QUICKEST, "cache": "model"}
    report = run(small_suite, store=store, **options)
    (inner, *_) = store.measurements(variant=INNER)
    open_again = "left open"
    identity = Identity(Subject.BRICK, inner.key, report.system, report.stack, inner.conditions, INNER)
    store.add_session([Opened(open_again, report.run, identity, 1)], ())
    store.add_session((), [(open_again, Block(0, 0, ((10**6, 1),)))])

    kernels = run(small_suite, store=store, kernels=True, **options).kernels

    assert kernels is not None
    assert (kernels.taken, kernels.known, kernels.failures) == (10, 0, ())
    assert {identity.key for identity in store.kernels(Filter())} == set(small_suite.keys)


def test_noisy_bricks_that_no_time_is_left_for_are_profiled(small_suite, store):
    run(small_suite, store=store, **QUICKEST)
    report = run(small_suite, store=store, kernels=True, again=["noisy"], budget_s=1e-6, **QUICKEST)

    assert report.remaining > 0
    assert report.kernels is not None
    assert (report.kernels.taken, report.kernels.failures) == (10, ())


def test_a_forecast_takes_no_view(small_suite, store):
    assert run(small_suite, store=store, kernels=True, dry_run=True, **QUICKEST).kernels is None


def test_measured_models_are_profiled(small_models, store):
    report = measure(small_models, store=store, kernels=True, visits=10, processes=1, sessions=1)

    assert report.kernels is not None
    assert report.kernels.taken == 1
    ((identity, view),) = store.kernels(Filter(subject=Subject.MODEL)).items()
    assert identity.key == report.rows[0].key
    assert view.executions == 5


_SHY = """
import os, signal
from dlbricks.errors import BackendError
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend

class ShyBackend(OrtBackend):
    name = "shy"
    def kernels(self, network, settings, executions):
        operators = {node.op_type for node in network.model.graph.node} if network.model is not None else set()
        if "Sqrt" in operators:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "Exp" in operators:
            raise BackendError("no profile of this")
        return super().kernels(network, settings, executions)
"""


def test_a_profile_that_fails_costs_itself_alone(small_suite, store, install_backend):
    install_backend("shy", "ShyBackend", _SHY)
    report = run(small_suite, store=store, backend="shy", kernels=True, **QUICKEST)

    assert (report.measured, report.failed, report.failures) == (10, 0, ())
    assert not report.complete
    assert report.kernels is not None
    assert report.kernels.taken == 8
    reasons = {failure.label: failure.reason for failure in report.kernels.failures}
    operators = {"".join(small_suite.brick(key).operators): reason for key, reason in reasons.items()}
    assert operators["Exp"] == "no profile of this"
    assert "SIGSEGV" in operators["Sqrt"]
    assert store.failures() == []
    assert len(store.measurements(subject=Subject.BRICK)) == 10

    again = run(small_suite, store=store, backend="shy", kernels=True, **QUICKEST)
    assert (again.measured, again.reused) == (0, 10)
    assert again.kernels is not None
    assert (again.kernels.taken, again.kernels.known, len(again.kernels.failures)) == (0, 8, 2)


def test_a_profile_travels_as_a_line_of_json(tmp_path: Path, skeleton_of):
    path = tmp_path / "brick.onnx"
    path.write_bytes(skeleton_of("(float[4,8] x) => (float[4,8] y) {y = Exp(x)}").SerializeToString())
    with Worker.start("onnxruntime") as worker:
        view = worker.ask(Profile(path=str(path), synthetic=True, executions=2), Profiled, 60.0).view
        assert [(one.name, one.calls) for one in view.kernels] == [("Exp", 1)]
        packed = Profile(path=str(path), synthetic=True, executions=2, variant="no such")
        with pytest.raises(UsageError, match="no algorithm"):
            worker.ask(packed, Profiled, 60.0)
        assert worker.ask(Profile(path=str(path), synthetic=True, executions=1), Profiled, 60.0).view.executions == 1
