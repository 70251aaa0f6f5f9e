"""How well estimates add up: the measuring stick of issue 3.

    python benchmarks/accuracy.py [--models NAME ...] [--threads 1] [--batch 1] [--db FILE] [--out docs/results]

The zoo is ``benchmarks/zoo.csv`` (the exports need the ``zoo`` extra); it says which models the protocol was tuned on
and which were set aside. Whole models and all bricks are measured interleaved in one run, for our method (bricks of
the executed graph, each at the reuse distance of its model) and for the paper's (bricks of the source graph, G=1,
default optimisation, plain repetition) in a run of its own, each beside its own ground truth. The executed graph's
bricks are measured hot as well, and the values that models compute with are examined: what the attribution wants.

Written under ``--out``: ``accuracy-t<threads>-b<batch>.json`` (every figure, with the stack it came from) and ``.md``.

Benchmarking speed-up is the sum of the models' latencies over what the suite runs, at equal sample counts: a pass
over K copies is K samples, and heads and warm-ups of a rotation count as cost, as do those of the models.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from dlbricks import __version__
from dlbricks.analyzer import plots
from dlbricks.bricks.graph.footprint import parse_level
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.constructor import Estimate, estimate
from dlbricks.db import Measurement, Store, Subject
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.costs import RunCosts
from dlbricks.generator.measurement.data.data_effects import measure_data, stored_data_effects
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import RunReport, run
from dlbricks.generator.worker.execution.rotor import head_share
from dlbricks.models import ModelSource, find_models

_LIST = Path(__file__).with_name("zoo.csv")
_TERMS = ("fusion", "layout", "overhead", "cache", "data", "gaps", "unexplained")


def main() -> None:
    """Measure, print and write."""
    options = _options()
    entries = _entries()
    names = options.models or list(entries)
    sources = find_models(names, batches=[options.batch] if options.batch != 1 else [])
    if options.granularities:
        _sweep(sources, options)
        return
    if options.walls:
        _walls(sources, options)
        return
    begun = time.monotonic()
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="dlbricks-accuracy-")))
        store = resources.enter_context(Store.open(options.db or folder / "accuracy.db"))
        result = _experiment(sources, store, folder, options)
    for row in result["models"]:
        row["name"] = row["name"].partition("@")[0]
        row.update(entries.get(row["name"], {"kind": "?", "family": "-", "half": "?"}))
    result["summary"] = {
        label: _summary(rows)
        for label, rows in {
            "all": result["models"],
            **{f"{key} {value}": [row for row in result["models"] if row[key] == value]
               for key, values in {"half": ("tune", "held"), "kind": ("cnn", "transformer")}.items()
               for value in values},
        }.items()
    }  # fmt: skip
    result["wall_s"] = time.monotonic() - begun
    target = options.out / f"accuracy-t{options.threads}-b{options.batch}"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    text = _report(result)
    target.with_suffix(".md").write_text(text)
    print(text)


@cache
def _entries() -> dict[str, dict[str, str]]:
    """The rows of ``zoo.csv``, by the model's name."""
    with _LIST.open() as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", help="instead of benchmarks/zoo.csv")
    parser.add_argument("--threads", type=int, default=1, help="0: all cores")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--granularity", type=int, default=1)
    parser.add_argument("--granularities", help="FIRST-LAST: accuracy and speed-up of our method against G, instead")
    parser.add_argument("--walls", action="store_true", help="wall time of the suite and of the models alone, instead")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paper-item-budget", type=float, default=0.03, help="seconds per brick of the paper's method")
    parser.add_argument("--memory-gib", type=int, default=4, help="networks of the paper's method kept loaded at once")
    parser.add_argument("--only-ours", action="store_true", help="leave the paper's method and the attribution out")
    parser.add_argument("--data", nargs="*", help="models whose values are examined; default all")
    parser.add_argument("--db", type=Path, help="keep the measurements; a second call goes on with them")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    return parser.parse_args()


def _experiment(sources: Sequence[ModelSource], store: Store, folder: Path, options: Any) -> dict[str, Any]:
    """All measurements and the estimates from them."""
    threads, granularity = options.threads, options.granularity
    runtime = generate(sources, granularity=granularity, out=folder / "runtime", graph="runtime", threads=threads)
    usable = [source for source, row in zip(sources, runtime.rows, strict=True) if row.error is None]
    shape = {"threads": threads, "processes": options.processes, "rounds": options.rounds}
    assert runtime.suite is not None
    ours = run(runtime.suite, store=store, models=usable, cache="model", **shape)
    paper = None
    if not options.only_ours:
        generate(usable, granularity=1, out=folder / "source")
        budget = options.paper_item_budget
        shape["memory_bytes"] = options.memory_gib << 30
        paper = run(folder / "source", store=store, models=usable, cache="hot", item_budget_s=budget, **shape)
        run(runtime.suite, store=store, cache="hot", item_budget_s=budget, **shape)
    keys = {source.name: build_graph(source.skeleton()).key for source in usable}
    where = {"system": ours.system, "stack": ours.stack, "threads": next(iter(store.combinations())).conditions.threads}
    asked = [source for source in usable if options.data is None or source.name.partition("@")[0] in options.data]
    examined = stored_data_effects(store, list(keys.values()), **where)
    fresh = [source for source in asked if keys[source.name] not in examined]
    if fresh:
        measure_data(fresh, store=store, threads=threads, processes=2, rounds=1)
    best = estimate(usable, store=store, granularity=granularity, graph="runtime", cache="model", threads=threads)
    printed = [None] * len(usable)
    if paper is not None:
        printed = estimate(usable, store=store, granularity=1, graph="source", cache="hot", threads=threads)
    costs = _costs(store, [row for row in best if row.error is None], keys)
    system, stack = store.systems()[ours.system], store.stacks()[ours.stack]
    return {
        "schema": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "dlbricks": __version__,
        "system": {"cpu": system.cpu, "cores": system.physical_cores, "memory_gib": system.memory_gib},
        "stack": {"backend": stack.backend, "versions": dict(stack.versions), "options": dict(stack.options)},
        "threads": best[0].threads,
        "batch": options.batch,
        "granularity": granularity,
        "processes": options.processes,
        "rounds": options.rounds,
        "bricks": {"sequences": runtime.sequences, "unique": runtime.unique, "measured": ours.bricks},
        "runs": {"ours": _run_row(ours), "paper": None if paper is None else _run_row(paper)},
        "models": [_row(one, other) for one, other in zip(best, printed, strict=True)],
        "errors": {row.name: row.error for row in runtime.rows if row.error is not None},
        "speedup": costs,
    }


def _sweep(sources: Sequence[ModelSource], options: argparse.Namespace) -> None:
    """Our method at several granularities, each in a run of its own: the paper's Figures 11 and 12."""
    first, _, last = options.granularities.partition("-")
    options.only_ours, options.data = True, []
    rows, points = [], []
    for granularity in range(int(first), int(last or first) + 1):
        options.granularity = granularity
        with tempfile.TemporaryDirectory(prefix="dlbricks-accuracy-") as place:
            folder = Path(place)
            with Store.open(folder / "accuracy.db") as store:
                result = _experiment(sources, store, folder, options)
        ratios = {row["name"]: row["ratio"] for row in result["models"] if row["ratio"] is not None}
        errors = [abs(ratio - 1) for ratio in ratios.values()]
        rows.append(
            {
                "granularity": granularity,
                "sequences": result["bricks"]["sequences"],
                "unique": result["bricks"]["unique"],
                "ratios": ratios,
                "geomean_ratio": math.exp(statistics.fmean(map(math.log, ratios.values()))),
                "median_error": statistics.median(errors),
                "worst": max(errors),
                "speedup": result["speedup"]["speedup"],
                "run_wall_s": result["runs"]["ours"]["wall_s"],
            }
        )
        points.append(plots.GranularityPoint(granularity, tuple(ratios.values()), result["speedup"]["speedup"]))
        print(json.dumps(rows[-1]), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    target = options.out / "accuracy-granularity"
    facts = {key: result[key] for key in ("date", "dlbricks", "system", "stack", "threads", "processes", "rounds")}
    target.with_suffix(".json").write_text(json.dumps({**facts, "granularities": rows}, indent=1) + "\n")
    figure = plots.accuracy_against_granularity(points, title="Our method: accuracy and speed-up against G")
    plots.save(figure, target.with_suffix(".png"))


def _walls(sources: Sequence[ModelSource], options: argparse.Namespace) -> None:
    """What either way of benchmarking takes, each in a run of its own, and how wide its intervals of the models are."""
    threads, shape = options.threads, {"processes": options.processes, "rounds": options.rounds}
    with tempfile.TemporaryDirectory(prefix="dlbricks-accuracy-") as place:
        folder = Path(place)
        begun = time.monotonic()
        made = generate(
            sources, granularity=options.granularity, out=folder / "suite", graph="runtime", threads=threads
        )
        generated = time.monotonic() - begun
        usable = [source for source, row in zip(sources, made.rows, strict=True) if row.error is None]
        assert made.suite is not None
        with Store.open(folder / "accuracy.db") as store:
            alone = measure(usable, store=store, threads=threads, **shape)
            suite = run(made.suite, store=store, cache="model", threads=threads, **shape)
            rows = estimate(usable, store=store, graph="runtime", cache="model", threads=threads)
    spans = {
        "models": [(row.ci95_ms, row.latency_ms) for row in alone.rows],
        "suite": [(row.ci95_ms, row.estimate_ms) for row in rows],
    }
    halves = {
        label: statistics.median((ends[1] - ends[0]) / 2 / middle for ends, middle in found if ends and middle)
        for label, found in spans.items()
    }
    result = {
        "schema": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "dlbricks": __version__,
        "threads": rows[0].threads,
        **shape,
        "models": len(usable),
        "bricks": made.unique,
        "generate_s": generated,
        "models_alone": {"wall_s": alone.wall_s, "median_half_width": halves["models"], **_spent(alone.costs)},
        "suite_alone": {"wall_s": suite.wall_s, "median_half_width": halves["suite"], **_spent(suite.costs)},
        "median_error": statistics.median(abs(row.ratio - 1) for row in rows if row.ratio is not None),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    (options.out / f"accuracy-wall-t{threads}.json").write_text(text + "\n")
    print(text)


def _spent(costs: RunCosts) -> dict[str, float]:
    return {"timed_s": costs.timed_s, "prepare_s": costs.prepare_s}


def _run_row(report: RunReport) -> dict[str, Any]:
    return {
        "bricks": report.bricks, "failed": report.failed, "wall_s": report.wall_s, "timed_s": report.timed_s,
        "prepare_s": report.prepare_s,
    }  # fmt: skip


def _row(ours: Estimate, paper: Estimate | None) -> dict[str, Any]:
    """One model."""
    row: dict[str, Any] = {
        "name": ours.name,
        "measured_ms": ours.measured_ms,
        "measured_ci95_ms": ours.measured_ci95_ms,
        "estimate_ms": ours.estimate_ms,
        "ci95_ms": ours.ci95_ms,
        "sequential_ms": ours.sequential_ms,
        "level": ours.level,
        "nodes": ours.layers,
        "unique": ours.unique,
        "ratio": _ratio(ours.estimate_ms, ours.measured_ms),
        "ratio_reason": ours.ratio_reason,
        "missing": len(ours.missing),
        "error": ours.error,
        "paper_ratio": None if paper is None else _ratio(paper.sequential_ms, paper.measured_ms),
        "paper_measured_ms": None if paper is None else paper.measured_ms,
    }
    for label, of in (("attribution", ours), ("paper_attribution", paper)):
        terms = of.attribution if of is not None else None
        row[label] = None if terms is None else {
            name: {"ms": term.ms, "ci95_ms": term.ci95_ms, "reason": term.reason} for name, term in terms.items()
        }  # fmt: skip
    return row


def _ratio(estimated: float | None, measured: float | None) -> float | None:
    return None if estimated is None or not measured else estimated / measured


def _summary(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What the issue asks for, over some models."""
    known = [row for row in rows if row["ratio"] is not None]
    if not known:
        return {"models": 0}
    errors = [abs(row["ratio"] - 1) for row in known]
    paper = [abs(row["paper_ratio"] - 1) for row in known if row["paper_ratio"] is not None]
    halves = [(row["ci95_ms"][1] - row["ci95_ms"][0]) / 2 / row["estimate_ms"] for row in known]
    inside = [row["ci95_ms"][0] <= row["measured_ms"] <= row["ci95_ms"][1] for row in known]
    return {
        "models": len(known),
        "median_error": statistics.median(errors),
        "mean_error": statistics.fmean(errors),
        "geomean_ratio": math.exp(statistics.fmean(math.log(row["ratio"]) for row in known)),
        "within_3": _share(error <= 0.03 for error in errors),
        "within_10": _share(error <= 0.10 for error in errors),
        "worst": max(errors),
        "worst_model": max(known, key=lambda row: abs(row["ratio"] - 1))["name"],
        "inside_interval": _share(inside),
        "median_half_width": statistics.median(halves),
        "unexplained_within_5": _share(size <= 0.05 for size in _unexplained(known, "attribution")),
        "paper_median_error": statistics.median(paper) if paper else None,
        "paper_within_10": _share(error <= 0.10 for error in paper) if paper else None,
        "paper_worst": max(paper, default=None),
        "paper_unexplained_within_5": _share(size <= 0.05 for size in _unexplained(known, "paper_attribution")),
    }


def _unexplained(rows: Iterable[dict[str, Any]], which: str) -> list[float]:
    found = []
    for row in rows:
        term = (row[which] or {}).get("unexplained")
        if term is not None and term["ms"] is not None:
            found.append(abs(term["ms"]) / row["measured_ms"])
    return found


def _share(truths: Iterable[bool]) -> float | None:
    listed = list(truths)
    return sum(listed) / len(listed) if listed else None


def _costs(store: Store, estimates: Sequence[Estimate], truths: Mapping[str, str]) -> dict[str, Any]:
    """Cost of one sample of every brick, and of every model; the speed-up as the zoo grows."""
    measured = {
        (found.key, found.conditions.cache): found
        for found in store.measurements(subject=Subject.BRICK)
        if parse_level(found.conditions.cache) is not None and not found.variant
    }
    models = {found.key: found for found in store.measurements(subject=Subject.MODEL) if not found.variant}
    rows: list[tuple[str, float, float, dict[tuple[str, str], float]]] = []
    plain: dict[tuple[str, str], float] = {}
    for one in estimates:
        if one.missing or one.measured_ms is None or one.level is None:
            continue
        truth = models[truths[one.name]]
        keys = {(part.key, one.level) for part in one.sequences}
        plain |= {key: measured[key].median_ns / 1e6 for key in keys}
        rows.append(
            (
                one.name,
                one.measured_ms,
                one.measured_ms * _warmed(store, truth),
                {key: _pass_ms(measured[key]) * _warmed(store, measured[key]) for key in keys},
            )
        )
    curve, cost, held = [], 0.0, {}
    for name, _, spent, bricks in rows:
        cost += spent
        held |= bricks
        curve.append({"models": len(curve) + 1, "added": name, "speedup": cost / sum(held.values())})
    latencies = sum(latency for _, latency, _, _ in rows)
    return {
        "models_ms": latencies,
        "models_with_warmups_ms": cost,
        "bricks_ms": sum(plain.values()),
        "bricks_with_copies_heads_and_warmups_ms": sum(held.values()),
        "speedup": cost / sum(held.values()) if held else None,
        "speedup_without_warmups": latencies / sum(_pass_ms(measured[key]) for key in held) if held else None,
        "speedup_latencies_only": latencies / sum(plain.values()) if plain else None,
        "curve": curve,
        "per_model": {name: {"cost_ms": spent, "suite_ms": sum(bricks.values())} for name, _, spent, bricks in rows},
        "families": _families([(name, spent, bricks) for name, _, spent, bricks in rows]),
    }


def _pass_ms(found: Measurement) -> float:
    """What one sample of a brick costs on a rotation: its share of all copies, and of the head that is run beside."""
    copies = found.unroll
    tail_ns = found.median_ns * (copies + 1)
    return (tail_ns + found.median_ns * head_share(tail_ns)) / copies / 1e6


def _warmed(store: Store, found: Measurement) -> float:
    """Executions per sample: warm-ups count as cost."""
    blocks = store.blocks(found.id)
    samples = sum(len(block.samples) for block in blocks)
    return (samples + sum(block.warmups for block in blocks)) / samples


def _families(models: Sequence[tuple[str, float, dict[tuple[str, str], float]]]) -> dict[str, Any]:
    entries = _entries()
    families: dict[str, list[tuple[float, dict[tuple[str, str], float]]]] = {}
    for name, latency, bricks in models:
        family = entries.get(name.partition("@")[0], {}).get("family", "-")
        if family != "-":
            families.setdefault(family, []).append((latency, bricks))
    return {
        family: {
            "models": len(members),
            "speedup": sum(latency for latency, _ in members)
            / sum({key: cost for _, bricks in members for key, cost in bricks.items()}.values()),
        }
        for family, members in families.items()
    }


def _report(result: dict[str, Any]) -> str:
    """The tables as Markdown."""
    lines = [
        f"# Accuracy: {len(result['models'])} models, {result['threads']} thread(s), batch {result['batch']}",
        "",
        (
            f"dlbricks {result['dlbricks']}, {result['date']}, {result['system']['cpu']}, "
            f"{result['system']['cores']} cores, {result['stack']['backend']} "
            f"{' '.join(f'{name} {version}' for name, version in result['stack']['versions'].items())}. Bricks of the "
            f"executed graph at G={result['granularity']}: {result['bricks']['unique']} unique of "
            f"{result['bricks']['sequences']}. Written by `benchmarks/accuracy.py`; the same figures, and all others, "
            "are in the JSON beside this file."
        ),
        "",
        (
            "| | models | median error | within 3 % | within 10 % | worst | inside interval | half-width "
            "| unexplained ≤ 5 % | paper's: median error | within 10 % | worst |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for label, row in result["summary"].items():
        if row["models"]:
            lines.append(
                f"| {label} | {row['models']} | {_percent(row['median_error'])} | {_percent(row['within_3'])} | "
                f"{_percent(row['within_10'])} | {_percent(row['worst'])} ({row['worst_model']}) | "
                f"{_percent(row['inside_interval'])} | {_percent(row['median_half_width'])} | "
                f"{_percent(row['unexplained_within_5'])} | {_percent(row['paper_median_error'])} | "
                f"{_percent(row['paper_within_10'])} | {_percent(row['paper_worst'])} |"
            )
    columns = ["model", "half", "nodes", "level", "measured ms", "ours", "95 % interval", "paper's", *_TERMS]
    lines += ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in result["models"]:
        terms = row["paper_attribution"] or {}
        cells = [_number((terms.get(term) or {}).get("ms")) for term in _TERMS]
        interval = row["ci95_ms"]
        lines.append(
            f"| {row['name']} | {row['half']} | {row['nodes']} | {row['level']} | {_number(row['measured_ms'])} | "
            f"{_number(row['ratio'])} | {'' if interval is None else f'{interval[0]:.2f} to {interval[1]:.2f}'} | "
            f"{_number(row['paper_ratio'])} | " + " | ".join(cells) + " |"
        )
    speedup, runs = result["speedup"], result["runs"]
    lines += [
        "",
        (
            "The terms, in milliseconds, are those of the paper's method: measured = bricks - fusion - layout - "
            "overhead + cache + data + gaps + unexplained."
        ),
        "",
        f"Benchmarking speed-up {_number(speedup['speedup'])} ({_number(speedup['speedup_without_warmups'])} "
        f"without warm-ups, {_number(speedup['speedup_latencies_only'])} by latencies alone); as the zoo grows: "
        + ", ".join(f"{step['models']}: {step['speedup']:.2f}" for step in speedup["curve"] if _shown(step["models"]))
        + ". Families: "
        + ", ".join(f"{name} ({found['models']}) {found['speedup']:.2f}" for name, found in speedup["families"].items())
        + ".",
        "",
        (
            f"Wall time of the run of our bricks and the models: {runs['ours']['wall_s']:.0f} s, of which loading "
            f"{runs['ours']['prepare_s']:.0f} s and timed passes {runs['ours']['timed_s']:.0f} s."
            if runs["ours"]["timed_s"]
            else "Our bricks and the models were measured by an earlier call."
        ),
        "",
    ]
    return "\n".join(lines)


def _shown(models: int) -> bool:
    return models in {1, 2, 3, 5} or models % 5 == 0


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


if __name__ == "__main__":
    main()
