"""cuBLAS: bricks of one matrix product, with a bias and an activation if an epilogue exists."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import UnsupportedBrick
from ...device.device import Device, Run
from ...network.network import Network
from ..base import TF32, Algorithm, Option, PlanTime, Settings
from ..library import (
    CUPY,
    FIRST,
    MODE,
    PLAN,
    Buffer,
    LibraryBackend,
    LoadedBrick,
    Memory,
    PlanCandidate,
    measured,
)
from ..reports import Wording
from .problem import Matrix, Operands

# A product by cuBLASLt, with any of the algorithms that its heuristics offer, or by cuBLAS itself.
#
# Calls of cuBLASLt are those of https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api, through the bindings of
# nvmath-python. So is cuBLAS: one call, whose algorithm the library chooses
# (https://docs.nvidia.com/cuda/cublas/#cublasgemmex and ``cublasGemmStridedBatchedEx``). CuPy's own binding refuses to
# be captured in a graph.


MOST = 32
"""Algorithms that are asked for."""
_WORKSPACE = 32 << 20
"""Maximum workspace of an algorithm in bytes: NVIDIA's advice for Hopper (``cublasSetWorkspace``)."""

_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
"""``cudaDataType`` by precision."""
_COMPUTE_32F, _COMPUTE_32F_FAST_TF32 = 68, 77
"""``cublasComputeType_t``."""
_EPILOGUES = {("", False): 1, ("", True): 4, ("relu", False): 2, ("relu", True): 6, ("gelu", False): 32,
              ("gelu", True): 36}  # fmt: skip
"""``cublasLtEpilogue_t`` by activation and presence of a vector."""
_KNOBS = ("TILE_ID", "STAGES_ID", "SPLITK_NUM", "REDUCTION_SCHEME", "CTA_SWIZZLING", "CUSTOM_OPTION", "INNER_SHAPE_ID",
          "CLUSTER_SHAPE_ID")  # fmt: skip
_FLAGS = {
    0: "FMA", 1: "HMMA", 2: "IMMA", 3: "DMMA", 8: "ACCUMULATOR_16F", 9: "ACCUMULATOR_32F", 16: "INPUT_16F",
    17: "INPUT_16BF", 18: "INPUT_TF32", 19: "INPUT_32F",
}  # fmt: skip
"""``cublasLtNumericalImplFlags_t`` by bit."""


def compute_type(dtype: str, *, tf32: bool) -> int:
    """Return the number of the computing precision (``cublasComputeType_t``): float32, or TF32 if allowed."""
    return _COMPUTE_32F_FAST_TF32 if tf32 and dtype == "float32" else _COMPUTE_32F


class Scalars:
    """The two factors of a product in host memory, from which the library reads them."""

    def __init__(self, alpha: float, beta: float) -> None:
        self._numbers = np.array([alpha, beta], np.float32)
        self.alpha = int(self._numbers.ctypes.data)
        self.beta = self.alpha + self._numbers.itemsize


class Light:
    """A product, described to the library.

    Raises:
        Exception: ``cuBLASLtError`` if the library lacks it.
    """

    def __init__(self, operands: Operands, memory: Memory, stream: int, *, tf32: bool) -> None:
        from nvmath.bindings import cublasLt

        problem = operands.problem
        self._lt: Any = cublasLt
        self._operands = operands
        self._memory = memory
        self._stream = stream
        self._scalars = Scalars(problem.alpha, operands.beta)
        kind = _TYPES[operands.dtype]
        self._description = cublasLt.matmul_desc_create(compute_type(operands.dtype, tf32=tf32), _TYPES["float32"])
        self._layouts = [self._layout(each, kind) for each in (problem.left, problem.right, problem.result)]
        weakref.finalize(self, _destroyed, cublasLt, self._description, tuple(self._layouts))
        self._describe("TRANSA", int(problem.left.transposed))
        self._describe("TRANSB", int(problem.right.transposed))
        self._describe("EPILOGUE", _EPILOGUES[problem.activation, operands.vector is not None])
        if operands.vector is not None:
            self._describe("BIAS_POINTER", operands.vector.address)
        self._results = self._offered()

    @property
    def count(self) -> int:
        """Algorithms that are offered."""
        return len(self._results)

    def row(self, index: int) -> PlanTime:
        """Return the row of an algorithm."""
        number, *knobs = (self._configured(index, name) for name in ("ID", *_KNOBS))
        named = tuple(sorted(zip((name.lower() for name in _KNOBS), knobs, strict=True)))
        text = "_".join(f"{name}={value}" for name, value in named if value)
        return PlanTime(
            f"lt{number}_{text}",
            number,
            named,
            ("lt",),
            index,
            notes=self._notes(index),
            workspace_bytes=int(self._results[index]["workspace_size"]),
        )

    def start(self, index: int) -> tuple[Run, int]:
        """Return a function that enqueues one execution with an algorithm; it keeps workspace and description."""
        size = int(self._results[index]["workspace_size"])
        workspace = self._memory.empty(size)
        operands, scalars = self._operands, self._scalars
        left, right, result = self._layouts
        added = operands.result if operands.matrix is None else operands.matrix
        call, algorithm = self._lt.matmul, self._algorithm(index)
        arguments = (
            _handle(), self._description, scalars.alpha, operands.left.address, left, operands.right.address, right,
            scalars.beta, added.address, result, operands.result.address, result, algorithm, workspace.address, size,
            self._stream,
        )  # fmt: skip
        alive = (self, workspace)

        def run(_alive: object = alive) -> None:
            call(*arguments)

        return run, size

    def _offered(self) -> npt.NDArray[Any]:
        lt = self._lt
        candidates = np.zeros(MOST, dtype=lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        left, right, result = self._layouts
        preference = lt.matmul_preference_create()
        try:
            most = np.array([_WORKSPACE], np.uint64)
            attribute = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
            lt.matmul_preference_set_attribute(preference, attribute, most.ctypes.data, most.nbytes)
            lt.matmul_algo_get_heuristic(
                _handle(), self._description, left, right, result, result, preference, MOST, candidates.ctypes.data,
                count.ctypes.data,
            )  # fmt: skip
        finally:
            lt.matmul_preference_destroy(preference)
        algorithms: npt.NDArray[Any] = candidates[: int(count[0])]
        return np.ascontiguousarray(algorithms[algorithms["state"] == 0])

    def _describe(self, name: str, value: int) -> None:
        attribute = self._lt.MatmulDescAttribute[name]
        number = np.array([value], self._lt.get_matmul_desc_attribute_dtype(attribute))
        self._lt.matmul_desc_set_attribute(self._description, attribute, number.ctypes.data, number.nbytes)

    def _layout(self, matrix: Matrix, kind: int) -> int:
        lt = self._lt
        layout: int = lt.matrix_layout_create(kind, matrix.rows, matrix.columns, matrix.rows)
        attributes = {"BATCH_COUNT": self._operands.problem.batch, "STRIDED_BATCH_OFFSET": matrix.stride}
        for name, value in attributes.items() if self._operands.problem.batch > 1 else ():
            attribute = lt.MatrixLayoutAttribute[name]
            number = np.array([value], lt.get_matrix_layout_attribute_dtype(attribute))
            lt.matrix_layout_set_attribute(layout, attribute, number.ctypes.data, number.nbytes)
        return layout

    def _algorithm(self, index: int) -> int:
        """Address of an algorithm."""
        offset = self._results.dtype.fields["algo"][1]  # type: ignore[index]
        return int(self._results.ctypes.data + index * self._results.dtype.itemsize + offset)

    def _configured(self, index: int, name: str) -> int:
        lt = self._lt
        attribute = lt.MatmulAlgoConfigAttribute[name]
        number = np.zeros(1, lt.get_matmul_algo_config_attribute_dtype(attribute))
        written = np.zeros(1, np.uint64)
        lt.matmul_algo_config_get_attribute(
            self._algorithm(index), attribute, number.ctypes.data, number.nbytes, written.ctypes.data
        )
        return int(number[0])

    def _notes(self, index: int) -> tuple[str, ...]:
        lt = self._lt
        attribute = lt.MatmulAlgoCapAttribute.NUMERICAL_IMPL_FLAGS
        flags, written = np.zeros(1, np.uint64), np.zeros(1, np.uint64)
        lt.matmul_algo_cap_get_attribute(
            self._algorithm(index), attribute, flags.ctypes.data, flags.nbytes, written.ctypes.data
        )
        return tuple(name for bit, name in _FLAGS.items() if int(flags[0]) >> bit & 1)


@cache
def _handle() -> int:
    """Return the handle of this process."""
    from nvmath.bindings import cublasLt

    handle: int = cublasLt.create()
    return handle


def _destroyed(lt: Any, description: int, layouts: tuple[int, ...]) -> None:
    lt.matmul_desc_destroy(description)
    for layout in layouts:
        lt.matrix_layout_destroy(layout)


ROW = PlanTime("gemmEx", -1, modes=("cublas",))
"""cuBLAS as a plan; the library chooses the algorithm."""
_DEFAULT_ALGORITHM = -1
"""``CUBLAS_GEMM_DEFAULT``."""


def plain_run(operands: Operands, stream: int, *, tf32: bool) -> Run:
    """Return a function that enqueues one execution.

    Raises:
        UnsupportedBrick: The product has a summand or a following operator.
    """
    from nvmath.bindings import cublas

    problem = operands.problem
    if not problem.is_plain:
        raise UnsupportedBrick("cuBLAS: a bias or an activation; only cuBLASLt has them, pass library=lt")
    handle, workspace = _plain_handle(stream)
    scalars = Scalars(problem.alpha, 0.0)
    kind, compute = _TYPES[operands.dtype], compute_type(operands.dtype, tf32=tf32)
    left, right, result = problem.left, problem.right, problem.result
    batched = problem.batch > 1
    call = cublas.gemm_strided_batched_ex if batched else cublas.gemm_ex

    def matrix(buffer: Buffer, form: Matrix) -> tuple[int, ...]:
        return (buffer.address, kind, form.rows, *((form.stride,) if batched else ()))

    arguments = (
        handle, int(left.transposed), int(right.transposed), result.rows, result.columns, problem.depth, scalars.alpha,
        *matrix(operands.left, left), *matrix(operands.right, right), scalars.beta, *matrix(operands.result, result),
        *((problem.batch,) if batched else ()), compute, _DEFAULT_ALGORITHM,
    )  # fmt: skip
    alive = (operands, scalars, workspace)

    def run(_alive: object = alive) -> None:
        call(*arguments)

    return run


@cache
def _plain_handle(stream: int) -> tuple[int, Any]:
    """Return this process's handle of cuBLAS, and its workspace: without one of ours it cannot be captured."""
    import cupy
    from nvmath.bindings import cublas

    handle: int = cublas.create()
    workspace = cupy.cuda.alloc(_WORKSPACE)
    cublas.set_stream(handle, stream)
    cublas.set_workspace(handle, workspace.ptr, _WORKSPACE)  # behind the stream, which resets it
    return handle, workspace


_LIBRARY = Option("library", "lt", ("lt", "cublas"), "cuBLASLt with a choice of algorithms, or cuBLAS with its own one")


class CublasBackend(LibraryBackend):
    """cuBLASLt and cuBLAS through nvmath-python, on memory of CuPy."""

    name = "cublas"
    module = "nvmath"
    distributions = ("nvmath-python", "nvidia-cublas", "nvidia-cublas-cu12", *CUPY)
    install = "pip install nvmath-python nvidia-cublas cupy-cuda13x"
    wording = Wording("cuBLAS", unsupported=re.compile(r"NOT_SUPPORTED"), memory=re.compile(r"ALLOC_FAILED"))

    def declared(self, device: str) -> Sequence[Option]:  # noqa: ARG002
        """Return the options of its only device."""
        return (_LIBRARY, MODE, PLAN, TF32)

    def algorithms(self, device: str, options: Mapping[str, str], dtype: str) -> tuple[Algorithm, ...]:  # noqa: ARG002
        """Return the other library (see ``Backend``)."""
        if options[_LIBRARY.name] == "cublas":
            return (Algorithm("lt", {_LIBRARY.name: "lt"}, "cuBLASLt's first algorithm for each brick"),)
        return (Algorithm("cublas", {_LIBRARY.name: "cublas", PLAN.name: FIRST}, "cuBLAS itself, which chooses"),)

    def open(self) -> None:
        """Load the bindings of both."""
        from nvmath.bindings import cublas, cublasLt

        _ = cublas, cublasLt.get_version()

    def load(self, network: Network, settings: Settings, memory: Memory, device: Device) -> LoadedBrick:
        """Load the brick with the algorithm that the options choose (see ``LibraryBackend``)."""
        plan, tf32 = settings.options[PLAN.name], _allows_tf32(settings)
        operands = Operands(network, settings.dtype, memory)
        if settings.options[_LIBRARY.name] == "cublas":
            if plan != FIRST:
                raise UnsupportedBrick("cuBLAS has one plan; pass plan=0 or library=lt")
            return replace(operands.loaded(), run=plain_run(operands, device.stream, tf32=tf32))
        light = Light(operands, memory, device.stream, tf32=tf32)
        names = (index for index in range(light.count) if plan in {FIRST, light.row(index).name})
        index = next(names, None)
        if index is None:
            raise UnsupportedBrick("cuBLASLt: it offers no such algorithm for this brick")
        return replace(operands.loaded(), run=light.start(index)[0])

    def plans(self, network: Network, settings: Settings, most: int, footprint: int) -> tuple[PlanTime, ...]:
        """Return the algorithms of cuBLASLt, and last cuBLAS, which ``library=cublas`` executes (see ``Backend``)."""
        if network.model is None or network.unroll > 1:
            raise UnsupportedBrick("cuBLAS: plans are those of one brick")
        device, tf32 = self.device(settings), _allows_tf32(settings)
        memory = Memory(device)
        with self.wording.translating():
            operands = Operands(network, settings.dtype, memory)
            light = Light(operands, memory, device.stream, tf32=tf32)
            candidates: list[PlanCandidate] = [
                (light.row(index), partial(light.start, index)) for index in range(min(light.count, max(most - 1, 1)))
            ]
            if operands.problem.is_plain:
                candidates.append((ROW, lambda: (plain_run(operands, device.stream, tf32=tf32), 0)))
            return measured(candidates, operands.loaded(), memory, device, self._reason, most=most, footprint=footprint)

    def _reason(self, error: Exception) -> str:
        return str(self.wording.meaning(error))


def _allows_tf32(settings: Settings) -> bool:
    return settings.options[TF32.name] == "on"
