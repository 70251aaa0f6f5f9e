"""The commands that would measure what an estimate misses."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...bricks.graph.footprint import is_level
from ...constructor.choice import MODEL, Choice
from ...db import Stack, Store
from ...db.values import NATIVE
from ...errors import DlbricksError
from ...generator.backends.base import Backend, FusingBackend, GraphBackend
from ...generator.backends.registry import get
from ...generator.backends.requirements import dtypes_on, in_turn, walks
from ...generator.decomposition.cutter import Cut
from ...models import ModelSource
from .runtime import executes_as_written
from .selection import Query

__all__ = ["Commands", "default_options"]

_DEFAULT_BACKEND = "onnxruntime"


class Commands:
    """Commands that decompose a model as it was decomposed here, and measure its bricks where they are missing.

    Args:
        store: The database that misses them.
        choice: The combination that misses them; None where nothing is stored yet.
        query: What the caller asked for, for the options of a first run.
        cut: How the model was decomposed.
    """

    def __init__(self, store: Store, choice: Choice | None, query: Query, cut: Cut) -> None:
        self._graph = cut.graph
        self._cut = ["-g", str(cut.granularity), *(["--overlap"] if cut.overlap else [])]
        self._cut += ["--connected"] if cut.connected else []
        self._granularity = cut.granularity
        self._dtype = query.dtype if choice is None else choice.conditions.dtype
        self._store = store
        self._choice = choice
        self._query = query
        self._database = str(store.place)

    def measure(
        self,
        source: ModelSource,
        *,
        graph: str | None = None,
        cache: str | None = None,
        algorithms: Sequence[str] = (),
    ) -> str | None:
        """Decompose the model and measure what is not stored; None where nothing here measures it.

        A runtime that cannot measure at reuse distances measures with hot caches instead, unless they are what it is
        about.

        Args:
            source: The model.
            graph: Another graph than the one that was decomposed.
            cache: Another cache state than the one that was asked for; all levels are one, ``model``.
            algorithms: By which bricks are measured as well.
        """
        kind = graph or self._graph
        if not self._measurable(kind) or (cache is not None and _at_distances(cache) and not self._in_turn()):
            return None
        model = _words(source)
        # Another graph is compared layer by layer.
        granularity, cut = (self._granularity, self._cut) if kind == self._graph else (1, ["-g", "1"])
        model += cut
        if kind == "runtime" and self._executes_as_written():
            kind = "source"
        if kind != "source":
            model += ["--graph", kind, *self._stack_of_graph()]
        # A name of its own: ``generate`` replaces a suite, and the user's own must not be the one.
        digest = hashlib.sha256("\0".join(model).encode("utf-8", "surrogateescape")).hexdigest()
        suite = f"suite-g{granularity}-{digest[:8]}"
        generate = shlex.join(["dlbricks", "generate", *model, "-o", suite])
        run = ["dlbricks", "run", suite, *self._options(cache)]
        run += [word for name in algorithms for word in ("--algorithm", name)]
        return f"{generate} && {shlex.join([*run, '--db', self._database])}"

    def truth(self, source: ModelSource) -> str | None:
        """Measure the whole model; None where nothing here measures it in this precision."""
        if not self._measurable("source"):
            return None
        return shlex.join(["dlbricks", "measure", *_words(source), *self._options(), "--db", self._database])

    def examine(self, source: ModelSource) -> str | None:
        """Measure what the model's own values cost; None where nothing here does: the runtime must run its layers."""
        if not self._measurable("source") or not self._walks():
            return None
        options = self._options("hot")
        return shlex.join(["dlbricks", "measure", *_words(source), "--data", *options, "--db", self._database])

    def _measurable(self, graph: str) -> bool:
        """Whether bricks of a graph can be measured in the precision that was asked for."""
        stack = self._named()
        backend = _known(stack.backend)
        given = self._dtype in {None, NATIVE}
        cuts = isinstance(backend, FusingBackend if graph == self._graph == "fused" else GraphBackend)
        if graph != "source" and backend is not None and not cuts:
            return graph == "runtime" and given and self._executes_as_written()
        return given or (graph != "runtime" and backend is not None and self._dtype in dtypes_on(backend, stack.device))

    def _executes_as_written(self) -> bool:
        return executes_as_written(self._named())

    def _in_turn(self) -> bool:
        """Whether the runtime can run the bricks of a model in turn; one that is not known here may."""
        return self._can(in_turn)

    def _walks(self) -> bool:
        """Whether it can run the layers of a model one by one; one that is not known here may."""
        return self._can(walks)

    def _can(self, able: Callable[[Backend, Mapping[str, str]], bool]) -> bool:
        stack = self._named()
        backend = _known(stack.backend)
        if backend is None or stack.device not in backend.devices:
            return True
        return able(backend, default_options(stack.backend, stack.device) | dict(stack.options))

    def _named(self) -> Stack:
        """The stack that commands name: that which is stored, or as it comes."""
        if self._choice is not None:
            return self._choice.stack
        asked = _asked_stack(self._store, self._query)
        return asked or Stack(self._query.backend or _DEFAULT_BACKEND, self._query.device or "cpu", ())

    def _options(self, cache: str | None = None) -> list[str]:
        """Options of a run: the stack, threads, cache state and precision.

        Args:
            cache: Another cache state than the one that was asked for.
        """
        conditions = self._query if self._choice is None else self._choice.conditions
        state = cache or conditions.cache
        if state is None or _at_distances(state):
            # ``model`` is what it is left alone.
            state = (None if state is None else MODEL) if self._in_turn() else "hot"
        dtype = None if conditions.dtype == NATIVE else conditions.dtype
        measured = _given([("--threads", conditions.threads), ("--cache", state), ("--dtype", dtype)])
        stack = _asked_stack(self._store, self._query) if self._choice is None else self._choice.stack
        if stack is not None:
            return [*_stack_options(stack), *measured]
        return [*_given([("--backend", self._query.backend), ("--device", self._query.device)]), *measured]

    def ceilings(self) -> str:
        """Measure what the machine does at most; only a machine itself can."""
        words = ["dlbricks", "system", "--ceilings"]
        if self._choice is not None:
            words += ["--threads", str(self._choice.conditions.threads)]
            dtype = self._choice.conditions.dtype
            words += [] if dtype == NATIVE else ["--dtype", dtype]
        return shlex.join([*words, "--db", self._database])

    def _stack_of_graph(self) -> list[str]:
        """Options that name the runtime whose graphs are cut, where it is not the default."""
        words = self._options()
        pairs = list(zip(words[::2], words[1::2], strict=True))
        named = [
            pair
            for pair in pairs
            if pair[0] in {"--backend", "--device", "--option"}
            and pair not in {("--backend", "onnxruntime"), ("--device", "cpu")}
        ]
        return [word for pair in named for word in pair]

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


def _asked_stack(store: Store, query: Query) -> Stack | None:
    """The stored stack that was asked for by its key."""
    if query.stack is None:
        return None
    found = [stack for key, stack in store.stacks().items() if key.startswith(query.stack)]
    return found[0] if len(found) == 1 else None


def _at_distances(state: str) -> bool:
    """Whether bricks are measured at reuse distances."""
    return state == MODEL or is_level(state)


def _given(options: Iterable[tuple[str, object]]) -> list[str]:
    return [word for name, value in options if value is not None for word in (name, str(value))]


def _stack_options(stack: Stack) -> list[str]:
    words = ["--backend", stack.backend, "--device", stack.device]
    defaults = default_options(stack.backend, stack.device)
    for name, value in stack.options:
        if defaults.get(name) != value:
            words += ["--option", f"{name}={value}"]
    return words


def _known(name: str) -> Backend | None:
    """A backend; None where it is not known here."""
    try:
        return get(name)
    except DlbricksError:
        return None


def default_options(backend: str, device: str) -> dict[str, str]:
    """Effective options of a backend when none is given; empty where it is not installed here."""
    try:
        return get(backend).resolve(device, {})
    except DlbricksError:
        return {}  # every option is then spelled out
