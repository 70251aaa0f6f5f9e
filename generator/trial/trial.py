"""Two ways to run a model, visited in turn: in every round each once, in an order that changes."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from ...db.values import Stack
from ...models.runnable import Runnable
from ..backends.registry import get, require_available
from ..backends.requirements import in_turn
from ..machine.lock import machine_lock
from ..measurement.sampling.pace import loops_of, warmups_of
from ..network.difference import relative_difference
from ..progress import Progress, ProgressCallback, Stage
from ..worker.client import Timeouts, Worker
from ..worker.requests import Prepare, Visit
from ..worker.standby import start_worker

__all__ = ["Array", "Contender", "Trial", "started", "try_out", "visited"]

Array = npt.NDArray[np.float64]

_MODULE = ("-E", "-P", "-m", "dlbricks.generator.worker")
"""The worker of another environment; settings of the caller's Python stay out of it."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A model as it is to be run.

    Attributes:
        runnable: The model.
        backend: Name of the runtime.
        device: Its device.
        options: Its options.
        threads: Its threads; 0: all physical cores.
        dtype: Precision.
        python: Interpreter of an environment that has dlbricks and the runtime; None: where the backend runs here.
    """

    runnable: Runnable
    backend: str = "onnxruntime"
    device: str = "cpu"
    options: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    dtype: str = "float32"
    python: Path | None = None

    @property
    def place(self) -> tuple[object, ...]:
        """Equal for those that one worker can run."""
        return self.backend, self.device, tuple(sorted(self.options.items())), self.threads, self.dtype, self.python


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it.

    Attributes:
        before_ns: Latency of the first in each visit, by process; visits of one position belong together.
        after_ns: Of the second.
        largest_error: Largest difference of an output from the first's, relative to that output's largest value;
            infinite where an output is missing, or has another shape.
        stacks: What each ran on.
    """

    before_ns: tuple[Array, ...]
    after_ns: tuple[Array, ...]
    largest_error: float
    stacks: tuple[Stack, ...] = ()


def try_out(
    before: Contender,
    after: Contender,
    *,
    visits: int = 24,
    processes: int = 2,
    seed: int = 0,
    tolerance: float | None = None,
    progress: ProgressCallback | None = None,
    label: str = "",
) -> Trial:
    """Run a model in two ways in turn, on the same inputs.

    Args:
        before: The one way.
        after: The other; it reads inputs of the same names.
        visits: Of each, over all processes.
        processes: Fresh workers, one after the other.
        seed: Of inputs and orders.
        tolerance: Where outputs differ by more, nothing is timed; None: whatever they do.
        progress: Called between visits.
        label: What progress is said to be about.

    Raises:
        UsageError: An option has a wrong value.
        BackendError: A runtime cannot load or run one of them.
        MachineBusy: Another process is measuring.
        WorkerError: A worker died.
    """
    for one in (before, after):
        if one.python is None:
            require_available(get(one.backend), one.backend, one.device)
    samples: tuple[list[Array], list[Array]] = ([], [])
    begun = time.monotonic()
    with machine_lock(), TemporaryDirectory(prefix="dlbricks-trial-") as name:
        folder, error = Path(name), float("inf")
        stacks: tuple[Stack, ...] = ()
        for process in range(processes):
            share = visits // processes + (process < visits % processes)
            with ExitStack() as resources:
                workers = _loaded((before, after), resources, folder, seed)
                stacks = tuple(worker.greeting.stack for worker in workers if worker.greeting is not None)
                if process == 0:
                    error = _difference(workers, folder)
                    if tolerance is not None and error > tolerance:
                        break
                done = process * (visits // processes)
                taken: tuple[list[float], list[float]] = ([], [])
                draw = random.Random(f"{seed}/{process}")  # noqa: S311  # an order, no secret
                guesses = [_first(workers, side) for side in (0, 1)]
                for visit in range(share):
                    if progress is not None:
                        passed = time.monotonic() - begun
                        progress(Progress(Stage.SAMPLE, done + visit, visits, label, passed))
                    for side in draw.sample((0, 1), 2):
                        taken[side].append(visited(workers[side], str(side), guesses[side]))
                for side in (0, 1):
                    samples[side].append(np.array(taken[side], dtype=np.float64))
    return Trial(tuple(samples[0]), tuple(samples[1]), error, stacks)


def _loaded(contenders: Sequence[Contender], resources: ExitStack, folder: Path, seed: int) -> list[Worker]:
    """A worker for each, one for both where they can share it; the second reads the inputs of the first."""
    workers: dict[tuple[object, ...], Worker] = {}
    found = []
    feeds = ""
    for number, one in enumerate(contenders):
        if one.place not in workers:
            workers[one.place] = resources.enter_context(started(one))
        worker = workers[one.place]
        request = Prepare(
            id=str(number),
            path=str(one.runnable.path.resolve()),
            synthetic=one.runnable.synthetic,
            overrides=one.runnable.overrides,
            inputs=one.runnable.inputs,
            seed=seed,
            unroll=1,
            feeds=feeds,
        )
        worker.prepare(request, timeout_s=Timeouts.loading(one.runnable.path.stat().st_size))
        if not feeds:
            path = folder / "first.npz"
            worker.outputs(str(number), path)
            feeds = str(path)
        found.append(worker)
    return found


def started(one: Contender) -> Worker:
    """A worker for a contender, its model not loaded; raises as ``start_worker``."""
    backend = get(one.backend)
    options = backend.resolve(one.device, one.options)
    return start_worker(
        one.backend,
        device=one.device,
        options=one.options,
        threads=one.threads,
        together=in_turn(backend, options),
        dtype=one.dtype,
        command=None if one.python is None else (str(one.python), *_MODULE),
    )


def _difference(workers: Sequence[Worker], folder: Path) -> float:
    """The largest error of the second's outputs."""
    workers[1].outputs("1", folder / "second.npz")
    with np.load(folder / "first.npz") as first, np.load(folder / "second.npz") as second:
        if set(first.files) - set(second.files):
            return float("inf")
        errors = [0.0]
        for name in first.files:
            mine, theirs = second[name], first[name]
            if mine.shape != theirs.shape:
                return float("inf")
            if theirs.dtype.kind in "US":
                errors.append(0.0 if np.array_equal(mine, theirs) else float("inf"))
            else:
                errors.append(relative_difference(mine, theirs))
    return max(errors)


def _first(workers: Sequence[Worker], side: int) -> int:
    """A guess at how long one execution takes."""
    return workers[side].visit(Visit(str(side), warmups=1)).elapsed_ns


def visited(worker: Worker, name: str, run_ns: int) -> float:
    """Nanoseconds of one execution, in one visit."""
    loops = loops_of(run_ns)
    return worker.visit(Visit(name, loops=loops, warmups=warmups_of(run_ns))).elapsed_ns / loops
