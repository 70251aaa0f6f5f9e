"""Measure the cost of plants: each faulty model and its clean twin, alternating in one run."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx
from dlbricks.constructor.uncertainty.interval import Uncertainty
from dlbricks.db import Store, Subject
from dlbricks.generator.machine.cores import physical_cores
from dlbricks.generator.measurement.measure import MeasureReport, measure
from dlbricks.models import ModelSource, find_models
from facts import number, percent, provenance, quietness, versions
from plants.corpus import Plant, write

LEAST = 0.05
"""Share of the faulty model's latency that a plant costs at least."""

SIDES = ("faulty", "clean")


def groups(plants: Sequence[Plant]) -> dict[int, list[Plant]]:
    """Plants by the number of threads that they cost something with."""
    found: dict[int, list[Plant]] = {}
    for plant in plants:
        found.setdefault(plant.what.threads or len(physical_cores()), []).append(plant)
    return found


def sources(plants: Sequence[Plant], folder: Path) -> dict[tuple[str, str], ModelSource]:
    """Return the written models of some plants, by name and side."""
    places = [(plant.name, side) for plant in plants for side in SIDES]
    found = find_models([str(folder / side / f"{name}.onnx") for name, side in places])
    return dict(zip(places, found, strict=True))


def experiment(
    plants: Sequence[Plant], store: Store, folder: Path, protocol: Mapping[str, Any], earlier: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Measure every plant.

    Args:
        plants: The plants.
        store: An empty database.
        folder: Folder for the models.
        protocol: Visits, processes, sessions and seed.
        earlier: Rows of an earlier measurement, to be replaced for these plants.
    """
    layers = write(plants, folder)
    rows, began = [], time.monotonic()
    for threads, members in groups(plants).items():
        for plant in members:
            models = sources([plant], folder)
            done = measure(list(models.values()), store=store, threads=threads, **protocol)
            rows.append(
                {
                    "name": plant.name, "kind": plant.what.kind, "fault": plant.fault,
                    "architecture": plant.architecture, "half": plant.half, "threads": threads,
                    "layers": len(layers[plant.name, "faulty"]), **_executed(folder, plant.name), **_cost(store, done),
                    "date": datetime.now(UTC).isoformat(timespec="seconds"),
                }
            )  # fmt: skip
    now = {row["name"] for row in rows}
    rows += [row for row in earlier if row["name"] not in now]
    return {
        **provenance(store, done.system, done.stack),
        **protocol,
        "least": LEAST,
        "quiet": quietness(store, [one.id for one in store.measurements(subject=Subject.MODEL)]),
        "wall_s": time.monotonic() - began,
        "plants": rows,
        "summary": summary(rows),
    }


def _cost(store: Store, done: MeasureReport) -> dict[str, Any]:
    """Return the paired difference of two models."""
    errors = [row.error for row in done.rows if row.error]
    faulty, clean = (row.key for row in done.rows)
    if errors or faulty == clean:
        return {"reason": "; ".join(errors) or "the twins have one key: they were measured as one"}
    known = {one.key: one for one in store.measurements(subject=Subject.MODEL) if one.run == done.run}
    one, other = known[str(faulty)], known[str(clean)]
    difference = Uncertainty([one, other], store.blocks_of([one.id, other.id]))
    cost, half = (ns({one.id: 1.0, other.id: -1.0}) / 1e6 for ns in (difference.value_ns, difference.half_ns))
    whole = one.latency_ns / 1e6
    return {
        "faulty_ms": whole,
        "clean_ms": other.latency_ns / 1e6,
        "cost_ms": cost,
        "ci95_ms": [cost - half, cost + half],
        "share": cost / whole,
        "share_ci95": [(cost - half) / whole, (cost + half) / whole],
        "reason": None,
    }


def _executed(folder: Path, name: str) -> dict[str, dict[str, int]]:
    """Return the executed operators that only the faulty model has, and the ones that only its twin has."""
    import onnxruntime as ort

    counts = []
    for side in SIDES:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(folder / "optimised.onnx")
        ort.InferenceSession(str(folder / side / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
        graph = onnx.load(options.optimized_model_filepath).graph
        counts.append(Counter(node.op_type for node in graph.node))
    faulty, clean = counts
    return {"more": dict(sorted((faulty - clean).items())), "fewer": dict(sorted((clean - faulty).items()))}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many plants cost enough, and how much."""
    shares = [row["share"] for row in rows if row["reason"] is None]
    return {
        "plants": len(rows),
        "measured": len(shares),
        "kinds": len({row["kind"] for row in rows}),
        "architectures": len({row["architecture"] for row in rows}),
        "held": sum(row["half"] == "held" for row in rows),
        "enough": sum(share >= LEAST for share in shares),
        "surely": sum(row["share_ci95"][0] >= LEAST for row in rows if row["reason"] is None),
        "smallest": min(shares, default=None),
        "median": statistics.median(shares) if shares else None,
        "largest": max(shares, default=None),
    }


def report(result: Mapping[str, Any]) -> str:
    """As Markdown."""
    summary, system, software = result["summary"], result["system"], versions(result["stack"])
    lines = [
        "# What planted faults cost",
        "",
        (
            f"dlbricks {result['dlbricks']}, {software}, {result['date']}, {system['cpu']}, {system['cores']} cores. "
            f"{percent(result['quiet']['quiet_share'])} of the visits were quiet. Each faulty model and its clean twin "
            f"were visited in turn in one run ({result['visits']} visits, {result['processes']} processes of "
            f"{result['sessions']} sessions); the cost is their paired difference, as a share of the faulty model."
        ),
        "",
        (
            f"{summary['plants']} plants of {summary['kinds']} kinds in {summary['architectures']} architectures, "
            f"{summary['held']} of them in held-out ones. {summary['enough']} of {summary['measured']} cost at least "
            f"{percent(result['least'])}; of {summary['surely']} the whole interval says so. Smallest "
            f"{percent(summary['smallest'])}, median {percent(summary['median'])}, largest "
            f"{percent(summary['largest'])}. "
            "*Executed*: what the executed graph has more (+) and fewer (-) of than that of the twin."
        ),
        "",
        "| kind | fault | architecture | half | threads | layers | faulty, ms | clean | cost | interval | executed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(result["plants"], key=lambda row: (row["kind"], row["fault"], row["architecture"])):
        head = f"| {row['kind']} | {row['fault']} | {row['architecture']} | {row['half']} | {row['threads']} "
        executed = ", ".join(
            f"{sign}{count} {name}"
            for sign, part in (("+", "more"), ("-", "fewer"))
            for name, count in row[part].items()
        )
        if row["reason"] is not None:
            lines.append(f"{head}| {row['layers']} | | | {row['reason']} | | {executed} |")
            continue
        low, high = map(percent, row["share_ci95"])
        lines.append(
            f"{head}| {row['layers']} | {number(row['faulty_ms'])} | {number(row['clean_ms'])} | "
            f"{percent(row['share'])} | {low} to {high} | {executed} |"
        )
    return "\n".join([*lines, ""])
