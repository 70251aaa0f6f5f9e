"""What a backend computes is held against another one's, in workers."""

from __future__ import annotations

import numpy as np
import pytest
from dlbricks.db.values import NATIVE
from dlbricks.errors import BackendUnavailable, UsageError
from dlbricks.generator.measurement.agreement import (
    TOLERANCES,
    Outcome,
    agreements,
    check_agreement,
    checked_place,
    difference,
)

DIFFERENT = """
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend

class Wrong:
    def __init__(self, executable):
        self._executable = executable
    def __getattr__(self, name):
        return getattr(self._executable, name)
    def outputs(self):
        return [values * 1.01 for values in self._executable.outputs()]

class WrongBackend(OrtBackend):
    name = "wrong"
    def prepare(self, network, settings):
        executable = super().prepare(network, settings)
        kinds = {node.op_type for node in network.model.graph.node}
        return Wrong(executable) if "Tanh" in kinds else executable
"""


def test_a_backend_agrees_with_itself_in_other_options(small_suite):
    steps = []

    report = check_agreement(small_suite, "onnxruntime", options={"optimization": "disabled"}, progress=steps.append)

    assert [row.key for row in report.rows] == sorted(small_suite.keys)
    assert report.complete
    assert all(row.error is not None and row.error < 1e-5 for row in report.rows)
    assert [step.done for step in steps] == list(range(1, len(small_suite.keys) + 1))


def test_what_differs_is_named(small_suite, install_backend):
    install_backend("wrong", "WrongBackend", DIFFERENT)

    report = check_agreement(small_suite, "wrong")

    (row,) = [row for row in report.rows if row.verdict is not Outcome.SAME]
    assert row.operators == ("Tanh",)
    assert row.verdict is Outcome.DIFFERENT
    assert row.error == pytest.approx(0.01, rel=1e-3)
    assert "differs by 1.0e-02 of its largest value, more than 1e-03" in row.reason
    assert not report.complete


@pytest.mark.slow
def test_a_backend_that_crashes_hangs_or_refuses_costs_its_bricks(small_suite, faulty):
    faulty({"Sqrt": "run:crash", "Exp": "run:hang", "Tanh": "prepare:unsupported"})

    report = check_agreement(small_suite, "faulty", timeout_s=5)

    found = {row.operators: (row.verdict, row.reason) for row in report.rows if row.verdict is not Outcome.SAME}
    assert found.keys() == {("Sqrt",), ("Exp",), ("Tanh",)}
    assert found["Tanh",] == (Outcome.UNSUPPORTED, "no kernel for this")
    assert found["Sqrt",][0] is found["Exp",][0] is Outcome.FAILED
    assert "SIGSEGV" in found["Sqrt",][1]
    assert report.count(Outcome.SAME) == len(small_suite.keys) - 3


def test_what_the_other_backend_cannot_run_is_not_held_against_the_checked_one(small_suite, faulty):
    faulty({"Sqrt": "run:crash", "Tanh": "prepare:unsupported"})

    report = check_agreement(small_suite, "onnxruntime", against="faulty")

    found = {row.operators: (row.verdict, row.reason) for row in report.rows if row.verdict is not Outcome.SAME}
    assert found.keys() == {("Sqrt",), ("Tanh",)}
    assert found["Tanh",] == (Outcome.UNCHECKED, "faulty: no kernel for this")
    assert found["Sqrt",][0] is Outcome.UNCHECKED
    assert found["Sqrt",][1].startswith("faulty: ")
    assert not report.complete


@pytest.mark.slow
def test_a_lower_precision_is_held_against_the_network_s_own_with_its_own_tolerance(small_suite):
    pytest.importorskip("torch")

    report = check_agreement(small_suite, "torch", dtype="bfloat16")

    assert report.complete, report.rows
    assert (report.dtype, report.tolerance) == ("bfloat16", TOLERANCES["bfloat16"])
    assert TOLERANCES[NATIVE] < max(row.error for row in report.rows) <= TOLERANCES["bfloat16"]
    for wrong in ({"dtype": "int8"}, {"options": {"speed": "high"}}):
        with pytest.raises(UsageError, match=r"does not compute in 'int8'|no option 'speed'"):
            check_agreement(small_suite, "torch", **wrong)


@pytest.mark.slow
def test_rows_come_one_by_one_of_the_bricks_that_are_asked_for(small_suite):
    whole = check_agreement(small_suite, "onnxruntime").rows
    wanted = {row.key for row in whole[1:4]}
    place = checked_place("onnxruntime")

    rows = agreements(small_suite, place, place, keys=wanted)
    first = next(rows)
    rows.close()  # ends the workers

    assert first == whole[1]
    assert list(agreements(small_suite, place, place, keys=wanted - {first.key})) == list(whole[2:4])


def test_a_device_that_is_not_there_is_reported_once_and_of_no_brick(small_suite):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")

    with pytest.raises(BackendUnavailable, match=r"(?i)cuda.*; use --device cpu"):
        check_agreement(small_suite, "torch", device="cuda")


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.inf], [1.0, -np.inf], np.inf),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([0.1], [0.0], 0.1),
        ([], [], 0.0),
        ([1, 2, 3, 4], [1, 2, 3, 5], 0.25),  # of integers the share that differs
    ],
)
def test_the_difference_is_a_share_of_the_largest_value(own, other, expected):
    assert difference(np.array(own), np.array(other)) == pytest.approx(expected)
