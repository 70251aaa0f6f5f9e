"""The answer of ``report``: a few lines per model, and what was measured for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ....models.source import file_bytes
from ...findings.finding import ALL_REMEDIES, LONGER, MANUAL, REWRITES
from ...limits import Figure
from ...setups import notes_of
from ...shell import proof_command, search_command
from ..page.payload import headline
from ..section import Section, layer_rows
from ..shares import operator_times, profile_of
from ..tables import Answer
from ..units import INTERRUPTED, counted, duration, megabytes, memory_of, percent, within
from .estimated import estimates_answer

if TYPE_CHECKING:
    from ....generator.measurement.run import RunReport
    from ..reported import Report


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
    if result.interrupted is not None:
        summary.append(INTERRUPTED)
    return Answer.of(result.records(), short.columns, summary, short.table)


def report_figures(result: Report) -> dict[str, dict[str, Figure]]:
    """Return the figures that limits can name, by model: the measured latency, else the estimate."""
    figures: dict[str, dict[str, Figure]] = {}
    for section in result.sections:
        entry, alone = section.estimate, section.alone
        figures[entry.name] = {
            "latency": Figure.scattering(entry.latency.ms, entry.latency.ci95_ms)
            if entry.truth.ms is None
            else Figure.scattering(entry.truth.ms, entry.truth.ci95_ms),
            "p95": Figure.percentile(alone, 0.95),
            "memory": Figure.of_bytes(None if alone is None else alone.peak_bytes),
            "size": Figure.of_bytes(None if entry.error is not None else file_bytes(entry.model.source)),
        }
    return figures


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
    yield f"{section.name}: {within(top.ms, top.half_ms)} ms {top.basis}{' beside other programs' if top.busy else ''}."
    if section.alone is not None:
        peak = megabytes(section.alone.peak_bytes)
        yield f"  Memory, the runtime included: {peak} at the peak, {', '.join(memory_of(section.alone))}."
    source = ", by its own profile" if profile_of(section.estimate) is not None else ""
    yield f"  Where the time goes{source}: {_places(section)}."
    yield f"  What to change: {_changes(section)}."
    yield f"  Not tried: {_untried(section)}"


def _places(section: Section) -> str:
    """Name the operators with the most time, and the share of the layers that are not measured."""
    times = operator_times(section.estimate)
    costly = [time for time in times if time.measured][:_COSTLY]
    if not costly:
        return "not known, since no layer of it is measured by itself"
    if costly[0].share is None:
        return "not known, since the bricks take far longer than the model"
    rest = [time for time in times if not time.measured]
    words = [f"{_undomained(time.name)} {'' if time.share is None else percent(time.share)}" for time in costly]
    for time in rest:
        layers = f"{counted(time.count, 'layer')} " if time.count else ""
        words.append(f"{layers}{time.name} {percent(time.share or 0.0)}")
    return ", ".join(word.rstrip() for word in words)


def _changes(section: Section) -> str:
    """Name the proven savings, then the largest predicted one."""
    parts = []
    if section.joint is not None and section.findings is not None:
        titles = [section.findings[number].title.rstrip(".") for number in section.joint.findings]
        together = " together" if len(titles) > 1 else ""
        parts.append(f"{', '.join(titles)}: proven to save {percent(section.joint.share)}{together}")
    for _, finding in section.predicted[:1]:
        parts.append(f"{finding.title.rstrip('.')}: predicted to save {percent(finding.share)}")
    nothing = "no saving is proven or predicted"
    if section.findings is None:
        nothing = "not analysed"
    elif section.untried == ALL_REMEDIES:
        nothing = "not known before anything is tried"
    elif section.untried:
        nothing += " so far"
    return "; ".join(parts) or nothing


def _untried(section: Section) -> str:
    """Name the remedies that were not tried, and the command that tries them."""
    if section.findings is None:
        return f"every remedy; run: {proof_command(section.estimate)}"
    open_ones = [finding for _, finding in (*section.predicted, *section.at_most) if finding.unproven != MANUAL]
    waiting = [f"remedies of {counted(len(open_ones), 'finding')}"] if open_ones else []
    waiting += [name for name in section.untried if name not in {LONGER, REWRITES}]
    parts = [f"{', '.join(waiting)}; run: {proof_command(section.estimate)}"] if waiting else []
    searches = [name for name in (REWRITES, LONGER) if name in section.untried]
    parts += [f"{name}; run: {search_command(section.estimate)}" for name in searches]
    return "; ".join(parts) or "nothing"


def _undomained(operators: str) -> str:
    """Operators without the domains that define them."""
    return "+".join(name.rpartition(".")[2] for name in operators.split("+"))


def measured_lines(reports: Sequence[RunReport], wall_s: float) -> Iterator[str]:
    """Yield the numbers of measured and skipped bricks, and a line about a spent budget."""
    if any(took.remaining or took.models_remaining for took in reports):
        loading_s = sum(took.prepare_s for took in reports)
        yield (
            "The budget is spent: the same command continues from here."
            if any(took.costs.visits for took in reports)
            else f"The budget ended while networks were loaded ({duration(loading_s)}), before a visit: give a longer "
            "--budget."
        )
    if reports:
        measured, reused = sum(took.measured for took in reports), sum(took.reused for took in reports)
        yield f"{counted(measured, 'brick')} measured, {reused} skipped (measured before), in {duration(wall_s)}."
