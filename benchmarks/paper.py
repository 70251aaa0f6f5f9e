"""DLBricks' experiments (ICPE 2020, section 4) on this machine with the built-in zoo (issue 2).

    python benchmarks/paper.py [--models NAME ...] [--granularities 1-10] [--visits 24] [--out docs/results]

For every G the suite's bricks and all models are measured interleaved in one run of their own, so that what is
compared saw the same machine. Written under ``--out``: ``paper.json`` (all figures with the stack they came from),
``paper.md`` (the tables, the paper's figures beside ours) and the plots.

Definitions are the paper's: latency is the 20 % trimmed mean; normalised latency is constructed / measured, and
its aggregate the geometric mean; benchmarking speed-up is the sum of the models' latencies over the sum of the
unique bricks' latencies, that is, at equal sample counts. It is null where a brick failed: what was not measured is
not free. Beside it stands the time to create each session once, run it once, and take ten samples.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlbricks import __version__
from dlbricks.analyzer.report import plots
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.graph import ModelGraph, build_graph
from dlbricks.bricks.graph.similarity import jaccard
from dlbricks.bricks.sequence import LayerSequence
from dlbricks.bricks.suite.brick import Brick, build_brick
from dlbricks.bricks.suite.writing import write_suite
from dlbricks.db import Measurement, Store, Subject
from dlbricks.generator.measurement.run import run
from dlbricks.models import ModelSource, find_models

ZOO = [
    "alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512", "bert_base", "gpt2", "vit_b16",
]  # fmt: skip
PAPER_ACCURACY = {  # Figure 11, read off the plot: geometric mean of normalised latency at G = 1..10
    "c5.xlarge": [0.958, 0.978, 0.981, 0.984, 0.984, 0.985, 0.986, 0.987, 0.978, 0.974],
    "c5.2xlarge": [0.912, 0.921, 0.988, 1.004, 0.994, 0.993, 1.012, 1.000, 0.994, 0.993],
    "c4.xlarge": [1.091, 1.075, 1.103, 1.115, 1.090, 1.095, 1.087, 1.090, 1.100, 1.067],
    "c4.2xlarge": [1.055, 1.020, 1.017, 1.029, 1.038, 1.055, 1.043, 1.044, 1.033, 1.024],
}
PAPER_SPEEDUP = {  # Figure 12, read off the plot
    "c5.xlarge": [4.4, 3.7, 3.25, 3.1, 3.3, 3.15, 2.8, 2.9, 3.0, 3.05],
    "c5.2xlarge": [3.2, 3.0, 2.7, 2.6, 2.7, 2.6, 2.4, 2.45, 2.5, 2.5],
    "c4.xlarge": [3.9, 3.3, 2.9, 2.7, 2.95, 2.8, 2.5, 2.6, 2.7, 2.7],
    "c4.2xlarge": [4.2, 3.55, 3.2, 3.0, 3.2, 3.05, 2.8, 2.9, 3.0, 2.3],
}
PAPER_UNIQUE = (10_815, 1_529)  # section 2.2: layers of the 50 models, unique ones


def ten_samples_s(measurement: Measurement) -> float:
    """Seconds to create a session, run it once and take ten samples, from what was measured."""
    return ((measurement.load_ns or 0) + (measurement.first_run_ns or 0) + 10 * measurement.latency_ns) / 1e9


def disturbance(model: Measurement) -> float | None:
    """How much slower a model's visits were than quiet ones; its bricks were visited in turn with it."""
    return model.latency_ns / model.undisturbed_ns - 1 if model.undisturbed_ns else None


def experiment(
    sources: list[ModelSource], graphs: dict[str, ModelGraph], granularity: int, folder: Path, options: Any
) -> dict[str, Any]:
    """One granularity: generate, run bricks and models together, construct."""
    split: dict[str, list[LayerSequence]] = {name: sequences(graph, granularity) for name, graph in graphs.items()}
    bricks: dict[str, Brick] = {}
    for name, items in split.items():
        for sequence in items:
            if sequence.key not in bricks:
                bricks[sequence.key] = build_brick(graphs[name], sequence)
    suite = write_suite(folder / f"suite-{granularity}", bricks, granularity=granularity)
    with Store.open(folder / f"g{granularity}.db") as store:
        report = run(
            suite,
            store=store,
            models=sources,
            threads=options.threads,
            cache="hot",
            visits=options.visits,
            processes=options.processes,
            sessions=options.sessions,
        )
        brick_rows = {m.key: m for m in store.measurements(subject=Subject.BRICK)}
        model_rows = {m.key: m for m in store.measurements(subject=Subject.MODEL)}
        models = {}
        for name, items in split.items():
            measured = model_rows[graphs[name].key]
            missing = [s.key for s in items if s.key not in brick_rows]
            constructed = sum(brick_rows[s.key].summary.trimmed_mean_ns for s in items if s.key in brick_rows)
            models[name] = {
                "sequences": len(items),
                "unique": len({s.key for s in items}),
                "missing": len(missing),
                "constructed_ms": None if missing else constructed / 1e6,
                "measured_ms": measured.summary.trimmed_mean_ns / 1e6,
                "normalised": None if missing else constructed / measured.summary.trimmed_mean_ns,
                "disturbance": disturbance(measured),
            }
        ratios = [row["normalised"] for row in models.values() if row["normalised"] is not None]
        model_ms = sum(m.summary.trimmed_mean_ns for m in model_rows.values()) / 1e6
        brick_ms = sum(m.summary.trimmed_mean_ns for m in brick_rows.values()) / 1e6
        return {
            "granularity": granularity,
            "sequences": sum(len(items) for items in split.values()),
            "unique": len(bricks),
            "failed": report.failed,
            "models": models,
            "geomean": math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None,
            "min": min(ratios, default=None),
            "max": max(ratios, default=None),
            "disturbance": max(
                (row["disturbance"] for row in models.values() if row["disturbance"] is not None), default=None
            ),
            "median_error": statistics.median(abs(ratio - 1) for ratio in ratios) if ratios else None,
            "sum_models_ms": model_ms,
            "sum_bricks_ms": brick_ms,
            "speedup": None if report.failed else model_ms / brick_ms,
            "ten_samples_models_s": sum(ten_samples_s(m) for m in model_rows.values()),
            "ten_samples_bricks_s": sum(ten_samples_s(m) for m in brick_rows.values()),
            "run_wall_s": report.wall_s,
        }


def zoo(names: list[str]) -> tuple[list[ModelSource], dict[str, ModelGraph]]:
    """The models and their graphs."""
    sources = find_models(names)
    return sources, {source.name: build_graph(source.skeleton()) for source in sources}


def repetition(graphs: dict[str, ModelGraph]) -> dict[str, Any]:
    """Unique share and similarity of the zoo's layers (section 2.2, Figure 7)."""
    keys = {name: [graph.layers[index].key for index in graph.live] for name, graph in graphs.items()}
    names = list(keys)
    union = set().union(*keys.values())
    layers = sum(map(len, keys.values()))
    return {
        "layers": layers,
        "unique": len(union),
        "share": len(union) / layers,
        "models": {name: {"layers": len(found), "unique": len(set(found))} for name, found in keys.items()},
        "names": names,
        "similarity": [[jaccard(set(keys[a]), set(keys[b])) for b in names] for a in names],
    }


def provenance(store: Store) -> dict[str, Any]:
    """The system and the stack that the figures came from."""
    (system,), (stack,) = store.systems().values(), store.stacks().values()
    return {"dlbricks": __version__, "system": asdict(system), "stack": asdict(stack)}


def cell(value: float | None, form: str) -> str:
    """A number as it stands in a table; a dash for one that is not known."""
    return "-" if value is None else format(value, form)


def tables(figures: dict[str, Any]) -> str:
    """The figures as Markdown, the paper's beside ours."""
    layers = figures["repetition"]
    stack = figures["provenance"]["stack"]
    versions = ", ".join(f"{name} {version}" for name, version in stack["versions"])
    lines = [
        "# DLBricks' experiments on this machine",
        "",
        f"Measured on {figures['date']} with `{figures['command']}`: {versions},",
        f"{figures['provenance']['system']['cpu']} ({figures['provenance']['system']['physical_cores']} cores),",
        f"{figures['threads']} thread, hot caches, batch 1. The paper: MXNet 1.5.1 with MKL on four AWS systems,",
        "50 models (ICPE 2020, Figures 11 and 12, read off the plots).",
        "",
        "## Repetition",
        "",
        "| zoo | layers | unique | share |",
        "|---|---|---|---|",
        f"| ours ({len(layers['names'])} models) | {layers['layers']} | {layers['unique']} | {layers['share']:.1%} |",
        f"| paper (50 models) | {PAPER_UNIQUE[0]} | {PAPER_UNIQUE[1]} | {PAPER_UNIQUE[1] / PAPER_UNIQUE[0]:.1%} |",
        "",
        "| model | layers | unique |",
        "|---|---|---|",
        *(f"| {name} | {row['layers']} | {row['unique']} |" for name, row in layers["models"].items()),
        "",
        "## Accuracy and benchmarking speed-up against G",
        "",
        "Normalised latency = constructed / measured (20 % trimmed means). Speed-up = sum of model latencies / sum of",
        "unique brick latencies (equal sample counts). Ten samples = sessions created, run once, sampled ten times.",
        "Disturbance = most that a model was slower on average than on a quiet machine; its bricks met the same.",
        "",
        (
            "| G | sequences | unique | geomean | min | max | median error | disturbance | paper geomean (4 systems) "
            "| speed-up | paper speed-up | ten samples of models (s) | ten samples of bricks (s) |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in figures["granularities"]:
        place = row["granularity"] - 1
        accuracy = [values[place] for values in PAPER_ACCURACY.values()]
        speedup = [values[place] for values in PAPER_SPEEDUP.values()]
        lines.append(
            f"| {row['granularity']} | {row['sequences']} | {row['unique']} | {cell(row['geomean'], '.3f')} "
            f"| {cell(row['min'], '.2f')} | {cell(row['max'], '.2f')} | {cell(row['median_error'], '.1%')} "
            f"| {cell(row['disturbance'], '.1%')} | {min(accuracy):.3f}-{max(accuracy):.3f} "
            f"| {cell(row['speedup'], '.2f')} | {min(speedup):.2f}-{max(speedup):.2f} "
            f"| {row['ten_samples_models_s']:.1f} | {row['ten_samples_bricks_s']:.1f} |"
        )
    steps = [row["granularity"] for row in figures["granularities"]]
    lines += [
        "",
        "## Normalised latency per model",
        "",
        "| model | measured (ms) | " + " | ".join(f"G={step}" for step in steps) + " |",
        "|---|---|" + "---|" * len(steps),
    ]
    for name in layers["names"]:
        rows = [row["models"][name] for row in figures["granularities"]]
        measured = statistics.median(row["measured_ms"] for row in rows)
        cells = ["missing" if row["normalised"] is None else f"{row['normalised']:.2f}" for row in rows]
        lines.append(f"| {name} | {measured:.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(figures: dict[str, Any], out: Path) -> None:
    """The plots beside the tables."""
    layers = figures["repetition"]
    shares = [plots.ModelShare(name, row["layers"], row["unique"]) for name, row in layers["models"].items()]
    points = [
        plots.GranularityPoint(
            row["granularity"],
            tuple(m["normalised"] for m in row["models"].values() if m["normalised"] is not None),
            row["speedup"],
        )
        for row in figures["granularities"]
    ]
    first = figures["granularities"][0]["models"]
    latencies = [plots.ModelLatency(n, row["constructed_ms"], None, row["measured_ms"]) for n, row in first.items()]
    named = {
        "paper-unique-share": plots.unique_share(shares, title="Layers of the built-in zoo, and unique ones"),
        "paper-similarity": plots.similarity_grid(
            layers["names"], layers["similarity"], title="Jaccard similarity of unique layers"
        ),
        "paper-granularity": plots.accuracy_against_granularity(points, title="Accuracy and speed-up against G"),
        "paper-models": plots.estimate_beside_measured(latencies, title="Constructed beside measured, G = 1"),
    }
    for name, figure in named.items():
        plots.save(figure, out / f"{name}.png")


def main() -> None:
    """Run the experiments and write their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=ZOO)
    parser.add_argument("--granularities", default="1-10", help="N or FIRST-LAST")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--visits", type=int, default=24, help="of each brick and model")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    first, _, last = options.granularities.partition("-")
    sources, graphs = zoo(options.models)
    figures: dict[str, Any] = {
        "command": f"python benchmarks/paper.py --granularities {options.granularities} "
        f"--visits {options.visits} --processes {options.processes} --sessions {options.sessions}",
        "date": datetime.now(UTC).date().isoformat(),
        "threads": options.threads,
        "repetition": repetition(graphs),
        "granularities": [],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for granularity in range(int(first), int(last or first) + 1):
            row = experiment(sources, graphs, granularity, Path(folder), options)
            figures["granularities"].append(row)
            print(
                f"G={granularity}: {row['unique']} of {row['sequences']} unique, "
                f"geomean {cell(row['geomean'], '.3f')}, speed-up {cell(row['speedup'], '.2f')}, "
                f"{row['run_wall_s']:.0f} s",
                flush=True,
            )
        with Store.open(Path(folder) / f"g{first}.db", read_only=True) as store:
            figures["provenance"] = provenance(store)
    (options.out / "paper.json").write_text(json.dumps(figures, indent=1) + "\n")
    (options.out / "paper.md").write_text(tables(figures))
    draw(figures, options.out)


if __name__ == "__main__":
    main()
