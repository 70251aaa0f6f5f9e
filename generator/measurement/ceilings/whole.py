"""Progress of several measurements that follow each other, as of one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from ...progress import Progress, ProgressCallback

__all__ = ["Whole"]


class Whole:
    """What is done of all of them, and what is left.

    Args:
        progress: Called with the progress of the whole; None: not at all.
        forecasts_s: Seconds that each takes.
    """

    def __init__(self, progress: ProgressCallback | None, forecasts_s: Sequence[float]) -> None:
        self._progress = progress
        self._forecasts_s = tuple(forecasts_s)
        self._begun_s = time.monotonic()

    def part(self, number: int) -> ProgressCallback | None:
        """The callback of one of them: counts are of it, with its place among all; times are of the whole."""
        progress = self._progress
        if progress is None:
            return None
        later_s, place = sum(self._forecasts_s[number + 1 :]), f"{number + 1}/{len(self._forecasts_s)}"

        def report(step: Progress) -> None:
            remaining_s = None if step.remaining_s is None else step.remaining_s + later_s
            progress(
                replace(
                    step,
                    done=step.done + number * step.total,
                    total=len(self._forecasts_s) * step.total,
                    label=f"{place} {step.label}",
                    elapsed_s=time.monotonic() - self._begun_s,
                    remaining_s=remaining_s,
                )
            )

        return report
