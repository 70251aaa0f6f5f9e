"""The report: from models to the page in one call; what is stored already is neither made nor measured again."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..db import Store
from ..db.samples.rates import stream_sizes
from ..db.values import NATIVE
from ..generator.backends.base import FusingBackend, GraphBackend
from ..generator.backends.registry import get, require_available
from ..generator.backends.requirements import in_turn
from ..generator.decomposition.cutter import Cut
from ..generator.decomposition.generate import GenerateReport, generate
from ..generator.machine.cores import physical_cores
from ..generator.machine.system import probe_system
from ..generator.measurement.ceilings import measure_ceilings
from ..generator.measurement.run import RunReport, run
from ..generator.progress import ProgressCallback
from ..models import ModelSource
from ..tabular import Records, Tabular
from .estimation.estimate import Explained, explained
from .estimation.estimates import Estimates
from .estimation.interpolation import explained_between
from .estimation.query import Query
from .findings.analyze import analyze
from .findings.keeping import keep_findings, kept_findings
from .report.answers.estimates import estimates_answer
from .report.page.page import render_page
from .report.section import Section, sections
from .report.tables import Answer
from .report.units import duration

__all__ = ["Report", "Setup", "measured_here", "report", "report_answer", "runtime_of", "set_up", "settled"]

_PRODUCTS = (512, 1024)
_LARGEST_STREAM = 1 << 27
"""Ceilings for a page are taken from these only: some seconds; ``dlbricks system --ceilings`` takes them all."""

_CEILINGS_S = 12.0
"""What they take, and what is kept for them of a total time."""

_FEW = 4
"""A total time of less than so many times that goes without ceilings."""


@dataclass(frozen=True, slots=True)
class Setup(Query):
    """How models are measured and composed: a query, and what it takes to measure more.

    To measure, ``report`` picks what is open, as ``set_up`` does.

    Attributes:
        graph: Which graph is cut into bricks; None: where nothing is measured, the one that the runtime executes.
        options: Options of the backend.
        picked: What of this nobody asked for, as words.
    """

    graph: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    picked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report(Tabular):
    """What a report was made from.

    Attributes:
        sections: The models.
        setup: How they were measured.
        page: The page that was written; None where none was asked for.
        generated: What was decomposed by this call; None where everything was stored.
        measured: What was measured by it; likewise.
        wall_s: The whole call.
        unasked: Why models could not be analysed, or not by every analysis, and why nothing could be tried.
    """

    sections: tuple[Section, ...]
    setup: Setup
    page: Path | None
    generated: GenerateReport | None
    measured: RunReport | None
    wall_s: float
    unasked: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every layer of every model is measured, or read between other sizes."""
        return all(section.estimate.complete or section.estimate.interpolated for section in self.sections)

    @property
    def rows(self) -> tuple[Section, ...]:
        """The models, as every report has them."""
        return self.sections

    @property
    def estimates(self) -> Estimates:
        """Those of the models."""
        return Estimates(tuple(section.estimate for section in self.sections))

    def records(self) -> Records:
        """One row per model, as ``estimate --explain`` gives it, with its findings."""
        full = self.estimates.records(explain=True)
        rows = [{**row, **one.missed()} for row, one in zip(full.results, self.sections, strict=True)]
        totals = {
            "page": None if self.page is None else str(self.page),
            "picked": list(self.setup.picked),
            "measured": 0 if self.measured is None else self.measured.measured,
            "wall_s": self.wall_s,
        }
        return Records(rows, {**totals, **full.totals}, full.flat)


def set_up(
    *,
    graph: str | None = None,
    backend: str | None = None,
    device: str | None = None,
    options: Mapping[str, str] | None = None,
    threads: int | None = None,
    cache: str | None = None,
    dtype: str | None = None,
) -> Setup:
    """Pick what nobody asked for: ONNX Runtime with one thread, the graph that it executes, caches as in a model.

    Raises:
        UsageError: There is no such backend, or it has no such option.
        BackendUnavailable: The backend cannot run here.
    """
    name, where = backend or "onnxruntime", device or "cpu"
    runtime = get(name)
    require_available(runtime, name, where)
    effective = runtime.resolve(where, options or {})
    precision = dtype or NATIVE
    executed = (
        "runtime" if isinstance(runtime, GraphBackend) else "fused" if isinstance(runtime, FusingBackend) else "source"
    )
    kind = graph or (executed if where == "cpu" and precision == NATIVE else "source")
    state = cache or ("model" if where == "cpu" and in_turn(runtime, effective) else "hot")
    count = 1 if threads is None else threads or len(physical_cores())
    chosen = {
        "graph": (graph, kind),
        "backend": (backend, name),
        "device": (device, where),
        "threads": (threads, str(count)),
        "cache": (cache, state),
        "dtype": (dtype, precision),
    }
    picked = tuple(f"--{option} {value}" for option, (asked, value) in chosen.items() if asked is None)
    return Setup(
        backend=name, device=where, threads=count, cache=state, dtype=precision,
        graph=kind, options=dict(options or {}), picked=picked,
    )  # fmt: skip


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
) -> Report:
    """Decompose and measure what is not stored yet, models and bricks in turn, find what they miss, write the page.

    Args:
        models: What to report, from ``find_models``.
        store: Where measurements are, and go to.
        out: File of the page; None: none is written, nor is one of nothing but errors.
        setup: How to measure; by default what ``set_up`` picks.
        measure: Decompose and measure what is missing; False: only what is stored is used.
        visits: How often each brick and model is visited.
        budget_s: Total time instead: as many visits as fit into it.
        suite: Folder for the bricks; None: a temporary one.
        prove: Try the remedies of what is found, as far as there is time; never where nothing is to be measured. What
            was proven before is not tried again.
        write: Folder for improved models that were proven to save time.
        interpolate: Read bricks that are missing in the end between other sizes of a model, as ``estimate_between``.
        progress: Called between requests to the worker.

    Returns:
        The models with what is known of each; one that cannot be read has an error, and the others go on.

    Raises:
        AmbiguousQuery: Nothing is to be measured, and several stored combinations match; the message lists them.
        DlbricksError: The machine cannot measure now, or the suite's folder holds something else.
        OSError: The page cannot be written.

    Example:
        >>> with Store.open("dlbricks.db") as store:  # doctest: +SKIP
        ...     made = report(find_models(["squeezenet"]), store=store, out="report.html")
    """
    begun = time.monotonic()
    how = setup or set_up()
    if measure:
        how = settled(how)
    generated, measured = None, None
    found = measured_here(models, store, how) if measure else _stored(models, store, how)
    open_models = list(models)
    if found is not None:
        open_models = [source for source, one in zip(models, found, strict=True) if measure and _is_open(one)]
    room = measure and (budget_s is None or budget_s >= _FEW * _CEILINGS_S)
    if open_models:
        with ExitStack() as resources:
            place = suite or Path(resources.enter_context(TemporaryDirectory(prefix="dlbricks-report-")), "suite")
            generated = generate(
                open_models, granularity=1, out=place, graph=_cut(how).graph, **runtime_of(how), progress=progress
            )
            kept_s = _CEILINGS_S if room and not _knows_ceilings(found) else 0.0
            left_s = None if budget_s is None else _left(budget_s - kept_s, begun)
            if generated.suite is not None:
                broken = {row.name for row in generated.rows if row.error is not None}
                measured = run(
                    generated.suite, store=store, **runtime_of(how), cache=how.cache or "", dtype=how.dtype or "",
                    models=[source for source in open_models if source.name not in broken],
                    visits=visits, budget_s=left_s, progress=progress,
                )  # fmt: skip
        found = measured_here(models, store, how)
    if found is None:
        with Store.open("sqlite://") as nothing:  # each model says why it could not be measured
            found = _stored(models, nothing, how)
    elif room and _wants_ceilings(found, how):
        _measure_ceilings(store, how, progress)
        found = measured_here(models, store, how) or found
    if interpolate:
        query = (_here(store, how) if measure else how) or how
        found = explained_between(models, store=store, query=query, cut=_cut(how))
    made = tuple(sections(found, store=store))
    until = math.inf if budget_s is None else begun + budget_s
    made, unasked = _analysed(models, made, store, until if measure and prove else 0.0, write, progress)
    page = None
    if out is not None and any(section.estimate.error is None for section in made):
        page = Path(out)
        text = render_page(made, notes=[*_notes(how), *unasked])
        page.write_text(text, encoding="utf-8", errors="backslashreplace")
    return Report(made, how, page, generated, measured, time.monotonic() - begun, unasked)


def _analysed(  # noqa: PLR0917  (what ``report`` has at hand)
    models: Sequence[ModelSource],
    made: Sequence[Section],
    store: Store,
    until: float,
    write: str | os.PathLike[str] | None,
    progress: ProgressCallback | None,
) -> tuple[tuple[Section, ...], tuple[str, ...]]:
    """The models with what they miss, and why some could not be analysed.

    Args:
        models: Where they come from.
        made: What is known of them.
        store: Where findings are kept.
        until: On the monotonic clock, when no further remedy is tried.
        write: Folder for improved models.
        progress: Called between visits.
    """
    sections, unasked = [], []
    for source, section in zip(models, made, strict=True):
        truth = section.truth
        if truth is None or not section.estimate.complete:
            sections.append(section)
            continue
        prove = time.monotonic() < until
        findings = kept_findings(store, truth, proven=prove)
        if findings is None or (prove and write is not None):
            (row,) = analyze(
                [source], store=store, system=truth.system, stack=truth.stack, threads=truth.conditions.threads,
                cache=section.estimate.cache, dtype=truth.conditions.dtype, prove=prove,
                write=Path(write) if prove and write is not None else None, until=until, progress=progress,
            ).rows  # fmt: skip
            if row.error is not None:
                unasked.append(f"{row.name} was not analysed: {row.error}")
                sections.append(section)
                continue
            findings = row.findings
            unasked += [f"{row.name}: {reason}" for reason in row.unasked]
            tried = prove and not row.unasked and time.monotonic() < until
            keep_findings(store, truth, findings, proven=tried)
        sections.append(replace(section, findings=findings))
    return tuple(sections), tuple(unasked)


def settled(how: Setup) -> Setup:
    """A setup with which something can be measured: what is open is picked."""
    picked = set_up(
        graph=how.graph, backend=how.backend, device=how.device, options=how.options, threads=how.threads,
        cache=how.cache, dtype=how.dtype,
    )  # fmt: skip
    return replace(picked, system=how.system, stack=how.stack, picked=(*how.picked, *picked.picked))


def _cut(how: Setup) -> Cut:
    return Cut(1, graph=how.graph or "runtime")


_Found = list[Explained]


def _stored(models: Sequence[ModelSource], store: Store, how: Setup) -> _Found:
    """The models as far as they are stored."""
    return explained(models, store=store, query=how, cut=_cut(how))


def measured_here(models: Sequence[ModelSource], store: Store, how: Setup) -> _Found | None:
    """The models as far as they are measured on this machine with the runtime that is installed; None: nothing is."""
    here = _here(store, how)
    return None if here is None else _stored(models, store, here)


def _here(store: Store, how: Setup) -> Setup | None:
    """A setup on this machine with the runtime that is installed; None where nothing is stored of either."""
    system, stack = probe_system().key, get(how.backend or "").stack(how.device or "", dict(how.options)).key
    if system not in store.systems() or stack not in store.stacks():
        return None
    return replace(how, system=system, stack=stack)


def _is_open(found: Explained) -> bool:
    """Whether measuring can add something: a model that cannot be read is tried as well, so that it says why."""
    entry, model = found
    if model is None:
        return True
    return entry.measured_ms is None or any(one.remedy is not None for one in entry.missing)


def runtime_of(how: Setup) -> dict[str, Any]:
    """What ``generate`` and ``run`` take of a setup; nothing of it is open where something is measured."""
    return {"backend": how.backend, "device": how.device, "options": how.options, "threads": how.threads}


def _left(budget_s: float, begun: float) -> float:
    """Of a total time, what is left; never nothing, which is no time that could be asked for."""
    return max(1.0, budget_s - (time.monotonic() - begun))


def _wants_ceilings(found: _Found, how: Setup) -> bool:
    """Whether the machine's ceilings are missing, and a model would have bounds with them."""
    bricks = any(entry.roofline is not None for entry, _ in found)
    return how.device == "cpu" and bricks and not _knows_ceilings(found)


def _knows_ceilings(found: _Found | None) -> bool:
    return any(entry.roofline is not None and entry.roofline.ceilings.known for entry, _ in found or ())


def _measure_ceilings(store: Store, how: Setup, progress: ProgressCallback | None) -> None:
    sizes = [size for size in stream_sizes(probe_system()) if size <= _LARGEST_STREAM]
    for dtype in dict.fromkeys((NATIVE, how.dtype)):
        measure_ceilings(
            store=store,
            backend=how.backend,
            threads=how.threads or 1,
            dtype=dtype,
            gemm_sizes=_PRODUCTS,
            sizes=sizes,
            visits=10,
            processes=1,
            progress=progress,
        )


def report_answer(result: Report) -> Answer:
    """The answer of ``report``: one row per model, as ``estimate --explain`` gives it, with its findings."""
    short = estimates_answer(result.estimates)
    took = result.measured
    summary = [*short.summary, *_notes(result.setup), *result.unasked]
    if took is not None:
        if took.remaining or took.models_remaining:
            summary.append("The time was up: the same command goes on from here, and so does one with more --budget.")
        summary.append(f"{took.measured} bricks measured, {took.reused} known before, in {duration(result.wall_s)}.")
    if result.page is not None:
        summary.append(f"Page: {result.page}")
    return Answer.of(result.records(), columns=short.columns, summary=summary, table=short.table)


def _notes(how: Setup) -> list[str]:
    if not how.picked:
        return []
    return [f"Picked, since nothing else was asked for: {', '.join(how.picked)}."]
