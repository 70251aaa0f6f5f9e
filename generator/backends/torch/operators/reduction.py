"""Reductions over axes, running sums, and choices of the largest."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .call import Call, Tensor
from .registry import operator

__all__: list[str] = []


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:  # noqa: FBT001
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _norm(order: int) -> Callable[[Tensor, list[int], bool], Tensor]:
    return lambda x, axes, keep: torch.linalg.vector_norm(x, order, axes, keep)


_REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceL1": _norm(1),
    "ReduceL2": _norm(2),
    "ReduceLogSum": lambda x, axes, keep: torch.log(torch.sum(x, axes, keep)),
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceMax": torch.amax,
    "ReduceMean": torch.mean,
    "ReduceMin": torch.amin,
    "ReduceProd": _product,
    "ReduceSum": lambda x, axes, keep: torch.sum(x, axes, keep, dtype=x.dtype),
    "ReduceSumSquare": lambda x, axes, keep: torch.sum(torch.square(x), axes, keep, dtype=x.dtype),
}
_OF_FLOATS = frozenset({"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean"})
"""PyTorch computes them in floating point only."""


@operator(*_REDUCTIONS)
def _reduce(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    given = call.ints("axes", axes)
    if not given and call.flag("noop_with_empty_axes"):
        return x
    chosen = [axis % x.ndim for axis in given or range(x.ndim)]
    function = _REDUCTIONS[call.op_type]
    keep = call.flag("keepdims", default=True)
    if call.op_type in _OF_FLOATS and not x.is_floating_point():
        return function(x.to(torch.float64), chosen, keep).to(x.dtype)
    return function(x, chosen, keep)


@operator("ArgMax", "ArgMin")
def _arg(call: Call, x: Tensor) -> Tensor:
    axis = call.get("axis", 0)
    function = torch.argmax if call.op_type == "ArgMax" else torch.argmin
    keep = call.flag("keepdims", default=True)
    if not call.flag("select_last_index"):
        return function(x, axis, keep)
    return torch.sub(x.shape[axis] - 1, function(torch.flip(x, [axis]), axis, keep))


@operator("TopK")
def _top_k(call: Call, x: Tensor, count: Tensor | None = None) -> Any:
    k = int(count.item()) if count is not None else call.attributes["k"]
    largest, in_order = call.flag("largest", default=True), call.flag("sorted", default=True)
    return torch.topk(x, k, call.get("axis", -1), largest, in_order)


@operator("CumSum")
def _cumulative_sum(call: Call, x: Tensor, axis: Tensor) -> Tensor:
    along = int(axis.item()) % x.ndim
    backwards = call.flag("reverse")
    result = torch.flip(x, [along]) if backwards else x
    result = torch.cumsum(result, along, dtype=x.dtype)
    if call.flag("exclusive"):
        first = torch.zeros_like(torch.narrow(result, along, 0, 1))
        result = torch.cat([first, torch.narrow(result, along, 0, x.shape[along] - 1)], along)
    return torch.flip(result, [along]) if backwards else result
