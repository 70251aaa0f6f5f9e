"""What a visit needs: a clock, and no garbage collection."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["time_once", "undisturbed"]

Run = Callable[[], None]


def time_once(run: Run, synchronize: Run) -> int:
    """Nanoseconds of one execution, to its end."""
    start = time.perf_counter_ns()
    run()
    synchronize()
    return time.perf_counter_ns() - start


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection: collect now, then not until the end."""
    enabled = gc.isenabled()
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
