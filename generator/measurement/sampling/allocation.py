r"""Which samples are worth taking: those that narrow the models' totals fastest.

A model's total is a sum of bricks, each as often as the model holds it. With :math:`n_i` samples of brick :math:`i`
its variance is :math:`\sum_i c_i^2 \sigma_i^2 / n_i`. For a given time :math:`\sum_i n_i t_i` that is least where
:math:`n_i \propto c_i \sigma_i / \sqrt{t_i}` (Neyman's optimal allocation with costs; Cochran, Sampling Techniques,
5.5): the *time* of a brick is to be proportional to :math:`c_i \sigma_i \sqrt{t_i}`. Several models count by their
relative variances, so that :math:`c_i^2` is :math:`\sum_m (c_{mi} / T_m)^2`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import median, pstdev

from ..item import Item
from .statistics import block_values

__all__ = ["occurrence_weights", "time_shares"]

_LEAST, _MOST = 1 / 8, 8.0
"""How far an item's share may lie from an equal one: a guess from a few samples must not starve any."""

_SPREAD = 0.03
"""Relative spread of samples where it is not known yet."""


def occurrence_weights(
    annotations: Mapping[str, Mapping[str, int]] | None, latency_ns: Mapping[str, float]
) -> dict[str, float]:
    """How much a nanosecond of each brick weighs in the models' totals, relative to these.

    Args:
        annotations: Model name to occurrences by brick key; None where the suite does not tell.
        latency_ns: What is known of the bricks; a model is judged by its known part.

    Returns:
        Brick key to weight; empty where the suite does not tell, and all bricks count once.
    """
    squares: dict[str, float] = {}
    for counts in (annotations or {}).values():
        total = sum(count * latency_ns[key] for key, count in counts.items() if key in latency_ns)
        if total > 0:
            for key, count in counts.items():
                squares[key] = squares.get(key, 0.0) + (count / total) ** 2
    return {key: math.sqrt(square) for key, square in squares.items()}


def time_shares(
    items: Collection[Item], annotations: Mapping[str, Mapping[str, int]] | None = None
) -> dict[str, float]:
    """Time for each item, relative to an equal share; 1 on average.

    Args:
        items: Open items; those without samples get an equal share.
        annotations: As for ``occurrence_weights``.

    Returns:
        By the item's id.
    """
    known = {item.id: _centre_and_spread(item) for item in items if item.blocks}
    latency = {item.key: known[item.id][0] for item in items if item.id in known}
    weights = occurrence_weights(annotations, latency)
    least = min(weights.values(), default=1.0)
    worth = {
        item.id: weights.get(item.key, least) * known[item.id][1] * math.sqrt(known[item.id][0])
        for item in items
        if item.id in known
    }
    mean = sum(worth.values()) / len(worth) if worth else 0.0
    if mean <= 0:
        return {item.id: 1.0 for item in items}
    clipped = {key: min(max(value / mean, _LEAST), _MOST) for key, value in worth.items()}
    scale = len(clipped) / sum(clipped.values())
    return {item.id: clipped[item.id] * scale if item.id in clipped else 1.0 for item in items}


def _centre_and_spread(item: Item) -> tuple[float, float]:
    """Median of an item's samples, and how they scatter about it; nanoseconds."""
    values: Sequence[float] = [value for block in block_values(item.blocks, max(1, item.unroll)) for value in block]
    centre = max(median(values), 1.0)
    return centre, pstdev(values) if len(values) > 2 else _SPREAD * centre
