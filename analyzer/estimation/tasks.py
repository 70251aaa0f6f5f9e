"""Tasks for the missing measurements of an estimate, on its stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from ...bricks.graph.footprint import is_level
from ...constructor.choice import MODEL, Choice, Query
from ...constructor.remedies import Task, TaskKind
from ...db import Stack, Store
from ...db.values import NATIVE
from ...errors import DlbricksError
from ...generator.backends.base import Backend
from ...generator.backends.registry import get
from ...generator.decomposition.cut import Cut
from ...models import ModelSource
from .query import executes_as_written

_DEFAULT_BACKEND = "onnxruntime"

_T = TypeVar("_T")


class Tasks:
    """Tasks that decompose a model with equal settings and measure its missing bricks.

    Args:
        store: The database.
        choice: The combination; None if nothing is stored.
        query: Requested properties, for the options of a first run.
        cut: Settings of the decomposition.
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
        """Decompose the model and measure its missing bricks; None if no runtime here can.

        A runtime that cannot measure at reuse distances measures with hot caches, unless a level was requested.

        Args:
            source: The model.
            graph: Graph to decompose, if not the estimate's.
            cache: Cache state, if not the requested one; ``model`` means all levels.
            algorithms: Algorithms to measure as well.
            again: Stored results to measure again.
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
        """Measure the whole model; None if no runtime here can in this precision."""
        return self._task(TaskKind.MODEL, source) if self._measurable("source") else None

    def proofs(self, source: ModelSource) -> Task:
        """Try every remedy of the model, from the stored results of this combination."""
        return self._task(TaskKind.PROOFS, source)

    def ceilings(self) -> Task:
        """Measure the ceilings; only possible on the machine itself."""
        task = Task(TaskKind.CEILINGS, database=self._database)
        if self._choice is None:
            return task
        return replace(task, threads=self._choice.conditions.threads, dtype=_named_dtype(self._choice.conditions.dtype))

    def _once(self, what: object, find: Callable[[], _T]) -> _T:
        """Return a value that is equal for all models, computed once."""
        if what not in self._found:
            self._found[what] = find()
        return cast("_T", self._found[what])

    def _measurable(self, graph: str) -> bool:
        """Return True if bricks of a graph can be measured in the requested precision."""
        return self._once(("measurable", graph), lambda: self._can_measure(graph))

    def _can_measure(self, graph: str) -> bool:
        stack = self._named()
        backend = _known(stack.backend)
        native = self._dtype in {None, NATIVE}
        needed = Backend.fused_graph if graph == self._cut.graph == "fused" else Backend.executed_graph
        if graph != "source" and backend is not None and not backend.offers(needed):
            return graph == "runtime" and native and self._executes_as_written()
        return native or (graph != "runtime" and backend is not None and self._dtype in backend.dtypes_on(stack.device))

    def _executes_as_written(self) -> bool:
        return self._once("as written", lambda: executes_as_written(self._named()))

    def _in_turn(self) -> bool:
        """Return True if the runtime can alternate between a model's bricks; an unknown runtime is assumed to."""
        return self._can("in turn", lambda backend, options: backend.in_turn(options))

    def _can(self, what: str, able: Callable[[Backend, Mapping[str, str]], bool]) -> bool:
        return self._once(what, lambda: self._is(able))

    def _is(self, able: Callable[[Backend, Mapping[str, str]], bool]) -> bool:
        stack = self._named()
        backend = _known(stack.backend)
        if backend is None or stack.device not in backend.devices:
            return True
        return able(backend, default_options(stack.backend, stack.device) | dict(stack.options))

    def _named(self) -> Stack:
        """Return the stack named in tasks: the stored one, or the default."""
        if self._choice is not None:
            return self._choice.stack
        return self._stack() or Stack(self._query.backend or _DEFAULT_BACKEND, self._query.device or "cpu", ())

    def _stack(self) -> Stack | None:
        """Return the requested or stored stack."""
        if self._choice is not None:
            return self._choice.stack
        return self._once("stack", lambda: _asked_stack(self._store, self._query))

    def _task(self, kind: TaskKind, source: ModelSource, cache: str | None = None) -> Task:
        """Return a task on this stack with these threads, cache state and precision.

        Args:
            kind: The function.
            source: The model.
            cache: Cache state, if not the requested one.
        """
        conditions = self._query if self._choice is None else self._choice.conditions
        state = cache or conditions.cache
        if state is None or _at_distances(state):
            # ``model`` is the default.
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
    """Return the stored stack with the requested key."""
    if query.stack is None:
        return None
    stacks = [stack for key, stack in store.stacks().items() if key.startswith(query.stack)]
    return stacks[0] if len(stacks) == 1 else None


def _at_distances(state: str) -> bool:
    """Return True if bricks are measured at reuse distances."""
    return state == MODEL or is_level(state)


def _named_dtype(dtype: str | None) -> str | None:
    """Return a precision as an option; None for the model's own."""
    return None if dtype == NATIVE else dtype


def _known(name: str) -> Backend | None:
    """Return a backend; None if unknown here."""
    try:
        return get(name)
    except DlbricksError:
        return None


def default_options(backend: str, device: str) -> dict[str, str]:
    """Return the default options of a backend; empty if it is not installed here."""
    try:
        return get(backend).resolve(device, {})
    except DlbricksError:
        return {}  # every option is then spelled out


def _chosen_options(stack: Stack) -> tuple[tuple[str, str], ...]:
    """Return the options of a stack that are not defaults."""
    defaults = default_options(stack.backend, stack.device)
    return tuple((name, value) for name, value in stack.options if defaults.get(name) != value)
