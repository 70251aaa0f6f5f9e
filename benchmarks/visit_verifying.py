"""The first thing that a visit does on a GPU: a few bricks in every way in which all will be measured.

A way that fails costs its own stages alone, and what it said is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from dlbricks.bricks.suite.suite import Suite
from dlbricks.errors import DlbricksError
from dlbricks.generator.measurement.agreement import agreements
from visit_folder import Record
from visit_plan import Stage, stages
from visit_state import Visit

_OPERATORS = ("Conv", "Gemm", "MatMul", "Softmax", "MaxPool", "Add")
"""A brick of each is checked, where the models have one."""

_ITEM_TIMEOUT_S = 60.0


def verify(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:  # noqa: ARG001
    """Check each way until the time is up; those that were checked are not checked again."""
    until = time.monotonic() + allowed_s
    ways: dict[str, Any] = record.result.setdefault("ways", {})
    planned = [one for one in stages(visit.settings["batch"], visit.settings["device"]) if one.kind == "bricks"]
    for one in planned:
        if one.batch is not None or one.name in ways:
            continue
        if time.monotonic() >= until:
            return
        ways[one.name] = _checked(visit, one)
        visit.folder.save()
    record.status = "done"


def _checked(visit: Visit, stage: Stage) -> dict[str, Any]:
    """What becomes of a few bricks: how many agree, and why others do not."""
    found: dict[str, Any] = {"counts": {}, "reasons": []}
    suite = visit.suite(None)
    try:
        for one in agreements(
            suite,
            visit.backend(stage),
            keys=set(_different(suite)),
            device=visit.settings["device"],
            options=visit.options(stage),
            dtype=stage.dtype,
            timeout_s=_ITEM_TIMEOUT_S,
        ):
            verdict = str(one.verdict)
            found["counts"][verdict] = found["counts"].get(verdict, 0) + 1
            if one.reason:
                found["reasons"].append(f"{' '.join(one.operators)}: {one.reason}")
    except DlbricksError as error:
        found["reasons"].append(str(error))
    return found


def _different(suite: Suite) -> Iterator[str]:
    """Bricks of operators that are as different as there are, of which each library has one at least."""
    seen: dict[str, list[str]] = {}
    for key in suite.keys:
        seen.setdefault(" ".join(suite.brick(key).operators), []).append(key)
    for name in _OPERATORS:
        if name in seen:
            yield seen[name][len(seen[name]) // 2]
