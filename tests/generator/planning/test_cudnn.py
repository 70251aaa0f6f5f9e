"""cuDNN without a GPU: what is asked of the library, by which process, and what it answered."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from dlbricks.analyzer.report.answers.generation import plans_answer
from dlbricks.analyzer.report.tables import render
from dlbricks.errors import BackendError, BackendUnavailable, UsageError, WorkerError
from dlbricks.generator.backends.base import Availability, PlanTime
from dlbricks.generator.backends.cudnn.plans import KNOWN, Offer, availability, find_gpu
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.planning.library_plans import BrickPlans, Layout, PlanReport, library_plans
from dlbricks.generator.planning.planner import COMMAND, AskPlans, OfferedPlans, Start
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.messages import Bye, Done, line_of, read_line
from dlbricks.models import find_models

RECORDED = Path(__file__).with_name("cudnn_plans.json")
"""What ``dlbricks backends plans`` answered for the bricks of the last test: cuDNN 9.28, for an H200, without a GPU."""


def test_a_gpu_is_known_or_a_file_that_the_library_wrote(tmp_path):
    known = find_gpu("h200")
    assert (known.name, known.capability, known.multiprocessors) == ("NVIDIA H200", 900, 132)
    file = tmp_path / "gpu.json"
    for text in ("[]", "{}", '{"deviceName": 7}', "no JSON", None):
        if text is not None:
            file.write_text(text)
        with pytest.raises(UsageError, match=r"gpu\.json"):
            find_gpu(str(file) if text is not None else "gone-gpu.json")
    file.write_text(json.dumps({**KNOWN["h200"], "deviceName": "another"}))
    assert find_gpu(str(file)).name == "another"


def test_a_message_of_plans_survives_its_line():
    plan = PlanTime("eng1_k24=35", 1, (("KERNEL_CFG", 35),), ("A", "B"), 0, ("TENSOR_CORE",), (), 128)
    reply = OfferedPlans(Offer(("relu",), (plan,), "", 7), images=True)

    assert read_line(line_of(reply), OfferedPlans) == reply


def test_the_process_that_asks_refuses_what_it_cannot_do(tmp_path):
    with Worker(command=COMMAND) as worker:
        with pytest.raises((BackendError, WorkerError), match="before the library was loaded"):
            worker.ask(AskPlans(str(tmp_path / "none.onnx"), "float32", channels_last=False), OfferedPlans, 60)
        if not availability().ok:
            with pytest.raises(BackendUnavailable, match=r"cannot be loaded|does not plan here"):
                worker.ask(Start("{}"), Done, 60)
        assert worker.ask(Bye(), Done, 60) == Done()


@pytest.mark.skipif(availability().ok, reason="cuDNN is installed here")
def test_without_the_library_one_line_says_what_is_missing(small_suite, cli):
    with pytest.raises(BackendUnavailable, match=r"cuDNN's plans cannot be asked for here: .*(install|missing)"):
        library_plans(small_suite)
    done = cli("backends", "plans", small_suite.path)

    with pytest.raises(UsageError, match="float32, float16, bfloat16"):  # wrong precisions come first
        library_plans(small_suite, dtypes=["int8"])
    assert done.code == 1
    assert done.error.startswith("cuDNN's plans cannot be asked for here: ")


_FRAGILE = """
import json, os, signal, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "askplans" and {crash!r} in request["path"]:
        os.kill(os.getpid(), signal.SIGSEGV)
    reply = {{"reply": "done"}}
    if request["op"] == "askplans":
        offer = {{"operations": ["relu"], "plans": [], "reason": "cuDNN: none", "planning_ns": 1}}
        reply = {{"reply": "offeredplans", "offer": offer, "images": False}}
    print(json.dumps(reply), flush=True)
"""
"""Speaks as the planner does, and dies of one brick."""


@pytest.fixture
def planner(monkeypatch):
    """Takes the code of another process for the planner."""
    monkeypatch.setattr("dlbricks.generator.planning.library_plans.require_library", lambda: Availability(ok=True))
    return lambda code: monkeypatch.setattr(
        "dlbricks.generator.planning.library_plans.COMMAND", (sys.executable, "-c", code)
    )


def test_a_library_that_does_not_start_ends_the_command_and_nothing_is_asked_twice(small_suite, planner):
    planner(
        """for _ in open(0): print('{"reply": "refused", "kind": "unavailable", "reason": "not here"}', flush=True)"""
    )
    with pytest.raises(BackendUnavailable, match="not here"):
        library_plans(small_suite)
    planner(_FRAGILE.format(crash="none"))

    report = library_plans(small_suite, dtypes=["float16", "float16"], layouts=[Layout.NHWC, Layout.NHWC])

    assert [row.key for row in report.rows] == list(small_suite.keys)


def test_a_library_that_crashes_costs_the_brick_alone(small_suite, planner):
    """The process is not cuDNN's: what is tried is what its parent makes of its death."""
    crash = small_suite.keys[1]
    planner(_FRAGILE.format(crash=crash))
    report = library_plans(small_suite, layouts=[Layout.NCHW, Layout.NHWC])

    failed = [row for row in report.rows if row.failed]
    assert {row.key for row in report.rows} == set(small_suite.keys)
    assert {row.key for row in failed} == {crash}
    assert all("died of SIGSEGV" in row.offer.reason for row in failed)
    assert len(failed) == 2  # one for each layout: whether it has images is not known
    assert not report.complete
    assert len(plans_answer(report).summary) == 2
    times = {row["key"]: row["planning_ms"] for row in plans_answer(report).results}
    assert times.pop(crash) is None  # and not nought
    assert set(times.values()) == {1e-6}


def test_what_the_library_answered_is_read_and_shown():
    """Recorded from the real library; see ``RECORDED``."""
    answer = json.loads(RECORDED.read_text())
    rows = []
    for found in answer["results"]:
        layout = Layout(found["layout"]) if found["layout"] else None
        plans = tuple(
            PlanTime(**{
                **{name: value for name, value in plan.items() if name != "tag"},
                "name": plan["tag"],
                "knobs": tuple(plan["knobs"].items()),
                **{name: tuple(plan[name]) for name in ("modes", "notes", "behavior")},
                "reason": plan["reason"] or "",
            })
            for plan in found["plans"]
        )  # fmt: skip
        rows.append(
            BrickPlans(
                found["key"], tuple(found["operators"]), found["dtype"], layout,
                Offer(tuple(found["operations"]), plans, found["reason"] or ""), found["failed"],
            )
        )  # fmt: skip
    report = PlanReport(find_gpu("h200"), answer["versions"], tuple(rows))
    shown = plans_answer(report)
    by_operators = {(tuple(row["operators"]), row["dtype"], row["layout"]): row for row in shown.table or ()}

    assert report.complete
    assert shown.totals["by_operators"] == answer["by_operators"]
    assert "Conv" in render(shown)
    # Fused with its normalization and activation, a convolution has plans with its channels last only.
    fused = ("Conv", "BatchNormalization", "Relu")
    assert by_operators[fused, "float16", "nhwc"]["offered"] == 1
    assert by_operators[fused, "float16", "nchw"]["offered"] == 0
    # What the library suggests first multiplies float32 on Tensor Cores, in TF32.
    alone = next(row for row in rows if row.operators == ("Conv",) and row.dtype == "float32")
    assert alone.plans[0].modes[0] == "A"
    assert "TENSOR_CORE" in alone.plans[0].notes
    assert any("TENSOR_CORE" not in plan.notes for plan in alone.plans)
    assert by_operators[("MaxPool",), "float32", None]["reason"].startswith("cuDNN: MaxPool is a pool")


@pytest.mark.skipif(not availability().ok, reason="cuDNN, or the library of a driver, is not installed")
def test_the_library_offers_what_it_offered_when_it_was_recorded(tmp_path, model_file):
    """Of the bricks that were recorded."""
    graph = (
        "(float[1,64,56,56] x, float[1,128] z, float[1,32,64] u)"
        " => (float[1,64,28,28] y, float[1,10] s, float[1,32,64] n)"
        "{ a = Conv<pads=[1,1,1,1]>(x, k) b = BatchNormalization(a, p0, p1, p2, p3) c = Relu(b)"
        "  y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c) d = Gemm<transB=1>(z, g, h) s = Softmax(d)"
        "  n = LayerNormalization(u, l0, l1) }"
    )
    shapes = {"k": (64, 64, 3, 3), "g": (10, 128), "h": (10,), "l0": (64,), "l1": (64,)}
    shapes |= {f"p{at}": (64,) for at in range(4)}
    models = find_models([model_file(tmp_path / "model.onnx", graph, shapes, opset=21)])
    suite = generate(models, granularity=3, overlap=True, out=tmp_path / "suite").suite

    report = library_plans(suite, dtypes=["float16"], layouts=[Layout.NHWC])

    assert report.complete
    assert all(row.plans for row in report.rows if "Conv" in row.operators)
    built = [plan for row in report.rows for plan in row.plans if plan.workspace_bytes is not None]
    assert built
    assert {mode for plan in built for mode in plan.modes} <= {"A", "B", "FALLBACK"}
