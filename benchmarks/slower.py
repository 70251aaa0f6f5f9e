"""Write copies of models that are slower in one of several ways, and measure how much slower, without dlbricks.

    python benchmarks/slower.py OLD.onnx NEW.onnx THREADS FIRST

prints the time of one file relative to another, both run in turn in this process.
"""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import NodeProto, helper, numpy_helper

_ELEMENTS = {"float": np.float32, "double": np.float64, "int64": np.int64, "int32": np.int32, "bool": np.bool_}
"""Element types of inputs, as the runtime calls them."""

_VISITS, _VISIT_NS = 16, 10_000_000
"""Visits of each file in a process that tells how much slower a copy is, and nanoseconds of one."""

_FEW, PROCESSES = 8, 12
"""Processes that tell how much slower a copy is, as many in each order of loading: for its steps, and in a round."""

_CLEAR = 0.25
"""Additional share that is so large that a few processes can measure it; smaller ones are proportions of its steps."""


_ROWS, _PAGE = 64, 1 << 10
"""Extent of the matrices that are multiplied and turned, and elements of a unit of memory that is read and written."""


def _products(count: int) -> Iterator[NodeProto]:
    """More work: products of matrices."""
    yield helper.make_node("Expand", ["more_number", "more_square"], ["more_0"])
    for step in range(count):
        yield helper.make_node("MatMul", [f"more_{step}", "more_weight"], [f"more_{step + 1}"])


def _layers(count: int) -> Iterator[NodeProto]:
    """More layers: additions of one number."""
    yield helper.make_node("Reshape", ["more_number", "more_flat"], ["more_0"])
    for step in range(count):
        yield helper.make_node("Add", [f"more_{step}", "more_one"], [f"more_{step + 1}"])


def _turns(count: int) -> Iterator[NodeProto]:
    """Worse layout: a matrix is turned again and again, and read as rows in between."""
    yield helper.make_node("Expand", ["more_number", "more_wide"], ["more_0"])
    for step in range(count):
        yield helper.make_node("Transpose", [f"more_{step}"], [f"more_turned_{step}"], perm=[1, 0])
        yield helper.make_node("Reshape", [f"more_turned_{step}", "more_wide"], [f"more_{step + 1}"])


def _traffic(count: int) -> Iterator[NodeProto]:
    """More memory: one large array is written, changed and read."""
    yield helper.make_node("Expand", ["more_number", "more_pages"], ["more_there"])
    yield helper.make_node("Add", ["more_there", "more_one"], ["more_changed"])
    yield helper.make_node("ReduceMax", ["more_changed"], [f"more_{count}"], keepdims=0)


WAYS = {"products": _products, "layers": _layers, "layout": _turns, "traffic": _traffic}
"""Ways to be slower: each returns nodes that compute ``more_<count>`` from ``more_number``."""


def logs_of(old: Path, new: Path, threads: int, processes: int) -> list[float]:
    """Return the logarithm of the ratio in each of so many processes."""
    logs = []
    for first in itertools.islice(itertools.cycle((0, 1)), processes):
        command = [sys.executable, __file__, str(old), str(new), str(threads), str(first)]
        logs.append(math.log(float(subprocess.check_output(command, text=True))))
    return logs


def share_of(logs: Sequence[float]) -> tuple[float, float]:
    """Return the additional share of a copy, and the standard error of it."""
    return math.expm1(statistics.fmean(logs)), statistics.stdev(logs) / math.sqrt(len(logs))


def slowed(old: Path, new: Path, way: str, share: float, threads: int) -> None:
    """Write a copy that takes about so much longer, between one that takes much longer and one with a single step."""
    steps, much = 1, 0.0
    while much < _CLEAR:
        steps = max(steps + 1, round(steps * min(8.0, 1.2 * _CLEAR / max(much, 1e-3))))
        _add(old, new, way, steps)
        much, _ = share_of(logs_of(old, new, threads, 2))
    much, _ = share_of(logs_of(old, new, threads, _FEW))
    _add(old, new, way, 1)
    least, _ = share_of(logs_of(old, new, threads, _FEW))
    _add(old, new, way, max(1, round(1 + (steps - 1) * (share - least) / (much - least))))


def _add(old: Path, new: Path, way: str, count: int) -> None:
    """Write a model with so many more steps, whose result is one more output."""
    model = onnx.load(old)
    graph = model.graph
    known = {initializer.name for initializer in graph.initializer}
    first = next(value for value in graph.input if value.name not in known)
    weight = np.random.default_rng(0).standard_normal((_ROWS, _ROWS)) / math.sqrt(_ROWS)
    arrays = {"flat": [-1], "zero": [0], "one": np.ones(1, np.float32), "weight": weight.astype(np.float32)}
    arrays |= {"square": [_ROWS, _ROWS], "wide": [_ROWS, 4 * _ROWS], "pages": [count, _PAGE]}
    nodes = [
        helper.make_node("Reshape", [first.name, "more_flat"], ["more_row"]),
        helper.make_node("Gather", ["more_row", "more_zero"], ["more_first"]),
        helper.make_node("Cast", ["more_first"], ["more_number"], to=onnx.TensorProto.FLOAT),
        *WAYS[way](count),
    ]
    read_names = {name for node in nodes for name in node.input}
    graph.node.extend(nodes)
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), f"more_{name}")
        for name, array in arrays.items()
        if f"more_{name}" in read_names
    )
    graph.output.append(helper.make_tensor_value_info(f"more_{count}", onnx.TensorProto.FLOAT, None))
    onnx.save(model, new)


def ratio(old: str | Path, new: str | Path, threads: int, *, first: int = 0) -> float:
    """Return the time of one file relative to another, both run in turn in this process.

    Args:
        old: A model.
        new: A slower one with the same inputs.
        threads: Of the runtime. The time is that of the processor with one, else wall time.
        first: Which is loaded and run first: 0 the old one, 1 the new one.
    """
    clock = time.process_time_ns if threads == 1 else time.perf_counter_ns
    options = ort.SessionOptions()
    if threads > 1:  # idle threads of another pool would spin against the one that runs
        ort.set_global_thread_pool_sizes(threads, 1)
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = options.inter_op_num_threads = 1
    paths = (new, old) if first else (old, new)
    sessions = [ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]) for path in paths]
    feeds = {}
    for value in sessions[0].get_inputs():
        shape = [extent if isinstance(extent, int) else 1 for extent in value.shape]
        element = _ELEMENTS[value.type.removeprefix("tensor(").removesuffix(")")]
        feeds[value.name] = np.ones(shape, element)
    bound = [_bound(session, feeds) for session in sessions]
    taken: list[list[int]] = [[], []]
    loops = 1
    for visit in range(_VISITS + 2):
        for times, session, binding in zip(taken, sessions, bound, strict=True):
            for _ in range(loops):  # what other visits left in the caches goes first
                session.run_with_iobinding(binding)
            begun = clock()
            for _ in range(loops):
                session.run_with_iobinding(binding)
            times.append(clock() - begun)
        if visit < 2:  # the first visits are cold, and only tell how many executions are long enough
            loops = max(1, _VISIT_NS // max(min(taken[0][-1], taken[1][-1]), 1)) if visit else 1
            taken = [[], []]
    before, after = reversed(taken) if first else taken
    return float(np.median(after) / np.median(before))


def _bound(session: ort.InferenceSession, feeds: dict[str, Any]) -> Any:
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return binding


if __name__ == "__main__":
    print(ratio(sys.argv[1], sys.argv[2], int(sys.argv[3]), first=int(sys.argv[4])))
