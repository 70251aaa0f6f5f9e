"""What NVIDIA's management library reports of a GPU."""

from __future__ import annotations

import os
import shutil
import sys
from types import ModuleType, SimpleNamespace

import pytest
from dlbricks.generator.backends import base
from dlbricks.generator.backends.registry import get
from dlbricks.generator.machine.nvml import CudaGpu, cuda_gpu, driver_version, gpu_state, throttled
from dlbricks.generator.machine.system import _gpus, machine_state
from stub_driver import build


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
        "nvmlDeviceGetHandleByPciBusId": lambda bus: bus,
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


@pytest.fixture
def h100(monkeypatch) -> None:
    """CUDA's first GPU."""
    monkeypatch.setattr("dlbricks.generator.machine.nvml.cuda_gpu", lambda: CudaGpu("NVIDIA H100", "0000:06:00.0"))


@pytest.mark.usefixtures("h100")
def test_what_the_gpu_does_not_report_is_not_there(nvml):
    state = gpu_state()

    assert state == {
        "driver": "580.159", "sm_mhz": 1980, "memory_mhz": 2619, "most_sm_mhz": 1980, "temperature_c": 35,
        "power_w": 116.064, "memory_free_bytes": 84_389_593_088, "held_back": [], "power_held_ns": 7_000_000,
        "thermal_held_ns": 0,
    }  # fmt: skip
    assert machine_state()["gpu"] == state
    assert not throttled(state, state, 1.0)


@pytest.mark.usefixtures("h100")
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


DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int index) { *device = 7; return index; }
int cuDeviceGetName(char *name, int size, int device) { strcpy(name, "%s"); return device != 7; }
int cuDeviceGetPCIBusId(char *bus, int size, int device) { strcpy(bus, "0000:C1:00.0"); return device != 7; }
"""
"""A driver whose first GPU for CUDA is not the first on the bus."""

SMI = """#!/bin/sh
echo '00000000:06:00.0, NVIDIA A10, 150.00, 150.00'
echo '00000000:C1:00.0, NVIDIA H100 80GB HBM3, %s, 700.00'
"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes a machine with two GPUs, from the name that CUDA gives to its first and that one's power limit."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")

    def make(name: str, limit: str) -> None:
        monkeypatch.setattr("dlbricks.generator.machine.nvml.DRIVER_LIBRARY", str(build(tmp_path, DRIVER % name)))
        program = tmp_path / "nvidia-smi"
        program.write_text(SMI % limit)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    cuda_gpu.cache_clear()
    yield make
    cuda_gpu.cache_clear()


def test_it_is_the_gpu_that_cuda_would_take(nvml, monkeypatch, machine):
    asked = []
    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByPciBusId", asked.append)
    machine("NVIDIA H100 80GB HBM3", "700.00")

    gpu_state()

    assert asked == ["0000:C1:00.0"]


@pytest.mark.parametrize(
    ("name", "limit", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "700.00", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100 80GB HBM3", "350.00", "NVIDIA H100 80GB HBM3, 350.00 W"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "700.00", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
    ],
)
def test_a_slice_and_a_power_limit_are_other_hardware(machine, name, limit, expected):
    machine(name, limit)

    assert _gpus() == (expected, "NVIDIA A10")


def test_a_stack_of_the_gpu_names_nvidias_libraries_and_its_driver(monkeypatch, tmp_path):
    described = tmp_path / "version"
    described.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
    versions = {"nvidia-cudnn-cu13": "9.19.0.56", "nvidia-cublas": "13.1.0.3", "cupy-cuda13x": "14.2.0"}

    def installed(names):
        return tuple(sorted((name, versions[name]) for name in names if name in versions))

    monkeypatch.setattr(base, "installed", installed)
    monkeypatch.setattr(base, "driver_version", lambda: driver_version(described))
    monkeypatch.setattr(base.importlib.util, "find_spec", lambda _: True)
    stack = get("cupy").stack("cuda", {})

    assert dict(stack.versions) == {**versions, "nvidia-driver": "580.95.05"}
    assert driver_version(tmp_path / "none") == ""


@pytest.mark.usefixtures("h100")
def test_without_the_library_or_a_gpu_nothing_is_reported(nvml, monkeypatch):
    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(nvml, "nvmlInit", fail)
    assert gpu_state() == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_state() == {}
    assert "gpu" not in machine_state()
