"""The kernels that ran for a model: summed over its bricks, or of the whole model as it was profiled."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Unpack

from ...bricks.inference.shapes import ShapeOracle
from ...bricks.layer import LayerState
from ...constructor.choice import Choice
from ...constructor.decomposition import Decomposition
from ...constructor.form import form_of
from ...constructor.remedies import Task
from ...db import KernelView, Store, Subject
from ...errors import UsageError
from ...generator.decomposition.cutter import Cut
from ...generator.decomposition.oracle import WorkerOracle
from ...generator.measurement.profiling import PROFILED_CACHE
from ...models import ModelSource
from ...tabular import Records, Tabular, nested_rows
from ..estimation.cutting import readable_of, settle
from ..estimation.query import Query, QueryFields, asked, matching, require_one, stored_under
from ..estimation.survey import decompose_all
from ..estimation.tasks import Tasks
from ..shell import shell_command
from .shares import KernelLayer, KernelShare, matrix_share, shares_of, use_shares
from .units import Use

__all__ = ["Kernels", "MissingView", "ModelKernels", "kernels"]

_NOT_FLAT = frozenset({"kernels", "elsewhere", "missing"})
"""What has rows of its own in JSON, and no place in a row of CSV."""


@dataclass(frozen=True, slots=True)
class MissingView:
    """A brick of the model, a layer that cannot be one, or the model itself: its kernels are not known.

    Attributes:
        key: Of the brick or model; None for a layer that cannot be a brick.
        op_types: Its operators; empty for a whole model.
        count: How often the model holds it.
    """

    key: str | None
    op_types: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class ModelKernels:
    """The kernels of one model.

    Attributes:
        name: The model.
        whole: Whether they are of the whole model as it was profiled, or summed over its bricks.
        batch: Batch size that was asked for.
        choice: Where and how they ran; None where nothing that matches is stored.
        source: Which profiler; several where bricks differ in it.
        kernels: The longest first; those whose time is not known last.
        time_ms: Of all of them; None where one is not known.
        missing: What is not known. The kernels are then those of the rest.
        remedy: What would profile that; None where nothing here does.
        error: Why nothing can be said.
    """

    name: str
    whole: bool
    batch: int | None = None
    choice: Choice | None = None
    source: str = ""
    kernels: tuple[KernelShare, ...] = ()
    time_ms: float | None = None
    missing: tuple[MissingView, ...] = ()
    remedy: Task | None = None
    error: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every kernel is known."""
        return self.error is None and not self.missing and self.choice is not None

    @property
    def elsewhere(self) -> tuple[KernelShare, ...]:
        """Kernels that ran on another device than the stack is about: what fell back."""
        return tuple(one for one in self.kernels if one.elsewhere)

    def matrix_share(self, use: Use) -> float | None:
        """The share of time in kernels that use matrix units or not; None where a time is not known."""
        return matrix_share(self.kernels, use)

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        choice = self.choice
        return {
            "name": self.name,
            "batch": self.batch,
            "whole": self.whole,
            "system": None if choice is None else choice.system_key,
            "stack": None if choice is None else choice.stack_key,
            "backend": None if choice is None else choice.stack.backend,
            "device": None if choice is None else choice.stack.device,
            "threads": None if choice is None else choice.conditions.threads,
            "dtype": None if choice is None else choice.conditions.dtype,
            "source": self.source or None,
            "profiled_ms": self.time_ms,
            "matrix_shares": use_shares(self.kernels),
            "kernels": [kernel.record() for kernel in self.kernels],
            "elsewhere": [kernel.record() for kernel in self.elsewhere],
            "missing": [asdict(missing) for missing in self.missing],
            "command": None if self.remedy is None else shell_command(self.remedy),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Kernels(Tabular):
    """The kernels of some models; iterating goes over its rows.

    Attributes:
        rows: One per model.
    """

    rows: tuple[ModelKernels, ...]

    def __iter__(self) -> Iterator[ModelKernels]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def complete(self) -> bool:
        """Whether every kernel of every model is known."""
        return all(one.complete for one in self.rows)

    def records(self) -> Records:
        """One row per model; flat, one per kernel."""
        rows = [one.record() for one in self.rows]
        flat = [line for row in rows for line in nested_rows(row, "kernel", row["kernels"], without=_NOT_FLAT)]
        return Records(rows, flat=flat)


def kernels(
    models: Sequence[ModelSource],
    *,
    store: Store,
    query: Query | None = None,
    whole: bool = False,
    granularity: int = 1,
    connected: bool = False,
    graph: str = "source",
    oracle: ShapeOracle | None = None,
    **fields: Unpack[QueryFields],
) -> Kernels:
    """The kernels of models, from stored views (``run --kernels``, ``measure --kernels``).

    Args:
        models: The models, from ``find_models``.
        store: Where views are.
        query: Which of the stored views; of no cache state, since kernels run whatever the caches hold.
        whole: Those of whole models as they were profiled, instead of the sum over their bricks.
        granularity: Most layers in a sequence; that of the suite that was profiled.
        connected: Sequences may be weakly connected windows.
        graph: Which graph is decomposed (as for ``estimate``).
        oracle: Finds shapes that inference does not; by default a worker that starts when it is needed.
        **fields: Fields of a ``Query``, in place of those of ``query``.

    Returns:
        One row per model, in their order; a model that cannot be decomposed has ``error``.

    Raises:
        AmbiguousQuery: Several stored combinations match; the message lists them.
        UsageError: A cache state, a wrong granularity or graph, a dimension that no model has, a system or stack that
            is not stored.
        StoreError: The database cannot be read.
    """
    query = asked(query, fields)
    if query.cache is not None:
        raise UsageError("kernels run whatever the caches hold", remedy="leave the cache state out")
    # Sequences that overlap would count layers twice.
    settled = settle(store, query, Cut(granularity, connected=connected, graph=graph))
    cut, query = settled.cut, settled.query
    if settled.why_not is not None:
        return Kernels(tuple(ModelKernels(one.name, whole, one.batch, error=settled.why_not) for one in models))
    with WorkerOracle() as worker:
        found = decompose_all(models, cut, oracle or worker, store=store)
    readable = readable_of(models, found)
    parts = partial(_parts, whole=whole)
    keys = {part.key for model in readable for part in parts(model) if part.key is not None}
    subject = Subject.MODEL if whole else Subject.BRICK
    choice, views = _choose(store, keys, query, subject)
    tasks = Tasks(store, choice, query, cut)
    return Kernels(
        tuple(
            _kernels_of(model, parts(model), choice, views, tasks, whole=whole)
            if isinstance(model, Decomposition)
            else ModelKernels(model.source.name, whole, model.source.batch, error=model.reason)
            for model in found
        )
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A brick or a whole model whose view is looked for; a layer that cannot be a brick has no key."""

    key: str | None
    op_types: tuple[str, ...]


def _parts(model: Decomposition, *, whole: bool) -> list[_Wanted]:
    if whole:
        return [_Wanted(model.own.key, ())]
    layers = model.graph.layers
    return [
        *(_Wanted(part.key, tuple(layers[i].op_type for i in part.layers)) for part in model.sequences),
        *(_Wanted(None, (layer.op_type,)) for layer in layers if layer.state is LayerState.SKIPPED),
    ]


def _choose(
    store: Store, keys: set[str], query: Query, subject: Subject
) -> tuple[Choice | None, Mapping[str, KernelView]]:
    """The one stored combination that matches, whatever the cache state, and its views; those with views first."""
    places: dict[tuple[object, ...], Choice] = {}
    for one in matching(store, keys, query, subject):
        conditions = one.conditions
        places.setdefault((one.system_key, one.stack_key, conditions.threads, conditions.dtype), one)
    held = {place: _views(store, one, keys, subject) for place, one in places.items()}
    chosen = {place: one for place, one in places.items() if held[place]} or places
    alike = {place: replace(one, conditions=replace(one.conditions, cache="")) for place, one in chosen.items()}
    if require_one(alike.values()) is None:
        return None, {}
    ((place, choice),) = chosen.items()
    return choice, held[place]


def _views(store: Store, choice: Choice, keys: set[str], subject: Subject) -> dict[str, KernelView]:
    views = store.kernels(stored_under(choice), subject=subject, keys=keys, cache=PROFILED_CACHE)
    return {identity.key: view for identity, view in views.items()}


def _kernels_of(
    model: Decomposition,
    parts: Sequence[_Wanted],
    choice: Choice | None,
    views: Mapping[str, KernelView],
    tasks: Tasks,
    *,
    whole: bool,
) -> ModelKernels:
    counts = Counter(parts)
    missing = tuple(
        MissingView(part.key, part.op_types, count) for part, count in counts.items() if part.key not in views
    )
    known = [(views[part.key], count) for part, count in counts.items() if part.key is not None and part.key in views]
    device = choice.stack.device if choice is not None else "cpu"
    rows, time_ms = shares_of(known, device)
    if not whole:
        rows = _with_layers(rows, model, views)
    remedy = None
    if any(one.key is not None for one in missing):
        remedy = tasks.truth(model.source) if whole else tasks.measure(model.source)
    return ModelKernels(
        name=model.source.name,
        whole=whole,
        batch=model.source.batch,
        choice=choice,
        source=", ".join(sorted({view.source for view, _ in known})),
        kernels=rows,
        time_ms=time_ms if known else None,
        missing=missing,
        remedy=None if remedy is None else replace(remedy, kernels=True),
    )


def _with_layers(
    rows: Sequence[KernelShare], model: Decomposition, views: Mapping[str, KernelView]
) -> tuple[KernelShare, ...]:
    """Kernels with the bricks that they ran for."""
    counts = Counter(part.key for part in model.sequences)
    ran: defaultdict[tuple[str, str, str], list[tuple[int, KernelLayer]]] = defaultdict(list)
    for part in {part.key: part for part in reversed(model.sequences)}.values():
        if part.key not in views:
            continue
        layers = [model.graph.layers[index] for index in part.layers]
        names, operators = tuple(one.name for one in layers), tuple(one.op_type for one in layers)
        layer = KernelLayer(part.key, counts[part.key], names, operators, form_of(model, part))
        times = Counter[tuple[str, str, str]]()
        for one in views[part.key].kernels:
            times[one.name, one.operator, one.place] += one.time_ns or 0
        for place, time_ns in times.items():
            ran[place].append((layer.count * time_ns, layer))
    ordered = {place: sorted(some, key=lambda pair: -pair[0]) for place, some in ran.items()}
    return tuple(
        replace(row, layers=tuple(layer for _, layer in ordered.get((row.name, row.operator, row.place), ())))
        for row in rows
    )
