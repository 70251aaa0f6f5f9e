"""Reports of runtimes: profiles, and exceptions, which mostly have a text but no common base class."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, median_high
from typing import TypeAlias

import onnx

from ...db.values import Kernel, KernelView
from ...errors import BackendError, UnsupportedBrick
from ...models.control_flow import label_of

_MEMORY = re.compile(
    r"bad_alloc|bad allocation|(failed to|can(no|')t|cannot) alloc|not enough memory|out of memory", re.IGNORECASE
)
_SOURCE = re.compile(r"(?<![\w.@+/-])[\w.@+/-]+\.(cc|h|hpp|cpp|cu):\d+:?")
"""Places in a runtime's own source: a stored reason must not name them."""
_NOTHING = re.compile(r"(?!)")
_REASON_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Wording:
    """The wording of a runtime's error messages.

    Attributes:
        runtime: Its name.
        unsupported: Matches messages about networks that it cannot express.
        memory: Matches messages about missing memory, in addition to common wordings.
        noise: Matches parts without a cause; they are left out of a reason.
    """

    runtime: str
    unsupported: re.Pattern[str]
    memory: re.Pattern[str] = _NOTHING
    noise: re.Pattern[str] = _NOTHING

    def meaning(
        self,
        error: Exception,
        *,
        where: str = "",
        cause: str | None = None,
        unsupported: bool = False,
        spell: Callable[[str], str] = str,
    ) -> Exception:
        """Translate an exception into a backend's (``BackendError``, ``UnsupportedBrick``, ``MemoryError``).

        Args:
            error: The runtime's exception; one of dlbricks keeps its kind.
            where: Operators at the failure, if known.
            cause: The part of its text that names the cause; None: all of it.
            unsupported: True if the runtime cannot express the network.
            spell: Replaces names in the text, or all of it.
        """
        if isinstance(error, BackendError):
            spelled = spell(error.message)
            return error if spelled == error.message else type(error)(spelled, remedy=error.remedy)
        text = _line(str(error))
        noiseless = _SOURCE.sub(" ", self.noise.sub(" ", spell(text) if cause is None else _line(cause)))
        reason = _line(noiseless).strip(" :")[:_REASON_LENGTH] or type(error).__name__
        if isinstance(error, MemoryError) or _MEMORY.search(text) or self.memory.search(text):
            return MemoryError(f"{where}: {reason}" if where else reason)
        if unsupported or self.unsupported.search(text):
            return UnsupportedBrick(f"{self.runtime} cannot express {where or 'it'}: {reason}")
        return BackendError(f"{self.runtime} failed{f' in {where}' if where else ''}: {reason}")

    @contextmanager
    def translating(self, *, unsupported: bool = False, spell: Callable[[str], str] = str) -> Iterator[None]:
        """Translate exceptions of this context, since exceptions of runtimes have no common base class.

        Args:
            unsupported: As in ``meaning``.
            spell: As in ``meaning``.
        """
        try:
            yield
        except Exception as error:
            raise self.meaning(error, unsupported=unsupported, spell=spell) from error


def _line(text: str) -> str:
    return " ".join(text.split())


_Named = tuple[str, str, str]
"""Name, operator and place of a kernel."""


Launch: TypeAlias = tuple[str, str, str, int | None]
"""One call of a kernel.

Its name as the runtime prints it; the framework's operator that launched it, empty if unknown; the device that ran it;
the duration in nanoseconds, None if the profiler does not report it.
"""


def kernel_view(executions: Sequence[Sequence[Launch]], walls_ns: Sequence[int], source: str) -> KernelView:
    """Summarise the kernels of several executions of one network.

    Args:
        executions: The calls of each execution, in the order of their starts.
        walls_ns: Duration of each execution in nanoseconds.
        source: Name of the profiler.

    Returns:
        Calls and time in one execution by kernel. Each is a median, so that interrupted executions do not count. A
        kernel that only some executions called (behind an ``If``) is listed if most of them did.

    Raises:
        BackendError: The profile has no execution, or misses some.
    """
    if not executions or len(executions) != len(walls_ns):
        raise BackendError(f"{source} recorded {len(executions)} of {len(walls_ns)} executions")
    order = dict.fromkeys(launch[:3] for launches in executions for launch in launches)
    summed = [_summed(launches) for launches in executions]
    kernels = []
    for named in order:
        calls = median_high(len(times_by_kernel.get(named, ())) for times_by_kernel in summed)
        times = [_total(times_by_kernel.get(named, ())) for times_by_kernel in summed]
        known_times = [time for time in times if time is not None]
        if calls:
            time_ns = round(median(known_times)) if len(known_times) == len(times) else None
            kernels.append(Kernel(*named, calls=calls, time_ns=time_ns))
    return KernelView(tuple(kernels), round(median(walls_ns)), len(executions), source)


def _summed(launches: Sequence[Launch]) -> dict[_Named, list[int | None]]:
    times_by_kernel: dict[_Named, list[int | None]] = {}
    for launch in launches:
        times_by_kernel.setdefault(launch[:3], []).append(launch[3])
    return times_by_kernel


def _total(times: Sequence[int | None]) -> int | None:
    """Return the sum of times; None if one is unknown."""
    known_times = [time for time in times if time is not None]
    return sum(known_times) if len(known_times) == len(times) else None


GENERATED = "~"
"""Begins the names that nodes get for a while; users see the model's own."""


def node_name(node: onnx.NodeProto) -> str:
    """Return the name that identifies a node of a network through the runtime's optimisation."""
    return next((f"{GENERATED}{value}" for value in node.output if value), "")


def own_names(nodes: Iterable[onnx.NodeProto], text: str) -> str:
    """Return a runtime's message with the nodes' own names in place of generated ones (``node_name``)."""
    if GENERATED not in text:
        return text
    labels = {node_name(node): label_of(node) for node in nodes}
    present = sorted((name for name in labels if name and name in text), key=len, reverse=True)
    if not present:
        return text
    return re.sub("|".join(map(re.escape, present)), lambda match: labels[match[0]], text)
