"""Starting what measures: a worker that runs what this process believes it runs, a recorded run."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime

from ...db.store import Store
from ...db.values import Run, Stack, System
from ...errors import UsageError, WorkerError
from ...version import __version__
from ..backends.base import Backend
from ..machine.software import software_state
from ..machine.system import machine_state
from ..worker.client import Worker
from ..worker.standby import start_worker
from .settings import MeasurementSettings

__all__ = ["NODE_VARIABLE", "SOFTWARE", "begin_run", "end_run", "launch"]

NODE_VARIABLE = "DLBRICKS_NODE"
"""Environment variable: what the owner calls this machine. Its host name is never taken by itself."""

SOFTWARE = "software"
"""Under this name a run stores what it ran with, beside the machine's state before (``software_state``)."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
"""What a role of PostgreSQL, a folder and a column of a table can be called as well."""


def launch(
    settings: MeasurementSettings, backend: Backend, stack: Stack, *, memory_bytes: int, together: bool
) -> Worker:
    """Start a worker, and make sure of its stack.

    Args:
        settings: Of the run.
        backend: The runtime.
        stack: What it runs here.
        memory_bytes: Limit of the worker.
        together: Whether its networks are visited in turn: they share threads.

    Raises:
        WorkerError: It cannot be started, or runs another stack.
    """
    worker = start_worker(
        settings.backend,
        device=settings.device,
        options=settings.options,
        threads=settings.threads,
        memory_bytes=memory_bytes,
        together=together,
        dtype=settings.dtype,
        command=backend.command(),
    )
    greeting = worker.greeting
    if greeting is None or greeting.stack != stack or greeting.threads != settings.conditions.threads:
        worker.kill()
        raise WorkerError(
            f"the worker of backend {settings.backend} runs another stack than this process sees",
            remedy="its environment was changed while it ran; start again",
        )
    return worker


def begin_run(
    store: Store,
    settings: MeasurementSettings,
    *,
    command: str,
    system: System,
    stack: Stack,
    suite: str | None = None,
    more: dict[str, object] | None = None,
    node: str | None = None,
    campaign: str = "",
) -> Run:
    """Store where the measurements of a run come from, before the first of them.

    Args:
        store: Open for writing.
        settings: Recorded as its options.
        command: ``run`` or ``measure``.
        system: This machine.
        stack: What it runs.
        suite: Hash of the suite, where there is one.
        more: Further options to record.
        node: What the owner calls this machine; None: ``$DLBRICKS_NODE``, else nothing.
        campaign: What the run is part of.

    Raises:
        UsageError: A name has other characters than letters, digits, dots, dashes and underscores, or too many.
    """
    run = Run(
        id=str(uuid.uuid4()),
        started=_now(),
        tool=__version__,
        command=command,
        suite=suite,
        system=store.put_system(system),
        stack=store.put_stack(stack),
        options={**asdict(settings), "options": dict(settings.options), **(more or {})},
        before={**machine_state(), SOFTWARE: software_state(tuple(name for name, _ in stack.versions))},
        node=_checked("node", os.environ.get(NODE_VARIABLE, "") if node is None else node),
        campaign=_checked("campaign", campaign),
    )
    store.begin_run(run)
    return run


def _checked(what: str, name: str) -> str:
    """The name of a node or campaign, or nothing."""
    if name and not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a {what}",
            remedy="use up to 63 letters, digits, dots, dashes and underscores, a letter or digit first",
        )
    return name


def end_run(store: Store, run: Run, *, more: Mapping[str, object] | None = None) -> None:
    """Store the machine's state after a run, and what else was found about it."""
    store.end_run(run.id, after={**machine_state(), **(more or {})}, finished=_now())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
