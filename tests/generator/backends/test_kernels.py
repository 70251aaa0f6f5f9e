"""The kernels that runtimes execute, reported by the runtimes themselves."""

from __future__ import annotations

import re

import pytest
from dlbricks.db import Kernel, KernelView
from dlbricks.errors import BackendError, UsageError
from dlbricks.generator.backends.base import Backend, Settings
from dlbricks.generator.backends.registry import get
from dlbricks.generator.backends.reports import kernel_view
from dlbricks.generator.backends.torch.profiled_kernels import launches, primitives_of
from dlbricks.generator.network.network import file_network, synthetic_network
from working import file, start

BLOCK = (
    "(float[1,64,28,28] x, float[64,64,3,3] w0, float[64] w1, float[64,64,3,3] w2) => (float[1,64,28,28] y)"
    "{a = Conv<pads=[1,1,1,1]>(x, w0, w1) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, w2) d = Softmax(c) y = Add(d, x)}"
)


def installed(backend: str) -> Backend:
    """A runtime; skips where it is not installed. Nothing of it is imported here: OpenVINO would write home."""
    runtime = get(backend)
    if not runtime.probe().ok:
        pytest.skip(f"{backend} is not installed")
    assert runtime.offers(Backend.kernels)
    return runtime


def view_of(backend: str, model, executions: int = 3, **options: str) -> KernelView:
    """A view that is taken in this process."""
    runtime = installed(backend)
    settings = Settings("cpu", 1, runtime.resolve("cpu", {"pinning": "off", **options}), (0,))
    return runtime.kernels(synthetic_network(model), settings, executions)


def calls(view: KernelView, operator: str) -> int:
    return sum(one.calls for one in view.kernels if one.operator == operator)


def test_onnxruntime_names_nodes_by_domain_operator_and_provider(skeleton_of):
    view = view_of("onnxruntime", skeleton_of(BLOCK))

    assert {one.place for one in view.kernels} == {"CPUExecutionProvider"}
    operators = [re.sub("^Fused", "", one.operator) for one in view.kernels if not one.operator.startswith("Reorder")]
    assert operators == ["Conv", "Softmax", "Add"]  # in the order in which they start; Relu is fused
    (convolution,) = (one for one in view.kernels if one.operator.endswith("Conv"))
    assert convolution.calls == 2
    assert convolution.name in {"com.microsoft.nchwc.Conv", "com.microsoft.FusedConv", "Conv"}
    assert all(one.time_ns is not None for one in view.kernels)
    assert sum(one.time_ns or 0 for one in view.kernels) < 2 * view.wall_ns
    assert (view.executions, view.source) == (3, "onnxruntime profiling")


def test_onnxruntime_reports_the_plain_operators_that_an_option_leaves(skeleton_of):
    view = view_of("onnxruntime", skeleton_of(BLOCK), optimization="disabled")

    assert [(one.name, one.calls) for one in view.kernels] == [("Conv", 2), ("Relu", 1), ("Softmax", 1), ("Add", 1)]


def test_a_branch_is_known_by_what_runs_in_it(skeleton_of):
    branch = (
        "(bool b, float[4] x) => (float[4] y)"
        "{y = If(b) <then_branch = t () => (float[4] u) {u = Exp(x)}, else_branch = e () => (float[4] v) {v = Exp(x)}>}"
    )
    view = view_of("onnxruntime", skeleton_of(branch))

    assert [(one.name, one.calls) for one in view.kernels] == [("Exp", 1)]


def test_no_view_names_a_model(tmp_path, model_file):
    """Nodes and values bear the names that their author gave them."""
    graph = "(float[4,8] secret_x) => (float[4,8] secret_y) {secret = Relu(secret_x) secret_y = Exp(secret)}"
    network = file_network(model_file(tmp_path / "secret.onnx", graph, {}), overrides={})
    for backend in ("onnxruntime", *(name for name in ("openvino", "torch") if get(name).probe().ok)):
        runtime = installed(backend)
        settings = Settings("cpu", 1, runtime.resolve("cpu", {"pinning": "off"}), (0,))
        view = runtime.kernels(network, settings, 2)
        assert view.kernels
        assert "secret" not in repr(view)


def test_openvino_names_primitives(skeleton_of):
    view = view_of("openvino", skeleton_of(BLOCK))

    assert calls(view, "Convolution") == 2
    assert calls(view, "Softmax") == 1
    assert {one.place for one in view.kernels} == {"CPU"}
    assert all(one.name.endswith("_f32") for one in view.kernels if one.operator == "Convolution")
    assert (view.executions, view.source) == (3, "openvino profiling")


def test_torch_reports_the_operators_that_compute(skeleton_of):
    view = view_of("torch", skeleton_of(BLOCK), onednn="off")

    reported = [(one.name, one.operator, one.calls) for one in view.kernels]
    assert reported == [
        ("aten::_slow_conv2d_forward", "aten::conv2d", 2),
        ("aten::clamp_min", "aten::relu", 1),
        ("aten::_softmax", "aten::softmax", 1),
        ("aten::add", "aten::add", 1),
    ]
    assert {one.place for one in view.kernels} == {"cpu"}
    once = view_of("torch", skeleton_of(BLOCK), executions=1, onednn="off")  # medians of several need not add up
    assert sum(one.time_ns or 0 for one in once.kernels) <= 1.01 * once.wall_ns  # two clocks, each rounded
    assert view.source == "torch.profiler"


def test_torch_lists_no_views_and_no_memory(skeleton_of):
    graph = (
        "(float[1,8,12,12] x, float[8,4,3,3] w) => (float[1,4,144] y, float[1,4,24,12] z)"
        "{a = Conv<pads=[1,1,1,1], group=2>(x, w) s, q = Split<axis=1, num_outputs=2>(a) f = Flatten<axis=2>(s)"
        "shape = Constant<value=int64[3] {1,4,144}>() y = Reshape(f, shape) z = Concat<axis=2>(q, q)}"
    )
    view = view_of("torch", skeleton_of(graph), onednn="off")

    assert [(one.name, one.operator, one.calls) for one in view.kernels] == [
        ("aten::_slow_conv2d_forward", "aten::conv2d", 2),
        ("aten::cat", "aten::conv2d", 1),
        ("aten::cat", "aten::cat", 1),
    ]


def test_a_brick_of_views_has_no_kernels_and_a_view(skeleton_of):
    view = view_of("torch", skeleton_of("(float[2,3,4] x) => (float[4,3,2] y) {y = Transpose<perm=[2,1,0]>(x)}"))

    assert view.kernels == ()
    assert view.wall_ns > 0


def test_torch_lists_copies(skeleton_of):
    graph = (
        "(float[2,3,4] x) => (float[24] y)"
        "{a = Transpose<perm=[2,1,0]>(x) shape = Constant<value=int64[1] {24}>() y = Reshape(a, shape)}"
    )
    view = view_of("torch", skeleton_of(graph))

    assert [(one.name, one.operator, one.calls) for one in view.kernels] == [("aten::clone", "aten::reshape", 1)]


@pytest.fixture(scope="module")
def fresh_view(skeleton_of, tmp_path_factory) -> KernelView:
    """A view from a worker: oneDNN decides with its first line whether it logs the time."""
    torch = pytest.importorskip("torch")
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    path = tmp_path_factory.mktemp("bricks") / "brick.onnx"
    path.write_bytes(skeleton_of(BLOCK).SerializeToString())
    with start("torch") as worker:
        return worker.profile(file(path), 3, timeout_s=60.0)


def test_onednn_reports_what_runs_inside_an_operator(fresh_view):
    primitives = [one for one in fresh_view.kernels if one.name.startswith("convolution ")]

    assert [one.calls for one in primitives] == [2]
    assert primitives[0].operator == "aten::conv2d"
    (rest,) = (one for one in fresh_view.kernels if one.name == "aten::mkldnn_convolution")
    assert rest.calls == 2
    assert sum(one.time_ns or 0 for one in fresh_view.kernels) <= 1.01 * fresh_view.wall_ns


@pytest.mark.slow
def test_the_kernels_that_the_compiler_writes_have_names(skeleton_of):
    view = view_of("torch", skeleton_of(BLOCK), mode="compile", onednn="off")

    assert calls(view, "aten::convolution") == 2
    fused = [one.name for one in view.kernels if one.name.startswith("cpp_fused")]
    assert any("relu" in name for name in fused)
    assert any("softmax" in name for name in fused)


def test_kernels_of_another_device_are_those_that_it_ran():
    """Events as PyTorch's profiler makes them; no GPU made these."""
    kinds = pytest.importorskip("torch.autograd").DeviceType
    events = pytest.importorskip("torch.autograd.profiler_util")

    def event(name, begin, end, device=kinds.CPU):
        return events.FunctionEvent(id=begin, name=name, thread=1, start_us=begin, end_us=end, device_type=device)

    mark, linear, addmm = event("execution", 0, 100), event("aten::linear", 1, 20), event("aten::addmm", 2, 19)
    relu, clamp = event("aten::relu", 21, 30), event("aten::clamp_min", 22, 29)
    for parent, child in ((mark, linear), (linear, addmm), (mark, relu), (relu, clamp)):
        parent.append_cpu_child(child)
    addmm.append_kernel("ampere_sgemm_32x32_tn", 0, 40)
    addmm.append_kernel("splitKreduce_kernel", 0, 5)
    clamp.append_kernel("vectorized_elementwise_kernel", 0, 3)
    elsewhere = [
        event("vectorized_elementwise_kernel", 60, 63, kinds.CUDA),
        event("ampere_sgemm_32x32_tn", 10, 50, kinds.CUDA),
        event("splitKreduce_kernel", 51, 56, kinds.CUDA),
        event("Memcpy DtoH (Device -> Pageable)", 70, 71, kinds.CUDA),
        event("ampere_sgemm_32x32_tn", 210, 250, kinds.CUDA),  # of the next execution
    ]
    assert [*launches(mark, elsewhere, [])] == [
        ("ampere_sgemm_32x32_tn", "aten::linear", "cuda", 40_000),
        ("splitKreduce_kernel", "aten::linear", "cuda", 5_000),
        ("vectorized_elementwise_kernel", "aten::relu", "cuda", 3_000),
        ("Memcpy DtoH (Device -> Pageable)", "", "cuda", 1_000),
    ]


def test_calls_that_only_launch_or_wait_are_no_kernels():
    """Of a brick that is a view: the replay of its empty graph, as PyTorch's profiler reports it."""
    kinds = pytest.importorskip("torch.autograd").DeviceType
    events = pytest.importorskip("torch.autograd.profiler_util")
    names = ("execution", "cudaStreamIsCapturing", "cudaGraphLaunch", "cuLaunchKernelEx", "aten::add")
    mark, *others = (
        events.FunctionEvent(id=at, name=name, thread=1, start_us=at, end_us=at + 1, device_type=kinds.CPU)
        for at, name in enumerate(names)
    )
    for one in others:
        mark.append_cpu_child(one)

    assert [name for name, *_ in launches(mark, [], [])] == ["aten::add"]


def test_a_view_has_medians_over_executions():
    fast, slow, odd = ("a", "op", "cpu", 10), ("a", "op", "cpu", 30), ("b", "", "cpu", None)
    view = kernel_view([[fast, fast, odd], [odd, slow, fast], [fast, slow, odd]], [100, 140, 120], "a test")

    assert view == KernelView((Kernel("a", "op", "cpu", 2, 40), Kernel("b", "", "cpu", 1, None)), 120, 3, "a test")


def test_a_kernel_of_one_execution_alone_is_not_reported():
    once = ("once", "", "cpu", 1)

    assert kernel_view([[], [once], []], [1, 1, 1], "a test").kernels == ()


def test_an_execution_that_nobody_saw_is_an_error():
    with pytest.raises(BackendError, match="recorded 1 of 2 executions"):
        kernel_view([[]], [1, 1], "a test")


def test_lines_of_onednn():
    """As PyTorch 2.13 has them; and as older versions do, and without the time of day."""
    text = """onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71049cd69a3df32adcccb623b12cd7baa22)
onednn_verbose,v1,primitive,info,template:timestamp,operation,engine,primitive,implementation,prop_kind,exec_time
onednn_verbose,v1,1795265892308.349121,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,\
src:f32:a:blocked:aBcd16b::f0 wei:f32:a:blocked:ABcd16b16a::f0,attr-scratchpad:user,alg:direct,mb1_ic64,1.68384
onednn_verbose,primitive,exec,cpu,convolution,jit:avx2,forward_training,src_f32,,alg:convolution_direct,mb2_ic17,0.0514
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0,attr-scratchpad:user,,64x64,0.02
something else that the process wrote
"""
    begin_ns = 1_795_265_892_308_000_000

    ((name, start_ns, time_ns),) = primitives_of(text, begin_ns)
    assert name == "convolution jit:avx512_core"
    assert time_ns == 1_683_840
    assert abs(start_ns - 349_121) < 1000  # as far as a float goes


def test_a_backend_without_a_profiler_says_so():
    with pytest.raises(UsageError, match="mxnet does not report the kernels"):
        get("mxnet").require(Backend.kernels)
