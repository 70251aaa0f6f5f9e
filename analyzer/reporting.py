"""The report: from models to the page in one call; stored results are reused."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Unpack

import msgspec

from ..bricks.decomposition import Decomposition, Failed
from ..constructor.choice import Choice, Query
from ..constructor.construction import construct
from ..constructor.evidence import Evidence
from ..constructor.remedies import Task, TaskKind
from ..constructor.result import Estimate
from ..db import Measurement, Store
from ..db.samples.rates import stream_sizes
from ..db.values import NATIVE, Conditions, Runtime, content_key
from ..generator.backends.registry import get, require_available
from ..generator.decomposition.cut import Cut
from ..generator.decomposition.decompose import Model, decompose, readable
from ..generator.machine.cores import physical_cores
from ..generator.machine.system import probe_system
from ..generator.measurement.settings import MeasurementSettings, PaceFields
from ..models import ModelSource
from ..models.cache import keep, kept
from ..tabular import Records, Tabular
from ..version import __version__
from .estimation.estimate import estimate, estimates_between, estimates_in
from .estimation.estimates import Estimates
from .estimation.learning import Gaps, learn
from .estimation.query import QueryFields
from .estimation.reading import evidence_under, find_ceilings, missing, read_evidence
from .findings.finding import Finding
from .report.answers.estimates import estimates_answer
from .report.page.page import render_page
from .report.page.payload import headline, operators
from .report.section import Section, layer_rows
from .report.tables import Answer
from .report.units import counted, duration, percent, within
from .shell import shell_command

if TYPE_CHECKING:
    from ..generator.decomposition.generate import GenerateReport
    from ..generator.measurement.run import RunReport
    from ..generator.progress import ProgressCallback

# Findings kept in the user's cache folder, so that proofs are not run again.
#
# They are found by the measurement of the model that their savings are of, and the analyses that were asked: measured
# again, it is analysed again, and so it is by a version that has others.


_KEPT, _FILE = "findings", "findings.json"
"""Folder within the cache folder, and the file of an entry."""

_FORMAT = 3
"""Changes whenever findings are written otherwise, or there are other analyses."""


def kept_findings(truth: Measurement, *, proven: bool) -> tuple[Finding, ...] | None:
    """Return the kept findings of a measured model; None without any.

    Args:
        truth: The measurement of the model.
        proven: Only findings with all remedies tried; false: findings without proofs suffice.
    """
    for entry in (_entry(truth, proven=True), *(() if proven else (_entry(truth, proven=False),))):
        if (folder := kept(_KEPT, entry)) is None:
            continue
        try:
            return msgspec.json.decode((folder / _FILE).read_bytes(), type=tuple[Finding, ...])
        except (OSError, ValueError):
            continue  # damaged: it is analysed again
    return None


def keep_findings(truth: Measurement, findings: Sequence[Finding], *, proven: bool) -> None:
    """Keep the findings of a measured model.

    Args:
        truth: The measurement of the model.
        findings: The findings.
        proven: Whether remedies were tried.
    """

    def write(folder: Path) -> None:
        (folder / _FILE).write_bytes(msgspec.json.encode(findings))

    keep(_KEPT, _entry(truth, proven=proven), write)


def _entry(truth: Measurement, *, proven: bool) -> str:
    return content_key([truth.id, proven, __version__, _FORMAT])


_PRODUCTS = (512, 1024)
_LARGEST_STREAM = 1 << 27
"""Ceilings for a page are taken from these only: some seconds; ``dlbricks system --ceilings`` takes them all."""

_CEILINGS_S = 12.0
"""What they take, and what is kept for them of a total time."""

_FEW = 4
"""A total time of less than so many times that goes without ceilings."""


@dataclass(frozen=True, slots=True)
class Setup(Query):
    """How models are measured and composed: a query, a graph and options of the backend.

    Before measuring, ``report`` sets open fields to defaults, as ``set_up`` does.

    Attributes:
        graph: Which graph is cut into bricks; None: the executed one, if nothing is measured.
        options: Options of the backend.
        picked: The fields with default values, as options of the command line.
    """

    graph: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    picked: tuple[str, ...] = ()

    @property
    def runtime(self) -> Runtime:
        """The backend, its device and options."""
        return Runtime.of(self.backend or "onnxruntime", self.device or "cpu", self.options)

    def settings(self, **pace: Unpack[PaceFields]) -> MeasurementSettings:
        """How to measure with it, so often or so long."""
        conditions = Conditions(self.threads or 1, self.cache or "model", self.dtype or NATIVE)
        return MeasurementSettings(self.runtime, conditions, **pace)


class SetupFields(QueryFields, total=False):
    """The fields of a ``Setup`` as keywords of a function."""

    graph: str | None
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Report(Tabular):
    """The results of a report.

    Attributes:
        sections: The models.
        setup: How they were measured.
        page: The written page; None without one.
        generated: Result of the decomposition; None if everything was stored.
        measured: Result of the measurement; None if everything was stored.
        wall_s: Duration of the whole call.
        unasked: Reasons for analyses and trials that were left out.
    """

    ANSWER = "reporting.report_answer"

    sections: tuple[Section, ...]
    setup: Setup
    page: Path | None
    generated: GenerateReport | None
    measured: RunReport | None
    wall_s: float
    unasked: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """True if every layer of every model is measured or interpolated."""
        return all(section.estimate.complete or section.estimate.parts.interpolated for section in self.sections)

    @property
    def rows(self) -> tuple[Section, ...]:
        """The models, as every report has them."""
        return self.sections

    @property
    def estimates(self) -> Estimates:
        """The estimates of the models."""
        return Estimates(tuple(section.estimate for section in self.sections))

    def records(self) -> Records:
        """One row per model, as ``estimate --explain`` gives it, with its findings."""
        full = self.estimates.records(explain=True)
        rows = [{**row, **section.missed()} for row, section in zip(full.results, self.sections, strict=True)]
        totals = {
            "page": None if self.page is None else str(self.page),
            "picked": list(self.setup.picked),
            "measured": 0 if self.measured is None else self.measured.measured,
            "wall_s": self.wall_s,
        }
        return Records(rows, {**totals, **full.totals}, full.flat)


def set_up(**fields: Unpack[SetupFields]) -> Setup:
    """Return a setup with defaults: ONNX Runtime, one thread, the executed graph, caches as in a model.

    Args:
        **fields: Fields of a ``Setup`` with other values.

    Raises:
        UsageError: There is no such backend, or it has no such option.
        BackendUnavailable: The backend cannot run here.
    """
    return settled(Setup(**fields))


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
    progress: ProgressCallback | None = None,
    first: Callable[[Sequence[Estimate]], None] | None = None,
) -> Report:
    """Measure what is not stored yet (models alternate with bricks), find savings, and write the page.

    Args:
        models: The models, from ``find_models``.
        store: Database of the measurements.
        out: File of the page; None: no page. Without a readable model there is no page either.
        setup: How to measure; by default as ``set_up``.
        measure: Decompose and measure missing models; False: use only stored measurements.
        visits: Number of visits of each brick and model.
        budget_s: Total time, instead of ``visits``. It also ends analyses and proofs; the page has the results until
            then.
        suite: Folder for the bricks; None: a temporary one.
        prove: Try the remedies, if there is time and ``measure`` is true. Proven findings are not tried again.
        write: Folder for improved models with a proven saving.
        interpolate: Interpolate missing bricks between sizes of a model, as ``estimate_between``.
        progress: Called between requests to the worker.
        first: Called before models are measured, with their estimates from stored and predicted bricks.

    Returns:
        One section per model; an unreadable model has an error.

    Raises:
        AmbiguousQuery: With ``measure=False``, several stored combinations match; the message lists them.
        DlbricksError: The machine cannot measure now, or the suite's folder holds something else.
        OSError: The page cannot be written.

    Example:
        >>> with Store.open("dlbricks.db") as store:  # doctest: +SKIP
        ...     made = report(find_models(["squeezenet"]), store=store, out="report.html")
    """
    begun = time.monotonic()
    until = math.inf if budget_s is None else begun + budget_s
    how = settled(setup or set_up()) if measure else setup or set_up()
    plan = MeasuringPlan(store, how, visits, budget_s, until, progress)
    generated, measured = None, None
    if measure:
        decompositions = decompose(models, cut_of(how), progress=progress)
        evidence = _evidence_here(decompositions, store, how)
        lacking = missing(decompositions, evidence)
        if first is not None and lacking and plan.room:
            first(_first_answer(readable(lacking), store, how))
        generated, measured = _measure_missing(lacking, evidence, plan, suite)
        evidence = _with_ceilings(_evidence_here(decompositions, store, how) if measured else evidence, plan)
        estimates = [*estimate(decompositions, evidence)]
    else:
        estimates = estimates_in(store, models, how, cut_of(how))
    if interpolate:
        query = (_here(store, how) if measure else how) or how
        estimates = estimates_between(store, models, query, cut_of(how))
    sections, unasked = _analysed(estimates, plan, write, prove=measure and prove)
    page = None
    if out is not None and any(section.estimate.error is None for section in sections):
        page = Path(out)
        text = render_page(sections, notes=[*notes_of(how), *unasked])
        page.write_text(text, encoding="utf-8", errors="backslashreplace")
    return Report(sections, how, page, generated, measured, time.monotonic() - begun, unasked)


def _first_answer(models: Sequence[Decomposition], store: Store, how: Setup) -> list[Estimate]:
    """Return estimates of models, with predictions of their missing bricks."""
    choice = choice_here(how)
    evidence = evidence_under(choice, models, store, how, cut_of(how))
    evidence = Gaps(models, evidence, learn(store, choice)).filled(evidence)
    return [construct(model, evidence) for model in models]


@dataclass(frozen=True, slots=True)
class MeasuringPlan:
    """How a command measures, and until when on the monotonic clock."""

    store: Store
    how: Setup
    visits: int = 24
    budget_s: float | None = None
    until: float = math.inf
    progress: ProgressCallback | None = None

    @property
    def room(self) -> bool:
        """True if there is time for ceilings and for a first answer."""
        return self.budget_s is None or self.budget_s >= _FEW * _CEILINGS_S

    def left_s(self, kept_s: float) -> float | None:
        """Return the rest of the budget without some reserve, at least one second."""
        return None if self.budget_s is None else max(1.0, self.until - kept_s - time.monotonic())

    def measure(
        self,
        models: Sequence[Model],
        suite: str | os.PathLike[str],
        pace: PaceFields,
        whole: Sequence[Decomposition] = (),
    ) -> tuple[GenerateReport, RunReport | None]:
        """Write the bricks of models into a folder and measure them, alternately with whole models.

        Args:
            models: The models; unreadable ones get an error.
            suite: The folder.
            pace: How often, or how long.
            whole: The models that are measured as a whole.
        """
        from ..generator.decomposition.generate import generate  # what is stored is not measured again
        from ..generator.measurement.run import run

        progress = self.progress if any(isinstance(model, ModelSource) for model in models) else None
        made = generate(models, out=suite, settings=cut_of(self.how), progress=progress)
        if made.suite is None:
            return made, None
        settings = self.how.settings(**pace)
        return made, run(made.suite, store=self.store, models=whole, settings=settings, progress=self.progress)


def _measure_missing(
    models: Sequence[Decomposition | Failed],
    evidence: Evidence,
    plan: MeasuringPlan,
    suite: str | os.PathLike[str] | None,
) -> tuple[GenerateReport | None, RunReport | None]:
    """Measure models alternately with their bricks; unreadable models are included, so that they get an error."""
    if not models:
        return None, None
    kept_s = _CEILINGS_S if plan.room and not evidence.ceilings.known else 0.0
    with ExitStack() as resources:
        place = suite or Path(resources.enter_context(TemporaryDirectory(prefix="dlbricks-report-")), "suite")
        pace: PaceFields = {"visits": plan.visits, "budget_s": plan.left_s(kept_s)}
        return plan.measure(models, place, pace, readable(models))


def _analysed(
    estimates: Sequence[Estimate], plan: MeasuringPlan, write: str | os.PathLike[str] | None, *, prove: bool
) -> tuple[tuple[Section, ...], tuple[str, ...]]:
    """Return the analysed models, and the reasons for models without an analysis.

    Args:
        estimates: Estimates of the models.
        plan: The database of the findings, and the end of analyses and proofs.
        write: Folder for improved models.
        prove: Whether remedies are tried.
    """
    sections, unasked = [], []
    for entry in estimates:
        truth = entry.truth.measurement
        if truth is None or not entry.complete:
            sections.append(Section(entry))
            continue
        late = time.monotonic() >= plan.until
        findings = kept_findings(truth, proven=prove and not late)
        if findings is None and late:
            unasked.append(f"{entry.name} was not analysed: the time was up")
        elif findings is None or (prove and write is not None):
            from .findings.analyze import analyze  # the findings of most models are kept

            conditions = asdict(replace(truth.conditions, cache=entry.place.cache or ""))
            (row,) = analyze(
                [entry if _shows_execution(entry) else entry.model.source],
                store=plan.store, query=Query(truth.system, truth.stack, **conditions), prove=prove, until=plan.until,
                write=Path(write) if prove and write is not None else None, progress=plan.progress,
            ).rows  # fmt: skip
            if row.error is not None:
                unasked.append(f"{row.name} was not analysed: {row.error}")
                findings = None
            else:
                findings = row.findings
                unasked += [f"{row.name}: {reason}" for reason in row.unasked]
                tried = prove and not row.unasked and time.monotonic() < plan.until
                keep_findings(truth, findings, proven=tried)
        sections.append(Section(entry, findings))
    return tuple(sections), tuple(unasked)


def _shows_execution(entry: Estimate) -> bool:
    """Return true for a model decomposed along its executed graph, which analyses need."""
    return entry.model.decomposition is not None and bool(entry.model.decomposition.graph.salt)


def settled(how: Setup) -> Setup:
    """Return a setup with defaults for open fields, ready to measure."""
    runtime, asked = get(how.runtime.backend), asdict(how)
    backend, device, dtype = how.runtime.backend, how.runtime.device, how.dtype or NATIVE
    require_available(runtime, backend, device)
    effective = runtime.resolve(device, how.options)
    graph = how.graph or (runtime.graph if device == "cpu" and dtype == NATIVE else "source")
    cache = how.cache or ("model" if device == "cpu" and runtime.in_turn(effective) else "hot")
    threads = 1 if how.threads is None else how.threads or len(physical_cores())
    chosen = {
        "graph": graph, "backend": backend, "device": device, "threads": threads, "cache": cache, "dtype": dtype,
    }  # fmt: skip
    picked = (f"--{option} {value}" for option, value in chosen.items() if asked[option] is None)
    settled = Setup(how.system, how.stack, backend, device, threads, cache, dtype, graph, how.options)
    return replace(settled, picked=(*how.picked, *picked))


def cut_of(how: Setup) -> Cut:
    """Return the cut along the graph of the setup's runtime."""
    return Cut(1, graph=how.graph or "runtime", runtime=how.runtime, threads=how.threads or 1)


def _evidence_here(models: Sequence[Decomposition | Failed], store: Store, how: Setup) -> Evidence:
    """Return the measurements of models on this machine, with the installed runtime."""
    here = _here(store, how)
    if here is None:
        return evidence_under(None, readable(models), store, how, cut_of(how))
    return read_evidence(store, models, here, cut_of(how))


def estimates_here(models: Sequence[ModelSource], store: Store, how: Setup) -> list[Estimate]:
    """Return estimates of models from measurements on this machine, with the installed runtime.

    Args:
        models: The models.
        store: The database.
        how: A complete setup.
    """
    decompositions = decompose(models, cut_of(how))
    return [*estimate(decompositions, _evidence_here(decompositions, store, how))]


def choice_here(how: Setup) -> Choice:
    """Return the combination of a run on this machine with a complete setup."""
    stack, system = get(how.backend or "").stack(how.device or "", dict(how.options)), probe_system()
    conditions = Conditions(how.threads or len(physical_cores()), how.cache or "model", how.dtype or NATIVE)
    return Choice(system.key, stack.key, system, stack, conditions, 0)


def _here(store: Store, how: Setup) -> Setup | None:
    """Return a setup with this system and the installed stack; None if the database has neither."""
    system, stack = probe_system().key, get(how.backend or "").stack(how.device or "", dict(how.options)).key
    if system not in store.systems() or stack not in store.stacks():
        return None
    return replace(how, system=system, stack=stack)


def _with_ceilings(evidence: Evidence, plan: MeasuringPlan) -> Evidence:
    """Return the evidence with the machine's ceilings; missing ones are measured if there is time."""
    how, choice = plan.how, evidence.choice
    if choice is None or not plan.room or how.device != "cpu" or evidence.ceilings.known:
        return evidence
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


def report_answer(result: Report) -> Answer:
    """Return the answer of ``report``: one row per model with its findings, and a short summary."""
    short = estimates_answer(result.estimates)
    reports = [] if result.measured is None else [result.measured]
    summary = [*short.summary, *notes_of(result.setup), *result.unasked, *measured_lines(reports, result.wall_s)]
    for section in result.sections[:_SHORT]:
        summary += _in_short(section)
    if len(result.sections) > _SHORT:
        summary.append(f"{len(result.sections) - _SHORT} more models: see the page, or --json")
    if result.page is not None:
        summary.append(f"Page: {result.page}")
    return Answer.of(result.records(), short.columns, summary, short.table)


_SHORT, _COSTLY = 3, 3
"""Models that are answered on the screen, and operators that are named there."""


def _in_short(section: Section) -> Iterator[str]:
    """Yield four lines: the latency, where the time goes, what to change, what was not tried."""
    rows = [*layer_rows(section)]
    top = headline(section, rows)
    if section.estimate.error is not None or top.ms is None:
        return
    if top.basis == "known":
        timed = f"{top.timed} of {counted(top.layers, 'layer')} measured"
        yield f"{section.name}: {within(top.ms, None)} ms so far, {timed}."
        return
    yield f"{section.name}: {within(top.ms, top.half_ms)} ms {top.basis}."
    costly = [f"{_undomained(operator.name)} {percent(operator.share)}" for operator in operators(rows)[:_COSTLY]]
    yield f"  Where the time goes: {', '.join(costly) or 'not measured'}."
    yield f"  What to change: {_changes(section)}."
    yield f"  Not tried: {_untried(section)}"


def _changes(section: Section) -> str:
    """Name the proven savings, then the largest predicted one."""
    parts = []
    if section.joint is not None and section.findings is not None:
        titles = [section.findings[number].title.rstrip(".") for number in section.joint.findings]
        together = " together" if len(titles) > 1 else ""
        parts.append(f"{', '.join(titles)}: proven to save {percent(section.joint.share)}{together}")
    for _, found in section.predicted[:1]:
        parts.append(f"{found.title.rstrip('.')}: predicted to save {percent(found.share)}")
    nothing = "not analysed" if section.findings is None else "no saving is proven or predicted"
    return "; ".join(parts) or nothing


def _untried(section: Section) -> str:
    """Name the remedies that were not tried, and the command that tries them."""
    source = section.estimate.model.source
    if section.findings is None:
        return f"every remedy; run: {shell_command(Task(TaskKind.PROOFS, source=source))}"
    parts = []
    if count := len(section.predicted) + len(section.at_most):
        command = shell_command(Task(TaskKind.PROOFS, source=source))
        parts.append(f"{counted(count, 'finding')}; run: {command}")
    model = source.zoo or str(source.path)
    improve = shlex.join(["dlbricks", "improve", model, "-o", f"{Path(model).stem}-faster.onnx"])
    return "; ".join([*parts, f"rewrites of the file; run: {improve}"])


def _undomained(operators: str) -> str:
    """Operators without the domains that define them."""
    return "+".join(name.rpartition(".")[2] for name in operators.split("+"))


def notes_of(how: Setup) -> list[str]:
    """Write the options with default values."""
    return [f"Options by default: {' '.join(how.picked)}."] if how.picked else []


def measured_lines(reports: Sequence[RunReport], wall_s: float) -> Iterator[str]:
    """Yield the numbers of measured and skipped bricks, and a line about a spent budget."""
    if any(took.remaining or took.models_remaining for took in reports):
        yield "The budget is spent: the same command continues from here."
    if reports:
        measured, reused = sum(took.measured for took in reports), sum(took.reused for took in reports)
        yield f"{measured} bricks measured, {reused} skipped (measured before), in {duration(wall_s)}."
