"""The keeper of a worker: one from question to question, another one after it failed."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import onnx
import pytest
from dlbricks.bricks.reference import GEMM
from dlbricks.errors import BackendError, UsageError, WorkerError, WorkerOutOfMemory
from dlbricks.generator.worker.requests import Prepare
from dlbricks.generator.worker.standby import Standby, start_worker


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


PRODUCT = Prepare(id="product", path=f"{GEMM}64", synthetic=True, unroll=1)


def test_none_starts_before_it_is_asked_for_and_one_serves_many_questions():
    started = []

    def start():
        started.append(start_worker())
        return started[-1]

    with Standby(start) as standby:
        assert not started
        standby.worker.prepare(PRODUCT)
        standby.worker.prepare(PRODUCT)

    assert len(started) == 1
    assert not runs(started[0].pid)


def test_one_that_died_is_replaced():
    with Standby(start_worker) as standby:
        first = standby.worker.pid
        os.kill(first, signal.SIGKILL)
        with pytest.raises(WorkerOutOfMemory):
            standby.worker.prepare(PRODUCT)

        standby.worker.prepare(PRODUCT)

        assert standby.worker.pid != first


def test_one_that_does_not_answer_in_time_is_replaced():
    with Standby(start_worker) as standby:
        first = standby.worker.pid
        with pytest.raises(WorkerError):
            standby.worker.prepare(PRODUCT, timeout_s=0)

        assert standby.worker.pid != first


def test_one_that_hit_its_memory_limit_is_replaced(tmp_path: Path):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]>'
        " g (float[1, 16384] x0) => (float[16384, 16384] v1)"
        " {v0 = Transpose<perm = [1, 0]>(x0) v1 = MatMul(v0, x0)}"
    )
    onnx.save(model, tmp_path / "large.onnx")
    with Standby(partial(start_worker, memory_bytes=200 << 20)) as standby:
        first = standby.worker.pid
        with pytest.raises(WorkerOutOfMemory, match="limit"):
            standby.worker.prepare(Prepare(id="large", path=str(tmp_path / "large.onnx"), synthetic=False, unroll=1))

        assert standby.worker.pid != first


def test_one_that_refuses_goes_on(tmp_path: Path):
    with Standby(start_worker) as standby:
        first = standby.worker.pid
        with pytest.raises(BackendError):
            standby.worker.prepare(Prepare(id="none", path=str(tmp_path / "none.onnx"), synthetic=False))

        assert standby.worker.pid == first


def test_one_that_was_ended_is_replaced():
    with Standby(start_worker) as standby:
        first = standby.worker.pid
        standby.close()
        second = standby.worker.pid
        standby.kill()
        third = standby.worker.pid

        assert len({first, second, third}) == 3
        assert [runs(pid) for pid in (first, second, third)] == [False, False, True]


def test_what_ails_the_start_is_raised_and_nothing_is_kept():
    with Standby(partial(start_worker, options={"no such": "option"})) as standby:
        for _ in range(2):
            with pytest.raises(UsageError):
                _ = standby.worker
