"""The kernels that PyTorch executes, from its profiler.

On a GPU these are the kernels in the profile. On the CPU they are the computing operators: operators that call no
other operator except for allocations, views and copies. Operators that only make views or memory do not count; a copy
counts, unless its caller counts already. oneDNN, if it is built in, logs its primitives on the standard output of the
process. These primitives are listed, reorders included, and the operator with the rest of its time. A line of the log:

::

    onednn_verbose,v1,<ms since 1970>,primitive,exec,cpu,convolution,jit:avx512_core,…,<ms>
"""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from ....db.values import KernelView
from ..base import Executable
from ..reports import Launch, kernel_view

if TYPE_CHECKING:
    from torch.autograd.profiler_util import FunctionEvent


_STDOUT = 1
_NS_PER_MS = 1_000_000
_LINE = ("onednn_verbose", "v1")
_EXECUTION = ("primitive", "exec")
_FEWEST = 9
"""Fields of a line about an execution, its descriptors and its time included."""


Primitive: TypeAlias = tuple[str, int, int]
"""One execution of a primitive: kind and implementation (``convolution jit:avx512_core``), start and time in ns."""


@contextmanager
def recorded(onednn: Any) -> Iterator[list[str]]:
    """Switch oneDNN's log on, and record the process's standard output meanwhile: its text is there afterwards.

    Args:
        onednn: ``torch.backends.mkldnn``; a build without oneDNN logs nothing.
    """
    log: list[str] = []
    if not onednn.is_available():
        yield log
        return
    library = ctypes.CDLL(None)
    with tempfile.TemporaryFile() as file:
        library.fflush(None)
        saved_stdout = os.dup(_STDOUT)
        os.dup2(file.fileno(), _STDOUT)
        try:
            with onednn.verbose(onednn.VERBOSE_ON):
                yield log
        finally:
            library.fflush(None)
            os.dup2(saved_stdout, _STDOUT)
            os.close(saved_stdout)
        file.seek(0)
        log.append(file.read().decode(errors="replace"))


def primitives_of(text: str, begin_ns: int) -> list[Primitive]:
    """Return the executions in a log, in order; lines without a time of day are left out.

    Args:
        text: The log.
        begin_ns: Nanoseconds since 1970 that count as 0.
    """
    primitives = []
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) < _FEWEST or tuple(fields[:2]) != _LINE or tuple(fields[3:5]) != _EXECUTION:
            continue
        start_ms, kind, implementation, took_ms = fields[2], fields[6], fields[7], fields[-1]
        try:
            start_ns, time_ns = float(start_ms) * _NS_PER_MS, float(took_ms) * _NS_PER_MS
        except ValueError:
            continue
        primitives.append((f"{kind} {implementation}", round(start_ns) - begin_ns, round(time_ns)))
    return primitives


_SOURCE = "torch.profiler"
_MARK = "dlbricks execution"
_NS_PER_US = 1000

_VIEWS = frozenset(
    {
        *("alias", "as_strided", "as_strided_", "broadcast_to", "chunk", "contiguous", "detach", "detach_"),
        *("diagonal", "expand", "expand_as", "flatten", "lift_fresh", "movedim", "narrow", "permute", "positive"),
        *("ravel", "reshape", "_reshape_alias", "reshape_as", "resolve_conj", "resolve_neg", "select", "slice"),
        *("split", "split_with_sizes", "squeeze", "squeeze_", "swapaxes", "swapdims", "t", "tensor_split", "to"),
        *("transpose", "transpose_", "unbind", "unflatten", "unfold", "_unsafe_view", "unsafe_chunk"),
        *("unsafe_split", "unsafe_split_with_sizes", "unsqueeze", "unsqueeze_", "view", "view_as"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_", "set_"),
        *("is_nonzero", "item", "_local_scalar_dense", "_nnpack_available", "result_type"),
    }
)
"""Operators of ``aten`` that make views or memory, or query something; to copy, they call another operator."""

_MOVES = frozenset({"copy_", "fill_", "zero_"})
"""Operators of ``aten`` that write for others: an operator that calls only these is the computing one."""

_RUNTIME_CALL = re.compile(r"cu(da)?[A-Z]")
"""Calls of CUDA's runtime and driver on the CPU: they launch and wait, and compute nothing."""

_NUMBERED = re.compile(r"^graph_\d+_")
"""TorchInductor counts the graphs of a process: no part of a kernel's name."""


def profiled(executable: Executable, executions: int) -> KernelView:
    """Run a network under the profiler.

    Args:
        executable: The network.
        executions: How many to profile, after one that warms up.

    Raises:
        BackendError: The runtime failed.
        MemoryError: There was not enough memory.
    """
    import torch
    from torch.profiler import profile, record_function, supported_activities

    # oneDNN looks for it once, before it writes its first line.
    os.environ["ONEDNN_VERBOSE_TIMESTAMP"] = "1"
    executable.run()
    executable.synchronize()
    with recorded(torch.backends.mkldnn) as log, profile(activities=supported_activities()) as profiler:
        for _ in range(executions):
            with record_function(_MARK):
                executable.run()
                executable.synchronize()
    events = profiler.events() or []
    marks = [event for event in events if event.name == _MARK and _on_cpu(event)]
    elsewhere = [
        event for event in events if not _on_cpu(event) and not event.is_user_annotation and event.name != _MARK
    ]
    begin_ns = profiler.profiler.kineto_results.trace_start_ns() if profiler.profiler is not None else 0
    primitives = primitives_of("".join(log), begin_ns)
    kernels_by_execution = [[*launches(mark, elsewhere, primitives)] for mark in marks]
    return kernel_view(kernels_by_execution, [_duration(mark) for mark in marks], _SOURCE)


def launches(
    mark: FunctionEvent, elsewhere: Sequence[FunctionEvent], primitives: Sequence[Primitive]
) -> Iterator[Launch]:
    """Return the kernels of one execution, in the order of their starts.

    Args:
        mark: The execution's event; the operators that it called are below it.
        elsewhere: Profiled events on devices other than the CPU, of any execution.
        primitives: oneDNN's log on the profiler's clock, of any execution.
    """
    begin, end = mark.time_range.start, mark.time_range.end
    inside = [event for event in elsewhere if begin <= event.time_range.start <= end]
    if inside:
        # The same kernel may have been launched by several operators; a device runs what one of them launched first.
        waiting: defaultdict[str, deque[str]] = defaultdict(deque)
        for name, operator in _launched(mark, ""):
            waiting[name].append(operator)
        for event in sorted(inside, key=lambda event: event.time_range.start):
            operator = waiting[event.name].popleft() if waiting[event.name] else ""
            yield event.name, operator, event.device_type.name.lower(), _duration(event)
        return
    begin_ns, end_ns = begin * _NS_PER_US, end * _NS_PER_US
    primitives = [execution for execution in primitives if begin_ns <= execution[1] <= end_ns]
    for event, operator in _computing(mark, ""):
        start_ns, length_ns = round(event.time_range.start * _NS_PER_US), _duration(event)
        name = _NUMBERED.sub("", event.name)
        rest_ns = length_ns
        for primitive, at_ns, took_ns in primitives:
            if start_ns <= at_ns + took_ns // 2 <= start_ns + length_ns:
                yield primitive, operator or name, "cpu", took_ns
                rest_ns -= took_ns
        yield name, operator, "cpu", max(0, rest_ns)


def _launched(event: FunctionEvent, operator: str) -> Iterator[tuple[str, str]]:
    """Name of each kernel that was launched on another device, with the outermost operator that did."""
    for child in event.cpu_children:
        outermost = operator or (child.name if "::" in child.name else "")
        yield from ((kernel.name, outermost) for kernel in child.kernels)
        yield from _launched(child, outermost)


def _computing(event: FunctionEvent, operator: str) -> Iterator[tuple[FunctionEvent, str]]:
    """Return the computing operators below an event, each with the outermost operator around it."""
    for child in event.cpu_children:
        outermost = operator or (child.name if "::" in child.name else "")
        if _short(child) in _VIEWS or any(_computes(inner) for inner in child.cpu_children):
            yield from _computing(child, outermost)
        elif " " not in child.name and not _RUNTIME_CALL.match(child.name):  # else a note of the framework about itself
            yield child, outermost


def _computes(event: FunctionEvent) -> bool:
    helps = _short(event) in _VIEWS | _MOVES or " " in event.name or bool(_RUNTIME_CALL.match(event.name))
    return not helps or any(_computes(child) for child in event.cpu_children)


def _short(event: FunctionEvent) -> str:
    name: str = event.name
    return name.removeprefix("aten::")


def _on_cpu(event: FunctionEvent) -> bool:
    return bool(event.device_type.name == "CPU")


def _duration(event: FunctionEvent) -> int:
    elapsed_us: float = event.time_range.elapsed_us()
    return round(elapsed_us * _NS_PER_US)
