"""Plans that a vendor's library offers for the bricks of a suite, for a GPU that need not be here."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import psutil

from ...bricks.suite.suite import Suite
from ...errors import BackendError, UnsupportedBrick, UsageError, WorkerError
from ...tabular import Records, Tabular
from ..backends.base import PlanTime
from ..backends.cudnn.plans import DTYPES, Gpu, Offer, find_gpu, require_library
from ..progress import Progress, ProgressCallback, Stage
from ..worker.client import Worker, Workers
from ..worker.messages import Done
from .planner import COMMAND, AskPlans, OfferedPlans, Start

_TENSOR_CORE = "TENSOR_CORE"

_START_S = 120.0
"""Loading the library reads gigabytes."""


class Layout(StrEnum):
    """Order of an image's dimensions in memory."""

    NCHW = "nchw"
    NHWC = "nhwc"


@dataclass(frozen=True, slots=True)
class BrickPlans:
    """The plans of one brick in one precision and layout.

    Attributes:
        key: Key of the brick.
        operators: Its operators.
        dtype: Precision of its tensors in memory; sums are of float32.
        layout: Layout of its images; None for a brick without images, or an untranslatable one.
        offer: The plans; the first of mode A is the library's suggestion.
        failed: True if the library broke instead of answering.
    """

    key: str
    operators: tuple[str, ...]
    dtype: str
    layout: Layout | None
    offer: Offer = field(default_factory=Offer)
    failed: bool = False

    @property
    def plans(self) -> tuple[PlanTime, ...]:
        """The offered plans."""
        return self.offer.plans


@dataclass(frozen=True, slots=True)
class PlanReport(Tabular):
    """The plans of a suite.

    Attributes:
        gpu: GPU of the plans.
        versions: Package to version of the library.
        rows: One per brick, precision and layout.
    """

    ANSWER = "report.answers.generation.plans_answer"

    gpu: Gpu
    versions: dict[str, str]
    rows: tuple[BrickPlans, ...]

    @property
    def complete(self) -> bool:
        """True if the library answered for every brick."""
        return not any(row.failed for row in self.rows)

    @property
    def by_operators(self) -> list[dict[str, object]]:
        """One row for all bricks of the same operators in one precision and layout."""
        groups: dict[tuple[tuple[str, ...], str, str], list[BrickPlans]] = {}
        for row in self.rows:
            groups.setdefault((row.operators, row.dtype, str(row.layout or "")), []).append(row)
        return [_together(rows) for _, rows in sorted(groups.items())]

    def records(self) -> Records:
        """Return one row per brick, precision and layout."""
        totals = {
            "gpu": self.gpu.name,
            "versions": dict(self.versions),
            "bricks": len({row.key for row in self.rows}),
            "offered": len({row.key for row in self.rows if row.offer.plans}),
            "by_operators": self.by_operators,
        }
        return Records(list(map(_result, self.rows)), totals)


def _result(row: BrickPlans) -> dict[str, object]:
    return {
        "key": row.key,
        "operators": list(row.operators),
        "dtype": row.dtype,
        "layout": str(row.layout) if row.layout else None,
        "operations": list(row.offer.operations),
        "plans": [_plan(plan) for plan in row.offer.plans],
        "reason": row.offer.reason or None,
        "failed": row.failed,
        "planning_ms": None if row.offer.planning_ns is None else row.offer.planning_ns / 1e6,
    }


def _plan(plan: PlanTime) -> dict[str, object]:
    record = asdict(plan)
    for timed in ("ns", "model_ns", "error"):
        del record[timed]
    return {"tag": record.pop("name"), **record, "knobs": dict(plan.knobs), "reason": plan.reason or None}


def _together(rows: Sequence[BrickPlans]) -> dict[str, object]:
    """Return one row for bricks of the same operators; medians are over bricks with plans."""
    offered = [row.offer.plans for row in rows if row.offer.plans]
    reasons = Counter(row.offer.reason for row in rows if not row.offer.plans)
    return {
        "operators": list(rows[0].operators),
        "dtype": rows[0].dtype,
        "layout": str(rows[0].layout) if rows[0].layout else None,
        "bricks": len(rows),
        "offered": len(offered),
        "plans": _median([len(plans) for plans in offered]),
        "engines": _median([len({plan.engine for plan in plans}) for plans in offered]),
        "tensor_cores": sum(_TENSOR_CORE in plans[0].notes for plans in offered) if offered else None,
        "reason": next((reason for reason, _ in reasons.most_common(1)), None),
    }


def _median(counts: Sequence[int]) -> float | None:
    return statistics.median(counts) if counts else None


def library_plans(
    suite: Suite,
    *,
    gpu: str = "h200",
    dtypes: Sequence[str] = ("float32",),
    layouts: Sequence[Layout] = (Layout.NCHW, Layout.NHWC),
    timeout_s: float = 120.0,
    progress: ProgressCallback | None = None,
) -> PlanReport:
    """Ask cuDNN for every execution plan of every brick.

    Nothing is executed: the result has neither latencies nor outputs.

    Args:
        suite: Suite of source or fused bricks.
        gpu: A known GPU, or the file of a description (``cudnn.plans.find_gpu``).
        dtypes: Precisions of the tensors in memory (``cudnn.plans.DTYPES``).
        layouts: Layouts of images; a brick without images is asked for once.
        timeout_s: Limit for each brick.
        progress: Called after each brick.

    Raises:
        UsageError: A precision or GPU is unknown, or the suite belongs to one stack.
        BackendUnavailable: The library is not usable here; the message names the missing part.
        SuiteError: A brick is missing, or its file does not match its name.
    """
    dtypes, layouts = list(dict.fromkeys(dtypes)), list(dict.fromkeys(layouts))
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise UsageError(f"no plans are asked for in {dtype!r}", remedy=f"use {', '.join(DTYPES)}")
    if suite.bound_to is not None:
        raise UsageError(f"suite {suite.path} holds the bricks of one stack", remedy="ask for one with --graph source")
    target_gpu = find_gpu(gpu)
    versions = require_library().versions
    rows = []
    begun = time.monotonic()
    with Workers(_started) as workers:
        for done, key in enumerate(suite.keys, 1):
            operators = tuple(suite.brick(key).operators)
            path = suite.brick_path(key).resolve()
            for dtype in dtypes:
                rows += _plans(
                    workers, target_gpu, BrickPlans(key, operators, dtype, Layout.NCHW), path, layouts, timeout_s
                )
            if progress is not None:
                elapsed_s = time.monotonic() - begun
                progress(Progress(Stage.PLAN, done, len(suite.keys), " ".join(operators), elapsed_s))
    return PlanReport(target_gpu, dict(versions), tuple(rows))


def _plans(  # noqa: PLR0917
    workers: Workers[Gpu], gpu: Gpu, blank: BrickPlans, path: Path, layouts: Sequence[Layout], timeout_s: float
) -> list[BrickPlans]:
    """Return one row per layout; a single row if the layout makes no difference."""
    rows = []
    for layout in layouts:
        row = replace(blank, layout=layout)
        request = AskPlans(str(path), row.dtype, layout is Layout.NHWC)
        worker = workers.at(gpu)
        try:
            reply = worker.ask(request, OfferedPlans, timeout_s)
        except UnsupportedBrick as error:
            return [replace(row, layout=None, offer=Offer(reason=str(error)))]
        except (BackendError, WorkerError) as error:
            rows.append(replace(row, offer=Offer(reason=str(error)), failed=True))
            continue
        rows.append(replace(row, layout=layout if reply.images else None, offer=reply.offer))
        if not reply.images:
            break
    return rows


def _started(gpu: Gpu) -> Worker:
    worker = Worker(command=COMMAND)
    try:
        worker.ask(Start(gpu.description, psutil.virtual_memory().available // 2), Done, _START_S)
    except BaseException:
        worker.kill()
        raise
    return worker
