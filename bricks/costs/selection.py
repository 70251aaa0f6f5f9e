"""Work of sorting and selection, where the data decides the exact count: the stated bound is what is counted."""

from __future__ import annotations

import math

from ..cost import Cost
from .call import Call, Formula, UnknownCostError

__all__ = ["FORMULAS"]


def top_k(call: Call) -> Cost:
    """A heap of k elements per row: ``comparisons = n * ceil(log2(k + 1))``."""
    axis = call.attribute("axis", -1)
    out = call.output()
    k = out.shape[axis] if out.shape else 1
    return Cost(comparisons=call.input(0).elements * max(1, k.bit_length()))


def unique(call: Call) -> Cost:
    """A sort: ``comparisons = n ceil(log2 n)``."""
    n = call.input(0).elements
    return Cost(comparisons=n * max(1, (n - 1).bit_length() if n else 0))


def non_zero(call: Call) -> Cost:
    """``comparisons = n``."""
    return Cost(comparisons=call.input(0).elements)


def non_max_suppression(call: Call) -> Cost:
    """At most ``B C S min(k, S)`` overlaps of S boxes with the kept k, each 6 comparisons.

    An overlap is also 5 additions, 3 multiplications and 1 division. Unknown where k is computed at run time.
    """
    boxes, scores = call.input(0), call.input(1)
    kept = call.values(2)
    if kept is None:
        raise UnknownCostError("NonMaxSuppression with a limit computed at run time")
    overlaps = scores.elements * min(int(kept[0]), boxes.shape[1])
    return Cost(
        comparisons=6 * overlaps + scores.elements,
        additions=5 * overlaps,
        multiplications=3 * overlaps,
        divisions=overlaps,
    )


def multinomial(call: Call) -> Cost:
    """Per row one softmax-like cumulation of n scores, then a binary search per sample drawn."""
    scores = call.input(0)
    n, samples = scores.elements, call.output().elements
    classes = scores.shape[-1] if scores.shape else 1
    return Cost(exponentials=n, additions=n, comparisons=samples * max(1, math.ceil(math.log2(max(2, classes)))))


FORMULAS: dict[tuple[str, str], Formula] = {
    ("", "Multinomial"): multinomial,
    ("", "NonMaxSuppression"): non_max_suppression,
    ("", "NonZero"): non_zero,
    ("", "TopK"): top_k,
    ("", "Unique"): unique,
}
