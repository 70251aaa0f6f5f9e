"""The same command for several numbers of threads, one after the other.

The library measures with one number at a time, since a worker is bound to its cores when it starts. Each number has its
own runs in the database, goes on from where it was interrupted, and gets an equal share of what is left of the time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..analyzer.report.units import counted

if TYPE_CHECKING:
    from ..analyzer.estimation.estimates import Estimates
    from ..constructor.result import Estimate
    from ..models import ModelSource
    from .console import Reporter

__all__ = ["each_estimated", "each_measured"]

_LEAST_S = 1e-3
"""A share where nothing is left: the least is measured all the same, as of a single budget that is too short."""

Report = TypeVar("Report")


def each_measured(
    threads: Sequence[int],
    models: Sequence[ModelSource],
    budget_s: float | None,
    *,
    progress: Reporter,
    measure: Callable[[int, list[ModelSource], float | None], Report],
    spent_s: Callable[[Report], float],
) -> list[Report]:
    """One report per number of threads.

    Args:
        threads: The numbers; 0 means all physical cores.
        models: Whole models; with several numbers the name of each ends in ``@t2``.
        budget_s: Total time of all; None: as long as it takes.
        progress: Shows which number is measured.
        measure: Measures with one number, the models and seconds given.
        spent_s: What of its share a report used up.
    """
    if len(threads) > 1:
        from ..generator.machine.cores import physical_cores

        threads = tuple(dict.fromkeys(number or len(physical_cores()) for number in threads))
    reports: list[Report] = []
    for place, number in enumerate(threads):
        named = list(models)
        if len(threads) > 1:
            progress.part = f" with {counted(number, 'thread')}"
            named = [one if one.problem else dataclasses.replace(one, name=f"{one.name}@t{number}") for one in models]
        share_s = None if budget_s is None else max(_LEAST_S, budget_s / (len(threads) - place))
        report = measure(number, named, share_s)
        budget_s = None if budget_s is None else budget_s - spent_s(report)
        reports.append(report)
    return reports


def each_estimated(threads: Sequence[int], estimate: Callable[[int | None], Estimates]) -> Estimates:
    """Estimates for several numbers of threads, those of a model side by side, its name with ``@t2`` at its end.

    Args:
        threads: The numbers, of which 0 may mean another one; one number, or none, for estimates as they are.
        estimate: Estimates every model with one number.
    """
    from ..analyzer.estimation.estimates import Estimates

    if len(threads) < 2:
        return estimate(threads[0] if threads else None)
    found: dict[tuple[int, int | None], Estimate] = {}
    for number in threads:
        for place, entry in enumerate(estimate(number)):
            name = f"{entry.name}@t{number if entry.threads is None else entry.threads}"
            found.setdefault((place, entry.threads), dataclasses.replace(entry, name=name))
    return Estimates(tuple(found[key] for key in sorted(found, key=lambda key: key[0])))
