"""The kernels that OpenVINO executes, from its own counters.

Each node of the executed graph has a type (``Convolution``, ``Reorder``) and a primitive that runs it, such as
``brgconv_avx512_f32``. Node names stay out: they are those of the user's model. Counters are in whole microseconds, so
that a kernel may take none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ....db.values import KernelView
from ..launches import Launch, kernel_view

if TYPE_CHECKING:
    import openvino

    from ..base import Executable

__all__ = ["profiled"]

_SOURCE = "openvino profiling"
_PLACE = "CPU"
"""The only device that networks are compiled for."""
_NS_PER_S = 1_000_000_000


def profiled(
    executable: Executable, counters: Callable[[], Iterable[openvino.ProfilingInfo]], executions: int
) -> KernelView:
    """Run a network that was compiled with counters, and read them after each execution.

    Args:
        executable: The network.
        counters: Those of its latest execution, in the order of the executed graph.
        executions: How many to profile, after one that warms up.

    Raises:
        BackendError: The runtime failed.
    """
    executable.run()
    executable.synchronize()
    found, walls_ns = [], []
    for _ in range(executions):
        begin = time.perf_counter_ns()
        executable.run()
        executable.synchronize()
        walls_ns.append(time.perf_counter_ns() - begin)
        found.append([_launch(one) for one in counters() if one.status == one.Status.EXECUTED])
    return kernel_view(found, walls_ns, _SOURCE)


def _launch(one: openvino.ProfilingInfo) -> Launch:
    return Launch(one.exec_type, one.node_type, _PLACE, round(one.real_time.total_seconds() * _NS_PER_S))
