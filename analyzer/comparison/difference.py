"""Ratio of two latencies, its interval, and a verdict.

Latencies are compared by the difference of their logarithms, so that swapping both sides swaps the verdict. Its
standard error comes from the scatter of time blocks (``constructor.uncertainty.interval``) and possible changes of the
machine (``Timeline``). There are two tests, as in Lakens, Scheel and Isager (2018,
"Equivalence testing for psychological research: a tutorial"):

* *Is there a difference?* Student's t test at 5 %. For many differences, the procedure of Benjamini and Hochberg (1995,
  "Controlling the false discovery rate"): at most 5% of the verdicts FASTER and SLOWER are chance.
* *Is the difference too small to matter?* Two one-sided tests (Schuirmann 1987, "A comparison of the two one-sided
  tests procedure..."): the 95 % interval of the ratio is within the minimum effect. (The procedure needs only the 90 %
  interval at 5 %; this is stricter, and equal to the displayed interval.)

The second test gives SAME. Otherwise the first one gives FASTER or SLOWER if the ratio is beyond the minimum effect, or
its whole interval beyond half of that. Without the second way half of the differences that are as large as the minimum
effect would not be found, however narrow the interval. What remains is UNCLEAR: better measurements are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from ...constructor.uncertainty.pairing import ratio_spread, trimmed
from ...db.samples.statistics import student
from ...errors import UsageError
from ...generator.measurement.trial import Trial

MINIMUM_EFFECT = 0.03
"""Relative difference below which latencies count as the same, where nothing else is asked for: about what is resolved
of sides that were visited in turn; two runs of two processes each resolve no less than 5 %."""

_LEVEL = 0.05
"""Share of chance among the differences that are found."""


def check_minimum_effect(minimum_effect: float) -> None:
    """Raise ``UsageError`` for a relative difference that is not positive, or infinite."""
    if not 0 < minimum_effect < math.inf:
        raise UsageError(f"a minimum effect of {minimum_effect} is not positive", remedy="write 0.03 for 3%")


class Relation(StrEnum):
    """The other side in relation to the base."""

    SAME = "SAME"
    """Any difference is smaller than the minimum effect."""
    FASTER = "FASTER"
    """Takes less time, by about the minimum effect or more."""
    SLOWER = "SLOWER"
    """Takes more time, by about the minimum effect or more."""
    UNCLEAR = "UNCLEAR"
    """The measurements do not decide it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How much longer the other side takes.

    Attributes:
        ratio: Other latency / base latency.
        ci95: Its 95 % interval.
        p: Probability of at least this difference between two sides that do not differ.
    """

    ratio: float
    ci95: tuple[float, float]
    p: float


def difference(base: float, other: float, error: tuple[float, float], *, apart: float = 0.0) -> Difference:
    """Return the difference of two latencies.

    Args:
        base: Positive latency, in any unit.
        other: Positive latency in the same unit.
        error: Standard error of the difference of their logarithms from sampling, and its degrees of freedom.
        apart: Standard deviation of changes of the machine between both.
    """
    centre = math.log(other) - math.log(base)
    sampled, sampled_degrees = error
    total = math.hypot(sampled, apart)
    share = (sampled / total) ** 4 if total > 0 else 0.0
    # Welch and Satterthwaite; that of the machine counts as known.
    degrees = sampled_degrees / share if share > 0 else math.inf
    half = min(student(degrees) * total, _FAR) if total > 0 else 0.0
    p = two_sided(abs(centre) / total, degrees) if total > 0 else float(centre == 0)
    return Difference(math.exp(centre), (math.exp(centre - half), math.exp(centre + half)), p)


def discoveries(ps: Sequence[float]) -> list[bool]:
    """Which of several differences are more than chance (Benjamini and Hochberg's step-up procedure at 5 %)."""
    order = sorted(range(len(ps)), key=ps.__getitem__)
    passed = max((rank for rank, index in enumerate(order, 1) if ps[index] <= _LEVEL * rank / len(ps)), default=0)
    discovered = set(order[:passed])
    return [index in discovered for index in range(len(ps))]


def relation(seen: Difference, *, minimum_effect: float, discovered: bool) -> Relation:
    """Return the verdict.

    Args:
        seen: The difference.
        minimum_effect: Relative difference that matters, either way: 0.03 is a ratio between 1 / 1.03 and 1.03.
        discovered: True if it is more than chance among all differences.
    """
    largest = 1 + minimum_effect
    low, high = seen.ci95
    if 1 / largest <= low and high <= largest:
        return Relation.SAME
    half = math.sqrt(largest)
    if discovered and (not 1 / largest <= seen.ratio <= largest or low > half or high < 1 / half):
        return Relation.FASTER if seen.ratio < 1 else Relation.SLOWER
    return Relation.UNCLEAR


def seen_from(half: float, minimum_effect: float) -> float:
    """Return the smallest logarithm of a measured ratio at which ``relation`` is SLOWER.

    Args:
        half: Half of the interval of that logarithm.
        minimum_effect: Relative difference that matters.
    """
    largest = math.log1p(minimum_effect)
    # not SAME; and beyond what matters without containing 0, or with the whole interval beyond half of what matters
    return max(largest - half, min(max(largest, half), largest / 2 + half))


def welch(base: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Return the standard error of a difference and its degrees of freedom (Welch and Satterthwaite)."""
    error = math.hypot(base[0], other[0])
    fourth_powers = math.fsum(side_error**4 / degrees for side_error, degrees in (base, other))
    return error, error**4 / fourth_powers if fourth_powers > 0 else max(base[1], other[1])


def two_sided(t: float, degrees: float) -> float:
    """Probability that Student's t is at least so far from 0, on either side."""
    from scipy.special import stdtr

    return 2 * float(stdtr(degrees, -abs(t)))


# The difference of two sides that were visited in turn, visit by visit.


_NS_PER_MS = 1e6
_FAR = 50.0
"""Logarithm of a ratio beyond which an interval is as good as without end."""

FEWEST_PROCESSES = 3
"""With fewer processes their spread is not known."""

_PROCESS_SD = 0.003
"""Least standard deviation of a process: few processes may agree by chance. Of 160 trials of models against themselves
on one and two threads, the interval of four processes excluded no difference in 3.1 % without this least value, and in
1.9% with it; it was chosen on the same trials."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Levels:
    """The latency before and after a change.

    Attributes:
        before_ms: Before it.
        after_ms: After it.
        difference: How far both differ.
        after_ci95_ms: Interval of the latency after it, over processes; None with too few.
        ratios: The ratio of each process; none with too few.
    """

    before_ms: float
    after_ms: float
    difference: Difference
    after_ci95_ms: tuple[float, float] | None = None
    ratios: tuple[float, ...] = ()


def paired(
    before_ns: Sequence[Array],
    after_ns: Sequence[Array],
    *,
    looks: float = 1.0,
    by_order: bool = False,
    second_first: Sequence[bool] = (),
) -> Levels:
    """Both latencies and their ratio, of two sides that were visited alternately.

    The process is the unit: all of its visits share one memory layout. Of each process one number counts, the trimmed
    mean of the logarithms of the ratios of its visits. What is loaded first has other memory, and every other process
    loads the second side first: both orders count equally, however many processes there are. With fewer than three
    processes, time blocks are the unit.

    Args:
        before_ns: Latencies of the first, by process; visits of one position belong together.
        after_ns: Of the second.
        looks: Intervals are wider by this factor, if the result was looked at again and again before.
        by_order: Processes scatter around the mean of those with the same order of loading, and need no least value;
            at least four are needed. In three of nine models both means were 0.7 to 1.2 % apart.
        second_first: Of each process, whether it loaded the second side first; empty: every other one.
    """
    ours, theirs = (trimmed(np.concatenate(side)) / _NS_PER_MS for side in (before_ns, after_ns))
    if len(before_ns) < FEWEST_PROCESSES:
        error, degrees = ratio_spread(after_ns, before_ns)
        return Levels(ours, theirs, difference(ours, theirs, (error, degrees)))
    ratios = np.array([trimmed(np.log(after / before)) for before, after in zip(before_ns, after_ns, strict=True)])
    orders = np.array(second_first or [process % 2 == 1 for process in range(ratios.size)])
    groups = [ratios[orders == order] for order in (False, True) if order in orders]
    weights = np.array([1 / len(groups) / np.count_nonzero(orders == order) for order in orders])
    centre = float(weights @ ratios)
    if by_order:
        degrees = ratios.size - len(groups)
        squares = math.fsum(float(np.sum((group - group.mean()) ** 2)) for group in groups)
        spread = math.sqrt(squares / degrees)
    else:
        degrees, spread = ratios.size - 1, math.hypot(float(ratios.std(ddof=1)), _PROCESS_SD)
    error = looks * spread * float(np.sqrt(weights @ weights))
    seen = difference(1.0, math.exp(centre), (error, degrees))
    levels_ms = np.array([trimmed(after) for after in after_ns]) / _NS_PER_MS
    half_ms = student(degrees) * float(levels_ms.std(ddof=1)) / math.sqrt(levels_ms.size)
    after_ms = ours * seen.ratio
    return Levels(ours, after_ms, seen, (after_ms - half_ms, after_ms + half_ms), tuple(np.exp(ratios).tolist()))


def trial_levels(trial: Trial, *, looks: float = 1.0, by_order: bool = False) -> Levels:
    """Return both latencies of a measurable trial and their ratio; arguments as of ``paired``."""
    return paired(trial.before_ns, trial.after_ns, looks=looks, by_order=by_order, second_first=trial.second_first)
