"""ONNX Runtime on a GPU: what is asked of its provider, what is refused without one, and which nodes fall back."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dlbricks.db import Kernel, KernelView
from dlbricks.errors import BackendUnavailable, UsageError
from dlbricks.generator.backends.base import Backend, Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend, level, session_options
from dlbricks.generator.backends.onnxruntime.executed_nodes import is_left, left_to_session
from dlbricks.generator.backends.onnxruntime.session import (
    CPU,
    CUDA,
    WORDING,
    cuda_options,
    launches,
    missing_for_cuda,
    providers,
    require_cuda,
    runs,
    streaming,
)
from dlbricks.generator.backends.reports import kernel_view
from dlbricks.generator.device.host import HostDevice
from dlbricks.generator.machine.nvml import has_driver
from dlbricks.generator.network.network import synthetic_network

BLOCK = "(float[1,8,9,9] x, float[16,8,3,3] w0, float[16] w1) => (float[1,16,7,7] y){a = Conv(x, w0, w1) y = Relu(a)}"

PROFILE = """[
{"cat" : "Session","pid" :7,"tid" :7,"dur" :812,"ts" :3,"ph" : "X","name" :"model_loading_array","args" : {}},
{"cat" : "Node","pid" :7,"tid" :7,"dur" :41,"ts" :1010,"ph" : "X","name" :"a_kernel_time","args" : {"op_name" : "Conv","provider" : "CUDAExecutionProvider","node_index" : "0","thread_scheduling_stats" : "","input_type_shape" : [{"float":[1,8,9,9]},{"float":[16,8,3,3]}],"output_type_shape" : [{"float":[1,16,7,7]}],"output_size" : "3136"}},
{"cat" : "Node","pid" :7,"tid" :7,"dur" :9,"ts" :1060,"ph" : "X","name" :"Memcpy_kernel_time","args" : {"op_name" : "MemcpyToHost","provider" : "CUDAExecutionProvider","node_index" : "1","input_type_shape" : [],"output_type_shape" : [],"output_size" : "3136"}},
{"cat" : "Node","pid" :7,"tid" :7,"dur" :15,"ts" :1080,"ph" : "X","name" :"b_kernel_time","args" : {"op_name" : "NonZero","provider" : "CPUExecutionProvider","node_index" : "2","input_type_shape" : [],"output_type_shape" : [],"output_size" : "8"}},
{"cat" : "Session","pid" :7,"tid" :7,"dur" :130,"ts" :1004,"ph" : "X","name" :"SequentialExecutor::Execute","args" : {}},
{"cat" : "Session","pid" :7,"tid" :7,"dur" :150,"ts" :1000,"ph" : "X","name" :"model_run","args" : {}}
]"""  # noqa: E501
"""In the runtime's format, written by hand."""


ARENA_IS_FULL = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv. Status Message: "
    "/build/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, Stream*) "
    "Failed to allocate memory for requested buffer of size 4294967296"
)


def settings(**options: str) -> Settings:
    return Settings("cuda", 1, OrtBackend().resolve("cuda", options))


def test_options_are_those_of_the_device():
    backend = OrtBackend()

    assert backend.resolve("cuda", {}) == {
        "optimization": "all", "mode": "stream", "layout": "contiguous", "conv_search": "exhaustive", "tf32": "off",
    }  # fmt: skip
    assert "tf32" not in backend.resolve("cpu", {})
    with pytest.raises(UsageError, match="backend onnxruntime has no option 'pinning'; it has optimization="):
        backend.resolve("cuda", {"pinning": "off"})
    with pytest.raises(UsageError, match=r"cannot be 'eager'; use mode=stream\|graph"):
        backend.resolve("cuda", {"mode": "eager"})


def test_settings_become_options_of_the_provider():
    plain = cuda_options(settings().options, 4711)
    other = cuda_options(
        settings(tf32="on", layout="channels_last", conv_search="heuristic", mode="graph").options, 4711
    )

    assert plain == {
        "device_id": "0", "user_compute_stream": "4711", "arena_extend_strategy": "kSameAsRequested", "use_tf32": "0",
        "prefer_nhwc": "0", "cudnn_conv_algo_search": "EXHAUSTIVE", "enable_cuda_graph": "0",
    }  # fmt: skip
    assert {name: value for name, value in other.items() if plain[name] != value} == {
        "use_tf32": "1", "prefer_nhwc": "1", "cudnn_conv_algo_search": "HEURISTIC", "enable_cuda_graph": "1",
    }  # fmt: skip
    assert streaming(settings(mode="graph", tf32="on")) == settings(tf32="on")
    cpu = Settings("cpu", 1, OrtBackend().resolve("cpu", {}))
    assert streaming(cpu) is cpu
    assert providers(cpu) == [CPU]


def test_a_session_on_a_gpu_has_the_level_that_is_asked_for(skeleton_of):
    network = synthetic_network(skeleton_of(BLOCK))

    options = session_options(network, settings())

    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert level(network, settings(optimization="basic")) == "basic"
    assert level(replace(network, as_is=True), settings()) == "disabled"


def test_what_cannot_be_read_back_is_optimised_by_its_session(skeleton_of):
    network = synthetic_network(skeleton_of(BLOCK))

    left = left_to_session(network)

    assert left.as_is
    assert is_left(left)
    assert not is_left(network)
    assert level(replace(left, as_is=True), settings()) == "all"


def test_precisions_are_those_of_the_device():
    backend = OrtBackend()

    assert backend.dtypes_on("cpu") == ("float32", "int8")
    assert backend.dtypes_on("cuda") == ("float32", "float16")
    backend.require_dtype("float16", "cuda")
    with pytest.raises(
        UsageError,
        match=r"^backend onnxruntime does not compute in 'float16' on device 'cpu'; it has float32, int8 there",
    ):
        backend.require_dtype("float16", "cpu")
    with pytest.raises(UsageError, match="'int8' on device 'cuda'; it has float32, float16 there"):
        backend.setup(replace(settings(), dtype="int8"))
    with pytest.raises(UsageError, match="'float16' on device 'cpu'"):
        backend.setup(Settings("cpu", 1, backend.resolve("cpu", {"pinning": "off"}), dtype="float16"))


def test_algorithms_are_those_of_the_device():
    backend = OrtBackend()

    def names(device: str, **options: str) -> list[str]:
        return [one.name for one in backend.algorithms(device, backend.resolve(device, options), "float32")]

    assert names("cuda") == ["basic", "channels_last", "heuristic", "unfused"]
    assert "contiguous" in names("cuda", layout="channels_last")
    assert "searched" in names("cuda", conv_search="default")
    assert "unpacked" in names("cpu")


def test_what_is_missing_is_reported_without_the_runtime():
    lacks = missing_for_cuda()

    package = Path(importlib.util.find_spec("onnxruntime").origin).parent
    assert ("package onnxruntime-gpu is not installed" in lacks) is not any(package.glob("capi/*providers_cuda.so"))
    assert ("CuPy is not installed" in lacks) is (importlib.util.find_spec("cupy") is None)
    assert lacks.endswith("no NVIDIA driver is found") is not has_driver()
    assert OrtBackend().probe().why_not("cuda") == lacks
    assert OrtBackend().probe().why_not("cpu") == ""


def test_without_a_gpu_the_setup_is_refused():
    if has_driver():
        pytest.skip("there is a CUDA device")

    with pytest.raises(BackendUnavailable, match=r"CuPy cannot be loaded|CUDA finds no GPU"):
        OrtBackend().setup(settings())
    with pytest.raises(BackendUnavailable):
        require_cuda()


def test_a_streaming_backend_packs_on_the_cpu_alone(skeleton_of):
    backend = OrtBackend()
    cpu = Settings("cpu", 1, backend.resolve("cpu", {"pinning": "off"}))

    assert backend.offers(Backend.prepare_streamed)
    assert backend.packs(cpu)
    assert not backend.packs(settings())
    assert backend.in_turn(settings().options)
    assert isinstance(backend.device(cpu), HostDevice)
    network = synthetic_network(skeleton_of(BLOCK))
    executable = backend.prepare_streamed(network, cpu)
    before = executable.outputs()
    executable.refresh()
    backend.captured(executable.run, cpu)()
    for one, other in zip(before, executable.outputs(), strict=True):
        np.testing.assert_array_equal(one, other)
    executable.close()


def fallbacks(view: KernelView) -> tuple[str, ...]:
    """Operators that ran on the CPU, and the copies between it and the GPU, sorted."""
    names = {one.operator for one in view.kernels if one.place == CPU or one.operator.startswith("Memcpy")}
    return tuple(sorted(names))


def test_nodes_that_fell_back_are_named():
    (execution,) = runs(json.loads(PROFILE))

    view = kernel_view([launches(execution, {"Conv": {"a": "com.microsoft"}})], [150_000], "a test")

    assert view.kernels == (
        Kernel("com.microsoft.Conv", "Conv", CUDA, 1, None),  # the profile has the launch's time, not the kernel's
        Kernel("MemcpyToHost", "MemcpyToHost", CUDA, 1, None),
        Kernel("NonZero", "NonZero", CPU, 1, 15_000),
    )
    assert fallbacks(view) == ("MemcpyToHost", "NonZero")


def test_on_the_cpu_everything_is_there(skeleton_of):
    backend = OrtBackend()
    cpu = Settings("cpu", 1, backend.resolve("cpu", {"pinning": "off", "optimization": "basic"}))

    assert fallbacks(backend.kernels(synthetic_network(skeleton_of(BLOCK)), cpu, 1)) == ("Conv", "Relu")


@pytest.mark.parametrize(
    "text",
    [
        ARENA_IS_FULL,
        "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);",
        "Available memory of 1024 is smaller than requested bytes of 4096",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
    ],
)
def test_too_little_memory_of_the_gpu_is_distinguished(text):
    assert isinstance(WORDING.meaning(RuntimeError(text)), MemoryError)


@pytest.mark.gpu
def test_a_gpu_computes_what_the_cpu_does(skeleton_of):
    backend = OrtBackend()
    lack = missing_for_cuda()
    if lack:
        pytest.skip(f"no CUDA device: {lack}")
    network = synthetic_network(skeleton_of(BLOCK))
    cpu = Settings("cpu", 1, backend.resolve("cpu", {"pinning": "off"}))
    exact = backend.prepare(network, cpu)
    exact.run()
    backend.setup(settings())
    for mode in ("stream", "graph"):
        for dtype in ("float32", "float16"):
            asked = replace(settings(mode=mode), dtype=dtype)
            for ready in (network, backend.optimised(network, asked)):
                executable = backend.prepare_streamed(ready, asked)
                executable.refresh()
                executable.run()
                executable.synchronize()
                for one, other in zip(exact.outputs(), executable.outputs(), strict=True):
                    np.testing.assert_allclose(other.astype(np.float32), one, rtol=0.02, atol=0.02)
                executable.close()
    assert fallbacks(backend.kernels(network, settings(), 1)) == ()
