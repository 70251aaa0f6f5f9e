"""Start a worker and check its stack, and record a run in the database."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

from ...db.store import Store
from ...db.values import LABEL, Run, Runtime, Stack, System
from ...errors import UsageError, WorkerError
from ...version import __version__
from ..backends.registry import get
from ..machine.software import software_state
from ..machine.system import machine_state
from ..worker.client import Worker, start_worker
from ..worker.messages import Place
from .settings import MeasurementSettings, Order

NODE_VARIABLE = "DLBRICKS_NODE"
"""Environment variable with the owner's name of this machine. The host name is never used instead."""

SOFTWARE = "software"
"""Name under which a run stores its software, in the machine's state before the run (``software_state``)."""

PRIORITY = "priority"
"""Name under which a run stores the priority of its workers while they timed, in the machine's state after the run."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
"""Allowed names: they are also valid for a PostgreSQL role, a folder and a column of a table."""


def start_checked(place: Place, stack: Stack, memory_bytes: int) -> Worker:
    """Start a worker at a place, and check its stack.

    Args:
        place: Place of the worker.
        stack: The stack at that place as this process sees it.
        memory_bytes: Memory limit of the worker.

    Raises:
        WorkerError: The worker cannot be started, or runs another stack.
    """
    worker = start_worker(place, memory_bytes)
    greeting = worker.greeting
    if greeting is None or greeting.stack != stack or greeting.threads != place.threads:
        worker.kill()
        raise WorkerError(
            f"the worker of backend {place.runtime.backend} runs another stack than this process sees",
            remedy="its environment was changed while it ran; start again",
        )
    return worker


def stack_of(runtime: Runtime) -> Stack:
    """Return the stack of a runtime on this machine, with the effective value of every option.

    Raises:
        UsageError: The backend or device does not exist, or an option is wrong.
        BackendUnavailable: The runtime is not installed.
    """
    return get(runtime.backend).stack(runtime.device, dict(runtime.options))


def begin_run(  # noqa: PLR0917
    store: Store,
    settings: MeasurementSettings,
    order: Order,
    system: System,
    stack: Stack,
    more: Mapping[str, object] | None = None,
) -> Run:
    """Store the provenance of a run's measurements, before the first measurement.

    Raises:
        UsageError: A name has other characters than letters, digits, dots, dashes and underscores, or too many.
    """
    label = _checked("label", order.label)
    run = Run(
        id=str(uuid.uuid4()),
        started=_now(),
        tool=__version__,
        command=order.command,
        suite=None if order.suite is None else order.suite.hash,
        system=store.put_system(system),
        stack=store.put_stack(stack),
        options={**settings.record(), **(more or {}), **({LABEL: label} if label else {})},
        before=state_before(stack),
        node=_checked("node", os.environ.get(NODE_VARIABLE, "") if order.node is None else order.node),
        campaign=_checked("campaign", order.campaign),
    )
    store.begin_run(run)
    return run


def state_before(stack: Stack) -> Mapping[str, object]:
    """Return the state of this machine before a run, with the software around a stack."""
    return {**machine_state(), SOFTWARE: software_state(tuple(name for name, _ in stack.versions))}


def _checked(what: str, name: str) -> str:
    """Return the name of a node, campaign or label, which may be empty, after checking it."""
    if name and not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a {what}",
            remedy="use up to 63 letters, digits, dots, dashes and underscores, a letter or digit first",
        )
    return name


def end_run(store: Store, run: Run, *, more: Mapping[str, object] | None = None) -> None:
    """Store the machine's state after a run, and further findings about the run."""
    store.end_run(run.id, after={**machine_state(), **(more or {})}, finished=_now())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
