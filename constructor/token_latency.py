"""Time of a language model's answer, from the latencies of its prompt and its steps.

The prompt is executed once and gives the first token. Each further token is one step with a cache longer by one
position:

    time to first token = prompt(P)
    time of token i     = step(P + i - 2),  i = 2 ... N
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .curve import Curve, Point

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer of a language model. Latencies are in milliseconds; None if a length is not known.

    Attributes:
        prompt: Tokens of the prompt.
        new: Tokens of the answer.
        ttft_ms: Time to the first token.
        ttft_ci95_ms: Its interval.
        ttft_interpolated: True if it is interpolated between measured lengths.
        token_ms: Mean time of every further token; None for a single token.
        token_ci95_ms: Mean of the tokens' intervals, because their errors are not independent.
        first_ms: Time of the second token, with the shortest cache.
        last_ms: Time of the last token.
        steps: Further tokens, one step each.
        steps_interpolated: Number of steps with interpolated times.
        total_ms: Time of the whole answer.
        total_ci95_ms: Its interval.
        tokens_per_s: Further tokens per second: ``1000 / token_ms``.
        overall_tokens_per_s: Tokens per second of the whole answer, with the time to the first token.
    """

    prompt: int
    new: int
    ttft_ms: float | None = None
    ttft_ci95_ms: Interval | None = None
    ttft_interpolated: bool = False
    token_ms: float | None = None
    token_ci95_ms: Interval | None = None
    first_ms: float | None = None
    last_ms: float | None = None
    steps: int = 0
    steps_interpolated: int = 0
    total_ms: float | None = None
    total_ci95_ms: Interval | None = None
    tokens_per_s: float | None = None
    overall_tokens_per_s: float | None = None


def steps_of(prompt: int, new: int) -> range:
    """Return the cache lengths at the beginning of the steps of an answer."""
    return range(prompt, prompt + new - 1)


def lengths_between(low: int, high: int) -> tuple[int, ...]:
    """Return the lengths to measure: both ends, and the powers of two between.

    Powers within a quarter of an end are omitted.
    """
    powers = [1 << power for power in range(high.bit_length())]
    between = (length for length in powers if 5 * low <= 4 * length and 5 * length <= 4 * high)
    return (*dict.fromkeys([low, *between, high]),)


def generation(prompts: Curve, steps: Curve, *, prompt: int, new: int) -> Generation:
    """Return the times of one answer.

    Args:
        prompts: Latency of the prompt by its length.
        steps: Latency of a step by the length of its cache.
        prompt: Tokens of the prompt.
        new: Tokens of the answer, at least 1.
    """
    first = prompts.at(prompt)
    points = [steps.at(length) for length in steps_of(prompt, new)]
    times = [point for point in points if point is not None]
    complete = len(times) == len(points)
    answer = Generation(
        prompt,
        new,
        ttft_ms=None if first is None else first.ms,
        ttft_ci95_ms=None if first is None else first.ci95_ms,
        ttft_interpolated=first is not None and first.interpolated,
        steps=len(points),
        steps_interpolated=sum(point.interpolated for point in times),
    )
    token_ms = sum(point.ms for point in times) / len(times) if complete and times else None
    answer = replace(
        answer,
        token_ms=token_ms,
        token_ci95_ms=_scaled(_summed(times), 1 / len(times)) if complete and times else None,
        first_ms=times[0].ms if complete and times else None,
        last_ms=times[-1].ms if complete and times else None,
        tokens_per_s=1000.0 / token_ms if token_ms else None,
    )
    if first is None or not complete:
        return answer
    whole = [first, *times]
    total_ms = sum(point.ms for point in whole)
    return replace(
        answer,
        total_ms=total_ms,
        total_ci95_ms=_summed(whole),
        overall_tokens_per_s=1000.0 * new / total_ms,
    )


def _summed(points: Sequence[Point]) -> Interval | None:
    """Return the interval of a sum with fully correlated errors; None if one part's is unknown."""
    intervals = [point.ci95_ms for point in points if point.ci95_ms is not None]
    return (
        (sum(low for low, _ in intervals), sum(high for _, high in intervals))
        if len(intervals) == len(points)
        else None
    )


def _scaled(interval: Interval | None, factor: float) -> Interval | None:
    return None if interval is None else (interval[0] * factor, interval[1] * factor)
