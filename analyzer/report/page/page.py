"""The page as text: templates filled from sections."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from ....bricks.layer import LayerState
from ....constructor.result import Estimate
from ....constructor.sweep import BATCH, swept
from ....db import Measurement, Stack, System
from ....db.values import QUIET
from ....models.cache import cache_folder
from ....tabular import Row
from ....version import __version__
from ...findings.analysed_model import cold_start_of
from ...findings.finding import LONGER, REWRITES, Finding
from ...shell import proof_command, search_command, why_unbounded
from ..causes import CauseRow, placed, rows_of
from ..section import LayerRow, Section, layer_rows
from ..shares import OperatorTime, operator_times, overstated, profile_of
from ..units import (
    BUSY,
    counted,
    half_of,
    how_of,
    inferences,
    margin,
    megabytes,
    memory_of,
    milliseconds,
    percent,
    ratio,
    ratio_within,
    said_of_batch,
    short,
    size,
    within,
)
from .payload import clipped, data_of, headline, overview_data, recurring

if TYPE_CHECKING:
    from jinja2 import Environment

    from ....constructor.result import Term


_COLOURS = 8
"""Operators that have a colour of their own on the page; all others share one."""

_TOP = 3
"""Proven savings, and predicted ones, that the first paragraphs name."""

_UNEXPLAINED = 0.05
"""Share of the latency above which the first paragraph names the unexplained part."""

_LISTED = 10
"""Operators of a model that are listed one by one."""

_UNKNOWN = "\u2013"
"""What a table shows in place of an unknown number."""


def render_page(sections: Sequence[Section], *, notes: Sequence[str] = ()) -> str:
    """Return one HTML file about models; it loads nothing, and names cannot become markup.

    Args:
        sections: The models.
        notes: More sentences about the measurements.
    """
    rows = {section.name: tuple(layer_rows(section)) for section in sections}
    colours = _colours(sections)
    models = [_shown(number, section, rows[section.name]) for number, section in enumerate(sections)]
    data = {
        "colours": colours,
        "models": [data_of(section, rows[section.name]) | {"colours": _colours([section])} for section in sections],
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


def _shown(number: int, section: Section, rows: Sequence[LayerRow]) -> Row:
    """Return the values of a model for the templates; scripts draw the rest."""
    ranked = operator_times(section.estimate)
    longest_ms = max((operator.ms or 0.0 for operator in ranked), default=0.0)
    return {
        "number": number,
        "name": clipped(section.name),
        "section": section,
        "headline": headline(section, rows),
        "busy": BUSY,
        "colours": _colours([section]),
        "operators": [*_listed(ranked)],
        "profiled": profile_of(section.estimate) is not None,
        "denormals": _counted_ms(section.estimate, "denormals"),
        "rest": next((operator for operator in ranked if not operator.measured), None),
        "place": place_of(section),
        "figures": figures_of(section),
        "facts": [*facts_of(section)],
        "digits": 2 if longest_ms >= 100 else 3,
        "falls": [*_falls(section.estimate)],
        "top": _TOP,
        "unexplained": _unexplained(section.estimate),
        "overstated": section.estimate.latency.ms if overstated(section.estimate) else None,
        "unbounded": why_unbounded(section.estimate),
        "prove": clipped(_proving(section)),
    }


def _listed(ranked: Sequence[OperatorTime]) -> Iterator[OperatorTime]:
    """Yield the costly operators one by one, the rest as one, and the layers that are not measured."""
    measured = [operator for operator in ranked if operator.measured]
    yield from measured[:_LISTED]
    rest = measured[_LISTED:]
    if rest:
        shares = [operator.share for operator in rest if operator.share is not None]
        yield OperatorTime(
            f"{counted(len(rest), 'other operator')}",
            sum(operator.count for operator in rest),
            math.fsum(operator.ms or 0.0 for operator in rest),
            math.fsum(shares) if shares else None,
        )
    yield from (operator for operator in ranked if not operator.measured)


def _falls(entry: Estimate) -> Iterator[tuple[CauseRow, float, float]]:
    """Yield the causes with begin and width of their bars, in percent of the widest sum."""
    bars = [(cause, max(0.0, min(ends)), max(ends)) for cause, *ends in placed(rows_of(entry))]
    most = max((high for _, _, high in bars), default=0.0) or 1.0
    for cause, low, high in bars:
        yield cause, 100 * low / most, 100 * (high - low) / most


def _colours(sections: Sequence[Section]) -> dict[str, int]:
    """Return a colour number for each operator with much time in some model."""
    totals: dict[str, float] = {}
    for section in sections:
        times = [operator for operator in operator_times(section.estimate) if operator.measured]
        known_ms = math.fsum(operator.ms or 0.0 for operator in times) or 1.0
        for operator in times:
            totals[operator.name] = totals.get(operator.name, 0.0) + (operator.ms or 0.0) / known_ms
    ranked = sorted(totals, key=lambda name: -totals[name])
    return {clipped(name): number for number, name in enumerate(ranked[:_COLOURS])}


def _counted_ms(entry: Estimate, name: str) -> float | None:
    """Return the size of a cause in ms; None if it is unknown or not counted."""
    term = (entry.attribution or {}).get(name)
    return term.ms if term is not None and term.counted else None


def _unexplained(entry: Estimate) -> Term | None:
    """Return the unexplained part of the measured latency if it is large, and its interval has no zero."""
    term = (entry.attribution or {}).get("unexplained")
    if term is None or term.ms is None or abs(term.ms) <= _UNEXPLAINED * (entry.truth.ms or math.inf):
        return None
    low, high = term.ci95_ms or (term.ms, term.ms)
    return None if low <= 0 <= high else term


def _proving(section: Section) -> str:
    """Return the command that tries what was not tried."""
    entry = section.estimate
    if section.untried and not {*section.untried} - {LONGER, REWRITES}:
        return search_command(entry)
    return proof_command(entry)


def _proven(finding: Finding) -> str:
    """Write the proven saving with its interval, scaled to the latency that the page shows."""
    proof, saved_ms = finding.proof, finding.proven_ms
    if proof is None or saved_ms is None:
        return ""
    scale = _scale(finding)
    return _within(saved_ms, (proof.ci95_ms[0] * scale, proof.ci95_ms[1] * scale))


def _scale(finding: Finding) -> float:
    """Return the factor from latencies of a proof to the latency that the page shows."""
    proof, saved_ms = finding.proof, finding.proven_ms
    return 1.0 if proof is None or saved_ms is None or not proof.saving_ms else saved_ms / proof.saving_ms


def _within(value: float, bounds: tuple[float, float]) -> str:
    """Write a latency with half of its interval."""
    return f"{within(value, half_of(value, bounds))} ms"


def _percent(share: float | None) -> str:
    """Write a share; a small one is not written as zero."""
    if share is None:
        return _UNKNOWN
    return "<1%" if 0 < share < 0.005 else percent(share)


def _fixed(value: float | None, digits: int) -> str:
    """Write a number with the decimals of its column."""
    if value is None:
        return _UNKNOWN
    return f"<{10**-digits:.{digits}f}" if 0 < value < 0.5 * 10**-digits else f"{value:,.{digits}f}"


_CONTROL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
"""Control characters, marks of direction, and halves of characters."""


def _without_control(value: object) -> object:
    """Return text with control characters and marks of direction as escapes; they may be in any name of a model."""
    if not isinstance(value, str) or not _CONTROL.search(value):
        return value
    return type(value)(_CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), value))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined

    compiled = cache_folder() / "pages"  # compiling takes a fifth of a second
    with suppress(OSError):
        compiled.mkdir(parents=True, exist_ok=True)
    environment = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        bytecode_cache=FileSystemBytecodeCache(str(compiled)) if os.access(compiled, os.W_OK) else None,
        autoescape=True,
        finalize=_without_control,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {
        "ms": milliseconds,
        "margin": margin,
        "percent": _percent,
        "fixed": _fixed,
        "short": short,
        "clipped": clipped,
        "counted": counted,
        "proven": _proven,
        "scale": _scale,
        "within": _within,
    }
    return environment


# System, stack and conditions of a model's measurements as rows of words, with their database keys.


_NOTED = 0.02
"""By how much visits are slower than undisturbed ones before the page says so."""

_FEW = 1 / 8
"""Share of undisturbed visits below which the page cannot tell how fast a quiet machine is."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One row.

    Attributes:
        term: Name of the fact.
        text: The fact.
        note: More about it; may be empty.
        keys: Kind of key (``system``, ``stack``, ``model``, ``measurement``, ``run``) to key.
    """

    term: str
    text: str
    note: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)


def spelt_system(system: System) -> str:
    """Write a machine in a few words."""
    return f"{system.cpu}, {counted(system.physical_cores, 'core')}" + "".join(f", {gpu}" for gpu in system.gpus)


def spelt_stack(stack: Stack) -> str:
    """Write a runtime in a few words."""
    return " ".join(f"{name} {version}" for name, version in stack.versions) or stack.backend


def figures_of(section: Section) -> list[Fact]:
    """Return the latencies of a model with their intervals; unknown ones have a reason."""
    entry, truth = section.estimate, section.truth
    keys = {} if truth is None else {"model": truth.key, "measurement": truth.id}
    whole = _facts_within(entry.truth.ms, entry.truth.ci95_ms)
    quiet, seen = entry.truth.undisturbed_ms, entry.truth.ratio
    rows = [
        Fact(
            "Measured",
            whole or "not measured",
            "" if quiet is None or truth is None else _undisturbed(quiet, truth),
            keys,
        ),
        Fact(
            "Estimate from bricks",
            _facts_within(entry.latency.ms, entry.latency.ci95_ms) or "not complete",
            "" if seen is None else f"{ratio_within(seen, entry.truth.ratio_ci95)} of measured",
        ),
        Fact(
            "Critical path",
            _ms(entry.sums.critical_path_ms) or "not known",
            _noted(
                "estimate if parallel branches ran at the same time", entry.sums.critical_path_ms, entry.truth.ci95_ms
            ),
        ),
    ]
    fastest = entry.bounds.sequential.ms
    if fastest is not None and (entry.latency.ms is None or fastest < 0.999 * entry.latency.ms):
        note = _noted("sum over all stacks; fusion may be faster", fastest, entry.truth.ci95_ms)
        rows.append(Fact("Fastest known bricks", _ms(fastest) or "", note))
    if entry.roofline.ms is not None:
        headroom = f"headroom {ratio(entry.roofline.headroom)}×" if entry.roofline.headroom else ""  # noqa: RUF001
        rows.append(Fact("Roofline", _ms(entry.roofline.ms) or "", headroom))
    start = cold_start_of(truth)
    if start is not None:
        both = start.load_ms + start.first_run_ms
        parts = f"{milliseconds(start.load_ms)} ms and {milliseconds(start.first_run_ms)} ms"
        rows.append(Fact("Load and first run", _ms(both) or "", f"{parts}: {inferences(start.runs)}", keys))
    if section.alone is not None:
        rows.append(
            Fact("Memory", f"{megabytes(section.alone.peak_bytes)} at the peak", ", ".join(memory_of(section.alone)))
        )
    return rows


def _noted(note: str, ms: float | None, measured: tuple[float, float] | None) -> str:
    """Return the note of a computed latency, with a warning if it is above the interval of the measured one."""
    if ms is None:
        return ""
    above = measured is not None and ms > measured[1]
    return f"{note}; above the measured latency" if above else note


def place_of(section: Section) -> list[Fact]:
    """Return machine, runtime, conditions, dimensions and quietness in a line."""
    entry, choice = section.estimate, section.choice
    if choice is None:
        return []
    system, stack, place = choice.system, choice.stack, entry.place
    words = [
        Fact("system", spelt_system(system), keys={"system": system.key}),
        Fact("stack", f"{spelt_stack(stack)} on {stack.device}", keys={"stack": stack.key}),
        Fact("conditions", f"{counted(place.threads or 0, 'thread')}, {place.dtype}, cache {place.cache}"),
        Fact("dimensions", ", ".join(f"{name} = {value}" for name, value in entry.model.bound.items())),
    ]
    if entry.disturbance is not None:
        words.append(Fact("machine", f"machine {_quietness(section)[0]}"))
    return [word for word in words if word.text]


def facts_of(section: Section) -> Iterator[Fact]:
    """Yield system, stack and conditions of a model's measurements."""
    entry, model, choice = section.estimate, section.model, section.choice
    place, cutting = entry.place, entry.model.cutting
    if model is not None:
        bound = ", ".join(f"{name} = {value}" for name, value in entry.model.bound.items())
        layer_count = sum(layer.state is not LayerState.FOLDED for layer in model.own.layers)
        sequences = len(entry.parts.sequences)
        cut = f"{counted(sequences, 'sequence')} of at most {counted(cutting.granularity, 'layer')}"
        if cutting.graph == "runtime":
            cut = f"{counted(sequences, 'node')} of the executed graph"
        yield Fact(
            "Model",
            f"{counted(layer_count, 'layer')} at inference; {cut}, {entry.parts.unique} of them unique",
            bound,
            {"model": model.own.key},
        )
    if choice is not None:
        system, stack = choice.system, choice.stack
        caches = ", ".join(f"{name} {size(value)}" for name, value in system.cache_bytes)
        yield Fact("System", spelt_system(system), f"{caches}; memory {system.memory_gib} GiB", {"system": system.key})
        options = ", ".join(f"{name} {value}" for name, value in stack.options)
        yield Fact("Stack", f"{spelt_stack(stack)} on {stack.device}", options, {"stack": stack.key})
    if place.threads is not None:
        state = f" (bricks at a reuse distance of {section.state})" if place.cache == "model" else ""
        yield Fact(
            "Conditions", f"{counted(place.threads, 'thread')}, {place.dtype}, cache {place.cache}{state}",
            f"graph {cutting.graph}, granularity {cutting.granularity}",
        )  # fmt: skip
    if entry.latency.quiet is not None or entry.disturbance is not None:
        yield Fact("Machine", *_quietness(section))
    for run in section.runs:
        load = run.before.get("load_1m")
        yield Fact(
            "Run",
            f"{run.started[:16].replace('T', ' ')} UTC, dlbricks {run.tool} {run.command}",
            "" if load is None else f"load before {load}",
            {"run": run.id},
        )


def _undisturbed(ms: float, truth: Measurement) -> str:
    """Write the undisturbed latency, and whether the measured one is of a busy machine."""
    few = truth.quiet is None or truth.quiet < _FEW
    text = f"fast visits {milliseconds(ms)} ms" if few else f"undisturbed {milliseconds(ms)} ms"
    return f"beside other programs; {text}" if truth.busy else text


def _quietness(section: Section) -> tuple[str, str]:
    entry, truth = section.estimate, section.truth
    slowed, share, of = entry.disturbance, entry.latency.quiet, "bricks'"
    if truth is not None and truth.quiet is not None:
        share, of = truth.quiet, "model's"
    if share is None or share < _FEW:
        text = "hardly ever undisturbed" if share is not None else "not known to be quiet"
    elif slowed is not None and slowed >= _NOTED:
        text = f"{percent(slowed)} slower than undisturbed"
    else:
        text = "quiet" if share >= QUIET else "undisturbed in part"
    text = "disturbed: " + text if entry.disturbed else text
    visits = "" if share is None else f"{percent(share)} of the {of} visits were undisturbed"
    paired = {True: "bricks and model alternated", False: "bricks and model are of different sessions"}
    in_turn = "" if entry.truth.paired is None else paired[entry.truth.paired]
    return text, "; ".join(filter(None, (visits, in_turn)))


def _facts_within(value: float | None, bounds: tuple[float, float] | None) -> str | None:
    if value is None:
        return None
    return f"{within(value, None if bounds is None else half_of(value, bounds))} ms"


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{milliseconds(value)} ms"


# Sweeps of models over one dimension: a table and two charts as SVG.


_WIDTH, _HEIGHT = 460.0, 240.0
_LEFT, _RIGHT, _ABOVE, _BOTTOM = 58.0, 22.0, 12.0, 38.0
_TICKS = 4
"""Steps of an axis, about."""

_TALLEST = 2.5
"""Times the highest dot that an axis reaches: the interval of what hardly anything is known of has no end."""

_CLOSE = 0.07
"""Labels nearer than that share of the width would overlap."""


def shown_sweeps(estimates: Sequence[Estimate]) -> Iterator[Row]:
    """Yield the sweeps among estimates (``constructor.sweep``) as the page shows them: a table and two charts."""
    for row in (sweep.record() for sweep in swept(estimates)):
        yield {
            "name": clipped(row["name"]),
            "dimension": clipped(row["dimension"]),
            "unit": "inputs/s" if row["dimension"] == BATCH else "executions/s",
            "points": [
                {
                    **point,
                    "half_ms": None if point["ci95_ms"] is None else half_of(point["latency_ms"], point["ci95_ms"]),
                    "how": how_of(point),
                }
                for point in row["points"]
            ],
            "batch": said_of_batch(row),
            "read": any(point["interpolated"] for point in row["points"]),
            "bounded": any(point["lower_bound_ms"] is not None for point in row["points"]),
            "charts": [_chart(row, rate=False), _chart(row, rate=True)],
        }


def _chart(row: Mapping[str, Any], *, rate: bool) -> Row:
    """Return latency or throughput of a sweep against the size, in the coordinates of its picture.

    Sizes and values have a place and a label, the line and the band of the intervals have corners, and each size has a
    dot: its place, its label, and whether its bricks are interpolated.
    """
    batched = row["dimension"] == BATCH
    label, unit = clipped(row["dimension"]), "inputs" if batched else "executions"
    points = [point for point in row["points"] if point["latency_ms"]]

    def height(size: int, ms: float) -> float:
        return 1000.0 * (size if batched else 1) / ms if rate else ms

    def interval(size: int, ms: float, low: float, high: float) -> tuple[float, float]:
        # A latency may be near zero: its rate is at most a thousand times its value.
        return (height(size, high), height(size, max(low, ms * 1e-3))) if rate else (low, high)

    heights = {point["size"]: height(point["size"], point["latency_ms"]) for point in points}
    ends = {
        point["size"]: interval(point["size"], point["latency_ms"], *point["ci95_ms"])
        for point in points
        if point["ci95_ms"] is not None
    }
    bounds = {point["size"]: height(point["size"], ms) for point in points if (ms := point["lower_bound_ms"])}
    highest = max((*heights.values(), *bounds.values()), default=1.0)
    reach = min(_TALLEST * highest, max((high for _, high in ends.values()), default=highest))
    step = _step(max(highest, reach) / _TICKS)
    top = step * math.ceil(max(highest, reach) / step)
    smallest, largest = min(heights, default=1), max(heights, default=1)
    octaves = math.log2(largest / smallest) or 1.0

    def across(size: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(size / smallest) / octaves

    def up(value: float) -> float:
        return _ABOVE + (_HEIGHT - _ABOVE - _BOTTOM) * (1 - min(value, top) / top)

    def corners(some: Sequence[tuple[int, float]]) -> str:
        return " ".join(f"{across(size):.1f},{up(value):.1f}" for size, value in some)

    def dot(size: int, *, interpolated: bool) -> Row:
        value = heights[size]
        text = f"{value:.4g} {unit} per second" if rate else f"{milliseconds(value)} ms"
        text = f"{label} {size}: {text}{', interpolated' * interpolated}"
        return {"x": across(size), "y": up(value), "text": text, "read": interpolated}

    over = [(size, high) for size, (_, high) in ends.items()]
    under = [(size, low) for size, (low, _) in reversed(ends.items())]
    return {
        "title": "Throughput" if rate else "Latency",
        "label": label,
        "columns": [(across(size), str(size)) for size in _apart([*heights], octaves)],
        "rows": [(up(step * count), f"{step * count:.10g}") for count in range(round(top / step) + 1)],
        "line": corners([*heights.items()]),
        "band": corners([*over, *under]) if len(ends) > 1 else "",
        "bounds": [(across(size), up(value)) for size, value in bounds.items()],
        "dots": [dot(point["size"], interpolated=point["interpolated"]) for point in points],
    }


def _apart(sizes: Sequence[int], octaves: float) -> list[int]:
    """Return the sizes with labels that do not overlap; the largest is among them."""
    labelled: list[int] = []
    for length in reversed(sizes):
        if not labelled or math.log2(labelled[-1] / length) / octaves >= _CLOSE:
            labelled.append(length)
    return labelled[::-1]


def _step(least: float) -> float:
    """Return the next of 1, 2, 2.5 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= 0.999 * least)
