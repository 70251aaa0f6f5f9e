"""The pass that records which kernels run, after everything is timed: what it takes, and what a failure in it costs."""

from __future__ import annotations

import pytest
from dlbricks.db import Block, Subject
from dlbricks.db.queries import Filter
from dlbricks.db.store import OpenedMeasurement
from dlbricks.db.values import INNER, Identity
from dlbricks.errors import UsageError
from dlbricks.generator.measurement.run import run
from dlbricks.generator.progress import Stage
from working import file

QUICKEST = {"visits": 10, "processes": 1, "sessions": 1, "cache": "hot"}


def test_a_run_takes_a_view_of_each_brick_and_model_once_when_it_is_asked_for(small_suite, small_models, store):
    def kernels_of(**more):
        return run(small_suite, store=store, models=small_models, **{**QUICKEST, "kernels": True, **more}).kernels

    assert kernels_of(kernels=False) is None
    assert kernels_of(dry_run=True) is None
    assert store.kernels(Filter()) == {}
    stages = []
    taken = kernels_of(progress=lambda step: stages.append(step.stage))

    assert (taken.taken, taken.known, taken.failures) == (11, 0, ())
    assert stages[-1] is Stage.PROFILE  # nothing is timed after it
    views = store.kernels(Filter())
    assert {identity.key for identity in views if identity.subject is Subject.BRICK} == set(small_suite.keys)
    assert {identity.conditions.cache for identity in views} == {"hot"}
    (whole,) = (view for identity, view in views.items() if identity.subject is Subject.MODEL)
    assert {"Softmax", "Sqrt", "Exp"} <= {one.operator for one in whole.kernels}
    again = kernels_of(cache="cold", visits=2)  # a view serves every state of the cache
    assert (again.taken, again.known) == (0, 11)


@pytest.mark.slow
def test_every_algorithm_has_a_view_of_its_own(small_suite, store):
    run(small_suite, store=store, kernels=True, algorithms=True, **QUICKEST)

    basic = store.kernels(Filter(variant="basic"))
    assert len(basic) == 10
    assert not any(one.operator.startswith("Reorder") for view in basic.values() for one in view.kernels)


def test_what_is_measured_and_begun_again_is_profiled(small_suite, store):
    """As an interrupted run leaves it: the whole is measured, what is found on the way is open."""
    options = {**QUICKEST, "cache": "model"}
    report = run(small_suite, store=store, **options)
    (inner, *_) = store.measurements(variant=INNER)
    open_again = "left open"
    identity = Identity(Subject.BRICK, inner.key, report.system, report.stack, inner.conditions, INNER)
    store.add_session([OpenedMeasurement(open_again, report.run, identity, 1)], ())
    store.add_session((), [(open_again, Block(0, 0, ((10**6, 1),)))])

    kernels = run(small_suite, store=store, kernels=True, **options).kernels

    assert kernels is not None
    assert (kernels.taken, kernels.known, kernels.failures) == (10, 0, ())
    assert {identity.key for identity in store.kernels(Filter())} == set(small_suite.keys)


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


def test_a_profile_travels_as_a_line_of_json(source, worker):
    path = source("(float[4,8] x) => (float[4,8] y) {y = Exp(x)}").path
    view = worker.profile(file(path), 2, timeout_s=60.0)
    assert [(one.name, one.calls) for one in view.kernels] == [("Exp", 1)]
    with pytest.raises(UsageError, match="no algorithm"):
        worker.profile(file(path, variant="no such"), 2, timeout_s=60.0)
    assert worker.profile(file(path), 1, timeout_s=60.0).executions == 1
