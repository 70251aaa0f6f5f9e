"""Measuring what a command lacks: bricks alternately with models, the ceilings of the machine, and the time it took."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ..bricks.decomposition import Decomposition, Failed
from ..constructor.evidence import Evidence
from ..constructor.result import Estimate
from ..db import Store
from ..db.samples.rates import stream_sizes
from ..db.values import NATIVE
from ..generator.backends.base import Backend
from ..generator.backends.registry import get
from ..generator.decomposition.decompose import Model, readable
from ..generator.machine.cache_reach import noted_caches
from ..generator.machine.lock import work_clock
from ..generator.machine.system import probe_system
from ..generator.measurement.settings import PaceFields
from ..models import ModelSource
from .estimation.reading import find_ceilings
from .report.shares import stored_profile
from .setups import Setup, cut_of

if TYPE_CHECKING:
    from ..generator.decomposition.generate import GenerateReport
    from ..generator.measurement.run import RunReport
    from ..generator.progress import ProgressCallback

_PRODUCTS = (512, 1024)
_LARGEST_STREAM = 1 << 27
"""Ceilings for a page are taken from these only: some seconds; ``dlbricks system --ceilings`` takes them all."""

_CEILINGS_S = 12.0
"""What they take, and what is kept for them of a total time."""

_FOR_TRIALS = 0.25
"""Share of a total time that is kept for trials of remedies, if there is room for more than measuring."""

_FEW = 4
"""A total time of less than so many times that goes without ceilings."""

_BEYOND = 0.2
"""Share of a budget that work may take beyond it without a reason."""

_LONG_MS = 300.0
"""The reason names an execution that takes longer than this, since no budget can divide it."""


@dataclass(frozen=True, slots=True)
class MeasuringPlan:
    """How a command measures, and until when on the ``work_clock``; ``alone_s`` are kept to run models alone."""

    store: Store
    how: Setup
    visits: int = 24
    budget_s: float | None = None
    until: float = math.inf
    progress: ProgressCallback | None = None
    alone_s: float = 0.0

    @property
    def room(self) -> bool:
        """True if there is time for ceilings and for a first answer."""
        return self.budget_s is None or self.budget_s >= _FEW * _CEILINGS_S

    def left_s(self, kept_s: float) -> float | None:
        """Return the rest of the budget without some reserve, at least one second."""
        return None if self.budget_s is None else max(1.0, self.until - kept_s - self.alone_s - work_clock())

    def measure(
        self,
        models: Sequence[Model],
        suite: str | os.PathLike[str],
        pace: PaceFields,
        whole: Sequence[Decomposition] = (),
    ) -> tuple[GenerateReport, RunReport | None]:
        """Write the bricks of models into a folder and measure them, alternately with whole models.

        Which of them are measured cold as well depends on the caches. What the database noted last of them holds, since
        another look may find other ones, and what was measured is to be found again.

        Args:
            models: The models; unreadable ones get an error.
            suite: The folder.
            pace: How often, or how long.
            whole: The models that are measured as a whole.
        """
        from ..generator.decomposition.generate import generate  # what is stored is not measured again
        from ..generator.measurement.run import run

        progress = self.progress if any(isinstance(model, ModelSource) for model in models) else None
        here = probe_system().key
        caches = noted_caches(earlier for earlier in self.store.runs() if earlier.system == here)
        generated = generate(models, out=suite, settings=cut_of(self.how), caches=caches, progress=progress)
        if generated.suite is None:
            return generated, None
        settings = self.how.settings(**pace)
        return generated, run(
            generated.suite, store=self.store, models=whole, settings=settings, progress=self.progress
        )


class Spending:
    """The work of a command by step, in seconds; it begins with the first."""

    def __init__(self) -> None:
        self._last = work_clock()
        self._steps: dict[str, float] = {}

    def on(self, step: str) -> None:
        """Count the time since the last call as spent on a step."""
        now = work_clock()
        self._steps[step], self._last = self._steps.get(step, 0.0) + now - self._last, now

    def beyond(self, budget_s: float | None, latencies_ms: Mapping[str, float | None]) -> tuple[str, ...]:
        """Return the reason why a budget did not hold within a fifth; empty if it did.

        Args:
            budget_s: The budget; None for none.
            latencies_ms: One execution of each model, by name; None if unknown.
        """
        whole_s = sum(self._steps.values())
        if budget_s is None or whole_s <= (1 + _BEYOND) * budget_s:
            return ()
        step = max(self._steps, key=self._steps.__getitem__)
        reason = f"{whole_s:.0f} s of work for a budget of {budget_s:g} s: {step} took {self._steps[step]:.0f} s"
        longest = max(((ms, name) for name, ms in latencies_ms.items() if ms is not None), default=(0.0, ""))
        if longest[0] > _LONG_MS:
            reason += f"; one execution of {longest[1]} takes {longest[0] / 1e3:.2g} s"
        return (reason,)


def measure_missing(
    models: Sequence[Decomposition | Failed],
    evidence: Evidence,
    plan: MeasuringPlan,
    suite: str | os.PathLike[str] | None,
    *,
    trials: bool = False,
) -> tuple[GenerateReport | None, RunReport | None]:
    """Measure models alternately with their bricks; unreadable models are included, so that they get an error.

    Args:
        models: The models.
        evidence: What is stored of them.
        plan: How to measure, and until when.
        suite: Folder for the bricks; None: a temporary one.
        trials: Keep a part of the budget for trials of remedies.
    """
    if not models:
        return None, None
    kept_s = _CEILINGS_S if plan.room and not evidence.ceilings.known else 0.0
    kept_s += _FOR_TRIALS * (plan.budget_s or 0.0) if trials and plan.room else 0.0
    with ExitStack() as resources:
        folder = suite or Path(resources.enter_context(TemporaryDirectory(prefix="dlbricks-report-")), "suite")
        pace: PaceFields = {"visits": plan.visits, "budget_s": plan.left_s(kept_s)}
        return plan.measure(models, folder, pace, readable(models))


def profile_different(estimates: Sequence[Estimate], plan: MeasuringPlan) -> bool:
    """Profile models that differ from their estimates, where there is time; return True if any was profiled."""
    different = [
        entry.model.decomposition
        for entry in estimates
        if entry.differs and entry.model.decomposition is not None and stored_profile(entry) is None
    ]
    backend = get(plan.how.runtime.backend)
    if not different or work_clock() >= plan.until or not backend.offers(Backend.kernels):
        return False
    from ..generator.measurement.measure import measure  # most models are explained by their bricks

    since = datetime.fromtimestamp(0, UTC)  # their latencies are stored
    measure(
        different, store=plan.store, settings=plan.how.settings(), since=since, kernels=True, progress=plan.progress
    )
    return True


def with_ceilings(evidence: Evidence, plan: MeasuringPlan) -> Evidence:
    """Return the evidence with the machine's ceilings; missing ones are measured if there is time."""
    how, choice = plan.how, evidence.choice
    if choice is None or not plan.room or how.device != "cpu" or evidence.ceilings.known:
        return evidence
    if plan.budget_s is not None and plan.until - work_clock() < _CEILINGS_S + _FOR_TRIALS * plan.budget_s / 2:
        return evidence  # a busy machine has used it up, and trials say more than ceilings
    from ..generator.measurement.ceilings import measure_ceilings  # only where they are missing

    sizes = [size for size in stream_sizes(probe_system()) if size <= _LARGEST_STREAM]
    for dtype in dict.fromkeys((NATIVE, how.dtype)):
        measure_ceilings(
            store=plan.store,
            backend=how.backend,
            threads=how.threads or 1,
            dtype=dtype,
            gemm_sizes=_PRODUCTS,
            sizes=sizes,
            visits=10,
            processes=1,
            progress=plan.progress,
        )
    return replace(evidence, ceilings=find_ceilings(plan.store, choice, plan.store.stacks()))
