"""Bricks in two environments, visited in turn: each once in every round, first in the one and then in the other."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ...errors import BackendError
from ..machine.lock import machine_lock
from ..progress import Progress, ProgressCallback, Stage
from ..worker.client import Timeouts, Worker
from ..worker.requests import Prepare, Visit
from .trial import Array, Contender, started, visited

__all__ = ["Turns", "take_turns"]

Turns = tuple[tuple[Array, ...], tuple[Array, ...]]
"""Latencies in nanoseconds in the first environment and in the second, by process; what has one position belongs
together."""


def take_turns(
    bricks: Mapping[str, Path],
    before: Contender,
    after: Contender,
    *,
    visits: int = 24,
    processes: int = 2,
    seed: int = 0,
    progress: ProgressCallback | None = None,
    label: str = "",
) -> dict[str, Turns]:
    """Run bricks by two interpreters in turn, hot, on the same weights and inputs.

    Args:
        bricks: Files by key.
        before: The one environment, whatever its model.
        after: The other.
        visits: Of each brick in each, over all processes.
        processes: Fresh pairs of workers, one after the other.
        seed: Of weights, inputs and orders.
        progress: Called between rounds.
        label: What progress is said to be about.

    Returns:
        What was timed, by key; without bricks that either environment cannot run.

    Raises:
        BackendError: An environment has no such runtime.
        MachineBusy: Another process is measuring.
        WorkerError: A worker died.
    """
    left = dict(bricks)
    taken: dict[str, tuple[list[Array], list[Array]]] = {key: ([], []) for key in bricks}
    begun = time.monotonic()
    with machine_lock():
        for process in range(processes):
            share = visits // processes + (process < visits % processes)
            done = process * (visits // processes)
            with ExitStack() as resources:
                workers = [resources.enter_context(started(one)) for one in (before, after)]
                guesses = {key: guess for key, path in left.items() if (guess := _loaded(workers, key, path, seed))}
                left = {key: left[key] for key in guesses}
                times = {key: (np.zeros(share), np.zeros(share)) for key in guesses}
                draw = random.Random(f"{seed}/{process}")  # noqa: S311  # an order, no secret
                for visit in range(share):
                    if progress is not None:
                        progress(Progress(Stage.SAMPLE, done + visit, visits, label, time.monotonic() - begun))
                    for key in draw.sample(list(guesses), len(guesses)):
                        for side in draw.sample((0, 1), 2):
                            times[key][side][visit] = visited(workers[side], key, guesses[key][side])
            for key, sides in times.items():
                for side in (0, 1):
                    taken[key][side].append(sides[side])
    return {key: (tuple(taken[key][0]), tuple(taken[key][1])) for key in left}


def _loaded(workers: list[Worker], key: str, path: Path, seed: int) -> tuple[int, int] | None:
    """Load a brick on both sides; how long one execution takes there, None where a side cannot."""
    request = Prepare(id=key, path=str(path.resolve()), synthetic=True, seed=seed, unroll=1)
    try:
        for worker in workers:
            worker.prepare(request, timeout_s=Timeouts.prepare)
        first, second = (worker.visit(Visit(key, warmups=1)).elapsed_ns for worker in workers)
    except BackendError:
        return None
    return first, second
