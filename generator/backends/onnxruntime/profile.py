"""ONNX Runtime's own profile: what it says of each node of each execution."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ....errors import BackendError

__all__ = ["KERNEL", "PREFIX", "node_times_us", "read_profile", "runs"]

KERNEL = "_kernel_time"
"""What the profile appends to the name of a node for the time of its kernel."""

PREFIX = "profile"
"""How the names of profiles begin."""

_MOST_EVENTS = 1_000_000
"""The profiler drops what comes after so many events, without a word."""

Event = Mapping[str, Any]


def read_profile(folder: Path) -> list[Event]:
    """The events of the only profile in a folder; it is complete once its session is closed.

    Raises:
        BackendError: There is none, or it is full.
    """
    files = sorted(folder.glob(f"{PREFIX}*.json"))
    if len(files) != 1:
        raise BackendError(f"ONNX Runtime wrote {len(files)} profiles instead of one")
    events: list[Event] = json.loads(files[0].read_text())
    if len(events) >= _MOST_EVENTS:
        raise BackendError(f"ONNX Runtime's profile is full after {len(events)} events")
    return events


def runs(events: Sequence[Event]) -> list[list[Event]]:
    """The kernels of each execution, in the order in which they started."""
    spans = sorted((one["ts"], one["ts"] + one["dur"]) for one in events if one.get("name") == "model_run")
    kernels = sorted(
        (one for one in events if one.get("cat") == "Node" and one["name"].endswith(KERNEL)),
        key=lambda one: int(one["ts"]),
    )
    return [[kernel for kernel in kernels if begin <= kernel["ts"] <= end] for begin, end in spans]


def node_times_us(events: Sequence[Event]) -> list[dict[str, int]]:
    """Per execution the time of each node by its name, in whole microseconds, as the profile has them."""
    return [{kernel["name"].removesuffix(KERNEL): int(kernel["dur"]) for kernel in run} for run in runs(events)]
