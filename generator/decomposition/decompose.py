"""``decompose``: cut models into sequences once, as values that every later step reads."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from ...bricks.decomposition import Decomposition, Failed
from ...models import ModelSource, require_inputs, require_known
from ..machine.lock import work_clock
from ..progress import Progress, ProgressCallback, Stage
from .cut import Cut
from .keeping import kept_decomposition

T = TypeVar("T")

_UNTIL: ContextVar[float] = ContextVar("until", default=math.inf)

_LEAST_S = 2.0
"""Time for models even if the budget is shorter: it would give no answer at all."""

Model = ModelSource | Decomposition | Failed
"""A model, or the result of decomposing it."""


def source_of(model: Model) -> ModelSource:
    """Return the source of a model."""
    return model if isinstance(model, ModelSource) else model.source


@contextmanager
def decomposing_until(until: float) -> Iterator[None]:
    """Bound the time of ``decompose`` within this context: a model that is not finished has failed.

    Args:
        until: Time on the ``work_clock``; infinity is no limit.
    """
    token = _UNTIL.set(until)
    try:
        yield
    finally:
        _UNTIL.reset(token)


def decompose(
    models: Sequence[Model],
    cut: Cut,
    *,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
) -> list[Decomposition | Failed]:
    """Cut models into sequences; neither the number of processes nor the order of completion affects the result.

    No model is executed, with one exception: if inference cannot find the shapes of a model, it runs once, in an
    isolated worker. A worker also loads a model for the graph that a runtime executes, and the user's cache folder
    keeps that graph.

    Args:
        models: The models; decompositions by the same cut are returned unchanged.
        cut: How they are cut.
        jobs: Number of processes; 1 uses this one.
        progress: Called after each model.

    Returns:
        One per model, in their order; a model that cannot be decomposed is ``Failed``, and the others go on.

    Raises:
        UsageError: A value is given that no model has an input for, or that does not fit its input.
    """
    begun = time.monotonic()
    require_inputs([model for model in models if isinstance(model, ModelSource)])
    results = {position: model for position, model in enumerate(models) if not isinstance(model, ModelSource)}
    sources = {position: model for position, model in enumerate(models) if isinstance(model, ModelSource)}
    for done, (position, result) in enumerate(_decomposed(sources, cut, jobs), 1):
        results[position] = result
        if progress is not None:
            elapsed_s = time.monotonic() - begun
            left_s = elapsed_s / done * (len(sources) - done)
            progress(Progress(Stage.GENERATE, done, len(sources), result.name, elapsed_s, left_s))
    return [results[position] for position in range(len(models))]


def _decomposed(models: Mapping[int, ModelSource], cut: Cut, jobs: int) -> Iterator[tuple[int, Decomposition | Failed]]:
    """Yield position and result of each model: first the kept ones, then others as they finish."""
    remaining = {}
    for position, source in models.items():
        decomposition = kept_decomposition(source, cut)
        if decomposition is None:
            remaining[position] = source
        else:
            yield position, decomposition
    if remaining:
        from .decomposer import decomposed  # most models are kept

        yield from decomposed(remaining, cut, jobs, max(_UNTIL.get(), work_clock() + _LEAST_S))


def readable(models: Sequence[Decomposition | Failed]) -> list[Decomposition]:
    """Return the models that could be decomposed.

    Raises:
        UsageError: A dimension is given that none of them has.
    """
    cut_up = [model for model in models if isinstance(model, Decomposition)]
    if cut_up:
        dims = {name: size for model in cut_up for name, size in model.source.dims}
        require_known(dims, [model.own for model in cut_up])
    return cut_up
