"""Ceilings are measured like anything else."""

from __future__ import annotations

import pytest
from dlbricks.bricks.reference import CHAIN, COPY, GEMM, OVERHEAD, STREAM, built_in_key
from dlbricks.db import Conditions, Store, Subject
from dlbricks.errors import UsageError
from dlbricks.generator.measurement.ceilings import measure_ceilings
from dlbricks.generator.progress import Progress, Stage, Whole


def test_ceilings_are_measured_and_stored(tmp_path):
    sizes = (1 << 20, 2 << 20)
    with Store.open(tmp_path / "ceilings.db") as store:
        report = measure_ceilings(
            store=store, backend="onnxruntime", options={"optimization": "basic"}, dtype="float32",
            gemm_sizes=(64, 128), sizes=sizes, visits=10, sessions=1, processes=2,
        )  # fmt: skip

        names = [f"{GEMM}64", f"{GEMM}128", *(f"{kind}{size}" for size in sizes for kind in (STREAM, COPY))]
        assert [row.network for row in report.rows] == names
        assert [row.error for row in report.rows] == [None] * 6
        stored = store.measurements(
            subject=Subject.REFERENCE, keys=[built_in_key(name) for name in (*names, OVERHEAD, CHAIN)],
            system=report.system.key, conditions=Conditions(1, "hot", "float32"),
        )  # fmt: skip
        assert len(stored) == 8
        (run,) = store.runs()
        (stack,) = store.stacks().values()
    assert dict(stack.options)["optimization"] == "basic"
    assert {row.stack for row in report.rows} == {stack.key}
    assert (run.id,) == report.runs
    assert run.finished
    for row in report.rows:
        rate, other = (row.flops_s, row.bytes_s) if row.network.startswith(GEMM) else (row.bytes_s, row.flops_s)
        assert other is None
        assert rate is not None
        # Between what no processor is below and what none reaches.
        assert 1e7 < rate.usual <= rate.best < 1e14
        assert rate.ci95[0] <= rate.usual <= rate.ci95[1]


def test_a_precision_that_a_backend_has_not_is_refused(tmp_path):
    with Store.open(tmp_path / "x.db") as store, pytest.raises(UsageError, match="float7"):
        measure_ceilings(store=store, backend="onnxruntime", dtype="float7")


def test_options_without_a_backend_are_refused(tmp_path):
    with Store.open(tmp_path / "x.db") as store, pytest.raises(UsageError, match="--backend"):
        measure_ceilings(store=store, options={"pinning": "off"})


def test_several_measurements_are_counted_as_one() -> None:
    reported: list[Progress] = []
    whole = Whole(reported.append, [10.0, 20.0, 30.0])

    for number in range(3):
        part = whole.part(number)
        assert part is not None
        part(Progress(Stage.SAMPLE, 24, 48, "gemm", 5.0, 4.0))

    assert [(step.done, step.total, step.label) for step in reported] == [
        (24, 144, "1/3 gemm"), (72, 144, "2/3 gemm"), (120, 144, "3/3 gemm"),
    ]  # fmt: skip
    assert [step.remaining_s for step in reported] == [54.0, 34.0, 4.0]
    assert Whole(None, [1.0]).part(0) is None
