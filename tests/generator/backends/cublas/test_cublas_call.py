"""The call of cuBLAS itself, executed in the host's memory by what its parameters mean."""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dlbricks.errors import UnsupportedBrick
from dlbricks.generator.backends.cublas import backend
from dlbricks.generator.backends.cublas.problem import Operands
from dlbricks.generator.measurement.agreement import difference
from dlbricks.generator.network.network import synthetic_network
from onnx.reference import ReferenceEvaluator

_MANY = (
    *("handle", "transa", "transb", "m", "n", "k", "alpha", "a", "atype", "lda", "stride_a", "b", "btype", "ldb"),
    *("stride_b", "beta", "c", "ctype", "ldc", "stride_c", "batch_count", "compute_type", "algo"),
)
_ONE = [name for name in _MANY if not name.startswith(("stride", "batch"))]
"""Parameters of ``gemm_strided_batched_ex`` and ``gemm_ex`` of nvmath's bindings, in order."""

PLAIN = [
    "(float[3,4] x, float[4,5] w0) => (float[3,5] y) { y = MatMul(x, w0) }",
    "(float[2,6,3,4] x, float[2,6,4,5] z) => (float[2,6,3,5] y) { y = MatMul(x, z) }",
    "(float[3,4] x, float[2,4,5] z) => (float[2,3,5] y) { y = MatMul(x, z) }",
    "(float[4,3] x, float[5,4] w0) => (float[3,5] y) { y = Gemm<transA=1, transB=1, alpha=0.5>(x, w0) }",
]


class _HostMemory:
    """Memory of the host behind the interface of ``library.Memory``."""

    def empty(self, size: int) -> Any:
        values = np.zeros(size, np.uint8)
        return SimpleNamespace(bytes=values, size=size, address=values.ctypes.data)

    def holding(self, values: np.ndarray) -> Any:
        buffer = self.empty(values.nbytes)
        buffer.bytes[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return buffer

    def read(self, buffer: Any, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        return buffer.bytes.view(dtype).reshape(shape)


def _product(names: Sequence[str]) -> Any:
    """cuBLAS's product of float32, column by column."""

    def call(*values: Any) -> None:
        of = dict(zip(names, values, strict=True))
        assert (of["atype"], of["btype"], of["ctype"], of["compute_type"], of["algo"]) == (0, 0, 0, 68, -1)
        alpha, beta = (ctypes.c_float.from_address(of[name]).value for name in ("alpha", "beta"))
        for at in range(of.get("batch_count", 1)):

            def matrix(name: str, rows: int, columns: int, at: int = at) -> np.ndarray:
                lead, address = of[f"ld{name}"], of[name] + 4 * at * of.get(f"stride_{name}", 0)
                flat = np.ctypeslib.as_array((ctypes.c_float * (lead * columns)).from_address(address))
                return flat.reshape(columns, lead).T[:rows]

            m, n, k = of["m"], of["n"], of["k"]
            a = matrix("a", k, m).T if of["transa"] else matrix("a", m, k)
            b = matrix("b", n, k).T if of["transb"] else matrix("b", k, n)
            c = matrix("c", m, n)
            c[:] = alpha * (a @ b) + (beta * c if beta else 0)

    return call


@pytest.fixture
def cublas(monkeypatch):
    bindings = SimpleNamespace(gemm_ex=_product(_ONE), gemm_strided_batched_ex=_product(_MANY))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", SimpleNamespace(cublas=bindings))
    monkeypatch.setattr(backend, "_plain_handle", lambda stream: (stream, None))


@pytest.mark.usefixtures("cublas")
@pytest.mark.parametrize("text", PLAIN)
def test_the_call_computes_what_onnx_says(text, skeleton_of):
    network = synthetic_network(skeleton_of(text), seed=3)
    operands = Operands(network, "float32", _HostMemory())

    backend.plain_run(operands, 7, tf32=False)()

    (found,) = operands.loaded().read()
    expected = np.asarray(ReferenceEvaluator(network.self_contained()).run(None, dict(network.feeds))[0])
    assert difference(found.reshape(expected.shape), expected) < 1e-5


@pytest.mark.usefixtures("cublas")
def test_a_bias_is_left_to_cublaslt(skeleton_of):
    text = "(float[3,4] x, float[4,5] w0, float[5] w1) => (float[3,5] y) { y = Gemm(x, w0, w1) }"
    operands = Operands(synthetic_network(skeleton_of(text)), "float32", _HostMemory())

    with pytest.raises(UnsupportedBrick, match="only cuBLASLt"):
        backend.plain_run(operands, 7, tf32=False)


def test_the_workspace_is_given_behind_the_stream_which_resets_it(monkeypatch):
    done = []
    called = {name: lambda *values, name=name: done.append((name, *values)) for name in ("set_stream", "set_workspace")}
    cupy = SimpleNamespace(cuda=SimpleNamespace(alloc=lambda size: SimpleNamespace(ptr=4096, size=size)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    bindings = SimpleNamespace(create=lambda: 3, **called)
    monkeypatch.setitem(sys.modules, "nvmath.bindings", SimpleNamespace(cublas=bindings))

    handle, workspace = backend._plain_handle.__wrapped__(7)

    assert handle == 3
    assert done == [("set_stream", 3, 7), ("set_workspace", 3, workspace.ptr, workspace.size)]
    assert workspace.size >= 1 << 20


def test_the_bindings_have_these_parameters():
    cublas = pytest.importorskip("nvmath.bindings.cublas")

    assert list(inspect.signature(cublas.gemm_ex).parameters) == list(_ONE)
    assert list(inspect.signature(cublas.gemm_strided_batched_ex).parameters) == list(_MANY)
