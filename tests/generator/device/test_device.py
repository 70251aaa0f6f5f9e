"""Devices: the CPU as one, and what is said where there is no GPU."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from dlbricks.errors import BackendError, BackendUnavailable, UsageError
from dlbricks.generator.device.cuda import CudaDevice
from dlbricks.generator.device.host import HostDevice, open_device, state_of
from dlbricks.generator.machine.nvml import has_driver
from visit_rehearsal import cupy_in_numpy


@pytest.fixture(params=["cpu", "cupy in numpy", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if request.param == "cupy in numpy":  # the GPU's code without one
        monkeypatch.setitem(sys.modules, "cupy", cupy_in_numpy())
        return CudaDevice()
    return opened(request.param)


def opened(name: str):
    if name == "cuda" and not (has_driver() and importlib.util.find_spec("cupy")):
        pytest.skip("no CUDA device")
    return open_device(name)


def test_events_measure_the_time_between_them_and_later_ones_more(device):
    first, second, third = (device.event() for _ in range(3))
    for event in (first, second, third):
        device.record(event)
        device.hold(50_000)
    device.synchronize()

    assert 0 <= device.elapsed_ns(first, second) <= device.elapsed_ns(first, third)
    with pytest.raises(BackendError):
        device.elapsed_ns(device.event(), device.event())  # neither was recorded


def test_what_is_captured_runs_at_each_launch_with_its_events(device):
    first, second = device.event(), device.event()

    def enqueue() -> None:
        device.record(first)
        device.record(second)

    launch = device.capture(enqueue)
    for _ in range(2):
        launch()
        device.synchronize()
        assert device.elapsed_ns(first, second) >= 0


def test_the_time_of_a_run_is_reported_and_caches_can_be_evicted(device):
    device.evict()
    seen = []

    taken = device.timed_ns(lambda: seen.append("run"), lambda: seen.append("end"))

    assert taken >= 0
    assert seen[0] == "run"
    assert device.cache_bytes > 0
    assert 0 <= device.resolution_ns < 1e6
    assert (device.resolution_ns > 0) == (device.name == "cuda")  # of a GPU its own kernel finds the step


@pytest.mark.gpu
def test_a_held_gpu_lets_the_caller_go_on():
    gpu = opened("cuda")
    begin, end = gpu.event(), gpu.event()
    gpu.record(begin)
    gpu.hold(2_000_000)
    gpu.record(end)
    gpu.synchronize()

    assert 1_500_000 < gpu.elapsed_ns(begin, end) < 4_000_000


def test_there_are_the_cpu_and_a_gpu_where_cupy_is():
    host = HostDevice()
    assert (host.name, host.stream) == ("cpu", 0)
    assert dict(state_of("cpu")) == {}
    with pytest.raises(UsageError, match="use cpu or cuda"):
        open_device("tpu")
    if importlib.util.find_spec("cupy") is None:
        with pytest.raises(BackendUnavailable, match=r"CuPy cannot be loaded.*cupy-cuda12x or cupy-cuda13x"):
            open_device("cuda")
