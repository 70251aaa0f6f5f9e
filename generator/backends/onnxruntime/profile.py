"""ONNX Runtime's own profile: what it says of each node of each execution."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import BackendError
from ..base import NodeTimes

__all__ = ["KERNEL", "PREFIX", "node_times", "read_profile", "runs"]

KERNEL = "_kernel_time"
"""What the profile appends to the name of a node for the time of its kernel."""

PREFIX = "profile"
"""How the names of profiles begin."""

_ARGUMENTS = ',"args" :'
"""What follows is of no interest to those who want times alone."""

_MOST_EVENTS = 1_000_000
"""The profiler drops what comes after so many events, without a word."""

Event = Mapping[str, Any]


def read_profile(folder: Path, *, lean: bool = False) -> list[Event]:
    """The events of the only profile in a folder; it is complete once its session is closed.

    Args:
        folder: Where it is.
        lean: Leave out the arguments of events: nine tenths of them, that take as long to read as a pack to run.

    Raises:
        BackendError: There is none, or it is full.
    """
    files = sorted(folder.glob(f"{PREFIX}*.json"))
    if len(files) != 1:
        raise BackendError(f"ONNX Runtime wrote {len(files)} profiles instead of one")
    text = files[0].read_text()
    events: list[Event] = _lean(text) if lean else json.loads(text)
    if len(events) >= _MOST_EVENTS:
        raise BackendError(f"ONNX Runtime's profile is full after {len(events)} events")
    return events


def _lean(text: str) -> list[Event]:
    """Events without their arguments, where there is one in a line; all of them where it is written otherwise."""
    try:
        lines = (line.partition(_ARGUMENTS)[0] for line in text.splitlines() if _ARGUMENTS in line)
        found = json.loads("[" + ",".join(f"{line}}}" for line in lines) + "]")
    except ValueError:
        found = []
    return found or list(json.loads(text))


def runs(events: Sequence[Event]) -> list[list[Event]]:
    """The kernels of each execution, in the order in which they started."""
    spans = sorted((one["ts"], one["ts"] + one["dur"]) for one in events if one.get("name") == "model_run")
    kernels = sorted(
        (one for one in events if one.get("cat") == "Node" and one["name"].endswith(KERNEL)),
        key=itemgetter("ts"),
    )
    begun = [kernel["ts"] for kernel in kernels]
    return [kernels[bisect_left(begun, begin) : bisect_right(begun, end)] for begin, end in spans]


def node_times(events: Sequence[Event], nodes: Collection[str]) -> NodeTimes:
    """The time of each node in each execution; the profile has whole microseconds.

    Args:
        events: Of the profile.
        nodes: Names of those that are reported: what runs in the body of one of them is part of its time.

    Raises:
        BackendError: An execution lacks a node that another one has.
    """
    found = [
        [kernel for kernel in execution if kernel["name"].removesuffix(KERNEL) in nodes] for execution in runs(events)
    ]
    names = [kernel["name"].removesuffix(KERNEL) for kernel in found[0]] if found else []
    places = {name: place for place, name in enumerate(names)}
    times = np.zeros((len(found), len(names)))
    for execution, row in zip(found, times, strict=True):
        if len(execution) != len(names):
            raise BackendError(f"ONNX Runtime's profile lost {abs(len(names) - len(execution))} nodes")
        for kernel in execution:
            row[places[kernel["name"].removesuffix(KERNEL)]] = 1e3 * kernel["dur"]
    return NodeTimes(tuple(names), times)
