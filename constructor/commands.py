"""The commands that would measure what an estimate misses."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cached_property

from ..db import Store
from ..errors import DlbricksError
from ..models import ModelSource
from .selection import Choice, Query

__all__ = ["Commands"]

_SUITE = "suite"


class Commands:
    """Commands that decompose a model as it was decomposed here, and measure its bricks where they are missing.

    Args:
        store: The database that misses them.
        choice: The combination that misses them; None where nothing is stored yet.
        query: What the caller asked for, for the options of a first run.
        granularity: Most layers in a sequence.
        overlap: Sequences begin at every layer.
        connected: Sequences may be connected windows.
    """

    def __init__(
        self,
        store: Store,
        choice: Choice | None,
        query: Query,
        *,
        granularity: int,
        overlap: bool = False,
        connected: bool = False,
    ) -> None:
        cut = ["-g", str(granularity), *(["--overlap"] if overlap else []), *(["--connected"] if connected else [])]
        self._generate = [*cut, "-o", _SUITE]
        self._choice = choice
        self._query = query
        self._database = str(store.place)

    @cached_property
    def _run(self) -> list[str]:
        return ["dlbricks", "run", _SUITE, *_options(self._choice, self._query), "--db", self._database]

    def measure(self, source: ModelSource) -> str:
        """Decompose the model and measure what is not stored."""
        model = [source.zoo or str(source.path or source.name)]
        if source.batch is not None:
            model += ["--batch", str(source.batch)]
        for name, size in source.dims:
            model += ["--dim", f"{name}={size}"]
        return f"{shlex.join(['dlbricks', 'generate', *model, *self._generate])} && {shlex.join(self._run)}"

    def again(self, source: ModelSource) -> str:
        """The same, trying again what failed."""
        return f"{self.measure(source)} --again failed"


def _options(choice: Choice | None, query: Query) -> list[str]:
    if choice is None:
        asked = (
            *(("--backend", query.backend), ("--device", query.device)),
            *(("--threads", query.threads), ("--cache", query.cache)),
        )
        return [word for name, value in asked if value is not None for word in (name, str(value))]
    stack, conditions = choice.stack, choice.conditions
    words = ["--backend", stack.backend, "--device", stack.device]
    words += ["--threads", str(conditions.threads), "--cache", conditions.cache]
    defaults = _defaults(stack.backend, stack.device)
    for name, value in stack.options:
        if defaults.get(name) != value:
            words += ["--option", f"{name}={value}"]
    return words


def _defaults(backend: str, device: str) -> Mapping[str, str]:
    """Effective options of a backend when none is given; empty where it is not installed here."""
    from ..generator.backends.registry import get

    try:
        return get(backend).resolve(device, {})
    except DlbricksError:
        return {}  # every option is then spelled out
