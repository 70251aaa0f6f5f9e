"""Work of pooling. A window that hangs over the edge counts in full."""

from __future__ import annotations

import math

from ..cost import Cost
from .call import Call, Formula, UnknownCostError

__all__ = ["FORMULAS", "average_pool", "global_average_pool", "max_pool"]


def max_pool(call: Call) -> Cost:
    """``comparisons = output elements * Kh Kw``."""
    return Cost(comparisons=call.output().elements * call.window())


def average_pool(call: Call) -> Cost:
    """``additions = output elements * Kh Kw``, ``divisions = output elements``."""
    n = call.output().elements
    return Cost(additions=n * call.window(), divisions=n)


def lp_pool(call: Call) -> Cost:
    """``(sum |x|^p)^(1/p)``: one addition and, by p, comparison, multiplication or pow per element; one root."""
    n = call.output().elements
    return _lp(call.attribute("p", 2), n * call.window(), n)


def global_max_pool(call: Call) -> Cost:
    """``comparisons = input elements``."""
    return Cost(comparisons=call.input(0).elements)


def global_average_pool(call: Call) -> Cost:
    """``additions = input elements``, ``divisions = output elements``."""
    return Cost(additions=call.input(0).elements, divisions=call.output().elements)


def global_lp_pool(call: Call) -> Cost:
    """As LpPool with the whole plane as its window."""
    return _lp(call.attribute("p", 2), call.input(0).elements, call.output().elements)


def _lp(p: int, taps: int, n: int) -> Cost:
    """Work of n p-norms over ``taps`` elements altogether."""
    if p == 1:
        return Cost(additions=taps, comparisons=taps)
    if p == 2:
        return Cost(additions=taps, multiplications=taps, divisions=n)
    return Cost(additions=taps, exponentials=taps + n)


def max_unpool(call: Call) -> Cost:
    """Places each element: moves bytes, no arithmetic."""
    call.output()
    return Cost()


def roi_align(call: Call) -> Cost:
    """Per sample a bilinear interpolation: 4 multiplications, 3 additions; one addition (max: comparison) to pool.

    ``samples = output elements * sampling_ratio^2``; an adaptive ratio (0) depends on the boxes and is unknown.
    """
    ratio = call.attribute("sampling_ratio", 0)
    if ratio <= 0:
        raise UnknownCostError("RoiAlign with a sampling ratio that depends on the boxes")
    n = call.output().elements
    samples = n * ratio * ratio
    if call.attribute("mode", "avg") == "max":
        return Cost(multiplications=4 * samples, additions=3 * samples, comparisons=samples)
    return Cost(multiplications=4 * samples, additions=4 * samples, divisions=n)


def max_roi_pool(call: Call) -> Cost:
    """``comparisons = R C H W``: every box taken as the whole plane, the most there can be."""
    data, boxes = call.input(0), call.input(1)
    return Cost(comparisons=boxes.shape[0] * math.prod(data.shape[1:]))


FORMULAS: dict[tuple[str, str], Formula] = {
    ("", "AveragePool"): average_pool,
    ("", "GlobalAveragePool"): global_average_pool,
    ("", "GlobalLpPool"): global_lp_pool,
    ("", "GlobalMaxPool"): global_max_pool,
    ("", "LpPool"): lp_pool,
    ("", "MaxPool"): max_pool,
    ("", "MaxRoiPool"): max_roi_pool,
    ("", "MaxUnpool"): max_unpool,
    ("", "RoiAlign"): roi_align,
}
