"""What NVIDIA's management library reports of a GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from dlbricks.generator.machine.nvml import gpu_state, throttled
from dlbricks.generator.machine.system import machine_state


class NVMLError(Exception):
    """As of nvidia-ml-py."""


@pytest.fixture
def nvml(monkeypatch) -> ModuleType:
    """The functions that are asked, with what an H100 answered most of them on 2026-11-22; one that it has not."""

    def unknown(*_: object) -> None:
        raise NVMLError("Not Supported")

    answers = {
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.159",
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1980, 2: 2619}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda *_: 1980,
        "nvmlDeviceGetTemperature": lambda *_: 35,
        "nvmlDeviceGetPowerUsage": lambda _: 116_064,
        "nvmlDeviceGetEnforcedPowerLimit": unknown,
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(free=84_389_593_088),
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0,
        "nvmlDeviceGetViolationStatus": lambda _, policy: SimpleNamespace(violationTime=(7_000_000, 0)[policy]),
    }
    module = ModuleType("pynvml")
    vars(module).update(answers, NVMLError=NVMLError, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0)
    vars(module).update(NVML_PERF_POLICY_POWER=0, NVML_PERF_POLICY_THERMAL=1)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_what_the_gpu_does_not_report_is_not_there(nvml):
    state = gpu_state()

    assert state == {
        "driver": "580.159", "sm_mhz": 1980, "memory_mhz": 2619, "most_sm_mhz": 1980, "temperature_c": 35,
        "power_w": 116.064, "memory_free_bytes": 84_389_593_088, "held_back": [], "power_held_ns": 7_000_000,
        "thermal_held_ns": 0,
    }  # fmt: skip
    assert machine_state()["gpu"] == state
    assert not throttled(state, state, 1.0)


@pytest.mark.parametrize(
    ("bits", "reasons", "held"), [(0x1, ["idle"], False), (0x4 | 0x20, ["power cap", "thermal, software"], True)]
)
def test_clocks_are_held_back_by_power_and_heat(nvml, monkeypatch, bits, reasons, held):
    monkeypatch.setattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", lambda _: bits)

    state = gpu_state()

    assert state["held_back"] == reasons
    assert throttled(state, {}, 1.0) is throttled({}, state, 1.0) is held


@pytest.mark.parametrize("name", ["power_held_ns", "thermal_held_ns"])
@pytest.mark.parametrize(("held_ns", "held"), [(0, False), (10_000_000, False), (30_000_000, True)])
def test_what_held_clocks_back_in_between_is_known_by_its_time(name, held_ns, held):
    """Moments of it are usual under load: they change a mean by less than others do."""
    assert throttled({name: 5}, {name: 5 + held_ns}, 2.0) is held
    assert not throttled({}, {name: 5 + held_ns}, 2.0)


def test_it_is_the_gpu_that_cuda_would_take(nvml, monkeypatch):
    asked = []
    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByIndex", asked.append)
    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByUUID", asked.append, raising=False)
    for text in ("", "2,3", "GPU-2cfea6ed"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        gpu_state()

    assert asked == [0, 2, "GPU-2cfea6ed"]


def test_without_the_library_or_a_gpu_nothing_is_reported(nvml, monkeypatch):
    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(nvml, "nvmlInit", fail)
    assert gpu_state() == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_state() == {}
    assert "gpu" not in machine_state()
