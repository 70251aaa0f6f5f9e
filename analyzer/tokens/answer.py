"""What ``tokens`` answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...constructor.curve import Curve
from ...constructor.tokens import Generation, steps_of
from ..report.answers.truth import caveats
from ..report.drawing import conditions_of, draw_sweeps
from ..report.sweeping import sweep
from ..report.tables import Answer, Column
from ..report.units import counted, duration, milliseconds
from .tokens import Part, Tokens

__all__ = ["draw_tokens", "tokens_answer"]

_MOST_REASONS = 3


def tokens_answer(found: Tokens) -> Answer:
    """The answer of ``tokens``: one row per length of the prompt; beside them what was measured, as ``curves``."""
    records = found.records()
    return Answer.of(
        records,
        columns=[
            Column("prompt", "prompt tokens"),
            Column("ttft_ms", "first token ms ±95%", milliseconds, bounds="ttft_ci95_ms"),
            Column("token_ms", "per token ms ±95%", milliseconds, bounds="token_ci95_ms"),
            Column("first_ms", "second token ms", milliseconds, spare=True),
            Column("last_ms", "last token ms", milliseconds, spare=True),
            Column("tokens_per_s", "tokens/s", _rate),
            Column("total_ms", "whole answer ms ±95%", milliseconds, bounds="total_ci95_ms"),
            Column("read", "interpolated", str),
        ],
        summary=list(_said(found)),
        table=[{**row, "read": _read(one)} for row, one in zip(records.results, found.rows, strict=True)],
    )


def draw_tokens(found: Tokens, place: Path) -> list[Path]:
    """Latency and throughput of prompt and step against their lengths, as one image; none where nothing is known.

    Raises:
        UsageError: The place is neither a folder nor an image file.
        OSError: The file cannot be written.
    """
    estimates = [*found.prompt.estimates.values(), *found.step.estimates.values()]
    known = next((one for one in estimates if one.estimate_ms is not None), None)
    drawn = [
        sweep(
            found.prompt.curve,
            title="first token",
            label="tokens of the prompt",
            unit="tokens of the prompt",
            items=lambda length: length,
        ),
        sweep(
            found.step.curve,
            title="each further token",
            label="tokens in the cache",
            unit="tokens",
            items=lambda _: 1,
        ),
    ]
    title = f"{found.prompt.model.source.name} and {found.step.model.source.name}"
    if known is not None:
        title += f", {known.graph} graph, {conditions_of(known)}"
    return draw_sweeps(drawn, place, name="tokens", title=title)


def _said(found: Tokens) -> Iterator[str]:
    """What stands below the table: what was measured, how good reading between is, what is missing."""
    for name, part in (("first token", found.prompt), ("each further token", found.step)):
        points = part.curve.points
        if points:
            text = ", ".join(f"{one.length}: {milliseconds(one.ms)}" for one in points)
            yield f"{name}, from bricks of {part.model.source.name} at {part.model.dimension} (ms)  {text}"
            yield f"  {_trust(part.curve)}"
        yield from _missing(part)
    yield from _beyond(found)
    yield from caveats([*found.prompt.estimates.values(), *found.step.estimates.values()])
    if found.setup.picked:
        yield f"Picked, since nothing else was asked for: {', '.join(found.setup.picked)}."
    if found.measured:
        if any(took.remaining for took in found.measured):
            yield "The time was up: the same command goes on from here, and so does one with more --budget."
        measured, reused = (sum(getattr(took, what) for took in found.measured) for what in ("measured", "reused"))
        yield f"{measured} bricks measured, {reused} known before, in {duration(found.wall_s)}."


def _beyond(found: Tokens) -> Iterator[str]:
    """Lengths that are needed and lie beyond those that were asked for."""
    for part, needed in (
        (found.prompt, [one.prompt for one in found.rows]),
        (found.step, [length for one in found.rows for length in steps_of(one.prompt, one.new)]),
    ):
        low, high = min(part.estimates, default=0), max(part.estimates, default=0)
        beyond = [length for length in needed if not low <= length <= high]
        if beyond:
            yield (
                f"{part.model.source.name}: {part.model.dimension}={min(beyond)} to {max(beyond)} lies beyond {low} to "
                f"{high}, and is not extrapolated: give --at lengths that hold it"
            )


def _trust(curve: Curve) -> str:
    """How good it is to read between the measured lengths."""
    if curve.error is None:
        return "nothing says how good it is to read between them: that takes at least three lengths"
    worst = max(abs(one.error) for one in curve.left_out)
    return (
        f"each of {counted(len(curve.left_out), 'length')} left out is read from the others within {worst:.1%}; "
        f"interpolated figures are ± {curve.error:.1%} by that"
    )


def _missing(part: Part) -> Iterator[str]:
    """Lengths of which nothing is known, with the reason."""
    reasons = {
        entry.error or f"{counted(len(entry.missing), 'brick')} not measured ({entry.missing[0].reason})": entry.name
        for entry in part.estimates.values()
        if entry.error or entry.missing
    }
    for reason, name in list(reasons.items())[:_MOST_REASONS]:
        yield f"{name}: {reason}"


def _read(one: Generation) -> str:
    """What of an answer is interpolated."""
    parts = ["first token"] if one.ttft_interpolated else []
    if one.steps_interpolated:
        parts.append(f"{one.steps_interpolated} of {counted(one.steps, 'step')}")
    return ", ".join(parts)


def _rate(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
