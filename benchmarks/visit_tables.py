"""The tables of visits: agreement, and each model's sums, fastest bricks and latency, with stack and date."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlbricks import __version__, estimate
from dlbricks.analyzer.estimation.estimates import estimate_record
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.reference import OVERHEAD, built_in_key
from dlbricks.constructor import Estimate
from dlbricks.db import Stack, Store, Subject, merge
from dlbricks.db.samples.rates import (
    STREAM_SIZES,
    ceiling_names,
    ceiling_work,
    gemm_sizes_on,
    rate_of,
)
from dlbricks.generator.machine.cores import physical_cores
from dlbricks.models import ModelSource, find_models
from facts import versions
from visit_folder import PLANS, Folder, Record
from visit_plans import WANTED, best_of

_AS_GOOD = 1.02
"""A first choice so near to the fastest is as fast."""

_FIGURES = (
    "measured_ms", "estimate_ms", "sequential_ms", "critical_path_ms", "lower_bound_sequential_ms",
    "lower_bound_critical_path_ms", "ratio", "benanza_ratio_sequential", "benanza_ratio_critical_path",
    "host_ms",
)  # fmt: skip

_COLUMNS = (
    "model", "measured", "estimate", "sequential", "critical path", "bound, sequential", "bound, critical path",
    "estimate / measured", "Benanza ratio, sequential", "Benanza ratio, critical path", "launches",
    "bricks measured",
)  # fmt: skip


def results(folders: Sequence[Folder]) -> dict[str, Any]:
    """Everything that the tables show, from the databases of some folders together.

    Args:
        folders: Of visits, to one machine or several.
    """
    with tempfile.TemporaryDirectory(prefix="dlbricks-visit-") as place, Store.open(Path(place) / "all.db") as store:
        for folder in folders:
            for path in folder.databases:
                merge(store, path)
        stacks = store.stacks()
        return {
            "dlbricks": __version__,
            "systems": {key: found for folder in folders for key, found in folder.stacks.items()},
            "visits": [visit for folder in folders for visit in folder.visits],
            "agreement": [
                _about(record, None) | record.result | {"device": folder.settings["device"]}
                for folder in folders
                for record in folder.records
                if record.stage["kind"] == "agreement" and record.result.get("bricks")
            ],
            "stages": [
                _about(record, stacks.get(record.stack))
                | {"device": folder.settings["device"], "models": list(_rows(folder, record, store))}
                for folder in folders
                for record in folder.records
                if record.stack in stacks and record.stage["kind"] in {"bricks", "models"}
            ],
            "kernels": [
                _about(record, stacks.get(record.stack)) | record.result
                for folder in folders
                for record in folder.records
                if record.stage["kind"] == "kernels" and "views" in record.result
            ],
            "plans": [found for folder in folders for found in _plans(folder)],
            "ceilings": [
                _about(record, stacks.get(record.stack)) | {"rows": list(_rates(folder, record, store))}
                for folder in folders
                for record in folder.records
                if record.stage["kind"] == "ceilings" and record.status == "done"
            ],
            "not_done": [
                _about(record, stacks.get(record.stack)) | {"status": record.status, "reason": record.reason}
                for folder in folders
                for record in folder.records
                if record.status != "done"
            ],
        }


def _about(record: Record, stack: Stack | None) -> dict[str, Any]:
    return {
        "stage": record.stage["name"],
        "system": record.system,
        "stack": record.stack,
        "backend": stack.backend if stack else None,
        "versions": dict(stack.versions) if stack else {},
        "options": dict(stack.options) if stack else dict(record.stage["options"]),
        **{name: record.stage[name] for name in ("dtype", "cache", "batch")},
    }


def _rows(folder: Folder, record: Record, store: Store) -> Iterator[dict[str, Any]]:
    """Each model of a stage that measured bricks, or models alone."""
    batch, threads = record.stage["batch"], folder.settings["threads"] or len(physical_cores())
    sources = find_models(folder.settings["models"], batches=[batch] if batch else [])
    place = {"system": record.system, "stack": record.stack, "dtype": record.stage["dtype"]}
    if record.stage["kind"] == "models":
        yield from _measured(sources, store, threads=threads, cache=record.stage["cache"], **place)
        return
    found = estimate(sources, store=store, granularity=1, threads=threads, cache=record.stage["cache"], **place)
    plans = _plans_for(folder, record)
    for row in found:
        figures = estimate_record(row, explained=False)
        yield {
            "name": row.name,
            **_with_plans(row, plans),
            **{name: figures[name] for name in _FIGURES},
            "known_ms": row.sums.known_ms,
            "coverage": row.parts.coverage.sequences if row.parts.coverage else None,
            "note": _note(row),
        }


def _rates(folder: Folder, record: Record, store: Store) -> Iterator[dict[str, Any]]:
    """Return the machine's highest rates by network, without networks that are shorter than a call."""
    device = folder.settings["device"]
    products = ceiling_names((), gemm_sizes=gemm_sizes_on(device))
    keys = {built_in_key(name): name for name in (OVERHEAD, *products, *ceiling_names(STREAM_SIZES, gemm_sizes=()))}
    place = {"system": record.system, "stack": record.stack, "dtype": record.stage["dtype"], "cache": "hot"}
    measured = {keys[one.key]: one for one in store.measurements(subject=Subject.REFERENCE, keys=list(keys), **place)}
    call = measured.pop(OVERHEAD, None)
    for name, one in sorted(measured.items(), key=lambda item: item[1].latency_ns):
        rate = rate_of(name, one, call, device)
        if rate is not None:
            flops, moved = ceiling_work(name)
            per_s = {"flops_s": rate.best if flops else None, "bytes_s": None if flops else rate.best}
            yield {"network": name, "working_set": moved, "latency_ms": one.latency_ns / 1e6, **per_s}


def _plans(folder: Folder) -> Iterator[dict[str, Any]]:
    """Of each library and precision: how many plans there are, and how far its own choice is from the fastest."""
    rows = folder.rows(PLANS)
    for record in folder.records:
        if record.stage["kind"] != "plans" or not record.stack:
            continue
        mine = _of(record, rows)
        pairs = [pair for row in mine if (pair := best_of(row)) is not None]
        if not pairs:
            continue
        ratios = sorted(first / best for first, best in pairs)
        reasons = Counter(plan["reason"] for row in mine for plan in row["plans"] if plan["reason"])
        yield _about(record, None) | {
            "backend": record.stage["backend"],
            "status": record.status,
            "bricks": len(mine),
            "plans": sum(len(row["plans"]) for row in mine),
            "timed": sum(plan["ns"] is not None for row in mine for plan in row["plans"]),
            "first_is_best": sum(ratio < _AS_GOOD for ratio in ratios),
            "median": statistics.median(ratios),
            "mean": statistics.fmean(ratios),
            "most": ratios[-1],
            "untimed": dict(reasons.most_common()),
        }


def _of(record: Record, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    place = {"system": record.system, "stack": record.stack, "dtype": record.stage["dtype"]}
    return [row for row in rows if place.items() <= row.items() and row.get("batch") == record.stage["batch"]]


def _plans_for(folder: Folder, record: Record) -> dict[str, tuple[float, float]]:
    """By brick, of the libraries in the precision of a stage: their first choice and the fastest plan, in ms."""
    rows = folder.rows(PLANS)
    tf32 = record.stage["options"].get("tf32")
    found: dict[str, tuple[float, float]] = {}
    for other in folder.records:
        alike = all(other.stage[name] == record.stage[name] for name in ("dtype", "batch"))
        if other.stage["kind"] == "plans" and alike and other.stage["options"].get("tf32") == tf32:
            for row in _of(other, rows):
                if (pair := best_of(row)) is not None:
                    found[row["key"]] = (pair[0] / 1e6, pair[1] / 1e6)
    return found


def _with_plans(row: Estimate, plans: Mapping[str, tuple[float, float]]) -> dict[str, float | None]:
    """Return the time of a model's convolutions and products in the libraries, and its fastest bricks with them."""
    known = [plans[one.key] for one in row.parts.sequences if one.key in plans]
    asked = sum(not WANTED.isdisjoint(one.op_types) for one in row.parts.sequences)
    all_known = bool(known) and len(known) == asked
    bounds = [
        min((ms for ms in (one.lower_bound_ms, plans.get(one.key, (None, None))[1]) if ms is not None), default=None)
        for one in row.parts.sequences
    ]
    whole = bool(bounds) and None not in bounds
    return {
        "plans_first_ms": math.fsum(first for first, _ in known) if all_known else None,
        "plans_best_ms": math.fsum(best for _, best in known) if all_known else None,
        "bound_with_plans_ms": math.fsum(ms for ms in bounds if ms is not None) if all_known and whole else None,
    }


def _measured(
    sources: Sequence[ModelSource], store: Store, *, system: str, stack: str, **where: Any
) -> Iterator[dict[str, Any]]:
    """Models without bricks: their latency alone."""
    for source in sources:
        key = build_graph(source.skeleton()).key
        found = store.measurements(subject=Subject.MODEL, keys=[key], system=system, stack=stack, **where)
        if found:
            empty = dict.fromkeys((*_FIGURES, "known_ms", "coverage", "note"))
            yield empty | {"name": source.name, "measured_ms": found[0].latency_ns / 1e6}


def _note(row: Estimate) -> str | None:
    if row.error:
        return row.error
    if row.parts.missing:
        return f"{len(row.parts.missing)} bricks not measured, the first: {row.parts.missing[0].reason}"
    return row.truth.reason


def markdown(found: Mapping[str, Any]) -> str:
    """Return the results as tables."""
    lines = ["# What visits measured", ""]
    for key, system in found["systems"].items():
        lines.append(f"* System `{key[:8]}`: {_system(system)}")
    dates = sorted({visit["began"][:10] for visit in found["visits"]})
    lines += [
        f"* {len(found['visits'])} visit(s), {', '.join(dates)}; dlbricks {found['dlbricks']}",
        "",
        "Latencies are in milliseconds: of bricks at G=1, and of whole models that were visited in turn with them.",
        *_agreement(found["agreement"]),
        *_gains(found["stages"]),
        *_ceilings(found.get("ceilings", [])),
        *_choices(found),
    ]
    for stage in found["stages"]:
        lines += _stage(stage)
    if found["not_done"]:
        lines += ["", "## Not done", ""]
        lines += [
            ": ".join(filter(None, (f"* {row['stage']}", row["status"], row["reason"]))) for row in found["not_done"]
        ]
    return "\n".join(lines) + "\n"


def _system(found: Mapping[str, Any]) -> str:
    system, packages = found["system"], found["packages"]
    parts = [system["cpu"], f"{system['physical_cores']} cores", *system["gpus"], f"Python {found['python']}"]
    runtime = "onnxruntime-gpu" if "onnxruntime-gpu" in packages else "onnxruntime"
    parts += [f"{name} {packages[name]}" for name in ("torch", runtime, "numpy") if name in packages]
    return ", ".join(parts)


def _agreement(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "", "## Agreement with ONNX Runtime on the CPU", "",
        "| stage | device | system | bricks | same | different | unsupported | failed | unchecked | worst error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    verdicts = ("same", "different", "unsupported", "failed", "unchecked")
    for row in rows:
        counts = " | ".join(str(row["counts"].get(verdict, 0)) for verdict in verdicts)
        worst = "" if row["worst_error"] is None else f"{row['worst_error']:.1e}"
        lines.append(
            f"| {row['stage']} | {row['device']} | `{row['system'][:8]}` | {row['bricks']} | {counts} | {worst} |"
        )
    wrong = [f"* {row['stage']}: {count} x {reason}" for row in rows for reason, count in row["reasons"].items()]
    return [*lines, "", *wrong] if wrong else lines


def _ceilings(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of the machine's highest rates, by network."""
    if not stages:
        return []
    lines = ["", "## Ceilings", "", "| stage | network | MiB | TFLOP/s | GB/s |", "|---|---|---|---|---|"]
    for stage in stages:
        for row in stage["rows"]:
            mib = row["working_set"] / (1 << 20)
            rates = (row["flops_s"] and row["flops_s"] / 1e12, row["bytes_s"] and row["bytes_s"] / 1e9)
            lines.append(f"| {stage['stage']} | {row['network']} | {mib:.4g} | {' | '.join(map(_number, rates))} |")
    return lines


def _choices(found: Mapping[str, Any]) -> list[str]:
    """Return the table of the libraries' plans and their savings."""
    if not found["plans"]:
        return []
    lines = [
        "", "## What the libraries offer", "",
        "Each plan of each brick with a convolution (cuDNN) or product (cuBLAS); first: the library's own choice.", "",
        "| stage | bricks | plans | timed | first is fastest | first / fastest, median | mean | most |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in found["plans"]:
        counts = " | ".join(str(row[name]) for name in ("bricks", "plans", "timed", "first_is_best"))
        ratios = " | ".join(f"{row[name]:.2f}" for name in ("median", "mean", "most"))
        lines.append(f"| {row['stage']} | {counts} | {ratios} |")
    for stage in found["stages"]:
        rows = [row for row in stage["models"] if row.get("plans_best_ms") is not None]
        if stage["options"].get("mode") != "graph" or not any(row["measured_ms"] for row in rows):
            continue
        lines += [
            "", f"### Convolutions and products, {stage['stage']}", "",
            "| model | measured | the libraries' choices | fastest plans | bound with these | bound / measured |",
            "|---|---|---|---|---|---|",
        ]  # fmt: skip
        for row in rows:
            bound, measured = row["bound_with_plans_ms"], row["measured_ms"]
            cells = [measured, row["plans_first_ms"], row["plans_best_ms"], bound]
            cells.append(None if bound is None or measured is None else bound / measured)
            lines.append(f"| {row['name']} | {' | '.join(map(_number, cells))} |")
    return lines


def _gains(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Compare measured models with the first stage of the same system and batch, which is plain float32."""
    lines: list[str] = []
    for system, batch in dict.fromkeys((stage["system"], stage["batch"]) for stage in stages):
        group = [stage for stage in stages if (stage["system"], stage["batch"]) == (system, batch)]
        group = [stage for stage in group if any(map(_latency, stage["models"]))]
        times = [{row["name"]: _latency(row) for row in stage["models"]} for stage in group]
        if len(group) < 2:
            continue
        lines += [
            "", f"## Measured models, batch {batch or 'of their own'}, on `{system[:8]}`", "",
            f"| model | {' | '.join(stage['stage'] for stage in group)} |",
            "|---|" + "---|" * len(group),
        ]  # fmt: skip
        for name, base in times[0].items():
            cells = [_number(base), *(_gain(base, other.get(name)) for other in times[1:])]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _latency(row: Mapping[str, Any]) -> float | None:
    latency: float | None = row["measured_ms"]
    return latency


def _stage(stage: Mapping[str, Any]) -> list[str]:
    rows = stage["models"]
    if not any(row["coverage"] for row in rows):
        return []  # nothing of it is measured yet, or models alone, which stand above
    if not any(row["measured_ms"] for row in rows):
        shares = ", ".join(f"{row['name']} {row['coverage'] or 0:.0%}" for row in rows)
        return ["", f"## {stage['stage']}", "", f"Bricks alone. Sequences of a model that it has: {shares}."]
    software, options = versions(stage), " ".join(f"{name}={value}" for name, value in stage["options"].items())
    lines = [
        "", f"## {stage['stage']}", "",
        f"System `{stage['system'][:8]}`, stack `{stage['stack'][:8]}`: {software}, {stage['device']}, {options}.",
        f"Computed in {stage['dtype']}, caches {stage['cache']}, batch {stage['batch'] or 'of the models'}.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        times = [_number(row[name]) for name in _FIGURES[:6]]
        ratios = [_number(row.get(name)) for name in _FIGURES[6:]]
        share = "" if row["coverage"] is None else f"{row['coverage']:.0%}"
        lines.append(f"| {row['name']} | {' | '.join([*times, *ratios])} | {share} |")
    return [*lines, "", *(f"* {row['name']}: {row['note']}" for row in rows if row["note"])]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _gain(base: float | None, value: float | None) -> str:
    """Format a latency, and its speed-up over the base."""
    return _number(value) if base is None or value is None else f"{value:.4g} (x {base / value:.2f})"
