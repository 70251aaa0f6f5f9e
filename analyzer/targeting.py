"""``run --target``: visit the bricks of a suite until the latency of each of its models is known well enough."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..bricks.graph.footprint import level_name
from ..bricks.suite.suite import Suite
from ..constructor.choice import MODEL
from ..constructor.evidence import Table
from ..constructor.predictor import NEARLY
from ..constructor.uncertainty.calibration import NORMAL, Calibration, Method, method_error, scatter_of
from ..constructor.uncertainty.interval import Uncertainty
from ..db import Store, Subject
from ..db.queries import Filter
from ..errors import UsageError
from ..generator.machine.lock import work_clock
from ..generator.measurement.pace import RunCosts
from ..generator.measurement.run import RunReport, Width, run
from ..generator.measurement.settings import MeasurementFields, MeasurementSettings, settings_from
from .predicting import VISITS

_SMALL = 0.001
"""Share of a model below which a brick gets the fewest visits."""

_FACTOR = 4
"""Visits of a round relative to the round before."""


def run_to(
    suite: Suite, target: float, *, store: Store, settings: MeasurementSettings | None = None, **order: Any
) -> RunReport:
    """Measure a suite in rounds: all bricks with the fewest visits, then the bricks that decide with more.

    A round ends the run if each model's interval is as narrow as the target, or hardly wider than its floor: the error
    of composing a latency from bricks, and the scatter of processes, which no visit reduces. Every round takes new
    samples of its bricks, in one process if the target allows the scatter of one.

    Args:
        suite: The suite, with the names of its models (``generate(annotate=True)``).
        target: Wanted half-width of the 95 % interval, relative.
        store: Open database.
        settings: How to measure; ``visits`` is the most in a round. Another round begins only within ``budget_s``.
        **order: Further arguments of ``run``, without models; the fields of settings among them, instead of settings.

    Returns:
        Report of all rounds, with ``target`` and ``widths``.

    Raises:
        UsageError: The target is not positive, the suite does not name its models, or whole models are to be measured.
    """
    if not 0 < target < math.inf:
        raise UsageError("the target is a positive number", remedy="for example 5%")
    if not suite.annotations:
        raise UsageError(
            f"suite {suite.path} does not say which bricks its models have, and a target is about models",
            remedy="generate it with --annotate",
        )
    if order.get("models"):
        raise UsageError(
            "a target is about models that are composed from bricks",
            remedy="measure whole models with 'dlbricks measure'",
        )
    fields: Any = {name: order.pop(name) for name in MeasurementFields.__annotations__ if name in order}
    settings = settings_from(settings, fields)
    begun, visits, keys, reports = work_clock(), VISITS, suite.keys, list[RunReport]()
    widths: dict[str, Width | None] = {}
    while keys:
        first = not reports
        how = replace(settings, visits=min(visits, settings.visits), budget_s=None)
        if first:
            how = replace(how, processes=1, sessions=1)
        else:
            order |= {"again": ("all",), "since": None, "algorithms": False, "kernels": False}
        reports.append(run(replace(suite, keys=keys), store=store, settings=how, **order))
        if order.get("dry_run"):
            break
        error, scatter = _errors(suite, reports[0], store)
        if math.hypot(error, scatter) <= target:
            settings = replace(settings, processes=1)
        floor = math.hypot(error, scatter / math.sqrt(settings.processes))
        halves, shares, visited = _known(suite, error, reports[0], store)
        widths = dict.fromkeys(suite.annotations)
        for name, half in halves.items():
            widest = max(half, floor)
            widths[name] = Width(widest, floor, enough=widest <= max(target, NEARLY * floor))
        spent = settings.budget_s is not None and work_clock() - begun >= settings.budget_s
        if spent or visits >= settings.visits:
            break
        visits *= _FACTOR
        wide = [name for name, width in widths.items() if width is not None and not width.enough]
        deciding = {key for name in wide for key, share in shares[name].items() if share >= _SMALL}
        keys = tuple(key for key in suite.keys if key in deciding and visited[key] < min(visits, settings.visits))
    outcome = replace(
        reports[0].outcome,
        settings=settings,
        costs=sum((report.costs for report in reports), start=RunCosts()),
        wall_s=sum(report.wall_s for report in reports),
    )
    return replace(reports[0], outcome=outcome, target=target, widths=widths)


def _errors(suite: Suite, report: RunReport, store: Store) -> tuple[float, float]:
    """Return halves of the relative 95 % interval from composing, and from the scatter of one process."""
    where = report.outcome.circumstances
    stack, cpu = store.stacks()[where.stack], store.systems()[where.system].cpu
    method = Method(
        stack.backend, stack.device, suite.graph, 0 if suite.overlap or suite.connected else suite.granularity,
        where.conditions.cache, where.conditions.threads, 1, where.conditions.dtype,
    )  # fmt: skip
    composing = method_error(method, cpu, Calibration.of_runs(store.runs(), where.system, cpu)).sd
    return NORMAL * composing, NORMAL * scatter_of(stack, where.conditions.threads, Subject.BRICK).process_sd


def _known(
    suite: Suite, error: float, report: RunReport, store: Store
) -> tuple[dict[str, float], dict[str, dict[str, float]], dict[str, int]]:
    """Return halves of the intervals of completely measured models, shares of their bricks, and visits by brick."""
    where = report.outcome.circumstances
    measurements = store.measurements(
        Filter(Subject.BRICK, suite.keys, where.system, where.stack, threads=where.conditions.threads,
               dtype=where.conditions.dtype)
    )  # fmt: skip
    table = Table(measurements, {}, (), ())
    uncertainty = Uncertainty(measurements, store.blocks_of([measured.id for measured in measurements]), store.stacks())
    halves, shares = dict[str, float](), dict[str, dict[str, float]]()
    for name, counts in (suite.annotations or {}).items():
        state = where.conditions.cache
        if state == MODEL and name in suite.levels:
            state = level_name(suite.levels[name])
        bricks = table.found(counts, "", state)
        if len(bricks) < len(counts):
            continue
        weights = {bricks[key].id: float(count) for key, count in counts.items()}
        ns = uncertainty.value_ns(weights)
        shares[name] = {key: count * bricks[key].latency_ns / ns for key, count in counts.items()}
        halves[name] = math.hypot(uncertainty.half_ns(weights) / ns, error)
    return halves, shares, {measured.key: measured.summary.samples for measured in measurements}
