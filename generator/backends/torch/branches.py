"""A network whose independent branches run side by side on a GPU: a stream for each, forks and joins by events.

What a critical path promises is what a GPU could gain if branches never shared it. This runs them in streams of their
own, which as one CUDA graph are its branches, so that the promise can be measured.
"""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

__all__ = ["MOST_LANES", "CudaStreams", "Place", "Streams", "branched", "lanes"]

MOST_LANES = 8
"""Streams at most: the branches of one module of a CNN are fewer."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation runs.

    Attributes:
        lane: Number of its stream; 0 is that of the caller.
        waits: Places, in the order of operations, of those in other lanes that it waits for.
    """

    lane: int
    waits: tuple[int, ...]


def lanes(reads: Sequence[Sequence[int]], most: int = MOST_LANES) -> list[Place]:
    """A lane for each operation: that of what it reads, if nothing else goes on there yet, else one that is free.

    Args:
        reads: Of each operation, in an order in which they can run, the places of those that it reads.
        most: Lanes at most.

    Returns:
        One place per operation. A chain stays in one lane.
    """
    left = [0] * len(reads)
    for before in reads:
        for place in {*before}:
            left[place] += 1
    tails: list[int | None] = [None]
    found: list[Place] = []
    for place, before in enumerate(reads):
        for one in {*before}:
            left[one] -= 1
        own = next((found[one].lane for one in before if tails[found[one].lane] == one), None)
        lane = _free(tails, left, most) if own is None else own
        waits = tuple(sorted({one for one in before if found[one].lane != lane}))
        tails[lane] = place
        found.append(Place(lane, waits))
    return found


def _free(tails: list[int | None], left: Sequence[int], most: int) -> int:
    """A lane whose last operation nobody waits for any more; else a new one, or that which was used least lately."""
    for lane, tail in enumerate(tails):
        if tail is None or not left[tail]:
            return lane
    if len(tails) < most:
        tails.append(None)
        return len(tails) - 1
    return min(range(len(tails)), key=lambda lane: tails[lane] or 0)


class Streams(Protocol):
    """The streams of a device by the numbers of their lanes."""

    def entered(self, lane: int) -> AbstractContextManager[Any]:
        """What is called inside goes to a lane."""

    def mark(self, lane: int) -> Any:
        """An event at the present end of a lane."""

    def wait(self, lane: int, event: Any) -> None:
        """Have a lane wait for an event."""


class CudaStreams:
    """Streams of PyTorch; lane 0 is the current one."""

    def __init__(self) -> None:
        self._others = [torch.cuda.Stream() for _ in range(MOST_LANES - 1)]

    def entered(self, lane: int) -> AbstractContextManager[Any]:
        """See ``Streams``."""
        found: AbstractContextManager[Any] = torch.cuda.stream(self._stream(lane))
        return found

    def mark(self, lane: int) -> Any:
        """See ``Streams``."""
        return self._stream(lane).record_event()

    def wait(self, lane: int, event: Any) -> None:
        """See ``Streams``."""
        self._stream(lane).wait_event(event)

    def _stream(self, lane: int) -> Any:
        return self._others[lane - 1] if lane else torch.cuda.current_stream()


def branched(module: fx.GraphModule, streams: Streams) -> Callable[..., tuple[Any, ...]]:
    """The call of a module, its branches in streams of their own.

    All values live until the call returns: what one stream reads no other one may write over.
    """
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    numbers = {node: place for place, node in enumerate(nodes)}
    reads = [[numbers[each] for each in node.all_input_nodes if each in numbers] for node in nodes]
    places = lanes(reads)
    awaited = {one for place in places for one in place.waits}
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    constants = {node: getattr(module, node.target) for node in module.graph.nodes if node.op == "get_attr"}
    (end,) = (node for node in module.graph.nodes if node.op == "output")

    def call(*given: torch.Tensor) -> tuple[Any, ...]:
        values: dict[fx.Node, Any] = {**constants, **dict(zip(inputs, given, strict=True))}
        marks: dict[int, Any] = {}
        forked = {0}
        begin = streams.mark(0)
        for number, (node, place) in enumerate(zip(nodes, places, strict=True)):
            if place.lane not in forked:
                forked.add(place.lane)
                streams.wait(place.lane, begin)
            for one in place.waits:
                streams.wait(place.lane, marks[one])
            with streams.entered(place.lane):
                values[node] = node.target(*_given(node.args, values), **_given(node.kwargs, values))
            if number in awaited:
                marks[number] = streams.mark(place.lane)
        for lane in forked - {0}:
            streams.wait(0, streams.mark(lane))
        found: tuple[Any, ...] = _given(end.args[0], values)
        return found

    return call


def _given(arguments: Any, values: Mapping[fx.Node, Any]) -> Any:
    return fx.node.map_arg(arguments, lambda node: values[node])
