"""The kernels that ONNX Runtime executes, from its own profile.

The profile names nodes by operator, not by domain; two kernels of one operator, such as the plain and the blocked
convolution, are distinguished by the optimised model that the session saves beside it. Node names stay out: they are
those of the user's model.

On a GPU the profile has the time of launching a kernel, not of the kernel: that is no time of a kernel, and left out.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from ....db.values import KernelView
from ....errors import BackendError
from ....models.names import plain_domain
from ....models.subgraphs import all_nodes
from ..launches import Launch, kernel_view
from .profile import KERNEL, PREFIX, read_profile, runs
from .provider import CPU

if TYPE_CHECKING:
    import onnxruntime as ort

    from ..base import Executable

__all__ = ["launches", "profiled", "traced"]

_SOURCE = "onnxruntime profiling"
_INLINE_BYTES = 1024
_NS_PER_US = 1000

_CONTAINERS = frozenset({"If", "Loop", "Scan"})
"""Their time is that of the nodes in their bodies, which are listed themselves."""


def profiled(
    options: ort.SessionOptions, load: Callable[[ort.SessionOptions], Executable], executions: int
) -> KernelView:
    """Load a network with profiling on, run it, and read the profile.

    Args:
        options: Of the session; profiling is switched on in it.
        load: Creates the session.
        executions: How many to profile, after one that warms up.

    Raises:
        BackendError: There is no profile, or the runtime failed.
        UnsupportedBrick: The runtime cannot express the network.
        MemoryError: There was not enough memory.
    """
    with tempfile.TemporaryDirectory(prefix="dlbricks-profile-") as place:
        folder = Path(place)
        model = folder / "optimised.onnx"
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / PREFIX)
        options.optimized_model_filepath = str(model)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", str(_INLINE_BYTES)
        )
        executable = load(options)
        try:
            domains = _domains(onnx.load(str(model), load_external_data=False).graph)
            executable.run()
            executable.synchronize()
            walls_ns = []
            for _ in range(executions):
                begin = time.perf_counter_ns()
                executable.run()
                executable.synchronize()
                walls_ns.append(time.perf_counter_ns() - begin)
        finally:
            executable.close()  # with the session its profile ends
        events = read_profile(folder)
    return kernel_view([launches(nodes, domains) for nodes in runs(events)[-executions:]], walls_ns, _SOURCE)


def traced(options: ort.SessionOptions, load: Callable[[ort.SessionOptions], Executable]) -> dict[str, int]:
    """Load a network with profiling on, run it once, and count the calls of its nodes by their names.

    Raises:
        As ``profiled``.
    """
    with tempfile.TemporaryDirectory(prefix="dlbricks-profile-") as place:
        folder = Path(place)
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / PREFIX)
        executable = load(options)
        try:
            executable.run()
        finally:
            executable.close()  # with the session its profile ends
        executions = runs(read_profile(folder))
    if not executions:
        raise BackendError("ONNX Runtime's profile has no execution")
    return dict(Counter(node["name"].removesuffix(KERNEL) for node in executions[-1]))


def launches(nodes: Sequence[Mapping[str, Any]], domains: Mapping[str, Mapping[str, str]]) -> list[Launch]:
    """The kernels of one execution.

    Args:
        nodes: Their events, in order.
        domains: Per operator the domain of each node of it, by the node's name.
    """
    found = []
    for node in nodes:
        operator = node["args"]["op_name"]
        if operator in _CONTAINERS:
            continue
        known = domains.get(operator, {})
        domain = known.get(node["name"].removesuffix(KERNEL), "")
        if len(set(known.values())) == 1:
            (domain,) = set(known.values())
        name = f"{domain}.{operator}" if domain else operator
        place = node["args"]["provider"]
        found.append(Launch(name, operator, place, node["dur"] * _NS_PER_US if place == CPU else None))
    return found


def _domains(graph: onnx.GraphProto) -> dict[str, dict[str, str]]:
    """Per operator the domain of each node of it, by the node's name."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for node in all_nodes(graph.node):
        found[node.op_type][node.name] = plain_domain(node.domain)
    return dict(found)
