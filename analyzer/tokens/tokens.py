"""From two models to the time of an answer: bricks at a few lengths, and what lies between them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...constructor.curve import Curve, Point
from ...constructor.result import Estimate
from ...constructor.tokens import Generation, generation, lengths_between, steps_of
from ...db import Store
from ...errors import UsageError
from ...generator.decomposition.cutter import Cut
from ...generator.decomposition.generate import generate
from ...generator.measurement.run import RunReport, run
from ...generator.progress import ProgressCallback
from ...models import ModelSource
from ...models.dimensions import Kind
from ...tabular import Records, Tabular
from ..estimation.estimate import explained
from ..reporting import Setup, measured_here, runtime_of, set_up, settled
from .lengths import Lengthy, lengthy

__all__ = ["Part", "Tokens", "tokens"]


@dataclass(frozen=True, slots=True)
class Part:
    """The prompt or the step of a model, against its length.

    Attributes:
        model: The model, and the dimension that is varied.
        estimates: One per length, by length.
        curve: Those of them that are complete.
        undisturbed: The same on a quiet machine.
    """

    model: Lengthy
    estimates: dict[int, Estimate]
    curve: Curve
    undisturbed: Curve

    def record(self) -> dict[str, Any]:
        """What was measured, as a JSON object."""
        points = [
            {
                "length": length,
                "estimate_ms": entry.estimate_ms,
                "ci95_ms": entry.ci95_ms,
                "undisturbed_ms": entry.undisturbed_ms,
                "measured_ms": entry.measured_ms,
                "coverage": None if entry.coverage is None else entry.coverage.sequences,
                "error": entry.error,
            }
            for length, entry in self.estimates.items()
        ]
        left_out = [asdict(one) | {"error": one.error} for one in self.curve.left_out]
        return {
            "model": self.model.source.name,
            "dimension": self.model.dimension,
            "points": points,
            "left_out": left_out,
            "error": self.curve.error,
        }


@dataclass(frozen=True, slots=True)
class Tokens(Tabular):
    """What a language model takes to answer prompts of several lengths.

    Attributes:
        prompt: The model of the prompt.
        step: The model of a step.
        rows: One per length of the prompt.
        undisturbed: The same on a quiet machine, without intervals: what to compare across runs and machines.
        setup: How it was measured.
        measured: What was measured by this call, of the prompt and of the step; empty where everything was stored, or
            nothing was to be measured.
        wall_s: The whole call.
    """

    prompt: Part
    step: Part
    rows: tuple[Generation, ...]
    undisturbed: tuple[Generation, ...]
    setup: Setup
    measured: tuple[RunReport, ...]
    wall_s: float

    @property
    def complete(self) -> bool:
        """Whether every answer is known, from start to end."""
        return all(one.total_ms is not None for one in self.rows)

    def records(self) -> Records:
        """One row per length of the prompt; beside them what was measured, as ``curves``."""
        names = {"prompt_model": self.prompt.model.source.name, "step_model": self.step.model.source.name}
        rows = [
            names | asdict(one) | {"ttft_undisturbed_ms": still.ttft_ms, "token_undisturbed_ms": still.token_ms}
            for one, still in zip(self.rows, self.undisturbed, strict=True)
        ]
        totals = {
            "curves": {"prompt": self.prompt.record(), "step": self.step.record()},
            "picked": list(self.setup.picked),
            "measured": sum(report.measured for report in self.measured),
            "wall_s": self.wall_s,
        }
        return Records(rows, totals)


def tokens(
    prompt: ModelSource,
    step: ModelSource,
    *,
    store: Store,
    prompts: Sequence[int],
    new: int,
    lengths: Sequence[int] = (),
    prompt_dimension: str | None = None,
    past_dimension: str | None = None,
    setup: Setup | None = None,
    measure: bool = True,
    visits: int = 24,
    budget_s: float | None = None,
    suite: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
) -> Tokens:
    """Time to the first token, time per token and tokens per second, from bricks measured at a few lengths.

    The latency of the prompt and of a step is estimated at these lengths, and read between them
    (``constructor/curve.py``); beyond them nothing is said. No model is executed as a whole.

    Args:
        prompt: The model that takes a prompt and fills a cache.
        step: The model that takes one token and extends the cache.
        store: Where measurements are, and go to.
        prompts: Lengths of the prompt.
        new: Tokens of every answer.
        lengths: Where to measure, the prompt and the step alike; empty: the shortest and the longest that is needed,
            and powers of two between.
        prompt_dimension: Dimension of ``prompt`` that counts its tokens; None: found by name and place.
        past_dimension: Dimension of ``step`` that counts positions in the cache; likewise.
        setup: How to measure; by default what ``set_up`` picks.
        measure: Decompose and measure what is missing; False: only what is stored is used.
        visits: How often each brick is visited.
        budget_s: Total time instead: as many visits as fit into it.
        suite: Folder for the bricks; None: a temporary one.
        progress: Called between requests to the worker.

    Raises:
        UsageError: A length is less than 1, or there is none of a prompt.
        UnboundDimension: A model has no such dimension.
        ModelError: A model cannot be read.
        AmbiguousQuery: Nothing is to be measured, and several stored combinations match.
        DlbricksError: The machine cannot measure now, or the suite's folder holds something else.

    Example:
        >>> with Store.open("dlbricks.db") as store:  # doctest: +SKIP
        ...     found = tokens(*pair(["distilgpt2"]), store=store, prompts=[32, 512], new=128)
    """
    begun = time.monotonic()
    if not prompts or min(*prompts, *lengths, new, 1) < 1:
        raise UsageError("prompts, answers and lengths have at least one token", remedy="give lengths of 1 or more")
    how = setup or set_up()
    if measure:
        how = settled(how)
    filled = lengthy(prompt, Kind.SEQUENCE, prompt_dimension, "--prompt-dim")
    extended = lengthy(step, Kind.PAST, past_dimension, "--past-dim")
    at_prompt = sorted(set(lengths)) or lengths_between(min(prompts), max(prompts))
    at_step = sorted(set(lengths)) or _of_steps(prompts, new)
    models = [*filled.at(at_prompt), *extended.at(at_step)]
    reports = (
        _measured([filled.at(at_prompt), extended.at(at_step)], store, how, visits, budget_s, suite, progress)
        if measure
        else ()
    )
    found = iter(_estimates(models, store, how, measure=measure))
    parts = [
        _part(model, {length: next(found) for length in where})
        for model, where in ((filled, at_prompt), (extended, at_step))
    ]
    answers, still = (
        tuple(generation(*curves, prompt=length, new=new) for length in prompts)
        for curves in ([part.curve for part in parts], [part.undisturbed for part in parts])
    )
    return Tokens(parts[0], parts[1], answers, still, how, reports, time.monotonic() - begun)


_PARTS = ("prompt", "step")
"""Folders of the two suites."""


def _of_steps(prompts: Sequence[int], new: int) -> tuple[int, ...]:
    """Lengths of the cache to measure at."""
    first, last = steps_of(min(prompts), new), steps_of(max(prompts), new)
    return lengths_between(first[0], last[-1]) if first else ()


def _measured(  # noqa: PLR0917  (what ``tokens`` has at hand)
    parts: Sequence[Sequence[ModelSource]],
    store: Store,
    how: Setup,
    visits: int,
    budget_s: float | None,
    suite: str | os.PathLike[str] | None,
    progress: ProgressCallback | None,
) -> tuple[RunReport, ...]:
    """Measure the bricks that are missing, those of the prompt and those of the step apart.

    A step does little but read its weights, one after the other, and a prompt computes: each is visited in turn with
    bricks of its own kind, as its layers stand in their model.
    """
    begun = time.monotonic()
    reports = []
    with ExitStack() as resources:
        place = Path(suite or resources.enter_context(TemporaryDirectory(prefix="dlbricks-tokens-")))
        for number, (name, all_models) in enumerate(zip(_PARTS, parts, strict=True)):
            models, found = all_models, measured_here(all_models, store, how)
            if found is not None:
                models = [source for source, (entry, _) in zip(models, found, strict=True) if not entry.complete]
            if not models:
                continue
            made = generate(
                models, granularity=1, out=place / name, graph=how.graph or "runtime", **runtime_of(how),
                progress=progress,
            )  # fmt: skip
            if made.suite is None:
                continue
            left_s = None
            if budget_s is not None:
                left_s = max(1.0, (budget_s - (time.monotonic() - begun)) / (len(parts) - number))
            reports.append(run(
                made.suite, store=store, **runtime_of(how), cache=how.cache or "", dtype=how.dtype or "",
                visits=visits, budget_s=left_s, progress=progress,
            ))  # fmt: skip
    return tuple(reports)


def _estimates(models: Sequence[ModelSource], store: Store, how: Setup, *, measure: bool) -> list[Estimate]:
    found = measured_here(models, store, how) if measure else None
    if found is None:
        found = explained(models, store=store, query=how, cut=Cut(1, graph=how.graph or "runtime"))
    return [entry for entry, _ in found]


def _part(model: Lengthy, estimates: dict[int, Estimate]) -> Part:
    known = (
        Point(length, entry.estimate_ms, entry.ci95_ms)
        for length, entry in estimates.items()
        if entry.estimate_ms is not None
    )
    quiet = (
        Point(length, entry.undisturbed_ms)
        for length, entry in estimates.items()
        if entry.estimate_ms is not None and entry.undisturbed_ms is not None
    )
    return Part(model, estimates, Curve.through(known), Curve.through(quiet))
