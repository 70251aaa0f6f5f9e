"""The loop of a decoder, run alternately with the measurement of its bricks."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...db.samples.statistics import student
from ...errors import BackendError, UsageError, WorkerError
from ...generator.backends.base import Backend
from ...generator.backends.registry import get
from ...generator.machine.lock import machine_lock, work_clock
from ...generator.network.decoding import DecoderFile
from ...generator.progress import Progress, ProgressCallback, Stage
from ...generator.worker.client import Timeouts, Worker, start_worker
from ...generator.worker.messages import Answer, Decode, Place
from ..setups import Setup
from .lengths import Side

LOOP_SHARE = 1 / 3
"""Share of the measuring time that the loop gets."""

_STEPS = 16
"""Executions behind a context; the first is not counted, because the machine has done something else before."""

_LEAST = 3
"""Visits of each task that count, unless the budget is spent. One more is made before: in it the runtime's memory grows
to what the task needs, which its bricks have at hand."""

_NAME = "loop"
_LONGEST_S = 1200.0
"""Limit on one visit in seconds."""


@dataclass(frozen=True, slots=True)
class LoopTask:
    """A part of an answer that the loop executes: a prompt, or some steps behind a context.

    Attributes:
        length: Tokens of the prompt, or cached positions.
        prompt: True for a prompt.
    """

    length: int
    prompt: bool

    @property
    def past(self) -> int:
        """Cached positions at the beginning: the steps end at the context, if it is long enough."""
        return 0 if self.prompt else max(0, self.length - _STEPS)

    @property
    def contexts(self) -> range:
        """Cached positions of the counted steps; empty for a prompt."""
        return range(0) if self.prompt else range(self.past + 1, self.past + _STEPS)


@dataclass(frozen=True, slots=True)
class LoopTime:
    """Times of one task of the loop.

    Attributes:
        visits: Visits, each a prompt or some steps.
        ms: Time of one execution: the mean over visits of the median of each. In some steps the runtime's memory grows.
        ci95_ms: Its interval over visits; None for a single visit.
        tokens: Counted executions.
    """

    visits: int
    ms: float
    ci95_ms: tuple[float, float] | None
    tokens: int

    @classmethod
    def of(cls, visits: Sequence[tuple[int, ...]]) -> LoopTime:
        """Return the time of visits, each with the nanoseconds of its executions."""
        middles = [statistics.median(visit) / 1e6 for visit in visits]
        ms, count = statistics.fmean(middles), len(middles)
        if count < 2:
            return cls(count, ms, None, sum(map(len, visits)))
        half = student(count - 1) * statistics.stdev(middles) / math.sqrt(count)
        return cls(count, ms, (max(0.0, ms - half), ms + half), sum(map(len, visits)))

    def ratio(self, ms: float, ci95_ms: tuple[float, float] | None) -> tuple[float, tuple[float, float] | None]:
        """Return an estimate over this time, and the interval of the ratio; both errors count, as independent ones."""
        ratio = ms / self.ms
        if ci95_ms is None or self.ci95_ms is None:
            return ratio, None
        halves = ((ci95_ms[1] - ci95_ms[0]) / 2 / ms, (self.ci95_ms[1] - self.ci95_ms[0]) / 2 / self.ms)
        half = ratio * math.hypot(*halves)
        return ratio, (max(0.0, ratio - half), ratio + half)


@dataclass(frozen=True, slots=True)
class LoopReport:
    """Times of the loop.

    Attributes:
        times: Times by task.
        reason: Why it did not run, or ended early; empty if it ran.
        possible: False if the backend cannot run it.
        wall_s: Time that it took in all, without loading.
    """

    times: Mapping[LoopTask, LoopTime] = field(default_factory=dict)
    reason: str = ""
    possible: bool = True
    wall_s: float = 0.0

    @property
    def complete(self) -> bool:
        """True if it ran to its end, or cannot run at all."""
        return not self.reason or not self.possible


class Loop:
    """The loop of a decoder in a separate worker; called between two requests to the worker of the bricks.

    Args:
        worker: The worker, with the decoder loaded.
        tasks: Its tasks.
        batch: Sequences at once.
        progress: Called after it.
    """

    def __init__(
        self, worker: Worker, tasks: Sequence[LoopTask], batch: int, progress: ProgressCallback | None
    ) -> None:
        self._worker, self._batch, self._progress = worker, batch, progress
        self._taken: dict[LoopTask, list[tuple[int, ...]]] = {task: [] for task in tasks}
        self._spent_s = dict.fromkeys(tasks, 0.0)
        self._begun = 0.0
        self._reason = ""

    def __call__(self, progress: Progress) -> None:
        """Make a visit if one is due."""
        if progress.stage is Stage.SAMPLE:
            self._begun = self._begun or time.monotonic()
            if sum(self._spent_s.values()) <= LOOP_SHARE * (time.monotonic() - self._begun):
                self._visit()
        if self._progress is not None:
            self._progress(progress)

    def finish(self, until: float) -> None:
        """Make the least number of visits of each task, as long as there is time."""
        with machine_lock():
            while not self._reason and work_clock() < until:
                if min(map(len, self._taken.values()), default=_LEAST + 1) > _LEAST:
                    return
                self._visit(few=True)

    def report(self) -> LoopReport:
        """Return the times."""
        times = {task: LoopTime.of(taken[1:]) for task, taken in self._taken.items() if taken[1:]}
        missing = len(self._taken) - len(times)
        reason = self._reason
        if missing and not reason:
            reason = f"the budget was spent before {missing} of its {len(self._taken)} parts ran twice"
        return LoopReport(times, reason, wall_s=sum(self._spent_s.values()))

    def _visit(self, *, few: bool = False) -> None:
        """Visit the task that took least time so far, or that has fewest visits."""
        if self._reason or not self._taken:
            return
        order = (lambda task: len(self._taken[task])) if few else self._spent_s.__getitem__
        task = min(self._taken, key=order)
        begun = time.monotonic()
        try:
            if task.prompt:
                self._answer(0, 1, 1)  # the runtime's code and buffers are warm then, as the bricks' are
                times = self._answer(0, task.length, 1)
            else:
                times = self._answer(task.past, 1, _STEPS)[1:]
        except (BackendError, WorkerError, UsageError) as error:
            self._reason = str(error)
            return
        self._taken[task].append(times)
        self._spent_s[task] += time.monotonic() - begun

    def _answer(self, past: int, first: int, new: int) -> tuple[int, ...]:
        return self._worker.answer(Answer(_NAME, past, first, new, self._batch), timeout_s=_LONGEST_S).tokens_ns


@contextmanager
def running_loop(
    side: Side, how: Setup, tasks: Sequence[LoopTask], progress: ProgressCallback | None
) -> Iterator[Loop | LoopReport]:
    """Load the loop of a decoder for the length of a context.

    Args:
        side: A decoder in one file.
        how: Runtime, threads and precision.
        tasks: Tasks of the loop.
        progress: Called after the loop.

    Yields:
        The loop, or a report that says why it cannot run.
    """
    decoder, source = side.decoder, side.source
    if decoder is None or source.path is None:
        yield LoopReport(reason="it takes a decoder in one file", possible=False)
        return
    if not get(how.runtime.backend).offers(Backend.decoding):
        yield LoopReport(reason=f"backend {how.runtime.backend} does not run the loop of a decoder", possible=False)
        return
    file = DecoderFile(
        str(source.path.absolute()), decoder.inputs, decoder.logits, decoder.vocabulary or 1, decoder.shared,
        dict(decoder.fixed),
    )  # fmt: skip
    conditions = how.settings().conditions
    place = Place(how.runtime, conditions.threads, conditions.dtype)
    with start_worker(place) as worker:
        try:
            worker.decode(Decode(_NAME, file), timeout_s=Timeouts.optimising(decoder.weight_bytes))
        except (BackendError, WorkerError, UsageError) as error:
            yield LoopReport(reason=str(error))
            return
        yield Loop(worker, tasks, side.batch, progress)
