"""Backends that call a GPU's libraries: what they share, and on a GPU what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dlbricks.errors import BackendError, UnsupportedBrick, UsageError
from dlbricks.generator.backends import library
from dlbricks.generator.backends.base import Backend, PlanTime, Settings
from dlbricks.generator.backends.library import LoadedBrick, measured, narrowed
from dlbricks.generator.backends.registry import get
from dlbricks.generator.machine.nvml import has_driver
from dlbricks.generator.measurement.agreement import TOLERANCES, difference
from dlbricks.generator.network.network import synthetic_network
from onnx.reference import ReferenceEvaluator

LIBRARIES = ("cublas", "cudnn", "cupy")

BRICKS = {
    "cudnn": [
        "(float[1,16,14,14] x, float[32,16,3,3] w0) => (float[1,32,14,14] y) { y = Conv<pads=[1,1,1,1]>(x, w0) }",
        (
            "(float[1,16,14,14] x, float[16,1,3,3] w0) => (float[1,16,7,7] y)"
            "{ y = Conv<group=16, pads=[1,1,1,1], strides=[2,2]>(x, w0) }"
        ),
        "(float[64,128] x, float[128,64] w0) => (float[64,64] y) { y = MatMul(x, w0) }",
        "(float[2,16,8,8] x, float[2,16,8,8] z) => (float[2,16,8,8] y) { y = Add(x, z) }",
        "(float[1,16,8,8] x) => (float[1,16,8,8] y) { y = Relu(x) }",
    ],
    "cublas": [
        "(float[64,128] x, float[128,64] w0) => (float[64,64] y) { y = MatMul(x, w0) }",
        "(float[2,12,64,64] x, float[2,12,64,32] z) => (float[2,12,64,32] y) { y = MatMul(x, z) }",
        "(float[1,256] x, float[64,256] w0, float[64] w1) => (float[1,64] y) { y = Gemm<transB=1>(x, w0, w1) }",
        "(float[8,32] x, float[32,16] w0, float[8,16] z) => (float[8,16] y) { y = Gemm<alpha=0.5>(x, w0, z) }",
        "(float[8,32] x, float[32,16] w0, float[16] w1) => (float[8,16] y) { a = Gemm(x, w0, w1) y = Relu(a) }",
    ],
    "cupy": [
        "(float[2,3,4] x) => (float[4,2,3] y) { y = Transpose<perm=[2,0,1]>(x) }",
        "(float[1,4,9,9] x) => (float[1,4,5,5] y){ y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x) }",
        (
            "(float[1,4,8] x) => (float[1,4,8] y)"
            "{ y = AveragePool<kernel_shape=[3], pads=[1,1], count_include_pad=1>(x) }"
        ),
        "(float[1,8,5,5] x) => (float[1,8,5,5] y) { y = LRN<size=5>(x) }",
        "(float[4,10] x) => (float[4,10] y) { y = Softmax(x) }",
    ],
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_says_what_it_is_and_what_is_missing(name):
    backend = get(name)

    assert backend.offers(Backend.prepare_streamed)
    assert backend.offers(Backend.algorithms) == (name != "cupy")
    assert backend.offers(Backend.plans) == (name != "cupy")
    assert backend.resolve("cuda", {})["mode"] == "stream"
    assert backend.probe().ok or "pip install" in backend.probe().reason
    assert has_driver() or "driver" in get("cupy").missing("cuda")  # type: ignore[attr-defined]


def test_layouts_are_algorithms_and_a_plan_is_chosen_by_its_engine_and_knobs():
    backend = get("cudnn")

    options = backend.resolve("cuda", {"plan": "eng34_k2=25_k3=0", "layout": "channels_last"})
    found = backend.algorithms("cuda", options, "float32")

    assert [each.name for each in found] == ["contiguous"]
    assert backend.resolve("cuda", {})["plan"] == "0"
    with pytest.raises(UsageError, match=r"plan=0\|NAME"):
        backend.resolve("cuda", {"plan": ""})


def test_copies_are_networks_of_their_own(skeleton_of):
    text = "(float[3,4] x, float[4,500] w0) => (float[3,500] y) { y = MatMul(x, w0) }"
    network = synthetic_network(skeleton_of(text), unroll=3)

    found = library._copies(network, "a library")

    assert [list(each.feeds) for each in found] == [["x"], ["x@1"], ["x@2"]]
    assert [list(each.weights) for each in found] == [["w0"], ["w0@1"], ["w0@2"]]
    assert [each.outputs for each in found] == [("y",), ("y@1",), ("y@2",)]


def test_finite_values_stay_finite_when_they_are_narrowed():
    values = np.array([-3.4e38, 1.0, np.inf, np.nan], np.float32)

    found = narrowed(values, "float16")

    np.testing.assert_array_equal(found, np.array([-65504, 1, np.inf, np.nan], np.float16))
    assert narrowed(np.array([7]), "float16").dtype == np.int64


class _Clock:
    """A device with a clock of its own; an execution takes as long as its plan takes in the state of the caches."""

    lost = False
    captures = True
    now = 0.0
    cold = False

    def synchronize(self) -> None:
        if self.lost:
            raise BackendError("the GPU failed")

    def timed_ns(self, run: Callable[[], None], synchronize: Callable[[], None]) -> float:
        before = self.now
        run()
        return self.now - before

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        if not self.captures:
            raise BackendError("it cannot be captured")
        return run

    def event(self) -> list[float]:
        return [0.0]

    def record(self, event: list[float]) -> None:
        self.now += 1000  # an event costs time, too
        event[0] = self.now

    def elapsed_ns(self, begin: list[float], end: list[float]) -> float:
        return end[0] - begin[0]

    # Its memory:

    def empty(self, size: int) -> int:
        return size

    def rewrite(self, size: int) -> None:
        self.cold = self.cold or size >= 1 << 20


def _recorded(answers: list[Any], clock: _Clock, most: int = 9, times: Any = None) -> tuple[PlanTime, ...]:
    """Rows of plans that give an output, or raise an error when they are built or executed.

    ``times`` has the nanoseconds of each plan, with hot and with cold weights.
    """
    current: list[Any] = [None]

    def start(at: int, answer: Any) -> Callable[[], Any]:
        def built() -> Any:
            if isinstance(answer, MemoryError):
                raise answer
            return lambda: execute(at, answer), 64

        return built

    def execute(at: int, answer: Any) -> None:
        if isinstance(answer, Exception):
            clock.lost = True
            raise answer
        current[0] = np.array([answer], np.float32)
        clock.now += times[at][clock.cold] if times else 1e6
        clock.cold = False

    rows = [(PlanTime(f"eng{at}", at), start(at, answer)) for at, answer in enumerate(answers)]
    loaded = LoadedBrick(lambda: None, [], [], lambda: [current[0]])
    reason_of = lambda error: f"it said: {error}"  # noqa: E731
    return measured(rows, loaded, clock, clock, reason_of, most=most, footprint=8 << 20)  # type: ignore[arg-type]


def test_a_plan_that_fails_is_a_row_and_the_others_go_on():
    found = _recorded([MemoryError("no room"), 2.0, 2.5], _Clock())

    assert [(row.ns, row.error) for row in found] == [(None, None), (1e6, 0.0), (1e6, 0.25)]
    assert found[0].reason == "it said: no room"
    assert found[1].workspace_bytes == 64


def test_the_fastest_plans_and_the_first_are_timed_in_the_models_state_too():
    hot_and_cold = [(9e5, 9.5e5), *((1e5 * at, 1e5 * (9 - at)) for at in range(1, 8))]

    found = _recorded([1.0] * 8, _Clock(), times=hot_and_cold)

    assert [row.ns for row in found] == [hot for hot, _ in hot_and_cold]
    assert [row.model_ns for row in found] == [9.5e5, 8e5, 7e5, 6e5, 5e5, 4e5, None, None]


def test_a_plan_that_cannot_be_captured_has_no_time_beside_those_that_can():
    clock = _Clock()
    clock.captures = False

    (row,) = _recorded([2.0], clock)

    assert (row.ns, row.reason) == (None, "it said: it cannot be captured")


def test_behind_a_plan_that_costs_the_gpu_none_is_tried():
    found = _recorded([2.0, RuntimeError("illegal address"), 2.0], _Clock())

    assert found[1].reason == "it said: illegal address"
    assert found[2].reason == "not tried: the GPU failed in a plan before"


def test_so_many_plans_are_executed():
    assert len(_recorded([1.0] * 5, _Clock(), most=3)) == 3


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["stream", "graph"])
@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BRICKS.items() for text in texts])
def test_a_library_computes_what_onnx_says(name, text, mode, dtype, skeleton_of):
    backend = get(name)
    if not has_driver() or not backend.probe().ok or backend.probe().missing:
        pytest.skip("no CUDA device")
    settings = Settings("cuda", 1, backend.resolve("cuda", {"mode": mode}), dtype=dtype)
    network = synthetic_network(skeleton_of(text), seed=3)
    backend.setup(settings)

    try:
        executable = backend.prepare(network, settings)
    except UnsupportedBrick as error:
        pytest.skip(f"refused: {error}")
    executable.run()
    executable.synchronize()
    (found,) = executable.outputs()
    executable.close()

    expected = np.asarray(ReferenceEvaluator(network.self_contained()).run(None, dict(network.feeds))[0])
    assert found.shape == expected.shape
    assert difference(found, expected) <= TOLERANCES[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cudnn", "cublas"])
def test_plans_of_a_library_are_timed(name, skeleton_of):
    backend = get(name)
    if not has_driver() or not backend.probe().ok or backend.probe().missing:
        pytest.skip("no CUDA device")
    settings = Settings("cuda", 1, backend.resolve("cuda", {}), dtype="float16")
    backend.setup(settings)

    found = backend.plans(synthetic_network(skeleton_of(BRICKS[name][0]), seed=3), settings, 8, 32 << 20)

    assert any(row.ns for row in found)
    assert all(row.ns or row.reason for row in found)
