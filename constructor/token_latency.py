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

# One answer.


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
        tokens_per_s: Further tokens per second, of all sequences: ``1000 batch / token_ms``.
        overall_tokens_per_s: The same of the whole answer, with the time to the first token.
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


def generation(prompts: Curve, steps: Curve, *, prompt: int, new: int, batch: int = 1) -> Generation:
    """Return the times of one answer.

    Args:
        prompts: Latency of the prompt by its length.
        steps: Latency of a step by the positions that it sees: those of its cache and its own.
        prompt: Tokens of the prompt.
        new: Tokens of the answer, at least 1.
        batch: Sequences at once.
    """
    first = prompts.at(prompt)
    points = [steps.at(length + 1) for length in steps_of(prompt, new)]
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
        tokens_per_s=1000.0 * batch / token_ms if token_ms else None,
    )
    if first is None or not complete:
        return answer
    whole = [first, *times]
    total_ms = sum(point.ms for point in whole)
    return replace(
        answer,
        total_ms=total_ms,
        total_ci95_ms=_summed(whole),
        overall_tokens_per_s=1000.0 * batch * new / total_ms,
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


# Rates as people compare them: so many tokens of a prompt, and so many tokens after another.


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of some tokens.

    Attributes:
        test: Name of the test: ``pp512`` a prompt, ``tg128`` tokens one by one, ``pp512+tg128`` both; ``@ d512`` behind
            so many cached positions.
        context: Cached positions at the beginning.
        tokens: Tokens of all sequences.
        ms: Time of all executions; None if a length is not known.
        ci95_ms: Its interval.
        tokens_per_s: Their rate.
        tokens_per_s_ci95: Its interval.
        executions: Executions of the model.
        interpolated: Executions with an interpolated time.
    """

    test: str
    context: int
    tokens: int
    ms: float | None
    ci95_ms: Interval | None
    tokens_per_s: float | None
    tokens_per_s_ci95: Interval | None
    executions: int
    interpolated: int

    @property
    def each_ms(self) -> float | None:
        """Time of one execution."""
        return None if self.ms is None else self.ms / self.executions

    @property
    def each_ci95_ms(self) -> Interval | None:
        """Its interval."""
        return _scaled(self.ci95_ms, 1 / self.executions)


def rate(prompts: Curve, steps: Curve, *, prompt: int = 0, new: int = 0, context: int = 0, batch: int = 1) -> Rate:
    """Return the rate of a prompt, of tokens one by one, or of both.

    Args:
        prompts: As for ``generation``.
        steps: As for ``generation``.
        prompt: Tokens of the prompt; 0: none.
        new: Tokens one by one; 0: none.
        context: Cached positions before, without a prompt.
        batch: Sequences at once.
    """
    points = [prompts.at(prompt)] if prompt else []
    begin = prompt or context
    points += [steps.at(length + 1) for length in range(begin, begin + new)]
    known = [point for point in points if point is not None]
    names = [*([f"pp{prompt}"] if prompt else []), *([f"tg{new}"] if new else [])]
    depth = f" @ d{context}" if context or new == 1 > prompt else ""
    tokens = batch * (prompt + new)
    complete = len(known) == len(points)
    ms = sum(point.ms for point in known) if complete else None
    interval = _summed(known) if complete else None
    rates = None if interval is None or interval[0] <= 0 else tuple(1e3 * tokens / bound for bound in interval[::-1])
    return Rate(
        "+".join(names) + depth, context, tokens, ms, interval, 1e3 * tokens / ms if ms else None,
        None if rates is None else (rates[0], rates[1]), len(points), sum(point.interpolated for point in known),
    )  # fmt: skip
