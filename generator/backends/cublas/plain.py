"""A product by cuBLAS itself, through CuPy: one call, whose algorithm the library chooses.

https://docs.nvidia.com/cuda/cublas/#cublasgemmex and ``cublasGemmStridedBatchedEx``.
"""

from __future__ import annotations

from collections.abc import Callable

from ....errors import UnsupportedBrick
from ...device.device import Run
from ..algorithms import PlanTime
from ..memory import Memory
from .light import Scalars, compute_type, cuda_type
from .operands import Operands

__all__ = ["ROW", "plain_run", "plain_starter"]

ROW = PlanTime("gemmEx", -1, modes=("cublas",), place=0)
"""As a plan; what it runs inside is the library's own choice."""
_DEFAULT_ALGORITHM = -1
"""``CUBLAS_GEMM_DEFAULT``."""


def plain_run(operands: Operands, memory: Memory, *, tf32: bool) -> Run:
    """What enqueues one execution.

    Raises:
        UnsupportedBrick: Something is added to the product, or follows it.
    """
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    problem = operands.problem
    if not problem.is_plain:
        raise UnsupportedBrick("cuBLAS: a bias or an activation; only cuBLASLt has them, pass library=lt")
    handle: int = device.get_cublas_handle()
    scalars = Scalars(problem.alpha, 0.0)
    kind, compute = cuda_type(operands.dtype), compute_type(operands.dtype, tf32=tf32)
    left, right, result = problem.left, problem.right, problem.result
    head = (handle, int(left.transposed), int(right.transposed), result.rows, result.columns, problem.depth,
            scalars.alpha)  # fmt: skip
    one = operands.left.address, kind, left.rows
    other = operands.right.address, kind, right.rows
    to = operands.result.address, kind, result.rows
    tail = (compute, _DEFAULT_ALGORITHM)
    alive = (operands, scalars)

    def run(_alive: object = alive) -> None:
        with memory.stream:
            cublas.gemmEx(*head, *one, *other, scalars.beta, *to, *tail)

    def run_batch(_alive: object = alive) -> None:
        with memory.stream:
            cublas.gemmStridedBatchedEx(
                *head, *one, left.stride, *other, right.stride, scalars.beta, *to, result.stride, problem.batch, *tail
            )

    return run if problem.batch == 1 else run_batch


def plain_starter(operands: Operands, memory: Memory, *, tf32: bool) -> Callable[[], tuple[Run, int]]:
    """Builds it (see ``plan_times.Candidate``); its workspace is the library's own."""
    return lambda: (plain_run(operands, memory, tf32=tf32), 0)
