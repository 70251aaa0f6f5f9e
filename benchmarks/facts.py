"""Shared parts of the benchmarks: the zoo's list, provenance of figures, quietness, and costs of a run."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from dlbricks import __version__
from dlbricks.db import Store, Subject
from dlbricks.db.samples.statistics import BASELINE, Baseline
from dlbricks.generator.measurement.pace import RunCosts
from dlbricks.generator.measurement.run import RunReport

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
    return entries().get(name.partition("@")[0], {"kind": "?", "family": "-", "half": "?"})


def chosen(models: Sequence[str] | None, halves: Sequence[str]) -> list[str]:
    """Return the models of a benchmark.

    Args:
        models: Requested names; None for the whole list.
        halves: Only models of these halves (``HALVES``); empty for all.

    Raises:
        SystemExit: No model is left.
    """
    found = [name for name in models or entries() if not halves or entry(name)["half"] in halves]
    if not found:
        raise SystemExit(f"no model is of the half {', '.join(halves)}: see {_LIST.name}, or leave --half out")
    return found


def restriction(halves: Sequence[str]) -> str:
    """Return the part of a file's name for restricted halves; empty for all."""
    return "".join(f"-{half}" for half in HALVES if half in halves)


def accuracy_name(found: Mapping[str, Any]) -> str:
    """Return the name of an accuracy's file."""
    backend = found["stack"]["backend"]
    name = "accuracy-" if backend == "onnxruntime" else f"accuracy-{backend}-"
    name += "".join(f"{option}={value}-" for option, value in sorted((found.get("given") or {}).items()))
    name += f"{found['graph']}-g{found['granularity']}-t{found['threads']}-b{found['batch']}"
    name += f"-{found['cache']}" if found.get("cache", "model") != "model" else ""
    name += f"-n{found['neighbour']['duty']:g}" if found["neighbour"] else ""
    name += "-elsewhere" if found.get("generated_with") else ""
    return name + restriction(found.get("half") or ())


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
    assert all(isinstance(found, list) for found in probes)
    baseline = Baseline.of((), [Baseline(*found) for found in probes])  # type: ignore[misc]
    blocks = store.blocks_of(list(measurements))
    visits = {visit for found in blocks.values() for block in found for visit in block.visits}
    if baseline is None or not visits:
        return {"quiet_share": None, "state": "not known"}
    share = statistics.fmean(baseline.quiet(visit) for visit in visits)
    return {
        "quiet_share": share,
        "state": "quiet" if share >= QUIET else "as it is",
        "visits": len(visits),
        "probes_ns": asdict(baseline),
    }


def earlier(
    path: Path, keys: Mapping[str, str], done: RunReport, *, threads: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Means of models in milliseconds as another database has them, by name, and how quiet it was then.

    Args:
        path: The database.
        keys: Of the models, by name.
        done: A run on the same system and stack.
        threads: Of the runtime.
    """
    where: dict[str, Any] = {"system": done.system, "stack": done.stack, "cache": "model"}
    wanted = list(keys.values())
    with Store.open(path, read_only=True) as store:
        known = {
            one.key: one for one in store.measurements(subject=Subject.MODEL, keys=wanted, threads=threads, **where)
        }
        state = quietness(store, [one.id for one in known.values()])
    return {name: known[key].latency_ns / 1e6 for name, key in keys.items() if key in known}, state


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


def share(part: float, whole: float) -> float | None:
    """Return a quotient; None without a divisor."""
    return part / whole if whole else None


def middle(values: Sequence[float]) -> float | None:
    """Return the median; None without values."""
    return statistics.median(values) if values else None


def within(values: Sequence[float], limit: float) -> float | None:
    """Return the share of values up to a limit."""
    return share(sum(value <= limit for value in values), len(values))


def versions(stack: Mapping[str, Any]) -> str:
    """Format the software of a stack."""
    return " ".join(f"{name} {version}" for name, version in stack.get("versions", {}).items())


def percent(value: float | None) -> str:
    """Format a share in per cent."""
    return "" if value is None else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    """Format a figure."""
    return "" if value is None else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def write(out: Path, name: str, result: Mapping[str, Any], text: str | None = None) -> None:
    """Write figures as JSON; print the text, or the figures without one."""
    out.mkdir(parents=True, exist_ok=True)
    figures = json.dumps(result, indent=1, allow_nan=False)
    (out / f"{name}.json").write_text(figures + "\n")
    print(text or figures)
