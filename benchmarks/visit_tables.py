"""The tables of visits: agreement, and each model's sums, fastest bricks and latency, with stack and date."""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlbricks import __version__, estimate
from dlbricks.analyzer.estimation.estimates import estimate_record
from dlbricks.bricks.decomposition import Failed
from dlbricks.bricks.graph.footprint import nearest_levels
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.reference import OVERHEAD, built_in_key
from dlbricks.constructor import Estimate
from dlbricks.db import Stack, Store, Subject, merge
from dlbricks.db.samples.rates import STREAM_SIZES, ceiling_names, ceiling_work, gemm_sizes_on, rate_of
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decompose import decompose
from dlbricks.generator.machine.cores import physical_cores
from dlbricks.models import ModelSource, find_models
from figures import number, percent, spread, table
from visit_plans import best_of, in_one_state
from visit_state import PLANS, Folder, Record

_AS_GOOD = 1.02
"""A first choice so near to the fastest is as fast."""

_FIGURES = (
    "measured_ms", "estimate_ms", "sequential_ms", "critical_path_ms", "lower_bound_sequential_ms",
    "lower_bound_critical_path_ms", "ratio", "benanza_ratio_sequential", "benanza_ratio_critical_path",
    "host_ms",
)  # fmt: skip

_PACKAGES = ("torch", "onnxruntime-gpu", "onnxruntime", "numpy")

Results = Mapping[str, Any]


def results(folders: Sequence[Folder]) -> dict[str, Any]:
    """Everything that the tables show, from the databases of some folders together.

    Args:
        folders: Of visits, to one machine or several.
    """
    with tempfile.TemporaryDirectory(prefix="dlbricks-visit-") as place, Store.open(Path(place) / "all.db") as store:
        for path in (path for folder in folders for path in folder.databases):
            merge(store, path)
        stacks = store.stacks()
        records = [
            (folder, record, record.stage["kind"], _about(record, stacks.get(record.stack)))
            for folder in folders
            for record in folder.records
        ]
        return {
            "dlbricks": __version__,
            "systems": {key: system for folder in folders for key, system in folder.stacks.items()},
            "visits": [visit for folder in folders for visit in folder.visits],
            "agreement": [
                about | record.result | {"device": folder.settings["device"]}
                for folder, record, kind, about in records
                if kind == "agreement" and record.result.get("bricks")
            ],
            "stages": [
                about | {"device": stacks[record.stack].device, "models": list(_rows(folder, record, store))}
                for folder, record, kind, about in records
                if record.stack in stacks and kind in {"bricks", "models"} and record.stage.get("granularity", 1) == 1
            ],
            "fusions": [
                about | {"models": list(_fusions(folder, record, store))}
                for folder, record, kind, about in records
                if record.stack and kind == "bricks" and record.stage.get("granularity", 1) > 1
            ],
            "kernels": [
                about | record.result
                for _, record, kind, about in records
                if kind == "kernels" and "views" in record.result
            ],
            "plans": [row for folder in folders for row in _plans(folder)],
            "ceilings": [
                about | {"rows": list(_rates(folder, record, store))}
                for folder, record, kind, about in records
                if kind == "ceilings" and record.status == "done"
            ],
            "not_done": [
                about | {"status": record.status, "reason": record.reason}
                for _, record, _, about in records
                if record.status != "done"
            ],
        }


def _about(record: Record, stack: Stack | None = None) -> dict[str, Any]:
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
    batch, threads = (
        record.stage["batch"],
        record.stage.get("threads") or folder.settings["threads"] or len(physical_cores()),
    )
    sources = find_models(folder.settings["models"], batches=[batch] if batch else [])
    place = {"system": record.system, "stack": record.stack, "dtype": record.stage["dtype"]}
    if record.stage["kind"] == "models":
        yield from _measured(sources, store, threads=threads, cache=record.stage["cache"], **place)
        return
    graph = record.stage.get("graph", "source")
    if graph != "source":
        place |= {"backend": folder.settings["backend"], "device": folder.settings["device"]}
    cut = Cut(1, graph=graph)
    found = estimate(sources, store=store, settings=cut, threads=threads, cache=record.stage["cache"], **place)
    for row in found:
        figures = estimate_record(row, explained=False)
        yield {
            "name": row.name,
            **{name: figures[name] for name in _FIGURES},
            "known_ms": row.sums.known_ms,
            "coverage": row.parts.coverage.sequences if row.parts.coverage else None,
            "note": _note(row),
        }


def _fusions(folder: Folder, record: Record, store: Store) -> Iterator[dict[str, Any]]:
    """Compare the measured bricks of several layers in each model with the framework's bricks of one layer.

    Each layer is counted in one brick at most: those that save most are taken first.
    """
    stage = record.stage
    layers = folder.find_measured(f"{stage['dtype']}-graph", record.system)
    if layers is None:
        return
    cut = Cut(stage["granularity"], overlap=True)
    batch = [stage["batch"]] if stage["batch"] else []
    for model in decompose(find_models(folder.settings["models"], batches=batch), cut):
        if isinstance(model, Failed):
            continue
        place = {"subject": Subject.BRICK, "system": record.system, "dtype": stage["dtype"]}
        fused_ns, layer_ns = (
            {
                (one.key, one.conditions.cache): one.latency_ns
                for one in store.measurements(keys=model.keys, stack=stack, **place)
            }
            for stack in (record.stack, layers.stack)
        )
        single = {part.layers[0]: part.key for part in model.sequences if len(part.layers) == 1}
        saved = []
        for part in (part for part in model.sequences if len(part.layers) > 1):
            level = next((one for one in nearest_levels(model.level) if (part.key, one) in fused_ns), "")
            alone = [layer_ns.get((single.get(index, ""), level)) for index in part.layers]  # in the same state
            if level and None not in alone:
                saved.append((sum(alone), fused_ns[part.key, level], {*part.layers}))
        taken: set[int] = set()
        chosen = []
        for alone_ns, together_ns, indices in sorted(saved, key=lambda one: one[1] - one[0]):
            if together_ns < alone_ns and not indices & taken:
                taken |= indices
                chosen.append((alone_ns, together_ns))
        yield {
            "name": model.name,
            "compared": len(saved),
            "faster": len(chosen),
            "layers_ms": sum(alone_ns for alone_ns, _ in chosen) / 1e6,
            "fused_ms": sum(together_ns for _, together_ns in chosen) / 1e6,
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
        pairs = [pair for row in in_one_state(mine) if (pair := best_of(row)) is not None]
        if not pairs:
            continue
        ratios = sorted(first / best for first, best in pairs)
        reasons = Counter(plan["reason"] for row in mine for plan in row["plans"] if plan["reason"])
        yield _about(record) | {
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


def markdown(data: Results) -> str:
    """Return the results as tables."""
    systems = [f"* System `{key[:8]}`: {_system(system)}" for key, system in data["systems"].items()]
    dates = sorted({visit["began"][:10] for visit in data["visits"]})
    not_done = [[row[name] for name in ("stage", "status", "reason")] for row in data["not_done"]]
    sections = {
        "Agreement with ONNX Runtime on the CPU": agreement(data),
        "Latency of models, ms": latencies(data),
        "Errors of estimates": errors(data),
        "Ceilings": ceilings(data),
        "Bricks of several layers": fusions(data),
        "What the libraries offer": plans(data),
        "Not done": table(("stage", "status", "reason"), not_done),
    }
    lines = ["# What visits measured", "", *systems, f"* {len(data['visits'])} visit(s), {', '.join(dates)}"]
    for title, text in sections.items():
        if text.count("\n") > 3:  # there are rows
            lines += ["", f"## {title}", text]
    return "\n".join(lines)


def _system(data: Results) -> str:
    system, packages = data["system"], data["packages"]
    parts = [system["cpu"], f"{system['physical_cores']} cores", *system["gpus"], f"Python {data['python']}"]
    return ", ".join(parts + [f"{name} {packages[name]}" for name in _PACKAGES if name in packages])


def agreement(data: Results) -> str:
    """Return how many bricks compute the same as on the CPU, and the reasons of the others."""
    verdicts = ("same", "different", "unsupported", "failed", "unchecked")
    rows = [
        (row["stage"], row["bricks"], *(row["counts"].get(verdict, 0) for verdict in verdicts),
         number(row["worst_error"]), "; ".join(f"{count} x {reason}" for reason, count in row["reasons"].items()))
        for row in data["agreement"]
    ]  # fmt: skip
    return table(("stage", "bricks", *verdicts, "worst error", "reasons"), rows)


def latencies(data: Results) -> str:
    """Return the measured latency of each model by stage."""
    measured = [
        (stage["stage"], row["name"], *(number(row[name]) for name in _FIGURES), row["note"] or "")
        for stage in data["stages"]
        for row in stage["models"]
    ]
    titles = (name.removesuffix("_ms").replace("_", " ") for name in _FIGURES)
    return table(("stage", "model", *titles, "note"), measured)


def errors(data: Results) -> str:
    """Return the errors of estimates by stage."""
    rows = []
    for stage in data["stages"]:
        distances = {row["name"]: abs(row["ratio"] - 1) for row in stage["models"] if row["ratio"] is not None}
        if distances:
            worst = max(distances, key=lambda name: distances[name])
            last = f"{percent(distances[worst])} ({worst})"
            rows.append((stage["stage"], len(distances), *map(percent, spread([*distances.values()])), last))
    return table(("", "models", "median error", "within 10 %", "worst"), rows)


def fusions(data: Results) -> str:
    """Return what bricks of several layers save in each model."""
    rows = [
        (stage["stage"], row["name"], f"{row['faster']} of {row['compared']}", number(row["layers_ms"]),
         number(row["fused_ms"]))
        for stage in data["fusions"]
        for row in stage["models"]
        if row["compared"]
    ]  # fmt: skip
    return table(("stage", "model", "faster", "their layers, ms", "fused, ms"), rows)


def ceilings(data: Results) -> str:
    """Return the highest rates that were reached."""
    rows = []
    for one in data["ceilings"]:
        rates = [max((row[name] for row in one["rows"] if row[name]), default=0) for name in ("flops_s", "bytes_s")]
        cells = [f"{rate:.{0 if rate >= 10 else 2}f}" if rate else "" for rate in (rates[0] / 1e12, rates[1] / 1e9)]
        rows.append([one["stage"].removeprefix("ceilings-"), *cells])
    return table(("", "products, TFLOP/s", "memory, GB/s"), rows)


def plans(data: Results) -> str:
    """Return how far the libraries' own choices are from their fastest plans."""
    rows = []
    for one in data["plans"]:
        cells = [one["stage"].removeprefix("plans-"), one["bricks"], f"{one['timed']} of {one['plans']}"]
        rows.append([*cells, one["first_is_best"], *(number(one[name]) for name in ("median", "most"))])
    return table(("", "bricks", "plans timed", "first is fastest", "first / fastest, median", "most"), rows)
