"""A neighbour that disturbs a machine: bursts of arithmetic or of memory traffic, in a separate process.

    with Neighbour(0.5, threads=1) as neighbour:
        ...
    neighbour.schedule

Bursts take 0.1 to 30 s, log-uniformly, with a random kind; the duty decides the pauses. Each eight bursts and each
eight pauses have one length from each eighth of the range, so that the duty is right within a minute or two. The
neighbour has normal priority and uses the cores that the workers leave; without free cores the system places it. It
ends on request, and when its parent is gone.

Alone, for a time: ``python benchmarks/neighbour.py --duty 0.5 --seconds 60``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

import numpy as np
from dlbricks.generator.machine.cores import last_level_bytes, physical_cores, pin

SHORTEST_S, LONGEST_S = 0.1, 30.0
_STRATA = 8
_SLICE_S = 0.1
"""Seconds between two looks for its parent during pauses."""

_SIDE = 256
_MOST_BYTES = 512 << 20
_PART_BYTES = 16 << 20
_STOP_S = 10.0


class Neighbour:
    """A neighbour that runs while the context is open; a duty of 0 does nothing.

    Args:
        duty: Busy share of the time.
        threads: Threads of the workers; 0: all physical cores.
        seed: Seed of the lengths and kinds.

    Attributes:
        schedule: Bursts as ``kind``, ``begun`` (seconds since 1970) and ``seconds``; once the context is closed.
    """

    def __init__(self, duty: float, *, threads: int, seed: int = 0) -> None:
        if not 0 <= duty <= 1:
            raise ValueError(f"a duty cannot be {duty}")
        cores = physical_cores()
        self._arguments = ["--duty", str(duty), "--seed", str(seed), "--parent", str(os.getpid())]
        if free := cores[threads or len(cores) :]:
            self._arguments += ["--cores", *map(str, free)]
        self._duty = duty
        self._process: subprocess.Popen[str] | None = None
        self._begun = 0.0
        self._seconds = 0.0
        self.schedule: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        if self._duty:
            environment = os.environ | dict.fromkeys(
                ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1"
            )
            self._process = subprocess.Popen(
                [sys.executable, __file__, *self._arguments], stdout=subprocess.PIPE, text=True, env=environment
            )
            assert self._process.stdout is not None
            self._process.stdout.readline()  # it is about to begin
            self._begun = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        died = self._process.poll()
        self._seconds = time.monotonic() - self._begun
        self._process.terminate()
        try:
            printed, _ = self._process.communicate(timeout=_STOP_S)
        except BaseException:
            self._process.kill()
            self._process.communicate()  # else its pipe stays open
            raise
        if died is not None or self._process.returncode:
            raise RuntimeError(f"the neighbour ended by itself, with {self._process.returncode}") from error
        self.schedule = json.loads(printed)

    @property
    def facts(self) -> dict[str, Any]:
        """Return the settings and the real schedule."""
        busy = {
            kind: math.fsum(burst["seconds"] for burst in self.schedule if burst["kind"] == kind) for kind in BURSTS
        }
        return {
            "duty": self._duty,
            "achieved_duty": math.fsum(busy.values()) / self._seconds if self._seconds else 0.0,
            "busy_s": busy,
            "seconds": self._seconds,
            "arguments": self._arguments[:4] + self._arguments[6:],  # without the parent
            "schedule": self.schedule,
        }


class _Stopped(SystemExit):
    """It was asked to end, which is how it ends."""


def lengths(draw: random.Random) -> Iterator[float]:
    """Seconds, log-uniform; each eight have one from each eighth of the range."""
    while True:
        strata = list(range(_STRATA))
        draw.shuffle(strata)
        for stratum in strata:
            yield SHORTEST_S * (LONGEST_S / SHORTEST_S) ** ((stratum + draw.random()) / _STRATA)


def arithmetic() -> Callable[[], object]:
    """Matrix products in a core's own cache, a few milliseconds of them."""
    left = np.full((_SIDE, _SIDE), 0.5, dtype=np.float32)
    result = np.empty_like(left)

    def work() -> None:
        for _ in range(16):
            np.matmul(left, left, out=result)

    return work


def memory() -> Callable[[], object]:
    """Copy memory of twice the last cache's size, for a few milliseconds."""
    size = min(2 * last_level_bytes(), _MOST_BYTES) // 2
    source, target = np.ones(size // 8), np.ones(size // 8)
    part = _PART_BYTES // 8
    place = 0

    def work() -> None:
        nonlocal place
        np.copyto(target[place : place + part], source[place : place + part])
        place = (place + part) % source.size

    return work


BURSTS = {"compute": arithmetic, "memory": memory}


def disturb(
    duty: float,
    schedule: list[dict[str, Any]],
    works: Mapping[str, Callable[[], object]],
    *,
    seed: int,
    alive: Callable[[], bool],
) -> None:
    """Alternate bursts and pauses.

    Args:
        duty: Busy share of the time, more than 0.
        schedule: Gets each burst, an interrupted one included.
        works: Work of a burst, by kind.
        seed: Seed of the lengths and kinds.
        alive: Returns False to stop.
    """
    draw = random.Random(seed)
    busy, idle = lengths(draw), lengths(draw)
    while True:
        kind = draw.choice(list(works))
        begun, until = time.monotonic(), time.monotonic() + next(busy)
        burst: dict[str, Any] = {"kind": kind, "begun": round(time.time(), 3), "seconds": 0.0}
        schedule.append(burst)
        while time.monotonic() < until:
            works[kind]()
            burst["seconds"] = round(time.monotonic() - begun, 3)
            if not alive():
                return
        until = time.monotonic() + next(idle) * (1 - duty) / duty
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_S))
            if not alive():
                return


def main(arguments: Sequence[str] | None = None) -> int:
    """Disturb until asked to end, and print the schedule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duty", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", type=int, nargs="+", help="where to run; default: anywhere")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end by itself after that")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="end when this process is no more the parent")
    options = parser.parse_args(arguments)
    if not 0 < options.duty <= 1:
        parser.error(f"a duty cannot be {options.duty}")
    if options.cores and not pin(tuple(options.cores)):
        parser.error(f"cannot run on {options.cores}")
    until = time.monotonic() + options.seconds
    schedule: list[dict[str, Any]] = []
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent asks it to end
        signal.signal(signal.SIGTERM, _end)
        works = {kind: make() for kind, make in BURSTS.items()}  # of a large cache that takes a second
        print(flush=True)
        disturb(
            options.duty,
            schedule,
            works,
            seed=options.seed,
            alive=lambda: os.getppid() == options.parent and time.monotonic() < until,
        )
    except _Stopped:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(json.dumps(schedule))
    return 0


def _end(_: int, __: FrameType | None) -> None:
    raise _Stopped


if __name__ == "__main__":
    sys.exit(main())
