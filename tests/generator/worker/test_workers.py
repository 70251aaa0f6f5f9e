"""Workers by place: one from question to question, another one after it failed, and what is said of who began when."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import onnx
import pytest
from dlbricks.bricks.reference import GEMM
from dlbricks.errors import UsageError, WorkerError, WorkerOutOfMemory
from dlbricks.generator.worker.client import Workers, start_worker
from working import network, place

HERE, THERE = place(), place("onnxruntime", {"pinning": "off", "optimization": "basic"})
PRODUCT = network("product", f"{GEMM}64")
LARGE = (
    '<ir_version: 10, opset_import: ["": 21]>'
    " g (float[1, 16384] x0) => (float[16384, 16384] v1)"
    " {v0 = Transpose<perm = [1, 0]>(x0) v1 = MatMul(v0, x0)}"
)


def test_those_that_begin_together_have_one_number_and_the_next_at_a_place_another():
    with Workers(start_worker, number=4) as workers:
        pids = {workers.at(one).pid for one in (HERE, THERE)}
        assert (workers.number, len(pids)) == (5, 2)
        workers.close()
        assert workers.number == 5
        workers.at(THERE)
        workers.at(HERE)
        assert (workers.number, workers.started) == (6, 4)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("why", ["killed", "late", "memory"])
def test_one_that_failed_is_replaced(tmp_path: Path, why: str):
    onnx.save(onnx.parser.parse_model(LARGE), tmp_path / "large.onnx")
    with Workers(partial(start_worker, memory_bytes=200 << 20)) as workers:
        first = workers.at(HERE).pid
        request, timeout_s = PRODUCT, 0 if why == "late" else 60
        if why == "killed":
            os.kill(first, signal.SIGKILL)
        if why == "memory":
            request = network("large", tmp_path / "large.onnx", synthetic=False)
        with pytest.raises(WorkerError if why == "late" else WorkerOutOfMemory):
            workers.at(HERE).load(request, timeout_s=timeout_s)

        workers.at(HERE).load(PRODUCT)

        assert workers.at(HERE).pid != first
        assert workers.number == 1


def test_what_ails_the_start_is_raised_and_nothing_is_kept():
    with Workers(start_worker) as workers:
        for _ in range(2):
            with pytest.raises(UsageError):
                workers.at(place("onnxruntime", {"no such": "option"}))
        assert workers.started == 0
