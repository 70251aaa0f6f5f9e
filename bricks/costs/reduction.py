"""Work of reductions and scans. n is the number of input elements, m that of output elements."""

from __future__ import annotations

from ..cost import Cost
from .call import Call, Formula

__all__ = ["FORMULAS", "reduce_mean", "reduce_sum"]


def reduce_sum(call: Call) -> Cost:
    """``additions = n`` (accumulated from zero)."""
    return Cost(additions=call.input(0).elements)


def reduce_mean(call: Call) -> Cost:
    """``additions = n``, ``divisions = m``."""
    return Cost(additions=call.input(0).elements, divisions=call.output().elements)


def reduce_prod(call: Call) -> Cost:
    """``multiplications = n``."""
    return Cost(multiplications=call.input(0).elements)


def reduce_extremum(call: Call) -> Cost:
    """Maximum, minimum or their position: ``comparisons = n``."""
    return Cost(comparisons=call.input(0).elements)


def reduce_l1(call: Call) -> Cost:
    """``sum |x|``: ``comparisons = n``, ``additions = n``."""
    n = call.input(0).elements
    return Cost(comparisons=n, additions=n)


def reduce_l2(call: Call) -> Cost:
    """``sqrt(sum x x)``: ``multiplications = n``, ``additions = n``, ``divisions = m`` (roots)."""
    n = call.input(0).elements
    return Cost(multiplications=n, additions=n, divisions=call.output().elements)


def reduce_sum_square(call: Call) -> Cost:
    """``sum x x``: ``multiplications = n``, ``additions = n``."""
    n = call.input(0).elements
    return Cost(multiplications=n, additions=n)


def reduce_log_sum(call: Call) -> Cost:
    """``log(sum x)``: ``additions = n``, ``exponentials = m``."""
    return Cost(additions=call.input(0).elements, exponentials=call.output().elements)


def reduce_log_sum_exp(call: Call) -> Cost:
    """``max + log(sum exp(x - max))``: n comparisons, 2n + m additions, n + m exponentials."""
    n, m = call.input(0).elements, call.output().elements
    return Cost(comparisons=n, additions=2 * n + m, exponentials=n + m)


FORMULAS: dict[tuple[str, str], Formula] = {
    ("", "ArgMax"): reduce_extremum,
    ("", "ArgMin"): reduce_extremum,
    ("", "CumProd"): reduce_prod,
    ("", "CumSum"): reduce_sum,
    ("", "ReduceL1"): reduce_l1,
    ("", "ReduceL2"): reduce_l2,
    ("", "ReduceLogSum"): reduce_log_sum,
    ("", "ReduceLogSumExp"): reduce_log_sum_exp,
    ("", "ReduceMax"): reduce_extremum,
    ("", "ReduceMean"): reduce_mean,
    ("", "ReduceMin"): reduce_extremum,
    ("", "ReduceProd"): reduce_prod,
    ("", "ReduceSum"): reduce_sum,
    ("", "ReduceSumSquare"): reduce_sum_square,
}
