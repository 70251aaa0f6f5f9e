"""``system --calibrate``: fit the error of estimates on this machine to models that were measured with their bricks."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Unpack

from ...constructor.result import Estimate
from ...constructor.uncertainty.calibration import CALIBRATION, NORMAL, Calibration, Method, fitted_sd, share_held
from ...db import Run, Store
from ...errors import UsageError
from ...models import ModelSource
from ...tabular import Field, Records, Tabular, record_of
from ...version import __version__
from .estimate import estimate
from .query import QueryFields

FEWEST = 10
"""Models that a fit needs: it is a 95 % quantile, and of fewer models one unusual model decides it."""

_METHOD = ("backend", "device", "graph", "granularity", "cache", "threads", "batch", "dtype")

FIELDS = (
    *(Field(name, path=f"method.{name}") for name in _METHOD),
    Field("models"),
    Field("sd", "error (sd)", "share"),
    Field("half_width", "of the interval", "share"),
    Field("earlier_sd", "earlier error", "share"),
    Field("later_models", "measured later"),
    Field("later_held", "of these held", "share"),
    Field("reason", "not fitted"),
)


@dataclass(frozen=True, slots=True)
class FittedMethod:
    """The fit of one method.

    Attributes:
        method: How estimates are composed.
        models: Number of models that were visited alternately with their bricks.
        sd: Relative standard deviation of the error; None with too few models.
        earlier_sd: The same of the earlier fit; None for a first fit.
        later_models: Models that were measured after the earlier fit.
        later_held: Share of them with the measured latency in the interval by the earlier fit; None without any.
        reason: Why nothing is fitted.
    """

    method: Method
    models: int
    sd: float | None = None
    earlier_sd: float | None = None
    later_models: int = 0
    later_held: float | None = None
    reason: str | None = None

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % interval that the error alone gives, relative."""
        return None if self.sd is None else NORMAL * self.sd


@dataclass(frozen=True, slots=True)
class CalibrationReport(Tabular):
    """The fits for one system.

    Attributes:
        system: Key of the system.
        rows: One per method.
        run: UUID of the run that stores the fits; None if nothing was fitted.
    """

    ANSWER = "report.answers.resources.calibration_answer"

    system: str
    rows: tuple[FittedMethod, ...]
    run: str | None

    @property
    def complete(self) -> bool:
        """True if every method was fitted."""
        return all(row.sd is not None for row in self.rows)

    def records(self) -> Records:
        """Return one row per method."""
        return Records([record_of(row, FIELDS) for row in self.rows], {"system": self.system, "run": self.run})


def calibrate(
    models: Sequence[ModelSource],
    *,
    store: Store,
    granularity: int = 1,
    graph: str = "source",
    **fields: Unpack[QueryFields],
) -> CalibrationReport:
    """Fit the error of estimates to models that this system measured with their bricks, and store the fit.

    Estimates on this system then use it (``Latency.method``). Nothing is measured. A fit is judged only by models that
    were measured after it: this function reports for how many of them the fit before held.

    Args:
        models: Models that ``run`` measured together with their bricks; at least ten.
        store: Open for writing.
        granularity: Most layers in a sequence, as in ``estimate``.
        graph: Which graph is decomposed, as in ``estimate``.
        **fields: Fields of a ``Query``.

    Raises:
        UsageError: No model was measured with its bricks.
        AmbiguousQuery: Several stored combinations match.
        StoreError: The database cannot be read or written.
    """
    estimates = estimate(models, store=store, granularity=granularity, graph=graph, **fields)
    runs = store.runs()
    usable: dict[Method, list[_Compared]] = {}
    for row in estimates:
        compared = _compared(row, runs)
        if compared is not None:
            usable.setdefault(compared.method, []).append(compared)
    combination = next((row.place for row in estimates if row.place.system), None)
    if not usable or combination is None or combination.system is None or combination.stack is None:
        raise UsageError(
            "none of these models was measured together with its bricks",
            remedy=f"measure {FEWEST} models or more: dlbricks run SUITE --with MODEL...",
        )
    rows = tuple(_fitted(method, members, runs, combination.system) for method, members in usable.items())
    fits = [Calibration(row.method, "", row.sd, row.sd, holds=True) for row in rows if row.sd is not None]
    if not fits:
        return CalibrationReport(combination.system, rows, None)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    run = Run(
        str(uuid.uuid4()), now, __version__, "system --calibrate", None, combination.system, combination.stack,
        options={CALIBRATION: [fit.record() for fit in fits]}, after={}, finished=now,
    )  # fmt: skip
    store.begin_run(run)
    return CalibrationReport(combination.system, rows, run.id)


@dataclass(frozen=True, slots=True)
class _Compared:
    """An estimate that was compared with its model.

    Attributes:
        method: How it is composed.
        started: When the run began that measured the model.
        error: Logarithm of estimate over measured latency.
        half: Half of its 95 % interval without the error of the method.
    """

    method: Method
    started: str
    error: float
    half: float


def _compared(row: Estimate, runs: Sequence[Run]) -> _Compared | None:
    """Return the comparison; None if bricks and model were not visited alternately."""
    truth, method = row.truth, row.latency.method
    if not truth.paired or truth.ratio is None or truth.ratio_ci95 is None or not truth.measurement or method is None:
        return None
    started = next(run.started for run in runs if run.id == truth.measurement.run)
    half = math.log(truth.ratio_ci95[1] / truth.ratio)
    rest = math.sqrt(max(0.0, half**2 - (NORMAL * method.sd) ** 2))
    return _Compared(method.method, started, math.log(truth.ratio), rest)


def _fitted(method: Method, members: Sequence[_Compared], runs: Sequence[Run], system: str) -> FittedMethod:
    """Return the fit of one method, and how well the fit before held."""
    fits = ((run.started, fit) for run in runs for fit in Calibration.of_runs([run], system, ""))
    alike = [(started, fit) for started, fit in fits if fit.method == method]
    began, before = alike[-1] if alike else ("", None)
    later = [row for row in members if row.started > began] if before else []
    enough = len(members) >= FEWEST
    return FittedMethod(
        method,
        len(members),
        sd=fitted_sd([row.error for row in members], [row.half for row in members]) if enough else None,
        earlier_sd=before.sd if before else None,
        later_models=len(later),
        later_held=share_held([row.error for row in later], [row.half for row in later], before.sd)
        if before and later
        else None,
        reason=None if enough else f"{FEWEST} models are needed",
    )
