"""The answer of ``tokens`` as text: a table of tests, and lines about lengths, memory and the loop."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...constructor.curve import Curve
from ...constructor.token_latency import Rate, steps_of
from ...constructor.token_parts import SHAPES, PartTime
from ...tabular import Field
from ..limits import Figure
from ..report.answers.estimated import caveats
from ..report.answers.summary import measured_lines
from ..report.tables import Answer
from ..report.units import INTERRUPTED, counted, half_of, milliseconds, size, within
from ..setups import notes_of
from ..shell import report_command
from .tokens import Part, Tokens

_MOST_REASONS = 3


def tokens_answer(result: Tokens) -> Answer:
    """Return the answer of ``tokens``: JSON has a row per length of the prompt, the table a row per test."""
    table = [{**test, "read": _read(entry)} for test, entry in zip(result.tests, result.rates, strict=True)]
    return Answer.of(
        result.records(),
        columns=[
            Field("test"),
            Field("tokens_per_s", "tokens/s ±95%", _rate, interval="tokens_per_s_ci95"),
            Field("ms", "ms ±95%", "ms", interval="ci95_ms"),
            Field("each_ms", "ms per call", "ms", spare=True),
            *(_LOOP if any(test["loop_ms"] is not None for test in table) else []),
            Field("read", "interpolated", str, spare=True),
        ],
        summary=[*_summary(result), *([INTERRUPTED] if result.interrupted is not None else [])],
        table=table,
    )


_LOOP = [
    Field("loop_ms", "loop, ms per call ±95%", "ms", interval="loop_ci95_ms"),
    Field("ratio", "estimate / loop ±95%", "ratio", interval="ratio_ci95"),
]


def token_figures(result: Tokens) -> dict[str, dict[str, Figure]]:
    """Return the figures that limits can name, by length of the prompt."""
    return {
        f"{result.step.side.source.name}, {row.prompt} tokens": {
            "first-token": Figure.scattering(row.ttft_ms, row.ttft_ci95_ms),
            "token": Figure.scattering(row.token_ms, row.token_ci95_ms),
            "tokens/s": Figure.scattering(row.tokens_per_s, _rates(row.token_ci95_ms, result.batch)),
        }
        for row in result.rows
    }


def _rates(token_ci95_ms: tuple[float, float] | None, batch: int) -> tuple[float, float] | None:
    """Return the interval of tokens per second."""
    if token_ci95_ms is None or min(token_ci95_ms) <= 0:
        return None
    low_ms, high_ms = token_ci95_ms
    return 1e3 * batch / high_ms, 1e3 * batch / low_ms


def _summary(result: Tokens) -> Iterator[str]:
    """Yield lines about the inputs, the answers, measured lengths, errors of interpolation, and missing lengths."""
    decoder = result.step.side.decoder
    if decoder is not None:
        yield decoder.described()
    yield from _answers(result)
    yield from _parts(result)
    yield from _memory(result)
    yield from _looped(result)
    for name, part in (("first token", result.prompt), ("each further token", result.step)):
        points = part.curve.points
        if points:
            text = ", ".join(f"{point.length - part.side.seen}: {milliseconds(point.ms)}" for point in points)
            yield f"{name}, from bricks of {part.side.source.name} at {part.side.dimension} (ms)  {text}"
            yield f"  {_trust(part.curve)}"
        yield from _missing(part)
    yield from _beyond(result)
    yield from _remedies(result)
    yield from caveats([*result.prompt.estimates.values(), *result.step.estimates.values()])
    yield from notes_of(result.setup)
    yield from result.unasked
    yield from measured_lines(result.measured, result.wall_s)


def _answers(result: Tokens) -> Iterator[str]:
    """Yield a line per length of the prompt: the wait for the first token and for the answer."""
    for row in result.rows:
        if row.ttft_ms is None or row.token_ms is None:
            continue
        at_once = f", {result.batch} sequences at once" if result.batch > 1 else ""
        yield (
            f"prompt of {row.prompt}: first token after {milliseconds(row.ttft_ms)} ms, then "
            f"{milliseconds(row.token_ms)} ms per token; an answer of {row.new} takes "
            f"{milliseconds(row.total_ms or 0.0)} ms{at_once}"
        )


def _parts(result: Tokens) -> Iterator[str]:
    """Yield a line per context of a step: the parts of its time."""
    for context, parts in result.step.parts.items():
        if parts and any(rate.test.startswith("tg1 ") and rate.context == context for rate in result.rates):
            yield f"a token behind {context} positions (ms): {', '.join(map(_part, parts))}"


def _remedies(result: Tokens) -> Iterator[str]:
    """Yield the command that tries settings and rewrites on a step, behind the longest known context."""
    known = [length for length, parts in result.step.parts.items() if parts]
    if known:
        command = report_command(result.step.estimates[max(known)], result.setup.threads)
        yield f"to try remedies for a token behind {max(known)} positions: {command}"


def _part(part: PartTime) -> str:
    text = f"{part.name} {milliseconds(part.ms)}"
    if part.gb_per_s is not None:
        return f"{text} ({size(part.weight_bytes)} at {part.gb_per_s:.3g} GB/s)"
    return f"{text} ({counted(part.nodes, 'node')})" if part.name == SHAPES else text


_MANY = 1000
"""Positions that a line tells the time of."""


def _memory(result: Tokens) -> Iterator[str]:
    """Yield lines about the memory, and about the time that cached positions add to a token."""
    memory, points = result.memory, result.step.curve.points
    if len(points) > 1 and points[-1].ms > points[0].ms:
        first, last = points[0], points[-1]
        each = _MANY / (last.length - first.length)
        halves = [half_of(point.ms, point.ci95_ms) for point in (first, last) if point.ci95_ms is not None]
        half = each * math.hypot(*halves) if len(halves) == 2 else None
        yield (
            f"a token behind {first.length - result.step.side.seen} positions takes {milliseconds(first.ms)} ms; each "
            f"{_MANY:,} cached positions add {within(each * (last.ms - first.ms), half)} ms"
        )
    if memory is not None:
        yield (
            f"memory: weights {size(memory.weight_bytes)}, cache {size(memory.position_bytes)} per position, "
            f"{size(memory.cache_bytes)} at {memory.positions} positions of "
            f"{counted(result.batch, 'sequence')}"
        )


def _looped(result: Tokens) -> Iterator[str]:
    """Yield a line about the loop: how much it executed, or why it did not."""
    loop = result.loop
    if loop is None:
        return
    if loop.times:
        executed = sum(time.tokens for time in loop.times.values())
        moment = "took turns with the bricks" if result.measured else "ran now, and the bricks were measured before"
        yield (
            f"the model's own loop {moment}: {counted(executed, 'execution')} counted in "
            f"{loop.wall_s:.1f} s; calls of a context are the {len(_contexts(result))} steps up to it"
        )
    if loop.reason:
        yield f"the loop {'ended early' if loop.times else 'did not run'}: {loop.reason}"


def _contexts(result: Tokens) -> range:
    """Return the contexts of the longest task of the loop."""
    times = result.loop.times if result.loop is not None else {}
    return max((task.contexts for task in times), key=len, default=range(0))


def _beyond(result: Tokens) -> Iterator[str]:
    """Yield required lengths outside the measured ones."""
    for part, needed in (
        (result.prompt, [row.prompt for row in result.rows]),
        (result.step, [length for row in result.rows for length in steps_of(row.prompt, row.new)]),
    ):
        low, high = min(part.estimates, default=0), max(part.estimates, default=0)
        beyond = [length for length in needed if not low <= length <= high]
        if beyond:
            yield (
                f"{part.side.source.name}: {part.side.dimension}={min(beyond)} to {max(beyond)} is outside {low} to "
                f"{high}, and is not extrapolated: give --at lengths that hold it"
            )


def _trust(curve: Curve) -> str:
    """Return how good it is to read between the measured lengths."""
    if curve.error is None:
        return "nothing says how good it is to read between them: that takes at least three lengths"
    worst = max(abs(point.error) for point in curve.left_out)
    return (
        f"each of {counted(len(curve.left_out), 'length')} left out is read from the others within {worst:.1%}; "
        f"figures in the middle between two are ± {curve.error:.1%} by that"
    )


def _missing(part: Part) -> Iterator[str]:
    """Yield lengths without a latency, each with the reason."""
    reasons = {
        entry.error or f"{counted(len(missing), 'brick')} not measured ({missing[0].reason})": entry.name
        for entry in part.estimates.values()
        if (missing := entry.parts.missing) or entry.error
    }
    for reason, name in list(reasons.items())[:_MOST_REASONS]:
        yield f"{name}: {reason}"


def _read(entry: Rate) -> str:
    """Write the interpolated part of a test."""
    return f"{entry.interpolated} of {counted(entry.executions, 'call')}" if entry.interpolated else ""


def _rate(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
