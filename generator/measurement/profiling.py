"""The kernels that run for bricks and models: a pass of its own, after everything is timed.

A profiler adds to what it watches, so that nothing here is a latency. Which kernels run does not depend on what the
caches hold: a view is of plain repetition, and serves every cache state.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from ...bricks.graph.boundary import BOUNDARY
from ...bricks.suite.suite import Suite
from ...db.filter import Filter
from ...db.identity import Identity
from ...db.store import Store
from ...db.values import PARTS, Conditions, Stack, Subject
from ...errors import BackendError, WorkerError
from ..backends.base import Backend
from ..progress import Progress, ProgressCallback, Stage
from ..worker.client import Timeouts
from ..worker.replies import Profiled
from ..worker.requests import Profile
from ..worker.standby import Standby
from .item import Item
from .launch import launch
from .settings import MeasurementSettings
from .subjects import inspect_bricks

__all__ = ["EXECUTIONS", "PROFILED_CACHE", "ProfileFailure", "ProfileReport", "take_views"]

EXECUTIONS = 5
"""Profiled executions of each network; times are medians over them."""

PROFILED_CACHE = "hot"
"""The cache state under which views are stored."""


@dataclass(frozen=True, slots=True)
class ProfileFailure:
    """A brick or model whose kernels could not be recorded; its measurement stands.

    Attributes:
        label: A brick's key, or a model's name.
        variant: The algorithm; empty for none.
        reason: Why.
    """

    label: str
    variant: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """What a pass did.

    Attributes:
        taken: Views stored by it.
        known: Of what was measured, views that were stored already.
        failures: What could not be profiled.
    """

    taken: int
    known: int
    failures: tuple[ProfileFailure, ...]


def take_views(
    items: Iterable[Item],
    *,
    suite: Suite | None,
    store: Store,
    settings: MeasurementSettings,
    backend: Backend,
    system: str,
    stack: Stack,
    memory_bytes: int,
    again: bool = False,
    since: datetime | None = None,
    progress: ProgressCallback | None = None,
) -> ProfileReport:
    """Profile, in a worker and one by one, what has no view yet, and store each view as it comes.

    An item that ends the worker costs itself alone: the next one has a fresh worker.

    Args:
        items: What is measured, in any cache state; a part of a brick is no way to run it and is left out.
        suite: The bricks among them; None where there are none.
        store: Open for writing; it holds the system and the stack.
        settings: How the items were measured.
        backend: The runtime.
        system: Key of this system.
        stack: What it runs here.
        memory_bytes: Limit of the worker.
        again: Profile also what has a view.
        since: Of that only what was profiled before this time.
        progress: Called before each item.

    Raises:
        StoreError: The database cannot be written.
    """
    measured = settings.conditions
    place = Conditions(threads=measured.threads, cache=PROFILED_CACHE, dtype=measured.dtype)
    wanted: dict[Identity, Item] = {}
    for item in items:
        if item.variant not in {*PARTS, *BOUNDARY}:
            identity = Identity(item.subject, item.key, system, stack.key, place, item.variant)
            wanted.setdefault(identity, item)
    known: Collection[Identity] = ()
    if not again or since is not None:
        since_us = round(since.timestamp() * 1e6) if again and since is not None else None
        stored = Filter(system=system, stack=stack.key, conditions=place, variant=None, since_us=since_us)
        known = wanted.keys() & store.kernels(stored)
    left = {identity: item for identity, item in wanted.items() if identity not in known}
    failures: list[ProfileFailure] = []
    if suite is not None:
        broken = inspect_bricks(suite, [item for item in left.values() if item.subject is Subject.BRICK])
        failures += [ProfileFailure(key, "", reason) for key, reason in broken.items()]
        left = {identity: item for identity, item in left.items() if item.key not in broken}
    profiled, begun = 0, time.monotonic()
    start = partial(launch, settings, backend, stack, memory_bytes=memory_bytes, together=False)
    with Standby(start) as standby:
        for number, (identity, item) in enumerate(left.items()):
            if progress is not None:
                progress(Progress(Stage.PROFILE, number, len(left), item.label, time.monotonic() - begun))
            try:
                view = standby.worker.ask(_request(item, settings), Profiled, _timeout_s(item, settings)).view
            except (BackendError, WorkerError) as error:
                label = item.key if item.subject is Subject.BRICK else item.label
                failures.append(ProfileFailure(label, item.variant, str(error)))
                continue
            store.put_kernels(identity, view)
            profiled += 1
    return ProfileReport(profiled, len(known), tuple(failures))


def _request(item: Item, settings: MeasurementSettings) -> Profile:
    return Profile(
        path=str(item.path),
        synthetic=item.synthetic,
        executions=EXECUTIONS,
        overrides=item.overrides,
        inputs=item.inputs,
        seed=settings.seed,
        as_is=item.as_is,
        variant=item.variant,
    )


def _timeout_s(item: Item, settings: MeasurementSettings) -> float:
    """As for loading and measuring it; a profiler slows short operators down, but not by more than this."""
    running_s = 4 * (EXECUTIONS + 1) * item.run_ns / 1e9
    return Timeouts.loading(item.size_bytes, bound_s=settings.item_timeout_s) + running_s
