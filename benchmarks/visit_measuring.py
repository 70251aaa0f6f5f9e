"""The stages that measure: bricks with models, their kernels and findings, models alone, and the machine's ceilings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from dlbricks.analyzer.findings.analyze import analyze
from dlbricks.constructor.choice import Query
from dlbricks.db import Store
from dlbricks.errors import UsageError
from dlbricks.generator.measurement.ceilings import measure_ceilings
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from dlbricks.generator.progress import Progress
from visit_compiling import compile_ahead
from visit_folder import Record
from visit_plan import Stage
from visit_state import Visit

_COMPILING = 0.6
"""Part of a stage's time in which models are compiled."""

_CEILINGS = 40
"""Networks that measure the ceilings."""

_PLANNED = 0.6
"""Part of the time that is left for which models are taken together: a forecast knows neither device nor neighbours."""

_ITEM_TIMEOUT_S = 60.0
_MODEL_TIMEOUT_S = 180.0
"""Compilation included."""


def bricks(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:
    """Measure bricks alternating with models: the fastest first, as many together as the time allows.

    If the time is short, visits to everything would finish nothing. Stored results are not measured again.
    """
    until = time.monotonic() + allowed_s
    suite, sources = visit.suite(stage.batch), visit.sources(stage.batch) if stage.models else []
    states = [len(suite.footprints(key)) if stage.cache == "model" else 1 for key in suite.keys]
    with _store(visit, record, sum(states) + len(sources)) as store:
        waiting = _forecasts(visit, stage, record, store)
        while waiting:
            record.result["waiting"] = sorted(waiting)
            left_s = until - time.monotonic()
            if left_s < visit.clock.least_s:
                return
            group = _fitting(waiting, _PLANNED * left_s)
            report = run(
                visit.suite(stage.batch, group),
                store=store,
                cache=stage.cache,
                models=visit.sources(stage.batch, group) if stage.models else [],
                algorithms=stage.algorithms,
                item_timeout_s=_ITEM_TIMEOUT_S,
                budget_s=None if sum(waiting[name] for name in group) <= _PLANNED * left_s else left_s,
                processes=visit.settings["processes"],
                **_place(visit, stage),
            )
            record.result["failures"] |= dict(report.failures)
            if report.remaining or report.models_remaining or report.algorithms_remaining:
                return
            waiting = {name: seconds for name, seconds in waiting.items() if name not in group}
            record.result["left"] = max(0, record.result["left"] - report.measured - report.models)
            record.result.setdefault("walls_s", []).append(report.wall_s)
            visit.folder.save()
    record.result |= {"left": 0, "waiting": []}
    record.status = "done"


def _forecasts(visit: Visit, stage: Stage, record: Record, store: Store) -> dict[str, float]:
    """Forecast the seconds of each unmeasured model with its bricks, the shortest first."""
    failures = record.result.setdefault("failures", {})
    found = {}
    for source in visit.sources(stage.batch):
        try:
            suite = visit.suite(stage.batch, [source.name])
        except UsageError as error:
            failures[source.name] = str(error)
            continue
        forecast = run(
            suite,
            store=store,
            cache=stage.cache,
            models=[source] if stage.models else [],
            algorithms=stage.algorithms,
            processes=visit.settings["processes"],
            dry_run=True,
            **_place(visit, stage),
        )
        if forecast.remaining or forecast.models_remaining or forecast.algorithms_remaining:
            found[source.name] = forecast.forecast_s
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _fitting(waiting: Mapping[str, float], left_s: float) -> list[str]:
    """Return the first models that fit into the time together; at least one, which a later visit may finish."""
    group: list[str] = []
    for name, seconds in waiting.items():
        left_s -= seconds
        if group and left_s < 0:
            break
        group.append(name)
    return group


class _Enough(Exception):
    """The time of a stage is up, between two items."""


def kernels(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:
    """Record the kernels of everything that the stage of this precision measured."""
    until = time.monotonic() + allowed_s
    name = stage.name.removeprefix("kernels-")
    measured = visit.folder.find(name, record.system, record.stack)
    if measured is None or measured.status != "done":
        record.reason = f"{name} is not measured yet"
        return

    def watch(progress: Progress) -> None:
        record.result["left"] = progress.total - progress.done
        if time.monotonic() >= until:
            raise _Enough

    suite, sources = visit.suite(stage.batch), visit.sources(stage.batch)
    record.database = measured.database
    with _store(visit, record, len(suite.keys) + len(sources)) as store, suppress(_Enough):
        found = run(
            suite,
            store=store,
            cache=stage.cache,
            models=sources,
            item_timeout_s=_ITEM_TIMEOUT_S,
            processes=visit.settings["processes"],
            kernels=True,
            progress=watch,
            **_place(visit, stage),
        ).kernels
        if found is not None:
            record.result = {
                "left": 0,
                "views": found.taken + found.known,
                "failures": [asdict(failure) for failure in found.failures],
            }
            record.status = "done"


def findings(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:
    """Analyse each model of the stage of this precision, and try every remedy."""
    until = time.monotonic() + allowed_s
    name = stage.name.removeprefix("findings-")
    measured = visit.folder.find(name, record.system, record.stack)
    if measured is None or measured.status != "done":
        record.reason = f"{name} is not measured yet"
        return
    rows = record.result.setdefault("rows", {})
    record.database = measured.database
    sources = visit.sources(stage.batch)
    query = Query(
        system=record.system, stack=record.stack, backend=visit.backend(stage), device=visit.settings["device"],
        threads=visit.settings["threads"], cache=stage.cache, dtype=stage.dtype,
    )  # fmt: skip
    with _store(visit, record, len(sources)) as store:
        for source in (source for source in sources if source.name not in rows):
            if until - time.monotonic() < visit.clock.least_s:
                return
            (row,) = analyze([source], store=store, query=query, prove=True, until=until).rows
            if time.monotonic() < until:  # else some of its remedies are not tried yet
                rows[source.name] = row.record()
            record.result["left"] = sum(source.name not in rows for source in sources)
            visit.folder.save()
    record.status = "done"


def models(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:
    """Measure whole models; compile models in advance, several at once."""
    until = time.monotonic() + allowed_s
    sources = visit.sources(stage.batch)
    rows = record.result.setdefault("rows", {})
    with _store(visit, record, len(sources)) as store:
        left = [source for source in sources if not _known(rows.get(source.name))]
        if left and stage.options.get("mode", "").startswith("compile"):
            names = [str(source.path or source.zoo) for source in left]
            record.result["compiling"] = compile_ahead(visit, stage, names, time.monotonic() + _COMPILING * allowed_s)
        if left and until - time.monotonic() >= visit.clock.least_s:
            found = measure(
                left,
                store=store,
                cache=stage.cache,
                item_timeout_s=_MODEL_TIMEOUT_S,
                processes=1,
                **_place(visit, stage),
            ).rows
            rows |= {row.name: {"latency_ms": row.latency_ms, "error": row.error} for row in found}
            record.result["left"] = sum(not _known(rows.get(source.name)) for source in sources)
            visit.folder.save()
    if all(_known(rows.get(source.name)) for source in sources):
        record.status = "done"


def ceilings(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:  # noqa: ARG001
    """Measure the machine's ceilings in the runtime of the visit."""
    with _store(visit, record, _CEILINGS) as store:
        place = _place(visit, stage)
        found = measure_ceilings(store=store, processes=1, **place)
    record.result = {
        "left": 0,
        "failures": {f"{row.dtype} {row.network}": row.error for row in found.rows if row.error},
    }
    record.status = "done"


def _known(row: Mapping[str, Any] | None) -> bool:
    """Return True if a model has its latency, or a final reason without one."""
    return row is not None and (row["error"] is None or not row["error"].startswith("the time was up"))


def _store(visit: Visit, record: Record, items: int) -> Store:
    """Open the database of a stage, which is fixed before anything is measured."""
    path = visit.folder.database(record, items)
    record.result.setdefault("left", items)
    visit.folder.save()
    return Store.open(path)


def _place(visit: Visit, stage: Stage) -> dict[str, Any]:
    """Return the common arguments of ``run`` and ``measure``."""
    return {
        "backend": visit.backend(stage),
        "device": visit.settings["device"],
        "threads": visit.settings["threads"],
        "options": visit.options(stage),
        "dtype": stage.dtype,
        "sessions": visit.settings["sessions"],
        "visits": visit.settings["visits"],
    }
