"""Facts about a run: models of the zoo's list, bricks, provenance, quietness of the machine, and costs."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from dlbricks import __version__
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store
from dlbricks.db.samples.statistics import BASELINE, Baseline
from dlbricks.generator.decomposition.generate import GenerateReport, generate
from dlbricks.generator.measurement.pace import RunCosts
from dlbricks.models import ModelSource
from figures import share

QUIET = 0.8
"""Share of quiet probes from which a run counts as quiet."""

HALVES = ("tune", "held", "new")
"""Parts of the zoo: the protocol was tuned on the first, the second was set aside then, the third was added later."""

_LIST = Path(__file__).with_name("zoo.csv")


@cache
def entries() -> dict[str, dict[str, str]]:
    """Return the rows of ``zoo.csv``, by the model's name."""
    with _LIST.open() as file:
        return {row.pop("name"): row for row in csv.DictReader(file)}


def entry(name: str) -> dict[str, str]:
    """Return kind, family and half of a model at any batch or dimensions."""
    row = entries().get(name.partition("@")[0], {"kind": "?", "family": "-", "half": "?"})
    return {column: row[column] for column in ("kind", "family", "half")}


def relatives_of(name: str) -> str:
    """Return the name under which a model's relatives are left out together; its own if it has none."""
    name = name.partition("@")[0]
    relatives = entries().get(name, {}).get("relatives", "-")
    return name if relatives == "-" else relatives


def chosen(models: Sequence[str] | None, halves: Sequence[str]) -> list[str]:
    """Return the models of a benchmark.

    Args:
        models: Requested names; None for all models of a half.
        halves: Only models of these halves (``HALVES``); empty for all.

    Raises:
        SystemExit: No model is left.
    """
    names = models or [name for name, row in entries().items() if row["half"] in HALVES]
    names = [name for name in names if not halves or entry(name)["half"] in halves]
    if not names:
        raise SystemExit(f"no model is of the half {', '.join(halves)}: see {_LIST.name}, or leave --half out")
    return names


def restricted(halves: Sequence[str]) -> list[str] | None:
    """Return the halves that alone were measured; None for both of the zoo that a method is fitted to, or all."""
    if {*halves} in ({*HALVES[:2]}, {*HALVES}, set()):
        return None
    return [half for half in HALVES if half in halves]


def restriction(halves: Sequence[str]) -> str:
    """Return the part of a file's name for restricted halves; empty for none."""
    return "".join(f"-{half}" for half in restricted(halves) or ())


def generated(sources: Sequence[ModelSource], out: Path, **cut: Any) -> tuple[GenerateReport, Suite]:
    """Write the bricks of models into a folder.

    Raises:
        SystemExit: No model can be decomposed.
    """
    report = generate(sources, out=out, annotate=True, **cut)
    if report.suite is None:
        raise SystemExit(f"no model can be decomposed: {report.rows[0].error}")
    return report, report.suite


def provenance(store: Store, system: str, stack: str) -> dict[str, Any]:
    """Return date, version, system and stack of figures."""
    machine, software = store.systems()[system], store.stacks()[stack]
    return {
        "schema": 2,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "dlbricks": __version__,
        "system": {"cpu": machine.cpu, "cores": machine.physical_cores, "memory_gib": machine.memory_gib},
        "stack": {"backend": software.backend, "versions": dict(software.versions), "options": dict(software.options)},
    }


def quietness(store: Store, measurements: Iterable[str]) -> dict[str, Any]:
    """How many of the visits of some measurements were quiet, by the probes around them.

    Args:
        store: The database.
        measurements: Their ids.
    """
    probes = [found for run in store.runs() if (found := (run.after or {}).get(BASELINE))]
    baseline = Baseline.of((), [Baseline(*found) for found in probes])
    blocks = store.blocks_of(list(measurements))
    visits = {visit for found in blocks.values() for block in found for visit in block.visits}
    if baseline is None or not visits:
        return {"quiet_share": None, "state": "not known"}
    quiet = statistics.fmean(baseline.quiet(visit) for visit in visits)
    return {
        "quiet_share": quiet,
        "state": "quiet" if quiet >= QUIET else "as it is",
        "visits": len(visits),
        "probes_ns": asdict(baseline),
    }


def spent(wall_s: float, costs: RunCosts) -> dict[str, Any]:
    """Return the parts of a run's wall time.

    ``beyond_timed`` and ``beyond_executions``: wall time beyond timed executions, and beyond all executions (warm-ups
    and probes included), as a share of these.
    """
    return {
        "wall_s": wall_s,
        **asdict(costs),
        "beyond_timed": share(wall_s - costs.timed_s, costs.timed_s),
        "beyond_executions": share(wall_s - costs.sample_s, costs.sample_s),
    }
