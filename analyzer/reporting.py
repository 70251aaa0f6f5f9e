"""The report: from models to the page in one call; stored results are reused."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..bricks.decomposition import Decomposition, Failed
from ..constructor.choice import Query
from ..constructor.construction import construct
from ..constructor.correction import with_denormals
from ..constructor.evidence import Evidence
from ..constructor.result import Estimate
from ..db import Measurement, Store
from ..errors import DlbricksError, MachineBusy, UsageError
from ..generator.decomposition.decompose import decompose, decomposing_until, readable
from ..generator.machine.lock import work_clock
from ..generator.network.export import write_file
from ..models import ModelSource
from .estimation.estimate import estimate, estimates_between, estimates_in
from .estimation.learning import Gaps, learn
from .estimation.reading import evidence_under, missing
from .findings.analyses.runtime_settings import DENORMALS
from .findings.finding import LATE, Finding
from .measuring import MeasuringPlan, Spending, measure_missing, profile_different, with_ceilings
from .report.page.page import render_page
from .report.reported import Report
from .report.section import Section
from .setups import Setup, choice_here, cut_of, evidence_here, interrupted_here, notes_of, set_up, settled, stored_here

if TYPE_CHECKING:
    from ..generator.decomposition.generate import GenerateReport
    from ..generator.measurement.alone import Alone
    from ..generator.measurement.run import RunReport
    from ..generator.progress import ProgressCallback


T = TypeVar("T")

_CLOSING, _CLOSING_S = 0.05, 2.5
"""Share of a budget, and seconds at most, that start, last estimates and page take: work ends so much earlier."""

_GRACE = 0.1
"""Share of a budget beyond its end for analyses, which measure nothing."""

_ALONE_S = 8.0
"""Seconds that a model takes in two separate processes, with the arena and without it."""


def report(
    models: Sequence[ModelSource],
    *,
    store: Store,
    out: str | os.PathLike[str] | None = None,
    setup: Setup | None = None,
    measure: bool = True,
    visits: int = 24,
    budget_s: float | None = None,
    suite: str | os.PathLike[str] | None = None,
    prove: bool = True,
    write: str | os.PathLike[str] | None = None,
    interpolate: bool = False,
    alone: bool = False,
    progress: ProgressCallback | None = None,
    first: Callable[[Sequence[Estimate]], None] | None = None,
) -> Report:
    """Measure all missing latencies (models alternate with bricks), find savings, and write the page.

    Args:
        models: The models, from ``find_models``.
        store: Database of the measurements.
        out: File of the page; None: no page. Without a readable model, no page is written.
        setup: How to measure; by default as ``set_up``.
        measure: Decompose and measure missing models; False: use only stored measurements.
        visits: Number of visits of each brick and model.
        budget_s: Total time of work, instead of ``visits``; waiting for another process does not count. It also ends
            analyses and proofs; the page has the results until then.
        suite: Folder for the bricks; None: a temporary one.
        prove: Try the remedies, if there is time and ``measure`` is true. Remedies with a stored proof are not tried
            again.
        write: Folder for improved models with a proven saving.
        interpolate: Interpolate missing bricks between sizes of a model, as ``estimate_between``.
        alone: Also run each model in a separate process, for its memory and the percentiles of its executions.
        progress: Called between requests to the worker.
        first: Called before models are measured, with their estimates from stored and predicted bricks.

    Returns:
        One section per model; an unreadable model has an error.

    Raises:
        AmbiguousQuery: With ``measure=False``, several stored combinations match; the message lists them.
        UsageError: ``alone`` with ``measure=False``.
        DlbricksError: The machine cannot measure now, or the suite's folder holds something else.
        OSError: The page cannot be written.

    Example:
        >>> with Store.open("dlbricks.db") as store:  # doctest: +SKIP
        ...     made = report(find_models(["squeezenet"]), store=store, out="report.html")
    """
    if alone and not measure:
        raise UsageError("a model runs alone now, and nothing is measured", remedy="leave out one of both")
    begun, spent = time.monotonic(), Spending()
    until = math.inf if budget_s is None else work_clock() + budget_s - min(_CLOSING * budget_s, _CLOSING_S)
    how = settled(setup or set_up()) if measure else setup or set_up()
    plan = MeasuringPlan(store, how, visits, budget_s, until, progress, _ALONE_S * len(models) if alone else 0.0)
    if measure:
        made = _measured(models, plan, spent, suite, first, prove=prove)
    else:
        made = _Measured(estimates_in(store, models, how, cut_of(how)))
    estimates, interrupted = made.estimates, made.interrupted
    if interpolate:
        query = (stored_here(store, how) if measure else how) or how
        estimates = estimates_between(store, models, query, cut_of(how))
    memories: dict[str, Alone] = {}
    refused: tuple[str, ...] = ()
    free = measure and made.refused is None
    if alone and free and interrupted is None:
        (memories, refused), interrupted = _until_interrupted(partial(_alone, estimates, how), (memories, refused))
    spent.on("measuring" if measure else "reading")
    if interrupted is None:
        sections, unasked, interrupted = _analysed(estimates, plan, write, prove=free and prove)
    else:
        sections, unasked = tuple(map(Section, estimates)), ()
    sections = tuple(replace(section, alone=memories.get(section.name)) for section in sections)
    unasked += refused if made.refused is None else (made.refused,)
    spent.on("analyses and proofs")
    page = None
    if out is not None and any(section.estimate.error is None for section in sections):
        page, stopped = _until_interrupted(partial(_written, Path(out), sections, [*notes_of(how), *unasked]), None)
        interrupted = interrupted or stopped
    spent.on("the page")
    unasked += spent.beyond(budget_s, {section.name: section.estimate.truth.ms for section in sections})
    return Report(sections, how, page, made.generated, made.report, time.monotonic() - begun, unasked, interrupted)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Estimates of models, and what was measured for them.

    Attributes:
        estimates: The estimates.
        generated: Result of the decomposition.
        report: Result of the measurement.
        interrupted: What interrupted it.
        refused: Why nothing could be measured.
    """

    estimates: list[Estimate]
    generated: GenerateReport | None = None
    report: RunReport | None = None
    interrupted: KeyboardInterrupt | None = None
    refused: str | None = None


def _measured(
    models: Sequence[ModelSource],
    plan: MeasuringPlan,
    spent: Spending,
    suite: str | os.PathLike[str] | None,
    first: Callable[[Sequence[Estimate]], None] | None,
    *,
    prove: bool,
) -> _Measured:
    """Decompose models and measure what is missing.

    After an interrupt, the estimates are from the visits until then, and from predictions of what has none. Beside
    another measuring process, they are from what is stored, and from predictions.
    """
    store, how = plan.store, plan.how
    with decomposing_until(plan.until):
        decompositions = decompose(models, cut_of(how), progress=plan.progress)
    spent.on("decomposing")
    evidence = evidence_here(decompositions, store, how)
    lacking = missing(decompositions, evidence)
    if first is not None and lacking and plan.room:
        first(_first_answer(readable(lacking), store, how))
    try:
        generated, measured = measure_missing(lacking, evidence, plan, suite, trials=prove)
        evidence = with_ceilings(evidence_here(decompositions, store, how) if measured else evidence, plan)
    except KeyboardInterrupt as error:
        with interrupted_here(store, how):
            evidence = _with_predictions(decompositions, evidence_here(decompositions, store, how), store, how)
            return _Measured([*estimate(decompositions, evidence)], interrupted=error)
    except MachineBusy as error:
        evidence = _with_predictions(decompositions, evidence_here(decompositions, store, how), store, how)
        return _Measured([*estimate(decompositions, evidence)], refused=f"nothing is measured: {error}")
    estimates = [*estimate(decompositions, evidence)]
    try:
        profiled, interrupted = _until_interrupted(partial(profile_different, estimates, plan), otherwise=True)
    except MachineBusy as error:
        return _Measured(estimates, generated, measured, refused=f"nothing more is measured: {error}")
    if profiled:
        estimates = [*estimate(decompositions, evidence_here(decompositions, store, how))]
    return _Measured(estimates, generated, measured, interrupted)


def _written(page: Path, sections: Sequence[Section], notes: Sequence[str]) -> Path | None:
    """Write the page, whole or not at all; return it."""
    write_file(page, render_page(sections, notes=notes).encode("utf-8", "backslashreplace"))
    return page


def _until_interrupted(step: Callable[[], T], otherwise: T) -> tuple[T, KeyboardInterrupt | None]:
    """Return the result of a step and None; after an interrupt, return ``otherwise`` and the interrupt."""
    try:
        return step(), None
    except KeyboardInterrupt as error:
        return otherwise, error


def _first_answer(models: Sequence[Decomposition], store: Store, how: Setup) -> list[Estimate]:
    """Return estimates of models, with predictions of their missing bricks."""
    choice = choice_here(how)
    evidence = evidence_under(choice, models, store, how, cut_of(how))
    evidence = Gaps(models, evidence, learn(store, choice)).filled(evidence)
    return [construct(model, evidence) for model in models]


def _with_predictions(
    models: Sequence[Decomposition | Failed], evidence: Evidence, store: Store, how: Setup
) -> Evidence:
    """Return the evidence of models with predictions of their missing bricks."""
    lacking = readable(missing(models, evidence))
    choice = choice_here(how)
    if evidence.choice is None:
        evidence = evidence_under(choice, readable(models), store, how, cut_of(how))
    return Gaps(lacking, evidence, learn(store, choice)).filled(evidence)


def _alone(estimates: Sequence[Estimate], how: Setup) -> tuple[dict[str, Alone], tuple[str, ...]]:
    """Return the results of models in separate processes, by name, and the reasons for models without a result."""
    from ..generator.measurement.alone import run_alone

    able = [entry for entry in estimates if entry.error is None]
    try:
        answers = run_alone([entry.model.source for entry in able], how.settings())
    except MachineBusy as error:
        return {}, (f"no model was run alone: {error}",)
    pairs = [(entry.name, answer) for entry, answer in zip(able, answers, strict=True)]
    ran = {name: answer for name, answer in pairs if not isinstance(answer, DlbricksError)}
    return ran, tuple(f"{name} was not run alone: {answer}" for name, answer in pairs if name not in ran)


def _analysed(
    estimates: Sequence[Estimate], plan: MeasuringPlan, write: str | os.PathLike[str] | None, *, prove: bool
) -> tuple[tuple[Section, ...], tuple[str, ...], KeyboardInterrupt | None]:
    """Return the analysed models, the reasons for models without an analysis, and the interrupt, if there was one.

    Args:
        estimates: Estimates of the models.
        plan: The database of the findings, and the end of analyses and proofs.
        write: Folder for improved models.
        prove: True if remedies are tried.
    """
    sections, unasked = list[Section](), list[str]()
    interrupted: KeyboardInterrupt | None = None
    for entry in estimates:
        truth = entry.truth.measurement
        if truth is None or interrupted is not None:
            sections.append(Section(entry))
            continue
        try:
            try:
                section, reasons = _analysed_model(entry, truth, plan, write, prove=prove)
            except MachineBusy as error:
                prove = False  # the next model would wait as long
                section, reasons = _analysed_model(entry, truth, plan, write, prove=False)
                unasked.append(f"no remedy was tried: {error}")
        except KeyboardInterrupt as error:
            interrupted, section, reasons = error, Section(entry), [f"{entry.name} was not analysed: interrupted"]
        sections.append(section)
        unasked += reasons
    return tuple(sections), tuple(unasked), interrupted


def _analysed_model(
    entry: Estimate,
    truth: Measurement,
    plan: MeasuringPlan,
    write: str | os.PathLike[str] | None,
    *,
    prove: bool,
) -> tuple[Section, list[str]]:
    """Return one analysed model, and the reasons for analyses and trials that were left out."""
    from .findings.analyze import analyze  # it imports much, and many models have nothing to analyse

    late = work_clock() >= plan.until
    until = plan.until + _GRACE * (plan.budget_s or 0.0) if late else plan.until
    conditions = asdict(replace(truth.conditions, cache=entry.place.cache or ""))
    (row,) = analyze(
        [entry if _shows_execution(entry) else entry.model.source],
        store=plan.store, query=Query(truth.system, truth.stack, **conditions), prove=prove and not late,
        again=write is not None, until=until, write=Path(write) if prove and write is not None else None,
        progress=plan.progress,
    ).rows  # fmt: skip
    if row.error is not None:
        return Section(entry), [f"{row.name} was not analysed: {row.error}"]
    unasked = [f"{row.name}: {reason}" for reason in row.unasked] if prove else []
    if late and any(reason.endswith(LATE) for reason in row.unasked):
        proven = Section(_with_denormals(entry, row.findings), row.findings or None, row.untried)
        return proven, [f"{row.name} was not analysed: {LATE}"]
    if late and prove and row.untried:
        unasked.append(f"{row.name}: no remedy was tried: {LATE}")
    return Section(_with_denormals(entry, row.findings), row.findings, row.untried), unasked


def _with_denormals(entry: Estimate, findings: Sequence[Finding]) -> Estimate:
    """Return an estimate with the cost of denormal numbers in its attribution, if a trial measured it."""
    proofs = [finding.proof for finding in findings if finding.kind == DENORMALS.name and finding.unproven is None]
    proof = next(filter(None, proofs), None)
    if proof is None or entry.attribution is None or entry.truth.ms is None:
        return entry
    saved_ms = (proof.saving_ms, *proof.ci95_ms)
    low, middle, high = sorted(ms / proof.before_ms for ms in saved_ms)
    return replace(entry, attribution=with_denormals(entry.attribution, (middle, low, high), entry.truth.ms))


def _shows_execution(entry: Estimate) -> bool:
    """Return true for a model decomposed along its executed graph, which analyses need."""
    return entry.model.decomposition is not None and bool(entry.model.decomposition.graph.salt)
