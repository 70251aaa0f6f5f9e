"""Operators that read or write elements by index."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

from typing import Any

import torch

from .call import Call, Tensor
from .registry import operator

__all__: list[str] = []

_REDUCTIONS = {"mul": "prod", "max": "amax", "min": "amin"}


def _counted(indices: Tensor, size: int) -> Tensor:
    """Indices counted from the beginning; those that are not negative anyway cost nothing.

    Whether any is negative is seen in the values that are fed, which never change.
    """
    indices = indices.to(torch.int64)
    if not indices.numel() or indices.min().item() >= 0:
        return indices
    return torch.where(torch.lt(indices, 0), torch.add(indices, size), indices)


@operator("Gather")
def _gather(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    if call.constant[1] and indices.ndim == 0:
        return torch.select(x, axis, int(indices.item()))
    small = indices.dtype in {torch.int32, torch.int64}
    indices = indices if small and int(indices.min()) >= 0 else _counted(indices, x.shape[axis])
    if axis == 0 and x.ndim == 2 and indices.ndim:
        return torch.embedding(x, indices)
    chosen = torch.index_select(x, axis, indices.reshape(-1))
    return torch.reshape(chosen, [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


@operator("GatherElements")
def _gather_elements(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0)
    return torch.gather(x, axis, _counted(indices, x.shape[axis]))


@operator("GatherND")
def _gather_nd(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    batch = call.get("batch_dims", 0)
    return x[(*_batch_places(x, indices, batch), *torch.unbind(indices.to(torch.int64), -1))]


def _batch_places(x: Tensor, indices: Tensor, batch: int) -> list[Tensor]:
    """For each batch axis its own positions, shaped to go with the indices."""
    rank = indices.ndim - 1
    return [
        torch.tensor(range(x.shape[axis]), device=x.device).reshape([-1 if at == axis else 1 for at in range(rank)])
        for axis in range(batch)
    ]


@operator("ScatterND")
def _scatter_nd(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    reduction = call.get("reduction", "none")
    depth = indices.shape[-1]
    if reduction in {"none", "add"}:
        places = torch.unbind(indices.to(torch.int64), -1)
        return torch.index_put(x, places, updates, reduction == "add")
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    for axis, place in enumerate(torch.unbind(indices, -1)):
        flat = torch.add(torch.mul(flat, x.shape[axis]), _counted(place, x.shape[axis]))
    rows = torch.reshape(x, [-1, *x.shape[depth:]])
    changes = torch.reshape(updates, [-1, *x.shape[depth:]])
    places = torch.broadcast_to(flat.reshape([-1, *[1] * (rows.ndim - 1)]), changes.shape)
    result = torch.scatter_reduce(rows, 0, places, changes, _REDUCTIONS[reduction])
    return torch.reshape(result, x.shape)


@operator("ScatterElements", "Scatter")
def _scatter_elements(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = call.get("axis", 0)
    places = _counted(indices, x.shape[axis])
    reduction = call.get("reduction", "none")
    if reduction == "none":
        return torch.scatter(x, axis, places, updates)
    if reduction == "add":
        return torch.scatter_add(x, axis, places, updates)
    return torch.scatter_reduce(x, axis, places, updates, _REDUCTIONS[reduction])


@operator("OneHot")
def _one_hot(call: Call, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    size = int(depth.reshape(-1)[0].item())
    axis = call.get("axis", -1) % (indices.ndim + 1)
    positions = torch.tensor(range(size), dtype=torch.int64, device=indices.device)
    positions = positions.reshape([-1] + [1] * (indices.ndim - axis))
    hot = torch.eq(torch.unsqueeze(_counted(indices, size), axis), positions)
    return torch.where(hot, torch.select(values, 0, 1), torch.select(values, 0, 0))


@operator("Trilu")
def _trilu(call: Call, x: Tensor, diagonal: Tensor | None = None) -> Tensor:
    offset = 0 if diagonal is None else int(diagonal.item())
    return torch.triu(x, offset) if call.flag("upper", default=True) else torch.tril(x, offset)


@operator("NonZero")
def _non_zero(_: Call, x: Tensor) -> Tensor:
    return torch.t(torch.nonzero(x))


@operator("Compress")
def _compress(call: Call, x: Tensor, condition: Tensor) -> Tensor:
    axis = call.get("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    return torch.index_select(x, axis, torch.nonzero(condition).reshape(-1))


@operator("ReverseSequence")
def _reverse_sequence(call: Call, x: Tensor, lengths: Tensor) -> Tensor:
    """The order that the fed lengths ask for is a constant."""
    batch, time = call.get("batch_axis", 1), call.get("time_axis", 0)
    steps = x.shape[time]
    order: Any = [[*reversed(range(length)), *range(length, steps)] for length in lengths.tolist()]
    places = torch.tensor(order, device=x.device)
    if time < batch:
        places = places.t()
    places = places.reshape([*places.shape, *[1] * (x.ndim - 2)]).expand(x.shape)
    return torch.gather(x, time, places)
