"""What would measure what an estimate misses, on the stack that it is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from ...bricks.graph.footprint import is_level
from ...constructor.choice import MODEL, Choice
from ...constructor.remedies import Task, TaskKind
from ...db import Stack, Store
from ...db.values import NATIVE
from ...errors import DlbricksError
from ...generator.backends.base import Backend
from ...generator.backends.registry import get
from ...generator.decomposition.cut import Cut
from ...models import ModelSource
from .query import Query, executes_as_written

_DEFAULT_BACKEND = "onnxruntime"

_T = TypeVar("_T")


class Tasks:
    """Tasks that decompose a model as it was decomposed here, and measure its bricks where they are missing.

    Args:
        store: The database that misses them.
        choice: The combination that misses them; None where nothing is stored yet.
        query: What the caller asked for, for the options of a first run.
        cut: How the model was decomposed.
    """

    def __init__(self, store: Store, choice: Choice | None, query: Query, cut: Cut) -> None:
        self._cut = cut
        self._dtype = query.dtype if choice is None else choice.conditions.dtype
        self._store = store
        self._choice = choice
        self._query = query
        self._database = str(store.place)
        self._found: dict[object, Any] = {}

    def measure(
        self,
        source: ModelSource,
        *,
        graph: str | None = None,
        cache: str | None = None,
        algorithms: Sequence[str] = (),
        again: str | None = None,
    ) -> Task | None:
        """Decompose the model and measure what is not stored; None where nothing here measures it.

        A runtime that cannot measure at reuse distances measures with hot caches instead, unless they are what it is
        about.

        Args:
            source: The model.
            graph: Another graph than the one that was decomposed.
            cache: Another cache state than the one that was asked for; all levels are one, ``model``.
            algorithms: By which bricks are measured as well.
            again: What to measure although it is stored.
        """
        kind = graph or self._cut.graph
        if not self._measurable(kind) or (cache is not None and _at_distances(cache) and not self._in_turn()):
            return None
        # Another graph is compared layer by layer.
        cut = self._cut if kind == self._cut.graph else Cut(1)
        return replace(
            self._task(TaskKind.BRICKS, source, cache),
            granularity=cut.granularity,
            overlap=cut.overlap,
            connected=cut.connected,
            graph="source" if kind == "runtime" and self._executes_as_written() else kind,
            algorithms=tuple(algorithms),
            again=again,
        )

    def truth(self, source: ModelSource) -> Task | None:
        """Measure the whole model; None where nothing here measures it in this precision."""
        return self._task(TaskKind.MODEL, source) if self._measurable("source") else None

    def examine(self, source: ModelSource) -> Task | None:
        """Measure what the model's own values cost; None where nothing here does: the runtime must run its layers."""
        return self._task(TaskKind.DATA, source, "hot") if self._measurable("source") and self._walks() else None

    def ceilings(self) -> Task:
        """Measure what the machine does at most; only a machine itself can."""
        task = Task(TaskKind.CEILINGS, database=self._database)
        if self._choice is None:
            return task
        return replace(task, threads=self._choice.conditions.threads, dtype=_named_dtype(self._choice.conditions.dtype))

    def _once(self, what: object, find: Callable[[], _T]) -> _T:
        """What is the same for every model, found for the first."""
        if what not in self._found:
            self._found[what] = find()
        return cast("_T", self._found[what])

    def _measurable(self, graph: str) -> bool:
        """Whether bricks of a graph can be measured in the precision that was asked for."""
        return self._once(("measurable", graph), lambda: self._can_measure(graph))

    def _can_measure(self, graph: str) -> bool:
        stack = self._named()
        backend = _known(stack.backend)
        given = self._dtype in {None, NATIVE}
        needed = Backend.fused_graph if graph == self._cut.graph == "fused" else Backend.executed_graph
        if graph != "source" and backend is not None and not backend.offers(needed):
            return graph == "runtime" and given and self._executes_as_written()
        return given or (graph != "runtime" and backend is not None and self._dtype in backend.dtypes_on(stack.device))

    def _executes_as_written(self) -> bool:
        return self._once("as written", lambda: executes_as_written(self._named()))

    def _in_turn(self) -> bool:
        """Whether the runtime can run the bricks of a model in turn; one that is not known here may."""
        return self._can("in turn", lambda backend, options: backend.in_turn(options))

    def _walks(self) -> bool:
        """Whether it can run the layers of a model one by one; one that is not known here may."""
        return self._can("walks", lambda backend, options: backend.walks(options))

    def _can(self, what: str, able: Callable[[Backend, Mapping[str, str]], bool]) -> bool:
        return self._once(what, lambda: self._is(able))

    def _is(self, able: Callable[[Backend, Mapping[str, str]], bool]) -> bool:
        stack = self._named()
        backend = _known(stack.backend)
        if backend is None or stack.device not in backend.devices:
            return True
        return able(backend, default_options(stack.backend, stack.device) | dict(stack.options))

    def _named(self) -> Stack:
        """The stack that tasks name: that which is stored, or as it comes."""
        if self._choice is not None:
            return self._choice.stack
        return self._stack() or Stack(self._query.backend or _DEFAULT_BACKEND, self._query.device or "cpu", ())

    def _stack(self) -> Stack | None:
        """The stack that was asked for, or is stored."""
        if self._choice is not None:
            return self._choice.stack
        return self._once("stack", lambda: _asked_stack(self._store, self._query))

    def _task(self, kind: TaskKind, source: ModelSource, cache: str | None = None) -> Task:
        """A task on this stack, with these threads, in this cache state and precision.

        Args:
            kind: What is called.
            source: The model.
            cache: Another cache state than the one that was asked for.
        """
        conditions = self._query if self._choice is None else self._choice.conditions
        state = cache or conditions.cache
        if state is None or _at_distances(state):
            # ``model`` is what it is left alone.
            state = (None if state is None else MODEL) if self._in_turn() else "hot"
        stack = self._stack()
        return Task(
            kind,
            source,
            self._database,
            backend=self._query.backend if stack is None else stack.backend,
            device=self._query.device if stack is None else stack.device,
            options=() if stack is None else self._once("options", lambda: _chosen_options(stack)),
            threads=conditions.threads,
            cache=state,
            dtype=_named_dtype(conditions.dtype),
        )


def _asked_stack(store: Store, query: Query) -> Stack | None:
    """The stored stack that was asked for by its key."""
    if query.stack is None:
        return None
    found = [stack for key, stack in store.stacks().items() if key.startswith(query.stack)]
    return found[0] if len(found) == 1 else None


def _at_distances(state: str) -> bool:
    """Whether bricks are measured at reuse distances."""
    return state == MODEL or is_level(state)


def _named_dtype(dtype: str | None) -> str | None:
    """A precision as it is asked for; None for that of the model itself."""
    return None if dtype == NATIVE else dtype


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


def _chosen_options(stack: Stack) -> tuple[tuple[str, str], ...]:
    """Options of a stack that are not as they come."""
    defaults = default_options(stack.backend, stack.device)
    return tuple((name, value) for name, value in stack.options if defaults.get(name) != value)
