"""The lower bound: how fast a model could be here, from the best that is stored of each of its bricks.

For every sequence the lowest latency over all stacks and variants (frameworks, versions, options, algorithms) on the
same system and device, at the same precision, threads and cache state; composed sequentially and over the critical
path. The critical path assumes that branches which run at once do not contend (Benanza section III.D).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .composition import Quotient, critical_path, sequential

__all__ = ["LowerBound", "lower_bound"]


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Lower bounds, in the unit of the latencies given.

    Attributes:
        sequential: Sum of the lowest latencies.
        critical_path: Greatest sum along a path; at most ``sequential``.
    """

    sequential: float
    critical_path: float


def lower_bound(quotient: Quotient, keys: Sequence[str], lowest: Mapping[str, float]) -> LowerBound | None:
    """Compose the lowest latencies.

    Args:
        quotient: The sequences' quotient DAG.
        keys: Key of the brick of each sequence.
        lowest: Lowest latency per key.

    Returns:
        None where a brick is not measured anywhere: a sum without it would be no bound.
    """
    latencies = [lowest.get(key) for key in keys]
    known = [latency for latency in latencies if latency is not None]
    if len(known) < len(latencies):
        return None
    return LowerBound(sequential(known), critical_path(quotient, known).latency)
