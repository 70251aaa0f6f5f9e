"""Advice on the fastest stored framework and options for a model, from a comparison with its fastest side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Unpack

from ..constructor.choice import Query
from ..constructor.remedies import Task
from ..db import Store
from ..errors import UsageError
from ..generator.backends.registry import backends
from ..generator.decomposition.cut import Cut
from ..generator.machine.system import probe_system
from ..models import ModelSource
from ..tabular import Records, Row, fields, record_of
from .comparison.compare import FASTEST, Comparison, LayerComparison, ModelComparison, compare
from .comparison.difference import MINIMUM_EFFECT, Relation
from .comparison.sides import Side
from .estimation.query import QueryFields, asked
from .estimation.tasks import Tasks
from .shell import shell_command

_ANY = "any"
"""In place of a precision: all of them."""

_DEFAULT_DTYPE = "float32"

Mixed = tuple[str, LayerComparison]
"""A brick that another side than the best runs faster: the name of that side, and the brick on both."""


@dataclass(frozen=True, slots=True)
class ModelAdvice:
    """Advice from the comparison of a model with its fastest side.

    Attributes:
        rows: The model on its fastest side and on each other one, the fastest first.
        measured_by: The task that measures the model on its fastest side; None if this machine cannot.
        mixed: The bricks that another side under the same conditions runs faster, the largest gain first.
        remedies: Tasks on runtimes without stored results, if there is nothing to rank.
    """

    rows: tuple[ModelComparison, ...]
    measured_by: Task | None = None
    mixed: tuple[Mixed, ...] = ()
    remedies: tuple[Task, ...] = ()

    @property
    def name(self) -> str:
        """The model's name."""
        return self.rows[0].name

    @property
    def best(self) -> str | None:
        """Name of the fastest side; None if no latency is known."""
        return None if self.rows[0].pair.base.best is None else self.rows[0].base

    @property
    def ties(self) -> tuple[str, ...]:
        """Names of the sides that cannot be distinguished from the best."""
        return tuple(row.other or "" for row in self.rows if row.verdict not in {None, Relation.SLOWER})

    @property
    def mixing_ms(self) -> float | None:
        """Gain of the model if each brick ran on its fastest side; None if no brick is measured on two sides."""
        return sum(layer.gain_ms for _, layer in self.mixed) if any(row.layers for row in self.rows) else None

    def record(self) -> Row:
        """As a JSON object."""
        return {
            **record_of(self, fields("name best ties")),
            "command": None if self.measured_by is None else shell_command(self.measured_by),
            "mixing_ms": self.mixing_ms,
            "mixed": [{"side": side, **layer.record()} for side, layer in self.mixed],
            "remedy": [shell_command(task) for task in self.remedies],
        }


@dataclass(frozen=True, slots=True)
class Advice(Comparison):
    """Models on all sides, each against its fastest one, with advice.

    Attributes:
        advice: One per model.
    """

    ANSWER = "report.answers.comparison.advice_answer"

    advice: tuple[ModelAdvice, ...]

    def records(self) -> Records:
        """Return the rows of the comparison, with the advice as totals."""
        records = Comparison.records(self)
        return replace(
            records, totals={**records.totals, "advice": [model_advice.record() for model_advice in self.advice]}
        )


def advise(
    models: Sequence[ModelSource],
    *,
    store: Store,
    minimum_effect: float = MINIMUM_EFFECT,
    query: Query | None = None,
    granularity: int = 1,
    connected: bool = False,
    **fields: Unpack[QueryFields],
) -> Advice:
    """Compare the stored combinations of one system with the fastest of each model (``compare``), and advise.

    Args:
        models: The models, from ``find_models``.
        store: Database of the latencies.
        minimum_effect: Relative difference that matters.
        query: Narrows the comparison. By default: this machine, or the only stored system; precision float32 (``any``:
            all precisions).
        granularity: Most layers in a brick.
        connected: Bricks may be weakly connected windows.
        **fields: Fields of a ``Query``; they replace the fields of ``query``.

    Raises:
        UsageError: The minimum effect is not positive, the system or stack is not stored, or several systems are stored
            and this machine is not among them.
        StoreError: The database cannot be read.

    Example:
        >>> from dlbricks.db import Store
        >>> from dlbricks.models import find_models
        >>> with Store.open("sqlite://") as store:
        ...     (one,) = advise(find_models(["squeezenet"]), store=store).advice
        >>> one.best, one.rows[0].reason
        (None, 'nothing is stored')
    """
    query = asked(query, fields)
    dtype = {None: _DEFAULT_DTYPE, _ANY: None}.get(query.dtype, query.dtype)
    query = replace(query, system=_system(store, query.system), dtype=dtype)
    compared = compare(
        models, store=store, base=FASTEST, minimum_effect=minimum_effect, query=query, granularity=granularity,
        connected=connected,
    )  # fmt: skip
    advice = tuple(_advised(compared, source, store, query) for source in models)
    return Advice(compared.rows, compared.sides, compared.by, compared.minimum_effect, advice)


def _system(store: Store, asked: str | None) -> str | None:
    """Key of the system that advice is for."""
    if asked is not None:
        return asked
    stored, here = store.systems(), probe_system().key
    if here in stored or len(stored) < 2:
        return here if here in stored else next(iter(stored), None)
    listed = ", ".join(f"{key[:8]} ({system.cpu})" for key, system in stored.items())
    raise UsageError(f"nothing is stored of this machine, and several others are: {listed}", remedy="add --system")


def _advised(compared: Comparison, source: ModelSource, store: Store, query: Query) -> ModelAdvice:
    rows = tuple(row for row in compared.rows if row.name == source.name)
    if rows[0].error is not None:
        return ModelAdvice(rows)
    ranked = any(row.pair.other.best is not None for row in rows)
    remedies = () if ranked else _remedies(source, compared.sides, store, query)
    if rows[0].pair.base.best is None:
        return ModelAdvice(rows, remedies=remedies)
    best = next(side.choice for side in compared.sides if side.name == rows[0].base)
    alike = {
        side.name
        for side in compared.sides
        if (side.choice.system_key, side.choice.conditions) == (best.system_key, best.conditions)
    }
    return ModelAdvice(rows, Tasks(store, best, query, Cut(1)).truth(source), _mixed(rows, alike), remedies)


def _mixed(rows: Sequence[ModelComparison], sides: Collection[str]) -> tuple[Mixed, ...]:
    """Return the bricks that one of some sides runs faster, each with the side of its largest gain."""
    faster = [
        (row.other, layer)
        for row in rows
        if row.other is not None and row.other in sides
        for layer in row.layers
        if layer.verdict is Relation.FASTER
    ]
    faster.sort(key=lambda mixed: mixed[1].gain_ms)
    largest = {layer.brick.key: (side, layer) for side, layer in faster}
    return tuple(sorted(largest.values(), key=lambda mixed: -mixed[1].gain_ms))


def _remedies(source: ModelSource, sides: Sequence[Side], store: Store, query: Query) -> tuple[Task, ...]:
    """Return tasks that measure a model on runtimes that can run here and do not have stored results."""
    stored = {side.choice.stack.backend for side in sides}
    if sides:  # under the same conditions
        query = replace(query, **asdict(sides[0].choice.conditions))
    tasks = [
        Tasks(store, None, replace(query, system=None, backend=name, stack=None), Cut(1)).truth(source)
        for name, availability in backends().items()
        if availability.ok and name not in stored
    ]
    return tuple(task for task in tasks if task is not None)
