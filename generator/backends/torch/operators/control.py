"""Branches and loops. Which way they go is seen in the values that are fed, which never change."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

from typing import Any

import torch

from .call import Call, Tensor
from .registry import operator

__all__: list[str] = []


@operator("If")
def _if(call: Call, condition: Tensor) -> Any:
    branch = call.attributes["then_branch" if bool(condition.item()) else "else_branch"]
    return tuple(call.body(branch, ()))


@operator("Loop")
def _loop(call: Call, trips: Tensor | None, condition: Tensor | None, *carried: Tensor) -> Any:
    """As many copies of the body as there are iterations."""
    state, scanned = list(carried), []
    going = condition is None or bool(condition.item())
    device = carried[0].device if carried else None
    step = 0
    while going and (trips is None or step < int(trips.item())):
        number = torch.tensor(step, dtype=torch.int64, device=device)
        again = torch.tensor(going, device=device)
        proceed, *results = call.body(call.attributes["body"], (number, again, *state))
        state, last = results[: len(state)], results[len(state) :]
        scanned.append(last)
        going = bool(proceed.item())
        step += 1
    if not scanned and len(call.wanted) > len(carried):
        raise call.refuse("that never runs but stacks results")
    return (*state, *(torch.stack(parts) for parts in zip(*scanned, strict=True)))
