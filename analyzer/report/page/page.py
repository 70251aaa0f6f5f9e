"""The page as text: templates filled from sections."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from ....models.cache import cache_folder
from ....version import __version__
from ...findings.finding import Finding
from ...shell import why_unbounded
from ..causes import CauseRow, placed, rows_of
from ..section import LayerRow, Section, layer_rows
from ..units import counted, margin, milliseconds, percent, short, within
from .facts import facts_of, figures_of, place_of, spelt_stack, spelt_system
from .overview import Operator, headline, operators, overview_data, recurring
from .payload import clipped, data_of
from .sweeps import shown_sweeps

if TYPE_CHECKING:
    from jinja2 import Environment

    from ....constructor.result import Estimate, Term

_COLOURS = 8
"""Operators that have a colour of their own on the page; all others share one."""

_TOP = 3
"""Proven savings, and predicted ones, that the first paragraphs name."""

_UNEXPLAINED = 0.05
"""Share of the latency above which the first paragraph names the unexplained part."""

_LISTED = 10
"""Operators of a model that are listed one by one."""


def render_page(sections: Sequence[Section], *, notes: Sequence[str] = ()) -> str:
    """Return one HTML file about models; it loads nothing, and names cannot become markup.

    Args:
        sections: The models.
        notes: More sentences about the measurements.
    """
    rows = {section.name: tuple(layer_rows(section)) for section in sections}
    colours = _colours([*rows.values()])
    models = [_shown(number, section, rows[section.name]) for number, section in enumerate(sections)]
    data = {
        "colours": colours,
        "models": [
            data_of(section, rows[section.name]) | {"colours": _colours([rows[section.name]])} for section in sections
        ],
        "overview": overview_data(sections, rows) if len(sections) > 1 else None,
    }
    places = dict.fromkeys(
        (spelt_system(choice.system), spelt_stack(choice.stack), section.estimate.place.threads)
        for section in sections
        if (choice := section.choice) is not None
    )
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=clipped(sections[0].name) if len(sections) == 1 else counted(len(sections), "model"),
            models=models,
            data=data,
            places=[*places],
            recurring=recurring(sections),
            sweeps=[*shown_sweeps([section.estimate for section in sections])],
            analysed=any(section.findings is not None for section in sections),
            notes=notes,
            version=__version__,
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
    )


def _shown(number: int, section: Section, rows: Sequence[LayerRow]) -> dict[str, Any]:
    """Return the values of a model for the templates; scripts draw the rest."""
    ranked = operators(rows)
    return {
        "number": number,
        "name": clipped(section.name),
        "section": section,
        "headline": headline(section, rows),
        "colours": _colours([rows]),
        "operators": [*_listed(ranked)],
        "place": place_of(section),
        "figures": figures_of(section),
        "facts": [*facts_of(section)],
        "digits": 2 if ranked and ranked[0].ms >= 100 else 3,
        "falls": [*_falls(section.estimate)],
        "top": _TOP,
        "unexplained": _unexplained(section.estimate),
        "unbounded": why_unbounded(section.estimate),
    }


def _listed(ranked: Sequence[Operator]) -> Iterator[Operator]:
    """Yield the costly operators one by one, and the rest as one."""
    yield from ranked[:_LISTED]
    rest = ranked[_LISTED:]
    if rest:
        yield Operator(
            f"{counted(len(rest), 'other operator')}",
            math.fsum(operator.ms for operator in rest),
            math.fsum(operator.share for operator in rest),
            sum(operator.count for operator in rest),
        )


def _falls(entry: Estimate) -> Iterator[tuple[CauseRow, float, float]]:
    """Yield the causes with begin and width of their bars, in percent of the widest sum."""
    bars = [*placed(rows_of(entry))]
    ends = [sorted((bar.begin, bar.end)) for bar in bars]
    most = max((high for _, high in ends), default=0.0) or 1.0
    for bar, (low, high) in zip(bars, ends, strict=True):
        yield bar.cause, 100 * max(0.0, low) / most, 100 * (high - max(0.0, low)) / most


def _colours(models: Sequence[Sequence[LayerRow]]) -> dict[str, int]:
    """Return a colour number for each operator with much time."""
    totals: dict[str, float] = {}
    for some in models:
        for operator in operators(some):
            totals[operator.name] = totals.get(operator.name, 0.0) + operator.share
    ranked = sorted(totals, key=lambda name: -totals[name])
    return {clipped(name): number for number, name in enumerate(ranked[:_COLOURS])}


def _unexplained(entry: Estimate) -> Term | None:
    """Return the unexplained part of the measured latency if it is large enough for the first paragraph."""
    term = (entry.attribution or {}).get("unexplained")
    large = term is not None and term.ms is not None and abs(term.ms) > _UNEXPLAINED * (entry.truth.ms or math.inf)
    return term if large else None


def _proven(finding: Finding) -> str:
    """Write the proven saving with its interval, scaled to the latency that the page shows."""
    proof, saved_ms = finding.proof, finding.proven_ms
    if proof is None or saved_ms is None:
        return ""
    scale = saved_ms / proof.saving_ms if proof.saving_ms else 1.0
    return _within(saved_ms, (proof.ci95_ms[0] * scale, proof.ci95_ms[1] * scale))


def _within(value: float, bounds: tuple[float, float]) -> str:
    """Write a latency with half of its interval."""
    return f"{within(value, (bounds[1] - bounds[0]) / 2)} ms"


def _percent(share: float) -> str:
    """Write a share; a small one is not written as zero."""
    return "<1%" if 0 < share < 0.005 else percent(share)


def _fixed(value: float, digits: int) -> str:
    """Write a number with the decimals of its column."""
    return f"<{10**-digits:.{digits}f}" if 0 < value < 0.5 * 10**-digits else f"{value:,.{digits}f}"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined

    compiled = cache_folder() / "pages"  # compiling takes a fifth of a second
    with suppress(OSError):
        compiled.mkdir(parents=True, exist_ok=True)
    made = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        bytecode_cache=FileSystemBytecodeCache(str(compiled)) if os.access(compiled, os.W_OK) else None,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    made.filters |= {
        "ms": milliseconds,
        "margin": margin,
        "percent": _percent,
        "fixed": _fixed,
        "short": short,
        "clipped": clipped,
        "counted": counted,
        "proven": _proven,
        "within": _within,
    }
    return made
