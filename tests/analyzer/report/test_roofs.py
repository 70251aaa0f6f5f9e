"""What was measured of a machine is shown by network, and the best of it by precision and level."""

from __future__ import annotations

import dataclasses
import json

from dlbricks.analyzer.report.roofs import ceilings_answer
from dlbricks.analyzer.report.tables import Format, render
from dlbricks.db import System
from dlbricks.db.samples.rates import Rate
from dlbricks.generator.measurement.ceilings import CeilingReport, CeilingRow

SYSTEM = System("Xeon", "x86_64", 2, 2, (("L2", 2 << 20),), 24)


def rate(best: float) -> Rate:
    return Rate(best, best * 0.9, (best * 0.8, best * 0.95))


PRODUCT = CeilingRow("onnxruntime", "s1", "float32", "@ceiling-gemm-512", 3 << 20, "memory", 1.5, flops_s=rate(180e9))
STREAM = CeilingRow("onnxruntime", "s1", "float32", "@ceiling-stream-65536", 65528, "L2", 0.004, bytes_s=rate(80e9))
ROWS = (
    PRODUCT,
    STREAM,
    dataclasses.replace(STREAM, network="@ceiling-stream-32768", bytes_s=None),
    dataclasses.replace(PRODUCT, backend="torch", stack="s2", flops_s=rate(170e9)),
    dataclasses.replace(STREAM, backend="torch", stack="s2", bytes_s=rate(90e9)),
    dataclasses.replace(PRODUCT, backend="torch", stack="s2", dtype="bfloat16", flops_s=rate(31e9)),
    CeilingRow("mxnet", None, "float32", error="no library"),
)


def test_the_best_is_reported_by_precision_and_level_and_everything_in_json():
    answer = ceilings_answer(CeilingReport(SYSTEM, 2, ROWS, ("r1", "r2"), 61.0))

    shown = json.loads(render(answer, Format.JSON))

    assert len(shown["results"]) == len(ROWS)
    assert [(row["ceiling"], row["backend"]) for row in shown["best"]] == [
        ("float32", "onnxruntime"), ("bfloat16", "torch"), ("L2", "torch"),
    ]  # fmt: skip
    assert shown["best"][0]["gflops_s"] == 180.0
    assert shown["best"][0]["usual_gflops_s_ci95"] == [144.0, 171.0]
    assert shown["best"][2]["gbytes_s"] == 90.0
    assert (shown["system"], shown["threads"], shown["runs"]) == (SYSTEM.key, 2, ["r1", "r2"])


def test_the_table_shows_ceilings_and_what_failed():
    text = render(ceilings_answer(CeilingReport(SYSTEM, 1, ROWS, (), 61.0)))

    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["float32", "bfloat16", "L2"]
    assert "mxnet float32: no library" in text
    assert "1 thread, measured in 1 min 01 s" in text


def test_nothing_measured_is_reported_too():
    text = render(ceilings_answer(CeilingReport(SYSTEM, 1, ROWS[-1:], (), 1.0)))

    assert "no library" in text
