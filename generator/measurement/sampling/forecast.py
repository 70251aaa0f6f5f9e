"""How long a run will take, before it starts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from ....db.values import Measurement
from ...worker.execution.rotor import copies_of
from ..item import Item
from .schedule import USUAL_PASSES
from .statistics import MIN_SAMPLES
from .stopping import Protocol, spent_ns

__all__ = ["WORKER_START_S", "forecast_s", "loading_s"]

WORKER_START_S = 0.6
"""Start of a worker: interpreter, runtime, reference network."""
_LOAD_S = 0.005
"""Loading of a small network in one process."""
_LOAD_S_PER_BYTE = 4e-10
"""Filling and packing weights."""
_COMMIT_S = 0.0005
"""One sample request beyond its samples: a commit and two lines of JSON."""
_NS_PER_MAC = 0.1
"""10 GMAC/s, a slow core."""


def loading_s(items: Collection[Item], known: Mapping[str, Measurement] | None = None) -> float:
    """Seconds to load the items once, in one worker.

    Args:
        items: What is to be loaded.
        known: Earlier measurements by key, wherever they were taken.
    """
    total = WORKER_START_S
    for item in items:
        earlier = (known or {}).get(item.key)
        if earlier is not None and earlier.load_ns is not None:
            total += (earlier.load_ns + (earlier.first_run_ns or 0)) / 1e9 + _LOAD_S / 2
        else:
            total += _LOAD_S + item.size_bytes * _LOAD_S_PER_BYTE
    return total


def forecast_s(items: Collection[Item], protocol: Protocol, known: Mapping[str, Measurement] | None = None) -> float:
    """Seconds to measure the items: workers, loading, samples and commits.

    Args:
        items: What is to be measured; blocks of an interrupted run count as done.
        protocol: How they are sampled.
        known: Earlier measurements by key, wherever they were taken.
    """
    if not items:
        return 0.0
    total = protocol.processes * loading_s(items, known)
    for item in items:
        if item.distance:
            total += _rotated_s(item, protocol, (known or {}).get(item.key))
            continue
        earlier = (known or {}).get(item.key)
        if earlier is not None:
            run_ns = earlier.median_ns * earlier.unroll
        else:
            run_ns = (item.macs or 0) * _NS_PER_MAC * max(1, item.unroll)
        left = max(1, protocol.blocks - len(item.blocks))
        minimum = (MIN_SAMPLES + left) * run_ns  # a warm-up per block
        total += max(protocol.item_budget_ns - spent_ns(item.blocks), minimum) / 1e9 + left * _COMMIT_S
    return total


def _rotated_s(item: Item, protocol: Protocol, earlier: Measurement | None) -> float:
    """Seconds of an item on rotations, over all processes: loading of its copies, and visits."""
    once_ns = earlier.median_ns if earlier is not None else max((item.macs or 0) * _NS_PER_MAC, 1.0)
    copies = copies_of(int(once_ns), item.size_bytes, item.distance) + 2  # the head, and its copy in the tail
    visit_ns = once_ns * copies
    left = max(1, protocol.blocks - len(item.blocks))
    passes = max(math.ceil(MIN_SAMPLES / protocol.blocks), min(USUAL_PASSES, protocol.item_budget_ns / left / visit_ns))
    copying_s = protocol.processes * (_LOAD_S + copies * item.size_bytes * _LOAD_S_PER_BYTE)
    return copying_s + left * ((passes + 1) * visit_ns / 1e9 + _COMMIT_S)
