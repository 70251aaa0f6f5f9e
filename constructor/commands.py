"""The commands that would measure what an estimate misses."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping

from ..bricks.footprint import is_level
from ..db import Stack, Store
from ..errors import DlbricksError
from ..models import ModelSource
from .selection import MODEL, Choice, Query

__all__ = ["Commands", "default_options"]

_AS_GIVEN = "float32"
"""The precision that every backend has, and the only one that executed graphs are measured in."""


class Commands:
    """Commands that decompose a model as it was decomposed here, and measure its bricks where they are missing.

    Args:
        store: The database that misses them.
        choice: The combination that misses them; None where nothing is stored yet.
        query: What the caller asked for, for the options of a first run.
        granularity: Most layers in a sequence.
        overlap: Sequences begin at every layer.
        connected: Sequences may be connected windows.
        graph: Which graph is decomposed.
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
        graph: str = "source",
    ) -> None:
        self._graph = graph
        self._cut = ["-g", str(granularity), *(["--overlap"] if overlap else [])]
        self._cut += ["--connected"] if connected else []
        self._granularity = granularity
        self._dtype = query.dtype if choice is None else choice.conditions.dtype
        self._store = store
        self._choice = choice
        self._query = query
        self._database = str(store.place)

    def measure(self, source: ModelSource, *, graph: str | None = None, cache: str | None = None) -> str | None:
        """Decompose the model and measure what is not stored; None where nothing here measures it in this precision.

        Args:
            source: The model.
            graph: Another graph than the one that was decomposed.
            cache: Another cache state than the one that was asked for; all levels are one, ``model``.
        """
        kind = graph or self._graph
        if not self._measurable(kind):
            return None
        model = _words(source)
        # Another graph is compared layer by layer.
        granularity, cut = (self._granularity, self._cut) if kind == self._graph else (1, ["-g", "1"])
        model += cut
        if kind != "source":
            model += ["--graph", kind, *self._stack_of_graph()]
        # A name of its own: ``generate`` replaces a suite, and the user's own must not be the one.
        digest = hashlib.sha256("\0".join(model).encode("utf-8", "surrogateescape")).hexdigest()
        suite = f"suite-g{granularity}-{digest[:8]}"
        generate = shlex.join(["dlbricks", "generate", *model, "-o", suite])
        run = ["dlbricks", "run", suite, *_options(self._store, self._choice, self._query, cache)]
        return f"{generate} && {shlex.join([*run, '--db', self._database])}"

    def truth(self, source: ModelSource) -> str | None:
        """Measure the whole model; None where nothing here measures it in this precision."""
        if not self._measurable("source"):
            return None
        options = _options(self._store, self._choice, self._query, None)
        return shlex.join(["dlbricks", "measure", *_words(source), *options, "--db", self._database])

    def examine(self, source: ModelSource) -> str | None:
        """Measure what the model's own values cost; None where nothing here measures it in this precision."""
        if not self._measurable("source"):
            return None
        options = _options(self._store, self._choice, self._query, "hot")
        return shlex.join(["dlbricks", "measure", *_words(source), "--data", *options, "--db", self._database])

    def _measurable(self, graph: str) -> bool:
        """Whether bricks of a graph can be measured in the precision that was asked for."""
        if self._dtype in {None, _AS_GIVEN}:
            return True
        backend = self._query.backend if self._choice is None else self._choice.stack.backend
        return graph != "runtime" and self._dtype in _dtypes(backend or "onnxruntime")

    def ceilings(self) -> str:
        """Measure what the machine does at most; only a machine itself can."""
        words = ["dlbricks", "system", "--ceilings"]
        if self._choice is not None:
            words += ["--threads", str(self._choice.conditions.threads)]
        return shlex.join([*words, "--db", self._database])

    def _stack_of_graph(self) -> list[str]:
        """Options that name the runtime whose graphs are cut, where it is not the default."""
        words = _options(self._store, self._choice, self._query, None)
        pairs = list(zip(words[::2], words[1::2], strict=True))
        told = [
            pair
            for pair in pairs
            if pair[0] in {"--backend", "--device", "--option"}
            and pair not in {("--backend", "onnxruntime"), ("--device", "cpu")}
        ]
        return [word for pair in told for word in pair]

    def again(self, source: ModelSource) -> str | None:
        """The same, trying again what failed."""
        command = self.measure(source)
        return None if command is None else f"{command} --again failed"


def _words(source: ModelSource) -> list[str]:
    """A model as it was asked for."""
    words = [source.zoo or str(source.path or source.name)]
    if source.batch is not None:
        words += ["--batch", str(source.batch)]
    for name, size in source.dims:
        words += ["--dim", f"{name}={size}"]
    return words


def _options(store: Store, choice: Choice | None, query: Query, cache: str | None) -> list[str]:
    state = cache or (query.cache if choice is None else choice.conditions.cache)
    state = MODEL if state is not None and is_level(state) else state
    if choice is None:
        dtype = None if query.dtype == _AS_GIVEN else query.dtype
        measured = [("--threads", query.threads), ("--cache", state), ("--dtype", dtype)]
        if query.stack is not None:
            found = [stack for key, stack in store.stacks().items() if key.startswith(query.stack)]
            if len(found) == 1:
                return [*_stack_options(found[0]), *_given(measured)]
        return _given([("--backend", query.backend), ("--device", query.device), *measured])
    threads, dtype = choice.conditions.threads, choice.conditions.dtype
    measured = [("--threads", threads), ("--cache", state), ("--dtype", None if dtype == _AS_GIVEN else dtype)]
    return [*_stack_options(choice.stack), *_given(measured)]


def _given(options: Iterable[tuple[str, object]]) -> list[str]:
    return [word for name, value in options if value is not None for word in (name, str(value))]


def _stack_options(stack: Stack) -> list[str]:
    words = ["--backend", stack.backend, "--device", stack.device]
    defaults = default_options(stack.backend, stack.device)
    for name, value in stack.options:
        if defaults.get(name) != value:
            words += ["--option", f"{name}={value}"]
    return words


def _dtypes(backend: str) -> tuple[str, ...]:
    """Precisions of a backend; none where it is not known here."""
    from ..generator.backends.registry import get

    try:
        return get(backend).dtypes
    except DlbricksError:
        return ()


def default_options(backend: str, device: str) -> Mapping[str, str]:
    """Effective options of a backend when none is given; empty where it is not installed here."""
    from ..generator.backends.registry import get

    try:
        return get(backend).resolve(device, {})
    except DlbricksError:
        return {}  # every option is then spelled out
